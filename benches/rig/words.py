"""The row on atomic operations on words of another process."""
from .model import Check, Section, Table
from .pairs import interval, median
from .regions import per_burst

BOUNDS = (("mapped", "fetch-and-add on a word that regall_map has mapped / lock xadd on shared memory", 1.1),
          ("call", "regall_fetch_add64 on a word that is mapped / lock xadd on shared memory", 1.1))


def words(bench, single):
    s = Section("words", "Atomic operations on a peer's words")
    pairs = {}
    for _ in range(bench.pick(5, 2)):
        for line in single(bench, "populate", "words", str(bench.pick(100, 40))).splitlines():
            name, *numbers = line.split()
            pairs.setdefault(name, []).append([float(n) for n in numbers])
    table = Table("ns, no other process uses the cache line", ["", "the one", "the other"], [])
    for name, what, limit in BOUNDS:
        one, other = zip(*pairs[name])
        s.checks.append(Check(what, per_burst(one, other), limit, "×", *interval(per_burst, one, other)))
        table.rows.append([what, f"{median(one):,.1f}", f"{median(other):,.1f}"])
    s.tables.append(table)
    return s
