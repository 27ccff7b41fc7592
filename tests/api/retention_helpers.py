"""Helpers that age data and read the reports of retention."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

from agentbus import Bus, RetentionPolicy
from agentbus.records import RetentionReport
from tests.api.helpers import take, worker
from tests.support.clock import FakeClock

DAY = 24 * 3600.0
NOTHING = RetentionPolicy(
    checkpoints_last=1_000_000, checkpoints_daily=None, messages=None, dead_letters=None, messages_most=None,
    agents=None, sessions=None, failed_sessions=None, events=None, processes=None, tombstones=None,
)  # fmt: skip
"""A policy that keeps everything."""


def lines(report: RetentionReport) -> list[dict[str, Any]]:
    """Every line of the archive of a run, the headers left out."""
    assert report.archive is not None
    with gzip.open(report.archive, "rt", encoding="utf-8") as file:
        return [line for line in map(json.loads, file) if line["record"] != "archive"]


def archived(report: RetentionReport, kind: str) -> list[Any]:
    return [line.get("id", line.get("key")) for line in lines(report) if line["record"] == kind]


async def applied(bus: Bus, **options: Any) -> RetentionReport:
    """Apply the policy; a trial before must have said the same, and another run after finds nothing."""
    trial = await bus.retention.apply(dry_run=True, **options)
    assert trial.dry_run
    assert trial.archive is None
    report = await bus.retention.apply(**options)
    assert (report.removed, report.kept) == (trial.removed, 0)
    assert (await bus.retention.apply(**options)).removed == {}
    return report


async def names(bus: Bus) -> list[str]:
    return [agent.id for agent in (await bus.agents.list()).items]


async def finished(bus: Bus, count: int) -> list[str]:
    """Messages that were acknowledged now."""
    agent = await worker(bus, f"w{os.urandom(4).hex()}")
    ids = [f"m-{(await agent.send(agent.id, 'note', n)).id}" for n in range(count)]
    await agent.ack(await agent.receive_many(count, timeout=0))
    return ids


async def ended_session(bus: Bus, id: str, error: str | None = None) -> None:
    try:
        async with bus.session("planning", id=id, milestone="ms-1", metadata={"why": "test"}) as session:
            async with session.agent(f"{id}-agent", type="worker") as agent:
                await agent.state.set("k", 1)
                await agent.checkpoint("n", {"step": 1})
                await agent.send(agent.id, "note", "never read")
            await session.expect(f"{id}-never-came", type="worker")
            await session.document("plan").save({"v": 1})
            await session.document("plan").save({"v": 2})
            await bus.checkpoints.save(id, "half", 1, kind="session")
            await session.checkpoint_all("half")
            await bus.state(f"session:{id}").set("key", [1])
            await (await session.participants(["x", "y"])).finish("x", {"agrees": True})
            if error is not None:
                raise ZeroDivisionError(error)
    except ZeroDivisionError:
        pass


async def full(bus: Bus, clock: FakeClock) -> Path:
    """A bus with something of every kind that grows old; the archive of all of it."""
    async with bus.session("planning", id="s1", milestone="ms-1", metadata={"a": [1]}) as session:
        async with session.agent("a", type="worker", capabilities=["python"]) as agent:
            await agent.send("a", "note", {"text": "grüße\r\n\u2028"}, message_id="mine", correlation="c-1")
            await (await take(agent)).ack()
            await agent.send("a", "note", "dead")
            await (await take(agent)).reject("bad")
            await agent.state.set("k", {"v": 1}, type="progress")
            await agent.state.set("k", {"v": 2}, type="progress")
            await agent.checkpoint("n", {"step": 1}, notes="half")
        await session.document("plan").save({"v": 1}, author="a")
        await session.document("plan").save({"v": 2})
        await (await session.participants(["x", "y"])).finish("x", {"agrees": True})
        await bus.state("session:s1").set("key", [1])
    clock.advance(100 * DAY)
    report = await bus.retention.apply()
    assert report.archive is not None
    return Path(report.archive)
