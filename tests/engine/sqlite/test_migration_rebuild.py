"""A migration that rebuilds tables keeps all that is in them and around them, or changes nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus.engine.postgres import connection as postgres
from agentbus.engine.sqlite import connection, migration
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.paths import Home
from agentbus.errors import FormatRefused, MigrationFailed, StoreError
from agentbus.sync.bus import open_bus
from tests.conftest import SQLiteStore
from tests.engine.sqlite.mount_namespace import run_mounted
from tests.support.widening import TABLES, fill, for_sqlite, later, rebuilt, tables, widen

__all__ = ["later"]
Later = Callable[[str], pytest.MonkeyPatch]
EVERYTHING = "SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY type, name"


def contents(path: Path) -> dict[str, Any]:
    """All rows of all tables, all objects, the sequences and the version."""
    with closing(sqlite3.connect(path / "bus.db")) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        found: dict[str, Any] = {name: sorted(database.execute(f"SELECT * FROM {name}"), key=repr) for name in names}
        found["objects"] = database.execute(EVERYTHING).fetchall()
        found["version"] = database.execute("PRAGMA user_version").fetchone()
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return found


def change(path: Path, *statements: str) -> None:
    """As another program would, which does not know our pragmas."""
    with closing(sqlite3.connect(path / "bus.db", isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


async def filled(path: Path) -> Path:
    async with agentbus.connect(path) as bus:
        await fill(bus)
    # An id that was given out, and whose row is gone.
    change(path, "INSERT INTO mailboxes (id, kind, name, created) VALUES (900, 'pool', 'gone', 0)")
    change(path, "DELETE FROM mailboxes WHERE id = 900")
    return path


async def test_closed_lists_are_widened_on_a_bus_with_data(engine: SQLiteStore, later: Later) -> None:
    script = for_sqlite()
    await widen(engine.connect, engine.tamper, lambda: later(script))


async def test_a_rebuild_keeps_rows_indexes_triggers_and_sequences(tmp_path: Path, later: Later) -> None:
    path = await filled(tmp_path / "bus")
    # What others put beside our tables, and on them.
    change(path, "CREATE INDEX mine ON messages (sender)", "CREATE TABLE also_mine (x)")
    before = contents(path)
    later(for_sqlite())
    open_bus(path).close()
    after = contents(path)
    assert after["version"] == (before["version"][0] + 1,)
    shapes = [{row[:3] for row in found["objects"]} for found in (before, after)]
    assert shapes[0] == shapes[1]
    texts = [{row for row in found["objects"] if row[1] not in TABLES} for found in (before, after)]
    assert texts[0] == texts[1]
    same = set(before) - {"objects", "version", "counters", "processes", "events", "meta"}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert dict(after["sqlite_sequence"])["mailboxes"] == 900
    async with agentbus.connect(path) as bus:
        await bus.declare(agentbus.pool("next"))
        assert [check for check in await bus.doctor() if check.status == "error"] == []
    with closing(sqlite3.connect(path / "bus.db")) as database:
        assert database.execute("SELECT id FROM mailboxes WHERE name = 'next'").fetchone() == (901,)


async def test_a_table_that_triggers_of_others_mention_can_be_rebuilt(tmp_path: Path, later: Later) -> None:
    path = await filled(tmp_path / "bus")
    before = contents(path)
    text = next(row[3] for row in before["objects"] if row[1] == "vocabulary")
    later(f"-- rebuilds: vocabulary\n{rebuilt('vocabulary', text)};")
    async with agentbus.connect(path) as bus:
        assert [check for check in await bus.doctor() if check.status == "error"] == []
        assert (await bus.stats()).messages == {"queued": 2}
    after = contents(path)
    assert after["vocabulary"] == before["vocabulary"]
    assert [row for row in after["objects"] if row[1] != "vocabulary"] == [
        row for row in before["objects"] if row[1] != "vocabulary"
    ]
    with pytest.raises(sqlite3.IntegrityError, match="never removed"):
        change(path, "DELETE FROM vocabulary")


async def test_columns_come_and_go_with_a_rebuild(tmp_path: Path, later: Later) -> None:
    path = await filled(tmp_path / "bus")
    before = contents(path)
    later(
        "-- rebuilds: steps, also\n"
        "CREATE TABLE also (a TEXT, b TEXT, c TEXT) STRICT; INSERT INTO also VALUES ('x', 'a; b', 'z');\n"
        "CREATE TABLE rebuilt_also (c TEXT, d TEXT DEFAULT 'new', b TEXT) STRICT; -- one; that goes\n"
        "CREATE INDEX also_b ON also (b);\n"
        f"{tables()['steps']};"
    )
    open_bus(path).close()
    after = contents(path)
    assert after["steps"] == before["steps"]
    assert after["also"] == [("z", "new", "a; b")]
    assert ("index", "also_b", "also", "CREATE INDEX also_b ON also (b)") in after["objects"]


@pytest.mark.parametrize(
    ("spoilt", "error", "words"),
    [
        ("UPDATE steps SET task = 4711", MigrationFailed, "steps to tasks"),
        ("UPDATE messages SET mailbox = 4711", MigrationFailed, "messages to mailboxes"),
        ("UPDATE steps SET note = 'unlucky'", FormatRefused, "CHECK"),
    ],
)
async def test_a_rebuild_that_fails_leaves_the_old_schema(
    tmp_path: Path, later: Later, spoilt: str, error: type[StoreError], words: str
) -> None:
    path = await filled(tmp_path / "bus")
    change(path, spoilt)
    before = contents(path)
    older = later(for_sqlite().replace("note       TEXT,", "note TEXT CHECK (note <> 'unlucky'),"))
    with pytest.raises(error, match=words) as refused:
        open_bus(path)
    if error is MigrationFailed:
        assert (refused.value.code, refused.value.found) == ("migration_failed", before["version"][0])
        assert "doctor" in str(refused.value.fix)
    assert contents(path) == before
    older.undo()
    with open_bus(path) as bus:
        assert bus.stats().messages == {"queued": 2}


@pytest.mark.parametrize("script", ["", ";\nSELECT * FROM nothing"], ids=["done", "failed"])
async def test_foreign_keys_are_on_again_afterwards(tmp_path: Path, later: Later, script: str) -> None:
    path = await filled(tmp_path / "bus")
    steps = connection.migrations()
    place = Home(path)
    lock = FileLock(place.lock, 10)
    opened = connection.open_writer(place, lock)
    try:
        found = max(steps)
        with pytest.raises(sqlite3.Error) if script else nullcontext():
            migration.run(opened, place, found, {**steps, found + 1: for_sqlite() + script})
        for pragma, wanted in (("foreign_keys", 1), ("temp_store", 2), ("legacy_alter_table", 0)):
            assert opened.execute(f"PRAGMA {pragma}").fetchone() == (wanted,)
        assert not opened.in_transaction
    finally:
        opened.close()
        lock.close()


def test_both_dialects_have_the_same_numbers() -> None:
    assert sorted(connection.migrations()) == sorted(postgres.migrations())
    assert sorted(connection.migrations()) == list(range(1, len(connection.migrations()) + 1))


_FULL = """
import json, os, shutil, sqlite3, sys
from agentbus.sync.bus import open_bus
from agentbus.engine.sqlite import connection
from agentbus.errors import AgentBusError
from tests.support.widening import for_sqlite

path = os.path.join(sys.argv[1], "bus")
open_bus(path, create=True).close()
raw = sqlite3.connect(os.path.join(path, "bus.db"), isolation_level=None)
raw.execute("INSERT INTO mailboxes (id, kind, name, created) VALUES (1, 'pool', 'p', 0)")
raw.execute('''WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000)
    INSERT INTO messages (id, message_id, mailbox, sender, type, checksum, priority, status, max_attempts, created,
    payload)
    SELECT i, hex(randomblob(16)), 1, 'a', 'note', 0, 5, 'queued', 5, 1, '"' || hex(randomblob(400)) || '"' FROM n''')
raw.close()
told = {"before": os.stat(os.path.join(path, "bus.db")).st_size}
real = connection.migrations()
steps = {**real, max(real) + 1: for_sqlite()}
connection.migrations = lambda: steps
filler = os.path.join(sys.argv[1], "filler")
with open(filler, "wb") as file:
    file.write(bytes(shutil.disk_usage(sys.argv[1]).free - 2_500_000))
other = sqlite3.connect(os.path.join(path, "bus.db"), isolation_level=None)
other.execute("SELECT count(*) FROM meta").fetchall()
try:
    open_bus(path)
except AgentBusError as error:
    told["refused"] = error.code
told["free"] = shutil.disk_usage(sys.argv[1]).free
told["version"] = other.execute("PRAGMA user_version").fetchone()[0] - max(real)
told["old"] = "parked" not in other.execute("SELECT sql FROM sqlite_schema WHERE name = 'messages'").fetchone()[0]
other.close()
os.remove(filler)
with open_bus(path) as bus:
    told["messages"] = bus.stats().messages
other = sqlite3.connect(os.path.join(path, "bus.db"))
told["new"] = "parked" in other.execute("SELECT sql FROM sqlite_schema WHERE name = 'messages'").fetchone()[0]
told["integrity"] = other.execute("PRAGMA integrity_check").fetchone()[0]
other.close()
print(json.dumps(told))
"""


@pytest.mark.fault(6)
def test_a_disk_that_is_full_during_a_rebuild_leaves_the_old_schema(tmp_path: Path) -> None:
    """Another process has the bus open: closing alone would not make the log small again."""
    told = run_mounted('mount -t tmpfs -o size=40m tmpfs "$1"', _FULL, tmp_path)
    assert told["before"] > 4_000_000
    assert (told["refused"], told["version"], told["old"]) == ("disk_full", 0, True)
    assert told["free"] >= 2_000_000, "the room is there again"
    assert (told["messages"], told["new"], told["integrity"]) == ({"queued": 5000}, True, "ok")
