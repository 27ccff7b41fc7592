"""A database with triggers, views or virtual tables of another program is refused: they would act on every write."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import agentbus
from agentbus.engine.sqlite import connection
from agentbus.errors import DamagedBackup, ForeignObjects, NotADatabase
from agentbus.sync.bus import open_bus
from tests.engine.sqlite.test_migration import old_bus
from tests.support.widening import later

__all__ = ["later"]
EVIL = "AFTER INSERT ON messages BEGIN UPDATE messages SET payload = '0' WHERE id = NEW.id; END"
TRIGGER = f"CREATE TRIGGER evil {EVIL}"
HIDDEN = (
    "PRAGMA writable_schema = ON",
    "INSERT INTO sqlite_schema (type, name, tbl_name, rootpage, sql) VALUES ('table', 'evil', 'messages', 0, "
    + f"'CREATE TRIGGER evil {EVIL}')".replace("'0'", "''0''"),
)
"""A trigger that calls itself a table."""


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        for statement in statements:
            database.execute(statement)


async def made(path: Path) -> Path:
    async with agentbus.connect(path) as bus, bus.agent("a", type="worker") as a:
        await a.send("a", "note", 1)
        await bus.backup()
    return path / "bus.db"


@pytest.mark.parametrize(
    ("statements", "words"),
    [
        ([TRIGGER], "trigger evil"),
        (["CREATE VIEW also_evil AS SELECT * FROM messages"], "view also_evil"),
        (["CREATE VIRTUAL TABLE evil USING fts5(x)"], "table evil"),
        (["DROP TRIGGER vocabulary_stays", f"CREATE TRIGGER vocabulary_stays {EVIL}"], "trigger vocabulary_stays"),
        (["ALTER TABLE listeners RENAME TO x", "CREATE VIEW listeners AS SELECT * FROM x"], "view listeners"),
        ([f'CREATE TRIGGER "\x1b[2Jevil" {EVIL}'], r"trigger \\x1b[2Jevil"),
    ],
    ids=["trigger", "view", "virtual table", "another trigger of the same name", "view for a table", "escape"],
)
async def test_a_bus_with_objects_of_another_program_is_not_opened(
    tmp_path: Path, statements: list[str], words: str
) -> None:
    path = await made(tmp_path / "bus")
    try:
        change(path, *statements)
    except sqlite3.OperationalError as error:
        if "no such module" in str(error):
            pytest.skip(str(error))
        raise
    for create in (False, True):
        with pytest.raises(ForeignObjects) as refused:
            open_bus(path.parent, create=create)
        assert refused.value.code == "foreign_objects"
        assert words.replace(r"\\", "\\") in str(refused.value)
        assert "DROP TRIGGER" in str(refused.value.fix)
        assert "\x1b" not in str(refused.value)
    with pytest.raises(ForeignObjects):
        async with agentbus.connect(path.parent):
            pytest.fail("this block must not run")
    # From outside the doctor says the same, and which backup is sound.
    (schema,) = [check for check in await agentbus.doctor(path.parent) if check.name == "schema"]
    assert schema.status == "error"
    assert words.replace(r"\\", "\\") in schema.text
    assert "backup" in str(schema.fix)


async def test_a_trigger_that_calls_itself_a_table_is_refused_too(tmp_path: Path) -> None:
    """By SQLite itself, where it compares the two."""
    path = await made(tmp_path / "bus")
    change(path, *HIDDEN)
    with pytest.raises((ForeignObjects, NotADatabase), match="evil"):
        open_bus(path.parent)


async def test_tables_and_indexes_of_another_program_do_no_harm(tmp_path: Path) -> None:
    path = await made(tmp_path / "bus")
    change(path, "CREATE TABLE mine (x)", "CREATE UNIQUE INDEX my_index ON messages (id, sender)", "ANALYZE")
    open_bus(path.parent).close()


async def test_a_bus_that_was_mended_is_opened_again(tmp_path: Path) -> None:
    path = await made(tmp_path / "bus")
    change(path, TRIGGER)
    with pytest.raises(ForeignObjects):
        open_bus(path.parent)
    change(path, "DROP TRIGGER evil")
    with open_bus(path.parent) as bus:
        assert bus.stats().messages == {"queued": 1}


def test_an_older_bus_with_a_foreign_trigger_is_not_migrated(tmp_path: Path) -> None:
    path = old_bus(tmp_path / "bus", connection.migrations()[1])
    change(path, "CREATE TRIGGER evil AFTER INSERT ON meta BEGIN DELETE FROM messages; END")
    with pytest.raises(ForeignObjects, match="trigger evil"):
        open_bus(path.parent)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (1,)
        assert database.execute("SELECT count(*) FROM messages").fetchone() == (1,)


async def test_a_backup_with_a_foreign_trigger_is_not_restored(tmp_path: Path) -> None:
    path = await made(tmp_path / "bus")
    (backup,) = (path.parent / "backups").iterdir()
    change(backup, TRIGGER)
    before = path.read_bytes()
    with pytest.raises(DamagedBackup, match="trigger evil") as refused:
        agentbus.restore_backup(backup, path.parent)
    assert "did not create" in str(refused.value)
    assert path.read_bytes() == before
    with pytest.raises(DamagedBackup, match="trigger evil"):
        agentbus.restore_backup(backup, tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    path.unlink()
    # Nor is it recommended.
    (database,) = [check for check in await agentbus.doctor(path.parent) if check.name == "database"]
    assert "there is no sound backup" in str(database.fix)


async def test_an_older_backup_with_a_foreign_trigger_is_not_restored(tmp_path: Path) -> None:
    backup = old_bus(tmp_path / "old", connection.migrations()[1])
    change(backup, TRIGGER, "PRAGMA journal_mode = DELETE")
    with pytest.raises(DamagedBackup, match="trigger evil"):
        agentbus.restore_backup(backup, tmp_path / "bus")
    assert not (tmp_path / "bus").exists()
    change(backup, "DROP TRIGGER evil")
    agentbus.restore_backup(backup, tmp_path / "bus")
    with open_bus(tmp_path / "bus") as bus:
        assert bus.stats().messages == {"queued": 1}


async def test_a_trigger_whose_text_sqlite_rewrote_is_known(
    tmp_path: Path, later: Callable[[str], pytest.MonkeyPatch]
) -> None:
    """A migration that renames a column changes the triggers that name it."""
    path = await made(tmp_path / "bus")
    later("ALTER TABLE vocabulary RENAME COLUMN name TO word;")
    for _ in range(2):
        open_bus(path.parent).close()
    change(path, TRIGGER)
    with pytest.raises(ForeignObjects, match="trigger evil"):
        open_bus(path.parent)
