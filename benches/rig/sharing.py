"""REGALL_SHARE=heap beyond ping-pong: where it gains, and what it costs. Rows of their own, since
each takes a minute; docs/sharing.md has the last figures of each."""
import json
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import tempfile
import time

from . import build
from .model import Section, Table
from .pairs import TITLES, Failed

#: As a user has it: without, by default, and with heap beside that.
WAYS = ("none", "auto", "share")
ROUNDS = 5
#: Where the last figures of each row are.
KEPT = build.OUT / "sharing"
MPIS = {"openmpi": "Open MPI", "mpich": "MPICH"}


def launcher(mpi):
    """The words that start two ranks, or None."""
    found = shutil.which(f"mpirun.{mpi}")
    if not found:
        return None
    more = ["--bind-to", "none", "--oversubscribe"] if mpi == "openmpi" else []
    return [found, *more, "-np", "2"]


def environment(bench):
    return {**bench.ways.environment("none"), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def variables(bench, way):
    return [f"{k}={v}" for k, v in bench.ways[way].items()]


def run(bench, way, words, folder):
    done = subprocess.run([str(w) for w in words], cwd=folder, env=environment(bench), text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    if done.returncode:
        raise Failed(f"{words[0]} {TITLES[way]}: status {done.returncode}: {(done.stdout + done.stderr).strip()[-400:]}")
    return done.stdout


def ranks(bench, way, mpi, words, folder):
    """What two ranks print that run `words`; the launcher itself is without the shim."""
    return run(bench, way, [*launcher(mpi), "env", *variables(bench, way), *words], folder)


def rounds_of(once, ways):
    """{what: {way: [a value a round]}}, of a function that has {what: value} of one run."""
    got = {}
    for i in range(ROUNDS):
        # There and back, so that what changes slowly meets all alike.
        for way in ways if i % 2 == 0 else ways[::-1]:
            with tempfile.TemporaryDirectory(prefix="regall-sharing.") as folder:
                for what, value in once(way, folder).items():
                    got.setdefault(what, {}).setdefault(way, []).append(value)
    return got


def compared(title, unit, got, ways):
    """Medians, and for each way their ratio to that without and the least and the most of the
    rounds' own ratios."""
    columns = ["", f"{TITLES[ways[0]]}, {unit}", *(f"{TITLES[way]} / without" for way in ways[1:])]
    rows = []
    for what, by_way in got.items():
        base = by_way[ways[0]]
        cells = [what, f"{statistics.median(base):,.4g}"]
        for way in ways[1:]:
            pairs = [a / b for a, b in zip(by_way[way], base)]
            ratio = statistics.median(by_way[way]) / statistics.median(base)
            cells.append(f"{ratio:.2f} ({min(pairs):.2f} … {max(pairs):.2f})")
        rows.append(cells)
    return Table(title, columns, rows)


def mean(values):
    return statistics.geometric_mean(values)


def hpcc(bench, once):
    """`once(way)`: user and system time of both ranks."""
    section = Section("share-hpcc", "hpcc as a whole (Open MPI)")
    if not shutil.which("hpcc") or not launcher("openmpi"):
        return missing(section, "hpcc openmpi-bin")
    got = rounds_of(lambda way, _: {"CPU time of two ranks": sum(once(way)[:2])}, WAYS)
    section.tables.append(compared(section.title, "s", got, WAYS))
    return section


#: Bytes of a message from which on a single copy is made, about.
LARGE = 32 << 10


def netpipe(bench, mpi):
    section = Section(f"share-netpipe-{mpi}", f"NetPIPE ({MPIS[mpi]})")
    program = shutil.which({"openmpi": "NPopenmpi", "mpich": "NPmpich2"}[mpi])
    if not program or not launcher(mpi):
        return missing(section, "netpipe-openmpi netpipe-mpich2 openmpi-bin mpich")

    def once(way, folder):
        said = {}
        for buffers, words in (("one buffer", []), ("fresh buffers", ["-I"])):
            ranks(bench, way, mpi, [program, "-n", "30", "-p", "0", "-l", "64", "-u", "4194304", "-o", "np.out", *words], folder)
            lines = (pathlib.Path(folder) / "np.out").read_text().splitlines()
            times = [(int(n), float(seconds) * 1e6) for n, _, seconds in map(str.split, lines)]
            said[f"{buffers}, below {LARGE >> 10} KiB"] = mean([t for n, t in times if n < LARGE])
            said[f"{buffers}, {LARGE >> 10} KiB to 4 MiB"] = mean([t for n, t in times if n >= LARGE])
        return said

    section.tables.append(compared(f"{section.title}: one way, geometric mean over the sizes", "µs", rounds_of(once, WAYS), WAYS))
    return section


LAMMPS = """\
units lj
atom_style atomic
lattice fcc 0.8442
region box block 0 20 0 20 0 20
create_box 1 box
create_atoms 1 box
mass 1 1.0
velocity all create 3.0 87287
pair_style lj/cut 2.5
pair_coeff 1 1 1.0 1.0 2.5
neighbor 0.3 bin
neigh_modify every 20 delay 0 check no
fix 1 all nve
thermo 50
run 50
"""


def lammps(bench):
    section = Section("share-lammps", "LAMMPS: 32,000 atoms, Lennard-Jones, 50 steps (Open MPI)")
    program = shutil.which("lmp")
    if not program or not launcher("openmpi"):
        return missing(section, "lammps openmpi-bin")
    ends = set()

    def once(way, folder):
        (pathlib.Path(folder) / "in").write_text(LAMMPS)
        said = ranks(bench, way, "openmpi", [program, "-in", "in", "-log", "none"], folder)
        loop = re.search(r"Loop time of ([\d.]+) on 2 procs", said)
        ends.update(line.strip() for line in said.splitlines() if re.match(r"\s+50 +[-\d.]+ ", line))
        if not loop:
            raise Failed(f"LAMMPS {TITLES[way]}: no loop time in {said[-400:]}")
        return {"time of the loop": float(loop[1])}

    section.tables.append(compared(section.title, "s", rounds_of(once, WAYS), WAYS))
    if len(ends) != 1:
        raise Failed(f"LAMMPS: results differ: {ends}")
    return section


def collectives(bench, mpi):
    section = Section(f"share-{mpi}", f"allreduce and alltoall, two ranks ({MPIS[mpi]})")
    compiler = shutil.which(f"mpicc.{mpi}")
    if not compiler or not launcher(mpi):
        return missing(section, "libopenmpi-dev openmpi-bin libmpich-dev mpich")
    source, product = build.SOURCES / "collectives.c", build.OUT / f"collectives.{mpi}"
    if not product.exists() or product.stat().st_mtime < source.stat().st_mtime:
        subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-o", product, source], check=True)

    def once(way, folder):
        said = ranks(bench, way, mpi, [product, bench.pick("150", "60")], folder)
        lines = [line.split() for line in said.splitlines() if line.startswith("all")]
        return {f"{name}, {words_of(int(size))}": float(us) for name, size, us in lines}

    section.tables.append(compared(section.title, "µs", rounds_of(once, WAYS), WAYS))
    return section


def words_of(size):
    for unit, word in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size // unit} {word}"
    return f"{size} B"


def numpy(bench):
    """Memory that no peer asks for, in ranks. `always` says what heap would cost without a rule."""
    section = Section("share-numpy", "numpy's temporaries in two ranks that send nothing (Open MPI)")
    python = "/usr/bin/python3"
    if not launcher("openmpi") or subprocess.run([python, "-c", "import numpy"], stderr=subprocess.DEVNULL).returncode:
        return missing(section, "python3-numpy openmpi-bin")
    ways = (*WAYS, "always")

    def once(way, folder):
        ranks(bench, way, "openmpi", [python, build.SOURCES / "temporaries.py", "1", "8", "48"], folder)
        got = {}
        for file in pathlib.Path(folder).glob("temporaries.*"):
            for mib, ns in map(str.split, file.read_text().splitlines()):
                got.setdefault(f"arrays of {mib} MiB", []).append(float(ns))
        return {what: max(values) for what, values in got.items()}

    section.tables.append(compared(section.title, "ns an element", rounds_of(once, ways), ways))
    return section


#: Bytes that redis has, in values of 1,000.
KEYS = 200_000


def redis_program():
    there = build.ROOT / "target" / "unpacked" / "redis-tools" / "usr" / "bin"
    server, client = there / "redis-check-rdb", there / "redis-cli"
    return (server, client) if server.exists() and client.exists() else None


def saved(ask):
    """Seconds of one BGSAVE, and of its fork."""
    begun = time.monotonic()
    ask("bgsave")
    while "rdb_bgsave_in_progress:0" not in ask("info", "persistence"):
        time.sleep(0.005)
    if "rdb_last_bgsave_status:ok" not in ask("info", "persistence"):
        raise Failed("redis: BGSAVE failed")
    fork = re.search(r"latest_fork_usec:(\d+)", ask("info", "stats"))
    return time.monotonic() - begun, int(fork[1]) / 1000


def redis(bench):
    section = Section("share-redis", f"redis with {KEYS:,} keys of 1 kB and libc's malloc: BGSAVE")
    programs = redis_program()
    if not programs:
        section.notes.append("SKIPPED: no redis here (scripts/setup bench).")
        return section
    server, client = programs
    ways = (*WAYS, "always")

    def once(way, folder):
        socket = os.path.join(folder, "socket")

        def ask(*words):
            return run(bench, "none", [client, "-s", socket, *words], folder)

        # One program that goes by the name that it is called by.
        words = ["redis-server", "--port", "0", "--unixsocket", socket, "--dir", folder, "--save", "", "--daemonize", "no",
                 "--enable-debug-command", "yes", "--logfile", os.path.join(folder, "log")]
        # jemalloc's memory is MAP_NORESERVE, of which nothing is shared anyway.
        env = bench.ways.environment(way)
        env["LD_PRELOAD"] = ":".join([*filter(None, [env.get("LD_PRELOAD")]), "libc.so.6"])
        process = subprocess.Popen(words, executable=server, cwd=folder, env=env, stdin=subprocess.DEVNULL)
        try:
            for _ in range(500):
                if os.path.exists(socket) or process.poll() is not None:
                    break
                time.sleep(0.01)
            ask("debug", "populate", str(KEYS), "key", "1000")
            saves = [saved(ask) for _ in range(4)]
        finally:
            process.kill()
            process.wait()
        whole, fork = zip(*saves)
        return {"fork, the first, ms": fork[0], "fork, those after it, ms": statistics.median(fork[1:]),
                "all of a BGSAVE, s": statistics.median(whole)}

    section.tables.append(compared(section.title, "as it says", rounds_of(once, ways), ways))
    return section


def missing(section, packages):
    section.notes.append(f"SKIPPED: not all of it is here (apt-get install {packages}).")
    return section


def rows(hpcc_once):
    """The rows by their names; `hpcc_once` makes a run of hpcc."""
    def row(measure):
        def measured(bench):
            section = measure(bench)
            keep(section)
            return section
        return measured

    return {
        "share-hpcc": row(lambda bench: hpcc(bench, lambda way: hpcc_once(bench, way))),
        "share-netpipe-openmpi": row(lambda bench: netpipe(bench, "openmpi")),
        "share-netpipe-mpich": row(lambda bench: netpipe(bench, "mpich")),
        "share-lammps": row(lammps),
        "share-openmpi": row(lambda bench: collectives(bench, "openmpi")),
        "share-mpich": row(lambda bench: collectives(bench, "mpich")),
        "share-numpy": row(numpy),
        "share-redis": row(redis),
    }


def keep(section):
    """For docs/sharing.md, that is of several runs."""
    if section.tables:
        KEPT.mkdir(parents=True, exist_ok=True)
        (KEPT / f"{section.name}.json").write_text(json.dumps([vars(t) for t in section.tables]))


def kept(names):
    """The tables of the last run of each row."""
    for name in names:
        path = KEPT / f"{name}.json"
        if path.exists():
            yield from (Table(**t) for t in json.loads(path.read_text()))
