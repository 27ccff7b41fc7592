"""Restoring a backup: verified first, in one step, never over a bus that is open."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus import restore_backup
from agentbus.errors import (
    AgentBusError,
    BusInUse,
    DamagedBackup,
    InvalidInput,
    InvalidUrl,
    NoSuchFile,
    NotWritable,
    SchemaTooNew,
    UseServerTools,
)
from tests.api.helpers import held, known, worker
from tests.engine.sqlite.mount_namespace import run_mounted
from tests.support.cases import each
from tests.support.clock import FakeClock


async def backed_up(path: Path, *payloads: Any) -> Path:
    """A bus with these messages, closed; and its backup."""
    async with agentbus.connect(path) as bus:
        async with bus.agent("a", type="worker", takeover=True) as agent:
            await agent.send_many([("a", "note", payload) for payload in payloads])
        return Path((await bus.backup()).path)


async def contents(path: Path) -> list[Any]:
    async with agentbus.connect(path) as bus:
        return [record.payload for record in reversed((await bus.messages.list()).items)]


def files(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name not in {"bells", "bus.lock", "bus.ballast", "backup.lock"})


async def test_a_bus_is_as_it_was_when_it_was_backed_up(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    backup = await backed_up(path, 1, 2)
    await backed_up(path, 3)
    assert await contents(path) == [1, 2, 3]
    assert restore_backup(backup, path) == path
    assert await contents(path) == [1, 2]
    assert files(path) == ["backups", "bus.db"]
    assert (path / "bus.db").stat().st_mode & 0o777 == 0o600
    assert backup.exists()


async def test_what_was_replaced_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    backup = await backed_up(path, 1)
    await backed_up(path, 2)
    restore_backup(backup, path)
    (kept,) = (path / "backups").glob("replaced-*")
    restore_backup(kept, path)
    assert await contents(path) == [1, 2]


async def test_a_bus_can_be_made_where_none_is(tmp_path: Path) -> None:
    backup = await backed_up(tmp_path / "bus", 1)
    place = restore_backup(str(backup), str(tmp_path / "deep" / "new"))
    assert await contents(place) == [1]
    assert place.stat().st_mode & 0o777 == 0o700
    assert files(place) == ["bus.db"]


async def test_what_was_running_counts_as_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    async with agentbus.connect(path) as bus:
        agent = await worker(bus, "a")
        await agent.send("a", "note", 1)
        assert await agent.receive(timeout=0) is not None
        block = bus.session("planning", id="s1")
        await block.__aenter__()
        backup = (await bus.backup()).path
        await agent.complete()
    restore_backup(backup, path)
    async with agentbus.connect(path) as bus:
        assert (await known(bus, "a")).status == "failed"
        assert (await held(bus, "s1")).status == "interrupted"
        (event,) = [event async for event in bus.events(kind="bus_restored")]
        assert event.facts == {"backup": Path(backup).name, "processes": 1}
        again = await worker(bus, "a")
        message = await again.receive(timeout=0)
        assert message is not None, "what was leased is free again"


async def test_a_bus_that_is_open_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    backup = await backed_up(path, 1)
    async with agentbus.connect(path) as bus:
        a = await worker(bus, "b")
        await a.send("b", "note", 2)
        with pytest.raises(BusInUse) as refused:
            restore_backup(backup, path)
        assert str(os.getpid()) in str(refused.value)
        await a.send("b", "note", 3)
    assert await contents(path) == [1, 2, 3]
    assert files(path) == ["backups", "bus.db"]


async def test_a_bus_without_a_bell_is_seen_to_be_open_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bus"
    backup = await backed_up(path, 1)

    def no_bells(_: object) -> None:
        raise NotWritable(path="bells", reason="none here")

    monkeypatch.setattr("agentbus.engine.sqlite.paths.prepare_bells", no_bells)
    async with agentbus.connect(path) as bus:
        with pytest.raises(BusInUse):
            restore_backup(backup, path)
        await worker(bus, "b")


async def test_a_bus_that_another_program_has_open_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    backup = await backed_up(path, 1)
    code = f"import sqlite3; c = sqlite3.connect({str(path / 'bus.db')!r}); c.execute('SELECT * FROM meta').fetchall()"
    code += "; print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:  # fmt: skip
        assert shell.stdin is not None
        assert shell.stdout is not None
        assert shell.stdout.readline() == "ready\n"
        with pytest.raises(BusInUse, match="another program"):
            restore_backup(backup, path)
        shell.stdin.close()
    restore_backup(backup, path)
    assert await contents(path) == [1]


async def test_a_bus_whose_lock_is_held_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr("agentbus.engine.sqlite.restore._LOCK_TIMEOUT", 0.05)
    path = tmp_path / "bus"
    backup = await backed_up(path, 1)
    with open(path / "bus.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(BusInUse, match="holds its lock"):
            restore_backup(backup, path)
    assert await contents(path) == [1]


def damaged(backup: Path, how: str) -> None:
    data = bytearray(backup.read_bytes())
    if how == "empty":
        data.clear()
    elif how == "text":
        data[:] = b"hello " * 1000
    elif how == "truncated":
        del data[len(data) // 2 :]
    elif how == "pages":
        # Not the first page: SQLite opens it without a word.
        for start in range(4096, len(data), 4096):
            data[start : start + 16] = os.urandom(16)
    elif how == "other database":
        backup.unlink()
        with sqlite3.connect(backup) as other:
            other.execute("CREATE TABLE t (x)")
        other.close()
        return
    elif how == "lacking":
        with sqlite3.connect(backup) as other:
            other.execute("DROP TABLE participants")
        other.close()
        return
    elif how == "references":
        with sqlite3.connect(backup) as other:
            other.execute("INSERT INTO documents (session, name, version, checksum, created, value)"
                          " VALUES ('nobody', 'd', 1, ?, 0, '1')", ("0" * 64,))  # fmt: skip
        other.close()
        return
    backup.write_bytes(data)


@pytest.fixture
async def intact(tmp_path: Path) -> Path:
    """The backup of a bus with 200 messages."""
    return await backed_up(tmp_path / "bus", *range(200))


@each("how", ["empty", "text", "truncated", "pages", "other database", "lacking", "references"])
async def test_a_damaged_backup_is_refused_and_the_bus_stays(tmp_path: Path, intact: Path, how: str) -> None:
    path = tmp_path / "bus"
    backup = intact.with_name(f"{how}.db")
    shutil.copy2(intact, backup)
    damaged(backup, how)
    with pytest.raises(DamagedBackup) as refused:
        restore_backup(backup, path)
    assert refused.value.path == str(backup)
    assert await contents(path) == list(range(100, 200)), "as it was"
    assert files(path) == ["backups", "bus.db"]


async def test_a_backup_of_a_newer_agentbus_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    backup = await backed_up(path, 1)
    with sqlite3.connect(backup) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(SchemaTooNew):
        restore_backup(backup, path)
    assert await contents(path) == [1]


async def test_bad_input_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    backup = await backed_up(path, 1)
    with pytest.raises(NoSuchFile, match="there is no such file"):
        restore_backup(tmp_path / "nothing", path)
    with pytest.raises(NoSuchFile, match="there is no such file"):
        restore_backup(backup / "nothing", path)
    with pytest.raises(NoSuchFile, match="that is a directory"):
        restore_backup(tmp_path, path)
    with pytest.raises(DamagedBackup, match="not an ordinary file"):
        restore_backup("/dev/null", path)
    for text in (None, 7, "", "a\0b"):
        with pytest.raises(InvalidInput):
            restore_backup(text, path)  # type: ignore[arg-type]
    with pytest.raises(InvalidUrl):
        restore_backup(backup, backup)
    with pytest.raises(UseServerTools, match=r"pg_restore .*postgresql://me@host/db") as server:
        restore_backup(backup, "postgresql://me:secret@host/db")
    assert "secret" not in str(server.value)
    assert await contents(path) == [1]


@each(("how", "where"), product(["missing", "text", "pages", "newer"], ["new", "deep/new", "there"]))
async def test_a_restore_that_is_refused_leaves_nothing_where_no_bus_was(
    tmp_path: Path, intact: Path, how: str, where: str
) -> None:
    backup = intact.with_name(f"{how}.db")
    if how != "missing":
        shutil.copy2(intact, backup)
    if how == "newer":
        with sqlite3.connect(backup) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
    elif how != "missing":
        damaged(backup, how)
    (tmp_path / "there").mkdir(exist_ok=True)
    before = sorted(path for path in tmp_path.rglob("*") if tmp_path / "bus" not in path.parents)
    with pytest.raises((DamagedBackup, SchemaTooNew, NoSuchFile)):
        restore_backup(backup, tmp_path / where)
    assert sorted(path for path in tmp_path.rglob("*") if tmp_path / "bus" not in path.parents) == before


class Killed(BaseException):
    """As if the process had ended there."""


def die(*_: object) -> None:
    raise Killed


async def test_a_restore_killed_before_the_last_step_leaves_no_second_name_of_the_bus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database with two names has two logs: opened by the other one, it lacks half of its data and may be damaged."""
    path = tmp_path / "bus"
    backup = await backed_up(path, 1)
    await backed_up(path, 2)

    monkeypatch.setattr("agentbus.engine.sqlite.restore.os.replace", die)
    with pytest.raises(Killed):
        restore_backup(backup, path)
    monkeypatch.undo()
    assert not list((path / "backups").glob("replaced-*"))
    assert await contents(path) == [1, 2]
    restore_backup(backup, path)
    (kept,) = (path / "backups").glob("replaced-*")
    assert not list((path / "backups").glob(".*"))
    assert (path / "bus.db").stat().st_nlink == kept.stat().st_nlink == 1


async def test_a_restore_killed_after_the_last_step_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bus"
    backup = await backed_up(path, 1)
    await backed_up(path, 2)

    monkeypatch.setattr("agentbus.engine.sqlite.restore.os.rename", die)
    with pytest.raises(Killed):
        restore_backup(backup, path)
    monkeypatch.undo()
    assert await contents(path) == [1]
    restore_backup(backup, path)
    kept = sorted((path / "backups").glob("replaced-*"))
    assert len(kept) == 2
    restore_backup(kept[0], path)
    assert await contents(path) == [1, 2]


@pytest.mark.parametrize("how", ["text", "pages", "empty"])
async def test_a_damaged_bus_can_be_replaced(tmp_path: Path, how: str) -> None:
    path = tmp_path / "bus"
    backup = await backed_up(path, 1)
    damaged(path / "bus.db", how)
    (path / "bus.db-wal").write_bytes(os.urandom(5000))
    with pytest.raises(AgentBusError):
        if how == "empty":
            raise AgentBusError(reason="an empty file is an empty bus")
        await contents(path)
    restore_backup(backup, path)
    assert await contents(path) == [1]
    assert len(list((path / "backups").glob("replaced-*.db"))) == 1


async def test_nothing_beside_the_old_bus_is_replayed_into_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bus"
    backup = await backed_up(path, 1)
    monkeypatch.setattr("agentbus.engine.sqlite.restore._refuse_in_use", lambda _: None)
    for suffix in ("-wal", "-shm", "-journal"):
        (path / f"bus.db{suffix}").write_text("of the old one")
    restore_backup(backup, path)
    assert files(path) == ["backups", "bus.db"]
    assert len(list((path / "backups").glob("replaced-*"))) == 4
    assert await contents(path) == [1]


async def test_what_a_killed_restore_left_is_swept_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    backup = await backed_up(path, 1)
    (path / "restoring-x").mkdir()
    (path / "restoring-x" / "bus.db").write_text("half")
    restore_backup(backup, path)
    assert files(path) == ["backups", "bus.db"]
    assert await contents(path) == [1]


async def test_restoring_in_another_boot_frees_what_was_held(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    before, after = FakeClock(boot="boot-1"), FakeClock(boot="boot-2", awake=5)
    async with agentbus.connect(path, clock=before) as bus:
        a = await worker(bus, "a")
        await a.send("a", "note", 1)
        assert await a.receive(timeout=0) is not None
        backup = (await bus.backup()).path
    restore_backup(backup, path, clock=after)
    async with agentbus.connect(path, clock=after) as bus:
        again = await worker(bus, "a")
        assert await again.receive(timeout=0) is not None


_SCRIPT = """
import asyncio, json, os, shutil, sys
import agentbus
from agentbus.errors import AgentBusError

place = sys.argv[1]
told = {}

async def main():
    async with agentbus.connect(os.path.join(place, "bus")) as bus:
        a = await bus.register("a", type="worker")
        await a.send_many([("a", "note", "x" * 40_000)] * 100)
        backup = (await bus.backup()).path
    with open(os.path.join(place, "filler"), "wb") as filler:
        filler.write(b"x" * (shutil.disk_usage(place).free - 2_000_000))
    try:
        agentbus.restore_backup(backup, os.path.join(place, "bus"))
    except AgentBusError as error:
        told["refused"] = error.code
    told["left"] = [name for name in os.listdir(os.path.join(place, "bus")) if name.startswith("restoring")]
    async with agentbus.connect(os.path.join(place, "bus")) as bus:
        told["stored"] = sum((await bus.stats()).messages.values())

asyncio.run(main())
print(json.dumps(told))
"""


def test_no_space_to_restore_is_a_named_error_and_the_bus_stays(tmp_path: Path) -> None:
    told = run_mounted('mount -t tmpfs -o size=24m tmpfs "$1"', _SCRIPT, tmp_path)
    assert told == {"refused": "disk_full", "left": [], "stored": 100}


def test_restoring_needs_no_event_loop(tmp_path: Path) -> None:
    code = "import sys, agentbus; agentbus.restore_backup; print({'asyncio', 'anyio', 'aiosqlite'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
