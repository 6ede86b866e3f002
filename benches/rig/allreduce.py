"""The allreduce of examples/ against MPI_Allreduce: a row of its own. Nothing is promised of it, so there are no
checks: a table says who is faster where."""
import os
import shutil
import subprocess

from . import build
from .model import Section, Table
from .pairs import Failed, median

EXAMPLES = build.ROOT / "examples"
#: What launches so many ranks, each on a processor of its own if there are enough.
MPIS = {
    "openmpi": ("Open MPI", lambda ranks, bind: ["mpirun.openmpi", "--oversubscribe", "--bind-to", "core" if bind else "none",
                                                  "-np", str(ranks)]),
    "mpich": ("MPICH", lambda ranks, bind: ["mpirun.mpich", *(["-bind-to", "core"] if bind else []), "-np", str(ranks)]),
}


def compiled(compiler, source, *flags):
    product = build.OUT / f"{source}.{compiler}"
    files = [EXAMPLES / f"{source}.c", EXAMPLES / "allreduce.h"]
    if not product.exists() or product.stat().st_mtime < max(f.stat().st_mtime for f in files):
        subprocess.run([compiler, "-std=gnu11", "-O3", "-o", product, files[0], *flags], check=True)
    return product


def times(command, environment):
    """{bytes: microseconds} of one run."""
    run = subprocess.run([str(w) for w in command], env=environment, text=True, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, timeout=300)
    if run.returncode:
        raise Failed(f"{command[-2:]}: status {run.returncode}: {run.stderr.strip()[-300:]}")
    return {int(size): float(took) for size, took in (line.split() for line in run.stdout.splitlines())}


def size_name(size):
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"


def allreduce(bench, environment):
    s = Section("allreduce", "An allreduce over mapped memory, and MPI_Allreduce")
    library = build.ROOT / "target" / "release"
    present = [mpi for mpi in MPIS if shutil.which(f"mpicc.{mpi}") and shutil.which(f"mpirun.{mpi}")]
    if not present:
        s.notes.append("SKIPPED: no MPI here (apt-get install libopenmpi-dev libmpich-dev).")
        return s
    ours = compiled(os.environ.get("CC", "gcc"), "allreduce", "-I", build.ROOT / "include", f"-L{library}",
                    f"-Wl,-rpath,{library}", "-lregall")
    theirs = {mpi: compiled(f"mpicc.{mpi}", "allreduce_mpi") for mpi in present}
    env = environment(bench)
    on = {**env, "REGALL": "1", "REGALL_LOG": "error"}
    s.notes.append("`examples/allreduce.c` and `allreduce_mpi.c`, sums of doubles, buffers by regall_alloc_shared and MPI_Alloc_mem; "
                   "MPI as Debian has it, with its defaults. Microseconds, the median of a round's medians; in brackets the "
                   "library's time / ours, so more than 1 says that ours is faster. `benches/run --only allreduce` measures again.")
    for ranks in (2, 4):
        bind = ranks <= (os.cpu_count() or 1)
        got = {name: {} for name in ("ours", *present)}
        for _ in range(bench.pick(3, 1)):
            runs = {"ours": times([ours, "time", 1 << 24, ranks], on)}
            for mpi in present:
                runs[mpi] = times([*MPIS[mpi][1](ranks, bind), theirs[mpi], "time"], env)
            for name, values in runs.items():
                for size, took in values.items():
                    got[name].setdefault(size, []).append(took)
        rows = []
        for size, took in got["ours"].items():
            own = median(took)
            others = [f"{median(got[mpi][size]):,.2f} ({median(got[mpi][size]) / own:.2f})" for mpi in present]
            rows.append([size_name(size), f"{own:,.2f}", *others])
        where = "" if bind else f", on {os.cpu_count()} processors"
        s.tables.append(Table(f"{ranks} processes{where}, µs", ["", "regall", *(MPIS[mpi][0] for mpi in present)], rows))
    return s
