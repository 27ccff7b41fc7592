"""A small HTTP client: what a test sends is what goes over the wire."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

TIMEOUT = 20.0


class Answer:
    """A response."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    def __repr__(self) -> str:
        return f"{self.status} {self.headers} {self.body[:600]!r}"

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self
        found = self.json
        assert found["status"] == self.status
        assert found["detail"]
        return str(found["code"])


class Client:
    """Sends requests to a server, with a Bearer token or without."""

    def __init__(self, port: int, token: str | None = None, *, base: str = "") -> None:
        self.port = port
        self.token = token
        self.base = base

    def with_token(self, token: str | None) -> Client:
        return Client(self.port, token, base=self.base)

    async def get(self, path: str, **headers: str) -> Answer:
        return await self.send("GET", path, headers=headers)

    async def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        return await self.send("POST", path, body, headers=headers)

    async def send(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send a request below /api/v1, or of another path that starts with /."""
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.raw(self.head(method, path, content, headers) + content, method=method)

    def head(self, method: str, path: str, content: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
        """Return the head of a request."""
        target = path if path.startswith("/") else f"{self.base}/api/v1/{path}"
        found = {"host": f"127.0.0.1:{self.port}", "connection": "close"}
        if self.token is not None:
            found["authorization"] = f"Bearer {self.token}"
        if content:
            found["content-type"] = "application/json"
        if content or method in {"POST", "PUT", "PATCH"}:
            found["content-length"] = str(len(content))
        found |= {name.lower().replace("_", "-"): value for name, value in (headers or {}).items()}
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in found.items() if value)]
        return "\r\n".join([*lines, "", ""]).encode()

    async def raw(self, content: bytes, *, method: str = "GET") -> Answer:
        """Send these bytes, and read one response."""
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(content)
                await writer.drain()
                status, headers = await read_head(reader)
                length = int(headers.get("content-length", "0"))
                chunked = headers.get("transfer-encoding") == "chunked"
                body = b""
                if method != "HEAD":
                    body = b"".join([part async for part in _chunks(reader)]) if chunked else (
                        await reader.readexactly(length)
                    )  # fmt: skip
                return Answer(status, headers, body)
            finally:
                writer.close()

    @asynccontextmanager
    async def stream(self, path: str, **headers: str) -> AsyncIterator[Stream]:
        """Open a stream of server-sent events."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(self.head("GET", path, b"", {"accept": "text/event-stream", **headers}))
            async with asyncio.timeout(TIMEOUT):
                status, found = await read_head(reader)
            yield Stream(status, found, reader)
        finally:
            writer.close()


class Stream:
    """An open stream of server-sent events."""

    def __init__(self, status: int, headers: dict[str, str], reader: asyncio.StreamReader) -> None:
        self.status = status
        self.headers = headers
        self.comments: list[str] = []
        self._chunks = _chunks(reader)
        self._rest = b""

    async def next(self) -> dict[str, Any]:
        """Return the next event: its id, its name and its data."""
        async with asyncio.timeout(TIMEOUT):
            while True:
                block, mark, rest = self._rest.partition(b"\n\n")
                if not mark:
                    self._rest += await anext(self._chunks)
                    continue
                self._rest = rest
                found: dict[str, Any] = {}
                for line in block.decode().split("\n"):
                    name, _, value = line.partition(": ")
                    if name == "":
                        self.comments.append(value)
                    else:
                        found[name] = json.loads(value) if name == "data" else value
                if "data" in found:
                    return found

    async def ended(self) -> bool:
        """Wait for the end of the stream."""
        async with asyncio.timeout(TIMEOUT):
            try:
                while True:
                    await self.next()
            except (StopAsyncIteration, asyncio.IncompleteReadError):
                return True


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip("\r\n").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    return int(first.split()[1]), headers


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int(await reader.readline() or b"0", 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
