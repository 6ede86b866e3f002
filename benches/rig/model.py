"""What rows hand to the reports."""
import dataclasses


@dataclasses.dataclass
class Check:
    """A bound of issue 2 or 4 and what was measured."""
    what: str
    value: float
    limit: float
    unit: str = "×"
    low: float = None
    high: float = None

    @property
    def passed(self):
        return self.value <= self.limit

    @property
    def verdict(self):
        if self.passed:
            word = "pass"
        elif self.unit == "×":
            word = f"MISSED by {100 * (self.value / self.limit - 1):.1f} %"
        else:
            word = f"MISSED by {self.value - self.limit:.3g} {self.unit}"
        unsure = self.low is not None and self.low <= self.limit < self.high
        return word + (" (within the noise)" if unsure else "")

    def number(self, x):
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
            check["verdict"] = source.verdict
            check["passed"] = source.passed
        return plain
