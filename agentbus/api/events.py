"""Read and follow the audit log: ``bus.events``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Literal

import msgspec

from agentbus.core.validation import MAX_ID, MAX_PAGE, check_choice, check_range, check_row_cursor
from agentbus.errors import OutOfRange
from agentbus.operations.events import CHANNEL, KINDS, SUBJECTS, EventFilter, last_event, read_events
from agentbus.operations.events import recent_events as read_recent_events
from agentbus.records import EventRecord, Page

if TYPE_CHECKING:
    from agentbus.api.state import Listening
    from agentbus.engine.interface import Engine
    from agentbus.engine.waiters import Waiter

_PAGE = 500


def events(
    engine: Engine,
    listening: Listening,
    after: int | Literal["now"],
    follow: bool,
    kind: str | None,
    subject: str | None,
    limit: int | None,
) -> AsyncGenerator[EventRecord, None]:
    """Check the arguments of ``bus.events`` and return its iterator."""
    now = after == "now"
    wanted = EventFilter(
        0 if now else check_range(after, "after", 0, MAX_ID),
        None if kind is None else check_choice(kind, "kind", tuple(KINDS)),
        None if subject is None else _subject(subject),
        _PAGE,
    )
    max_events = MAX_ID if limit is None else check_range(limit, "limit", 1, MAX_ID)
    return _read(engine, listening, wanted, now, follow, max_events)


async def recent_events(
    engine: Engine, kind: str | None, subject: str | None, cursor: str | None, limit: int
) -> Page[EventRecord]:
    """Check the arguments of ``bus.recent_events`` and return its page."""
    wanted = EventFilter(
        check_row_cursor(cursor),
        None if kind is None else check_choice(kind, "kind", tuple(KINDS)),
        None if subject is None else _subject(subject),
        check_range(limit, "limit", 1, MAX_PAGE),
    )
    return await engine.read(read_recent_events, wanted)


async def _read(
    engine: Engine, listening: Listening, wanted: EventFilter, now: bool, follow: bool, left: int
) -> AsyncGenerator[EventRecord, None]:
    async with AsyncExitStack() as stack:
        # Subscribe before reading, so that no event falls in between.
        waiter: Waiter | None = await stack.enter_async_context(listening.to(CHANNEL)) if follow else None
        if now:
            wanted = msgspec.structs.replace(wanted, after=await engine.read(last_event, None))
        while True:
            page = await engine.read(read_events, msgspec.structs.replace(wanted, limit=min(_PAGE, left)))
            for event in page:
                yield event
            left -= len(page)
            if left <= 0:
                return
            if page:
                wanted = msgspec.structs.replace(wanted, after=page[-1].id)
            if len(page) < _PAGE:
                if waiter is None:
                    return
                await waiter.wait(None)


def _subject(subject: object) -> tuple[str, str]:
    """Split ``agent:planner-1`` into kind and id."""
    kind, _, id = subject.partition(":") if isinstance(subject, str) else ("", "", "")
    if kind not in SUBJECTS or not id:
        allowed = f"a kind and an id, as in agent:planner-1; kinds are {', '.join(SUBJECTS)}"
        raise OutOfRange(what="subject", value=subject, allowed=allowed)
    return kind, id
