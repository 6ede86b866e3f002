"""What rows hand to the reports."""
import dataclasses

from . import bounds


@dataclasses.dataclass
class Check:
    """What was measured, the aim that the project set before it began, and the bound that
    guards against regressions."""
    what: str
    value: float
    aim: float
    unit: str = "×"
    low: float = None
    high: float = None

    @property
    def guard(self):
        return bounds.guard(self.what, self.aim)

    @property
    def holds(self):
        return self.value <= self.guard

    @property
    def reached(self):
        return self.value <= self.aim

    @property
    def verdict(self):
        return self.against(self.guard, "holds", "CROSSED")

    @property
    def distance(self):
        return self.against(self.aim, "reached", "missed")

    def against(self, bound, good, bad):
        if self.value <= bound:
            word = good
        elif self.unit == "×":
            word = f"{bad} by {100 * (self.value / bound - 1):.1f} %"
        else:
            word = f"{bad} by {self.value - bound:.3g} {self.unit}"
        unsure = self.low is not None and self.low <= bound < self.high
        return word + (" (within the noise)" if unsure else "")

    def number(self, x):
        x = round(x, 3) + 0.0  # no -0
        if self.unit == "×":
            return f"{x:.3f}"
        return f"{x:.3f} ms" if self.unit == "ms" else f"{x:.1f} {self.unit}"

    def range(self):
        if self.low is None:
            return ""
        return f"{self.number(self.low)} … {self.number(self.high)}"


@dataclasses.dataclass
class Table:
    """Numbers with no bound."""
    title: str
    columns: list
    rows: list


@dataclasses.dataclass
class Section:
    """All of one row of the bench."""
    name: str
    title: str
    checks: list = dataclasses.field(default_factory=list)
    tables: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)
    seconds: float = 0.0

    def as_json(self):
        plain = dataclasses.asdict(self)
        for check, source in zip(plain["checks"], self.checks):
            check |= {"guard": source.guard, "holds": source.holds, "reached": source.reached}
        return plain

    @classmethod
    def of_json(cls, plain):
        fields = [f.name for f in dataclasses.fields(Check)]
        return cls(**plain | {"checks": [Check(**{f: c[f] for f in fields}) for c in plain["checks"]],
                              "tables": [Table(**t) for t in plain["tables"]]})
