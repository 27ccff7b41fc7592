"""Format results as Markdown tables, targets and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.machine import sentence
from benchmarks.measure import Results, Series

RATE = "lifecycles/s"
"""The unit of the comparison of contestants."""
MODES = {"one": "one at a time", "tasks": "32 tasks", "batches": "batches of 64", "processes": "two processes"}
"""The modes in which messages are sent and received."""


@dataclass(frozen=True)
class Check:
    """A performance target: at least ``least``, at most ``most``, or only an ``aim`` in the direction of the bound."""

    name: str
    value: float | None
    """None if the other side was not measured."""
    unit: str
    least: float | None = None
    most: float | None = None
    aim: float | None = None

    @property
    def passed(self) -> bool | None:
        if self.value is None:
            return None
        return (self.least is None or self.value >= self.least) and (self.most is None or self.value <= self.most)

    @property
    def word(self) -> str:
        if self.value is None:
            return "not measured"
        if not self.passed:
            return "**not held**"
        missed = "below the aim" if self.most is None else "above the aim"
        if self.aim is None or (self.value >= self.aim if self.most is None else self.value <= self.aim):
            return "held"
        return missed if self.least is None and self.most is None else f"held, {missed}"

    def row(self) -> tuple[str, ...]:
        bounds = (("at least", self.least), ("at most", self.most), ("aim", self.aim))
        bound = ", ".join(f"{word} {self._shown(value)}" for word, value in bounds if value is not None)
        return self.name, self._shown(self.value), bound, self.word

    def _shown(self, value: float | None) -> str:
        return "–" if value is None else f"{value:.3g}{self.unit}"


def against(
    results: Results, name: str, workload: str, ours: str, theirs: str, measured_in: str | None = None, **bounds: float
) -> list[Check]:
    """Return the ratio of ours to theirs as a target, or nothing if ours was not measured."""
    if results.find(workload, ours, measured_in) is None:
        return []
    return [Check(name, results.ratio(workload, ours, theirs, measured_in), "x", **bounds)]


def targets(checks: Sequence[Check]) -> str:
    """Return the table of targets with value, bound and outcome."""
    if not checks:
        return ""
    return table(("target", "measured", "bound", ""), [check.row() for check in checks])


def heading(machine: dict[str, Any], doubts: Iterable[str]) -> str:
    """Return the line about the machine; ``doubts`` are reasons not to publish the run."""
    return " ".join([f"Measured on {sentence(machine)}.", *(f"**Doubtful: {doubt}.**" for doubt in doubts)])


def markdown(results: Results, titles: dict[str, str], notes: Iterable[str], rate: str = RATE) -> str:
    """Return the tables; ``titles`` are the headings of workloads, figures in ``rate`` form one table."""
    rates = [series for series in results.series if series.unit == rate and series.values]
    costs = [series for series in results.series if series.unit != rate and series.values]
    parts = []
    if rates:
        parts.append(_rates(rates, titles))
    parts += _costs(costs)
    parts.append("\n".join(f"- {note}" for note in notes))
    return "\n\n".join(part for part in parts if part)


def as_json(results: Results, checks: Sequence[Check]) -> dict[str, Any]:
    return {
        "results": [series.as_json() for series in results.series if series.values],
        "checks": [{**asdict(check), "passed": check.passed} for check in checks],
    }


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [_line(head, widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
    return "\n".join([*lines, *(_line(row, widths) for row in rows)])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"


def _rates(rates: Sequence[Series], titles: dict[str, str]) -> str:
    """Return the table with contestants as rows and workloads as columns."""
    workloads = list(dict.fromkeys(series.workload for series in rates))
    contestants = {series.contestant: series for series in rates}
    cells = {(series.contestant, series.workload): _spread(series) for series in rates}
    rows = [
        (about.title, *(cells.get((key, workload), "–") for workload in workloads), about.durability)
        for key, about in contestants.items()
    ]
    return table((rates[0].unit, *(titles[workload] for workload in workloads), "what survives"), rows)


def _costs(costs: Sequence[Series]) -> list[str]:
    """Return one table of workloads with one unit, and one for each set of several units as columns."""
    units: dict[str, tuple[str, ...]] = {}
    for series in costs:
        units[series.workload] = tuple(dict.fromkeys((*units.get(series.workload, ()), series.unit)))
    found: list[str] = []
    single = [series for series in costs if len(units[series.workload]) == 1]
    for columns in dict.fromkeys(several for several in units.values() if len(several) > 1):
        cells: dict[str, dict[str, str]] = {}
        for series in costs:
            if units[series.workload] == columns:
                cells.setdefault(series.title, {})[series.unit] = _spread(series)
        rows = [(title, *(row.get(unit, "–") for unit in columns)) for title, row in cells.items()]
        found.append(table(("", *columns), rows))
    if single:
        found.append(table(("", "figure", "unit"), [(one.title, _spread(one), one.unit) for one in single]))
    return found


def _spread(series: Series) -> str:
    """Format the median, and the range of several values."""
    median, low, high = (shown(value) for value in (series.median, series.low, series.high))
    return median if len(series.values) == 1 else f"{median} ({low}–{high})"


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"
