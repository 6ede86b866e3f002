"""The results for people: on stdout, and as docs/benchmarks.md."""
import os
import platform
import subprocess
import time

from . import build


def grid(columns, rows):
    """Lines of a table with its columns lined up, numbers to the right."""
    cells = [columns, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    for row in cells:
        yield "  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip()


def of(sections):
    return [c for s in sections for c in s.checks]


GUARD_COLUMNS = ["what", "measured", "95 %", "at most", "verdict"]


def guard_rows(checks):
    return [[c.what, c.number(c.value), c.range(), "≤ " + c.number(c.guard), c.verdict] for c in checks]


AIM_COLUMNS = ["what", "measured", "aim", "verdict"]


def aim_rows(checks):
    """The aims that were not reached."""
    return [[c.what, c.number(c.value), "≤ " + c.number(c.aim), c.distance] for c in checks if not c.reached]


def print_section(section):
    print(f"\n== {section.title}  ({section.seconds:.0f} s)")
    for table in section.tables:
        print(f"\n  {table.title}")
        for line in grid(table.columns, table.rows):
            print("    " + line)
    for note in section.notes:
        print(f"  {note}")
    if section.checks:
        print()
        for row in guard_rows(section.checks):
            print(f"  {row[4]:<6}  {row[0]}: {row[1]} ({row[3]})")


def print_summary(sections):
    checks = of(sections)
    print("\n== Guards\n")
    for line in grid(GUARD_COLUMNS, guard_rows(checks)):
        print("  " + line)
    if aim_rows(checks):
        print("\n== Aims that are not reached\n")
        for line in grid(AIM_COLUMNS, aim_rows(checks)):
            print("  " + line)
    holds, reached = sum(c.holds for c in checks), sum(c.reached for c in checks)
    print(f"\n  {holds} of {len(checks)} guards hold; {reached} of {len(checks)} aims are reached.")


def first_line(command):
    try:
        out = subprocess.run(command, cwd=build.ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    except OSError:
        return ""
    return out.split("\n", 1)[0].strip()


def machine(lib, quick):
    """What the numbers are true of."""
    cpu = ""
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
    dirty = first_line(["git", "status", "--porcelain", "--", "src", "directory", "Cargo.toml", "build.rs"])
    commit = (first_line(["git", "rev-parse", "--short", "HEAD"]) or "?") + (" and local changes" if dirty else "")
    if build.ROOT not in lib.parents:
        # A library from elsewhere (--lib) may have been built from anything.
        commit = f"unknown (--lib {lib})"
    return {
        "date": time.strftime("%Y-%m-%d"), "kernel": platform.release(), "cpu": cpu, "libc": " ".join(platform.libc_ver()),
        "cpus": len(os.sched_getaffinity(0)),
        "commit": commit,
        "library": str(lib), "quick": quick, "load": f"{os.getloadavg()[0]:.1f}",
    }


#: What comes first: what a user of a program notices, and the checks that say it.
FELT = [
    ("CPU time of a whole program: hpcc, two ranks", "hpcc"),
    ("Start of a process that has the shim on", "start-up of /bin/true, active"),
    ("Start of a process in which it is off (`REGALL` not set)", "start-up of /bin/true, inert"),
    ("A message of 64 KiB between two ranks, huge pages", "message of 64 KiB, regall, HUGE"),
    ("A message of 64 KiB between two ranks, memory that peers can map", "message of 64 KiB, regall, SHARE"),
    ("A message of 1 MiB between two ranks, huge pages", "message of 1 MiB, regall, HUGE"),
    ("A message of 1 MiB between two ranks, memory that peers can map", "message of 1 MiB, regall, SHARE"),
    ("System calls that are not memory calls", "getppid()"),
]
RESIDENT = "An Open MPI rank after MPI_Init"

GUARDS_ARE = """\
A guard is a bound that a change must not cross. Where the aim is reached it is the aim; elsewhere it is about a tenth
above what was measured before (`benches/rig/bounds.py`).
"""


def felt(sections, checks):
    """What a user notices, in a few rows."""
    yield "## What a user notices"
    yield ""
    yield "Ratios are with the shim / without it, so less than 1 is a gain. Times are the extra time with the shim. The shim runs with"
    yield "`REGALL_PIN=off`; *What pinning costs*, below, has the other modes, and [applications.md](applications.md) whole"
    yield "applications with the defaults."
    yield ""
    found = [(words, next((c for c in checks if c.what.startswith(name)), None)) for words, name in FELT]
    yield from table(["", "measured", "95 %"], [[words, c.number(c.value), c.range()] for words, c in found if c])
    for t in (t for s in sections for t in s.tables if t.title.startswith(RESIDENT)):
        yield ""
        yield f"**{t.title}**"
        yield ""
        yield from table(t.columns, t.rows)
    yield ""


METHOD = """\
Every row runs the **same program** several times side by side, in different environments: without the
shim, with it, and with a peer. A driver (`benches/run`) gives each process in turn a slice of about 10 ms on one
CPU, forwards and then backwards (A B C, C B A), so that all of them see the same machine. It starts them anew
every few rounds, so that their addresses differ. The result of a slice is the median of its batches, in CPU time
of the thread. Ratios are ratios of medians over all rounds; *95 %* is the bootstrap interval over rounds (for
look-ups: the smallest and the largest of the runs). Start-up is the wall time from `posix_spawn` to the end of
`wait`; hpcc is the ranks' user + system time from `wait4`. Look-ups
include the reading of the address from an array. Transfers of the bridge and the system calls that they are
compared with alternate in bursts of about 0.1 ms in one process, on one CPU, and the ratio is the median of the
ratios of neighbouring bursts. A guard is crossed, and an aim missed, as soon as the measured value is over it;
"within the noise" means that the interval includes the bound. After each run the program says how many calls the
shim saw, so that a shim that is off is not measured by mistake.

Peers: **UCX UCM** is `libucm` of Debian's libucx0 in bistro mode with a handler for `VM_MAPPED | VM_UNMAPPED`
that only counts; it does not see mprotect, dlopen or raw `syscall()`. **mlockall** is a preloaded library whose
constructor calls `mlockall(MCL_CURRENT | MCL_FUTURE)`: no hooks, the kernel locks whatever is mapped, and nothing
can be left out; with `MCL_FUTURE | MCL_ONFAULT` nothing is populated either. **Empty preload** is a library that does nothing. Where a row says "alone", the call does
nothing else, and no memory is touched. What a program does with its memory takes extra time, with and without the shim.

[events.svg](events.svg) is not of this run. It shows the cost of a call and the shim's own memory over 200,000
calls of one program. `make soak` draws it over a day's calls.
"""


def markdown(sections, about):
    yield "# Benchmarks"
    yield ""
    yield "Written by `benches/run --docs`; run it again with `make bench`."
    yield ""
    yield f"{about['date']}, commit {about['commit']}; {about['cpus']} CPUs of {about['cpu']}, Linux {about['kernel']},"
    yield f"{about['libc']}; load average at the end {about['load']}{', a --quick run' if about['quick'] else ''}."
    yield ""
    checks = of(sections)
    yield from felt(sections, checks)
    yield "## Guards"
    yield ""
    yield GUARDS_ARE.rstrip()
    yield ""
    yield "![Measured values against their guards](benchmarks.svg)"
    yield ""
    yield from table(GUARD_COLUMNS, guard_rows(checks))
    yield ""
    yield "## Aims that are not reached"
    yield ""
    yield f"The project set its aims before it began. {sum(c.reached for c in checks)} of {len(checks)} are reached. These are not:"
    yield ""
    yield from table(AIM_COLUMNS, aim_rows(checks))
    for section in sections:
        yield ""
        yield f"## {section.title}"
        for note in section.notes:
            yield ""
            yield note
        for t in section.tables:
            yield ""
            yield f"**{t.title}**"
            yield ""
            yield from table(t.columns, t.rows)
    yield ""
    yield "## Method"
    yield ""
    yield METHOD.rstrip()


SHARING = """\
# Memory that peers can map: what it gains and what it costs

Written by `benches/run --docs` (the figures) and `benches/rig/report.py` (the words); `benches/run --only share`
measures again. Each program runs in three settings: without the shim, with its defaults (*regall*), and with
`REGALL_SHARE=heap` as well. The settings alternate, in one order and then in reverse, for five rounds. A ratio is
that of the medians; the brackets hold the smallest and the largest ratio of a single round. Where these lie on
both sides of 1, any difference is too small to be told from noise. In every table less than 1 is faster.

`SHARE=always` shares memory of every process, however it is used. Its columns show what the rule of `heap` saves.
"""


def sharing(tables, about):
    yield SHARING
    yield f"{about['date']}; {about['cpus']} CPUs of {about['cpu']}, Linux {about['kernel']},"
    yield f"{about['libc']}; a virtual machine, with other work on it at times."
    for t in tables:
        yield ""
        yield f"**{t.title}**"
        yield ""
        yield from table(t.columns, t.rows)
    yield ""
    yield "[limits.md](limits.md#memory-that-peers-can-map) has the rule by which `heap` shares."


def table(columns, rows):
    yield "| " + " | ".join(columns) + " |"
    yield "|---" + "|---:" * (len(columns) - 1) + "|"
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
