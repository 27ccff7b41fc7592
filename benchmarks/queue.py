"""The queue benchmark: ``python -m benchmarks.queue``, or with ``--engine postgres`` on a server. Tables in Markdown on
stdout, progress on stderr."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import growth, report, upkeep
from benchmarks.command import Command, Options
from benchmarks.contestants.base import BlockingBox, BlockingContestant, Contestant
from benchmarks.contestants.bus import DISK, PROCESS
from benchmarks.contestants.files import FILES
from benchmarks.contestants.plain import AUTOCOMMIT, PLAIN
from benchmarks.contestants.raw import RAW
from benchmarks.measure import Case, Progress, Results, Series, afresh, interleave
from benchmarks.workloads import (
    BATCH,
    BATCHES,
    FUSED,
    MANY,
    ONE,
    SIZE,
    TASKS,
    Workload,
    blocking_batches,
    blocking_one_at_a_time,
)

EVERYONE: tuple[Contestant, ...] = (DISK, PROCESS, PLAIN, AUTOCOMMIT, FILES)
ENTRIES: dict[Workload, tuple[Contestant, ...]] = {
    ONE: EVERYONE,
    MANY: EVERYONE,
    FUSED: (DISK, PROCESS),
    # A batch is one transaction, so there is no autocommit here.
    BATCHES: (DISK, PROCESS, PLAIN, FILES),
}
BLOCKING: dict[Workload, Callable[[BlockingBox, float], float]] = {
    ONE: blocking_one_at_a_time,
    BATCHES: blocking_batches,
}
OTHERS = ("growth", "beats")
NOTES = (
    f"A lifecycle is send + receive + acknowledge of one message of {SIZE} bytes of JSON. Medians, and the range, of "
    "interleaved rounds, each on a new database.",
    "aiosqlite has the same tables, WAL and synchronous=FULL, and one connection for all tasks. Plainly: insert; select"
    " + update; update; each with a commit, an asyncio.Lock around each transaction. Autocommit: one statement per step"
    " (UPDATE … RETURNING for the claim), no lock; the fewest thread hops there can be.",
    f"JSON files: one directory per mailbox, called plainly by one task, in threads by {TASKS}.",
    "raw sqlite3 runs our statements on our tables, without encoding, fencing, checks, lock file or wake-ups.",
)


@dataclass(frozen=True)
class Pace:
    """How long to measure; ``slices`` are parts of a round, ``seconds`` is the length of one."""

    seconds: float
    slices: int
    many: int
    growth_rounds: int
    upkeep_seconds: float


FULL = Pace(seconds=0.5, slices=6, many=1_000_000, growth_rounds=40, upkeep_seconds=20.0)
QUICK = Pace(seconds=0.25, slices=2, many=100_000, growth_rounds=20, upkeep_seconds=5.0)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--engine", choices=["sqlite", "postgres"], default="sqlite")
    chosen, arguments = parser.parse_known_args(arguments)
    if chosen.engine == "postgres":
        from benchmarks.servers import command as servers

        return servers.main(arguments)
    command = Command(
        name="queue",
        about=__doc__ or "",
        choices=[*(workload.key for workload in ENTRIES), *OTHERS],
        quick="about a minute; rougher, and 100,000 rows for a million",
        rate=report.RATE,
        titles={workload.key: workload.title for workload in ENTRIES},
        notes=NOTES,
    )

    def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
        pace = QUICK if options.quick else FULL
        run(options.chosen, pace, options.rounds, directory, results, progress)
        return {"seconds": pace.seconds, "slices": pace.slices}

    return command.run(arguments, measure, lambda results: report.checks(results, TASKS, BATCH))


def run(chosen: Sequence[str], pace: Pace, rounds: int, directory: Path, results: Results, progress: Progress) -> None:
    cases = [
        case
        for workload, contestants in ENTRIES.items()
        if workload.key in chosen
        for case in _cases(workload, contestants, pace.seconds, directory, results)
    ]
    interleave(cases, rounds, pace.slices, progress)
    if "growth" in chosen:
        databases = directory / "growth"
        growth.measure(databases, pace.many, pace.growth_rounds, results, progress)
        shutil.rmtree(databases)
    if "beats" in chosen:
        upkeep.measure(directory / "upkeep", pace.upkeep_seconds, results, progress)


def _cases(
    workload: Workload, contestants: Sequence[Contestant], seconds: float, directory: Path, results: Results
) -> list[Case]:
    def case(about: Contestant | BlockingContestant, measure: Callable[[Path], float]) -> Case:
        series = Series(workload.key, about.key, report.RATE, title=about.title, durability=about.durability)
        return Case(results.add(series), partial(afresh, directory, measure))

    cases = [case(contestant, partial(_with_loop, contestant, workload, seconds)) for contestant in contestants]
    if workload in BLOCKING:
        cases.append(case(RAW, partial(_without_loop, RAW, BLOCKING[workload], seconds)))
    return cases


def _with_loop(contestant: Contestant, workload: Workload, seconds: float, directory: Path) -> float:
    async def measure() -> float:
        async with contestant.open(directory, workload.boxes) as boxes:
            return await workload.run(boxes, seconds)

    return asyncio.run(measure())


def _without_loop(
    contestant: BlockingContestant, measure: Callable[[BlockingBox, float], float], seconds: float, directory: Path
) -> float:
    with contestant.open(directory, 1) as (box,):
        return measure(box, seconds)


if __name__ == "__main__":
    sys.exit(main())
