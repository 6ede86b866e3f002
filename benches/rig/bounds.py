"""Bounds that guard against regressions, where the aim of the project is not reached.

A figure that has reached its aim has that for its guard, too: it is not to get worse again. The
others have a guard of their own here: about a tenth above what was measured, and above the
interval of that, so that a change which costs is seen though the aim is missed as it was.
"""
import re

#: What the check's name begins with, and the guard in the check's unit.
GUARDS = [
    (r"mmap\+munmap of 64 KiB, tracked / without", 1.40),
    (r"mmap\+munmap of 64 KiB, tracked / UCX UCM", 1.30),
    (r"mmap\+munmap of 64 KiB, REGALL_CHECK", 1.15),
    (r"mmap\+munmap of 64 KiB, default / bare", 1.90),
    (r"heap by brk: sbrk of 132 KiB alone, default", 5.00),
    (r"heap by brk: malloc of 16 KiB blocks, default", 1.30),
    (r"arena by mprotect: mprotect of 16 KiB alone, default", 1.50),
    (r"arena by mprotect: malloc of 8 KiB blocks in a thread, default", 1.25),
    (r"heap by brk: sbrk", 1.40),
    (r"heap by brk: malloc", 1.15),
    (r"arena by mprotect: mprotect", 1.50),
    (r"arena by mprotect: malloc", 1.15),
    (r"start-up of /bin/true, active", 3.5),
    (r"PSS of an Open MPI rank", 1.30),
    (r"mpirun of two ranks that do nothing", 40),
    (r"mprotect of 128 MiB to executable", 3.80),
    (r"the same where one page in 64 is touched", 2.30),
    (r"mmap \+ munmap of a device's ring", 30.0),
    (r"look-up among [\d,]+ ranges, 16 hot", 18.0),
    (r"look-up among [\d,]+ ranges, at random", 100.0),
    (r"hpcc", 1.04),
    (r"get of (64 KiB|1 MiB|16 MiB) / ", 1.20),
    (r"get of 1,024 remote segments / ", 0.40),
    (r"put of 1 byte / ", 1.25),
    (r"put of (64 KiB|1 MiB|16 MiB) / ", 1.20),
    (r"mapped read of 4 KiB / ", 0.50),
    (r"mapped read of 64 KiB / ", 0.97),
    (r"mapped read of 256 KiB / ", 1.07),
    (r"read of (1 byte|4 KiB) by cookie / ", 1.20),
    (r"1,024 remote segments in one region / ", 0.40),
    (r"regall_fetch_add64 on a word that is mapped / ", 4.40),
    (r"8 B, time a message, 1 to one / vader", 1.05),
    (r"4 KiB one way / ", 4.60),
    (r"put_notify of 64 KiB / ", 1.50),
    (r"put_notify of 1 MiB / ", 1.25),
    (r"message of 64 KiB, regall, HUGE=advise", 1.25),
    (r"message of 64 KiB, regall, SHARE=heap", 1.00),
    (r"message of 1 MiB, regall, HUGE=advise", 1.15),
    (r"message of 1 MiB, regall, SHARE=heap", 0.92),
    (r"mmap \+ write to each page \+ munmap of 1 MiB, HUGE=advise", 1.20),
]


def guard(what, aim):
    """The bound of a check that is not to be crossed."""
    own = (bound for pattern, bound in GUARDS if re.match(pattern, what))
    return next(own, aim)
