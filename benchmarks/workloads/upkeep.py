"""Upkeep: what a bus costs while nothing happens, and what the beats of many agents cost. CPU time of the whole
process, all threads, as a share of one core."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

import agentbus
from agentbus import Agent, Bus
from benchmarks.measure import Results, Series
from benchmarks.progress import Progress
from benchmarks.report import Check

WAITING = 1000
UNIT = "% of one core"
FIRST_BEAT = 6.0
"""Seconds after which the first beat is over, which costs ten times as much as those that follow."""


def measure(directory: Path, agents: int, seconds: float, results: Results, progress: Progress) -> None:
    """``seconds`` should be a multiple of the time between beats, so that each window has its share of them."""
    cases = (
        ("open", "open", "bus open, no agent", 0, False, 1.0),
        ("beats", "registered", f"{agents:,} agents registered", agents, False, min(seconds, FIRST_BEAT)),
        ("beats", "waiting", f"{WAITING:,} agents, each waiting for a message", WAITING, True, 1.0),
    )
    progress.expect(len(cases))
    for workload, key, title, count, waiting, settling in cases:
        progress.say(f"{workload}: {title}, for {seconds:.0f} s")
        series = results.add(Series(workload, key, UNIT, title=title))
        home = directory / f"{workload}-{key}"
        before, share = asyncio.run(_cpu(home, count, waiting, settling, seconds))
        series.values.append(share)
        if key == "registered":
            about = f"{title}: the first {settling:.0f} s, with the first beat"
            results.add(Series("first-beat", key, "ms of CPU, once", [before], title=about))


def checks(results: Results) -> list[Check]:
    return [
        Check(f"{series.title}: CPU of one core", series.median, " %", most=most)
        for workload, most in (("beats", 1.0), ("open", 0.5))
        for series in results.of(workload)
    ]


async def _cpu(home: Path, agents: int, waiting: bool, settling: float, seconds: float) -> tuple[float, float]:
    """Milliseconds until the first claims and the first beat are over, and the share from then on."""
    async with _busy_doing_nothing(home, agents, waiting):
        begun = time.process_time()
        await anyio.sleep(settling)
        cpu, wall = time.process_time(), time.perf_counter()
        await anyio.sleep(seconds)
        return (cpu - begun) * 1000, (time.process_time() - cpu) / (time.perf_counter() - wall) * 100


@asynccontextmanager
async def _busy_doing_nothing(home: Path, agents: int, waiting: bool) -> AsyncIterator[Bus]:
    async with agentbus.connect(home) as bus, anyio.create_task_group() as tasks:
        registered: list[Agent] = []

        async def register(number: int) -> None:
            registered.append(await bus.register(f"agent-{number}", type="worker"))

        async with anyio.create_task_group() as registering:
            for number in range(agents):
                registering.start_soon(register, number)
        if waiting:
            for agent in registered:
                tasks.start_soon(agent.receive)
        yield bus
        tasks.cancel_scope.cancel()
