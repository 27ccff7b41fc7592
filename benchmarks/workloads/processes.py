"""Two processes: one sends, the other receives and acknowledges. Throughput while both are busy, and how long a message
takes to one who waits, and what waiting costs."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import statistics
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from benchmarks.contestants import servers
from benchmarks.contestants.queues.base import Box, Contestant, Sender
from benchmarks.payload import PAYLOAD
from benchmarks.workloads.lifecycles import BATCH, TASKS

PAUSE = 0.02
"""Seconds between two messages to one who waits."""
PATIENCE = 60.0
_WARM_UP = 5
# A server that has everything imported already, and forks: an interpreter for each would take longer than to measure.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["benchmarks.contestants.queues.everyone", "benchmarks.writers"])


@dataclass(frozen=True)
class Idle:
    """Milliseconds from the call of send to the receiver's having it, and the CPU of one core while nothing comes."""

    latencies: list[float]
    cpu: float

    @property
    def p50(self) -> float:
        return statistics.median(self.latencies)


def p99(latencies: Sequence[float]) -> float:
    """Of those of all rounds: a round alone has too few."""
    return sorted(latencies)[int(len(latencies) * 0.99)]


async def throughput(contestant: Contestant, directory: Path, seconds: float) -> float:
    """Messages received and acknowledged a second, while as many tasks send as can."""
    async with contestant.open(directory, 1) as (box,), _sending(_flood, contestant, directory):
        done = await _first(box)
        count = 0
        begun = time.perf_counter()
        end = begun + seconds
        while time.perf_counter() < end:
            done = await box.receive_many(BATCH, done)
            count += len(done)
        await box.ack_many(done)
        return count / (time.perf_counter() - begun)


async def idle(contestant: Contestant, directory: Path, messages: int, quiet: float) -> Idle:
    """A message every 20 ms to one who waits for it; then none for ``quiet`` seconds."""
    latencies: list[float] = []
    async with contestant.open(directory, 1) as (box,):
        async with _sending(_drip, contestant, directory, messages):
            await box.ack_many(await _first(box))
            for number in range(messages + _WARM_UP - 1):
                message = await box.receive()
                now = time.monotonic()
                sent = box.payload(message)["sent"]
                await box.ack(message)
                if number >= _WARM_UP - 1:
                    latencies.append((now - sent) * 1000)
        return Idle(latencies, await _waiting_costs(contestant, box, quiet))


async def _first(box: Box) -> Any:
    with anyio.fail_after(PATIENCE):
        return await box.receive_many(1, ())


async def _waiting_costs(contestant: Contestant, box: Box, quiet: float) -> float:
    """Of this process and, where there is one, of the server."""
    server = getattr(contestant, "server", "")
    waiting = asyncio.ensure_future(box.receive())
    try:
        await anyio.sleep(0.2)
        cpu, wall = time.process_time() + servers.cpu(server), time.perf_counter()
        await anyio.sleep(quiet)
        return (time.process_time() + servers.cpu(server) - cpu) / (time.perf_counter() - wall) * 100
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


@asynccontextmanager
async def _sending(
    work: Callable[..., Coroutine[Any, Any, None]], contestant: Contestant, directory: Path, *arguments: Any
) -> AsyncIterator[None]:
    """Another process that sends until it is told to stop."""
    stop = _FORKS.Event()
    known = (contestant.key, servers.addresses(), directory)
    child = _FORKS.Process(target=_run, args=(work, *known, stop, *arguments), daemon=True)
    child.start()
    try:
        yield
    finally:
        stop.set()
        await anyio.to_thread.run_sync(child.join, 10)
        if child.is_alive():
            child.kill()
            child.join()


def _run(
    work: Callable[..., Coroutine[Any, Any, None]], key: str, known: dict[str, str], directory: Path, *arguments: Any
) -> None:
    from benchmarks.contestants.queues.everyone import EVERYONE

    # Whoever interrupts the run interrupts the one who waits for this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(known)
    (contestant,) = (one for one in EVERYONE if one.key == key)

    async def send() -> None:
        async with contestant.sender(directory) as sender:
            await work(sender, *arguments)

    asyncio.run(send())


async def _flood(sender: Sender, stop: Any) -> None:
    async def send() -> None:
        while not stop.is_set():
            await sender.send(PAYLOAD)
            # Those who never suspend let the others see that it is over.
            await anyio.lowlevel.checkpoint()

    await asyncio.gather(*(send() for _ in range(TASKS)))


async def _drip(sender: Sender, stop: Any, messages: int) -> None:
    for _ in range(messages + _WARM_UP):
        await sender.send({**PAYLOAD, "sent": time.monotonic()})
        await anyio.sleep(PAUSE)
    while not stop.is_set():
        await anyio.sleep(PAUSE)
