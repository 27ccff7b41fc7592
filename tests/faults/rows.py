"""The database read with plain sqlite3, and its write lock held by the test."""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from agentbus.engine.sqlite.schema_check import tables_with_invalid_rows


def rows(bus: Path, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Read only: such a connection never checkpoints, so that it needs no lock when it closes."""
    with closing(sqlite3.connect(f"file:{bus / 'bus.db'}?mode=ro", uri=True, timeout=10)) as connection:
        return connection.execute(sql, parameters).fetchall()


def value(bus: Path, sql: str, *parameters: object) -> Any:
    ((found,),) = rows(bus, sql, *parameters)
    return found


def integrity(bus: Path) -> str:
    """``ok``, or what is wrong."""
    found = [str(line) for (line,) in rows(bus, "PRAGMA integrity_check")]
    found += [f"foreign key: {row}" for row in rows(bus, "PRAGMA foreign_key_check") if row]
    # Of a database that may only be read SQLite does not look at these.
    with closing(sqlite3.connect(f"file:{bus / 'bus.db'}?mode=ro", uri=True, timeout=10)) as connection:
        found += [f"refused by {table}" for table in tables_with_invalid_rows(connection)]
    return "\n".join(found)


def no_process_writes(bus: Path) -> None:
    """Raises if a transaction was left open: the write lock of SQLite can be taken at once."""
    with closing(sqlite3.connect(bus / "bus.db", timeout=0, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("ROLLBACK")


@contextmanager
def lock_held(bus: Path) -> Iterator[None]:
    """As if another process had the write lock. A worker that is stopped meanwhile is not in the middle of a write."""
    descriptor = os.open(bus / "bus.lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
