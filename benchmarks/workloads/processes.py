"""Two processes: one sends, the other receives and acknowledges. Throughput under load, latency to an idle receiver,
and the CPU of waiting."""

from __future__ import annotations

import asyncio
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
from benchmarks.workloads.fleet import FORKS
from benchmarks.workloads.lifecycles import BATCH, TASKS

PAUSE = 0.02
"""Seconds between two messages to an idle receiver."""
TIMEOUT = 60.0
_WARM_UP = 5


@dataclass(frozen=True)
class Idle:
    """Milliseconds from the call of send to its delivery, and the CPU of one core while no message arrives."""

    latencies: list[float]
    cpu: float

    @property
    def p50(self) -> float:
        return statistics.median(self.latencies)


def p99(latencies: Sequence[float]) -> float:
    """Return the 99th percentile over all rounds: a single round has too few messages."""
    return sorted(latencies)[int(len(latencies) * 0.99)]


async def throughput(contestant: Contestant, directory: Path, seconds: float) -> float:
    """Return the messages received and acknowledged per second while concurrent tasks send."""
    async with contestant.open(directory, 1) as (box,), _sending(_flood, contestant, directory):
        done = await _first(box)
        count = 0
        started = time.perf_counter()
        end = started + seconds
        while time.perf_counter() < end:
            done = await box.receive_many(BATCH, done)
            count += len(done)
        await box.ack_many(done)
        return count / (time.perf_counter() - started)


async def idle(contestant: Contestant, directory: Path, messages: int, quiet: float) -> Idle:
    """Measure a message every 20 ms to a waiting receiver, then none for ``quiet`` seconds."""
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
    with anyio.fail_after(TIMEOUT):
        return await box.receive_many(1, ())


async def _waiting_costs(contestant: Contestant, box: Box, quiet: float) -> float:
    """Return the CPU of this process and of the server, if there is one."""
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
    """Run another process that sends until it is stopped."""
    stop = FORKS.Event()
    known = (contestant.key, servers.addresses(), directory)
    child = FORKS.Process(target=_run, args=(work, *known, stop, *arguments), daemon=True)
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
    from benchmarks.contestants.queues.catalog import CONTESTANTS

    # An interrupt ends the run through the parent process, which waits for this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.update(known)
    (contestant,) = (one for one in CONTESTANTS if one.key == key)

    async def send() -> None:
        async with contestant.sender(directory) as sender:
            await work(sender, *arguments)

    asyncio.run(send())


async def _flood(sender: Sender, stop: Any) -> None:
    async def send() -> None:
        while not stop.is_set():
            await sender.send(PAYLOAD)
            # Yield, for senders that never suspend.
            await anyio.lowlevel.checkpoint()

    await asyncio.gather(*(send() for _ in range(TASKS)))


async def _drip(sender: Sender, stop: Any, messages: int) -> None:
    for _ in range(messages + _WARM_UP):
        await sender.send({**PAYLOAD, "sent": time.monotonic()})
        await anyio.sleep(PAUSE)
    while not stop.is_set():
        await anyio.sleep(PAUSE)
