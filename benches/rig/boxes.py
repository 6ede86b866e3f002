"""Messages between processes, against MPI and UCX: a row of its own (issue 19)."""
import os
import re
import shutil
import socket
import subprocess
import time

from . import build
from .model import Section, Table
from .pairs import Failed, median

#: What may be told of it: bytes, aim for one way, aim for the time a message takes of one sender.
SIZES = {"8 B": (8, 0.8, 1 / 1.2), "256 B": (256, None, 1 / 1.2), "4 KiB": (4096, 0.9, None)}


def words(bench, *args):
    try:
        run = subprocess.run([build.OUT / "boxes", *map(str, args)], env=bench.ways.environment("auto"), text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    except subprocess.TimeoutExpired as e:
        raise Failed(f"`boxes {' '.join(map(str, args))}` has not ended") from e
    if run.returncode:
        raise Failed(f"`boxes {' '.join(map(str, args))}`: status {run.returncode}: {run.stderr.strip()[-300:]}")
    return [[float(w) for w in line.split()] for line in run.stdout.splitlines()]


def figures(bench, *args):
    return [line[0] for line in words(bench, *args)]


def compile_mpi():
    compiler = shutil.which("mpicc.openmpi")
    if not compiler:
        return None
    product, source = build.OUT / "messages", build.SOURCES / "messages.c"
    if not product.exists() or product.stat().st_mtime < source.stat().st_mtime:
        subprocess.run([compiler, "-O2", "-o", product, source], check=True)
    return product


def by_mpi(environment, launcher, program, *args, ranks=2):
    command = [launcher, "--oversubscribe", "--bind-to", "core" if ranks <= (os.cpu_count() or 1) else "none",
               "--mca", "pml", "ob1", "--mca", "btl", "vader,self", "-np", str(ranks), program, *map(str, args)]
    run = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)
    if run.returncode:
        raise Failed(f"messages {args}: status {run.returncode}: {run.stderr.strip()[-300:]}")
    return [float(line) for line in run.stdout.split()]


def by_ucx(environment, size, count, test="am_lat"):
    """ns one way of UCX's active messages over POSIX shared memory, whose receiver does not look at the data, or of
    its tag matching (`tag_lat`), whose receiver has them in its buffer; none where that can't be had."""
    program = shutil.which("ucx_perftest")
    if not program:
        return []
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = {**environment, "UCX_TLS": "posix,self,tcp", "UCX_SHM_DEVICES": "memory"}
    transport = ["-d", "memory", "-x", "posix", "-D", "short" if size <= 64 else "bcopy"] if test == "am_lat" else []
    common = ["-p", str(port), "-t", test, *transport, "-s", str(size), "-n", str(count)]
    server = subprocess.Popen(["taskset", "-c", "0", program, *common], env=env, stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    try:
        time.sleep(0.5)
        run = subprocess.run(["taskset", "-c", "1", program, *common, "127.0.0.1"], env=env, text=True,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    finally:
        server.kill()
        server.wait()
    final = re.search(r"Final:\s+\d+\s+(?:[\d.]+\s+)?([\d.]+)", run.stdout)
    return [float(final.group(1)) * 1000] if final else []


def boxes(bench, mpirun, environment, check):
    s = Section("boxes", "Messages between two processes on two processors")
    launcher, program = mpirun(), compile_mpi()
    if not launcher or not program or (os.cpu_count() or 1) < 2:
        s.notes.append("SKIPPED: no Open MPI here, or one processor (apt-get install openmpi-bin libopenmpi-dev).")
        return s
    env = environment(bench)
    turns, count = bench.pick(5, 2), bench.pick(100_000, 20_000)
    one_way = Table("One way, ns", ["", "regall", "Open MPI (vader)", "UCX am_lat (posix)", "UCX tag_lat"], [])
    s.notes.append("The receiver of `ucx_perftest -t am_lat` does not read the message; the other receivers, that of `-t tag_lat` too, "
                   "copy it into memory of their own. So a message of 4 KiB is copied twice, each time from cache lines of the "
                   "other processor: the table on 4 KiB says what one such copy takes.")
    rates = Table("A message, ns, of one and of four senders", ["", "regall", "Open MPI (vader)"], [])
    for name, (size, aim, aim_rate) in SIZES.items():
        ours, mpi, ucx, tag = [], [], [], []
        for _ in range(turns):
            ours += figures(bench, "lat", size, count)
            mpi += by_mpi(env, launcher, program, "lat", size, count)
            ucx += by_ucx(env, size, count)
            tag += by_ucx(env, size, count, "tag_lat")
        best = min((v for v in (mpi, ucx) if v), key=median)
        if aim:
            s.checks.append(check(f"{name} one way / the better of vader and UCX", ours, best, aim))
        one_way.rows.append([name, *(f"{median(v):,.0f}" if v else "-" for v in (ours, mpi, ucx, tag))])
        for senders in (1, 4) if aim_rate else ():
            ours, mpi = [], []
            for _ in range(turns):
                ours += figures(bench, "rate", size, count // senders, senders)
                mpi += by_mpi(env, launcher, program, "rate", size, count // senders, ranks=senders + 1)
            s.checks.append(check(f"{name}, time a message, {senders} to one / vader", ours, mpi, aim_rate))
            rates.rows.append([f"{name}, {senders}", f"{median(ours):,.1f}", f"{median(mpi):,.1f}"])
    s.tables += [one_way, rates]
    for name, size, count in (("64 KiB", 65536, bench.pick(5000, 1000)), ("1 MiB", 1 << 20, bench.pick(300, 60))):
        pairs = [p for _ in range(turns) for p in words(bench, "put", size, count)]
        s.checks.append(check(f"put_notify of {name} / memcpy and a word", [p[0] for p in pairs], [p[1] for p in pairs], 1.05))
    pairs = [p for _ in range(turns) for p in words(bench, "cold", 4096, bench.pick(50_000, 10_000))]
    s.checks.append(check("get of 4 KiB that the peer has just written, mapped / memcpy", [p[0] for p in pairs],
                          [p[1] for p in pairs], 1.3))
    s.tables.append(Table("4 KiB that the peer has just written, ns", ["", "ns"],
                          [["regall_get", f"{median([p[0] for p in pairs]):,.0f}"],
                           ["memcpy where regall_map has it", f"{median([p[1] for p in pairs]):,.0f}"]]))
    got = {n: [] for n in (1, 8, 64, 256)}
    for _ in range(turns):
        for peers, values in got.items():
            values += figures(bench, "poll", peers, 20_000)
    s.checks.append(check("poll with 256 peers, one active / with one peer", got[256], got[1], 1.3))
    s.tables.append(Table("A poll that finds a message, and three that find none", ["peers", "ns"],
                          [[str(n), f"{median(v):,.0f}"] for n, v in got.items()]))
    return s
