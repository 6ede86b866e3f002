# For Spack 1.0 and later, in a repository of packages: packages/regall/package.py.
from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Regall(MakefilePackage):
    """Keeps the memory of unmodified MPI programs registered and pinned."""

    homepage = "https://regall.invalid"
    url = homepage + "/regall-0.1.0.tar.xz"

    license("MIT OR Apache-2.0")

    # `spack checksum regall` has the digest of the archive that is published.
    version("0.1.0")

    variant("static", default=True, description="Link the command statically, if libc.a is there")
    variant("fortran", default=False, description="For programs in Fortran: wants a compiler")

    depends_on("c", type="build")
    depends_on("fortran", type="run", when="+fortran")
    depends_on("gmake", type="build")
    depends_on("rust@1.85:", type="build")

    conflicts("platform=darwin")

    def build(self, spec, prefix):
        # All crates are in the archive. (A value that is given wins over the Makefile's.)
        make("build", *([] if spec.satisfies("+static") else ["STATIC="]))

    def install(self, spec, prefix):
        make("install", f"PREFIX={prefix}")

    def setup_run_environment(self, env):
        env.prepend_path("PYTHONPATH", self.prefix.share.regall.python)

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_install(self):
        Executable(self.prefix.bin.regall)("run", "--", "true")
