"""State: entries of any scope, and a stream of their changes."""

from __future__ import annotations

from collections.abc import AsyncIterator

from agentbus.core.validation import PAGE_SIZE
from agentbus.records import Page, ScopeRecord, StateEntry
from agentbus.web.call import Call, Query
from agentbus.web.handlers.agents import Existed, IncrementBody, SetBody, Sum, Version, entry
from agentbus.web.handlers.messages import PageQuery
from agentbus.web.streams import Events, ServerEvent


class EntriesQuery(Query, frozen=True):
    prefix: str = ""
    cursor: str | None = None
    limit: int = PAGE_SIZE


class IfVersionQuery(Query, frozen=True):
    if_version: int | None = None


class WatchQuery(Query, frozen=True):
    """``after``: the ``change`` of the last known entry; the header Last-Event-ID takes precedence."""

    prefix: str = ""
    after: int | None = None


async def list_scopes(call: Call, query: PageQuery) -> Page[ScopeRecord]:
    """List the scopes that have entries, ordered by name."""
    return await call.bus.scopes(cursor=query.cursor, limit=query.limit)


async def list_entries(call: Call, query: EntriesQuery) -> Page[StateEntry]:
    """List the entries of a scope, ordered by key."""
    return await call.bus.state(call.names["scope"]).list(query.prefix, cursor=query.cursor, limit=query.limit)


async def get_entry(call: Call) -> StateEntry:
    """Show an entry with its version, type, author and times."""
    return await entry(call, call.names["scope"])


async def set_entry(call: Call, body: SetBody) -> Version:
    """Set an entry, for ``ttl`` seconds or permanently."""
    state = call.bus.state(call.names["scope"])
    return Version(
        await state.set(call.names["key"], body.value, ttl=body.ttl, type=body.type, if_version=body.if_version)
    )


async def delete_entry(call: Call, query: IfVersionQuery) -> Existed:
    """Delete an entry."""
    state = call.bus.state(call.names["scope"])
    return Existed(await state.delete(call.names["key"], if_version=query.if_version))


async def increment_entry(call: Call, body: IncrementBody) -> Sum:
    """Add a number to an entry. A missing entry counts as 0."""
    state = call.bus.state(call.names["scope"])
    return Sum(await state.increment(call.names["key"], body.by, ttl=body.ttl))


async def watch(call: Call, query: WatchQuery) -> Events:
    """Stream the entries of a scope, then their changes. The id of each is its ``change``."""
    after = call.app.last_event_id(call.request)
    changes = call.bus.state(call.names["scope"]).watch(query.prefix, after=query.after if after is None else after)

    async def found() -> AsyncIterator[ServerEvent]:
        async for one in changes:
            yield ServerEvent(one, id=str(one.change), event="entry")

    return Events(found())
