"""The doctor: says ok of a healthy bus, and finds each thing that can be wrong with one."""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from agentbus import Bus
from agentbus.engine.sqlite import health
from agentbus.records import Check
from tests.api.helpers import take, worker
from tests.conftest import Engine
from tests.engine.sqlite.health_helpers import NAMES, busy
from tests.support.clock import FakeClock


async def look(bus: Bus, name: str) -> Check:
    checks = {check.name: check for check in await bus.doctor()}
    assert list(checks) == NAMES
    return checks[name]


def ill(check: Check, status: str, word: str) -> None:
    assert (check.status, word in check.text) == (status, True), check
    assert check.fix


def sql(bus: Bus, statement: str, *parameters: Any) -> None:
    """A user with the sqlite3 shell."""
    connection = sqlite3.connect(bus._engine.directory / "bus.db", isolation_level=None)
    try:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(statement, parameters)
    finally:
        connection.close()


async def test_a_healthy_bus_is_healthy(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "_WITHOUT_RESET_BUG", (3, 0, 0))
    monkeypatch.setattr(health, "_VOLATILE", ())
    await busy(bus)
    checks = await bus.doctor()
    assert [check.name for check in checks] == NAMES
    assert [check for check in checks if check.status != "ok"] == []
    assert all(check.text for check in checks)


async def test_it_changes_nothing_and_blocks_no_writer(bus: Bus) -> None:
    await busy(bus)
    before = [event async for event in bus.events()]
    a = await worker(bus, "b")
    examined = asyncio.create_task(bus.doctor())
    for number in range(50):
        await a.send("b", "note", number)
    await examined
    assert len([event async for event in bus.events()]) == len(before) + 1
    files = {"bells", "bus.ballast", "bus.db", "bus.db-shm", "bus.db-wal", "bus.lock"}
    assert set(os.listdir(bus._engine.directory)) == files


async def test_rows_that_lead_nowhere_are_found(bus: Bus) -> None:
    sql(bus, "INSERT INTO documents (session, name, version, checksum, created, value) VALUES (?, 'd', 1, ?, 0, '1')",
        "nobody", "0" * 64)  # fmt: skip
    ill(await look(bus, "foreign keys"), "error", "documents to sessions")


CHANGED = [
    ("messages", "payload", "'{\"x\":2}'", "message m-1"),
    ("state", "value", "'[2]'", "state k of a"),
    ("documents", "value", "'{}'", "version 1 of document plan of session s1"),
    ("participants", "result", "'{}'", "the result of x in session s1"),
    ("messages", "payload", "CAST(x'22ff22' AS TEXT)", "message m-1"),
    ("checkpoints", "snapshot", "CAST(x'22ff22' AS TEXT)", "checkpoint 1"),
    ("checkpoints", "snapshot", "'{\"step\":2}'", "checkpoint 1"),
]


async def test_a_payload_that_is_not_what_it_was_is_found(bus: Bus) -> None:
    await busy(bus)
    for kind, column, value, word in CHANGED:
        sql(bus, f"CREATE TABLE original AS SELECT {column} FROM {kind}")
        sql(bus, f"UPDATE {kind} SET {column} = {value}")
        checks = {check.name: check for check in await bus.doctor()}
        sql(bus, f"UPDATE {kind} SET {column} = (SELECT {column} FROM original)")
        sql(bus, "DROP TABLE original")
        assert list(checks) == NAMES
        ill(checks[f"payloads of {kind}"], "error", f"1 of 1 does not match its checksum: {word}")
        for other in {kind for kind, *_ in CHANGED} - {kind}:
            assert checks[f"payloads of {other}"].status == "ok", (kind, value, other)
    for kind in {kind for kind, *_ in CHANGED}:
        assert (await look(bus, f"payloads of {kind}")).status == "ok"


async def test_the_number_of_compared_payloads_is_bounded(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    a = await worker(bus, "a")
    await a.send_many([("a", "note", n) for n in range(300)])
    assert "all 300" in (await look(bus, "payloads of messages")).text
    monkeypatch.setattr("agentbus.api.maintenance.doctor._MAX_ROWS", 100)
    text = (await look(bus, "payloads of messages")).text
    assert text.startswith("the newest 128 ")


async def test_damaged_pages_are_found_and_every_check_still_answers(engine: Engine) -> None:
    async with engine.connect() as bus:
        await busy(bus)
        path = bus._engine.directory / "bus.db"
    data = bytearray(path.read_bytes())
    connection = sqlite3.connect(path)
    (root,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'messages_by_message_id'").fetchone()
    (events,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'documents'").fetchone()
    connection.close()
    for page in (root, events):
        data[(page - 1) * 4096 : page * 4096] = os.urandom(4096)
    path.write_bytes(data)
    async with engine.connect() as bus:
        checks = {check.name: check for check in await bus.doctor()}
        unseen = [name for name in NAMES if name not in checks]
        assert "payloads of documents" in unseen
        ill(checks["integrity"], "error", f"for the same reason: {', '.join(unseen)}")
        assert [name for name, check in checks.items() if check.status == "error"] == ["integrity"]


async def test_another_schema_is_found(bus: Bus) -> None:
    sql(bus, "PRAGMA user_version = 99")
    ill(await look(bus, "schema"), "error", "schema 99")


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DROP TABLE events", "missing: table events, index events_by_kind, index events_by_subject"),
        ("DROP INDEX messages_ready", "missing: index messages_ready"),
        ("DROP TRIGGER vocabulary_stays", "missing: trigger vocabulary_stays"),
        ("ALTER TABLE meta ADD COLUMN mine TEXT", "changed: table meta"),
        ("CREATE TRIGGER mine AFTER INSERT ON meta BEGIN DELETE FROM meta; END", "added: trigger mine"),
    ],
)
async def test_changed_tables_indexes_and_triggers_are_found(engine: Engine, statement: str, words: str) -> None:
    async with engine.connect() as bus:
        await busy(bus)
        backup = (await bus.backup()).path
        sql(bus, statement)
        await bus.backup()
        checks = {check.name: check for check in await bus.doctor()}
        ill(checks["schema"], "error", words)
        assert str(backup) in str(checks["schema"].fix), "the newest that is sound"
        assert [name for name, check in checks.items() if check.status == "error"] == ["schema"], "one cause, one error"
        if "events" in statement:
            assert checks["schema"].text.endswith("for the same reason: clock")
            sql(bus, "CREATE TABLE events (id, at, kind, subject_kind, subject, actor, facts)")


async def test_what_others_put_beside_the_tables_does_no_harm(bus: Bus) -> None:
    sql(bus, "CREATE TABLE mine (x)")
    sql(bus, "CREATE INDEX my_index ON messages (sender)")
    sql(bus, "ANALYZE")
    assert (await look(bus, "schema")).status == "ok"


async def test_the_sqlite_of_this_python_is_judged(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    check = await look(bus, "sqlite")
    assert check.status == ("ok" if sqlite3.sqlite_version_info >= (3, 51, 3) else "warning")
    monkeypatch.setattr(health, "_WITHOUT_RESET_BUG", (99, 0, 0))
    ill(await look(bus, "sqlite"), "warning", "WAL-reset")


async def test_a_file_system_that_does_not_last_or_is_not_shared_is_found(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "filesystem", lambda *_: "tmpfs")
    ill(await look(bus, "file system"), "warning", "tmpfs")
    monkeypatch.setattr("agentbus.engine.sqlite.paths.filesystem", lambda *_: "nfs4")
    ill(await look(bus, "file system"), "error", "nfs4")


async def test_files_that_others_may_read_are_found(bus: Bus) -> None:
    await bus.backup()
    (backup,) = (bus._engine.directory / "backups").iterdir()
    backup.chmod(0o644)
    ill(await look(bus, "permissions"), "warning", str(backup))
    backup.chmod(0o600)
    bus._engine.directory.chmod(0o755)
    ill(await look(bus, "permissions"), "warning", str(bus._engine.directory))


async def test_a_large_log_is_found(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    await busy(bus)
    monkeypatch.setattr(health, "LARGE_LOG", 1000)
    ill(await look(bus, "log"), "warning", "MiB")


@pytest.mark.parametrize(("free", "status"), [(10**7, "error"), (10**8, "warning"), (10**12, "ok")])
async def test_a_disk_that_fills_up_is_found(bus: Bus, monkeypatch: pytest.MonkeyPatch, free: int, status: str) -> None:
    class Usage:
        pass

    usage = Usage()
    usage.free = free  # type: ignore[attr-defined]
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    assert (await look(bus, "disk")).status == status


async def test_leftover_doorbells_and_files_are_found(bus: Bus) -> None:
    bell = bus._engine.directory / "bells" / "1-dead"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as orphan:
        orphan.bind(str(bell))
        assert (await look(bus, "orphans")).status == "ok", "a process answers"
    ill(await look(bus, "orphans"), "warning", str(bell))
    bell.unlink()
    for name in ("restoring-x", "bus.db-wal.of-123"):
        (bus._engine.directory / name).mkdir()
        ill(await look(bus, "orphans"), "warning", name)
        (bus._engine.directory / name).rmdir()


async def test_a_held_lock_names_its_holder(bus: Bus) -> None:
    with open(bus._engine.directory / "bus.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        checks = {check.name: check for check in await bus.doctor()}
        assert str(os.getpid()) in checks["lock"].text
        assert [check for check in checks.values() if check.status == "error"] == [], "it needs no lock itself"
    assert (await look(bus, "lock")).text == "free"


async def test_leases_that_are_never_released_are_found(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1)
    await take(a, lease=10)
    clock.stall(60)
    assert (await look(bus, "leases")).status == "ok"
    clock.stall(20)
    ill(await look(bus, "leases"), "warning", "1 lease expired")


async def test_processes_that_are_gone_are_found(bus: Bus) -> None:
    sql(bus, "INSERT INTO processes (host, boot, pid, started, beat, created)"
        " SELECT host, boot, 2147483000, 'x', beat, created FROM processes")  # fmt: skip
    ill(await look(bus, "processes"), "warning", "2147483000")


async def test_a_clock_that_was_set_back_is_found(bus: Bus, clock: FakeClock) -> None:
    await worker(bus, "a")
    clock.jump(-200)
    assert (await look(bus, "clock")).status == "ok"
    clock.jump(-200)
    ill(await look(bus, "clock"), "warning", "400 s in the future")
    sql(bus, "UPDATE processes SET beat = beat + 9000000")
    ill(await look(bus, "clock"), "error", "9000 s")


async def test_documents_that_were_expected_and_never_came_are_found(bus: Bus) -> None:
    async with bus.session("planning", id="good", expects={"a": "plan"}) as session:
        await session.document("plan").save(1)
        assert (await look(bus, "expected documents")).status == "ok"
    async with bus.session("planning", id="bad", expects={"a": "plan", "b": "risks"}) as session:
        await session.document("plan").save(1)
        assert (await look(bus, "expected documents")).status == "ok", "it may still come"
    ill(await look(bus, "expected documents"), "warning", "1 session ")
    ill(await look(bus, "expected documents"), "warning", "bad: risks")


async def test_a_backup_that_is_being_made_is_no_orphan(bus: Bus) -> None:
    await bus.backup()
    unfinished = bus._engine.directory / "backups" / ".agentbus-0-0.unfinished"
    unfinished.write_text("half")
    ill(await look(bus, "orphans"), "warning", str(unfinished))
    with open(bus._engine.directory / "backup.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert (await look(bus, "orphans")).status == "ok"


def test_the_doctor_never_opens_a_file_of_the_database() -> None:
    """Closing it would drop the locks that SQLite has on it in this process."""
    text = Path(health.__file__).read_text(encoding="utf-8")
    touching = re.findall(r"\b(?:open|read_bytes|read_text|copy\w*)\(", text)
    assert touching == ["read_bytes("]
    assert 'Path("/proc/self/mountinfo").read_bytes()' in text
