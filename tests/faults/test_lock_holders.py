"""A process that holds the write lock too long is named to the waiters, which continue afterwards."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus.engine.sqlite.lock import FileLock
from agentbus.errors import LockTimeout
from tests.faults.rows import integrity, value
from tests.support.figures import Figure, Scale
from tests.support.processes import Team

WAITERS = 8


async def attempt(agent: agentbus.Agent, number: int) -> int | None:
    """Return the process that the error names as holder of the lock; None if the message was sent."""
    try:
        await agent.send("waiter", "note", number, message_id=f"n-{number}")
    except LockTimeout as error:
        return int(error.pid)
    return None


def write_lock(bus: agentbus.Bus) -> FileLock:
    engine: Any = bus._engine
    lock: FileLock = engine._writer._runner._lock
    return lock


@pytest.mark.slow
@pytest.mark.fault(8)
@pytest.mark.parametrize("how", ["stopped", "inherited"])
async def test_a_stopped_lock_holder_is_named_and_writes_resume_once_it_continues(
    short: Path, team: Team, figure: Figure, scale: Scale, how: str
) -> None:
    path = short / "bus"
    stands = scale(0.2, 10.0)
    named: set[int | None] = set()
    refused = 0
    async with agentbus.connect(path, lock_timeout=60, beat_every=3600) as bus:
        agent = await bus.register("waiter", type="worker")
        holder = team.start("worker_stopped", path, how)
        pid = int(await asyncio.to_thread(holder.expect, "stopping"))
        end = time.monotonic() + stands
        # Only while the lock cannot become free: a writer on a busy machine may wait longer for one that can.
        with write_lock(bus).limit_timeout(scale(0.05, 0.5)):
            while time.monotonic() < end:
                found = await asyncio.gather(*(attempt(agent, number) for number in range(WAITERS)))
                named.update(found)
                refused += len(found)
        begun = time.monotonic()
        if how == "stopped":
            holder.resume()
            await asyncio.to_thread(holder.expect, "through")
        else:
            os.kill(pid, signal.SIGKILL)
        assert set(await asyncio.gather(*(attempt(agent, number) for number in range(WAITERS)))) == {None}
        took = time.monotonic() - begun
        await agent.complete()
    rows = value(path, "SELECT count(*) FROM messages")
    there = value(path, "SELECT count(DISTINCT message_id) FROM messages")
    written = value(path, "SELECT count(*) FROM meta WHERE key = 'paused'")
    figure(
        f"{how} for {stands:g} s, recovered {took * 1000:.0f} ms later",
        refused=refused,
        acknowledged=WAITERS,
        lost=WAITERS - there,
        duplicated=rows - there,
    )
    assert named == {pid}, "only the holder is named"
    assert rows == there
    assert (there, written) == (WAITERS, 1 if how == "stopped" else 0)
    assert took < 10
    assert integrity(path) == "ok"
