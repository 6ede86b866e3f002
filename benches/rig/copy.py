"""One copy between ranks, and huge pages: rows of their own."""
import os
import shutil
import subprocess

from . import build
from .model import Section
from .pairs import TITLES, Failed, alternate

#: Bytes of a message, and what it may take at the most, against no shim.
MESSAGES = {"64 KiB": (65536, {"huge": 0.75, "heap": 0.5}), "1 MiB": (1 << 20, {"huge": 0.75, "heap": 0.5})}


def compile_pingpong():
    compiler = shutil.which("mpicc.openmpi")
    if not compiler:
        return None
    product = build.OUT / "pingpong"
    source = build.ROOT / "c-tests" / "share" / "pingpong.c"
    if not product.exists() or product.stat().st_mtime < source.stat().st_mtime:
        subprocess.run([compiler, "-O2", "-o", product, source], check=True)
    return product


def exchange(bench, launcher, environment, program, way):
    """µs one way, for each size."""
    variables = [f"{k}={v}" for k, v in bench.ways[way].items()]
    words = [] if (os.cpu_count() or 1) >= 2 else ["--oversubscribe"]
    sizes = [str(size) for size, _ in MESSAGES.values()]
    run = subprocess.run([launcher, *words, "-np", "2", "env", *variables, program, "100", *sizes], env=environment(bench),
                         text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120)
    said = {int(n): float(us) for n, us in (line.split() for line in run.stdout.splitlines() if line[:1].isdigit())}
    if run.returncode or len(said) != len(MESSAGES):
        raise Failed(f"ping-pong {TITLES[way]}: status {run.returncode}: {run.stderr.strip()[-300:]}")
    return said


def copy(bench, mpirun, environment, check, compared):
    s = Section("copy", "A message between two ranks of a node (Open MPI, one buffer, reused)")
    launcher, program = mpirun(), compile_pingpong()
    if not launcher or not program:
        s.notes.append("SKIPPED: no Open MPI here (apt-get install openmpi-bin libopenmpi-dev).")
        return s
    ways = ["none", "huge", "heap"]
    got = {name: {way: [] for way in ways} for name in MESSAGES}
    for i in range(bench.pick(9, 3)):
        for way in ways if i % 2 == 0 else reversed(ways):
            said = exchange(bench, launcher, environment, program, way)
            for name, (size, _) in MESSAGES.items():
                got[name][way].append(said[size])
    for name, (_, limits) in MESSAGES.items():
        for way, limit in limits.items():
            s.checks.append(check(f"message of {name}, {TITLES[way]} / without", got[name][way], got[name]["none"], limit))
        s.tables.append(compared(f"{name}, one way", got[name], name="µs"))
    return s


def hugepages(bench, check, compared):
    s = Section("hugepages", "Huge pages for large memory")
    for mib, limit in ((1, 1.05), (16, 0.5)):
        got = alternate(bench.ways, ["none", "advised", "off"], "calls", "touched", str(mib << 20), **bench.rounds(4, 6))
        title = f"mmap + write to each page + munmap of {mib} MiB"
        s.checks.append(check(f"{title}, HUGE=advise, tracked / without", got["advised"], got["none"], limit))
        s.tables.append(compared(title, {"none": got["none"], "advised": got["advised"], "off": got["off"]}, 1000, "µs"))
    return s
