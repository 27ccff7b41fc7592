"""aiosqlite in two ways, on one connection that all tasks share.

Plain, as in its documentation: execute + fetchone in a block that closes the cursor; execute + commit with a lock
around both, because the rollback of a task must not undo the work of another. And with the fewest thread hops: cursors
are left to the garbage collector, which pins the WAL until then, and tasks share commits, so that a failure rolls back
the work of others.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import aiosqlite

from benchmarks.contestants.stores.base import Conflict
from benchmarks.contestants.tables import PRAGMAS, database, now, schema

GET = "SELECT value FROM state WHERE scope = ? AND key = ? AND value IS NOT NULL AND (expires IS NULL OR expires > ?)"
SET = """
INSERT INTO state (scope, key, version, change, checksum, created, updated, value) VALUES (?, ?, 1, ?, ?, ?, ?, ?)
ON CONFLICT (scope, key) DO UPDATE SET
    version = version + 1, change = excluded.change, checksum = excluded.checksum, updated = excluded.updated,
    value = excluded.value
"""
COMPARE_AND_SET = """
UPDATE state SET version = version + 1, change = ?, checksum = ?, updated = ?, value = ?
WHERE scope = ? AND key = ? AND version = ?
"""
SCOPE = "agent-0"


class PlainStore:
    """The state table on the shared connection."""

    def __init__(self, connection: aiosqlite.Connection, lock: AbstractAsyncContextManager[None]) -> None:
        self._connection = connection
        self._lock = lock
        self._change = 0

    async def fill(self, keys: Sequence[str], value: Any) -> None:
        await self._connection.executemany(SET, [self._row(key, value) for key in keys])
        await self._connection.commit()

    async def get(self, key: str) -> Any:
        async with self._connection.execute(GET, (SCOPE, key, now())) as cursor:
            row = await cursor.fetchone()
        return None if row is None else json.loads(row[0])

    async def set(self, key: str, value: Any) -> None:
        async with self._lock:
            await self._connection.execute(SET, self._row(key, value))
            await self._connection.commit()

    async def compare_and_set(self, key: str, value: Any, version: int) -> int:
        _, _, change, checksum, _, moment, text = self._row(key, value)
        async with self._lock:
            cursor = await self._connection.execute(
                COMPARE_AND_SET, (change, checksum, moment, text, SCOPE, key, version)
            )
            await self._connection.commit()
        if cursor.rowcount != 1:
            raise Conflict
        return version + 1

    def _row(self, key: str, value: Any) -> tuple[Any, ...]:
        self._change += 1
        text = json.dumps(value, separators=(",", ":"))
        moment = now()
        return SCOPE, key, self._change, crc32(text.encode()), moment, moment, text


class MinimalHopStore(PlainStore):
    """The same with the fewest thread hops."""

    async def get(self, key: str) -> Any:
        cursor = await self._connection.execute(GET, (SCOPE, key, now()))
        row = await cursor.fetchone()
        return None if row is None else json.loads(row[0])


@dataclass(frozen=True)
class PlainAiosqlite:
    """aiosqlite on the tables of agentbus."""

    key: str
    title: str
    minimal_hops: bool
    durability: str = "disk: every commit is fsynced"

    def missing(self) -> str | None:
        return None

    @asynccontextmanager
    async def open(self, directory: Path, tasks: int) -> AsyncIterator[PlainStore]:
        async with aiosqlite.connect(database(directory)) as connection:
            for pragma in PRAGMAS:
                await connection.execute(pragma)
            await connection.executescript(schema(0))
            if self.minimal_hops:
                yield MinimalHopStore(connection, nullcontext())
            else:
                yield PlainStore(connection, asyncio.Lock())


PLAIN = PlainAiosqlite("aiosqlite", "aiosqlite used plainly", minimal_hops=False)
MINIMAL_HOPS = PlainAiosqlite("aiosqlite-hasty", "aiosqlite, fewest hops", minimal_hops=True)
