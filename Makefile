# make run [MPI=openmpi|mpich], make test, make bench, make lint; `make` builds.
MPI ?= openmpi

build:
	cargo build --release

# An unmodified MPI program with the shim on, looked at from outside all the while.
run:
	scripts/setup run
	$(MAKE) --no-print-directory build
	scripts/run-mpi $(MPI)

test:
	scripts/setup test
	$(MAKE) --no-print-directory build
	scripts/run-tests

bench:
	scripts/setup bench
	$(MAKE) --no-print-directory build
	benches/run

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	scripts/shellcheck

clean:
	cargo clean

.PHONY: build run test bench lint clean
