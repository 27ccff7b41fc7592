"""The live feed, rates over time, queues, and the spans of messages that pictures over time are made of."""

from __future__ import annotations

from typing import Literal

from agentbus.api.live import parse_cursor
from agentbus.core.validation import PAGE_SIZE
from agentbus.records import MessageSpan, Page, QueueRecord
from agentbus.web.call import Call, Query
from agentbus.web.handlers.messages import PageQuery
from agentbus.web.rates import Rates
from agentbus.web.streams import Events


class LiveQuery(Query, frozen=True):
    """``after``: the id of the last change, of the form ``event.message``; the header Last-Event-ID takes
    precedence."""

    after: str | None = None


class SpansQuery(Query, frozen=True, kw_only=True):
    """``start``, ``end``: wall milliseconds."""

    start: int
    end: int
    cursor: str | None = None
    limit: int = PAGE_SIZE


async def follow(call: Call, query: LiveQuery) -> Events:
    """Stream what happens: events, and messages that were sent, leased, acknowledged, released or dead-lettered,
    without payloads. The first change says what happened since ``after``. After a reconnect, or a change with
    ``missed``, read again what you show: leases and acknowledgements are reported only as they happen."""
    after = call.request.headers.get("last-event-id") or query.after
    if after is not None:
        parse_cursor(after)
    return Events(call.app.live.follow(after))


async def rates(call: Call) -> Rates:
    """Show the messages per minute, depths and sizes of the last 24 hours, as far as this server has run."""
    return await call.app.rates.read()


class QueuesQuery(PageQuery, frozen=True):
    kind: Literal["agent", "pool"] | None = None


async def list_queues(call: Call, query: QueuesQuery) -> Page[QueueRecord]:
    """List the mailboxes of agents and pools with their messages and readers."""
    return await call.bus.messages.queues(kind=query.kind, cursor=query.cursor, limit=query.limit)


async def message_spans(call: Call, query: SpansQuery) -> Page[MessageSpan]:
    """List the messages that were on the bus in a period, newest first: when each was sent, last delivered, finished.
    Earlier deliveries of a message are not on record."""
    return await call.bus.messages.spans(query.start, query.end, cursor=query.cursor, limit=query.limit)
