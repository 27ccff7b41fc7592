"""``agentbus.doctor``: looks at a bus without opening it, says what is wrong with it, and changes nothing."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

import agentbus
from agentbus.engine.sqlite.connection import migrations
from agentbus.engine.sqlite.schema_check import check_expressions
from agentbus.errors import InvalidUrl
from agentbus.records import Check
from tests.engine.sqlite.health_helpers import NAMES, busy
from tests.support import zygote
from tests.support.clock import FakeClock

OPEN_CHECKS = 5

_template: list[tempfile.TemporaryDirectory[str]] = []
"""The parent directory of the bus that ``made`` copies."""


def files(path: Path) -> dict[str, tuple[int, str]]:
    """Everything that is there, but for the shared memory, which is SQLite's scratch paper."""
    found = {}
    for file in sorted(path.rglob("*")):
        if file.is_file() and not file.name.endswith("-shm"):
            found[str(file)] = file.stat().st_mode, hashlib.sha256(file.read_bytes()).hexdigest()
        else:
            found[str(file)] = file.stat().st_mode, ""
    return found


async def made(path: Path) -> str:
    """Make a bus with something of every kind, closed; return the path of its backup."""
    if not _template:
        directory = tempfile.TemporaryDirectory(prefix="agentbus-test-")
        async with agentbus.connect(Path(directory.name) / "bus") as bus:
            await busy(bus)
            await bus.backup()
        _template.append(directory)
    shutil.copytree(Path(_template[0].name) / "bus", path, dirs_exist_ok=True)
    (backup,) = (path / "backups").glob("*.db")
    return str(backup)


async def ill(path: Path) -> dict[str, Check]:
    """Return the errors that the doctor reports; it must have changed nothing."""
    before = files(path)
    checks = await agentbus.doctor(path)
    assert files(path) == before
    assert [check.name for check in checks] == list({check.name: None for check in checks})
    return {check.name: check for check in checks if check.status == "error"}


async def test_a_bus_that_no_process_has_open(tmp_path: Path) -> None:
    await made(tmp_path / "bus")
    assert await ill(tmp_path / "bus") == {}
    assert [check.name for check in await agentbus.doctor(tmp_path / "bus")] == NAMES


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("UPDATE state SET type = 'user_daua'", "state"),
        ("UPDATE agents SET status = 'gone'", "agents"),
        ("UPDATE messages SET payload = 'no JSON'", "messages"),
        ("UPDATE checkpoints SET files = '{'", "checkpoints"),
        ("UPDATE messages SET attempts = -1", "messages"),
    ],
)
async def test_a_row_that_its_table_would_refuse_is_found(tmp_path: Path, statement: str, table: str) -> None:
    """SQLite does not look at that in a database that it may only read, as the doctor does from outside."""
    await made(tmp_path)
    connection = sqlite3.connect(tmp_path / "bus.db", isolation_level=None)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute(statement)
    connection.close()
    assert (await ill(tmp_path))["integrity"].text.endswith(f": {table}")


async def test_a_backup_with_such_a_row_is_not_advised(tmp_path: Path) -> None:
    backup = Path(await made(tmp_path))
    (tmp_path / "bus.db").write_bytes(b"no database")
    assert str(backup) in str((await ill(tmp_path))["integrity"].fix)
    connection = sqlite3.connect(backup, isolation_level=None)
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute("UPDATE agents SET status = 'gone'")
    connection.close()
    assert "there is no sound backup" in str((await ill(tmp_path))["integrity"].fix)


def test_every_constraint_of_the_tables_is_known() -> None:
    script = "\n".join(migrations().values())
    known = [one for sql in script.split("CREATE TABLE")[1:] for one in check_expressions(sql)]
    assert len(known) == len(re.findall(r"\bCHECK \(", script)) > 100


async def test_a_bus_that_is_open_here_keeps_working(tmp_path: Path) -> None:
    await made(tmp_path)
    async with agentbus.connect(tmp_path) as bus:
        a = await bus.register("a", type="worker")
        for number in range(OPEN_CHECKS):
            await a.send("a", "note", number)
            assert not [check for check in await agentbus.doctor(tmp_path) if check.status == "error"]
        assert [check.name for check in await agentbus.doctor(tmp_path)] == NAMES
    connection = sqlite3.connect(tmp_path / "bus.db")
    assert connection.execute("SELECT count(*) FROM messages WHERE status = 'queued'").fetchone() == (OPEN_CHECKS + 1,)
    connection.close()


async def test_a_bus_left_by_kill_9(tmp_path: Path) -> None:
    code = """
import agentbus, asyncio, os
async def main():
    async with agentbus.connect(os.sys.argv[1]) as bus:
        await bus.register("a", type="worker")
        os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    zygote.run([sys.executable, "-c", code, str(tmp_path)], timeout=60)
    assert (tmp_path / "bus.db-wal").stat().st_size
    assert await ill(tmp_path) == {}
    checks = {check.name: check for check in await agentbus.doctor(tmp_path)}
    assert (checks["processes"].status, checks["processes"].text[:6]) == ("warning", "1 of 1")


async def test_no_bus_is_made_where_there_is_none(tmp_path: Path) -> None:
    for name in ("nothing", "deep/nothing"):
        assert list(await ill(tmp_path / name)) == ["database"]
    (tmp_path / "empty").mkdir()
    found = await ill(tmp_path / "empty")
    assert list(found) == ["database"]
    assert "there is no sound backup" in str(found["database"].fix)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


async def test_a_path_that_cannot_hold_a_bus_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for wrong in (tmp_path / "file", "mysql://host/db", "a\0b"):
        with pytest.raises(InvalidUrl):
            await agentbus.doctor(wrong)


def _text(path: Path) -> None:
    path.write_text("hello " * 1000)


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _pages(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for start in range(4096, len(data), 4096):
        data[start : start + 16] = os.urandom(16)
    path.write_bytes(data)


def _newer(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    for log in path.parent.glob("bus.db-*"):
        log.unlink()


def _header(path: Path) -> None:
    """The name of a table in the catalogue is no Unicode."""
    data = path.read_bytes()
    path.write_bytes(data.replace(b"CREATE TABLE meta", b"CREATE TABLE \xff\xfe\xfd\xfc"))


@pytest.mark.parametrize(
    ("spoil", "name", "words"),
    [
        (_text, "integrity", "file is not a database"),
        (_cut, "integrity", ""),
        (_pages, "integrity", ""),
        (_header, "integrity", ""),
        (lambda path: path.write_bytes(b""), "schema", "the database is empty"),
        (lambda path: path.unlink(), "database", "there is no"),
    ],
)
async def test_a_bus_that_cannot_be_opened_is_reported_once_with_the_newest_sound_backup(
    tmp_path: Path, spoil: Callable[[Path], None], name: str, words: str
) -> None:
    bus = tmp_path / "bus"
    good = await made(bus)
    later = bus / "backups" / "bus-29990101T000000.000Z-00000000.db"
    shutil.copy(good, later)
    later.chmod(0o600)
    _cut(later)
    spoil(bus / "bus.db")
    found = await ill(bus)
    assert list(found) == [name]
    assert words in found[name].text
    assert str(good) in str(found[name].fix)
    assert "\udcff" not in found[name].text
    agentbus.restore_backup(good, bus)
    assert await ill(bus) == {}


async def test_a_bus_of_a_newer_agentbus(tmp_path: Path) -> None:
    await made(tmp_path)
    _newer(tmp_path / "bus.db")
    found = await ill(tmp_path)
    assert {name: check.fix for name, check in found.items()} == {"schema": "upgrade agentbus"}


async def test_a_bus_that_another_program_has_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbus.engine.sqlite.health._LOCK_TIMEOUT", 0.05)
    await made(tmp_path)
    connection = sqlite3.connect(tmp_path / "bus.db", isolation_level=None)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("BEGIN EXCLUSIVE")
    try:
        checks = {check.name: check for check in await agentbus.doctor(tmp_path)}
        found = [name for name, check in checks.items() if check.status == "error"]
        assert found == ["integrity"]
        assert "is locked by another program" in checks["integrity"].text
        assert checks["integrity"].fix
    finally:
        connection.execute("ROLLBACK")
        connection.close()


async def test_a_held_lock_delays_no_check(tmp_path: Path) -> None:
    await made(tmp_path)
    with open(tmp_path / "bus.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert await ill(tmp_path) == {}


async def test_files_that_this_user_may_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For root permissions do not bind, so that the system's answer is made up."""
    await made(tmp_path)
    really = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "bus.db" not in str(path) and really(path, mode))
    found = await ill(tmp_path)
    assert list(found) == ["permissions"]
    assert "may not read and write" in found["permissions"].text
    assert str(found["permissions"].fix).endswith(f"chmod u+rwX {tmp_path / 'bus.db'}")


# A bus that vanished


async def test_opening_a_bus_that_vanished_names_its_newest_backup(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    for empty in (False, True):
        async with agentbus.connect(tmp_path, clock=clock) as bus:
            await bus.backup()
            clock.advance(60)
            backup = (await bus.backup()).path
        clock.advance(60)
        caplog.clear()
        (tmp_path / "bus.db").unlink()
        if empty:
            (tmp_path / "bus.db").touch()
        advice = str(backup)
        async with agentbus.connect(tmp_path, clock=clock) as bus:
            (record,) = [record for record in caplog.records if "new bus" in record.getMessage()]
            assert (record.levelname, advice in record.getMessage()) == ("WARNING", True)
            checks = {check.name: check for check in await bus.doctor()}
            assert checks["backups"].status == "warning"
            assert advice in str(checks["backups"].fix)
        assert {check.name: check for check in await agentbus.doctor(tmp_path)}["backups"] == checks["backups"]
        caplog.clear()
        clock.advance(60)
        async with agentbus.connect(tmp_path, clock=clock) as bus:
            assert caplog.text == "", "said once"
            await bus.backup()
            checks = {check.name: check for check in await bus.doctor()}
            assert checks["backups"].status == "ok", "this one is in use"


async def test_a_bus_that_vanished_and_was_restored_is_the_old_one(tmp_path: Path) -> None:
    clock = FakeClock()
    async with agentbus.connect(tmp_path, clock=clock) as bus:
        clock.advance(60)
        backup = (await bus.backup()).path
    clock.advance(60)
    (tmp_path / "bus.db").unlink()
    async with agentbus.connect(tmp_path, clock=clock):
        pass
    agentbus.restore_backup(backup, tmp_path, clock=clock)
    async with agentbus.connect(tmp_path, clock=clock) as bus:
        checks = {check.name: check for check in await bus.doctor()}
        assert checks["backups"].status == "ok"


async def test_a_bus_that_vanished_without_a_backup_names_its_newest_archive(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with agentbus.connect(tmp_path) as bus:
        async with bus.agent("a", type="worker") as agent:
            await agent.send("a", "note", 1)
            await agent.ack(await agent.receive_many(1, timeout=0))
        archive = (await bus.retention.apply(policy=agentbus.RetentionPolicy(messages=0))).archive
    (tmp_path / "bus.db").unlink()
    async with agentbus.connect(tmp_path):
        assert str(archive) in caplog.text


async def test_a_new_bus_is_created_without_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with agentbus.connect(tmp_path / "bus"):
        pass
    (tmp_path / "other" / "backups").mkdir(parents=True)
    (tmp_path / "other" / "backups" / "mine.txt").write_text("not a backup")
    async with agentbus.connect(tmp_path / "other"):
        pass
    assert caplog.text == ""
