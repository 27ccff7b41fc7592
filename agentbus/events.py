"""Reading the audit trail: ``bus.events``, page by page, and following it across processes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Literal

import msgspec

from agentbus.errors import OutOfRange
from agentbus.limits import MAX_ID, check_choice, check_range
from agentbus.operations.events import CHANNEL, KINDS, SUBJECTS, EventFilter, last_event, read_events
from agentbus.records import EventRecord

if TYPE_CHECKING:
    # The command line reads the trail without an event loop.
    from agentbus.engine.hub import Ear
    from agentbus.engine.interface import Engine
    from agentbus.listening import Listening

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
    """What ``bus.events`` gives; its arguments are checked at once, not with the first event."""
    now = after == "now"
    wanted = EventFilter(
        0 if now else check_range(after, "after", 0, MAX_ID),
        None if kind is None else check_choice(kind, "kind", tuple(KINDS)),
        None if subject is None else _subject(subject),
        _PAGE,
    )
    most = MAX_ID if limit is None else check_range(limit, "limit", 1, MAX_ID)
    return _read(engine, listening, wanted, now, follow, most)


async def _read(
    engine: Engine, listening: Listening, wanted: EventFilter, now: bool, follow: bool, left: int
) -> AsyncGenerator[EventRecord, None]:
    async with AsyncExitStack() as stack:
        # Listen before looking, so that nothing falls between.
        ear: Ear | None = await stack.enter_async_context(listening.to(CHANNEL)) if follow else None
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
                if ear is None:
                    return
                await ear.wait(None)


def _subject(subject: object) -> tuple[str, str]:
    """``agent:planner-1`` as the kind and the id of a subject."""
    kind, _, id = subject.partition(":") if isinstance(subject, str) else ("", "", "")
    if kind not in SUBJECTS or not id:
        allowed = f"a kind and an id, as in agent:planner-1; kinds are {', '.join(SUBJECTS)}"
        raise OutOfRange(what="subject", value=subject, allowed=allowed)
    return kind, id
