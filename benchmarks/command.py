"""What the benchmarks have in common: suites and their options. Running them is in ``run``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.measure import Results, told
from benchmarks.progress import Progress

ROUNDS = 3


@dataclass(frozen=True)
class Options:
    """What was asked for."""

    quick: bool
    chosen: Sequence[str]
    rounds: int
    among: Sequence[str] | None = None
    """The only contestants, by key; None for all."""

    def wants(self, contestant: str) -> bool:
        return self.among is None or contestant in self.among


Measure = Callable[[Options, Path, Results, Progress], dict[str, Any]]
"""Measures, and tells its settings for the record."""


def alone(choice: str) -> str:
    return choice


@dataclass(frozen=True)
class Suite:
    """Workloads that are told about together: ``python -m benchmarks.<name>``."""

    name: str
    title: str
    about: str
    choices: Sequence[str]
    rate: str
    """What is measured in this unit is one table."""
    titles: dict[str, str]
    notes: Callable[[], Sequence[str]]
    measure: Measure
    checks: Callable[[Results], list[report.Check]]
    together: Callable[[str], str] = alone
    """The part of a run that a choice belongs to: what shares a part is measured together, as what asks the same
    filled registry. Between two parts, all that was measured is kept."""
    long: frozenset[str] = frozenset()
    """Choices that take too long to be part of a run of everything."""

    def parts(self, chosen: Sequence[str]) -> dict[str, list[str]]:
        """The choices of each part, in the order of the suite."""
        found: dict[str, list[str]] = {}
        for choice in (one for one in self.choices if one in chosen):
            found.setdefault(self.together(choice), []).append(choice)
        return found


@dataclass
class Measured:
    """What a suite has found so far."""

    suite: Suite
    results: Results = field(default_factory=Results)
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """How long each part took."""
    problems: list[str] = field(default_factory=list)
    """Parts that could not be measured to their end."""

    def measure(self, part: str, options: Options, directory: Path, progress: Progress) -> None:
        """A part that fails is told of, and does not keep the others from being measured."""
        try:
            self.settings |= self.suite.measure(options, directory, self.results, progress)
        except Exception as error:
            self.problems.append(f"{self.suite.name}.{part}: failed, {told(error)}")

    @property
    def failures(self) -> list[str]:
        return [*self.problems, *self.results.failures()]

    @property
    def sound(self) -> bool:
        """Whether nothing of ours failed; not, whether we were fast enough."""
        return not self.problems and not self.results.failed_ourselves()

    def checks(self) -> list[report.Check]:
        return self.suite.checks(self.results)

    def markdown(self) -> str:
        notes = [*self.suite.notes(), *self.failures]
        return report.markdown(self.results, self.suite.titles, notes, self.suite.rate)

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.suite.title,
            "titles": self.suite.titles,
            "settings": self.settings,
            "seconds": self.seconds,
            "failures": self.failures,
            "sound": self.sound,
            **report.as_json(self.results, self.checks()),
        }


def rounds(quick: bool) -> int:
    return 1 if quick else ROUNDS


def parser(program: str, about: str, choices: Sequence[str]) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog=program, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--quick", action="store_true", help="one short round; rougher, and with smaller tables")
    found.add_argument(
        "--only",
        action="append",
        choices=choices,
        metavar="NAME",
        help=f"one of: {', '.join(choices)}; may be repeated",
    )
    found.add_argument("--among", action="append", metavar="KEY", help="only this contestant; may be repeated")
    found.add_argument(
        "--rounds", type=int, help=f"how often each is measured (by default {ROUNDS}, one if it is to be quick)"
    )
    found.add_argument("--json", type=Path, metavar="FILE", help="write every figure, and the machine, to this file")
    found.add_argument(
        "--results", type=Path, metavar="DIRECTORY",
        help="write results.json, results.md and the charts there; what was measured is there already while it runs",
    )  # fmt: skip
    found.add_argument("--directory", type=Path, help="where to put the databases (by default a temporary directory)")
    return found
