"""The recovery benchmark: ``python -m benchmarks.recovery``. Tables in Markdown on stdout, progress on stderr."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.command import Options, Suite, main
from benchmarks.contestants.registries.base import Contestant, Population, Registry
from benchmarks.contestants.registries.bus import BUS
from benchmarks.contestants.registries.files import FAST_FILES, FILES
from benchmarks.measure import Case, Progress, Results, Series, afresh, interleave
from benchmarks.report import Check
from benchmarks.workloads import sweep

RATE = "answers/s"
SIZES = (100, 1_000, 10_000)
CONTESTANTS: tuple[Contestant, ...] = (BUS, FILES, FAST_FILES)
NOTES = (
    "Agents in sessions of ten. One session in ten is open, and half of those were interrupted; the others are "
    "history, unless all sessions are open. Every answer is compared with what is known to be there.",
    "A summary counts incomplete agents by status, type and session, and interrupted sessions; it knows the oldest "
    "agent and the size. That of the bus also names dead holders, and tells the time to recovery from the audit trail.",
    "The bus answers by what was cut off, files by all there ever was: the more history, the larger the ratio.",
    "The files are in the page cache. One that is opened by its name is read faster than the bus answers.",
    sweep.NOTE,
)


@dataclass(frozen=True)
class Workload:
    """One question, asked of so many agents."""

    key: str
    title: str
    question: str
    population: Population


WORKLOADS = (
    *(Workload(f"summary-{size}", f"summary, {size:,} agents", "summary", Population(size)) for size in SIZES),
    Workload("summary-1000-open", "summary, 1,000 agents, all sessions open", "summary", Population(1_000, 1)),
    *(
        Workload(f"interrupted-{size}", f"interrupted sessions, {size:,} agents", "interrupted", Population(size))
        for size in SIZES
    ),
)


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    seconds, slices = (0.05, 1) if options.quick else (0.4, 1)
    cases = [
        Case(
            results.add(Series(workload.key, about.key, RATE, title=about.title, durability=about.durability)),
            partial(afresh, directory, partial(_ask, about, workload, seconds)),
        )
        for workload in WORKLOADS
        if workload.key in options.chosen
        for about in CONTESTANTS
        if options.wants(about.key)
    ]
    interleave(cases, options.rounds, slices, progress)
    return {"seconds": seconds, "slices": slices, **sweep.measure(options, directory, results, progress)}


def checks(results: Results) -> list[Check]:
    """Every promise of which both sides were measured in this run."""
    found: list[Check] = []
    for key in ("summary-1000", "interrupted-1000"):
        value = results.ratio(key, "agentbus", "files")
        if value is not None:
            title = next(workload.title for workload in WORKLOADS if workload.key == key)
            found.append(Check(f"{title}: against a JSON file for each", value, "x", least=50))
    return found + sweep.checks(results)


def _ask(contestant: Contestant, workload: Workload, seconds: float, directory: Path) -> float:
    async def work() -> float:
        population = workload.population
        async with contestant.open(directory, population) as registry:
            interrupted = population.interrupted()
            # A summary of the bus names a hundred sessions at most.
            named = min(interrupted, 100)
            expected = (population.incomplete(), named) if workload.question == "summary" else interrupted
            await _answer(registry, workload.question, expected)
            done = 0
            begun = time.perf_counter()
            while time.perf_counter() - begun < seconds:
                await _answer(registry, workload.question, expected)
                done += 1
            return done / (time.perf_counter() - begun)

    return asyncio.run(work())


async def _answer(registry: Registry, question: str, expected: int | tuple[int, int]) -> None:
    found = await registry.summary() if question == "summary" else await registry.interrupted()
    if found != expected:
        raise RuntimeError(f"{found} were found, {expected} are there")


SUITE = Suite(
    name="recovery",
    title="What was cut off",
    about=__doc__ or "",
    choices=[*(workload.key for workload in WORKLOADS), *sweep.CHOICES],
    rate=RATE,
    titles={workload.key: workload.title for workload in WORKLOADS},
    notes=lambda: NOTES,
    measure=measure,
    checks=checks,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
