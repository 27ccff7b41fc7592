"""Many processes write at once: ``python -m benchmarks.writers``. Throughput, the longest wait of all, and how fairly
the disk is shared."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import agentbus
from benchmarks.command import Options, Suite, main
from benchmarks.contestants.queues.plain import INSERT
from benchmarks.contestants.tables import MAX_ATTEMPTS, PRAGMAS, PRIORITY, SENDER, TYPE, database, now, opened
from benchmarks.measure import Progress, Results, Series, afresh
from benchmarks.payload import PAYLOAD, TEXT
from benchmarks.report import Check

RATE = "sends/s"
WAIT, FAIRNESS, ERRORS = "s, longest wait", "Jain's index", "errors: database is locked"
COUNTS = (1, 2, 4, 8, 16, 32, 64)
PATIENCE = 120.0
NOTES = (
    "Each process sends one message after another. The longest wait is that of the unluckiest send of all; Jain's index"
    " is 1 if every process sent as many as every other, and 1/n if one did it all.",
    "sqlite3 with its own busy handler: an INSERT, a commit that is fsynced, and five seconds of patience.",
)
Writer = Callable[[Path, int, float, Any], Coroutine[Any, Any, tuple[int, float, int]]]


@dataclass(frozen=True)
class Contestant:
    key: str
    title: str
    durability: str
    prepare: Callable[[Path], None]
    write: Writer


def _make_bus(directory: Path) -> None:
    async def make() -> None:
        async with agentbus.connect(directory / "bus") as bus:
            await bus.expect("target", type="worker")

    asyncio.run(make())


async def _write_bus(directory: Path, number: int, seconds: float, barrier: Any) -> tuple[int, float, int]:
    async with (
        agentbus.connect(directory / "bus", lock_timeout=PATIENCE) as bus,
        bus.agent(f"writer-{number}", type="worker") as agent,
    ):

        async def send() -> None:
            await agent.send("target", "note", PAYLOAD)

        return await _repeat(send, seconds, barrier)


def _make_tables(directory: Path) -> None:
    opened(directory, 1).close()


async def _write_sqlite(directory: Path, number: int, seconds: float, barrier: Any) -> tuple[int, float, int]:
    with closing(sqlite3.connect(database(directory), isolation_level=None, timeout=5)) as connection:
        for pragma in PRAGMAS:
            connection.execute(pragma)

        async def send() -> None:
            connection.execute(INSERT, (1, SENDER, TYPE, TEXT, 0, PRIORITY, MAX_ATTEMPTS, now()))

        return await _repeat(send, seconds, barrier)


async def _repeat(
    send: Callable[[], Coroutine[Any, Any, None]], seconds: float, barrier: Any
) -> tuple[int, float, int]:
    """How many were sent, the longest wait, and how often the database was locked."""
    barrier.wait(PATIENCE)
    sent, longest, errors = 0, 0.0, 0
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        try:
            await send()
            sent += 1
        except sqlite3.OperationalError:
            errors += 1
        longest = max(longest, time.perf_counter() - begun)
    # Nobody leaves while others are still being timed: leaving takes the lock, too.
    barrier.wait(PATIENCE)
    return sent, longest, errors


CONTESTANTS = (
    Contestant("agentbus", "agentbus", "disk: a send is fsynced", _make_bus, _write_bus),
    Contestant("sqlite3", "sqlite3, busy handler", "disk: every commit is fsynced", _make_tables, _write_sqlite),
)


def _child(key: str, directory: Path, number: int, seconds: float, barrier: Any, answers: Any) -> None:
    (contestant,) = (one for one in CONTESTANTS if one.key == key)
    answers.put(asyncio.run(contestant.write(directory, number, seconds, barrier)))


def _together(contestant: Contestant, count: int, seconds: float, directory: Path) -> list[tuple[int, float, int]]:
    contestant.prepare(directory)
    # A server that has everything imported already, and forks: sixty-four interpreters would take long to start.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.writers"])
    barrier, answers = context.Barrier(count), context.Queue()
    children = [
        context.Process(target=_child, args=(contestant.key, directory, number, seconds, barrier, answers), daemon=True)
        for number in range(count)
    ]
    for child in children:
        child.start()
    try:
        return [answers.get(timeout=PATIENCE) for _ in children]
    finally:
        for child in children:
            child.join(5)
            child.kill()


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    seconds = 0.3 if options.quick else 2.0
    counts = [count for count in COUNTS if str(count) in options.chosen and (count <= 8 or not options.quick)]
    chosen = [one for one in CONTESTANTS if options.wants(one.key)]
    progress.expect(len(counts) * len(chosen))
    for count in counts:
        for one in chosen:
            progress.say(f"writers: {count} processes, {one.key}")
            told = afresh(directory, lambda fresh, one=one, count=count: _together(one, count, seconds, fresh))  # type: ignore[misc]
            _tell(results, one, count, told, seconds)
    return {"seconds": seconds}


def _tell(
    results: Results, about: Contestant, count: int, told: Sequence[tuple[int, float, int]], seconds: float
) -> None:
    sent = [one for one, _, _ in told]
    jain = sum(sent) ** 2 / (len(sent) * sum(one * one for one in sent)) if any(sent) else 0.0
    figures = {
        RATE: sum(sent) / seconds,
        WAIT: max(wait for _, wait, _ in told),
        FAIRNESS: jain,
        ERRORS: float(sum(errors for _, _, errors in told)),
    }
    for unit, value in figures.items():
        title = about.title if unit == RATE else f"{about.title}, {_counted(count)}"
        series = Series(str(count), about.key, unit, title=title, durability=about.durability)
        results.add(series).values.append(value)


def _counted(count: int) -> str:
    return f"{count} processes" if count > 1 else "1 process"


def checks(results: Results) -> list[Check]:
    return []


SUITE = Suite(
    name="writers",
    title="Many processes write",
    about=__doc__ or "",
    choices=[str(count) for count in COUNTS],
    rate=RATE,
    titles={str(count): _counted(count) for count in COUNTS},
    notes=lambda: NOTES,
    measure=measure,
    checks=checks,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
