"""Alternating runs of the same work, and what can be said of them."""
import os
import random
import statistics
import subprocess

from . import build

#: CPU that single-threaded work is pinned to.
CPU = max(os.sched_getaffinity(0))


class Failed(Exception):
    """A measured program did not do its work."""


class Ways:
    """The ways of running a program: environment variables for each."""

    def __init__(self, lib):
        def preload(name):
            return {"LD_PRELOAD": str(build.OUT / f"preload_{name}.so")}

        shim = {"LD_PRELOAD": str(lib)}
        on = {**shim, "REGALL": "1", "REGALL_LOG": "error"}
        self.by_name = {
            "none": {},
            "empty": preload("empty"),
            "inert": shim,
            "off": {**on, "REGALL_PIN": "off"},
            "onfault": {**on, "REGALL_PIN": "onfault"},
            "populate": {**on, "REGALL_PIN": "populate"},
            "advised": {**on, "REGALL_PIN": "off", "REGALL_HUGE": "advise"},
            "huge": {**on, "REGALL_HUGE": "advise", "REGALL_SHARE": "off"},
            "heap": {**on, "REGALL_HUGE": "advise", "REGALL_SHARE": "heap"},
            "auto": on,
            "share": {**on, "REGALL_SHARE": "heap"},
            "always": {**on, "REGALL_SHARE": "always"},
            "checked": {**on, "REGALL_CHECK": "registrations", "REGALL_CHECK_FILE": "/dev/null"},
            "mlockall": preload("mlockall"),
            "future": preload("future"),
            "ucm": {**preload("ucm"), "UCX_MEM_MMAP_HOOK_MODE": "bistro"},
        }

    def __getitem__(self, name):
        return self.by_name[name]

    def environment(self, name):
        clean = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD" and not k.startswith(("REGALL", "UCX_"))}
        return {**clean, **self.by_name[name]}


#: What each way is called in tables.
TITLES = {
    "none": "without the shim",
    "empty": "empty preload",
    "inert": "regall, inert",
    "off": "regall, PIN=off",
    "onfault": "regall, PIN=onfault",
    "populate": "regall, PIN=populate",
    "advised": "regall, PIN=off, HUGE=advise",
    "huge": "regall, HUGE=advise",
    "heap": "regall, SHARE=heap",
    "auto": "regall",
    "share": "SHARE=heap",
    "always": "SHARE=always",
    "checked": "regall, CHECK=registrations",
    "mlockall": "mlockall(CURRENT|FUTURE)",
    "future": "mlockall(FUTURE|ONFAULT)",
    "ucm": "UCX UCM, bistro",
}
#: Ways in which the program must have been watched by somebody.
WATCHED = {"off", "onfault", "populate", "mlockall", "future", "ucm"}


class Served:
    """One program that measures a slice whenever it is asked to (c/slice.h)."""

    def __init__(self, ways, way, program, args, pin):
        self.way, self.what = way, " ".join((program, *args))
        prefix = ["taskset", "-c", str(CPU)] if pin else []
        self.process = subprocess.Popen(
            [*prefix, "env", *(f"{k}={v}" for k, v in ways[way].items()), build.OUT / program, *args],
            env=ways.environment("none"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        # Nobody is measured while another one starts up.
        if self.process.stdout.readline() != "ready\n":
            raise Failed(f"`{self.what}` {TITLES[way]}: ended with status {self.process.wait()}")

    def slice(self):
        try:
            self.process.stdin.write("x\n")
            return float(self.process.stdout.readline())
        except (OSError, ValueError):
            status = self.process.wait()
            raise Failed(f"`{self.what}` {TITLES[self.way]}: ended with status {status}") from None

    def end(self, watched):
        self.process.stdin.close()
        words = self.process.stdout.read().split()
        status = self.process.wait()
        if status or words[:1] != ["events"]:
            raise Failed(f"`{self.what}` {TITLES[self.way]}: ended with status {status}")
        if watched and self.way in WATCHED and words[1] == "0":
            raise Failed(f"`{self.what}` {TITLES[self.way]}: nobody was watching")


def alternate(ways, names, program, *args, generations, rounds, pin=True, watched=True):
    """ns for each way, a list over all rounds. Each generation starts every
    program anew (addresses fall out differently), each round asks every one of
    them for a slice, there and back."""
    got = {name: [] for name in names}
    for _ in range(generations):
        served = []
        try:
            for name in names:
                served.append((name, Served(ways, name, program, args, pin)))
            for r in range(rounds):
                for name, s in served if r % 2 == 0 else reversed(served):
                    got[name].append(s.slice())
            for _, s in served:
                s.end(watched)
        finally:
            for _, s in served:
                if s.process.poll() is None:
                    s.process.kill()
                    s.process.wait()
    return got


def median(values):
    return statistics.median(values)


def ratio(a, b):
    return median(a) / median(b)


def difference(a, b):
    return median(a) - median(b)


def interval(how, a, b, tries=400):
    """95 % of what `how` would have said had the rounds fallen out differently
    (bootstrap over rounds, pairs kept)."""
    rng = random.Random(1)
    n = min(len(a), len(b))
    said = []
    for _ in range(tries):
        pick = [rng.randrange(n) for _ in range(n)]
        said.append(how([a[i] for i in pick], [b[i] for i in pick]))
    said.sort()
    return said[int(tries * 0.025)], said[int(tries * 0.975)]
