"""Work items: the list that all agents share, and the items that an agent takes from it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from agentbus.core.cancellation import fire_and_forget
from agentbus.core.validation import PAGE_SIZE
from agentbus.errors import AgentBusError
from agentbus.records import TaskRecord
from agentbus.web.call import Body, Call, Query
from agentbus.web.handlers.agents import EpochQuery, poll


class ReadyQuery(Query, frozen=True):
    """``manual``: only work items of agents (true), or only tasks of workers (false)."""

    workflow: str | None = None
    manual: bool | None = None
    limit: int = PAGE_SIZE


class TakeBody(Body, frozen=True):
    """``item``: the id of an item; without it the most urgent one, of one ``workflow`` or any. ``timeout``: seconds to
    wait for one, up to 55."""

    item: str | None = None
    workflow: str | None = None
    timeout: float = 0
    lease: float | None = None


class FinishBody(Body, frozen=True, kw_only=True):
    """``item``: its id, or with its lease: ``review-1#2``."""

    item: str
    result: Any = None


class FailItemBody(Body, frozen=True, kw_only=True):
    item: str
    reason: str


class ReleaseItemBody(Body, frozen=True, kw_only=True):
    item: str
    note: str | None = None


class TakenItem(msgspec.Struct, frozen=True):
    """The item that the agent has taken, and the lease that names it in ``finish``, ``fail`` and ``release``; null if
    there is none."""

    item: TaskRecord | None = None
    lease: str | None = None


class Finished(msgspec.Struct, frozen=True):
    """``before``: True if it was finished before with the same result."""

    item: str
    before: bool


class ItemStatus(msgspec.Struct, frozen=True):
    """The status of an item."""

    item: str
    status: str


async def ready(call: Call, query: ReadyQuery) -> list[TaskRecord]:
    """List the tasks that can be taken now, most urgent first: by workers, and work items by agents."""
    return list(await call.bus.tasks.ready(workflow=query.workflow, manual=query.manual, limit=query.limit))


async def take(call: Call, query: EpochQuery, body: TakeBody) -> TakenItem:
    """Take a work item under a lease. If the client disconnects before it has the response, it is released."""
    visitor = await call.visitor(query.epoch)
    timeout = poll(body.timeout, zero=True)
    found = await visitor.items.take(body.item, workflow=body.workflow, timeout=timeout, lease=body.lease)
    if found is None:
        return TakenItem()

    def abandon() -> None:
        with suppress(AgentBusError):
            fire_and_forget(visitor.items.release(found.lease))

    call.when_abandoned = abandon
    return TakenItem(found.task, found.lease)


async def finish(call: Call, query: EpochQuery, body: FinishBody) -> Finished:
    """Finish a work item with a result."""
    visitor = await call.visitor(query.epoch)
    return Finished(body.item, not await visitor.items.finish(body.item, body.result))


async def fail(call: Call, query: EpochQuery, body: FailItemBody) -> ItemStatus:
    """Fail a work item."""
    visitor = await call.visitor(query.epoch)
    return ItemStatus(body.item, await visitor.items.fail(body.item, body.reason))


async def release(call: Call, query: EpochQuery, body: ReleaseItemBody) -> ItemStatus:
    """Release a work item for another agent."""
    visitor = await call.visitor(query.epoch)
    return ItemStatus(body.item, await visitor.items.release(body.item, body.note))
