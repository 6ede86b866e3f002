# make run [MPI=openmpi|mpich], make run-rdma [KERNEL=6.1|odp], make test, make bench,
# make lint; `make` builds, make install [PREFIX=/usr/local] [DESTDIR=] puts what was
# built in its place.
MPI ?= openmpi
KERNEL ?= 6.1
PREFIX ?= /usr/local
VERSION = $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)

build:
	cargo build --release

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

test:
	scripts/setup test rdma
	$(MAKE) --no-print-directory build
	scripts/run-tests

bench:
	scripts/setup bench
	$(MAKE) --no-print-directory build
	benches/run

lint:
	cargo fmt --all --check
	cargo clippy --workspace -- -D warnings
	# Not --all-targets: that builds the shim with its tests' packages, whose std has a
	# panic handler of its own.
	cargo clippy --workspace --tests -- -D warnings
	scripts/shellcheck

# Builds nothing: root, who installs, seldom has a Rust toolchain. `regall` looks
# for the library beside itself and in ../lib, so lib it is, whatever the distribution.
install:
	@test -f target/release/libregall.so || { echo "run make first" >&2; exit 1; }
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib/pkgconfig \
		$(DESTDIR)$(PREFIX)/include $(DESTDIR)$(PREFIX)/share/regall
	install -m 755 target/release/regall $(DESTDIR)$(PREFIX)/bin/
	install -m 755 target/release/libregall.so $(DESTDIR)$(PREFIX)/lib/
	install -m 644 include/regall.h $(DESTDIR)$(PREFIX)/include/
	install -m 755 scripts/verify-maps.sh $(DESTDIR)$(PREFIX)/share/regall/
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|' regall.pc.in \
		>$(DESTDIR)$(PREFIX)/lib/pkgconfig/regall.pc

uninstall:
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,bin/regall lib/libregall.so include/regall.h \
		share/regall/verify-maps.sh lib/pkgconfig/regall.pc)

clean:
	cargo clean

.PHONY: build run run-rdma test bench lint install uninstall clean
