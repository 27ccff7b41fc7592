"""The limit: sqlite3 itself with our tables and our statements, on one thread, with no event loop.

It leaves out what a bus is for: fencing, checks of recipients and leases, the lock file, wake-ups, JSON encoding.
Its commits are as durable as ours: sends with synchronous=FULL, claims and acknowledgements with NORMAL.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

from agentbus.engine.queries import load
from benchmarks.contestants.tables import LEASE, MAX_ATTEMPTS, PRAGMAS, PRIORITY, SENDER, TYPE, database, now, schema

ID, PAYLOAD = 0, 4


class RawBox:
    """One mailbox, driven by named queries of the SQLite engine."""

    def __init__(self, connection: sqlite3.Connection, mailbox: int) -> None:
        self._connection = connection
        self._mailbox = mailbox
        self._boxes = json.dumps([mailbox])
        self._last = 0
        queries = load("sqlite")
        self._insert = queries["message_insert"]
        self._ready = queries["message_ready"]
        self._rows = queries["message_rows"]
        self._lease = queries["message_lease"]
        self._ack = queries["message_ack"]

    def send(self, payload: Any) -> None:
        self.send_many([payload])

    def receive(self) -> Any:
        return self.receive_many(1, ())[0]

    def ack(self, message: Any) -> None:
        self.ack_many([message])

    def ack_many(self, messages: Sequence[Any]) -> None:
        self._begin("NORMAL")
        self._acknowledge(messages)
        self._connection.execute("COMMIT")

    def send_many(self, payloads: Sequence[Any]) -> None:
        """The payloads are JSON text already."""
        moment = now()
        rows = [
            (
                id, None, self._mailbox, SENDER, TYPE, text, crc32(text.encode()), PRIORITY, "queued", MAX_ATTEMPTS,
                None, None, None, None, None, moment,
            )
            for id, text in enumerate(payloads, self._last + 1)
        ]  # fmt: skip
        self._begin("FULL")
        self._connection.executemany(self._insert, rows)
        self._connection.execute("COMMIT")
        self._last += len(rows)

    def receive_many(self, most: int, done: Sequence[Any]) -> list[Any]:
        self._begin("NORMAL")
        if done:
            self._acknowledge(done)
        ready = self._connection.execute(self._ready, (self._boxes, most)).fetchall()
        ids = json.dumps([id for _, _, id in ready])
        rows = self._connection.execute(self._rows, (ids,)).fetchall()
        self._connection.execute(self._lease, (None, now() + LEASE, 1, ids))
        self._connection.execute("COMMIT")
        return rows

    def payload(self, message: Any) -> Any:
        return message[PAYLOAD]

    def _begin(self, synchronous: str) -> None:
        self._connection.execute(f"PRAGMA synchronous = {synchronous}")
        self._connection.execute("BEGIN IMMEDIATE")

    def _acknowledge(self, done: Sequence[Any]) -> None:
        self._connection.execute(self._ack, (now(), json.dumps([row[ID] for row in done]))).fetchall()


class RawSQLite:
    """sqlite3 of the standard library."""

    key = "raw"
    title = "raw sqlite3, one thread, no event loop (the limit)"
    durability = "disk: a send is fsynced; claims and acks are not"

    @contextmanager
    def open(self, directory: Path, boxes: int) -> Iterator[list[RawBox]]:
        if boxes != 1:
            raise ValueError("the limit has one mailbox")
        with closing(sqlite3.connect(database(directory), isolation_level=None)) as connection:
            for pragma in PRAGMAS:
                connection.execute(pragma)
            connection.executescript(schema(boxes))
            yield [RawBox(connection, 1)]


RAW = RawSQLite()
