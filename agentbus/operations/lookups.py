"""Read-only queries of agents, messages and counters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from agentbus.core.clock import Now
from agentbus.core.codec import decode
from agentbus.core.validation import MAX_ID, MAX_PAGE, PAGE_SIZE, generated_id
from agentbus.errors import DamagedPayload
from agentbus.operations.common import LIVE, page
from agentbus.operations.protocol import Op, Query, Row, Rows
from agentbus.operations.rows import (
    AGENT_DURATIONS,
    AGENT_JSON,
    MESSAGE_JSON,
    AgentRow,
    common_fields,
    hold_reason,
    stored_message,
)
from agentbus.records import (
    AgentRecord,
    MessageChange,
    MessageRecord,
    MessageSpan,
    Page,
    QueueDepth,
    QueueRecord,
    SeenRecord,
)

_RECIPIENTS = ("agent", "pool", "topic")
"""Kinds of recipients that have names."""


class AgentFilter(msgspec.Struct, frozen=True):
    """Selects agents; None matches all."""

    status: tuple[str, ...] | None = None
    type: str | None = None
    session: str | None = None
    parent: str | None = None
    kind: str | None = None
    capability: str | None = None
    cursor: str | None = None
    limit: int = PAGE_SIZE
    updated_after: int | None = None


class MessageFilter(msgspec.Struct, frozen=True):
    """Selects messages; None matches all. ``mailbox`` is a kind and a name."""

    status: tuple[str, ...] | None = None
    type: str | None = None
    sender: str | None = None
    session: str | None = None
    correlation: str | None = None
    mailbox: tuple[str, str] | None = None
    cursor: int = MAX_ID
    limit: int = PAGE_SIZE
    holder: str | None = None


class Seen(msgspec.Struct, frozen=True):
    """The wall times of an agent's last activity, and until which it declared itself busy."""

    at: int | None
    busy_until: int | None


class Counts(msgspec.Struct, frozen=True):
    """Counters that SQL can compute. ``since``: the creation time of the oldest message of each queue."""

    messages: dict[str, int]
    agents: dict[str, int]
    queues: list[QueueDepth]
    oldest_waiting: int | None
    since: list[int]


def get_agent(agent: str, now: Now) -> Op[AgentRecord | None]:
    rows = yield Query("agent_get", (agent,))
    return agent_record(rows[0]) if rows else None


def list_agents(wanted: AgentFilter, now: Now) -> Op[Page[AgentRecord]]:
    status = None if wanted.status is None else list(wanted.status)
    rows = yield Query(
        "agent_list",
        (
            wanted.cursor or "", status, wanted.type, wanted.session, wanted.parent, wanted.kind,
            wanted.capability, wanted.limit + 1, wanted.updated_after,
        ),
    )  # fmt: skip
    return page(rows, wanted.limit, agent_record, lambda agent: agent.id)


def failed_agents(limit: int, now: Now) -> Op[list[AgentRecord]]:
    """Return the agents that are failed or suspect, the latest first."""
    rows = yield Query("agent_failed", (limit,))
    return [agent_record(row) for row in rows]


def last_seen(agents: Sequence[AgentRecord], now: Now) -> Op[dict[str, Seen]]:
    """Return the last activity of live agents, by id: their last call, or the last heartbeat of their process. Ended
    ones are omitted: times before the last boot have another origin."""
    beats: dict[int, int] = {}
    if any(agent.kind == "resident" and agent.process is not None for agent in agents):
        rows = yield Query("process_others", (0,))
        beats = {row[0]: row[6] for row in rows}
    found: dict[str, Seen] = {}
    for agent in agents:
        live = agent.status in LIVE
        beat = beats.get(agent.process or 0, 0) if agent.kind == "resident" else 0
        # After a reboot the last call is 0.
        called = max(agent.last_call or 0, beat) if live else 0
        found[agent.id] = Seen(
            now.wall - max(0, now.awake - called) if called else None,
            now.wall + agent.busy_until - now.awake if live and agent.busy_until else None,
        )
    return found


def get_message(message_id: str, now: Now) -> Op[MessageRecord | None]:
    row_id = generated_id(message_id)
    rows = yield Query("message_get", (row_id, message_id if row_id is None else None))
    if not rows:
        return None
    record = _message(rows[0])
    return record if record.seen is None else replace(record, receipts=(yield from list_receipts(message_id, now)))


def list_receipts(message_id: str, now: Now) -> Op[list[SeenRecord]]:
    """Return the receipts of a message and its copies, oldest first, up to a page."""
    row_id = generated_id(message_id)
    rows = yield Query("receipt_list", (row_id, message_id if row_id is None else None, MAX_PAGE))
    return [
        SeenRecord(message_id, agent, epoch, client or None, channel, at)
        for message_id, agent, epoch, client, channel, at in rows
    ]


def list_messages(wanted: MessageFilter, now: Now) -> Op[Page[MessageRecord]]:
    kind, name = wanted.mailbox or (None, None)
    status = None if wanted.status is None else f",{','.join(wanted.status)},"
    rows = yield Query(
        "message_list",
        (
            wanted.cursor, status, wanted.type, wanted.sender, wanted.session,
            wanted.correlation, kind, name, wanted.limit + 1, wanted.holder,
        ),
    )  # fmt: skip
    return page(rows, wanted.limit, _message, lambda message: str(message.id))


def list_dead(wanted: MessageFilter, now: Now) -> Op[Page[MessageRecord]]:
    rows = yield Query("message_list_dead", (wanted.cursor, wanted.limit + 1))
    return page(rows, wanted.limit, _message, lambda message: str(message.id))


def deepest_queues(limit: int, now: Now) -> Op[list[QueueDepth]]:
    """Return the deepest mailboxes."""
    return [depth for depth, _ in (yield from _depths(limit, now))]


def _depths(limit: int, now: Now) -> Op[list[tuple[QueueDepth, int]]]:
    """Return the deepest mailboxes, each with the creation time of its oldest message."""
    rows = yield Query("queue_depths", (limit,))
    return [
        (QueueDepth(recipient(kind, name, owner), number, max(0, now.wall - since)), since)
        for kind, name, owner, number, since in rows
    ]


def count(deepest: int, now: Now) -> Op[Counts]:
    messages = yield Query("message_counts")
    agents = yield Query("agent_counts")
    depths = yield from _depths(deepest, now)
    ((oldest,),) = yield Query("queue_oldest")
    return Counts(
        {row[0]: row[1] for row in messages},
        {row[0]: row[1] for row in agents},
        [depth for depth, _ in depths],
        None if oldest is None else max(0, now.wall - oldest),
        [since for _, since in depths],
    )


class LiveQuery(msgspec.Struct, frozen=True):
    """Messages for the live feed: those after an id, and these."""

    after: int
    ids: Sequence[int] = ()
    limit: int = 1000


def live_messages(wanted: LiveQuery, now: Now) -> Op[list[MessageChange]]:
    """Return messages without their payloads, as they are now, ordered by id."""
    rows = yield Query("message_brief_after", (wanted.after, wanted.limit))
    found = {row[0]: row for row in rows}
    others = [id for id in wanted.ids if id not in found]
    if others:
        found |= {row[0]: row for row in (yield Query("message_brief", (others,)))}
    return [_change(found[id]) for id in sorted(found)]


def newest_message(_: None, now: Now) -> Op[int]:
    """Return the highest id of a message; 0 if there is none."""
    ((id,),) = yield Query("message_newest")
    return int(id)


class SpanQuery(msgspec.Struct, frozen=True):
    """A period in wall time, a cursor, and a limit."""

    start: int
    end: int
    cursor: int = MAX_ID
    limit: int = PAGE_SIZE


def message_spans(wanted: SpanQuery, now: Now) -> Op[Page[MessageSpan]]:
    """Return the messages that were on the bus in a period, newest first, each with its last delivery."""
    rows = yield Query("message_spans", (wanted.start, wanted.end, wanted.cursor, wanted.limit + 1))

    def span(row: Row) -> MessageSpan:
        id, message_id, sender, kind, name, owner, *rest = row
        return MessageSpan(*(id, message_id or f"m-{id}", sender, recipient(kind, name, owner), *rest))

    return page(rows, wanted.limit, span, lambda one: str(one.id))


def list_queues(wanted: tuple[int, int, str | None], now: Now) -> Op[Page[QueueRecord]]:
    """Return the mailboxes of agents and pools after a cursor, or of one kind, with the number of their messages."""
    after, limit, kind = wanted
    rows = yield Query("queue_list", (after, limit + 1, kind))
    dead: dict[int, int] = dict((yield Query("queue_dead")))
    ids: dict[str, int] = {}

    def queue(row: Row) -> QueueRecord:
        id, kind, name, owner, queued, scheduled, leased, oldest, members = row
        made = QueueRecord(
            recipient(kind, name, owner), kind, queued, scheduled, leased, dead.get(id, 0),
            None if oldest is None else max(0, now.wall - oldest), members,
        )  # fmt: skip
        ids[made.recipient] = id
        return made

    return page(rows, limit, queue, lambda one: str(ids[one.recipient]))


def _change(row: Row) -> MessageChange:
    id, message_id, sender, kind, name, owner, *rest = row
    return MessageChange(*(id, message_id or f"m-{id}", sender, recipient(kind, name, owner), *rest))


def pending(mailboxes: Sequence[int], now: Now) -> Op[list[int]]:
    """Return those mailboxes that have messages to claim or to maintain."""
    rows = yield Query("mailbox_pending", (list(mailboxes), now.wall, now.awake))
    return [mailbox for (mailbox,) in rows]


def near_matches(what: tuple[str, str, str], now: Now) -> Op[list[str]]:
    """Return known names similar to an unknown one: (type or recipient, its kind, the name). Recipients are addresses;
    one of that name and another kind comes first."""
    # Imported on the error path only: the command line starts without it.
    from difflib import get_close_matches

    subject, kind, name = what
    if subject == "type":
        rows = yield Query("type_names", (kind,))
        return get_close_matches(name, [row[0] for row in rows])
    found: list[str] = []
    for other in _RECIPIENTS:
        if other != kind and (name,) in (yield from _names(other)):
            found.append(recipient(other, name, ""))
    rows = yield from _names(kind)
    found += [recipient(kind, near, "") for near in get_close_matches(name, [row[0] for row in rows])]
    return found[:_SUGGESTED]


def _names(kind: str) -> Op[Rows]:
    """Return the names of recipients of a kind."""
    return (yield Query("agent_names") if kind == "agent" else Query("mailbox_names", (kind,)))


def recipient(kind: str, name: str, owner: str) -> str:
    """Return the address of a mailbox."""
    if kind == "replies":
        return f"{owner} (reply)"
    return name if kind == "agent" else f"{'topic' if kind == 'subscription' else kind}:{name}"


def agent_record(row: Row) -> AgentRecord:
    """Return the record of an ``AgentRow``, which has the same fields."""
    values: list[Any] = list(row)
    for position in _AGENT_JSON:
        if values[position] is not None:
            values[position] = decode(values[position])
    for position in _AGENT_SECONDS:
        if values[position] is not None:
            values[position] /= 1000
    return AgentRecord(*values)


def _message(row: Row) -> MessageRecord:
    """Return the record of a message. A damaged payload becomes its error: it must not hide the others of a page."""
    message = stored_message(row)
    *_, seen, kind, name, owner = row
    values = {field: getattr(message, field) for field in common_fields(MessageRecord) if field not in MESSAGE_JSON}
    values.update(message_id=message.public_id, recipient=recipient(kind, name, owner), payload=None, seen=seen)
    try:
        values.update(message.contents())
    except DamagedPayload as damage:
        values["error"] = str(damage)
    if message.status == "scheduled" and message.due is None:
        values.update(held=True, hold_reason=hold_reason(message.correlation))
    return MessageRecord(**values)


_SUGGESTED = 3
_AGENT_JSON = [AgentRow.__struct_fields__.index(name) for name in AGENT_JSON]
_AGENT_SECONDS = [AgentRow.__struct_fields__.index(name) for name in AGENT_DURATIONS]
