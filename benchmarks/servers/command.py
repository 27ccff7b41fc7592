"""``python -m benchmarks.queue --engine postgres``: the same workloads on a server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.command import Command, Options
from benchmarks.contestants.base import Contestant
from benchmarks.measure import Case, Progress, Results, Series, afresh, interleave
from benchmarks.servers import depth, waking
from benchmarks.servers.contestants import contestants
from benchmarks.workloads import BATCH, BATCHES, FUSED, MANY, ONE, SIZE, TASKS, Workload

WORKLOADS = (ONE, MANY, FUSED, BATCHES)
NOTES = (
    f"A lifecycle is send + receive + acknowledge of one message of {SIZE} bytes of JSON. Medians, and the range, of "
    "interleaved rounds, all on one server with fsync, each in a schema of its own.",
    "asyncpg has the same tables and a connection for each task: one statement, and one transaction, for each step.",
    "procrastinate runs one worker with as many jobs at once as there are tasks; a job's function returns when it is"
    " acknowledged.",
)


def main(arguments: Sequence[str] | None) -> int:
    command = Command(
        name="queue --engine postgres",
        about=__doc__ or "",
        choices=[*(workload.key for workload in WORKLOADS), "wake", "growth"],
        quick="about a minute; rougher, and 100,000 rows for a million",
        rate=report.RATE,
        titles={workload.key: workload.title for workload in WORKLOADS},
        notes=NOTES,
    )
    return command.run(arguments, _measure, _checks)


def _measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    seconds, slices = (0.5, 2) if options.quick else (1.0, 5)
    cases = [
        case
        for workload in WORKLOADS
        if workload.key in options.chosen
        for case in _cases(workload, seconds, directory, results)
    ]
    interleave(cases, options.rounds, slices, progress)
    if "wake" in options.chosen:
        waking.measure(options.rounds, 50 if options.quick else 200, results, progress)
    if "growth" in options.chosen:
        depth.measure(100_000 if options.quick else 1_000_000, 10 if options.quick else 30, results, progress)
    return {"seconds": seconds, "slices": slices}


def _cases(workload: Workload, seconds: float, directory: Path, results: Results) -> list[Case]:
    found: list[Case] = []
    for contestant in contestants():
        if workload is FUSED and contestant.key != "agentbus":
            continue
        if workload is BATCHES and contestant.key == "procrastinate":
            continue
        series = Series(
            workload.key, contestant.key, report.RATE, title=contestant.title, durability=contestant.durability
        )  # fmt: skip
        run = partial(afresh, directory, partial(_run, contestant, workload, seconds))
        found.append(Case(results.add(series), run))
    return found


def _run(contestant: Contestant, workload: Workload, seconds: float, directory: Path) -> float:
    async def measure() -> float:
        async with contestant.open(directory, workload.boxes) as boxes:
            return await workload.run(boxes, seconds)

    return asyncio.run(measure())


def _checks(results: Results) -> list[report.Check]:
    """Every promise of which both sides were measured in this run."""
    found: list[report.Check] = []
    for other in ("asyncpg", "procrastinate"):
        ratio = results.ratio("tasks", "agentbus", other)
        if ratio is not None:
            found.append(report.Check(f"{TASKS} tasks, against {other}", ratio, "x", least=3))
        wake = results.ratio("wake", "agentbus", other)
        if wake is not None:
            found.append(report.Check(f"idle wake-up p50, against {other}", wake, "x", most=1.0))
    for workload, how in (("growth", f"{BATCH} at once"), ("growth-single", "one by one")):
        for key in ("queued", "finished"):
            series = results.find(workload, key)
            ratio = results.ratio_of_medians(workload, key, "few")
            if series is not None and ratio is not None:
                name = f"claim + ack {how}: {series.title}, against few"
                found.append(report.Check(name, ratio, "x", most=1.3))
    return found
