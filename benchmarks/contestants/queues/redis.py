"""Redis Streams: a stream and a consumer group for each mailbox."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contestants import servers
from benchmarks.contestants.about import missing_packages, package
from benchmarks.contestants.queues.base import EVERYTHING

GROUP, READER = "readers", "reader"
Claimed = tuple[bytes, dict[bytes, bytes]]


class StreamBox:
    """One stream, read by the one member of its group."""

    def __init__(self, client: Any, stream: str) -> None:
        self._client = client
        self._stream = stream

    async def send(self, payload: Any) -> None:
        await self._client.xadd(self._stream, _entry(payload))

    async def receive(self) -> Claimed:
        return (await self.receive_many(1, ()))[0]

    async def ack(self, message: Claimed) -> None:
        await self._client.xack(self._stream, GROUP, message[0])

    async def ack_many(self, messages: Sequence[Claimed]) -> None:
        await self._client.xack(self._stream, GROUP, *(id for id, _ in messages))

    async def send_many(self, payloads: Sequence[Any]) -> None:
        pipeline = self._client.pipeline(transaction=False)
        for payload in payloads:
            pipeline.xadd(self._stream, _entry(payload))
        await pipeline.execute()

    async def receive_many(self, limit: int, done: Sequence[Claimed]) -> list[Claimed]:
        if done:
            await self.ack_many(done)
        # A blocking read must not be part of a pipeline.
        found = await self._client.xreadgroup(GROUP, READER, {self._stream: ">"}, count=limit, block=0)
        messages: list[Claimed] = found[0][1]
        return messages

    def payload(self, message: Claimed) -> Any:
        return json.loads(message[1][b"payload"])


@dataclass(frozen=True)
class RedisStreams:
    key: str
    title: str
    durability: str
    fsync: str
    workloads: frozenset[str] = EVERYTHING

    @property
    def server(self) -> str:
        return f"REDIS_{self.fsync.upper()}"

    def missing(self) -> str | None:
        return missing_packages(["redis"]) or (None if servers.program("redis-server") else "redis-server not found")

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[list[StreamBox]]:
        async with self._connected() as client:
            await client.flushall()
            found = []
            for number in range(boxes):
                await client.xgroup_create(f"box-{number}", GROUP, mkstream=True)
                found.append(StreamBox(client, f"box-{number}"))
            yield found

    @asynccontextmanager
    async def sender(self, directory: Path) -> AsyncIterator[StreamBox]:
        async with self._connected() as client:
            yield StreamBox(client, "box-0")

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        client = package("redis.asyncio").from_url(servers.redis(self.fsync), protocol=2)
        try:
            yield client
        finally:
            await client.aclose()


def _entry(payload: Any) -> dict[str, str]:
    return {"payload": json.dumps(payload, separators=(",", ":"))}


REDIS = (
    RedisStreams("redis", "Redis Streams, fsync always", "disk: every command is fsynced", "always"),
    RedisStreams("redis-everysec", "Redis Streams, fsync every second", "a power cut loses a second", "everysec"),
)
