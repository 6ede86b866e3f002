"""The rows on regions: issue 4's speed table, as far as it is about reading by cookie."""
from .model import Check, Section, Table
from .pairs import interval, median


def per_burst(a, b):
    """Bursts of the two follow on each other, so each pair is compared by itself."""
    return median([x / y for x, y in zip(a, b)])


def measured(bench, single):
    """What c/regions.c prints: pairs by name, and the owner's CPU time."""
    pairs, owner = {}, 0.0
    for _ in range(bench.pick(5, 2)):
        for line in single(bench, "populate", "regions", str(bench.pick(100, 40))).splitlines():
            name, *numbers = line.split()
            if name == "owner":
                owner = max(owner, float(numbers[0]) / 1e6)
            else:
                pairs.setdefault(name, []).append([float(n) for n in numbers])
    return pairs, owner


def regions(bench, single):
    s = Section("regions", "Regions by cookie")
    pairs, owner = measured(bench, single)
    sizes = {"read_1": "1 byte", "read_4096": "4 KiB", "read_65536": "64 KiB", "read_1048576": "1 MiB"}
    bounds = [(name, f"read of {size} by cookie / get at the address", 1.05) for name, size in sizes.items()]
    bounds += [("scattered", "1,024 remote segments in one region / as many process_vm_readv", 0.35),
               ("eight", "8 readers of one region / of 8 regions", 1.25)]
    table = Table("ns (8 readers: for each to read 64 KiB, wall time)", ["", "the one", "the other"], [])
    for name, what, limit in bounds:
        one, other = zip(*pairs[name])
        s.checks.append(Check(what, per_burst(one, other), limit, "×", *interval(per_burst, one, other)))
        table.rows.append([what, f"{median(one):,.0f}", f"{median(other):,.0f}"])
    one, other = zip(*pairs["kernel"])
    table.rows.append([f"for scale: one process_vm_readv of 1,024 segments / 1,024 of one: {per_burst(one, other):.3f}",
                       f"{median(one):,.0f}", f"{median(other):,.0f}"])
    s.checks.append(Check("the owner's CPU time while its regions are read", owner, 0.0, "ms"))
    s.tables.append(table)
    return s
