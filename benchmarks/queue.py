"""The queue benchmark: ``python -m benchmarks.queue``. Tables in Markdown on stdout, progress on stderr."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.command import Options, Suite
from benchmarks.contestants.queues.base import Contestant
from benchmarks.contestants.queues.catalog import available, unavailable
from benchmarks.measure import Case, Results, Series, in_new_directory, interleave
from benchmarks.payload import SIZE
from benchmarks.progress import Progress
from benchmarks.report import RATE, Check, against
from benchmarks.run import main
from benchmarks.workloads import growth, heartbeats, processes
from benchmarks.workloads.lifecycles import BATCH, BATCHES, FUSED, MANY, ONE, TASKS, Workload

T = TypeVar("T")
TIMEOUT = 60.0
IN_ONE = (ONE, MANY, FUSED, BATCHES)
PROCESSES, IDLE, GROWTH, BEATS = "processes", "idle", "growth", "beats"
P50, P99, CPU = "ms, p50", "ms, p99", "% of one core, waiting"
NOTES = (
    f"A lifecycle is send + receive + acknowledge of one message of {SIZE} bytes of JSON. Medians, and the range, of "
    "interleaved rounds, each on a new database.",
    f"Two processes: {TASKS} tasks of one send, the other receives and acknowledges up to {BATCH} at once, where the "
    "contestant supports it; the rate counts received messages.",
    "Idle: one message every 20 ms from another process, from the call of send until the receiver has it. Contestants "
    "that cannot wait poll every millisecond. CPU: of the receiver and the server while no message arrives.",
    "aiosqlite has the same tables, WAL and synchronous=FULL, and one connection for all tasks. Plainly: insert; select"
    " + update; update; each with a commit, an asyncio.Lock around each transaction. Autocommit: one statement per step"
    " (UPDATE … RETURNING for the claim), no lock; the minimum number of thread hops.",
    f"Libraries are called directly, on the loop's own thread; JSON files by {TASKS} tasks in threads.",
    "raw sqlite3 runs our statements on our tables, without encoding, fencing, checks, lock file or wake-ups.",
    "Heartbeats: CPU of the whole process while idle, after the first heartbeat, which costs more and has its own row.",
    "Servers run on loopback and are started for the run. NATS acknowledges without waiting for the server. PostgreSQL"
    " by hand uses our tables; the other process sends NOTIFY after its INSERT.",
)


@dataclass(frozen=True)
class Pace:
    """Durations and sizes; ``slices`` are parts of a round, ``seconds`` is the length of one."""

    seconds: float
    slices: int
    messages: int
    quiet: float
    many: int
    growth_rounds: int
    agents: int
    heartbeat_seconds: float


FULL = Pace(
    seconds=0.5, slices=1, messages=90, quiet=1.2, many=1_000_000, growth_rounds=25, agents=10_000,
    heartbeat_seconds=10.0,
)  # fmt: skip
QUICK = Pace(
    seconds=0.1, slices=1, messages=15, quiet=0.3, many=10_000, growth_rounds=4, agents=1000, heartbeat_seconds=1.0
)
QUICK_AMONG = frozenset({"agentbus", "agentbus-process", "files", "litequeue", "aiosqlite", "redis", "nats", "asyncpg"})
"""The contestants of a quick run that get their own process: starting one takes long."""
SLOW_TO_START = frozenset({"dbos", "procrastinate"})


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    pace = QUICK if options.quick else FULL
    contestants = [one for one in available() if options.wants(one.key)]
    if options.quick and not options.among:
        contestants = [one for one in contestants if one.key not in SLOW_TO_START]
    cases = [
        case
        for workload in IN_ONE
        if workload.key in options.chosen
        for case in _cases(workload.key, contestants, partial(_with_loop, workload, pace.seconds), directory, results)
    ]
    interleave(cases, options.rounds, pace.slices, progress)
    apart = [one for one in contestants if not options.quick or options.among or one.key in QUICK_AMONG]
    if PROCESSES in options.chosen:
        run = partial(_throughput, pace.seconds)
        interleave(_cases(PROCESSES, apart, run, directory, results), options.rounds, 1, progress)
    if IDLE in options.chosen:
        _idle(apart, pace, options.rounds, directory, results, progress)
    if GROWTH in options.chosen:
        databases = directory / GROWTH
        growth.measure(databases, pace.many, pace.growth_rounds, options, results, progress)
        shutil.rmtree(databases)
    if BEATS in options.chosen:
        heartbeats.measure(directory / "heartbeats", pace.agents, pace.heartbeat_seconds, results, progress)
    return {"seconds": pace.seconds, "slices": pace.slices, "left_out": unavailable()}


def _cases(
    workload: str,
    contestants: Sequence[Contestant],
    run: Callable[[Contestant, Path], float],
    directory: Path,
    results: Results,
) -> list[Case]:
    return [
        Case(
            results.add(Series(workload, about.key, RATE, title=about.title, durability=about.durability)),
            partial(in_new_directory, directory, partial(run, about)),
        )
        for about in contestants
        if workload in about.workloads
    ]


def _with_loop(workload: Workload, seconds: float, contestant: Contestant, directory: Path) -> float:
    async def work() -> float:
        async with contestant.open(directory, workload.boxes) as boxes:
            return await workload.run(boxes, seconds)

    return _with_timeout(work())


def _throughput(seconds: float, contestant: Contestant, directory: Path) -> float:
    return _with_timeout(processes.throughput(contestant, directory, seconds))


def _with_timeout(work: Coroutine[Any, Any, T]) -> T:
    """Run the coroutine; a contestant that hangs has failed."""

    async def limited() -> T:
        async with asyncio.timeout(TIMEOUT):
            return await work

    return asyncio.run(limited())


def _idle(
    contestants: Sequence[Contestant], pace: Pace, rounds: int, directory: Path, results: Results, progress: Progress
) -> None:
    """Measure idle receivers; the messages of a run are split over the rounds."""
    waiting = [one for one in contestants if IDLE in one.workloads]
    series = {
        (one.key, unit): results.add(Series(IDLE, one.key, unit, title=one.title, durability=one.durability))
        for unit in (P50, P99, CPU)
        for one in waiting
    }
    latencies: dict[str, list[float]] = {one.key: [] for one in waiting}
    progress.expect(rounds * len(waiting))
    for number in range(1, rounds + 1):
        for one in waiting:
            progress.say(f"round {number} of {rounds}: {IDLE}, {one.key}")

            def run(fresh: Path, one: Contestant = one) -> processes.Idle:
                return _with_timeout(processes.idle(one, fresh, pace.messages // rounds, pace.quiet / rounds))

            if series[one.key, P50].failure:
                continue
            try:
                found = in_new_directory(directory, run)
            except Exception as error:
                for unit in (P50, P99, CPU):
                    series[one.key, unit].failed(error)
                continue
            series[one.key, P50].values.append(found.p50)
            series[one.key, CPU].values.append(found.cpu)
            latencies[one.key] += found.latencies
            series[one.key, P99].values[:] = [processes.p99(latencies[one.key])]


def checks(results: Results) -> list[Check]:
    """Return the targets of which agentbus was measured in this run."""
    ours, unsynced = "agentbus", "agentbus-process"

    def compared(name: str, workload: str, theirs: str, mine: str = ours, unit: str = RATE, **bounds: float) -> None:
        found.extend(against(results, name, workload, mine, theirs, unit, **bounds))

    found: list[Check] = []
    compared("one at a time, against JSON files, fsynced", "one", "files", least=0.9, aim=1.1)
    compared("one at a time, against persist-queue's SQLite queue", "one", "persist-ack", least=1, aim=1.2)
    compared("one at a time, against huey", "one", "huey", aim=0.7)
    compared("one at a time, against aiosqlite used plainly", "one", "aiosqlite", least=2)
    compared(f"{TASKS} tasks, against aiosqlite used plainly", "tasks", "aiosqlite", least=24, aim=30)
    compared(f"{TASKS} tasks, against Redis with fsync", "tasks", "redis", least=2.7, aim=3.5)
    compared(f"batches of {BATCH}, against raw sqlite3 with the same tables", "batches", "raw", least=0.64, aim=0.8)
    compared(f"batches of {BATCH}, against Redis with fsync", "batches", "redis", least=1.5)
    compared("two processes, against Redis with fsync", PROCESSES, "redis", least=1.4)
    compared(
        'idle p50, durability="process", against litequeue (NORMAL) looking every ms', IDLE, "litequeue", unsynced, P50,
        most=1.6, aim=1.2,
    )  # fmt: skip
    compared("idle p50, against Redis with fsync", IDLE, "redis", unit=P50, most=1.4, aim=1.1)
    for key, name in ((ours, "disk"), (unsynced, "process")):
        if (waiting := results.find(IDLE, key, CPU)) is not None:
            found.append(Check(f'idle, durability="{name}": CPU of one core', waiting.median, " %", most=0.5))
    return found + growth.checks(results) + heartbeats.checks(results)


SUITE = Suite(
    name="queue",
    title="Messages",
    about=__doc__ or "",
    choices=[*(workload.key for workload in IN_ONE), PROCESSES, IDLE, GROWTH, BEATS],
    rate=RATE,
    titles={**{workload.key: workload.title for workload in IN_ONE}, PROCESSES: "two processes"},
    notes=lambda: (*NOTES, *unavailable()),
    measure=measure,
    checks=checks,
)


def run(arguments: Sequence[str]) -> int:
    """Run the suite of the engine given by ``--engine``."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--engine", choices=["sqlite", "postgres"], default="sqlite")
    chosen, rest = parser.parse_known_args(arguments)
    if chosen.engine == "postgres":
        from benchmarks import postgres

        return main(postgres.SUITE, rest)
    return main(SUITE, rest)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
