"""The files of a bus: removed or replaced while open, opened twice in one process, private to their user."""

import os
import shutil
import signal
import stat
import time
from pathlib import Path

import anyio
import pytest

import agentbus
from agentbus.errors import AgentBusError, DatabaseGone
from tests.faults.rows import integrity, rows, value
from tests.support.figures import Figure
from tests.support.processes import Team


async def fill(path: Path, count: int) -> None:
    """So much that part of it is in the database and part of it in the log."""
    async with agentbus.connect(path) as bus, bus.agent("filler", type="worker") as filler:
        await filler.send_many([("filler", "note", {"text": "x" * 1000}) for _ in range(count)])


@pytest.mark.fault(20)
@pytest.mark.parametrize("what", ["removed", "replaced", "directory removed"])
async def test_a_deleted_database_is_detected(tmp_path: Path, figure: Figure, what: str) -> None:
    path = tmp_path / "bus"
    await fill(tmp_path / "other", 10)
    async with agentbus.connect(path, beat_every=3600) as bus:
        agent = await bus.register("agent", type="worker")
        await agent.send("agent", "note", 1)
        if what == "removed":
            (path / "bus.db").unlink()
        elif what == "replaced":
            os.replace(tmp_path / "other" / "bus.db", path / "bus.db")
            before = (path / "bus.db").read_bytes()
        else:
            shutil.rmtree(path)
        with pytest.raises(DatabaseGone):
            await agent.send("agent", "note", 2)
        with pytest.raises(DatabaseGone):
            await agent.receive(timeout=0)
        figure(f"{what}: refused by the next call")
    # Nothing of ours is written to whatever is there now.
    if what == "replaced":
        assert (path / "bus.db").read_bytes() == before
    else:
        assert not (path / "bus.db").exists()


@pytest.mark.fault(20)
async def test_readers_and_watchers_are_notified_with_the_next_heartbeat(tmp_path: Path, figure: Figure) -> None:
    async with agentbus.connect(tmp_path, beat_every=0.1) as bus:
        state = bus.state("scope")
        await state.set("k", 1)
        watch = state.watch()
        assert (await anext(watch)).value == 1
        (tmp_path / "bus.db").unlink()
        begun = time.monotonic()
        with anyio.fail_after(30), pytest.raises(DatabaseGone):
            await anext(watch)
        took = time.monotonic() - begun
        figure(f"a watcher with a heartbeat every 0.1 s (usually 5 s) is notified after {took * 1000:.0f} ms")
        for call in (state.get("k"), state.list(), bus.agents.list()):
            with pytest.raises(DatabaseGone):
                await call


@pytest.mark.parametrize("large", [False, True], ids=["all in the log", "part in the log"])
async def test_a_removed_database_can_be_opened_again(tmp_path: Path, large: bool) -> None:
    """The log of the old database is still there; it must not become part of the new one."""
    async with agentbus.connect(tmp_path, beat_every=3600) as bus:
        agent = await bus.register("agent", type="worker")
        for _ in range(20):
            await agent.send_many([("agent", "note", {"text": "x" * 1000}) for _ in range(400 if large else 1)])
        (tmp_path / "bus.db").unlink()
        with pytest.raises(DatabaseGone):
            await agent.send("agent", "note", 2)
    async with agentbus.connect(tmp_path, beat_every=3600) as bus, bus.agent("agent", type="worker") as agent:
        await agent.send("agent", "note", "new")
        message = await agent.receive(timeout=30)
        assert message is not None
        assert message.payload == "new"
        await message.ack()
    assert value(tmp_path, "SELECT count(*) FROM messages") == 1
    assert integrity(tmp_path) == "ok"


@pytest.mark.parametrize("large", [False, True], ids=["all in the log", "part in the log"])
async def test_a_replaced_database_can_be_opened_again(tmp_path: Path, large: bool) -> None:
    """As when a backup is put back while an agent runs: what was put back must be there, and nothing else."""
    await fill(tmp_path / "backup", 3000)
    path = tmp_path / "bus"
    async with agentbus.connect(path, beat_every=3600) as bus:
        agent = await bus.register("agent", type="worker")
        for _ in range(20):
            await agent.send_many([("agent", "note", {"text": "y" * 1000}) for _ in range(400 if large else 1)])
        os.replace(tmp_path / "backup" / "bus.db", path / "bus.db")
        with pytest.raises(DatabaseGone):
            await agent.send("agent", "note", 2)
    async with agentbus.connect(path, beat_every=3600) as bus:
        assert (await bus.stats()).messages == {"queued": 3000}
        assert await bus.agents.get("agent") is None
    assert integrity(path) == "ok"


def test_two_buses_on_one_file_in_one_process_do_not_break_each_other(short: Path, team: Team) -> None:
    """A process that closes a file drops all the locks it has on it, unless SQLite itself does the closing."""
    path = short / "bus"
    third = team.start("worker_sender", path, 0)
    third.expect("sent")
    twice = team.start("worker_twice", path)
    said = [line.split() for line in iter(twice.line, "ready")]
    # A process that closes the bus as the last, as far as locks tell, folds up the log and removes it: never under us.
    third.signal(signal.SIGINT)
    third.wait()
    twice.tell("go on")
    said += [line.split() for line in iter(twice.line, "ready")]
    # Not by its own close: that would bring back what had gone into a removed log.
    twice.kill()
    sent = {f"n-{line.split()[1]}" for line in third.said()} | {name for _, name in said}
    there = {name for (name,) in rows(path, "SELECT message_id FROM messages WHERE message_id NOT NULL")}
    lost = sent - there
    print(f"{len(said)} sends of two buses in one process, {len(sent)} with those of a third, {len(lost)} lost")
    assert len(said) == 5 * 30 + 10
    assert len(sent) > len(said)
    assert not lost
    assert integrity(path) == "ok"


@pytest.mark.fault(23)
@pytest.mark.parametrize("deep", [False, True], ids=["short path", "path too long for a socket"])
async def test_other_users_cannot_read_the_files_under_any_umask(
    short: Path, runtime: Path, team: Team, figure: Figure, deep: bool
) -> None:
    path = short / ("deep-" * 24 if deep else "bus")
    before = os.umask(0)
    try:
        async with agentbus.connect(path) as bus, bus.agent("a", type="worker") as agent:
            await agent.send("a", "note")
            await agent.ack(await agent.receive_many(1, timeout=0))
            await bus.backup()
            await bus.retention.apply(policy=agentbus.RetentionPolicy(messages=0))
        worker = team.start("worker_sender", path, 0)
        worker.expect("sent")
    finally:
        os.umask(before)
    worker.stop()
    ours = [path, *path.rglob("*"), *runtime.rglob("*")]
    modes = {file: stat.S_IMODE(file.lstat().st_mode) for file in ours}
    kinds = {file.name for file in ours if not file.is_socket()}
    assert {"bus.db", "bus.db-wal", "bus.db-shm", "bus.lock", "bus.ballast", "backups", "archive"} <= kinds
    assert {file.parent.name for file in ours} >= {"backups", "archive"}
    assert sum(file.is_socket() for file in ours) == 1
    wrong = {str(file): oct(mode) for file, mode in modes.items() if mode != (0o700 if file.is_dir() else 0o600)}
    figure(files_and_directories=len(ours), open_to_others=len(wrong))
    assert not wrong


async def test_a_heartbeat_after_the_database_is_deleted_does_not_end_the_bus(tmp_path: Path) -> None:
    async with agentbus.connect(tmp_path, beat_every=0.05) as bus:
        agent = await bus.register("agent", type="worker")
        (tmp_path / "bus.db").rename(tmp_path / "moved.db")
        seen = [await _error_of_sending(agent) for _ in range(20)]
        assert {type(error) for error in seen} == {DatabaseGone}
        (tmp_path / "moved.db").rename(tmp_path / "bus.db")
        assert await _error_of_sending(agent) is None
    assert value(tmp_path, "SELECT count(*) FROM messages") == 1


async def _error_of_sending(agent: agentbus.Agent) -> AgentBusError | None:
    try:
        await agent.send("agent", "note")
    except AgentBusError as error:
        return error
    return None
