"""Guard against performance regressions: ``python -m benchmarks.guard`` fails if a ratio falls below its floor.

It uses no absolute figures, only ratios of two sides measured next to each other: agentbus, and raw sqlite3 or plain
aiosqlite on the same machine. The best lap of each side counts: other processes can only slow a lap down, and laps are
short enough that some run undisturbed even on a busy machine. A ratio below its floor is measured again until the time
is up. The floors are between a third of the usual value and the value itself, to detect a lost cache, index or group
commit. The benchmarks measure the performance targets.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import agentbus
from benchmarks.contestants.queues.base import Box
from benchmarks.contestants.queues.base import Contestant as Queue
from benchmarks.contestants.queues.bus import DISK
from benchmarks.contestants.queues.plain import PLAIN
from benchmarks.contestants.queues.raw import RAW
from benchmarks.contestants.stores import bus as our_store
from benchmarks.contestants.stores import plain as plain_store
from benchmarks.contestants.stores import raw as raw_store
from benchmarks.contestants.stores.base import Contestant as Store
from benchmarks.machine import database_directory
from benchmarks.measure import in_new_directory
from benchmarks.payload import PAYLOAD
from benchmarks.progress import Progress
from benchmarks.report import table
from benchmarks.telemetry import instructions, messages
from benchmarks.workloads.lifecycles import BATCH, TASKS

SECONDS = 0.1
"""The length of a slice."""
LAPS = 2
"""Minimum number of laps of a slice."""
SLICES = 2
"""Minimum number of slices of each side."""
LIMIT = 18.0
"""Seconds after which a ratio that is still below its floor has failed."""
POINT_READS = 16
"""Point reads of a lap."""

Run = Callable[[Path], float]
"""Measure a slice in a new directory; return the rate of its best lap."""
Lap = Callable[[], Awaitable[object]]


async def _best(lap: Lap, count: int) -> float:
    best, laps = 0.0, 0
    end = time.perf_counter() + SECONDS
    while (started := time.perf_counter()) < end or laps < LAPS:
        await lap()
        best = max(best, count / (time.perf_counter() - started))
        laps += 1
    return best


def _one(contestant: Queue, directory: Path) -> float:
    """Measure one task that handles one message after another."""

    async def work() -> float:
        async with contestant.open(directory, 1) as (box,):
            return await _best(partial(_lifecycle, box), 1)

    return asyncio.run(work())


def _tasks(contestant: Queue, directory: Path) -> float:
    """Measure concurrent tasks, each with its own message."""

    async def work() -> float:
        async with contestant.open(directory, TASKS) as boxes:
            return await _best(lambda: asyncio.gather(*(_lifecycle(box) for box in boxes)), TASKS)

    return asyncio.run(work())


async def _lifecycle(box: Box) -> None:
    await box.send(PAYLOAD)
    await box.ack(await box.receive())


def _batches(contestant: Queue, directory: Path) -> float:
    async def work() -> float:
        async with contestant.open(directory, 1) as (box,):

            async def lap() -> None:
                await box.send_many([PAYLOAD] * BATCH)
                await box.ack_many(await box.receive_many(BATCH, ()))

            return await _best(lap, BATCH)

    return asyncio.run(work())


def _sets(contestant: Store, directory: Path) -> float:
    """Measure concurrent tasks, each with its own key."""

    async def work() -> float:
        async with contestant.open(directory, TASKS) as store:
            keys = [f"key-{number}" for number in range(TASKS)]
            return await _best(lambda: asyncio.gather(*(store.set(key, PAYLOAD) for key in keys)), TASKS)

    return asyncio.run(work())


def _point_reads(question: Callable[[agentbus.Bus, agentbus.Agent], Lap], directory: Path) -> float:
    """Measure one task that repeats a point read of the bus."""

    async def work() -> float:
        async with (
            agentbus.connect(directory / "bus") as bus,
            bus.session("planning", id="planning-1") as session,
            session.agent("agent-0", type="worker") as agent,
        ):
            await agent.state.set("key", PAYLOAD)
            await agent.send("agent-0", "note")
            return await _read_rate(question(bus, agent))

    return asyncio.run(work())


def _gets(contestant: Store, directory: Path) -> float:
    async def work() -> float:
        async with contestant.open(directory, 1) as store:
            await store.fill(["key"], PAYLOAD)
            return await _read_rate(partial(store.get, "key"))

    return asyncio.run(work())


async def _read_rate(ask: Lap) -> float:
    if not await ask():
        raise RuntimeError("the point read returned nothing")

    async def lap() -> None:
        for _ in range(POINT_READS):
            await ask()

    return await _best(lap, POINT_READS)


def _instructions(hooks: bool, directory: Path) -> float:
    """Count the instructions of messages, with the hooks of telemetry, which is off, or without them."""
    return 1 / messages(instructions, directory, hooks=hooks)


SIDES: dict[str, Run] = {
    "one": partial(_one, DISK),
    "one, aiosqlite": partial(_one, PLAIN),
    "tasks": partial(_tasks, DISK),
    "tasks, aiosqlite": partial(_tasks, PLAIN),
    "batches": partial(_batches, DISK),
    "batches, raw": partial(_batches, RAW),
    "sets": partial(_sets, our_store.DISK),
    "sets, aiosqlite": partial(_sets, plain_store.PLAIN),
    "get, aiosqlite": partial(_gets, plain_store.PLAIN),
    "get, raw": partial(_gets, raw_store.RAW),
    "get": partial(_point_reads, lambda _, agent: partial(agent.state.get, "key")),
    "entry": partial(_point_reads, lambda _, agent: partial(agent.state.entry, "key")),
    "agent": partial(_point_reads, lambda bus, _: partial(bus.agents.get, "agent-0")),
    "session": partial(_point_reads, lambda bus, _: partial(bus.sessions.get, "planning-1")),
    "pending": partial(_point_reads, lambda _, agent: agent.pending),
    "hooks": partial(_instructions, True),
    "no hooks": partial(_instructions, False),
}


@dataclass(frozen=True)
class Ratio:
    """The minimum speed of one side, as a multiple of the other."""

    title: str
    ours: str
    theirs: str
    floor: float


RATIOS = (
    Ratio("one at a time, against aiosqlite", "one", "one, aiosqlite", 0.7),
    Ratio("32 tasks, against aiosqlite", "tasks", "tasks, aiosqlite", 8),
    Ratio("batches of 64, against raw sqlite3", "batches", "batches, raw", 0.25),
    Ratio("state set by 32 tasks, against aiosqlite", "sets", "sets, aiosqlite", 5.5),
    Ratio("state get, against aiosqlite", "get", "get, aiosqlite", 4),
    Ratio("state get, against raw sqlite3", "get", "get, raw", 0.25),
    Ratio("state entry, against a raw get", "entry", "get, raw", 0.22),
    Ratio("agent lookup, against a raw get", "agent", "get, raw", 0.2),
    Ratio("session lookup, against a raw get", "session", "get, raw", 0.25),
    Ratio("any message for me, against a raw get", "pending", "get, raw", 0.3),
    # Not a time, but the instructions that the hooks of telemetry add, so that the floor can be close.
    Ratio("telemetry off, against a message without its hooks", "hooks", "no hooks", 0.97),
)


class Guard:
    """Keep the best slice of every side, and compute their ratios."""

    def __init__(self, directory: Path, sides: dict[str, Run]) -> None:
        self._directory = directory
        self._sides = sides
        self.best = dict.fromkeys(sides, 0.0)

    def measure(self, ratios: Sequence[Ratio], progress: Progress, limit: float = LIMIT) -> None:
        """Measure slices of all sides in turn; after the first few only those whose ratio is below its floor."""
        started = time.monotonic()
        number = 0
        while ratios and (number < SLICES or time.monotonic() - started < limit):
            number += 1
            progress.say(f"slice {number}: {len(ratios)} ratios")
            for side in dict.fromkeys(side for ratio in ratios for side in (ratio.ours, ratio.theirs)):
                gc.collect()
                self.best[side] = max(self.best[side], in_new_directory(self._directory, self._sides[side]))
            if number >= SLICES:
                ratios = [ratio for ratio in ratios if self.value(ratio) < ratio.floor]

    def value(self, ratio: Ratio) -> float:
        return self.best[ratio.ours] / self.best[ratio.theirs]


def measure_ratios(ratios: Sequence[Ratio] = RATIOS, *, limit: float = LIMIT) -> dict[Ratio, float]:
    """Return the measured value of each ratio."""
    directory = Path(tempfile.mkdtemp(prefix="agentbus-guard-", dir=database_directory()))
    progress = Progress()
    guard = Guard(directory, SIDES)
    try:
        guard.measure(ratios, progress, limit)
    finally:
        progress.done()
        shutil.rmtree(directory, ignore_errors=True)
    return {ratio: guard.value(ratio) for ratio in ratios}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.guard", description="Fail if agentbus became much slower."
    )
    parser.parse_args(arguments)
    found = measure_ratios()
    rows = [
        (ratio.title, f"{value:.2f}x", f"{ratio.floor:g}x", "" if value >= ratio.floor else "**SLOWER**")
        for ratio, value in found.items()
    ]
    print(table(("ratio, best of several", "measured", "floor", ""), rows))
    if all(value >= ratio.floor for ratio, value in found.items()):
        return 0
    print("A ratio is below its floor. `make bench` has the details; `git bisect run` finds the commit.",
          file=sys.stderr)  # fmt: skip
    return 1


if __name__ == "__main__":
    sys.exit(main())
