"""Who is measured on a server: ourselves, asyncpg used plainly, and procrastinate if it is installed."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import asyncpg

import agentbus
from benchmarks.contestants.base import Box
from benchmarks.contestants.bus import AgentBox
from benchmarks.servers import place

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

Claimed = tuple[int, Any]
_schemas = itertools.count(1)


def fresh_url() -> str:
    """An empty bus on the server."""
    return f"{place.url()}&schema=bench_{next(_schemas)}"


@dataclass(frozen=True)
class AgentBusServer:
    """agentbus as it is installed."""

    key: str = "agentbus"
    title: str = "agentbus"
    durability: str = "disk: a send is flushed; claims and acks survive the death of any client"

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[Sequence[Box]]:
        async with agentbus.connect(fresh_url()) as bus:
            yield [AgentBox(await bus.register(f"agent-{number}", type="worker")) for number in range(boxes)]


class PlainBox:
    """One mailbox; each step is a statement, and a transaction, of its own."""

    def __init__(self, pool: Any, mailbox: int) -> None:
        self._pool = pool
        self._mailbox = mailbox

    async def send(self, payload: Any) -> None:
        text = json.dumps(payload, separators=(",", ":"))
        await self._pool.execute(INSERT, self._mailbox, text, crc32(text.encode()))

    async def receive(self) -> Claimed:
        (message,) = await self.receive_many(1, ())
        return message

    async def ack(self, message: Claimed) -> None:
        await self._pool.execute(ACK, [message[0]])

    async def ack_many(self, messages: Sequence[Claimed]) -> None:
        await self._pool.execute(ACK, [id for id, _ in messages])

    async def send_many(self, payloads: Sequence[Any]) -> None:
        texts = [json.dumps(payload, separators=(",", ":")) for payload in payloads]
        await self._pool.executemany(INSERT, [(self._mailbox, text, crc32(text.encode())) for text in texts])

    async def receive_many(self, most: int, done: Sequence[Claimed]) -> list[Claimed]:
        if done:
            await self.ack_many(done)
        return [(id, json.loads(text)) for id, text in await self._pool.fetch(CLAIM, self._mailbox, most)]

    def payload(self, message: Claimed) -> Any:
        return message[1]


@dataclass(frozen=True)
class PlainAsyncpg:
    """asyncpg with SKIP LOCKED on the tables of agentbus, a connection for each task."""

    key: str = "asyncpg"
    title: str = "asyncpg, SKIP LOCKED"
    durability: str = "disk: every commit is flushed"

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[Sequence[Box]]:
        url = fresh_url()
        async with agentbus.connect(url) as bus:
            for number in range(boxes):
                await bus.expect(f"agent-{number}", type="worker")
        dsn, _, schema = url.partition("&schema=")
        settings = {"search_path": schema}
        async with asyncpg.create_pool(dsn, min_size=boxes, max_size=boxes, server_settings=settings) as pool:
            rows = await pool.fetch("SELECT mailbox FROM agents ORDER BY id")
            yield [PlainBox(pool, row[0]) for row in rows]


class JobBox:
    """A queue of procrastinate. A job that runs has been received; when its function returns, it is done."""

    def __init__(self, defer: Any) -> None:
        self._defer = defer
        self.arrived: asyncio.Queue[tuple[asyncio.Event, Any]] = asyncio.Queue()

    async def send(self, payload: Any) -> None:
        await self._defer(payload=payload)

    async def receive(self) -> tuple[asyncio.Event, Any]:
        return await self.arrived.get()

    async def ack(self, message: tuple[asyncio.Event, Any]) -> None:
        message[0].set()

    async def ack_many(self, messages: Sequence[tuple[asyncio.Event, Any]]) -> None:
        for message in messages:
            await self.ack(message)

    async def send_many(self, payloads: Sequence[Any]) -> None:
        for payload in payloads:
            await self.send(payload)

    async def receive_many(self, most: int, done: Sequence[Any]) -> list[tuple[asyncio.Event, Any]]:
        await self.ack_many(done)
        return [await self.receive()]

    def payload(self, message: tuple[asyncio.Event, Any]) -> Any:
        return message[1]


@dataclass(frozen=True)
class Procrastinate:
    """procrastinate with one worker of as many jobs at once as there are tasks, woken by notifications."""

    key: str = "procrastinate"
    title: str = "procrastinate"
    durability: str = "disk: every commit is flushed"

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[Sequence[Box]]:
        import procrastinate

        schema = f"bench_{next(_schemas)}"
        connection = await asyncpg.connect(place.url())
        await connection.execute(f"CREATE SCHEMA {schema}")
        await connection.close()
        connector = procrastinate.PsycopgConnector(
            conninfo=place.url(), kwargs={"options": f"-c search_path={schema}"}, min_size=4, max_size=boxes + 4
        )
        app = procrastinate.App(connector=connector)
        found: dict[str, JobBox] = {}

        @app.task(name="work", pass_context=True)  # type: ignore[untyped-decorator, unused-ignore]
        async def work(context: Any, payload: Any) -> None:
            done = asyncio.Event()
            await found[context.job.queue].arrived.put((done, payload))
            await done.wait()

        async with app.open_async():
            await app.schema_manager.apply_schema_async()
            for number in range(boxes):
                found[f"q-{number}"] = JobBox(work.configure(queue=f"q-{number}").defer_async)
            worker = asyncio.create_task(
                app.run_worker_async(
                    concurrency=boxes, wait=True, install_signal_handlers=False, shutdown_graceful_timeout=1
                )
            )
            try:
                yield list(found.values())
            finally:
                worker.cancel()
                await asyncio.gather(worker, return_exceptions=True)


def contestants() -> tuple[AgentBusServer | PlainAsyncpg | Procrastinate, ...]:
    """All that are installed."""
    others: tuple[Procrastinate, ...] = (Procrastinate(),) if importlib.util.find_spec("procrastinate") else ()
    return (AgentBusServer(), PlainAsyncpg(), *others)
