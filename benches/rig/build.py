"""Where things are, and the C programs."""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = ROOT / "benches" / "c"
OUT = ROOT / "target" / "bench"
PROGRAMS = ("calls", "heap", "growth", "lookup", "life", "spawn", "rank", "cputime", "peer", "regions", "words", "presence", "boxes")
PRELOADS = ("empty", "future", "mlockall", "ucm")


def library(given):
    """libregall.so: what the command line says, else where cargo puts it."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    lib = pathlib.Path(given) if given else ROOT / target / "release" / "libregall.so"
    if not lib.exists():
        sys.exit(f"benches/run: no {lib}: run `cargo build --release` first, or give --lib")
    return lib.resolve()


def compile_all():
    """Compiles what is older than its source."""
    OUT.mkdir(parents=True, exist_ok=True)
    cc = os.environ.get("CC", "cc")
    shared = max(f.stat().st_mtime for f in (SOURCES / "slice.h", ROOT / "include" / "regall.h"))
    jobs = [(SOURCES / f"{p}.c", OUT / p, ()) for p in PROGRAMS]
    jobs += [(SOURCES / f"preload_{p}.c", OUT / f"preload_{p}.so", ("-shared", "-fPIC")) for p in PRELOADS]
    for source, product, flags in jobs:
        if product.exists() and product.stat().st_mtime > max(shared, source.stat().st_mtime):
            continue
        command = [cc, "-O2", "-Wall", "-Wextra", *flags, "-o", product, source, "-lpthread", "-ldl"]
        subprocess.run(command, check=True)
