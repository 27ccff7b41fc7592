"""Forked children cannot use the bus of the parent and keep none of its resources alive."""

import asyncio
from pathlib import Path

import anyio
import pytest

import agentbus
from agentbus.engine.postgres.connection import connect
from agentbus.engine.postgres.server import parse
from agentbus.engine.sqlite.lock import FileLock
from tests.faults.rows import integrity, rows
from tests.support.figures import Figure
from tests.support.processes import PATIENCE, Team


@pytest.mark.fault(11)
def test_a_child_cannot_use_the_bus_of_its_parent_and_the_parent_continues(
    short: Path, team: Team, figure: Figure
) -> None:
    bus = short / "bus"
    worker = team.start("worker_fork", bus, "inherited")
    said: list[str] = []
    while (line := worker.line()) != "forked":
        said.append(line)
    refused = [line.split()[-1] for line in said].count("bus_forked")
    assert len(said) == 10
    assert refused == 10, said
    for _ in range(3):
        worker.tell("send")
        assert worker.expect("sent") == "from the parent"
    worker.tell("end")
    assert worker.wait() == 0
    found = rows(bus, "SELECT status, count(*) FROM messages GROUP BY status")
    figure(
        "the parent is intact",
        uses_in_the_child=len(said),
        refused_by_name=refused,
        acknowledged=4,
        lost=4 - found[0][1],
    )
    assert found == [("acked", 4)]
    assert rows(bus, "SELECT id, status FROM agents") == [("parent", "completed")]
    assert integrity(bus) == "ok"


async def test_a_surviving_child_does_not_make_its_dead_parent_look_alive(short: Path, team: Team) -> None:
    bus = short / "bus"
    worker = team.start("worker_fork", bus, "inherited")
    worker.expect("forked")
    worker.kill()
    async with agentbus.connect(bus, beat_every=3600) as opened:
        record = await opened.agents.get("parent")
        assert record is not None
        assert record.status == "failed"
        async with opened.agent("parent", type="worker") as successor:
            message = await successor.receive(timeout=30)
            assert message is not None
            assert message.message_id == "held"
            await message.ack()


async def test_a_surviving_child_does_not_keep_the_sessions_of_its_dead_parent(url: str, team: Team) -> None:
    """The server ends a session, and what it has locked, when the last copy of its socket is closed."""
    looking = await connect(parse(url))
    sessions = "SELECT pid FROM pg_stat_activity WHERE application_name = 'agentbus' AND pid <> pg_backend_pid()"
    try:
        others = {row[0] for row in await looking.fetch(sessions)}
        worker = team.start("worker_fork", url, "inherited")
        await asyncio.to_thread(worker.expect, "forked")
        opened = {row[0] for row in await looking.fetch(sessions)} - others
        assert opened
        worker.kill()
        with anyio.fail_after(PATIENCE):
            while opened & {row[0] for row in await looking.fetch(sessions)}:
                await looking.execute("SELECT pg_sleep(0.01)")
    finally:
        await looking.close()


def test_a_child_on_a_server_cannot_use_the_parents_bus_and_the_parent_continues(url: str, team: Team) -> None:
    worker = team.start("worker_fork", url, "inherited")
    said: list[str] = []
    while (line := worker.line()) != "forked":
        said.append(line)
    assert [line.split()[-1] for line in said] == ["bus_forked"] * 10
    for _ in range(3):
        worker.tell("send")
        assert worker.expect("sent") == "from the parent"
    worker.tell("end")
    assert worker.wait() == 0


@pytest.mark.parametrize("how", ["at once", "queued", "waiting"])
def test_a_surviving_child_does_not_keep_the_lock_of_its_dead_parent(short: Path, team: Team, how: str) -> None:
    bus = short / "bus"
    worker = team.start("worker_fork", bus, how)
    assert sorted((worker.line(), worker.line())) == ["forked", "holding"]
    worker.kill()
    lock = FileLock(bus / "bus.lock", timeout=30)
    try:
        with lock.held():
            assert lock.holder() is not None
    finally:
        lock.close()


async def test_a_send_of_a_child_on_its_own_bus_is_stored_or_refused(short: Path, team: Team) -> None:
    """SQLite in the child believes to hold the locks that the parent's connections had, and takes none itself."""
    bus = short / "bus"
    worker = team.start("worker_fork", bus, "reopened")
    answer = worker.line()
    if answer.startswith("refused"):
        print(f"the child is {answer}")
        return
    worker.kill()
    acknowledged: list[str] = []
    for name in ("first", "second", "third"):
        worker.tell(name)
        acknowledged.append(worker.expect("sent"))
        # Open and close it: if no other process holds a lock, the log is checkpointed and removed.
        async with agentbus.connect(bus):
            pass
    worker.tell("end")
    worker.expect("closed")
    there = {name for (name,) in rows(bus, "SELECT message_id FROM messages")}
    lost = [name for name in acknowledged if name not in there]
    print(f"{len(acknowledged)} sends acknowledged in the child, {len(lost)} lost: {lost}")
    assert not lost
    assert integrity(bus) == "ok"
