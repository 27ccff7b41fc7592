"""The monitor with real processes: killed, stopped and continued; and a monitor that is killed itself."""

import asyncio
import random
import sqlite3
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

import agentbus
from agentbus import Agent, Bus, Monitor
from agentbus.operations.protocol import Actor
from agentbus.operations.receive import ClaimRequest, claim
from agentbus.records import Finding
from tests.api.helpers import known
from tests.api.other_processes import ABSENT_PID, resident, stranger
from tests.faults.rows import integrity, lock_held, no_process_writes, rows
from tests.support.figures import Figure, Scale
from tests.support.processes import Team

INTERVAL = 0.3
SEED = 20_240_702


async def awaited(monitor: Monitor, kind: str, subject: str) -> Finding:
    async for finding in monitor.findings():
        if (finding.kind, finding.subject) == (kind, subject):
            return finding
    raise AssertionError(f"the monitor ended, and no {kind}")


async def test_a_killed_process_is_detected_within_two_intervals_and_a_new_one_resumes(short: Path, team: Team) -> None:
    """Only the monitor can detect it: no process sends a heartbeat or opens the bus, and the lease is long."""
    path = short / "bus"
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.session("planning", id="s") as session,
        bus.agent("boss", type="worker") as boss,
    ):
        await bus.declare(agentbus.pool("jobs"))
        receipt = await boss.send(agentbus.pool("jobs"), "task_assignment")
        first = team.start("worker_monitor", "work", path, "first", "one", 3600)
        assert await asyncio.to_thread(first.expect, "done") == "one"
        assert await asyncio.to_thread(first.expect, "holding") == receipt.message_id
        async with bus.monitor(interval=INTERVAL, suspect_after=7200, fail_after=7200) as monitor:
            await asyncio.to_thread(first.kill)
            begun = time.monotonic()
            finding = await asyncio.wait_for(awaited(monitor, "agent_failed", "agent:first"), 20)
            took = time.monotonic() - begun
            await asyncio.wait_for(awaited(monitor, "session_interrupted", "session:s"), 20)
        print(f"noticed after {took:.2f} s, with an interval of {INTERVAL:g} s")
        # Two intervals, and what a busy machine adds.
        assert took < 2 * INTERVAL + 10
        assert finding.facts["evidence"]["pid"] == first.pid
        record = await known(bus, "first")
        assert (record.status, record.error) == ("failed", "its process died")
        assert (await session.record()).status == "interrupted", "it was the last"

        second = team.start("worker_monitor", "work", path, "first", "two", 3600)
        assert await asyncio.to_thread(second.expect, "done") == "one two", "from its checkpoint"
        assert await asyncio.to_thread(second.expect, "holding") == receipt.message_id, "redelivered"
        assert (await session.record()).status == "active"
        second.tell("finish")
        await asyncio.to_thread(second.finish)
        message = await bus.messages.get(receipt.message_id or "")
        assert message is not None
        assert (message.status, message.attempts) == ("acked", 2)


async def test_messages_held_by_a_killed_process_are_redelivered(short: Path, team: Team) -> None:
    path = short / "bus"
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.session("planning", id="s"),
        bus.agent("other", type="worker", pools=["jobs"]) as other,
        bus.monitor(interval=0.2, suspect_after=7200, fail_after=7200),
    ):
        first = team.start("worker_monitor", "work", path, "first", "one", 3600)
        await asyncio.to_thread(first.expect, "done")
        receipt = await other.send(agentbus.pool("jobs"), "task_assignment")
        assert await asyncio.to_thread(first.expect, "holding") == receipt.message_id
        first.kill()
        message = await other.receive(timeout=20)
        assert message is not None
        assert (message.message_id, message.attempts) == (receipt.message_id, 2)
        await message.ack()


async def test_a_stopped_process_is_suspect_and_continues_unharmed(short: Path, team: Team) -> None:
    path = short / "bus"
    async with (
        agentbus.connect(path, beat_every=0.1) as bus,
        bus.session("planning", id="s"),
        bus.monitor(interval=0.1, suspect_after=1, fail_after=1) as monitor,
    ):
        worker = team.start("worker_monitor", "work", path, "first", "one", 0.1)
        await asyncio.to_thread(worker.expect, "done")
        with lock_held(path):  # so that it is not stopped in the middle of a write
            worker.stop()
        finding = await asyncio.wait_for(awaited(monitor, "agent_suspected", "agent:first"), 20)
        evidence = finding.facts["evidence"]
        assert (evidence["verdict"], evidence["alive"], evidence["pid"]) == ("stalled", True, worker.pid)
        worker.resume()
        await asyncio.wait_for(awaited(monitor, "agent_recovered", "agent:first"), 20)
        assert (await known(bus, "first")).status == "running"


async def dying(bus: Bus, boss: Agent, name: str, process: int) -> None:
    """An agent of a process that is not there any more, which holds a message."""
    life = await resident(bus, name, process, parent="boss")
    await boss.send(name, "task_assignment")
    request = ClaimRequest(Actor(name, life.epoch), (), (life.mailbox,), (), 1, 3_600_000)
    await bus._engine.write(claim, request)


@pytest.mark.slow
@pytest.mark.fault(26)
async def test_a_monitor_killed_in_the_middle_of_a_sweep_leaves_nothing_half_done(
    short: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    rng = random.Random(seed := scale.seed(SEED))
    agents = scale(20, 200)
    path = short / "bus"
    names: list[str] = []
    unfinished = 0
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.agent("boss", type="worker") as boss,
    ):
        for round in range(6):
            watcher = team.start("worker_monitor", "watch", path, 0.001)
            await asyncio.to_thread(watcher.expect, "ready")
            process = await stranger(bus)
            batch = [f"r{round}-{number}" for number in range(agents)]
            await asyncio.gather(*(dying(bus, boss, name, process) for name in batch))
            names += batch
            # Only now does its process die: the watcher finds all agents at once.
            with lock_held(path), closing(sqlite3.connect(path / "bus.db", isolation_level=None)) as connection:
                connection.execute("UPDATE processes SET pid = ? WHERE id = ?", (ABSENT_PID, process))
                if round == 0:
                    watcher.kill()  # certainly before its commit
            if round == 1:
                async for event in bus.events(subject=f"agent:{batch[0]}", follow=True):  # certainly after it
                    if event.kind == "agent_failed":
                        break
            elif round > 1:
                threading.Event().wait(rng.uniform(0, 0.1))
            if round > 0:
                watcher.kill()
            failed = rows(path, "SELECT count(*) FROM agents WHERE status = 'failed' AND id LIKE ?", f"r{round}-%")
            assert failed in ([(0,)], [(agents,)]), "all of a process, or none"
            unfinished += failed == [(0,)]
        await bus.sweep(suspect_after=7200, fail_after=7200)
        figure(f"of a monitor (seed {seed}): {unfinished} before its commit", kills=6)
        assert 0 < unfinished < 6
        assert (await bus.sweep(suspect_after=7200, fail_after=7200)).counts["agents_failed"] == 0
        reports = Counter(message.payload["agent"] for message in await boss.receive_many(2000, timeout=0))
        assert reports == Counter(names), "their parent receives one report of each"
    events = Counter(name for (name,) in rows(path, "SELECT subject FROM events WHERE kind = 'agent_failed'"))
    assert events == Counter(names)
    given_back = rows(path, "SELECT count(*) FROM messages WHERE status = 'queued' AND type = 'task_assignment'")
    assert given_back == [(6 * agents,)]
    assert rows(path, "SELECT count(*) FROM agents WHERE status = 'failed' AND evidence IS NULL") == [(0,)]
    no_process_writes(path)
    assert integrity(path) == "ok"
