"""Client processes of one PostgreSQL server, each with many agents that send, receive and acknowledge."""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass

import agentbus
from agentbus import Bus
from benchmarks.contestants import servers
from benchmarks.contestants.queues.bus import AgentBox
from benchmarks.contestants.queues.postgres import SERVER, new_schema_url
from benchmarks.measure import Results, Series
from benchmarks.progress import Progress
from benchmarks.report import RATE
from benchmarks.workloads.fleet import Meet, fleet
from benchmarks.workloads.lifecycles import timed
from benchmarks.workloads.processes import p99

P50, P99 = "ms, p50", "ms, p99"
CLIENT_CPU, SERVER_CPU = "µs of CPU in clients", "µs of CPU in the server"
WORKLOAD = "clients"
OURS, TITLE = "agentbus-postgres", "agentbus, PostgreSQL"
DURABILITY = "disk: a send is flushed; claims and acks survive the death of any client"
REGISTER_AT_ONCE = 100


@dataclass(frozen=True)
class Share:
    """The part of one process in a round: the seconds of each lifecycle, of the round, and of CPU."""

    taken: list[float]
    seconds: float
    cpu: float


def measure(counts: list[int], agents: int, seconds: float, rounds: int, results: Results, progress: Progress) -> None:
    progress.expect(len(counts))
    for count in counts:
        progress.say(f"{count} processes with {agents} agents each")
        url = new_schema_url(f"clients_{count}")
        _measure(url, count, agents, seconds, rounds, results)


def _measure(url: str, count: int, agents: int, seconds: float, rounds: int, results: Results) -> None:
    title = f"{count} × {agents} agents"
    series = {
        unit: results.add(
            Series(f"{WORKLOAD}-{count}", OURS, unit, title=TITLE if unit == RATE else title, durability=DURABILITY)
        )
        for unit in (RATE, P50, P99, CLIENT_CPU, SERVER_CPU)
    }
    try:
        with fleet(_client, count, url, agents, seconds, rounds, seconds=seconds) as clients:
            of_server: list[float] = []
            for _ in range(rounds):
                clients.meet()
                before = servers.cpu(SERVER)
                clients.meet()
                of_server.append(servers.cpu(SERVER) - before)
            shares: list[list[Share]] = clients.answers()
    except Exception as error:
        for one in series.values():
            one.failed(error)
        return
    for cpu, of_round in zip(of_server, zip(*shares, strict=True), strict=True):
        taken = [one * 1000 for share in of_round for one in share.taken]
        series[RATE].values.append(sum(len(share.taken) / share.seconds for share in of_round))
        series[P50].values.append(statistics.median(taken))
        series[P99].values.append(p99(taken))
        series[CLIENT_CPU].values.append(sum(share.cpu for share in of_round) / len(taken) * 1e6)
        series[SERVER_CPU].values.append(cpu / len(taken) * 1e6)


async def _client(number: int, meet: Meet, url: str, agents: int, seconds: float, rounds: int) -> list[Share]:
    async with agentbus.connect(url) as bus:
        boxes = await open_boxes(bus, f"client-{number}", agents)
        await timed(boxes, time.perf_counter() + min(1.0, seconds))
        shares: list[Share] = []
        for _ in range(rounds):
            await meet()
            cpu, started = time.process_time(), time.perf_counter()
            taken = await timed(boxes, started + seconds)
            shares.append(Share(taken, time.perf_counter() - started, time.process_time() - cpu))
            await meet()
        return shares


async def open_boxes(bus: Bus, prefix: str, count: int) -> list[AgentBox]:
    """Register agents, a hundred at a time, and return their mailboxes."""
    boxes: list[AgentBox] = []
    for start in range(0, count, REGISTER_AT_ONCE):
        names = [f"{prefix}-{number}" for number in range(start, min(count, start + REGISTER_AT_ONCE))]
        boxes += map(AgentBox, await asyncio.gather(*(bus.register(name, type="worker") for name in names)))
    return boxes
