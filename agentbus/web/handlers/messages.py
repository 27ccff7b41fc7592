"""Messages of any status: list, show, requeue, purge, dead letters; and messages that an operator sends."""

from __future__ import annotations

from typing import Literal

from agentbus.core.validation import PAGE_SIZE
from agentbus.errors import UnknownMessage
from agentbus.records import HoldRecord, MessageRecord, Page, SeenReport
from agentbus.web.call import Body, Call, Count, Created, Query
from agentbus.web.handlers.agents import SendBody, Sent, poll, sent


class MessagesQuery(Query, frozen=True):
    status: list[str] | None = None
    type: str | None = None
    sender: str | None = None
    to: str | None = None
    session: str | None = None
    correlation: str | None = None
    holder: str | None = None
    cursor: str | None = None
    limit: int = PAGE_SIZE


class PageQuery(Query, frozen=True):
    cursor: str | None = None
    limit: int = PAGE_SIZE


class RequeueBody(Body, frozen=True):
    message_ids: list[str]


class PurgeBody(Body, frozen=True):
    """``older_than``: seconds since the message was finished. ``dry_run``: only count."""

    status: Literal["acked", "dead", "expired"] | None = None
    older_than: float = 0
    dry_run: bool = False


class DiscardBody(Body, frozen=True):
    reason: str | None = None


async def list_messages(call: Call, query: MessagesQuery) -> Page[MessageRecord]:
    """List messages, newest first. ``to`` is an agent, ``pool:NAME`` or ``topic:NAME``; ``holder`` selects those leased
    to an agent."""
    return await call.bus.messages.list(
        status=query.status, type=query.type, sender=query.sender, to=query.to, session=query.session,
        correlation=query.correlation, holder=query.holder, cursor=query.cursor, limit=query.limit,
    )  # fmt: skip


async def get_message(call: Call) -> MessageRecord:
    """Show a message."""
    found = await call.bus.messages.get(call.names["message_id"])
    if found is None:
        raise UnknownMessage(message_id=call.names["message_id"])
    return found


class SeenQuery(Query, frozen=True):
    """``timeout``: seconds to wait until the message was seen, up to 55."""

    timeout: float = 0


async def send(call: Call, body: SendBody) -> Created | Sent:
    """Send a message as the operator of the token."""
    receipt = await call.bus.messages.send(body.to, body.type, body.payload, by=call.by, **body.options(call))
    return Created(await sent(call, body, receipt))


async def wait_seen(call: Call, query: SeenQuery) -> SeenReport:
    """Show the receipts of a message and its copies, or wait until all of them were seen."""
    return await call.bus.messages.wait_seen(call.names["message_id"], timeout=poll(query.timeout, zero=True))


async def dead_letters(call: Call, query: PageQuery) -> Page[MessageRecord]:
    """List dead letters, newest first, each with its last error."""
    return await call.bus.messages.dead(cursor=query.cursor, limit=query.limit)


async def requeue(call: Call, body: RequeueBody) -> Count:
    """Queue dead letters again: all, or none."""
    return Count(await call.bus.messages.requeue(*body.message_ids, by=call.by))


async def purge(call: Call, body: PurgeBody) -> Count:
    """Delete finished messages, dead letters only if their status is named."""
    number = await call.bus.messages.purge(
        status=body.status, older_than=body.older_than, dry_run=body.dry_run, by=call.by
    )
    return Count(number, body.dry_run)


async def holds(call: Call, query: PageQuery) -> Page[HoldRecord]:
    """List the threads whose messages the loop guard holds for a person."""
    return await call.bus.holds.list(cursor=query.cursor, limit=query.limit)


async def release(call: Call) -> Count:
    """Deliver the held messages of a thread, which may then have as many messages again."""
    return Count(await call.bus.holds.release(call.names["thread"], by=call.by))


async def discard(call: Call, body: DiscardBody) -> Count:
    """Expire the held messages of a thread; its next message waits for a person again."""
    return Count(await call.bus.holds.discard(call.names["thread"], by=call.by, reason=body.reason))
