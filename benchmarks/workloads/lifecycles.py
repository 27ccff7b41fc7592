"""Lifecycles in one process: a message is sent, received and acknowledged.

Each workload returns lifecycles per second. The warm-up is not counted and verifies the received payload. The time
includes the last acknowledgement.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.contestants.queues.base import Box
from benchmarks.payload import PAYLOAD

TASKS = 32
BATCH = 64
_WARM_UP = 20


@dataclass(frozen=True)
class Workload:
    """A usage pattern of a queue; ``boxes`` mailboxes, each with its own task."""

    key: str
    title: str
    boxes: int
    run: Callable[[Sequence[Box], float], Awaitable[float]]


async def _one_at_a_time(boxes: Sequence[Box], seconds: float) -> float:
    (box,) = boxes
    warm = time.perf_counter() + seconds
    for _ in range(_WARM_UP):
        await _checked_lifecycle(box)
        if time.perf_counter() > warm:
            break
    count = 0
    started = time.perf_counter()
    end = started + seconds
    while time.perf_counter() < end:
        await box.send(PAYLOAD)
        await box.ack(await box.receive())
        count += 1
    return count / (time.perf_counter() - started)


async def _tasks(boxes: Sequence[Box], seconds: float) -> float:
    async def work(box: Box, end: float) -> int:
        count = 0
        while time.perf_counter() < end:
            await box.send(PAYLOAD)
            await box.ack(await box.receive())
            count += 1
        return count

    return await _side_by_side(boxes, seconds, work)


async def timed(boxes: Sequence[Box], end: float) -> list[float]:
    """Run lifecycles in all boxes at once until a moment of the performance counter; return the seconds of each."""
    taken: list[float] = []

    async def work(box: Box) -> None:
        while (started := time.perf_counter()) < end:
            await box.send(PAYLOAD)
            await box.ack(await box.receive())
            taken.append(time.perf_counter() - started)

    await asyncio.gather(*(work(box) for box in boxes))
    return taken


async def _tasks_fused(boxes: Sequence[Box], seconds: float) -> float:
    async def work(box: Box, end: float) -> int:
        count = 0
        done: Sequence[Any] = ()
        while time.perf_counter() < end:
            await box.send(PAYLOAD)
            done = await box.receive_many(1, done)
            count += len(done)
        await box.ack_many(done)
        return count

    return await _side_by_side(boxes, seconds, work)


async def _batches(boxes: Sequence[Box], seconds: float) -> float:
    (box,) = boxes
    await _checked_lifecycle(box)
    payloads = [PAYLOAD] * BATCH
    done: Sequence[Any] = ()
    count = 0
    started = time.perf_counter()
    end = started + seconds
    while time.perf_counter() < end:
        await box.send_many(payloads)
        done = await box.receive_many(BATCH, done)
        count += len(done)
    await box.ack_many(done)
    return count / (time.perf_counter() - started)


async def _side_by_side(boxes: Sequence[Box], seconds: float, work: Callable[[Box, float], Awaitable[int]]) -> float:
    await asyncio.gather(*(_checked_lifecycle(box) for box in boxes))
    started = time.perf_counter()
    counts = await asyncio.gather(*(work(box, started + seconds) for box in boxes))
    return sum(counts) / (time.perf_counter() - started)


async def _checked_lifecycle(box: Box) -> None:
    await box.send(PAYLOAD)
    message = await box.receive()
    if box.payload(message) != PAYLOAD:
        raise RuntimeError(f"received {box.payload(message)!r}")
    await box.ack(message)


ONE = Workload("one", "one at a time", 1, _one_at_a_time)
MANY = Workload("tasks", f"{TASKS} tasks", TASKS, _tasks)
FUSED = Workload("tasks-fused", f"{TASKS} tasks, ack with the next receive", TASKS, _tasks_fused)
BATCHES = Workload("batches", f"batches of {BATCH}", 1, _batches)
