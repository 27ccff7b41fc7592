"""The live feed of the server: one feed of the bus, read once and sent to every open dashboard.

A dashboard has a bounded queue: one that does not keep up is disconnected, reconnects with ``Last-Event-ID``, and reads
again what it shows.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import TYPE_CHECKING

from agentbus.api.live import parse_cursor
from agentbus.errors import AgentBusError
from agentbus.web.streams import Encoded, ServerEvent

if TYPE_CHECKING:
    from agentbus import Bus
    from agentbus.records import LiveChange

MAX_QUEUE = 64
"""Changes that wait for a dashboard."""


class Subscriber:
    """An open dashboard."""

    def __init__(self) -> None:
        self.changes: deque[tuple[LiveChange, Encoded]] = deque()
        self.arrived = asyncio.Event()
        self.error: Exception | None = None

    def put(self, change: LiveChange, encoded: Encoded) -> None:
        if len(self.changes) >= MAX_QUEUE:
            self.error = self.error or OverflowError()
        else:
            self.changes.append((change, encoded))
        self.arrived.set()


class LiveHub:
    """Reads the feed of the bus while a dashboard is open."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._subscribers: set[Subscriber] = set()
        self._task: asyncio.Task[None] | None = None
        self._first: LiveChange | None = None
        self._started = asyncio.Event()

    async def follow(self, after: str | None) -> AsyncIterator[ServerEvent | Encoded]:
        """Yield what happened since ``after``, then what happens."""
        subscriber = Subscriber()
        self._subscribers.add(subscriber)
        try:
            if self._task is None or self._task.done():
                self._started.clear()
                self._task = asyncio.create_task(self._read(), name="agentbus live")
            await self._started.wait()
            known = ""
            async for change in self._since(after):
                known = change.cursor
                yield _event(change)
            while True:
                while subscriber.changes:
                    change, encoded = subscriber.changes.popleft()
                    # It may have been read already while this dashboard caught up.
                    if not known or _is_later(change.cursor, known) or change.messages:
                        yield encoded
                if subscriber.error is not None:
                    if isinstance(subscriber.error, AgentBusError):
                        raise subscriber.error
                    return
                subscriber.arrived.clear()
                await subscriber.arrived.wait()
        finally:
            self._subscribers.discard(subscriber)
            if not self._subscribers and self._task is not None:
                self._task.cancel()
                self._task = None

    async def _since(self, after: str | None) -> AsyncIterator[LiveChange]:
        """Yield what a dashboard has missed: at least one change, so that it knows the cursor."""
        feed = self._bus.live(after=after)
        try:
            while True:
                change = await anext(feed)
                yield change
                if len(change.events) < 500:
                    return
        finally:
            await feed.aclose()

    async def _read(self) -> None:
        try:
            async for change in self._bus.live():
                if not self._started.is_set():
                    # The first change only says where the feed starts.
                    self._started.set()
                    continue
                encoded = Encoded(_event(change).encode())
                for subscriber in self._subscribers:
                    subscriber.put(change, encoded)
        except Exception as error:
            for subscriber in self._subscribers:
                subscriber.error = error
                subscriber.arrived.set()
        finally:
            self._started.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task


def _event(change: LiveChange) -> ServerEvent:
    return ServerEvent(change, id=change.cursor, event="change")


def _is_later(cursor: str, known: str) -> bool:
    one, other = parse_cursor(cursor), parse_cursor(known)
    return one.event > other.event or one.message > other.message
