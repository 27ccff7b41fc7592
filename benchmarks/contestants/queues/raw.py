"""The upper limit: sqlite3 with the tables and statements of agentbus, called directly on one thread.

It leaves out fencing, checks of recipients and leases, the lock file, wake-ups and JSON encoding. Its commits are as
durable as those of agentbus: sends with synchronous=FULL, claims and acknowledgements with NORMAL.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from agentbus.engine.queries import load
from benchmarks.contestants.queues.base import CalledBox, Library
from benchmarks.contestants.tables import LEASE, MAX_ATTEMPTS, PRIORITY, SENDER, TYPE, create_database, now
from benchmarks.payload import PAYLOAD, TEXT

ID, STORED = 0, 4
MAILBOX = 1


class Raw:
    """One mailbox, driven by named queries of the SQLite engine."""

    def __init__(self, directory: Path) -> None:
        self._connection = create_database(directory, 1)
        self._boxes = json.dumps([MAILBOX])
        self._last = 0
        queries = load("sqlite")
        self._insert = queries["message_insert"]
        self._ready = queries["message_ready"]
        self._rows = queries["message_rows"]
        self._lease = queries["message_lease"]
        self._ack = queries["message_ack"]
        self._claim_one = queries["message_claim_one"]
        self._ack_one = queries["message_ack_one"]

    def send(self, payload: Any) -> None:
        self.send_many([payload])

    def send_many(self, payloads: Sequence[Any]) -> None:
        """Insert the payload, which is already encoded."""
        assert all(payload is PAYLOAD for payload in payloads)
        moment = now()
        rows = [
            (
                id, None, MAILBOX, SENDER, TYPE, TEXT, crc32(TEXT.encode()), PRIORITY, "queued", MAX_ATTEMPTS,
                None, None, None, None, None, moment, None,
            )
            for id in range(self._last + 1, self._last + 1 + len(payloads))
        ]  # fmt: skip
        self._begin("FULL")
        self._connection.executemany(self._insert, rows)
        self._connection.execute("COMMIT")
        self._last += len(rows)

    def claim(self, limit: int, done: Sequence[Any] = ()) -> list[Any]:
        self._begin("NORMAL")
        if done:
            self._acknowledge(done)
        if limit == 1:
            moment = now()
            claiming = (self._boxes, None, moment + LEASE, 1, moment, moment)
            rows = [row for _, *row in self._connection.execute(self._claim_one, claiming).fetchall()]
            self._connection.execute("COMMIT")
            return rows
        ready = self._connection.execute(self._ready, (self._boxes, limit)).fetchall()
        ids = json.dumps([id for _, _, id in ready])
        rows = self._connection.execute(self._rows, (ids,)).fetchall()
        self._connection.execute(self._lease, (None, now() + LEASE, 1, ids, now()))
        self._connection.execute("COMMIT")
        return rows

    def ack(self, messages: Sequence[Any]) -> None:
        self._begin("NORMAL")
        self._acknowledge(messages)
        self._connection.execute("COMMIT")

    def payload(self, message: Any) -> Any:
        return json.loads(message[STORED])

    def close(self) -> None:
        self._connection.close()

    def _begin(self, synchronous: str) -> None:
        self._connection.execute(f"PRAGMA synchronous = {synchronous}")
        self._connection.execute("BEGIN IMMEDIATE")

    def _acknowledge(self, done: Sequence[Any]) -> None:
        self._connection.execute(self._ack, (now(), json.dumps([row[ID] for row in done]))).fetchall()


class RawBox(CalledBox):
    """A mailbox that sends and claims in batches."""

    def __init__(self, calls: Raw) -> None:
        super().__init__(calls)
        self._raw = calls

    async def send_many(self, payloads: Sequence[Any]) -> None:
        self._raw.send_many(payloads)

    async def receive_many(self, limit: int, done: Sequence[Any]) -> Sequence[Any]:
        return self._raw.claim(limit, done)


RAW = Library(
    "raw",
    "raw sqlite3, one thread (the limit)",
    "disk: a send is fsynced; claims and acks are not",
    lambda directory: RawBox(Raw(directory)),
    workloads=frozenset({"one", "batches"}),
)
