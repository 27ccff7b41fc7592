"""NATS JetStream: a work queue, and a pull consumer for each mailbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contestants import servers
from benchmarks.contestants.about import missing_packages, package
from benchmarks.contestants.queues.base import EVERYTHING

STREAM = "bench"
TIMEOUT = 3600


class SubjectSender:
    """Publish and wait for the acknowledgement of the server."""

    def __init__(self, stream: Any, subject: str) -> None:
        self._stream = stream
        self._subject = subject

    async def send(self, payload: Any) -> None:
        await self._stream.publish(self._subject, json.dumps(payload, separators=(",", ":")).encode())

    async def send_many(self, payloads: Sequence[Any]) -> None:
        await asyncio.gather(*(self.send(payload) for payload in payloads))


class SubjectBox(SubjectSender):
    """A subject with its consumer; acknowledgements are sent without waiting."""

    def __init__(self, stream: Any, subject: str, consumer: Any) -> None:
        super().__init__(stream, subject)
        self._consumer = consumer

    async def receive(self) -> Any:
        return (await self._consumer.fetch(1, timeout=TIMEOUT))[0]

    async def ack(self, message: Any) -> None:
        await message.ack()

    async def ack_many(self, messages: Sequence[Any]) -> None:
        for message in messages:
            await message.ack()

    async def receive_many(self, limit: int, done: Sequence[Any]) -> Sequence[Any]:
        await self.ack_many(done)
        messages: Sequence[Any] = await self._consumer.fetch(limit, timeout=TIMEOUT)
        return messages

    def payload(self, message: Any) -> Any:
        return json.loads(message.data)


@dataclass(frozen=True)
class JetStream:
    key: str
    title: str
    durability: str
    sync: str
    workloads: frozenset[str] = EVERYTHING

    @property
    def server(self) -> str:
        return f"NATS_{self.sync.upper()}"

    def missing(self) -> str | None:
        return missing_packages(["nats"]) or (None if servers.program("nats-server") else "nats-server not found")

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[list[SubjectBox]]:
        async with self._connected() as stream:
            for info in await stream.streams_info():
                await stream.delete_stream(info.config.name)
            await stream.add_stream(name=STREAM, subjects=[f"{STREAM}.*"], retention="workqueue")
            yield [
                SubjectBox(stream, subject, await stream.pull_subscribe(subject, durable=f"reader-{number}"))
                for number, subject in ((number, f"{STREAM}.{number}") for number in range(boxes))
            ]

    @asynccontextmanager
    async def sender(self, directory: Path) -> AsyncIterator[SubjectSender]:
        async with self._connected() as stream:
            yield SubjectSender(stream, f"{STREAM}.0")

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        client = await package("nats").connect(servers.nats(self.sync))
        try:
            yield client.jetstream()
        finally:
            await client.close()


NATS = (
    JetStream("nats", "NATS JetStream, sync always", "disk: every message is fsynced", "always"),
    JetStream("nats-default", "NATS JetStream, default", "a power cut loses up to two minutes", "2m"),
)
