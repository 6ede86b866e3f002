"""The applications of benches/apps: what each needs, how it runs on two ranks, and what of its output must be the same."""
import dataclasses
import pathlib
import shutil
import subprocess

from . import build

INPUTS = build.ROOT / "benches" / "apps.d"
VENV = build.ROOT / "target" / "apps" / "venv"
EXAMPLES = pathlib.Path("/usr/share/doc")
#: Of quantum-espresso-data.
PSEUDOPOTENTIAL = pathlib.Path("/usr/share/espresso/pseudo/Si.pz-vbc.UPF")
CAVITY = EXAMPLES / "openfoam-examples/examples/incompressible/icoFoam/cavity/cavity"
OPENMPI = ("mpirun.openmpi", "--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-np", "2")
INTEL = (str(VENV / "bin" / "mpiexec.hydra"), "-np", "2")
PYTHON = str(VENV / "bin" / "python")


def nothing(_folder):
    pass


@dataclasses.dataclass
class Case:
    """An application; its input is copied into the folder in which it runs."""
    title: str
    words: tuple
    #: Lines of stdout in which this is found (re) are its result.
    result: str
    inputs: tuple = ()
    #: Commands and files without which it can't run.
    needs: tuple = ()
    launcher: tuple = OPENMPI
    environment: dict = dataclasses.field(default_factory=dict)
    prepare: object = nothing

    def lacks(self):
        """What is not installed, if anything."""
        every = (self.launcher[0], self.words[0], *self.needs)
        return next((n for n in every if not n.startswith("./") and not shutil.which(n) and not pathlib.Path(n).exists()), None)

    def lay(self, folder):
        for name in self.inputs:
            shutil.copy(INPUTS / name, folder)
        self.prepare(folder)


def pseudopotential(folder):
    shutil.copy(PSEUDOPOTENTIAL, folder / "Si.UPF")


def compile_poisson(folder):
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "petsc"], check=True, text=True, capture_output=True).stdout
    subprocess.run(["mpicc.openmpi", "-O2", "-o", "poisson", "poisson.c", *flags.split(), "-lm"], cwd=folder, check=True)


def lay_cavity(folder):
    subprocess.run(["sh", INPUTS / "cavity.sh", CAVITY], cwd=folder, check=True)


CASES = {
    "lammps": Case("LAMMPS: 32,000 atoms of a melt", ("lmp", "-in", "melt.in", "-log", "none"), r"^\s+\d+ .*\.\d{6}\s", ("melt.in",)),
    "espresso": Case("Quantum ESPRESSO: silicon", ("pw.x", "-in", "silicon.in"), "^!", ("silicon.in",),
                     (str(PSEUDOPOTENTIAL),), prepare=pseudopotential),
    "cp2k": Case("CP2K: a water molecule moves", ("cp2k.psmp", "-i", "water.inp"), r"ENERGY\| Total", ("water.inp",)),
    "nwchem": Case("NWChem: benzene, B3LYP", ("nwchem", "benzene.nw"), "Total DFT energy", ("benzene.nw",)),
    "petsc": Case("PETSc: Poisson's equation", ("./poisson",), "norm", ("poisson.c",),
                  ("mpicc.openmpi", "pkg-config", "/usr/share/petsc"), prepare=compile_poisson),
    "openfoam": Case("OpenFOAM: a cavity", ("icoFoam", "-parallel"), "Solving for", (), ("blockMesh", str(CAVITY)),
                     environment={"WM_PROJECT_DIR": "/usr/share/openfoam"}, prepare=lay_cavity),
    "torch": Case("PyTorch: DistributedDataParallel", ("/usr/bin/python3", "train.py"), "loss", ("train.py",),
                  ("/usr/lib/python3/dist-packages/torch",)),
    "h5py": Case("h5py and mpi4py over Open MPI", (PYTHON, "slabs.py"), "sum", ("slabs.py",),
                 environment={"MPI4PY_MPIABI": "openmpi"}),
    "intel": Case("the same over Intel MPI", (PYTHON, "slabs.py"), "sum", ("slabs.py",), launcher=INTEL,
                  environment={"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(VENV / "lib")}),
}
