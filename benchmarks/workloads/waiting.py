"""Many agents that wait: the memory and the CPU of a bus on which nothing happens, and the latency of a wake-up."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import anyio

import agentbus
from benchmarks.contestants import servers
from benchmarks.contestants.queues.bus import AgentBox
from benchmarks.contestants.queues.postgres import SERVER, new_schema_url
from benchmarks.measure import Results, Series
from benchmarks.progress import Progress
from benchmarks.workloads.clients import OURS, open_boxes
from benchmarks.workloads.fleet import Fleet, Meet, fleet
from benchmarks.workloads.processes import PAUSE, p99

WORKLOAD = "waiting"
PROCESSES = 4
SETTLING = 6.0
"""Seconds until the first heartbeat is over, which costs more than the later ones."""


@dataclass(frozen=True)
class Share:
    """The part of one process: megabytes and CPU seconds, and the milliseconds of each message to it."""

    registering: float
    before: float
    after: float
    cpu: float
    latencies: list[float]


def measure(agents: int, quiet: float, messages: int, results: Results, progress: Progress) -> None:
    """Measure ``agents`` in four processes: ``quiet`` seconds without a message, then a message every 20 ms."""
    progress.expect(1)
    progress.say(f"{agents:,} agents in {PROCESSES} processes")
    url = new_schema_url("waiting")
    each = max(1, agents // PROCESSES)
    settling = min(SETTLING, quiet)
    with fleet(_wait, PROCESSES, url, each, seconds=quiet + settling + agents / 50) as clients:
        clients.meet()
        time.sleep(settling)
        clients.meet()
        cpu, memory = servers.cpu(SERVER), servers.memory(SERVER)
        time.sleep(quiet)
        cpu = (servers.cpu(SERVER) - cpu) / quiet
        clients.meet()
        asyncio.run(_send(url, each, messages, clients))
        shares: list[Share] = clients.answers()
    latencies = [one for share in shares for one in share.latencies]
    figures = {
        "all registered": ("s", max(share.registering for share in shares)),
        "memory of the clients": ("MB", sum(share.after for share in shares)),
        "memory of an agent": ("kB", sum(share.after - share.before for share in shares) / (each * PROCESSES) * 1024),
        "memory of the server": ("MB", memory),
        "CPU of the clients": ("% of one core", sum(share.cpu for share in shares) / quiet * 100),
        "CPU of the server": ("% of one core", cpu * 100),
        "a message to a waiting agent, p50": ("ms", statistics.median(latencies)),
        "a message to a waiting agent, p99": ("ms", p99(latencies)),
    }
    for name, (unit, value) in figures.items():
        title = f"{each * PROCESSES:,} agents waiting in {PROCESSES} processes: {name}"
        results.add(Series(f"{WORKLOAD}: {name}", OURS, unit, [value], title=title))


async def _wait(number: int, meet: Meet, url: str, agents: int) -> Share:
    latencies: list[float] = []

    async def wait(box: AgentBox) -> None:
        while True:
            message = await box.receive()
            latencies.append((time.monotonic() - message.payload["sent"]) * 1000)
            await box.ack(message)

    async with agentbus.connect(url) as bus:
        before, started = _memory(), time.perf_counter()
        boxes = await open_boxes(bus, f"waiting-{number}", agents)
        registering = time.perf_counter() - started
        async with anyio.create_task_group() as tasks:
            for box in boxes:
                tasks.start_soon(wait, box)
            await meet()
            await meet()
            cpu, after = time.process_time(), _memory()
            await meet()
            cpu = time.process_time() - cpu
            # Of the messages.
            await meet()
            tasks.cancel_scope.cancel()
    return Share(registering, before, after, cpu, latencies)


async def _send(url: str, agents: int, messages: int, clients: Fleet) -> None:
    """Send to agents at random; each message is on its way alone."""
    chosen = random.Random(1)
    async with agentbus.connect(url) as bus, bus.agent("sender", type="worker") as sender:
        for _ in range(messages):
            to = f"waiting-{chosen.randrange(PROCESSES)}-{chosen.randrange(agents)}"
            await sender.send(to, "note", {"sent": time.monotonic()})
            await anyio.sleep(PAUSE)
        async with asyncio.timeout(60):
            while (await bus.stats()).messages.get("acked", 0) < messages:
                await anyio.sleep(PAUSE)
    await asyncio.to_thread(clients.meet)


def _memory() -> float:
    """Return the megabytes of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
