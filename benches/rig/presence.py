"""What the presence of the shim costs: memory of small processes and of ranks, start-up, mappings, and calls beside much memory."""
import subprocess
import time

from . import build
from .model import Check, Section, Table
from .pairs import TITLES, Failed, alternate, difference, median

WAYS = ("none", "auto", "onfault", "populate")
#: What benches/c/presence.c is told, and what that is.
CALLS = (
    ("exec", "128", "1", "mprotect of 128 MiB to executable, and back"),
    ("exec", "128", "64", "the same where one page in 64 is touched"),
    ("exec", "128", "0", "the same where none is"),
    ("file", "2048", "65536", "mmap + munmap of a file of 2 GiB as code, of which one page in 65,536 is there"),
    ("file", "128", "1", "mmap + munmap of a file of 128 MiB as code"),
    ("ring", "1024", "mmap + munmap of a device's ring beside 1 GiB"),
)
PERL = 'open F, "/proc/self/smaps_rollup"; while (<F>) { print "$1\\n" if /^Pss:\\s+(\\d+)/ }'


def said(bench, way, *words):
    run = subprocess.run([str(w) for w in words], env=bench.ways.environment(way), text=True, stdout=subprocess.PIPE, check=True)
    return [int(n) for n in run.stdout.split()]


def memory(bench, rank_memory, launcher):
    """PSS of a small process and of a rank, and what a rank has with the defaults and without."""
    rows, ranks = [], {}
    for way in WAYS:
        perl = median([said(bench, way, "perl", "-e", PERL)[0] for _ in range(3)])
        if launcher:
            ranks[way] = max(size[3] for size in rank_memory(bench, launcher, way))
        rows.append([TITLES[way], f"{perl / 1024:.1f}", f"{ranks[way] / 1024:.1f}" if launcher else "no Open MPI"])
    return Table("PSS, MiB", ["", "perl", "an Open MPI rank after MPI_Init (the larger of two)"], rows), ranks


def ranks_start(bench, launcher, words, environment):
    """Milliseconds from mpirun to its end, of two ranks that do nothing."""
    got = {way: [] for way in ("none", "auto")}
    for i in range(bench.pick(8, 4)):
        for way in got if i % 2 == 0 else reversed(got):
            variables = [f"{k}={v}" for k, v in bench.ways[way].items()]
            began = time.monotonic()
            run = subprocess.run([launcher, *words, "env", *variables, build.OUT / "rank", "libmpi.so.40", "0"], env=environment,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if run.returncode:
                raise Failed(f"two ranks {TITLES[way]}: {run.stderr[-300:]}")
            got[way].append(1000 * (time.monotonic() - began))
    return got


def presence(bench, check, compared, mpi):
    """`mpi`: the launcher (or None), its words, its environment, and what reads the memory of ranks."""
    s = Section("presence", "What the presence of the shim costs")
    launcher, words, environment, rank_memory = mpi
    table, ranks = memory(bench, rank_memory, launcher)
    s.tables.append(table)
    if launcher:
        s.checks.append(check("PSS of an Open MPI rank after MPI_Init, default / without", [ranks["auto"]], [ranks["none"]], 1.10))
        got = ranks_start(bench, launcher, words, environment)
        s.checks.append(check("mpirun of two ranks that do nothing, default − without", got["auto"], got["none"], 15, difference, "ms", 1))
        s.tables.append(compared("mpirun of two ranks that do nothing, from start to end", got, name="ms"))
    for what, *sizes, title in CALLS:
        got = alternate(bench.ways, ("none", "auto", "off"), "presence", what, *sizes, **bench.rounds(2, 5), watched=False)
        s.tables.append(compared(title, got, 1e3, "µs"))
        if what == "exec" and sizes[1] != "0":
            s.checks.append(check(f"{title} / without", got["auto"], got["none"], 1.2))
        if what == "ring":
            s.checks.append(check(f"{title}, default − without", got["auto"], got["none"], 5, difference, "µs", 1e-3))
    counts = {way: said(bench, way, build.OUT / "presence", "mappings") for way in WAYS}
    s.tables.append(Table("mappings of a program that calls malloc much", ["", "before", "after"],
                          [[TITLES[way], *map(str, n)] for way, n in counts.items()]))
    grown = {way: after - before for way, (before, after) in counts.items()}
    s.checks.append(Check("mappings that much malloc adds, default − without", grown["auto"] - grown["none"], 0, "mappings"))
    return s
