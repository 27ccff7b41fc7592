"""PostgreSQL: a table with SKIP LOCKED by hand, through asyncpg; and procrastinate."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

from benchmarks.contestants import servers
from benchmarks.contestants.about import lacking, package
from benchmarks.contestants.queues.base import CONCURRENTLY, EVERYTHING, POLL

TABLE = """
DROP TABLE IF EXISTS jobs;
CREATE TABLE jobs (
    id bigserial PRIMARY KEY, box int NOT NULL, priority smallint NOT NULL DEFAULT 5, payload text NOT NULL,
    status text NOT NULL DEFAULT 'queued', attempts int NOT NULL DEFAULT 0, lease_until timestamptz
);
CREATE INDEX jobs_ready ON jobs (box, priority DESC, id) WHERE status = 'queued';
"""
INSERT = "INSERT INTO jobs (box, payload) SELECT $1, unnest($2::text[])"
CLAIM = """
UPDATE jobs SET status = 'leased', attempts = attempts + 1, lease_until = now() + interval '1 minute'
WHERE id IN (
    SELECT id FROM jobs WHERE box = $1 AND status = 'queued' ORDER BY priority DESC, id LIMIT $2 FOR UPDATE SKIP LOCKED
)
RETURNING id, payload
"""
ACK = "DELETE FROM jobs WHERE id = ANY ($1)"
SERVER = "POSTGRES"

Claimed = tuple[int, str]


def _absent(*packages: str) -> str | None:
    return lacking(packages) or (None if servers.program("postgres") else "there is no postgres")


class TableBox:
    """A mailbox in the table; each step is a statement, and a transaction, of its own."""

    def __init__(self, pool: Any, number: int) -> None:
        self._pool = pool
        self._number = number

    async def send(self, payload: Any) -> None:
        await self.send_many((payload,))

    async def receive(self) -> Claimed:
        return (await self.receive_many(1, ()))[0]

    async def ack(self, message: Claimed) -> None:
        await self.ack_many((message,))

    async def ack_many(self, messages: Sequence[Claimed]) -> None:
        await self._pool.execute(ACK, [id for id, _ in messages])

    async def send_many(self, payloads: Sequence[Any]) -> None:
        texts = [json.dumps(payload, separators=(",", ":")) for payload in payloads]
        await self._pool.execute(INSERT, self._number, texts)

    async def receive_many(self, most: int, done: Sequence[Claimed]) -> list[Claimed]:
        if done:
            await self.ack_many(done)
        while not (found := await self._pool.fetch(CLAIM, self._number, most)):
            await anyio.sleep(POLL)
        return [(id, text) for id, text in found]

    def payload(self, message: Claimed) -> Any:
        return json.loads(message[1])


@dataclass(frozen=True)
class SkipLocked:
    key: str = "postgres"
    title: str = "PostgreSQL, SKIP LOCKED"
    durability: str = "disk: every commit is flushed"
    takes: frozenset[str] = EVERYTHING
    server: str = SERVER

    def missing(self) -> str | None:
        return _absent("asyncpg")

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[list[TableBox]]:
        async with self._connected(boxes) as pool:
            await pool.execute(TABLE)
            yield [TableBox(pool, number) for number in range(boxes)]

    @asynccontextmanager
    async def sender(self, directory: Path) -> AsyncIterator[TableBox]:
        async with self._connected(8) as pool:
            yield TableBox(pool, 0)

    @asynccontextmanager
    async def _connected(self, size: int) -> AsyncIterator[Any]:
        async with package("asyncpg").create_pool(servers.postgres(), min_size=1, max_size=size) as pool:
            yield pool


class JobSender:
    def __init__(self, defer: Any) -> None:
        self._defer = defer

    async def send(self, payload: Any) -> None:
        await self._defer(payload=payload)


Job = tuple[asyncio.Event, Any]


class JobBox(JobSender):
    """A queue of procrastinate. A job that runs has been received; when its function returns, it is done."""

    def __init__(self, defer: Any) -> None:
        super().__init__(defer)
        self.arrived: asyncio.Queue[Job] = asyncio.Queue()

    async def receive(self) -> Job:
        return await self.arrived.get()

    async def ack(self, message: Job) -> None:
        message[0].set()

    async def ack_many(self, messages: Sequence[Job]) -> None:
        for done, _ in messages:
            done.set()

    async def send_many(self, payloads: Sequence[Any]) -> None:
        for payload in payloads:
            await self.send(payload)

    async def receive_many(self, most: int, done: Sequence[Job]) -> list[Job]:
        await self.ack_many(done)
        return [await self.receive()]

    def payload(self, message: Job) -> Any:
        return message[1]


@dataclass(frozen=True)
class Procrastinate:
    """One worker, woken by notifications, with as many jobs at once as there are mailboxes."""

    key: str = "procrastinate"
    title: str = "procrastinate"
    durability: str = "disk: every commit is flushed"
    takes: frozenset[str] = CONCURRENTLY
    server: str = SERVER

    def missing(self) -> str | None:
        return _absent("procrastinate", "psycopg")

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[list[JobBox]]:
        found: dict[str, JobBox] = {}

        async def work(context: Any, payload: Any) -> None:
            done = asyncio.Event()
            found[context.job.queue].arrived.put_nowait((done, payload))
            await done.wait()

        async with self._opened(work, boxes + 4, fresh=True) as (app, task):
            for number in range(boxes):
                found[f"box-{number}"] = JobBox(task.configure(queue=f"box-{number}").defer_async)
            options = {"wait": True, "install_signal_handlers": False, "shutdown_graceful_timeout": 1}
            worker = asyncio.create_task(app.run_worker_async(concurrency=boxes, **options))
            try:
                yield list(found.values())
            finally:
                worker.cancel()
                await asyncio.gather(worker, return_exceptions=True)

    @asynccontextmanager
    async def sender(self, directory: Path) -> AsyncIterator[JobSender]:
        async def work(context: Any, payload: Any) -> None:
            raise NotImplementedError("it is only sent from here")

        async with self._opened(work, 8, fresh=False) as (_, task):
            yield JobSender(task.configure(queue="box-0").defer_async)

    @asynccontextmanager
    async def _opened(self, work: Any, size: int, *, fresh: bool) -> AsyncIterator[tuple[Any, Any]]:
        procrastinate = package("procrastinate")
        connector = procrastinate.PsycopgConnector(
            conninfo=servers.postgres(), kwargs={"options": "-c search_path=procrastinate"}, min_size=2, max_size=size
        )
        app = procrastinate.App(connector=connector)
        task = app.task(name="work", pass_context=True)(work)
        if fresh:
            connection = await package("asyncpg").connect(servers.postgres())
            await connection.execute("DROP SCHEMA IF EXISTS procrastinate CASCADE; CREATE SCHEMA procrastinate")
            await connection.close()
        async with app.open_async():
            if fresh:
                await app.schema_manager.apply_schema_async()
            yield app, task


POSTGRES = (SkipLocked(), Procrastinate())
