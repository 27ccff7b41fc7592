"""Run suites part by part and save the results after each part; an interrupted run loses only its current part."""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import plan, report
from benchmarks.command import Measured, Options, Suite, parser, rounds
from benchmarks.contestants import servers
from benchmarks.contestants.versions import versions
from benchmarks.machine import database_directory, describe, doubts
from benchmarks.progress import Progress

INTERRUPTED = 130


@dataclass
class Run:
    """A run: the requested suites and their results."""

    given: argparse.Namespace
    requested: Sequence[tuple[Suite, Sequence[str]]]
    machine: dict[str, Any] = field(default_factory=dict)
    doubtful: list[str] = field(default_factory=list)
    measured: list[Measured] = field(default_factory=list)
    unmeasured: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)
    date: str = field(default_factory=lambda: f"{datetime.now(UTC):%Y-%m-%d}")

    def measure(self, directory: Path, progress: Progress) -> None:
        parts = [(suite, name, chosen) for suite, all_of_it in self.requested
                 for name, chosen in suite.parts(all_of_it).items()]  # fmt: skip
        self.unmeasured = [f"{suite.name}.{name}" for suite, name, _ in parts]
        for suite, name, chosen in parts:
            if not self.measured or self.measured[-1].suite is not suite:
                self.measured.append(Measured(suite))
            one = self.measured[-1]
            started = time.monotonic()
            progress.part(f"{suite.name}.{name}", plan.seconds(suite.name, name, self.given.quick))
            fresh = directory / suite.name / name
            fresh.mkdir(parents=True)
            one.measure(name, self._options(suite, chosen), fresh, progress)
            shutil.rmtree(fresh)
            one.seconds[name] = round(time.monotonic() - started, 1)
            self.unmeasured.pop(0)
            self.save()

    def _options(self, suite: Suite, chosen: Sequence[str]) -> Options:
        quick = self.given.quick
        sizes = {name: size.quick if quick else size.default for name, size in suite.sizes.items()}
        sizes |= {name: value for name in sizes if (value := getattr(self.given, name, None)) is not None}
        return Options(quick, chosen, self.given.rounds or rounds(quick), self.given.among, sizes)

    def as_json(self) -> dict[str, Any]:
        return {
            "date": self.date, "machine": self.machine, "versions": versions(), "doubts": self.doubtful,
            "quick": self.given.quick, "among": self.given.among,
            "rounds": self.given.rounds or rounds(self.given.quick),
            "seconds": round(time.monotonic() - self.started), "unmeasured": self.unmeasured,
            "suites": {one.suite.name: one.as_json() for one in self.measured},
        }  # fmt: skip

    def markdown(self) -> str:
        parts = [report.heading(self.machine, self.doubtful)]
        if self.unmeasured:
            parts.append(f"**Not finished.** Without, or with part of: {', '.join(self.unmeasured)}.")
        parts += [f"## {one.suite.title}\n\n{one.markdown()}" for one in self.measured]
        if targets := report.targets([check for one in self.measured for check in one.checks()]):
            parts.append(f"## Targets\n\n{targets}")
        return "\n\n".join(parts) + "\n"

    def save(self) -> None:
        """Write the results so far. Files are replaced atomically, so that a reader never sees a partial one."""
        found = json.dumps(self.as_json(), indent=1) + "\n"
        if self.given.json is not None:
            _write(self.given.json, found)
        if self.given.results is not None:
            self.given.results.mkdir(parents=True, exist_ok=True)
            _write(self.given.results / "results.json", found)
            _write(self.given.results / "results.md", f"# Results\n\n{self.markdown()}")

    def draw(self) -> None:
        if self.given.results is None:
            return
        try:
            from benchmarks.charts import draw
        except ImportError:
            print("matplotlib is not installed: no charts (pip install '.[bench]' in the checkout)", file=sys.stderr)
        else:
            draw(self.as_json(), self.given.results)


def run(given: argparse.Namespace, requested: Sequence[tuple[Suite, Sequence[str]]]) -> int:
    """Measure, print and save; return 1 if agentbus failed, INTERRUPTED if the run was interrupted."""
    planned = sum(
        plan.seconds(suite.name, part, given.quick) for suite, chosen in requested for part in suite.parts(chosen)
    )
    whole = Run(given, requested)
    code = 0
    progress = Progress(planned)
    with _working_directory(given.directory) as directory, _signals_as_interrupts():
        whole.machine, whole.doubtful = dict(describe(directory)), doubts(directory)
        for doubt in whole.doubtful:
            print(f"doubtful: {doubt}", file=sys.stderr)
        try:
            whole.measure(directory, progress)
        except KeyboardInterrupt:
            code = INTERRUPTED
        finally:
            progress.done()
    whole.save()
    whole.draw()
    print(whole.markdown())
    if code == INTERRUPTED:
        print(f"interrupted; not measured: {', '.join(whole.unmeasured)}", file=sys.stderr)
    elif not all(one.sound for one in whole.measured):
        code = 1
    for failure in (failure for one in whole.measured for failure in one.failures):
        print(failure, file=sys.stderr)
    return code


def main(suite: Suite, arguments: Sequence[str] | None = None) -> int:
    """Run one suite."""
    given = parser(f"python -m benchmarks.{suite.name}", suite.about, suite.choices, suite.sizes).parse_args(arguments)
    return run(given, [(suite, given.only or suite.choices)])


@contextmanager
def _working_directory(base: Path | None) -> Iterator[Path]:
    """Create a directory for the databases; remove it and stop all servers afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="agentbus-bench-", dir=base or database_directory()))
    # Interrupted sessions are part of the workload; their warnings would flood stderr.
    logging.getLogger("agentbus").setLevel(logging.ERROR)
    try:
        yield directory
    finally:
        servers.stop_all()
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP as an interrupt, so that results are saved and servers stopped."""
    before = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGHUP)}
    for one, handler in before.items():
        if handler is not signal.SIG_IGN:  # as nohup has it
            signal.signal(one, signal.default_int_handler)
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _write(file: Path, text: str) -> None:
    temporary = file.with_name(f"{file.name}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
