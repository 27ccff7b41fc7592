"""The registry benchmark: ``python -m benchmarks.registry``. Tables in Markdown on stdout, progress on stderr."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.command import Options, Suite, main
from benchmarks.contestants.registries.base import Contestant, Population, Registry
from benchmarks.contestants.registries.bus import READ_BUS
from benchmarks.contestants.registries.files import FAST_FILES, FILES, NAMED_FILES
from benchmarks.measure import Progress, Results, Series
from benchmarks.report import Check

RATE = "answers/s"
SIZES = (100, 1_000, 10_000)
CONTESTANTS: tuple[Contestant, ...] = (READ_BUS, FILES, FAST_FILES, NAMED_FILES)
QUESTIONS = {"lookup": "one agent", "check": "any message for me", "query": "the running executors"}
NOTES = (
    "So many agents, with a message waiting for each of them, and one who asks and has none. Every answer is compared "
    "with what is known to be there.",
    "Files: whoever asks scans the directory and parses every file; or opens the right one by its name, and looks into "
    "a directory of messages of their own. All files are in the page cache.",
    "Files that are opened by name are as fast as the bus, or faster: what they cannot do is answer across agents.",
)
Ask = Callable[[], Awaitable[object]]


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    seconds = 0.02 if options.quick else 0.2
    chosen = [size for size in SIZES if any(f"{question}-{size}" in options.chosen for question in QUESTIONS)]
    progress.expect(len(chosen) * (1 + options.rounds))
    for size in chosen:
        place = directory / str(size)
        asyncio.run(_measure(options, size, seconds, place, results, progress))
    return {"seconds": seconds}


async def _measure(
    options: Options, size: int, seconds: float, directory: Path, results: Results, progress: Progress
) -> None:
    population = Population(size)
    progress.say(f"registry: filling with {size:,} agents")
    async with AsyncExitStack() as stack:
        registries: list[tuple[Contestant, Registry]] = []
        for about in CONTESTANTS:
            if options.wants(about.key):
                place = directory / about.key
                place.mkdir(parents=True)
                registries.append((about, await stack.enter_async_context(about.open(place, population))))
        cases: list[tuple[Series, Ask, object]] = []
        for question in QUESTIONS:
            if f"{question}-{size}" in options.chosen:
                for about, registry in registries:
                    series = Series(
                        f"{question}-{size}", about.key, RATE, title=about.title, durability=about.durability
                    )
                    cases.append((results.add(series), *_question(registry, question, population)))
        for number in range(1, options.rounds + 1):
            progress.say(f"registry: {size:,} agents, round {number} of {options.rounds}")
            for series, ask, expected in cases:
                series.values.append(await _rate(ask, expected, seconds))


def _question(registry: Registry, question: str, population: Population) -> tuple[Ask, object]:
    session = population.sessions // 2
    if question == "lookup":
        return lambda: registry.lookup(f"agent-{session}-5"), population.agent_status(session, 5)
    if question == "check":
        return registry.check, False
    return registry.query, population.running_executors()


async def _rate(ask: Ask, expected: object, seconds: float) -> float:
    done = 0
    begun = time.perf_counter()
    while not done or time.perf_counter() - begun < seconds:
        if (found := await ask()) != expected:
            raise RuntimeError(f"{found} was found, {expected} is there")
        done += 1
    return done / (time.perf_counter() - begun)


def checks(results: Results) -> list[Check]:
    return []


SUITE = Suite(
    name="registry",
    title="The registry",
    about=__doc__ or "",
    choices=[f"{question}-{size}" for question in QUESTIONS for size in SIZES],
    rate=RATE,
    titles={f"{key}-{size}": f"{title}, {size:,}" for key, title in QUESTIONS.items() for size in SIZES},
    notes=lambda: NOTES,
    measure=measure,
    checks=checks,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
