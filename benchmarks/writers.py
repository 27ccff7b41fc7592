"""Many processes write at once: ``python -m benchmarks.writers``. Throughput, the longest wait of all, and how fairly
the disk is shared."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import agentbus
from benchmarks.command import Options, Suite
from benchmarks.contestants.queues.plain import INSERT
from benchmarks.contestants.tables import MAX_ATTEMPTS, PRAGMAS, PRIORITY, SENDER, TYPE, database, now, opened
from benchmarks.measure import Results, Series, afresh
from benchmarks.payload import PAYLOAD, TEXT
from benchmarks.progress import Progress
from benchmarks.report import Check
from benchmarks.run import main

RATE = "sends/s"
WAIT, FAIRNESS, ERRORS = "s, longest wait", "Jain's index", "errors: database is locked"
COUNTS = (1, 2, 4, 8, 16, 32, 64)
PATIENCE = 120.0
NOTES = (
    "Each process sends one message after another. The longest wait is that of the unluckiest send of all; Jain's index"
    " is 1 if every process sent as many as every other, and 1/n if one did it all.",
    "sqlite3 with its own busy handler: an INSERT, a commit that is fsynced, and five seconds of patience.",
)
Told = tuple[int, float, int]
"""How many were sent, the longest wait, and how often the database was locked."""


@dataclass(frozen=True)
class Pace:
    rounds: int
    seconds: float


Writer = Callable[[Path, int, Pace, Any], Coroutine[Any, Any, list[Told]]]


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


async def _write_bus(directory: Path, number: int, pace: Pace, barrier: Any) -> list[Told]:
    async with (
        agentbus.connect(directory / "bus", lock_timeout=PATIENCE) as bus,
        bus.agent(f"writer-{number}", type="worker") as agent,
    ):

        async def send() -> None:
            await agent.send("target", "note", PAYLOAD)

        return await _repeat(send, pace, barrier)


def _make_tables(directory: Path) -> None:
    opened(directory, 1).close()


async def _write_sqlite(directory: Path, number: int, pace: Pace, barrier: Any) -> list[Told]:
    with closing(sqlite3.connect(database(directory), isolation_level=None, timeout=5)) as connection:
        for pragma in PRAGMAS:
            connection.execute(pragma)

        async def send() -> None:
            connection.execute(INSERT, (1, SENDER, TYPE, TEXT, 0, PRIORITY, MAX_ATTEMPTS, now()))

        return await _repeat(send, pace, barrier)


async def _repeat(send: Callable[[], Coroutine[Any, Any, None]], pace: Pace, barrier: Any) -> list[Told]:
    """Several rounds by the same processes: to start them takes longer."""
    return [await _round(send, pace.seconds, barrier) for _ in range(pace.rounds)]


async def _round(send: Callable[[], Coroutine[Any, Any, None]], seconds: float, barrier: Any) -> Told:
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


def _child(key: str, directory: Path, number: int, pace: Pace, barrier: Any, answers: Any) -> None:
    # Whoever interrupts the run interrupts the one who waits for this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    (contestant,) = (one for one in CONTESTANTS if one.key == key)
    answers.put(asyncio.run(contestant.write(directory, number, pace, barrier)))


def _together(contestant: Contestant, count: int, pace: Pace, directory: Path) -> list[list[Told]]:
    """What each process tells of each round."""
    contestant.prepare(directory)
    # A server that has everything imported already, and forks: sixty-four interpreters would take long to start.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.writers"])
    barrier, answers = context.Barrier(count), context.Queue()
    children = [
        context.Process(target=_child, args=(contestant.key, directory, number, pace, barrier, answers), daemon=True)
        for number in range(count)
    ]
    for child in children:
        child.start()
    try:
        told = [answers.get(timeout=PATIENCE) for _ in children]
        for child in children:
            child.join(5)
        return told
    finally:
        for child in children:
            child.kill()


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    pace = Pace(options.rounds, 0.3 if options.quick else 0.7)
    counts = [count for count in COUNTS if str(count) in options.chosen and (count <= 8 or not options.quick)]
    chosen = [one for one in CONTESTANTS if options.wants(one.key)]
    progress.expect(len(counts) * len(chosen))
    for count in counts:
        for one in chosen:
            progress.say(f"{one.key}")
            _measure(one, count, pace, directory, results)
    return {"seconds": pace.seconds}


def _measure(about: Contestant, count: int, pace: Pace, directory: Path, results: Results) -> None:
    series = {
        unit: results.add(
            Series(
                str(count), about.key, unit, durability=about.durability,
                title=about.title if unit == RATE else f"{about.title}, {_counted(count)}",
            )
        )
        for unit in (RATE, WAIT, FAIRNESS, ERRORS)
    }  # fmt: skip
    try:
        told = afresh(directory, partial(_together, about, count, pace))
    except Exception as error:
        for one in series.values():
            one.failed(error)
        return
    for of_round in zip(*told, strict=True):
        sent = [one for one, _, _ in of_round]
        jain = sum(sent) ** 2 / (len(sent) * sum(one * one for one in sent)) if any(sent) else 0.0
        series[RATE].values.append(sum(sent) / pace.seconds)
        series[WAIT].values.append(max(wait for _, wait, _ in of_round))
        series[FAIRNESS].values.append(jain)
        series[ERRORS].values.append(float(sum(errors for _, _, errors in of_round)))


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
