"""What the benchmarks have in common as commands: their options, a directory of their own, the report."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.machine import describe, doubts, place
from benchmarks.measure import Progress, Results

ROUNDS = 3


@dataclass(frozen=True)
class Options:
    """What was asked for."""

    quick: bool
    chosen: Sequence[str]
    rounds: int


Measure = Callable[[Options, Path, Results, Progress], dict[str, Any]]
"""Measures, and tells its settings for the record."""


@dataclass(frozen=True)
class Command:
    """``python -m benchmarks.<name>``: tables in Markdown on stdout, progress on stderr."""

    name: str
    about: str
    choices: Sequence[str]
    quick: str
    rate: str
    titles: dict[str, str]
    notes: Sequence[str]

    def run(
        self,
        arguments: Sequence[str] | None,
        measure: Measure,
        checks: Callable[[Results], list[report.Check]],
    ) -> int:
        given = self._parse(arguments)
        options = Options(given.quick, given.only or self.choices, given.rounds)
        base: Path = given.directory or place()
        directory = Path(tempfile.mkdtemp(prefix="agentbus-bench-", dir=base))
        machine = describe(directory)
        doubtful = doubts(directory)
        for doubt in doubtful:
            print(f"doubtful: {doubt}", file=sys.stderr)
        progress = Progress()
        results = Results()
        try:
            settings = measure(options, directory, results, progress)
        finally:
            progress.done()
            shutil.rmtree(directory, ignore_errors=True)
        kept = checks(results)
        print(report.markdown(results, kept, machine, self.titles, self.notes, doubtful, self.rate))
        if given.json is not None:
            settings = {"quick": options.quick, "only": given.only, "rounds": options.rounds, **settings}
            given.json.write_text(json.dumps(report.as_json(results, kept, machine, settings), indent=2) + "\n")
        return 0

    def _parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{self.name}", description=self.about)
        parser.add_argument("--quick", action="store_true", help=self.quick)
        parser.add_argument(
            "--only", action="append", choices=self.choices, metavar="NAME", help=f"one of: {', '.join(self.choices)}"
        )
        parser.add_argument(
            "--rounds", type=int, default=ROUNDS, help=f"how often each is measured (by default {ROUNDS})"
        )
        parser.add_argument(
            "--json", type=Path, metavar="FILE", help="write every figure, and the machine, to this file"
        )
        parser.add_argument(
            "--directory", type=Path, help="where to put the databases (by default a temporary directory)"
        )
        return parser.parse_args(arguments)
