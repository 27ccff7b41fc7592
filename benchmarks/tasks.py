"""The benchmark of durable tasks: ``python -m benchmarks.tasks``. Tables in Markdown on stdout, progress on stderr."""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.command import Options, Suite
from benchmarks.contestants.workflows import EVERYONE, INSTALLED, Contestant, Step
from benchmarks.measure import Case, Results, Series, afresh, interleave
from benchmarks.payload import SIZE
from benchmarks.progress import Progress
from benchmarks.report import Check, against
from benchmarks.run import main
from benchmarks.workloads.lifecycles import TASKS

RATE = "steps/s"
FINISHED, FEW_FINISHED = 1000, 100
"""Steps of a task that is resumed, and if it is to be quick."""
STEPS, ONE, RESUME = "steps", "one", "resume"
TITLES = {STEPS: f"{TASKS} tasks", ONE: "one task"}
NOTES = (
    f"A step that does nothing and returns {SIZE} bytes of JSON, one after the other in each task. Medians, and the "
    "range, of interleaved rounds, each on a new database.",
    "Resuming: a task with so many finished steps, from the call until it has come to their end again; none is "
    "executed. DBOS is measured inside of the workflow only, without the queue that resumes it.",
    *(() if INSTALLED else ("DBOS is not installed here, and was left out.",)),
)


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    seconds, slices = (0.3, 1) if options.quick else (0.7, 1)
    cases: list[Case] = []
    for workload, count in ((STEPS, TASKS), (ONE, 1)):
        if workload in options.chosen:
            for about in (one for one in EVERYONE if options.wants(one.key)):
                series = Series(workload, about.key, RATE, title=about.title, durability=about.durability)
                run = partial(afresh, directory, partial(_rate, about, count, seconds))
                cases.append(Case(results.add(series), run))
    if RESUME in options.chosen:
        steps = FEW_FINISHED if options.quick else FINISHED
        for about in (one for one in EVERYONE if options.wants(one.key)):
            series = Series(RESUME, about.key, "ms", title=f"resuming {steps:,} finished steps: {about.title}")
            cases.append(Case(results.add(series), partial(afresh, directory, partial(_resume, about, steps))))
    interleave(cases, options.rounds, slices, progress)
    return {"seconds": seconds, "slices": slices}


def checks(results: Results) -> list[Check]:
    """Every promise of which both sides were measured in this run."""
    return against(results, f"{TASKS} tasks, steps against DBOS on SQLite", STEPS, "agentbus", "dbos", least=20)


def _rate(contestant: Contestant, tasks: int, seconds: float, directory: Path) -> float:
    async def work() -> float:
        arrived: asyncio.Queue[None] = asyncio.Queue()
        ended: asyncio.Queue[int] = asyncio.Queue()
        go = asyncio.Event()

        async def body(step: Step) -> None:
            await step()
            arrived.put_nowait(None)
            await go.wait()
            done = 0
            while time.perf_counter() < end:
                await step()
                done += 1
            ended.put_nowait(done)

        async with contestant.open(directory, body) as runner:
            for number in range(tasks):
                await runner.start(f"t{number}")
            for _ in range(tasks):
                await arrived.get()
            begun = time.perf_counter()
            end = begun + seconds
            go.set()
            done = sum([await ended.get() for _ in range(tasks)])
            return done / (time.perf_counter() - begun)

    return asyncio.run(work())


def _resume(contestant: Contestant, steps: int, directory: Path) -> float:
    """Milliseconds."""

    async def work() -> float:
        times: asyncio.Queue[tuple[float, float]] = asyncio.Queue()
        stay = asyncio.Event()

        async def body(step: Step) -> None:
            begun = time.perf_counter()
            for _ in range(steps):
                await step()
            times.put_nowait((begun, time.perf_counter()))
            if contestant.key.startswith("agentbus"):
                await stay.wait()

        async with contestant.open(directory, body) as runner:
            await runner.start("t")
            await times.get()
            called = time.perf_counter()
            await runner.again("t")
            begun, reached = await times.get()
            return 1000 * (reached - (called if contestant.key.startswith("agentbus") else begun))

    return asyncio.run(work())


SUITE = Suite(
    name="tasks",
    title="Durable tasks",
    about=__doc__ or "",
    choices=[STEPS, ONE, RESUME],
    rate=RATE,
    titles=TITLES,
    notes=lambda: NOTES,
    measure=measure,
    checks=checks,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
