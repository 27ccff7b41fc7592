"""Measure in interleaved rounds, so that noise of the machine affects all contestants alike."""

from __future__ import annotations

import gc
import shutil
import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.progress import Progress

T = TypeVar("T")


OURS = "agentbus"


def format_error(error: Exception) -> str:
    """Format an error as one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:200]


@dataclass
class Series:
    """The figures of one contestant under one workload, a value per round."""

    workload: str
    contestant: str
    unit: str
    values: list[float] = field(default_factory=list)
    title: str = ""
    """The name of the contestant in tables."""
    durability: str = ""
    slices: list[list[float]] = field(default_factory=list)
    """The slices of each round; a value is their mean."""
    failure: str = ""
    """The error, if there are no values."""

    def failed(self, error: Exception) -> None:
        """Record the failure and discard the values."""
        self.failure = format_error(error)
        self.values.clear()
        self.slices.clear()

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.workload,
            "contestant": self.contestant,
            "title": self.title,
            "durability": self.durability,
            "unit": self.unit,
            "median": self.median,
            "low": self.low,
            "high": self.high,
            "rounds": self.values,
            "slices": self.slices,
        }


class Results:
    """Every series of a run. A failed series has no values and is left out of the tables."""

    def __init__(self) -> None:
        self.series: list[Series] = []

    def add(self, series: Series) -> Series:
        self.series.append(series)
        return series

    def failures(self) -> list[str]:
        """Return each failure once: a workload may be measured in several units."""
        failed = (f"{one.title}, {one.workload}: failed, {one.failure}" for one in self.series if one.failure)
        return list(dict.fromkeys(failed))

    def has_own_failures(self) -> bool:
        """Return True if a workload of agentbus failed; failures of other contestants are only notes."""
        return any(one.failure and one.contestant.startswith(OURS) for one in self.series)

    def of(self, workload: str) -> list[Series]:
        return [series for series in self.series if series.workload == workload and series.values]

    def find(self, workload: str, contestant: str, unit: str | None = None) -> Series | None:
        """Return a series; ``unit`` selects one of a workload that is measured in several."""
        found = (series for series in self.of(workload) if unit is None or series.unit == unit)
        return next((series for series in found if series.contestant == contestant), None)

    def ratio(self, workload: str, ours: str, theirs: str, unit: str | None = None) -> float | None:
        """Return the median ratio of the rounds: both sides of a round are measured next to each other. An interrupted
        run may have one round less of one side."""
        left, right = self.find(workload, ours, unit), self.find(workload, theirs, unit)
        if left is None or right is None:
            return None
        return statistics.median(ours / theirs for ours, theirs in zip(left.values, right.values, strict=False))

    def ratio_of_medians(self, workload: str, ours: str, theirs: str) -> float | None:
        """Return the ratio of medians, for many short rounds in which noise may affect one side only."""
        left, right = self.find(workload, ours), self.find(workload, theirs)
        return None if left is None or right is None else left.median / right.median


@dataclass(frozen=True)
class Case:
    """A measurement and the series of its figure."""

    series: Series
    run: Callable[[], float]


def interleave(cases: Sequence[Case], rounds: int, slices: int, progress: Progress) -> None:
    """Measure every case once per round, so that all run under the same conditions.

    Within a round, the cases of one workload take turns in short slices, so that a burst of load affects all of them.
    The figure of a round is the mean of its slices, which have equal length.
    """
    progress.expect(rounds * slices * len(cases))
    for number in range(1, rounds + 1):
        for workload, group in groupby(cases, key=lambda case: case.series.workload):
            contestants = list(group)
            figures: list[list[float]] = [[] for _ in contestants]
            for turn in range(1, slices + 1):
                for case, slice_figures in zip(contestants, figures, strict=True):
                    where = f"round {number} of {rounds}, slice {turn} of {slices}"
                    progress.say(f"{where}: {workload}, {case.series.contestant}")
                    gc.collect()
                    if not case.series.failure:
                        try:
                            slice_figures.append(case.run())
                        except Exception as error:
                            case.series.failed(error)
            for case, slice_figures in zip(contestants, figures, strict=True):
                if case.series.failure:
                    continue
                case.series.values.append(statistics.fmean(slice_figures))
                case.series.slices.append(slice_figures)


def in_new_directory(directory: Path, measure: Callable[[Path], T]) -> T:
    """Measure in a new directory, which is removed afterwards."""
    fresh = Path(tempfile.mkdtemp(dir=directory))
    try:
        return measure(fresh)
    finally:
        shutil.rmtree(fresh)
