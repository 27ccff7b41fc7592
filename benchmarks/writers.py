"""The benchmark of concurrent writers: ``python -m benchmarks.writers``. Throughput, longest wait and fairness."""

from __future__ import annotations

import asyncio
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
from benchmarks.contestants.tables import MAX_ATTEMPTS, PRAGMAS, PRIORITY, SENDER, TYPE, create_database, database, now
from benchmarks.measure import Results, Series, in_new_directory
from benchmarks.payload import PAYLOAD, TEXT
from benchmarks.progress import Progress
from benchmarks.report import Check
from benchmarks.run import main
from benchmarks.workloads.fleet import TIMEOUT, Meet, fleet

RATE = "sends/s"
WAIT, FAIRNESS, ERRORS = "s, longest wait", "Jain's index", "errors: database is locked"
COUNTS = (1, 2, 4, 8, 16, 32, 64)
NOTES = (
    "Each process sends one message after another. The longest wait is the maximum over all sends. Jain's index is "
    "1 if all processes sent equally often, and 1/n if one sent everything.",
    "sqlite3 with its own busy handler: an INSERT, a commit that is fsynced, and a busy timeout of five seconds.",
)
RoundResult = tuple[int, float, int]
"""The number of sends, the longest wait, and the number of "database is locked" errors."""


@dataclass(frozen=True)
class Pace:
    rounds: int
    seconds: float


Writer = Callable[[Path, int, Pace, Meet], Coroutine[Any, Any, list[RoundResult]]]


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


async def _write_bus(directory: Path, number: int, pace: Pace, meet: Meet) -> list[RoundResult]:
    async with (
        agentbus.connect(directory / "bus", lock_timeout=TIMEOUT) as bus,
        bus.agent(f"writer-{number}", type="worker") as agent,
    ):

        async def send() -> None:
            await agent.send("target", "note", PAYLOAD)

        return await _repeat(send, pace, meet)


def _make_tables(directory: Path) -> None:
    create_database(directory, 1).close()


async def _write_sqlite(directory: Path, number: int, pace: Pace, meet: Meet) -> list[RoundResult]:
    with closing(sqlite3.connect(database(directory), isolation_level=None, timeout=5)) as connection:
        for pragma in PRAGMAS:
            connection.execute(pragma)

        async def send() -> None:
            connection.execute(INSERT, (1, SENDER, TYPE, TEXT, 0, PRIORITY, MAX_ATTEMPTS, now()))

        return await _repeat(send, pace, meet)


async def _repeat(send: Callable[[], Coroutine[Any, Any, None]], pace: Pace, meet: Meet) -> list[RoundResult]:
    """Run several rounds in the same processes, which take longer to start than a round."""
    return [await _round(send, pace.seconds, meet) for _ in range(pace.rounds)]


async def _round(send: Callable[[], Coroutine[Any, Any, None]], seconds: float, meet: Meet) -> RoundResult:
    await meet()
    sent, longest, errors = 0, 0.0, 0
    end = time.perf_counter() + seconds
    while (started := time.perf_counter()) < end:
        try:
            await send()
            sent += 1
        except sqlite3.OperationalError:
            errors += 1
        longest = max(longest, time.perf_counter() - started)
    # No process leaves while others are being timed: leaving takes the lock, too.
    await meet()
    return sent, longest, errors


CONTESTANTS = (
    Contestant("agentbus", "agentbus", "disk: a send is fsynced", _make_bus, _write_bus),
    Contestant("sqlite3", "sqlite3, busy handler", "disk: every commit is fsynced", _make_tables, _write_sqlite),
)


async def _write(number: int, meet: Meet, key: str, directory: Path, pace: Pace) -> list[RoundResult]:
    (contestant,) = (one for one in CONTESTANTS if one.key == key)
    return await contestant.write(directory, number, pace, meet)


def _run_processes(contestant: Contestant, count: int, pace: Pace, directory: Path) -> list[list[RoundResult]]:
    """Return the results of each process and round."""
    contestant.prepare(directory)
    with fleet(_write, count, contestant.key, directory, pace) as writers:
        for _ in range(2 * pace.rounds):
            writers.meet()
        return writers.answers()


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    pace = Pace(options.rounds, 0.3 if options.quick else 0.7)
    counts = [count for count in COUNTS if str(count) in options.chosen and (count <= 8 or not options.quick)]
    chosen = [one for one in CONTESTANTS if options.wants(one.key)]
    progress.expect(len(counts) * len(chosen))
    for count in counts:
        for one in chosen:
            progress.say(f"{one.key}")
            measure_count(one, count, pace, directory, results)
    return {"seconds": pace.seconds}


def measure_count(about: Contestant, count: int, pace: Pace, directory: Path, results: Results) -> list[Series]:
    """Measure one contestant with ``count`` processes; return its series."""
    series = {
        unit: results.add(
            Series(
                str(count), about.key, unit, durability=about.durability,
                title=about.title if unit == RATE else f"{about.title}, {counted(count)}",
            )
        )
        for unit in (RATE, WAIT, FAIRNESS, ERRORS)
    }  # fmt: skip
    try:
        rounds = in_new_directory(directory, partial(_run_processes, about, count, pace))
    except Exception as error:
        for one in series.values():
            one.failed(error)
        return [*series.values()]
    for of_round in zip(*rounds, strict=True):
        sent = [one for one, _, _ in of_round]
        jain = sum(sent) ** 2 / (len(sent) * sum(one * one for one in sent)) if any(sent) else 0.0
        series[RATE].values.append(sum(sent) / pace.seconds)
        series[WAIT].values.append(max(wait for _, wait, _ in of_round))
        series[FAIRNESS].values.append(jain)
        series[ERRORS].values.append(float(sum(errors for _, _, errors in of_round)))
    return [*series.values()]


def counted(count: int) -> str:
    return f"{count} processes" if count > 1 else "1 process"


def checks(results: Results) -> list[Check]:
    return []


SUITE = Suite(
    name="writers",
    title="Many processes write",
    about=__doc__ or "",
    choices=[str(count) for count in COUNTS],
    rate=RATE,
    titles={str(count): counted(count) for count in COUNTS},
    notes=lambda: NOTES,
    measure=measure,
    checks=checks,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
