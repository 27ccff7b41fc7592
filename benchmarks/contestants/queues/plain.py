"""aiosqlite in two ways, on one connection that all tasks share.

Plain, as in its documentation: execute, fetch, commit, with a lock around each transaction, because the commit of a
task must not include half of the work of another. And in autocommit mode with the fewest thread hops of a lifecycle:
one statement per step, each its own transaction, without a lock.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import aiosqlite
import anyio

from benchmarks.contestants.queues.base import EVERYTHING, POLL
from benchmarks.contestants.tables import LEASE, MAX_ATTEMPTS, PRAGMAS, PRIORITY, SENDER, TYPE, database, now, schema

INSERT = """
INSERT INTO messages (mailbox, sender, type, payload, checksum, priority, status, max_attempts, created)
VALUES (?, ?, ?, ?, ?, ?, 'queued', ?, ?)
"""
READY = """
SELECT id, payload FROM messages WHERE mailbox = ? AND status = 'queued' ORDER BY priority DESC, id LIMIT ?
"""
LEASE_ONE = """
UPDATE messages SET status = 'leased', lease = lease + 1, holder = ?, lease_until = ?, attempts = attempts + 1
WHERE id = ?
"""
CLAIM = """
UPDATE messages SET status = 'leased', lease = lease + 1, holder = ?, lease_until = ?, attempts = attempts + 1
WHERE id = (SELECT id FROM messages WHERE mailbox = ? AND status = 'queued' ORDER BY priority DESC, id LIMIT 1)
RETURNING id, payload
"""
ACK = "UPDATE messages SET status = 'acked', finished = ? WHERE id = ? AND status = 'leased'"

Claimed = tuple[int, Any]


class PlainBox:
    """One mailbox on the shared connection."""

    def __init__(self, connection: aiosqlite.Connection, lock: asyncio.Lock, mailbox: int) -> None:
        self._connection = connection
        self._lock = lock
        self._mailbox = mailbox

    async def send(self, payload: Any) -> None:
        async with self._lock:
            await self._connection.execute(INSERT, self._row(payload))
            await self._connection.commit()

    async def receive(self) -> Claimed:
        while (found := await self._claim()) is None:
            await anyio.sleep(POLL)
        return found

    async def _claim(self) -> Claimed | None:
        async with self._lock:
            async with self._connection.execute(READY, (self._mailbox, 1)) as cursor:
                row = await cursor.fetchone()
            if row is None:
                return None
            await self._connection.execute(LEASE_ONE, (SENDER, now() + LEASE, row[0]))
            await self._connection.commit()
        return row[0], json.loads(row[1])

    async def ack(self, message: Claimed) -> None:
        async with self._lock:
            await self._connection.execute(ACK, (now(), message[0]))
            await self._connection.commit()

    async def ack_many(self, messages: Sequence[Claimed]) -> None:
        async with self._lock:
            await self._connection.executemany(ACK, [(now(), id) for id, _ in messages])
            await self._connection.commit()

    async def send_many(self, payloads: Sequence[Any]) -> None:
        async with self._lock:
            await self._connection.executemany(INSERT, [self._row(payload) for payload in payloads])
            await self._connection.commit()

    async def receive_many(self, limit: int, done: Sequence[Claimed]) -> list[Claimed]:
        while not (found := await self._claim_many(limit, done)):
            done = ()
            await anyio.sleep(POLL)
        return found

    async def _claim_many(self, limit: int, done: Sequence[Claimed]) -> list[Claimed]:
        async with self._lock:
            if done:
                await self._connection.executemany(ACK, [(now(), id) for id, _ in done])
            async with self._connection.execute(READY, (self._mailbox, limit)) as cursor:
                rows = list(await cursor.fetchall())
            await self._connection.executemany(LEASE_ONE, [(SENDER, now() + LEASE, id) for id, _ in rows])
            await self._connection.commit()
        return [(id, json.loads(text)) for id, text in rows]

    def payload(self, message: Claimed) -> Any:
        return message[1]

    def _row(self, payload: Any) -> tuple[Any, ...]:
        text = json.dumps(payload, separators=(",", ":"))
        return self._mailbox, SENDER, TYPE, text, crc32(text.encode()), PRIORITY, MAX_ATTEMPTS, now()


class AutocommitBox(PlainBox):
    """One mailbox, one statement per step."""

    async def send(self, payload: Any) -> None:
        await self._connection.execute(INSERT, self._row(payload))

    async def _claim(self) -> Claimed | None:
        for id, text in await self._connection.execute_fetchall(CLAIM, (SENDER, now() + LEASE, self._mailbox)):
            return id, json.loads(text)
        return None

    async def ack(self, message: Claimed) -> None:
        await self._connection.execute(ACK, (now(), message[0]))


@dataclass(frozen=True)
class PlainAiosqlite:
    """aiosqlite on the tables of agentbus."""

    key: str
    title: str
    box: type[PlainBox]
    isolation_level: Literal["DEFERRED"] | None
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    durability: str = "disk: every commit is fsynced"
    workloads: frozenset[str] = EVERYTHING

    def missing(self) -> str | None:
        return None

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[list[PlainBox]]:
        async with self._connected(directory) as connection:
            await connection.executescript(schema(boxes))
            lock = asyncio.Lock()
            yield [self.box(connection, lock, mailbox) for mailbox in range(1, boxes + 1)]

    @asynccontextmanager
    async def sender(self, directory: Path) -> AsyncIterator[PlainBox]:
        async with self._connected(directory) as connection:
            yield self.box(connection, asyncio.Lock(), 1)

    @asynccontextmanager
    async def _connected(self, directory: Path) -> AsyncIterator[aiosqlite.Connection]:
        path = database(directory)
        async with aiosqlite.connect(path, isolation_level=self.isolation_level, timeout=30) as connection:
            for pragma in PRAGMAS:
                await connection.execute(pragma)
            await connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            yield connection


PLAIN = PlainAiosqlite("aiosqlite", "aiosqlite used plainly", PlainBox, "DEFERRED")
UNSYNCED = PlainAiosqlite(
    "aiosqlite-normal", "aiosqlite used plainly, NORMAL", PlainBox, "DEFERRED", "NORMAL", "kill -9; nothing is fsynced"
)
# A batch is one transaction, which rules out autocommit; polling would take the write lock on every claim.
AUTOCOMMIT = PlainAiosqlite(
    "aiosqlite-autocommit", "aiosqlite, autocommit", AutocommitBox, None, workloads=frozenset({"one", "tasks"})
)
