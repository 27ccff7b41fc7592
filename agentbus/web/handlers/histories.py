"""Histories: list them, show the items of one, delete."""

from __future__ import annotations

from typing import Any

import msgspec

from agentbus.core.validation import MAX_PAGE, MAX_SNAPSHOT, PAGE_SIZE, check_number_cursor, check_range
from agentbus.errors import UnknownHistory
from agentbus.records import History, HistoryItem, Page
from agentbus.web.call import Call, Count, Query


class HistoriesQuery(Query, frozen=True):
    kind: str | None = None
    prefix: str | None = None
    cursor: str | None = None
    limit: int = PAGE_SIZE


class ItemsQuery(Query, frozen=True):
    """``bodies``: also return the bodies, in base64; a page then has at most about 16 MiB of them."""

    part: str | None = None
    key: str | None = None
    bodies: bool = False
    cursor: str | None = None
    limit: int = PAGE_SIZE


class DeleteQuery(Query, frozen=True):
    """Without ``part`` and ``key`` the history itself is deleted. ``key``: of the part "", unless one is given."""

    part: str | None = None
    key: str | None = None


class ShownItem(msgspec.Struct, frozen=True):
    """An item of a history. It has a ``body`` only if bodies were asked for."""

    history: str
    part: str
    key: str
    number: int
    encoding: str
    meta: dict[str, Any]
    size: int
    created: int
    body: bytes | msgspec.UnsetType = msgspec.UNSET


class HistoryPage(msgspec.Struct, frozen=True):
    """A history with a page of its items, in the order of their numbers."""

    history: History
    items: list[ShownItem]
    cursor: str | None = None


async def list_histories(call: Call, query: HistoriesQuery) -> Page[History]:
    """List the conversations and runs that agent frameworks store, ordered by kind and name."""
    return await call.bus.histories.list(query.kind, prefix=query.prefix, cursor=query.cursor, limit=query.limit)


async def get_history(call: Call, query: ItemsQuery) -> HistoryPage:
    """Show a history and its items, without their bodies unless they are asked for."""
    history = await _find(call)
    limit = check_range(query.limit, "limit", 1, MAX_PAGE)
    after = check_number_cursor(query.cursor)
    histories = call.bus.histories
    found = await histories.items(
        history.kind, history.name, part=query.part, key=query.key, after=after, limit=limit + 1, bodies=False
    )
    items = found[:limit]
    if query.bodies and items:
        items = await histories.items(
            history.kind, history.name, part=query.part, key=query.key, after=after, limit=_fitting(items)
        )
    more = items and len(found) > len(items)
    shown = [_shown(item, query.bodies) for item in items]
    return HistoryPage(history, shown, str(items[-1].number) if more else None)


async def delete_history(call: Call, query: DeleteQuery) -> Count:
    """Delete a history, or only items of it; the count is that of the items."""
    history = await _find(call)
    keys = None if query.key is None else [query.key]
    return Count(await call.bus.histories.delete(history.kind, history.name, part=query.part, keys=keys))


async def _find(call: Call) -> History:
    kind, name = call.names["kind"], call.names["name"]
    found = await call.bus.histories.find(kind, name)
    if found is None:
        raise UnknownHistory(kind=kind, name=name)
    return found


def _shown(item: HistoryItem, bodies: bool) -> ShownItem:
    fields = msgspec.structs.asdict(item)
    return ShownItem(**(fields if bodies else {**fields, "body": msgspec.UNSET}))


def _fitting(items: list[HistoryItem]) -> int:
    """Return how many bodies fit into a response, at least one."""
    room = MAX_SNAPSHOT
    for count, item in enumerate(items):
        room -= item.size
        if room < 0:
            return max(1, count)
    return len(items)
