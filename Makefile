# make run [MPI=openmpi|mpich], make run-rdma [KERNEL=6.1|odp], make run-cluster [PARTS="srun ssh"], make run-copy,
# make test [DEVICES=real], make test-all [DEVICES=real], make flakes, make planted [PLANTED="NAME..."],
# make mutants [MUTANTS="PART..."], make soak [SOAK_SECONDS=60] [PARTS="stress faults"], make bench, make bench-caches, make apps, make lint; `make` builds,
# make install [PREFIX=/usr/local] [LIBDIR=PREFIX/lib] [DESTDIR=] puts what was built in its place, make
# uninstall takes it away, make book makes a book of docs/, make dist writes the source archive, make deb packs for Debian.
MPI ?= openmpi
KERNEL ?= 6.1
PREFIX ?= /usr/local
# `make install` leaves it in share/regall/libdir, where the command reads it.
LIBDIR ?= $(PREFIX)/lib
# Where the Python package goes: a folder of Python's, or one for PYTHONPATH.
PYTHONDIR ?= $(PREFIX)/share/regall/python
# The command is linked statically where there is a libc.a, so that one build serves systems
# with an older libc than here, too: the library needs none. `make STATIC=` links it as usual.
STATIC ?= $(if $(wildcard $(shell $(CC) -print-file-name=libc.a)),yes)
# A debugger takes `break lock` for each function of that name, the library's own among them: what
# is installed has no symbols but those that it exports. `make install STRIP=` keeps them.
STRIP ?= strip
# Where cargo puts what it builds.
BUILT = $(or $(CARGO_TARGET_DIR),target)/$(if $(CARGO_BUILD_TARGET),$(CARGO_BUILD_TARGET)/)release
# Writes manual pages and completions; of another machine's, one that runs here.
PAGES ?= $(BUILT)/regall
# With the crates of the source archive nothing is fetched.
CARGO_FLAGS = --release --locked $(if $(wildcard vendor),--offline)
# For the command, where speed is not worth minutes of a build.
QUICK = --config profile.release.lto=false --config profile.release.codegen-units=16 --config 'profile.release.opt-level="s"'
# How long each part of a run of the tests takes; .ci/run has begun the file, and says so.
BEGIN_STAGES = test -n "$$TESTS_STAGES" || rm -f target/stages.tsv
ROOT = $(DESTDIR)$(PREFIX)
LIB = $(DESTDIR)$(LIBDIR)
DOCS = README.md ARCHITECTURE.md SECURITY.md CHANGELOG.md LICENSE LICENSE-MIT LICENSE-APACHE \
	THIRD-PARTY-NOTICES sbom.cdx.json
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
# Files that say where they are, for everyone to read.
FILL = umask 022 && sed 's|@PREFIX@|$(PREFIX)|g; s|@VERSION@|$(VERSION)|g; s|@LIBDIR@|$(LIBDIR)|g; \
	s|@PCLIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|g; s|@INCLUDE@|$(INCLUDE)|g'
# LIBDIR as seen from the command; outside of PREFIX, which may be moved, as it is.
NOTED = $(if $(filter $(PREFIX)/%,$(LIBDIR)),$(patsubst $(PREFIX)/%,../%,$(LIBDIR)),$(LIBDIR))
# Headers, as seen from CMake's file.
INCLUDE = $(shell realpath -m --relative-to=$(LIBDIR)/cmake/regall $(PREFIX)/include)

build:
	cargo build $(CARGO_FLAGS) -p regall
	cargo rustc $(CARGO_FLAGS) $(QUICK) -p regall-cli --bin regall $(if $(STATIC),-- -Ctarget-feature=+crt-static)

# An unmodified MPI program with the shim on, looked at from outside all the while.
run:
	scripts/setup run
	$(MAKE) --no-print-directory build
	scripts/run-mpi $(MPI)

# The same with RDMA adapters, in a guest of QEMU's.
run-rdma:
	scripts/setup rdma
	$(MAKE) --no-print-directory build
	scripts/run-rdma $(KERNEL)

# The same between two such guests, under Slurm and over ssh.
run-cluster:
	scripts/setup cluster
	$(MAKE) --no-print-directory build
	scripts/run-cluster $(KERNEL) $(PARTS)

# What a message between two ranks of the node costs: without the shim, with huge pages,
# and with memory that peers can map.
run-copy:
	scripts/setup copy
	$(MAKE) --no-print-directory build
	scripts/run-copy $(COPY)

# DEVICES=real: with the modules of XPMEM and KNEM, which have to be loaded, in place of what
# stands in for them elsewhere.
test:
	@$(BEGIN_STAGES)
	scripts/timed set-up scripts/setup test rdma soak
	scripts/timed build $(MAKE) --no-print-directory build
	TESTS_DEVICES=$(DEVICES) scripts/run-tests default $(TESTS_OPTIONS)

# Everything but what takes hours.
test-all:
	@$(BEGIN_STAGES)
	scripts/timed set-up scripts/setup test rdma soak lint browser
	scripts/timed build $(MAKE) --no-print-directory build
	TESTS_DEVICES=$(DEVICES) scripts/run-tests all

# make test, without a second try, beside three busy loops.
flakes:
	scripts/beside-load 3 $(MAKE) --no-print-directory test TESTS_OPTIONS=--retries=0

# Breaks one line of the shim at a time (tests/planted.txt): the test that is named there notices.
planted:
	scripts/setup test soak
	$(MAKE) --no-print-directory build
	scripts/planted $(PLANTED)

# Changes operators and results of the pure crates: their unit tests notice (hours; it goes on where it stopped).
mutants:
	scripts/setup test mutants
	scripts/mutants $(MUTANTS)

# Tries for long to break it: stress-ng, other people's programs, faults, kills, fuzzers.
soak:
	scripts/setup test rdma cluster soak mutants fits
	$(MAKE) --no-print-directory build
	scripts/soak $(PARTS)

bench:
	scripts/setup bench
	$(MAKE) --no-print-directory build
	benches/run

# Registrations in MPI programs with their library's cache and without, in a guest of QEMU's.
bench-caches:
	scripts/setup rdma
	$(MAKE) --no-print-directory build
	benches/caches --docs

# Applications on two ranks, without the shim and with it: results, CPU time and memory.
apps:
	scripts/setup apps
	$(MAKE) --no-print-directory build
	benches/apps --docs

lint:
	scripts/setup lint
	cargo fmt --all --check
	# As it is used, and then with all that is for tests, whose std the shim is beside.
	cargo clippy --locked -p regall -- -D warnings
	cargo clippy --locked --workspace --all-targets -- -D warnings
	# No cycle among modules, and no import that ARCHITECTURE.md does not allow.
	cargo test --locked -q -p regall-walls
	# No crate asks for a newer Rust than Cargo.toml names. (make test-all compiles with that one.)
	scripts/oldest-rust
	# What is linked, under which licence: the files that are installed are of this Cargo.lock.
	scripts/notices --check
	# The same of all crates, tests' too, where cargo-deny is installed. (It needs the network only
	# for advisories, which are looked at before a release.)
	! cargo deny --version >/dev/null 2>&1 || cargo deny --offline --workspace check licenses bans sources
	# Recipes have the version and the page of Cargo.toml.
	scripts/check-packaging versions
	scripts/shellcheck
	scripts/spelling

# The pages of docs/ as one book: target/book/html/index.html.
book:
	scripts/make-book

# What a shell or sed takes for something else than a part of a path.
SPECIAL := * ? [ ] { } ( ) < > ; & | ! ` ' " \ $$ \#

# Folders are words of commands below, rm's among them.
where:
	@$(foreach v,DESTDIR PREFIX LIBDIR PYTHONDIR,$(if $(word 2,x$($v)x),$(error $v may have no blank)))
	@$(foreach v,DESTDIR PREFIX LIBDIR PYTHONDIR,$(foreach c,$(SPECIAL),$(if $(findstring $c,$($v)),$(error $v may have no $c))))
	@$(foreach v,PREFIX LIBDIR PYTHONDIR,$(if $($v),,$(error $v is empty)))
	@$(foreach v,PREFIX LIBDIR PYTHONDIR,$(if $(filter-out /%,$($v)),$(error $v has to be an absolute path)))

# Builds nothing: root, who installs, seldom has a Rust toolchain.
install: where
	@test -f $(BUILT)/libregall.so || { echo "run make first" >&2; exit 1; }
	@test -z "$(STATIC)" || ! readelf -lW $(BUILT)/regall 2>/dev/null | grep -q INTERP || { \
		echo "$(BUILT)/regall is not static: run make (cargo build links it dynamically), or say STATIC=" >&2; \
		exit 1; }
	install -d $(ROOT)/bin $(LIB)/pkgconfig $(LIB)/cmake/regall $(ROOT)/include \
		$(ROOT)/share/regall/slurm $(ROOT)/share/regall/monitoring $(ROOT)/share/regall/modulefiles/regall \
		$(ROOT)/share/regall/containers $(ROOT)/share/regall/kubernetes \
		$(ROOT)/share/doc/regall/docs $(ROOT)/share/doc/regall/examples \
		$(DESTDIR)$(PYTHONDIR)/regall
	install -m 755 $(BUILT)/regall $(ROOT)/bin/
	install -m 755 $(BUILT)/libregall.so $(LIB)/
	$(if $(STRIP),$(STRIP) --strip-unneeded $(ROOT)/bin/regall $(LIB)/libregall.so)
	install -m 644 include/regall.h fortran/regall.f90 $(ROOT)/include/
	install -m 644 python/regall/__init__.py $(DESTDIR)$(PYTHONDIR)/regall/
	install -m 644 python/example.py fortran/example.f90 $(wildcard examples/*.c examples/*.h) $(ROOT)/share/doc/regall/examples/
	install -m 755 scripts/verify-maps.sh $(ROOT)/share/regall/
	install -m 644 $(DOCS) $(ROOT)/share/doc/regall/
	install -m 644 $(filter-out docs/SUMMARY.md,$(wildcard docs/*.md docs/*.svg)) $(ROOT)/share/doc/regall/docs/
	umask 022 && echo '$(NOTED)' >$(ROOT)/share/regall/libdir
	$(FILL) regall.pc.in >$(LIB)/pkgconfig/regall.pc
	$(FILL) cmake/regall-config.cmake.in >$(LIB)/cmake/regall/regall-config.cmake
	$(FILL) cmake/regall-config-version.cmake.in \
		>$(LIB)/cmake/regall/regall-config-version.cmake
	$(FILL) cluster/modulefile.in >$(ROOT)/share/regall/modulefiles/regall/$(VERSION)
	$(FILL) cluster/modulefile.lua.in >$(ROOT)/share/regall/modulefiles/regall/$(VERSION).lua
	$(FILL) cluster/task-prolog.in >$(ROOT)/share/regall/slurm/task-prolog
	$(FILL) cluster/task-epilog.in >$(ROOT)/share/regall/slurm/task-epilog
	$(FILL) cluster/monitoring/regall-metrics.service.in >$(ROOT)/share/regall/monitoring/regall-metrics.service
	$(FILL) cluster/monitoring/regall-metrics.timer.in >$(ROOT)/share/regall/monitoring/regall-metrics.timer
	$(FILL) cluster/monitoring/folder.conf.in >$(ROOT)/share/regall/monitoring/folder.conf
	install -m 644 cluster/monitoring/grafana.json $(ROOT)/share/regall/monitoring/
	chmod 755 $(addprefix $(ROOT)/share/regall/slurm/,task-prolog task-epilog)
	for file in cdi.json enroot-hook; do \
		$(FILL) packaging/containers/$$file.in >$(ROOT)/share/regall/containers/$$file || exit; \
	done
	chmod 755 $(ROOT)/share/regall/containers/enroot-hook
	install -m 644 packaging/kubernetes/*.yaml $(ROOT)/share/regall/kubernetes/
	umask 022 && $(PAGES) pages $(ROOT) >/dev/null

# What install puts there, and the folders that are nobody else's.
uninstall: where
	rm -f $(addprefix $(LIB)/,libregall.so pkgconfig/regall.pc) \
		$(addprefix $(ROOT)/,bin/regall include/regall.h include/regall.f90 share/man/man1/regall.1 share/man/man1/regall-*.1 \
		share/man/man3/regall.3 share/man/man3/regall_*.3 share/man/man7/regall.7 \
		share/bash-completion/completions/regall share/zsh/site-functions/_regall \
		share/fish/vendor_completions.d/regall.fish)
	rm -rf $(LIB)/cmake/regall $(addprefix $(ROOT)/,share/regall share/doc/regall) \
		$(DESTDIR)$(PYTHONDIR)/regall

# The source archive of the last commit, with all crates: target/regall-VERSION.tar.xz.
dist:
	scripts/make-dist

# A package for Debian of what was built: target/regall_VERSION_ARCH.deb.
deb:
	scripts/make-deb

clean:
	cargo clean

.PHONY: build run run-rdma run-cluster run-copy test test-all flakes planted mutants soak bench bench-caches apps lint book where install uninstall dist deb clean
