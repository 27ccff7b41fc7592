"""Queues on PostgreSQL: agentbus; a table with SKIP LOCKED through asyncpg; and procrastinate."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import agentbus
from benchmarks.contestants import servers
from benchmarks.contestants.about import missing_packages, package
from benchmarks.contestants.queues.base import CONCURRENTLY, EVERYTHING
from benchmarks.contestants.queues.bus import AgentBox, AgentSender

INSERT = """
INSERT INTO messages (id, mailbox, sender, type, payload, checksum, priority, status, max_attempts, created)
VALUES (nextval('message_ids'), $1, 'agent', 'note', $2, $3, 5, 'queued', 5, 0)
"""
CLAIM = """
UPDATE messages SET status = 'leased', lease = lease + 1, holder = 'agent', lease_until = 0, attempts = attempts + 1
WHERE id IN (
    SELECT id FROM messages WHERE mailbox = $1 AND status = 'queued' ORDER BY priority DESC, id LIMIT $2
    FOR UPDATE SKIP LOCKED
)
RETURNING id, payload
"""
ACK = "UPDATE messages SET status = 'acked', finished = 0 WHERE id = ANY ($1) AND status = 'leased'"
CHANNEL = "bench"
SERVER = "POSTGRES_URL"

Claimed = tuple[int, str]


def _unavailable(*packages: str) -> str | None:
    return missing_packages(packages) or (None if servers.has_postgres() else "postgres not found")


@dataclass(frozen=True)
class AgentBusServer:
    """agentbus with default options, in its own schema for each run."""

    key: str = "agentbus-postgres"
    title: str = "agentbus, PostgreSQL"
    durability: str = "disk: a send is flushed; claims and acks survive the death of any client"
    workloads: frozenset[str] = EVERYTHING | {"tasks-fused"}
    server: str = SERVER

    def missing(self) -> str | None:
        return _unavailable("asyncpg")

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[list[AgentBox]]:
        async with agentbus.connect(schema_url(directory)) as bus:
            yield [AgentBox(await bus.register(f"agent-{number}", type="worker")) for number in range(boxes)]

    @asynccontextmanager
    async def sender(self, directory: Path) -> AsyncIterator[AgentSender]:
        async with agentbus.connect(schema_url(directory)) as bus, bus.agent("sender", type="worker") as agent:
            yield AgentSender(agent)


def schema_url(directory: Path) -> str:
    """Return the URL of the schema of a directory, so that each contestant starts empty."""
    return f"{servers.postgres()}&schema=bench_{directory.name.replace('-', '_').lower()}"


def new_schema_url(name: str) -> str:
    """Return the URL of a schema that no other run uses: a server that is not ours keeps those of earlier runs."""
    return schema_url(Path(f"{name}_{os.getpid()}"))


class TableSender:
    """The sender in another process: insert, then notify."""

    def __init__(self, pool: Any, mailbox: int) -> None:
        self._pool = pool
        self._mailbox = mailbox

    async def send(self, payload: Any) -> None:
        await self._pool.execute(INSERT, *_row(self._mailbox, payload))
        await self._pool.execute(f"NOTIFY {CHANNEL}")


class TableBox:
    """One mailbox; each step is one statement in its own transaction."""

    def __init__(self, pool: Any, mailbox: int, notified: asyncio.Event) -> None:
        self._pool = pool
        self._mailbox = mailbox
        self._notified = notified

    async def send(self, payload: Any) -> None:
        await self._pool.execute(INSERT, *_row(self._mailbox, payload))

    async def receive(self) -> Claimed:
        return (await self.receive_many(1, ()))[0]

    async def ack(self, message: Claimed) -> None:
        await self.ack_many((message,))

    async def ack_many(self, messages: Sequence[Claimed]) -> None:
        await self._pool.execute(ACK, [id for id, _ in messages])

    async def send_many(self, payloads: Sequence[Any]) -> None:
        await self._pool.executemany(INSERT, [_row(self._mailbox, payload) for payload in payloads])

    async def receive_many(self, limit: int, done: Sequence[Claimed]) -> list[Claimed]:
        if done:
            await self.ack_many(done)
        while True:
            self._notified.clear()
            if found := await self._pool.fetch(CLAIM, self._mailbox, limit):
                return [(id, text) for id, text in found]
            await self._notified.wait()

    def payload(self, message: Claimed) -> Any:
        return json.loads(message[1])


def _row(mailbox: int, payload: Any) -> tuple[int, str, int]:
    text = json.dumps(payload, separators=(",", ":"))
    return mailbox, text, crc32(text.encode())


@dataclass(frozen=True)
class SkipLocked:
    """asyncpg on the tables of agentbus, a connection for each task."""

    key: str = "asyncpg"
    title: str = "PostgreSQL, SKIP LOCKED"
    durability: str = "disk: every commit is flushed"
    workloads: frozenset[str] = EVERYTHING
    server: str = SERVER

    def missing(self) -> str | None:
        return _unavailable("asyncpg")

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[list[TableBox]]:
        async with agentbus.connect(schema_url(directory)) as bus:
            for number in range(boxes):
                await bus.expect(f"agent-{number}", type="worker")
        notified = asyncio.Event()
        async with self._connected(directory, boxes) as pool, _listening(lambda *_: notified.set()):
            yield [TableBox(pool, mailbox, notified) for mailbox in await _mailboxes(pool)]

    @asynccontextmanager
    async def sender(self, directory: Path) -> AsyncIterator[TableSender]:
        async with self._connected(directory, 8) as pool:
            yield TableSender(pool, (await _mailboxes(pool))[0])

    @asynccontextmanager
    async def _connected(self, directory: Path, size: int) -> AsyncIterator[Any]:
        dsn, _, schema = schema_url(directory).partition("&schema=")
        settings = {"search_path": schema}
        async with package("asyncpg").create_pool(dsn, min_size=1, max_size=size, server_settings=settings) as pool:
            yield pool


@asynccontextmanager
async def _listening(on_notify: Any) -> AsyncIterator[None]:
    connection = await package("asyncpg").connect(servers.postgres())
    await connection.add_listener(CHANNEL, on_notify)
    try:
        yield
    finally:
        await connection.close()


async def _mailboxes(pool: Any) -> list[int]:
    return [row[0] for row in await pool.fetch("SELECT mailbox FROM agents ORDER BY id")]


class JobSender:
    def __init__(self, defer: Any) -> None:
        self._defer = defer

    async def send(self, payload: Any) -> None:
        await self._defer(payload=payload)


Job = tuple[asyncio.Event, Any]


class JobBox(JobSender):
    """A queue of procrastinate. A job is received when it runs and acknowledged when its function returns."""

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

    async def receive_many(self, limit: int, done: Sequence[Job]) -> list[Job]:
        await self.ack_many(done)
        return [await self.receive()]

    def payload(self, message: Job) -> Any:
        return message[1]


@dataclass(frozen=True)
class Procrastinate:
    """One worker, woken by notifications, with one concurrent job per mailbox."""

    key: str = "procrastinate"
    title: str = "procrastinate"
    durability: str = "disk: every commit is flushed"
    workloads: frozenset[str] = CONCURRENTLY
    server: str = SERVER

    def missing(self) -> str | None:
        return _unavailable("procrastinate", "psycopg")

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[list[JobBox]]:
        found: dict[str, JobBox] = {}

        async def work(context: Any, payload: Any) -> None:
            done = asyncio.Event()
            found[context.job.queue].arrived.put_nowait((done, payload))
            await done.wait()

        async with self._open_app(work, boxes + 4, fresh=True) as (app, task):
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
            raise NotImplementedError("this process only sends")

        async with self._open_app(work, 8, fresh=False) as (_, task):
            yield JobSender(task.configure(queue="box-0").defer_async)

    @asynccontextmanager
    async def _open_app(self, work: Any, size: int, *, fresh: bool) -> AsyncIterator[tuple[Any, Any]]:
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


POSTGRES = (AgentBusServer(), SkipLocked(), Procrastinate())
