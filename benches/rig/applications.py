"""Applications as they are installed, on two ranks: results, CPU time, memory. docs/applications.md has the last
figures of each."""
import atexit
import json
import math
import os
import pathlib
import re
import subprocess
import tempfile
import threading
import time

from . import build
from .cases import CASES
from .pairs import Failed
from .report import grid, table

#: Without, and in each mode of pinning; then with memory that peers can map.
WAYS = {"none": "without", "auto": "`auto`", "onfault": "`onfault`", "populate": "`populate`", "share": "`SHARE=heap`"}
#: Where the last figures of each application are.
KEPT = build.OUT / "applications"
MIB = 1 << 20
#: Of this one in seconds, and how often memory is looked at.
LIMIT, PERIOD = 120, 0.05
LAUNCHERS = ("mpirun", "mpiexec", "hydra", "orted", "unshare")


def parents():
    """{pid: (parent's pid, name)} of all processes."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                head, tail = pathlib.Path("/proc", entry, "stat").read_text().rsplit(")", 1)
            except OSError:
                continue
            found[int(entry)] = (int(tail.split()[1]), head.split("(", 1)[1])
    return found


def ranks_below(top):
    every, below = parents(), {top}
    grown = True
    while grown:
        more = {pid for pid, (parent, _) in every.items() if parent in below} - below
        below |= more
        grown = bool(more)
    return [pid for pid in below if pid in every and not every[pid][1].startswith(LAUNCHERS)]


def pss(pid):
    try:
        lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def shm(pid):
    """Bytes of /dev/shm in use, as a process has it."""
    try:
        told = os.statvfs(f"/proc/{pid}/root/dev/shm")
    except OSError:
        return 0
    return (told.f_blocks - told.f_bfree) * told.f_frsize


class Sampler(threading.Thread):
    """Looks at the memory of all ranks again and again, and keeps the most."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.over, self.pss, self.shm = pid, threading.Event(), 0, 0

    def run(self):
        while not self.over.wait(PERIOD):
            ranks = ranks_below(self.pid)
            self.pss = max(self.pss, sum(map(pss, ranks)))
            self.shm = max([self.shm, *map(shm, ranks[:1])])


def command(case, variables):
    """Ranks alone have the shim. A /dev/shm of their own, so that nobody else's is counted."""
    words = [*case.launcher, "env", *variables, *case.words]
    if os.geteuid() == 0:
        mount = 'mount -t tmpfs -o mode=1777 none /dev/shm && exec "$@"'
        words = ["unshare", "-m", "sh", "-c", mount, "sh", *words]
    return words


def once(ways, name, way, looked_at):
    """CPU seconds, wall seconds, PSS, /dev/shm and the result of one run."""
    case = CASES[name]
    build.OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build.OUT) as folder:
        folder = pathlib.Path(folder)
        case.lay(folder)
        variables = dict(ways[way])
        if way != "none":
            variables["REGALL_STATS_FILE"] = str(folder / "stats.%p")
        clean = {**ways.environment("none"), "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                 "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **case.environment}
        with open(folder / "stdout", "w+") as out, open(folder / "stderr", "w+") as err:
            began = time.monotonic()
            process = subprocess.Popen(command(case, [f"{k}={v}" for k, v in variables.items()]), cwd=folder, env=clean,
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=err)
            # A launcher that is told to end takes its ranks with it; so it is, if this driver is.
            atexit.register(process.terminate)
            sampler = Sampler(process.pid)
            if looked_at:
                sampler.start()
            killer = threading.Timer(LIMIT, process.terminate)
            killer.start()
            _, status, used = os.wait4(process.pid, 0)
            killer.cancel()
            process.returncode = os.waitstatus_to_exitcode(status)
            atexit.unregister(process.terminate)
            wall = time.monotonic() - began
            sampler.over.set()
            if looked_at:
                sampler.join()
        text = (folder / "stdout").read_text(errors="replace")
        if process.returncode:
            said = (text + (folder / "stderr").read_text(errors="replace")).strip()
            raise Failed(f"{name} {WAYS[way]}: status {process.returncode}: {said[-600:]}")
        if way != "none" and len(list(folder.glob("stats.*"))) < 2:
            raise Failed(f"{name} {WAYS[way]}: not each rank had the shim")
    result = [line.strip() for line in text.splitlines() if re.search(case.result, line)]
    if not result:
        raise Failed(f"{name} {WAYS[way]}: no result")
    return {"cpu": used.ru_utime + used.ru_stime, "wall": wall, "pss": sampler.pss, "shm": sampler.shm, "result": result}


def alike(one, other):
    """Whether two results are the same, but for the last digits: ranks add in the order in which they come."""
    words = [" ".join(lines).split() for lines in (one, other)]
    return len(words[0]) == len(words[1]) and all(a == b or close(a, b) for a, b in zip(*words))


def close(a, b):
    try:
        return math.isclose(float(a.rstrip(",")), float(b.rstrip(",")), rel_tol=1e-4, abs_tol=1e-7)
    except ValueError:
        return False


def figures(ways, name, rounds):
    """The least CPU and wall time of all rounds; memory is looked at in a run of its own."""
    runs = {way: [] for way in WAYS}
    for i in range(rounds):
        # There and back, so that what changes slowly meets all alike.
        for way in WAYS if i % 2 == 0 else reversed(WAYS):
            runs[way].append(once(ways, name, way, False))
    found = {}
    for way in WAYS:
        looked_at = once(ways, name, way, True)
        same = all(alike(run["result"], runs["none"][0]["result"]) for run in [*runs[way], looked_at])
        found[way] = {"cpu": min(run["cpu"] for run in runs[way]), "wall": min(run["wall"] for run in runs[way]),
                      "pss": looked_at["pss"], "shm": looked_at["shm"], "same": same}
    return found


def measure(ways, name, rounds, about):
    """Keeps and prints the figures of one application; whether all went well, None if it was skipped."""
    case, kept = CASES[name], {"about": about, "rounds": rounds}
    if lacks := case.lacks():
        print(f"{name}: skipped: no {lacks} (scripts/setup apps)")
        return None
    try:
        kept["figures"] = figures(ways, name, rounds)
    except Failed as e:
        print(f"FAILED: {e}")
        return False
    KEPT.mkdir(parents=True, exist_ok=True)
    (KEPT / f"{name}.json").write_text(json.dumps(kept, indent=1) + "\n")
    rows = [[WAYS[way], f"{f['cpu']:.2f}", f"{f['wall']:.2f}", mib(f["pss"]), mib(f["shm"]), "yes" if f["same"] else "NO"]
            for way, f in kept["figures"].items()]
    print(f"\n{case.title}")
    for line in grid(["", "CPU s", "wall s", "PSS MiB", "/dev/shm MiB", "same result"], rows):
        print("  " + line)
    return all(f["same"] for f in kept["figures"].values())


def mib(value):
    return f"{value / MIB:.1f}"


WORDS = """\
# Applications with the shim and without

Written by `benches/apps --docs` (the figures) and `benches/rig/applications.py` (the words); `make apps` installs
all of them and measures again. Each application runs as it is installed, on two ranks of one node, with one thread a
rank: without the shim, with it by default (`REGALL_PIN=auto`), with the other modes of pinning, and with
`REGALL_SHARE=heap`. The inputs are small (`benches/apps.d`), so the start of a rank is a large part of each run.
In a run of hours the cost of the start counts for less.

CPU time is that of all processes of the job: the smallest of a few runs, whose settings alternate. PSS is the largest
sum over all ranks, read every 50 ms in a separate run. /dev/shm is what the job used of a file system of its own.

The search for call sites at start-up reads all code that is mapped then. Afterwards it removes from the page tables
the pages that were not in them before. Code that is mapped later is searched, too, and stays resident then
(SBCL's core: 15 MB). PSS is still larger with `auto`, mostly by the shim's own code, data and
directory: 0.8 MiB for each of two ranks.
"""


def cells(found, what):
    base = found["none"][what]
    return [f"{found[way][what] / base:.2f}" if found[way]["same"] else "result differs" for way in list(WAYS)[1:]]


def markdown():
    every = {name: json.loads((KEPT / f"{name}.json").read_text()) for name in CASES if (KEPT / f"{name}.json").exists()}
    yield WORDS
    for about, rounds in [(kept["about"], kept["rounds"]) for kept in every.values()][-1:]:
        yield f"{about['date']}, commit {about['commit']}; {about['cpus']} CPUs of {about['cpu']}, Linux {about['kernel']},"
        yield f"{about['libc']}; a virtual machine, with other work on it; runs of each for CPU time: {rounds}."
        if rounds < 3:
            yield "With so few runs, and other work on the machine, CPU times are not exact: ratios from 0.7 to 1.3 are within the noise."
    titles = list(WAYS.values())
    for title, what, scale, unit in (("CPU time / without", "cpu", 1, "s"), ("PSS / without", "pss", MIB, "MiB")):
        yield ""
        yield f"**{title}**"
        yield ""
        yield from table(["application", f"without, {unit}", *titles[1:]],
                         [[CASES[n].title, f"{k['figures']['none'][what] / scale:.2f}", *cells(k["figures"], what)]
                          for n, k in every.items()])
    yield ""
    yield "**/dev/shm in use, MiB**"
    yield ""
    yield from table(["application", *titles], [[CASES[n].title, *(mib(f["shm"]) for f in k["figures"].values())]
                                                for n, k in every.items()])
    yield ""
    different = [CASES[n].title for n, k in every.items() if not all(f["same"] for f in k["figures"].values())]
    yield f"Results: {'the same in every run' if not different else 'NOT the same: ' + ', '.join(different)}."
    absent = [c.title for n, c in CASES.items() if n not in every]
    if absent:
        yield f"Not measured here: {', '.join(absent)}."
