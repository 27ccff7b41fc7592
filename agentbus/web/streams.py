"""Server-sent events: a stream that resumes, sends heartbeats, and disconnects a client that does not read.

A stream pulls from its source: an event is read when the one before it was sent, so nothing is buffered for a slow
client beyond what the connection itself holds. One that takes nothing for ``SEND_TIMEOUT`` seconds is disconnected; it
reconnects with ``Last-Event-ID``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import StreamingResponse

from agentbus.api.problems import describe_for_http
from agentbus.errors import AgentBusError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

HEARTBEAT = 15.0
"""Seconds of silence after which a comment is sent, so that proxies and clients know that the stream is open."""
SEND_TIMEOUT = 10.0
"""Seconds that a client may take to make room for the next event."""
RETRY = 1000
"""Milliseconds after which a browser reconnects."""


class ServerEvent(msgspec.Struct, frozen=True):
    """An event of a stream: its data, which is sent as JSON, its id, and its name."""

    data: Any
    id: str | None = None
    event: str | None = None

    def encode(self) -> bytes:
        """Return the event as it is sent. JSON of msgspec has no line break.

        >>> ServerEvent({"n": 1}, id="7", event="entry").encode()
        b'id: 7\\nevent: entry\\ndata: {"n":1}\\n\\n'
        """
        parts = [] if self.id is None else [b"id: %s\n" % self.id.encode()]
        if self.event is not None:
            parts.append(b"event: %s\n" % self.event.encode())
        return b"".join([*parts, b"data: ", msgspec.json.encode(self.data), b"\n\n"])


class Encoded:
    """An event that was encoded once for many streams."""

    __slots__ = ("content",)

    def __init__(self, content: bytes) -> None:
        self.content = content

    def encode(self) -> bytes:
        return self.content


class Events:
    """The result of a handler whose response is a stream."""

    def __init__(self, source: AsyncIterator[ServerEvent | Encoded]) -> None:
        self.source = source


class EventStream(StreamingResponse):
    """Sends the events of a source until the client leaves, the server stops, or ``is_valid`` returns False."""

    def __init__(
        self,
        source: AsyncIterator[ServerEvent | Encoded],
        *,
        stopping: asyncio.Event,
        is_valid: Callable[[], Awaitable[bool]],
        on_close: Callable[[], None],
        heartbeat: float = HEARTBEAT,
        send_timeout: float = SEND_TIMEOUT,
    ) -> None:
        super().__init__((), media_type="text/event-stream")
        self.headers["Cache-Control"] = "no-store"
        # Nginx would collect events otherwise.
        self.headers["X-Accel-Buffering"] = "no"
        self._source = source
        self._stopping = stopping
        self._is_valid = is_valid
        self._on_close = on_close
        self._heartbeat = heartbeat
        self._send_timeout = send_timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_disconnected(receive))
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                if await self._write(send, b"retry: %d\n: connected\n\n" % RETRY):
                    await self._send_events(send, gone, stop)
            except TimeoutError:
                _abort(send)
                await asyncio.wait({gone}, timeout=1)
                return
            if not gone.done():
                with suppress(TimeoutError, OSError):
                    async with asyncio.timeout(0.5):
                        await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            gone.cancel()
            stop.cancel()
            self._on_close()
            close = getattr(self._source, "aclose", None)
            if close is not None:
                await close()

    async def _send_events(self, send: Send, gone: asyncio.Future[None], stop: asyncio.Future[Any]) -> None:
        following: asyncio.Future[ServerEvent | Encoded] | None = None
        checked = time.monotonic()
        try:
            while not gone.done() and not stop.done():
                # A busy stream ends too when its token is revoked.
                if time.monotonic() - checked >= self._heartbeat:
                    checked = time.monotonic()
                    if not await self._is_valid():
                        return
                if following is None:
                    following = asyncio.ensure_future(anext(self._source))
                waiting: set[asyncio.Future[Any]] = {following, gone, stop}
                await asyncio.wait(waiting, timeout=self._heartbeat, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    try:
                        event = following.result()
                    except StopAsyncIteration:
                        return
                    except AgentBusError as error:
                        await self._write(send, ServerEvent(describe_for_http(error), event="problem").encode())
                        return
                    finally:
                        following = None
                    await self._write(send, event.encode())
                elif not gone.done() and not stop.done():
                    await self._write(send, b": heartbeat\n\n")
        finally:
            if following is not None:
                following.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration, AgentBusError):
                    await following

    async def _write(self, send: Send, content: bytes) -> bool:
        async with asyncio.timeout(self._send_timeout):
            await send({"type": "http.response.body", "body": content, "more_body": True})
        return True


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _abort(send: Send) -> None:
    """Close a connection at once: closing it properly would wait until the client reads."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()
