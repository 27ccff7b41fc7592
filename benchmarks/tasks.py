"""The task benchmark: ``python -m benchmarks.tasks``. Tables in Markdown on stdout, progress on stderr."""

from __future__ import annotations

import asyncio
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.command import Options, Suite
from benchmarks.contestants.workflows import CONTESTANTS, INSTALLED, Contestant, Step
from benchmarks.measure import Case, Results, Series, in_new_directory, interleave
from benchmarks.payload import SIZE
from benchmarks.progress import Progress
from benchmarks.report import Check, against
from benchmarks.run import main
from benchmarks.workloads.lifecycles import TASKS

RATE = "steps/s"
FINISHED, FEW_FINISHED = 1000, 100
"""Steps of the resumed task, in a full and in a quick run."""
STEPS, ONE, RESUME = "steps", "one", "resume"
TITLES = {STEPS: f"{TASKS} tasks", ONE: "one task"}
NOTES = (
    f"A step that does nothing and returns {SIZE} bytes of JSON, one after the other in each task. Medians, and the "
    "range, of interleaved rounds, each on a new database.",
    "Resuming: from the call until the workflow has passed its last finished step again; no step is executed. DBOS is "
    "measured inside the workflow only, without the queue that resumes it.",
    *(() if INSTALLED else ("DBOS is not installed here, and was left out.",)),
)


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    seconds, slices = (0.3, 1) if options.quick else (0.7, 1)
    cases: list[Case] = []
    for workload, count in ((STEPS, TASKS), (ONE, 1)):
        if workload in options.chosen:
            for about in (one for one in CONTESTANTS if options.wants(one.key)):
                series = Series(workload, about.key, RATE, title=about.title, durability=about.durability)
                run = partial(in_new_directory, directory, partial(_rate, about, count, seconds))
                cases.append(Case(results.add(series), run))
    if RESUME in options.chosen:
        steps = FEW_FINISHED if options.quick else FINISHED
        for about in (one for one in CONTESTANTS if options.wants(one.key)):
            series = Series(RESUME, about.key, "ms", title=f"resuming {steps:,} finished steps: {about.title}")
            cases.append(
                Case(results.add(series), partial(in_new_directory, directory, partial(_resume, about, steps)))
            )
    interleave(cases, options.rounds, slices, progress)
    return {"seconds": seconds, "slices": slices}


def checks(results: Results) -> list[Check]:
    """Return the targets whose sides were both measured in this run."""
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
            started = time.perf_counter()
            end = started + seconds
            go.set()
            done = sum([await ended.get() for _ in range(tasks)])
            return done / (time.perf_counter() - started)

    return asyncio.run(work())


def _resume(contestant: Contestant, steps: int, directory: Path) -> float:
    """Return the milliseconds until a resumed task has passed its finished steps."""

    async def work() -> float:
        times: asyncio.Queue[tuple[float, float]] = asyncio.Queue()
        stay = asyncio.Event()

        async def body(step: Step) -> None:
            started = time.perf_counter()
            for _ in range(steps):
                await step()
            times.put_nowait((started, time.perf_counter()))
            if contestant.key.startswith("agentbus"):
                await stay.wait()

        async with contestant.open(directory, body) as runner:
            await runner.start("t")
            await times.get()
            called = time.perf_counter()
            await runner.replay("t")
            started, reached = await times.get()
            return 1000 * (reached - (called if contestant.key.startswith("agentbus") else started))

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
