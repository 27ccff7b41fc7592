"""The live feed of a bus: ``bus.live``, events and changes of messages, woken by doorbells and coalesced.

Sends ring a channel that nothing listens to unless a feed is open. Claims and acknowledgements name their messages on
the same channel only while something listens. A feed collects what is rung for a moment, then reads events and messages
once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from agentbus.core.validation import MAX_ID
from agentbus.errors import OutOfRange
from agentbus.operations.events import CHANNEL, EventFilter, last_event, read_events
from agentbus.operations.lookups import LiveQuery, live_messages, newest_message
from agentbus.operations.protocol import LIVE
from agentbus.records.access import LiveChange

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentbus.api.bus import Bus
    from agentbus.engine.interface import Engine
    from agentbus.records import EventRecord, MessageChange

COALESCE = 0.1
"""Seconds for which changes are collected before they are read: an open feed of a busy bus costs ten reads a second."""
MAX_CHANGES = 1000
"""Messages that one change names; with more, the client must read again."""
_MAX_EVENTS = 500
_OVERLAP = 64
"""Ids before the last one that are read again: on a server, transactions may commit in another order than their ids."""


class Cursor:
    """The last event and the last message that a feed has reported."""

    __slots__ = ("event", "message")

    def __init__(self, event: int, message: int) -> None:
        self.event = event
        self.message = message

    def __str__(self) -> str:
        return f"{self.event}.{self.message}"


def parse_cursor(text: str) -> Cursor:
    """Return the cursor that a change had.

    >>> str(parse_cursor("120.4711"))
    '120.4711'
    """
    parts = text.split(".")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
        raise OutOfRange(what="cursor", value=text[:60], allowed="the cursor of a change of the live feed")
    return Cursor(int(parts[0]), int(parts[1]))


class _Rings:
    """The rings since the last read: the messages that they named, and whether some may be lost."""

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.lost = False
        self.event = asyncio.Event()

    def follow(self, detail: str | None) -> None:
        if detail is None:
            self.lost = True
        elif detail:
            self._add(detail.partition(" ")[2])
        self.event.set()

    def _add(self, ids: str) -> None:
        for part in ids.split(","):
            first, _, last = part.partition("-")
            if len(self.ids) >= MAX_CHANGES or not first.isdigit() or (last and not last.isdigit()):
                self.lost = True
                return
            self.ids.update(range(int(first), min(int(last or first), int(first) + MAX_CHANGES) + 1))

    def take(self) -> tuple[list[int], bool]:
        found, lost = sorted(self.ids), self.lost
        self.ids, self.lost = set(), False
        self.event.clear()
        return found, lost


async def live(bus: Bus, after: str | None, coalesce: float) -> AsyncGenerator[LiveChange, None]:
    """Yield what happened since ``after``, then what happens; the first change is yielded at once."""
    engine = bus._engine
    rings = _Rings()
    async with AsyncExitStack() as stack:
        # Subscribe before reading, so that nothing falls in between.
        for channel in (CHANNEL, LIVE):
            stack.callback(engine.waiters.follow(channel, rings.follow))
            await stack.enter_async_context(bus._listening.to(channel))
        cursor = await position(engine) if after is None else parse_cursor(after)
        seen: dict[int, MessageChange] = {}
        change = await read(engine, cursor, (), seen)
        while True:
            yield change
            if len(change.events) < _MAX_EVENTS:
                await rings.event.wait()
                # More may follow soon: read once for all of it.
                await asyncio.sleep(coalesce)
            ids, lost = rings.take()
            change = await read(engine, cursor, ids, seen, lost=lost)


async def position(engine: Engine) -> Cursor:
    """Return the cursor of a feed that starts now."""
    return Cursor(await engine.read(last_event, None), await engine.read(newest_message, None))


async def read(
    engine: Engine,
    cursor: Cursor,
    ids: list[int] | tuple[int, ...],
    seen: dict[int, MessageChange],
    *,
    lost: bool = False,
) -> LiveChange:
    """Return what is new after the cursor, which moves; and those of the messages that have changed since they were
    ``seen``."""
    events: list[EventRecord] = await engine.read(read_events, EventFilter(cursor.event, limit=_MAX_EVENTS))
    wanted = LiveQuery(max(0, cursor.message - _OVERLAP), [id for id in ids if id <= MAX_ID], MAX_CHANGES + _OVERLAP)
    messages = await engine.read(live_messages, wanted)
    announced = set(ids)
    # Of those before the cursor, also those that were committed after a message with a higher id was read.
    new = [
        one for one in messages if one.id > cursor.message or one.id in announced or (seen and seen.get(one.id) != one)
    ]
    seen.clear()
    seen.update({one.id: one for one in messages[-2 * _OVERLAP :]})
    full = len(messages) >= wanted.limit
    if events:
        cursor.event = events[-1].id
    if messages:
        newest = await engine.read(newest_message, None) if full else messages[-1].id
        cursor.message = max(cursor.message, newest)
    return LiveChange(str(cursor), events, new[-MAX_CHANGES:], lost or full or len(new) > MAX_CHANGES)


def follow_changes(bus: Bus, follower: Callable[[str | None], None]) -> Callable[[], None]:
    """Call ``follower`` with the text of each change of messages that is rung. Return a function that ends this."""
    return bus._engine.waiters.follow(LIVE, follower)
