"""Suites of benchmarks and their command-line options; ``run`` executes them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.measure import Results, format_error
from benchmarks.progress import Progress

ROUNDS = 3


@dataclass(frozen=True)
class Size:
    """A number that an option of a suite sets: its default, that of a quick run, and the help."""

    default: float
    quick: float
    about: str


@dataclass(frozen=True)
class Options:
    """The options of a run."""

    quick: bool
    chosen: Sequence[str]
    rounds: int
    among: Sequence[str] | None = None
    """Keys of the contestants to measure; None for all."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """The sizes of the suite, by name."""

    def size(self, name: str) -> int:
        return int(self.sizes[name])

    def wants(self, contestant: str) -> bool:
        return self.among is None or contestant in self.among


Measure = Callable[[Options, Path, Results, Progress], dict[str, Any]]
"""Measure the chosen workloads and return the settings for the report."""


def own_part(choice: str) -> str:
    return choice


@dataclass(frozen=True)
class Suite:
    """Workloads of one report: ``python -m benchmarks.<name>``."""

    name: str
    title: str
    about: str
    choices: Sequence[str]
    rate: str
    """The unit whose figures form one table."""
    titles: dict[str, str]
    notes: Callable[[], Sequence[str]]
    measure: Measure
    checks: Callable[[Results], list[report.Check]]
    part_of: Callable[[str], str] = own_part
    """The part of a run that a choice belongs to. Choices of one part share their setup; results are saved after each
    part."""
    long: frozenset[str] = frozenset()
    """Choices that take too long for a run of all suites."""
    sizes: Mapping[str, Size] = field(default_factory=dict)
    """Options of the suite, each a number."""

    def parts(self, chosen: Sequence[str]) -> dict[str, list[str]]:
        """Return the choices of each part, in the order of the suite."""
        found: dict[str, list[str]] = {}
        for choice in (one for one in self.choices if one in chosen):
            found.setdefault(self.part_of(choice), []).append(choice)
        return found


@dataclass
class Measured:
    """The results of a suite so far."""

    suite: Suite
    results: Results = field(default_factory=Results)
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    """The duration of each part."""
    problems: list[str] = field(default_factory=list)
    """Parts that failed."""

    def measure(self, part: str, options: Options, directory: Path, progress: Progress) -> None:
        """Measure a part; record a failure and continue with the others."""
        try:
            self.settings |= self.suite.measure(options, directory, self.results, progress)
        except Exception as error:
            self.problems.append(f"{self.suite.name}.{part}: failed, {format_error(error)}")

    @property
    def failures(self) -> list[str]:
        return [*self.problems, *self.results.failures()]

    @property
    def sound(self) -> bool:
        """True if no part and no workload of agentbus failed, whether or not the targets are met."""
        return not self.problems and not self.results.has_own_failures()

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


def parser(
    program: str, about: str, choices: Sequence[str], sizes: Mapping[str, Size] | None = None
) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        prog=program, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--quick", action="store_true", help="one short round with smaller tables; less precise")
    found.add_argument(
        "--only",
        action="append",
        choices=choices,
        metavar="NAME",
        help=f"one of: {', '.join(choices)}; may be repeated",
    )
    found.add_argument("--among", action="append", metavar="KEY", help="only this contestant; may be repeated")
    found.add_argument("--rounds", type=int, help=f"number of rounds (default {ROUNDS}; 1 with --quick)")
    found.add_argument("--json", type=Path, metavar="FILE", help="write every figure and the machine to this file")
    found.add_argument(
        "--results", type=Path, metavar="DIRECTORY",
        help="write results.json, results.md and the charts there; updated after each part",
    )  # fmt: skip
    found.add_argument("--directory", type=Path, help="directory of the databases (default: a temporary directory)")
    for name, size in (sizes or {}).items():
        shown = f"{size.about} (default {size.default:,g}; {size.quick:,g} with --quick)"
        found.add_argument(f"--{name}", type=float, metavar="N", dest=name, help=shown)
    return found
