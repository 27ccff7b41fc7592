"""The limit: sqlite3 itself with our tables and our statements, on one thread, with no event loop.

It leaves out fencing, the lock file, wake-ups, versions that somebody else may have changed, and JSON. Its commits are
as durable as ours.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

from agentbus.engine.queries import load
from benchmarks.contestants.tables import PRAGMAS, database, now, schema
from benchmarks.stores.base import Conflict

SCOPE = "agent-0"
FIND = "SELECT id FROM state WHERE scope = ? AND key = ?"
COMPARE_AND_SET = """
UPDATE state SET version = version + 1, change = ?, checksum = ?, updated = ?, value = ?
WHERE scope = ? AND key = ? AND version = ?
"""


class RawStore:
    """The state table, by named queries of the SQLite engine."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._value = load("sqlite")["state_value"]
        self._insert = load("sqlite")["state_insert"]
        self._update = load("sqlite")["state_update"]
        self._change = 0

    def fill(self, keys: Sequence[str], text: str) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(self._insert, [self._row(key, text) for key in keys])
        self._connection.execute("COMMIT")

    def get(self, key: str) -> str:
        value, _ = self._connection.execute(self._value, (SCOPE, key, now())).fetchone()
        return str(value)

    def set(self, key: str, text: str) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        *row, scope, key = self._row(key, text)
        ((id,),) = self._connection.execute(FIND, (scope, key))
        self._connection.execute(self._update, (*row, id))
        self._connection.execute("COMMIT")

    def compare_and_set(self, key: str, text: str, version: int) -> int:
        self._change += 1
        changes = (self._change, crc32(text.encode()), now(), text, SCOPE, key, version)
        self._connection.execute("BEGIN IMMEDIATE")
        cursor = self._connection.execute(COMPARE_AND_SET, changes)
        self._connection.execute("COMMIT")
        if cursor.rowcount != 1:
            raise Conflict
        return version + 1

    def _row(self, key: str, text: str) -> tuple[Any, ...]:
        self._change += 1
        moment = now()
        return "user_data", 1, self._change, crc32(text.encode()), None, None, moment, moment, text, SCOPE, key


class RawSQLite:
    """sqlite3 of the standard library."""

    key = "raw"
    title = "raw sqlite3, one thread, no event loop (the limit)"
    durability = "disk: every commit is fsynced"

    @contextmanager
    def open(self, directory: Path) -> Iterator[RawStore]:
        with closing(sqlite3.connect(database(directory), isolation_level=None)) as connection:
            for pragma in PRAGMAS:
                connection.execute(pragma)
            connection.executescript(schema(0))
            yield RawStore(connection)


RAW = RawSQLite()
