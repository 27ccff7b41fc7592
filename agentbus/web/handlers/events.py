"""The audit log: pages, and a stream that resumes after ``Last-Event-ID``."""

from __future__ import annotations

from collections.abc import AsyncIterator

from agentbus.records import EventRecord, Page
from agentbus.web.call import Call, Query
from agentbus.web.errors import InvalidRequest
from agentbus.web.streams import Events, ServerEvent

_MAX_PAGE = 1000


class EventsQuery(Query, frozen=True):
    """``after``: the id of the last known event. ``subject`` is written like ``agent:planner-1``. With ``last``, the
    log is read from its end, newest first, and ``cursor`` continues."""

    after: int = 0
    kind: str | None = None
    subject: str | None = None
    last: bool = False
    cursor: str | None = None
    limit: int = 100


class FollowQuery(Query, frozen=True):
    """``after``: the id of the last known event, or ``now``; the header Last-Event-ID takes precedence."""

    after: str = "now"
    kind: str | None = None
    subject: str | None = None


async def list_events(call: Call, query: EventsQuery) -> Page[EventRecord]:
    """List events in their order. The cursor of a page is the ``after`` of the next."""
    if not 1 <= query.limit <= _MAX_PAGE:
        raise InvalidRequest(reason=f"limit is {query.limit}, must be 1 to {_MAX_PAGE}")
    if query.last:
        return await call.bus.recent_events(
            kind=query.kind, subject=query.subject, cursor=query.cursor, limit=query.limit
        )
    found = [
        one
        async for one in call.bus.events(
            after=query.after, kind=query.kind, subject=query.subject, limit=query.limit + 1
        )
    ]
    more = len(found) > query.limit
    return Page(found[: query.limit], str(found[query.limit - 1].id) if more else None)


async def follow_events(call: Call, query: FollowQuery) -> Events:
    """Stream events: those since ``after``, then new ones as they happen. The id of each is its number."""
    after = call.app.last_event_id(call.request)
    if after is None and query.after == "now":
        # Read here, so that no event is missed from the response on.
        after = next((one.id for one in (await call.bus.recent_events(limit=1)).items), 0)
    if after is None:
        after = event_number(query.after)
    found = call.bus.events(after=after, follow=True, kind=query.kind, subject=query.subject)

    async def read() -> AsyncIterator[ServerEvent]:
        async for one in found:
            yield ServerEvent(one, id=str(one.id), event="event")

    return Events(read())


def event_number(text: str) -> int:
    """Return the number of an event."""
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidRequest(reason=f"{text[:40]!r} is not the id of an event")
    return int(text)
