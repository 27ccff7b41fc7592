"""State: get, set and compare-and-set of entries, by one task and by concurrent tasks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from benchmarks.contestants.stores.base import Contestant, Store
from benchmarks.payload import PAYLOAD
from benchmarks.workloads.lifecycles import TASKS

KEYS = 1024

Step = Callable[[Store], Callable[[str], Awaitable[object]]]


@dataclass(frozen=True)
class Workload:
    """A usage pattern of a store by a number of tasks, each with its own keys."""

    key: str
    title: str
    tasks: int
    step: Step


def _getting(store: Store) -> Callable[[str], Awaitable[object]]:
    return store.get


def _setting(store: Store) -> Callable[[str], Awaitable[object]]:
    return lambda key: store.set(key, PAYLOAD)


def _comparing(store: Store) -> Callable[[str], Awaitable[object]]:
    versions: dict[str, int] = {}

    async def step(key: str) -> None:
        versions[key] = await store.compare_and_set(key, PAYLOAD, versions.get(key, 1))

    return step


WORKLOADS = (
    Workload("get", "get, one task", 1, _getting),
    Workload("get-tasks", f"get, {TASKS} tasks", TASKS, _getting),
    Workload("set", "set, one task", 1, _setting),
    Workload("set-tasks", f"set, {TASKS} tasks", TASKS, _setting),
    Workload("cas", "compare-and-set, one task", 1, _comparing),
    Workload("cas-tasks", f"compare-and-set, {TASKS} tasks", TASKS, _comparing),
)


def run(contestant: Contestant, workload: Workload, seconds: float, directory: Path) -> float:
    """Return the operations per second."""

    async def work() -> float:
        async with contestant.open(directory, workload.tasks) as store:
            keys = [f"key-{number}" for number in range(KEYS)]
            await store.fill(keys, PAYLOAD)
            if await store.get(keys[-1]) != PAYLOAD:
                raise RuntimeError(f"{contestant.key} returned {await store.get(keys[-1])!r}")
            shares = [keys[task :: workload.tasks] for task in range(workload.tasks)]
            step = workload.step(store)
            started = time.perf_counter()
            counts = await asyncio.gather(*(_repeat(step, share, started + seconds) for share in shares))
            return sum(counts) / (time.perf_counter() - started)

    return asyncio.run(work())


async def _repeat(step: Callable[[str], Awaitable[object]], keys: Sequence[str], end: float) -> int:
    done = 0
    for key in cycle(keys):
        await step(key)
        done += 1
        if time.perf_counter() >= end:
            break
    return done
