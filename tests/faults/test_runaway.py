"""A runaway sender is held by the quotas, with little effect on other agents."""

import asyncio
import time
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

import agentbus
from tests.faults.rows import integrity, value
from tests.support.figures import Figure, Scale
from tests.support.processes import Team, Worker

EVERY = 0.025
"""Seconds between two sends of the others."""
WAITING = "SELECT count(*) FROM messages JOIN mailboxes ON mailboxes.id = mailbox WHERE kind = 'pool'"


async def times_of(agent: agentbus.Agent, seconds: float) -> list[float]:
    """Send now and then; return the durations in milliseconds."""
    times: list[float] = []
    end = time.monotonic() + seconds
    while not times or time.monotonic() < end:
        begun = time.perf_counter()
        await agent.send("other", "note")
        times.append((time.perf_counter() - begun) * 1000)
        await agent.ack(await agent.receive_many(10, timeout=0))
        await asyncio.sleep(EVERY)
    return times


async def measured(agent: agentbus.Agent, runaway: Worker, seconds: float) -> tuple[float, float]:
    """Return the 99th percentile of sends while the runaway pauses, and while it sends. In turns: a disk that is slow
    for a while is slow for both."""
    alone: list[float] = []
    beside: list[float] = []
    turns = max(2, round(seconds))
    for _ in range(turns):
        runaway.tell("pause")
        alone += await times_of(agent, seconds / turns)
        runaway.tell("go")
        beside += await times_of(agent, seconds / turns)
    return quantiles(alone, n=100)[98], quantiles(beside, n=100)[98]


@pytest.mark.slow
@pytest.mark.fault(24)
@pytest.mark.parametrize(
    ("quotas", "code"),
    [({"depth": 500}, "queue_full"), ({"rate": 50}, "sending_too_fast"), ({"size": 2_000_000}, "bus_full")],
    ids=["depth", "rate", "size"],
)
async def test_quotas_limit_a_runaway_agent_and_the_others_continue(
    short: Path, team: Team, figure: Figure, scale: Scale, quotas: dict[str, Any], code: str
) -> None:
    path = short / "bus"
    seconds = scale(0.4, 10.0)
    async with agentbus.connect(path) as bus, bus.agent("other", type="worker") as other:
        await bus.declare(agentbus.pool("jobs"))
        await bus.quotas.change(**quotas)
        begun = time.monotonic()
        runaway = team.start("worker_runaway", path)
        await asyncio.to_thread(runaway.expect, "running")
        await asyncio.to_thread(runaway.expect, "refused")
        if code == "bus_full":
            # No agent may send any more, but all else continues.
            await other.state.set("phase", 1)
            alone = beside = 0.0
            await asyncio.sleep(seconds)
        else:
            alone, beside = await measured(other, runaway, seconds)
        runaway.tell("stop")
        outcomes = {word: int(times) for _, word, times in map(str.split, runaway.finish())}
        took = time.monotonic() - begun
        size = value(path, "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size")
    there = value(path, WAITING)
    lost = outcomes["sent"] - there
    told = f"p99 of others {alone:.1f} ms without it, {beside:.1f} with it" if beside else "state is still writable"
    ((name, most),) = quotas.items()
    figure(f"quota of {name} {most:,}: {told}", refused=outcomes[code], acknowledged=outcomes["sent"], lost=lost)
    assert outcomes[code] > 0
    assert lost == 0
    if code == "queue_full":
        assert there == 500
    elif code == "sending_too_fast":
        assert there <= 50 * (10 + took)
    else:
        assert size < quotas["size"] + 1_000_000
    assert not scale.full or beside < 2 * alone or beside < 5
    assert integrity(path) == "ok"
