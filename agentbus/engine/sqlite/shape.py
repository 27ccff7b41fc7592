"""The shape of a database: whether its tables, indexes and triggers are those that the migrations make."""

from __future__ import annotations

import sqlite3
from functools import cache
from pathlib import Path

from agentbus.engine.queries import load
from agentbus.engine.sqlite.backup import opened_backup, verify
from agentbus.engine.sqlite.connection import migrations
from agentbus.errors import DamagedBackup


def missing(connection: sqlite3.Connection) -> list[str]:
    """Tables, indexes and triggers that are not there."""
    found = _shape(connection)
    return [thing for thing in _expected() if thing not in found]


def differences(connection: sqlite3.Connection) -> list[str]:
    """What is missing, changed, or a trigger that does not belong there. Tables and indexes of somebody else do no
    harm."""
    expected, found = _expected(), _shape(connection)
    wrong = {
        "missing": missing(connection),
        "changed": [thing for thing, sql in expected.items() if found.get(thing, sql) != sql],
        "added": [thing for thing in found if thing not in expected and thing.startswith("trigger ")],
    }
    return [f"{what}: {', '.join(things)}" for what, things in wrong.items() if things]


def is_sound(backup: Path) -> bool:
    """Whether a bus can be restored from this backup."""
    try:
        with opened_backup(backup) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            newest = max(migrations())
            if not 1 <= version <= newest or verify(connection) is not None:
                return False
            return version < newest or not differences(connection)
    except (DamagedBackup, UnicodeDecodeError):
        return False


@cache
def _expected() -> dict[str, str]:
    connection = sqlite3.connect(":memory:")
    try:
        for _, step in sorted(migrations().items()):
            connection.executescript(step)
        return _shape(connection)
    finally:
        connection.close()


def _shape(connection: sqlite3.Connection) -> dict[str, str]:
    queries = load("sqlite")
    rows = connection.execute(queries["schema_objects"])
    return {f"{kind} {name}": sql for kind, name, sql in rows}
