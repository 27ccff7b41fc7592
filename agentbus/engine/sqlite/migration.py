"""Migrations: run the statements of the schema's numbered files, and rebuild tables.

SQLite cannot change a CHECK constraint in place: the new table is created next to the old one, filled, and renamed. A
migration declares that on its first line, and creates each new table with the prefix ``rebuilt_``:

    -- rebuilds: steps, mailboxes
    CREATE TABLE rebuilt_steps (…) STRICT;
    CREATE TABLE rebuilt_mailboxes (…) STRICT;

The rest is done here, once the statements of the file have run: rows (of the columns that both tables have), indexes,
triggers and the AUTOINCREMENT sequence are carried over. That every reference is still valid is checked before the
commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress

from agentbus.engine.queries import named
from agentbus.engine.sqlite.paths import Home
from agentbus.errors import MigrationFailed

_DIRECTIVE = "-- rebuilds: "
_PREFIX = "rebuilt_"
_MAX_VIOLATIONS = 1000
"""Rows with a broken reference that are read to name their tables."""


def run(connection: sqlite3.Connection, home: Home, found: int, steps: Mapping[int, str]) -> None:
    """Bring a database from version ``found`` to the newest one, in one exclusive transaction: a process that is killed
    leaves the old schema or the new one."""
    newest = max(steps)
    later = [step for version, step in sorted(steps.items()) if version > found]
    rebuilds = any(rebuilt_tables(step) for step in later)
    with _rebuilding(connection) if rebuilds else nullcontext():
        try:
            connection.execute("BEGIN EXCLUSIVE")
            build(connection, later)
            if rebuilds and (tables := _broken_references(connection)):
                reason = f"rows refer to rows that do not exist: {', '.join(tables)}"
                raise MigrationFailed(path=home.file, found=found, wanted=newest, reason=reason)
            connection.execute(f"PRAGMA user_version = {newest:d}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.rollback()


def build(connection: sqlite3.Connection, steps: Sequence[str]) -> None:
    """Create the tables of these migrations in an empty database."""
    for step in steps:
        _apply(connection, step)


def rebuilt_tables(step: str) -> list[str]:
    """Return the tables that a migration rebuilds, from its first line."""
    first, _, _ = step.partition("\n")
    return [name.strip() for name in first.removeprefix(_DIRECTIVE).split(",")] if first.startswith(_DIRECTIVE) else []


def _apply(connection: sqlite3.Connection, step: str) -> None:
    # Not executescript(), which would commit first.
    for statement in _statements(step):
        connection.execute(statement)
    for table in rebuilt_tables(step):
        _replace(connection, table)


def _statements(script: str) -> Iterator[str]:
    """Split a script: a semicolon in a comment, a text or a trigger ends no statement."""
    pending = ""
    for part in script.split(";"):
        pending += f"{part};"
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    left = pending.removesuffix(";")
    if any(line.strip() and not line.lstrip().startswith("--") for line in left.splitlines()):
        yield left


@contextmanager
def _rebuilding(connection: sqlite3.Connection) -> Iterator[None]:
    """Let a table be dropped that others refer to, and sort in files: memory stays bounded, however large the table.

    Both settings can only be changed outside of a transaction.
    """
    _truncate_log(connection)
    try:
        connection.execute("PRAGMA foreign_keys = OFF")
        connection.execute("PRAGMA temp_store = FILE")
        yield
    finally:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA legacy_alter_table = OFF")
        connection.execute("PRAGMA temp_store = MEMORY")
        # It holds a copy of the table: also after a rollback, when the disk may be full of it.
        _truncate_log(connection)


def _replace(connection: sqlite3.Connection, table: str) -> None:
    """Replace a table with ``rebuilt_<table>``."""
    new = f"{_PREFIX}{table}"
    queries = named("sqlite/schema")
    belongings = [sql for (sql,) in connection.execute(queries["schema_belongings"], [table])]
    kept = [f'"{name}"' for (name,) in connection.execute(queries["schema_columns"], [table, new])]
    connection.execute(queries["schema_copy"].format(table=table, new=new, columns=", ".join(kept)))
    # Ids are never reused, not even those of deleted rows.
    ((last,),) = connection.execute(queries["schema_sequence"], [table, new]).fetchall()
    connection.execute(queries["schema_forget_sequence"], [new])
    if last is not None:
        connection.execute(queries["schema_set_sequence"], [new, last])
    connection.execute(queries["schema_drop"].format(table=table))
    # Otherwise the rename fails on triggers of other tables that mention this one.
    connection.execute("PRAGMA legacy_alter_table = ON")
    connection.execute(queries["schema_rename"].format(table=table, new=new))
    connection.execute("PRAGMA legacy_alter_table = OFF")
    for sql in belongings:
        connection.execute(sql)


def _broken_references(connection: sqlite3.Connection) -> list[str]:
    broken = connection.execute("PRAGMA foreign_key_check").fetchmany(_MAX_VIOLATIONS)
    return sorted({f"{row[0]} to {row[2]}" for row in broken})


def _truncate_log(connection: sqlite3.Connection) -> None:
    """Checkpoint and truncate the log, as far as no other process reads it."""
    with suppress(sqlite3.Error):
        ((timeout,),) = connection.execute("PRAGMA busy_timeout").fetchall()
        connection.execute("PRAGMA busy_timeout = 0")
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {timeout:d}")
