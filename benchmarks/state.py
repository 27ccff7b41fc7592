"""The state benchmark: ``python -m benchmarks.state``. Tables in Markdown on stdout, progress on stderr."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks import snapshots
from benchmarks.command import Command, Options
from benchmarks.measure import Case, Progress, Results, Series, afresh, interleave
from benchmarks.report import Check
from benchmarks.stores.base import BlockingStore, Contestant, Store
from benchmarks.stores.bus import DISK, PROCESS
from benchmarks.stores.cache import DISKCACHE, INSTALLED
from benchmarks.stores.files import FILES
from benchmarks.stores.plain import HASTY, PLAIN
from benchmarks.stores.raw import RAW
from benchmarks.workloads import PAYLOAD, SIZE, TASKS, TEXT

RATE = "operations/s"
KEYS = 1024
CONTESTANTS: tuple[Contestant, ...] = (DISK, PROCESS, PLAIN, HASTY, FILES, *((DISKCACHE,) if INSTALLED else ()))
NOTES = (
    f"{KEYS:,} entries of {SIZE} bytes of JSON; a compare-and-set knows the version from the one before. Medians, and "
    "the range, of interleaved rounds, each on a new store.",
    "aiosqlite has the same tables, WAL and synchronous=FULL, and one connection for all tasks. Plainly: execute + "
    "fetchone in a block that closes the cursor; execute + commit, an asyncio.Lock around both. Fewest hops: cursors "
    "are not closed, which pins the log; no lock, so that tasks happen to share commits, and failures.",
    f"A get by one of {TASKS} tasks has no floor: aiosqlite's hops overlap there, and raw sqlite3 itself is only 6 to "
    "11 times as fast.",
    f"JSON files and diskcache are called plainly by one task, in threads by {TASKS}.",
    "raw sqlite3 runs our statements on our tables, without JSON, checks, lock file or wake-ups.",
    *(() if INSTALLED else ("diskcache is not installed here, and was left out.",)),
)


async def _get(store: Store, keys: Sequence[str], end: float) -> int:
    done = 0
    for key in cycle(keys):
        await store.get(key)
        done += 1
        if time.perf_counter() >= end:
            break
    return done


async def _set(store: Store, keys: Sequence[str], end: float) -> int:
    done = 0
    for key in cycle(keys):
        await store.set(key, PAYLOAD)
        done += 1
        if time.perf_counter() >= end:
            break
    return done


async def _compare_and_set(store: Store, keys: Sequence[str], end: float) -> int:
    versions = dict.fromkeys(keys, 1)
    done = 0
    for key in cycle(keys):
        versions[key] = await store.compare_and_set(key, PAYLOAD, versions[key])
        done += 1
        if time.perf_counter() >= end:
            break
    return done


def _getting(store: BlockingStore) -> Callable[[str], object]:
    return store.get


def _setting(store: BlockingStore) -> Callable[[str], object]:
    return lambda key: store.set(key, TEXT)


def _comparing(store: BlockingStore) -> Callable[[str], object]:
    versions: dict[str, int] = {}

    def step(key: str) -> None:
        versions[key] = store.compare_and_set(key, TEXT, versions.get(key, 1))

    return step


@dataclass(frozen=True)
class Workload:
    """One way to use a store, by so many tasks, each with keys of its own."""

    key: str
    title: str
    tasks: int
    work: Callable[[Store, Sequence[str], float], Awaitable[int]]
    alone: Callable[[BlockingStore], Callable[[str], object]]
    """One step of the same without an event loop."""


WORKLOADS = (
    Workload("get", "get, one task", 1, _get, _getting),
    Workload("get-tasks", f"get, {TASKS} tasks", TASKS, _get, _getting),
    Workload("set", "set, one task", 1, _set, _setting),
    Workload("set-tasks", f"set, {TASKS} tasks", TASKS, _set, _setting),
    Workload("cas", "compare-and-set, one task", 1, _compare_and_set, _comparing),
    Workload("cas-tasks", f"compare-and-set, {TASKS} tasks", TASKS, _compare_and_set, _comparing),
)


def main(arguments: Sequence[str] | None = None) -> int:
    command = Command(
        name="state",
        about=__doc__ or "",
        choices=[*(workload.key for workload in WORKLOADS), snapshots.KEY],
        quick="about half a minute; rougher",
        rate=RATE,
        titles={workload.key: workload.title for workload in WORKLOADS},
        notes=NOTES,
    )
    return command.run(arguments, measure, checks)


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    seconds, slices = (0.2, 1) if options.quick else (0.4, 4)
    cases = [
        case
        for workload in WORKLOADS
        if workload.key in options.chosen
        for case in _cases(workload, seconds, directory, results)
    ]
    interleave(cases, options.rounds, slices, progress)
    if snapshots.KEY in options.chosen:
        snapshots.measure(directory, 5 if options.quick else 20, results, progress)
    return {"seconds": seconds, "slices": slices}


def checks(results: Results) -> list[Check]:
    """Every promise of which both sides were measured in this run."""
    found: list[Check] = []

    def add(name: str, value: float | None, **bounds: float) -> None:
        if value is not None:
            found.append(Check(name, value, "x", **bounds))

    add("get, one task: against aiosqlite used plainly", results.ratio("get", "agentbus", "aiosqlite"), least=10)
    add("get, one task: raw sqlite3 against us", results.ratio("get", "raw", "agentbus"), most=5)
    against = results.ratio("set-tasks", "agentbus", "aiosqlite")
    add(f"set, {TASKS} tasks: against aiosqlite used plainly", against, least=15)
    return found


def _cases(workload: Workload, seconds: float, directory: Path, results: Results) -> list[Case]:
    cases: list[Case] = []
    for about in CONTESTANTS:
        series = Series(workload.key, about.key, RATE, title=about.title, durability=about.durability)
        run = partial(afresh, directory, partial(_with_loop, about, workload, seconds))
        cases.append(Case(results.add(series), run))
    if workload.tasks == 1:
        series = Series(workload.key, RAW.key, RATE, title=RAW.title, durability=RAW.durability)
        cases.append(Case(results.add(series), partial(afresh, directory, partial(_without_loop, workload, seconds))))
    return cases


def _with_loop(contestant: Contestant, workload: Workload, seconds: float, directory: Path) -> float:
    async def work() -> float:
        async with contestant.open(directory, workload.tasks) as store:
            keys = _keys()
            await store.fill(keys, PAYLOAD)
            if await store.get(keys[-1]) != PAYLOAD:
                raise RuntimeError(f"{contestant.key} gives {await store.get(keys[-1])!r}")
            shares = [keys[task :: workload.tasks] for task in range(workload.tasks)]
            begun = time.perf_counter()
            counts = await asyncio.gather(*(workload.work(store, share, begun + seconds) for share in shares))
            return sum(counts) / (time.perf_counter() - begun)

    return asyncio.run(work())


def _without_loop(workload: Workload, seconds: float, directory: Path) -> float:
    with RAW.open(directory) as store:
        keys = _keys()
        store.fill(keys, TEXT)
        step = workload.alone(store)
        done = 0
        begun = time.perf_counter()
        end = begun + seconds
        while time.perf_counter() < end:
            step(keys[done % KEYS])
            done += 1
        return done / (time.perf_counter() - begun)


def _keys() -> list[str]:
    return [f"key-{number}" for number in range(KEYS)]


if __name__ == "__main__":
    sys.exit(main())
