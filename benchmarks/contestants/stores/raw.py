"""The upper limit: sqlite3 with the tables and statements of agentbus, called directly on one thread.

It leaves out fencing, the lock file, wake-ups, concurrent version changes and JSON. Its commits are as durable as those
of agentbus.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from zlib import crc32

from agentbus.engine.queries import load
from benchmarks.contestants.stores.base import Conflict
from benchmarks.contestants.tables import create_database, now
from benchmarks.payload import PAYLOAD, TEXT

SCOPE = "agent-0"
FIND = "SELECT id FROM state WHERE scope = ? AND key = ?"
COMPARE_AND_SET = """
UPDATE state SET version = version + 1, change = ?, checksum = ?, updated = ?, value = ?
WHERE scope = ? AND key = ? AND version = ?
"""


class RawStore:
    """The state table, by named queries of the SQLite engine. The only value is already encoded."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._value = load("sqlite")["state_value"]
        self._insert = load("sqlite")["state_insert"]
        self._update = load("sqlite")["state_update"]
        self._change = 0

    async def fill(self, keys: Sequence[str], value: Any) -> None:
        assert value is PAYLOAD
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(self._insert, [self._row(key) for key in keys])
        self._connection.execute("COMMIT")

    async def get(self, key: str) -> Any:
        value, _ = self._connection.execute(self._value, (SCOPE, key, now())).fetchone()
        return PAYLOAD if value == TEXT else value

    async def set(self, key: str, value: Any) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        *row, scope, key = self._row(key)
        ((id,),) = self._connection.execute(FIND, (scope, key))
        self._connection.execute(self._update, (*row, id))
        self._connection.execute("COMMIT")

    async def compare_and_set(self, key: str, value: Any, version: int) -> int:
        self._change += 1
        changes = (self._change, crc32(TEXT.encode()), now(), TEXT, SCOPE, key, version)
        self._connection.execute("BEGIN IMMEDIATE")
        cursor = self._connection.execute(COMPARE_AND_SET, changes)
        self._connection.execute("COMMIT")
        if cursor.rowcount != 1:
            raise Conflict
        return version + 1

    def _row(self, key: str) -> tuple[Any, ...]:
        self._change += 1
        moment = now()
        return "user_data", 1, self._change, crc32(TEXT.encode()), None, None, moment, moment, TEXT, SCOPE, key


class RawSQLite:
    """sqlite3 of the standard library."""

    key = "raw"
    title = "raw sqlite3, one thread (the limit)"
    durability = "disk: every commit is fsynced"

    def missing(self) -> str | None:
        return None

    @asynccontextmanager
    async def open(self, directory: Path, tasks: int) -> AsyncIterator[RawStore]:
        with closing(create_database(directory, 0)) as connection:
            yield RawStore(connection)


RAW = RawSQLite()
