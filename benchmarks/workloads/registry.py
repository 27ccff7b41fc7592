"""Queries on agents: each contestant is filled once and answers all questions in interleaved rounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import Options
from benchmarks.contestants.registries.base import Contestant, Population, Registry
from benchmarks.measure import Results, Series
from benchmarks.progress import Progress

RATE = "answers/s"
FEW, MANY = 1_000, 10_000
"""The maximum number of agents of a quick and of a full run."""
NAMED = 100
"""The maximum number of interrupted sessions in a summary of the bus."""
Ask = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Workload:
    """A question about a population of agents."""

    key: str
    title: str
    question: str
    population: Population


def population_of(choice: str) -> str:
    """Return the population of a choice: its questions are measured together, on agents that are filled once."""
    return choice.partition("-")[2] or choice


def measure(
    workloads: Sequence[Workload],
    contestants: Sequence[Contestant],
    seconds: float,
    options: Options,
    directory: Path,
    results: Results,
    progress: Progress,
) -> None:
    max_agents = FEW if options.quick else MANY
    chosen = [one for one in workloads if one.key in options.chosen and one.population.agents <= max_agents]
    populations = list(dict.fromkeys(workload.population for workload in chosen))
    asked = [about for about in contestants if options.wants(about.key)]
    series = {
        (workload.key, about.key): results.add(
            Series(workload.key, about.key, RATE, title=about.title, durability=about.durability)
        )
        for workload in chosen
        for about in asked
    }
    progress.expect(len(populations) * (1 + options.rounds))
    for number, population in enumerate(populations):
        progress.say(f"filling with {population.agents:,} agents")
        home = directory / str(number)
        of_these = [workload for workload in chosen if workload.population == population]

        async def ask(
            home: Path = home, population: Population = population, of_these: Sequence[Workload] = of_these
        ) -> None:
            async with AsyncExitStack() as stack:
                registries: dict[str, Registry] = {}
                for about in asked:
                    opened = about.open(home / about.folder, population)
                    try:
                        registries[about.key] = await stack.enter_async_context(opened)
                    except Exception as error:
                        for workload in of_these:
                            series[workload.key, about.key].failed(error)
                for turn in range(1, options.rounds + 1):
                    progress.say(f"{population.agents:,} agents, round {turn} of {options.rounds}")
                    for workload in of_these:
                        for key, registry in registries.items():
                            question, expected = _question(registry, workload.question, population)
                            figures = series[workload.key, key]
                            if not figures.failure:
                                try:
                                    figures.values.append(await _rate(question, expected, seconds))
                                except Exception as error:
                                    figures.failed(error)

        asyncio.run(ask())


def _question(registry: Registry, question: str, population: Population) -> tuple[Ask, object]:
    """Return the call and its expected answer."""
    middle = population.sessions // 2
    interrupted = population.interrupted()
    questions: dict[str, tuple[Ask, object]] = {
        "lookup": (lambda: registry.lookup(f"agent-{middle}-5"), population.agent_status(middle, 5)),
        "check": (registry.check, False),
        "query": (registry.query, population.running_executors()),
        "summary": (registry.summary, (population.incomplete(), min(interrupted, NAMED))),
        "interrupted": (registry.interrupted, interrupted),
    }
    return questions[question]


async def _rate(ask: Ask, expected: object, seconds: float) -> float:
    done = 0
    started = time.perf_counter()
    while not done or time.perf_counter() - started < seconds:
        if (found := await ask()) != expected:
            raise RuntimeError(f"expected {expected}, found {found}")
        done += 1
    return done / (time.perf_counter() - started)
