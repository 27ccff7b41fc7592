"""Heartbeats: the CPU of an idle bus and of the heartbeats of many agents, over all threads of the process, as a share
of one core."""

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
FIRST_HEARTBEAT = 6.0
"""Seconds until the first heartbeat is over, which costs ten times as much as the later ones."""


def measure(directory: Path, agents: int, seconds: float, results: Results, progress: Progress) -> None:
    """Measure each case; ``seconds`` should be a multiple of the heartbeat interval."""
    cases = (
        ("open", "open", "bus open, no agent", 0, False, 1.0),
        ("beats", "registered", f"{agents:,} agents registered", agents, False, min(seconds, FIRST_HEARTBEAT)),
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
            about = f"{title}: the first {settling:.0f} s, with the first heartbeat"
            results.add(Series("first-beat", key, "ms of CPU, once", [before], title=about))


def checks(results: Results) -> list[Check]:
    return [
        Check(f"{series.title}: CPU of one core", series.median, " %", most=limit)
        for workload, limit in (("beats", 1.0), ("open", 0.5))
        for series in results.of(workload)
    ]


async def _cpu(home: Path, agents: int, waiting: bool, settling: float, seconds: float) -> tuple[float, float]:
    """Return the CPU milliseconds of the first claims and heartbeat, and the share of one core after them."""
    async with _idle_bus(home, agents, waiting):
        started = time.process_time()
        await anyio.sleep(settling)
        cpu, wall = time.process_time(), time.perf_counter()
        await anyio.sleep(seconds)
        return (cpu - started) * 1000, (time.process_time() - cpu) / (time.perf_counter() - wall) * 100


@asynccontextmanager
async def _idle_bus(home: Path, agents: int, waiting: bool) -> AsyncIterator[Bus]:
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
