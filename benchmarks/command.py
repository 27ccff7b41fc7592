"""What the benchmarks have in common as commands: their options, a directory of their own, the report."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.contestants import servers
from benchmarks.machine import describe, doubts, place
from benchmarks.measure import Progress, Results

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


@dataclass(frozen=True)
class Suite:
    """Workloads that are measured and told about together: ``python -m benchmarks.<name>``."""

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
    long: frozenset[str] = frozenset()
    """Choices that take too long to be part of a run of everything."""

    def run(self, options: Options, directory: Path, progress: Progress) -> Measured:
        results = Results()
        settings = self.measure(options, directory, results, progress)
        return Measured(self, results, self.checks(results), settings)


@dataclass(frozen=True)
class Measured:
    """What a suite found."""

    suite: Suite
    results: Results
    checks: list[report.Check]
    settings: dict[str, Any]

    def markdown(self) -> str:
        notes = [*self.suite.notes(), *self.results.failures()]
        return report.markdown(self.results, self.checks, self.suite.titles, notes, self.suite.rate)

    def as_json(self) -> dict[str, Any]:
        return report.as_json(self.results, self.checks, self.settings)


def main(suite: Suite, arguments: Sequence[str] | None = None) -> int:
    """One suite: tables in Markdown on stdout, progress on stderr."""
    given = parser(f"python -m benchmarks.{suite.name}", suite.about, suite.choices).parse_args(arguments)
    options = Options(given.quick, given.only or suite.choices, given.rounds or rounds(given.quick), given.among)
    with arena(given.directory) as (directory, machine, doubtful, progress):
        measured = suite.run(options, directory, progress)
    print(f"{report.heading(machine, doubtful)}\n\n{measured.markdown()}")
    if given.json is not None:
        found = {"machine": machine, "quick": options.quick, "rounds": options.rounds, **measured.as_json()}
        given.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def rounds(quick: bool) -> int:
    return 1 if quick else ROUNDS


@contextmanager
def arena(base: Path | None) -> Iterator[tuple[Path, dict[str, Any], list[str], Progress]]:
    """A directory, what is to be said of the machine, and the progress; all servers are stopped afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="agentbus-bench-", dir=base or place()))
    machine = describe(directory)
    doubtful = doubts(directory)
    for doubt in doubtful:
        print(f"doubtful: {doubt}", file=sys.stderr)
    # What was cut off is what is asked about, and not to be told anybody.
    logging.getLogger("agentbus").setLevel(logging.ERROR)
    progress = Progress()
    try:
        yield directory, dict(machine), doubtful, progress
    finally:
        progress.done()
        servers.stop_all()
        shutil.rmtree(directory, ignore_errors=True)


def parser(program: str, about: str, choices: Sequence[str]) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(prog=program, description=about)
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
    found.add_argument("--directory", type=Path, help="where to put the databases (by default a temporary directory)")
    return found
