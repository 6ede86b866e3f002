"""Registrations in MPI programs: runs in the guest, and the tables of docs/caches.md."""
import os
import pathlib
import re
import signal
import subprocess
import sys

from . import build
from .report import table

SOURCE = build.SOURCES / "caches.c"
OPEN_MPI = ("mpirun.openmpi", "-np", "2", "--oversubscribe", "--bind-to", "none")
OFI = "verbs;ofi_rxm"
#: One adapter, so that a message has one registration at either end.
ONE = {"UCX_NET_DEVICES": "rxe0:1"}
#: How each is started, and with which compiler's program.
STACKS = {
    "openmpi": ("openmpi", (*OPEN_MPI, "--mca", "pml", "ucx", "--mca", "osc", "ucx")),
    "mpich": ("mpich", ("mpirun.mpich", "-np", "2")),
    "ofi": ("openmpi", (*OPEN_MPI, "--mca", "pml", "cm", "--mca", "mtl", "ofi", "--mca", "mtl_ofi_provider_include", OFI,
                        "--mca", "opal_common_ofi_provider_include", OFI)),
}
NAMES = {"openmpi": "Open MPI, UCX", "mpich": "MPICH, UCX", "ofi": "Open MPI, libfabric"}
#: The library's cache, and the shim: with the default, REGALL_PIN=auto, and with populate.
SETTINGS = [("cache", "without"), ("none", "without"), ("cache", "auto"), ("none", "auto"), ("none", "populate")]
HEADS = ["cache", "no cache", "cache, regall", "no cache, regall", "no cache, regall, `populate`"]
PATTERNS = {
    "first": "the first messages of a job, one buffer, one each way, and four allreduces",
    "reused": "one buffer, used again and again", "fresh": "a fresh buffer for each message",
    "remapped": "memory given back and mapped again at the same address", "small": "many small buffers", "small-again": "the same small buffers again",
    "forked": "fork after each message", "allreduce": "growing buffers of an allreduce",
    "first-one-sided": "the first one-sided transfers, and their window",
    "one-sided": "noncontiguous one-sided transfers, and their window",
}
#: The driver's functions behind REG_MR and DEREG_MR, whichever way a call came in.
PROBES = [
    "p:caches/reg rxe_reg_user_mr", "p:caches/dereg rxe_dereg_mr",
    # Its results: what is refused is not alive.
    "r:caches/refused rxe_reg_user_mr ret=$retval:s64",
    # Memory that comes: by mmap and mremap, by brk, and opened by mprotect. One event of several places.
    "p:caches/map mmap_region", "p:caches/map do_brk_flags", "p:caches/map mprotect_fixup",
]
TRACING = pathlib.Path("/sys/kernel/tracing")
LIMIT = 3600
#: Instructions of the program's loop by which it measures its clock.
LOOP = 2_000_000
BEGIN, END = "<!-- figures: make bench-caches -->", "<!-- end of figures -->"


def program(mpi):
    return build.OUT / f"caches.{mpi}"


def compile_all():
    build.OUT.mkdir(parents=True, exist_ok=True)
    for mpi in ("openmpi", "mpich"):
        command = [f"mpicc.{mpi}", "-O2", "-Wall", "-Wextra", "-o", program(mpi), SOURCE, "-ldl"]
        subprocess.run(command, check=True)


def probe():
    if not (TRACING / "kprobe_events").exists():
        subprocess.run(["mount", "-t", "tracefs", "tracefs", TRACING], check=True)
    for event in PROBES:
        # Python would seek to its end, which this file refuses.
        fd = os.open(TRACING / "kprobe_events", os.O_WRONLY | os.O_APPEND)
        os.write(fd, f"{event}\n".encode())
        os.close(fd)


def switched_off(regall):
    """What --no-caches sets, for runs without the shim."""
    plain = subprocess.run(["env"], check=True, text=True, stdout=subprocess.PIPE).stdout.splitlines()
    said = subprocess.run([regall, "run", "--no-caches", "--", "env"], check=True, text=True, stdout=subprocess.PIPE).stdout
    return [line for line in said.splitlines() if line.startswith(("UCX_", "FI_", "OMPI_")) and line not in plain]


def inside(how, stacks):
    """In the guest."""
    os.environ.update(ONE)
    regall = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", build.ROOT / "target")) / "release" / "regall"
    if how == "events":
        probe()
    off = switched_off(regall)
    for stack in stacks:
        mpi, launcher = STACKS[stack]
        for cache, shim in SETTINGS:
            command = [*launcher, program(mpi), *(["--rdtsc"] if how == "instructions" else [])]
            if shim != "without":
                flags = ["--pin", shim, *(["--no-caches"] if cache == "none" else [])]
                command = [regall, "run", *flags, "--", *command]
            elif cache == "none":
                command = ["env", *off, *command]
            print(f"run {how} {stack} {cache} {shim}", flush=True)
            said, how_it_ended = ended(command, LIMIT)
            print(said, end="")
            print(f"ended {how_it_ended}", flush=True)
    return 0


def ended(command, limit):
    """Runs it: what it says, and its exit status. One that takes too long ends with all of its ranks, before the next
    one shares memory with them."""
    with subprocess.Popen(command, text=True, errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          start_new_session=True) as run:
        try:
            said, _ = run.communicate(timeout=limit)
            return said, str(run.returncode)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            said, _ = run.communicate()
            return said, "late: it took too long"


def parsed(lines):
    """{(how, stack, cache, shim): {pattern: {field: number}}}; of a run that ended well alone."""
    found, now = {}, None
    for line in lines:
        words = line.split()
        if not words:
            continue
        if words[0] == "run" and len(words) == 5:
            now, key = {}, tuple(words[1:])
        elif words[0] in ("pattern", "regions") and now is not None:
            name, rest = (words[1], words[2:]) if words[0] == "pattern" else ("regions", words)
            now[name] = {k: int(v) if re.fullmatch(r"-?\d+", v) else v for k, v in zip(rest[::2], rest[1::2])}
        elif words[0] == "ended" and words[1:] == ["0"] and now is not None:
            found[key] = now
    return found


def wrong(found):
    return sum(p.get("wrong", 0) for run in found.values() for p in run.values())


def missing(found, stacks):
    wanted = [(how, s, *setting) for how in ("events", "instructions") for s in stacks for setting in SETTINGS]
    return [" ".join(key) for key in wanted if key not in found]


def row(found, how, stack, pattern, cell):
    cells = []
    for setting in SETTINGS:
        figures = found.get((how, stack, *setting), {}).get(pattern)
        cells.append("-" if figures is None else cell(figures))
    return cells


def each(count, figures):
    """Of both ranks, for a message."""
    return f"{count / figures['messages']:.2f}".rstrip("0").rstrip(".")


def sections(found):
    def calls(f):
        return f"{each(f['reg_inside'], f)} / {each(f['dereg_inside'], f)}"

    def alive(f):
        return f"{f['alive']} / {f['maps']}"

    def elsewhere(f):
        return f"{each(f['reg'] - f['reg_inside'], f)}"

    def mapped(f):
        return f"{each(f['map_inside'], f)} / {each(f['map'] - f['map_inside'], f)}"

    yield "REG_MR / DEREG_MR inside MPI calls, a message", "events", calls, PATTERNS
    yield "REG_MR outside of MPI calls, a message", "events", elsewhere, PATTERNS
    yield "Memory mapped anew inside MPI calls / outside of them, a message", "events", mapped, PATTERNS
    yield "Most regions alive at a time / mappings then, in the rank that has more for its mappings", "events", alive, PATTERNS
    patterns = [p for p in PATTERNS if any(p in run for key, run in found.items() if key[0] == "instructions")]
    yield "Instructions of both ranks in MPI calls, a message", "instructions", lambda f: f"{f['clock']:,}", patterns
    yield "The same with mmap or malloc, writing or reading the buffer, and munmap or free", "instructions", lambda f: f"{whole(f):,}", patterns


def whole(f):
    """Instructions of a message with what its memory takes."""
    return f["clock"] + f["beside"]


def of(found, how, stack, setting, pattern, field):
    return found[(how, stack, *setting)][pattern][field]


def has(found, how, stack):
    return all((how, stack, *setting) in found for setting in SETTINGS)


def beyond(regall, cached):
    """Two differences to a hit as a ratio, and whether it is at most a third. Where the cache takes no more than a hit,
    there is nothing to take a third of: regall must not take more either."""
    if cached <= 0:
        return f"{regall:,} / {cached:,}", regall <= cached
    return f"{regall / cached:.2f}", regall / cached <= 1 / 3


def checks(found, stack):
    """Rows of what was to be shown, for a stack: what, how it is, the bound, and whether it is met."""
    cached, regall = ("cache", "without"), ("none", "auto")
    steady = [p for p in PATTERNS if not p.startswith("first")]

    def check(what, value, bound, met):
        return [f"{NAMES[stack]}: {what}", value, bound, "pass" if met else "MISSED"]

    calls = {p: of(found, "events", stack, regall, p, "reg_inside") for p in steady}
    some = ", ".join(f"{n} ({p})" for p, n in calls.items() if n) or "0"
    yield check("REG_MR inside MPI calls", some, "0", some == "0")
    # UCX asks for another kind of access for one-sided transfers, libfabric for either direction.
    per = max(of(found, "events", stack, regall, p, "alive") / of(found, "events", stack, regall, p, "maps")
              / (2 if p == "one-sided" or stack == "ofi" else 1) for p in steady)
    yield check("regions alive / mappings, for each kind of access", f"{per:.2f}", "≤ 1", per <= 1)
    bad = sum(p.get("wrong", 0) for key, run in found.items() if key[1] == stack for p in run.values())
    yield check("messages with a wrong byte, in all settings", str(bad), "0", bad == 0)
    # (By probes, in the program; and by the kernel's list, of who is alive.)
    listed = [(run["regions"]["regions"], run["regions"]["counted"]) for key, run in found.items() if key[:2] == ("events", stack)]
    differ = ", ".join(f"{n} / {m}" for n, m in listed if n != m)
    yield check("regions that the kernel lists / that were counted, in all settings", differ or "equal", "equal", not differ)
    if not all(("instructions", stack, *setting) in found for setting in (cached, regall)):
        return
    off = max(abs(of(found, "instructions", stack, setting, "regions", "ticks") - LOOP) for setting in (cached, regall)) / LOOP
    yield check("the clock's ticks of 2,000,000 instructions, off by", f"{off:.1%}", "< 1 %", off < 0.01)
    sizes = {"256 KiB": ("reused", "fresh", "remapped", "forked"), "40 KiB": ("small-again", "small")}
    for size, patterns in sizes.items():
        def took(setting, pattern):
            return of(found, "instructions", stack, setting, pattern, "clock")

        hit = took(cached, patterns[0])
        ratio = took(regall, patterns[0]) / hit
        yield check(f"instructions in MPI calls, {size} again / a hit in the cache", f"{ratio:.3f}", "≤ 1.05", ratio <= 1.05)
        for p in patterns[1:]:
            value, met = beyond(took(regall, p) - hit, took(cached, p) - hit)
            yield check(f"instructions in MPI calls beyond a hit, {size}, {p} / with the cache", value, "≤ 0.33", met)


def beyond_whole(found):
    """What a whole message takes beyond a hit in the cache, without the cache and with regall, as a part of what it takes with
    the cache: registering that has moved into mmap and munmap is in it."""
    settings = ("cache", "without"), ("none", "auto")
    rows = []
    for stack in STACKS:
        if not all(("instructions", stack, *setting) in found for setting in settings):
            continue
        for hit, pattern in (("reused", "fresh"), ("reused", "remapped"), ("small-again", "small")):
            at_hit, cached, regall = (whole(found[("instructions", stack, *setting)][p])
                                      for setting, p in ((settings[0], hit), (settings[0], pattern), (settings[1], pattern)))
            rows.append([f"{NAMES[stack]}: {PATTERNS[pattern]}", f"{cached - at_hit:,}", f"{regall - at_hit:,}",
                         beyond(regall - at_hit, cached - at_hit)[0]])
    if rows:
        yield "**Instructions of a whole message beyond a hit in the cache**"
        yield ""
        yield from table(["", "cache", "no cache, regall", "ratio"], rows)
        yield ""


def bounds(found):
    complete = [s for s in STACKS if has(found, "events", s)]
    yield "**Aims: no cache, with regall**"
    yield ""
    yield from table(["", "measured", "aim", "verdict"], [r for s in complete for r in checks(found, s)])
    yield ""


def tables(found):
    yield from bounds(found)
    for title, how, cell, patterns in sections(found):
        rows = [[f"{NAMES[stack]}: {PATTERNS[p]}", *row(found, how, stack, p, cell)] for stack in STACKS for p in patterns
                if any(key[:2] == (how, stack) for key in found)]
        yield f"**{title}**"
        yield ""
        yield from table(["", *HEADS], rows)
        yield ""
    yield from beyond_whole(found)
    rows = [[NAMES[stack], *row(found, "events", stack, "regions", lambda f: str(f["patched_by"]))] for stack in STACKS
            if any(key[:2] == ("events", stack) for key in found)]
    yield "**Who has overwritten munmap**"
    yield ""
    yield from table(["", *HEADS], rows)


def write(page, found, about):
    text = page.read_text()
    before, rest = text.split(BEGIN + "\n", 1)
    _, after = rest.split(END, 1)
    head = [f"{about['date']}, commit {about['commit']}; Soft-RoCE in a guest, Debian 12's Linux 6.1 and libraries.", ""]
    page.write_text(before + "\n".join([BEGIN, *head, *tables(found), END]) + after)


if __name__ == "__main__":
    sys.exit("run benches/caches")
