"""Questions: the registry, messages and numbers as people see them. Nothing here writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentbus.clock import Now
from agentbus.codec import check, decode
from agentbus.errors import DamagedPayload
from agentbus.limits import MAX_ID, generated_id
from agentbus.operations import Op, Query, Row
from agentbus.operations.fencing import LIVE
from agentbus.operations.paging import page
from agentbus.records import AgentRecord, MessageRecord, Page, QueueDepth


class AgentFilter(msgspec.Struct, frozen=True):
    """Which agents to list; None takes all."""

    status: tuple[str, ...] | None = None
    type: str | None = None
    session: str | None = None
    parent: str | None = None
    kind: str | None = None
    capability: str | None = None
    cursor: str | None = None
    limit: int = 100


class MessageFilter(msgspec.Struct, frozen=True):
    """Which messages to list; None takes all. ``mailbox`` is a kind and a name."""

    status: tuple[str, ...] | None = None
    type: str | None = None
    sender: str | None = None
    session: str | None = None
    correlation: str | None = None
    mailbox: tuple[str, str] | None = None
    cursor: int = MAX_ID
    limit: int = 100
    holder: str | None = None


class Seen(msgspec.Struct, frozen=True):
    """When an agent last showed life, and until when it said that it would be silent, as wall times."""

    at: int | None
    busy_until: int | None


class Counts(msgspec.Struct, frozen=True):
    """What can be counted with SQL."""

    messages: dict[str, int]
    agents: dict[str, int]
    queues: list[QueueDepth]
    oldest_waiting: int | None


def get_agent(agent: str, now: Now) -> Op[AgentRecord | None]:
    rows = yield Query("agent_get", (agent,))
    return agent_record(rows[0]) if rows else None


def list_agents(wanted: AgentFilter, now: Now) -> Op[Page[AgentRecord]]:
    status = None if wanted.status is None else list(wanted.status)
    rows = yield Query(
        "agent_list",
        (
            wanted.cursor or "", status, wanted.type, wanted.session, wanted.parent, wanted.kind,
            wanted.capability, wanted.limit + 1,
        ),
    )  # fmt: skip
    return page(rows, wanted.limit, agent_record, lambda agent: agent.id)


def last_seen(agents: Sequence[AgentRecord], now: Now) -> Op[dict[str, Seen]]:
    """When each of these last showed life, by its id: it called, or its process beat. Only for those that are alive:
    what was noted before the last boot counts in another time."""
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
    return _message(rows[0]) if rows else None


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


def count(deepest: int, now: Now) -> Op[Counts]:
    messages = yield Query("message_counts")
    agents = yield Query("agent_counts")
    depths = yield Query("queue_depths", (deepest,))
    ((oldest,),) = yield Query("queue_oldest")
    return Counts(
        {row[0]: row[1] for row in messages},
        {row[0]: row[1] for row in agents},
        [
            QueueDepth(recipient(kind, name, owner), number, max(0, now.wall - since))
            for kind, name, owner, number, since in depths
        ],
        None if oldest is None else max(0, now.wall - oldest),
    )


def pending(mailboxes: Sequence[int], now: Now) -> Op[list[int]]:
    """Which of these mailboxes have something to claim or to tend."""
    rows = yield Query("mailbox_pending", (list(mailboxes), now.wall, now.awake))
    return [mailbox for (mailbox,) in rows]


def near_matches(what: tuple[str, str, str], now: Now) -> Op[list[str]]:
    """Names that could have been meant by an unknown one: (type or recipient, its kind, the name)."""
    subject, kind, name = what
    if subject == "type":
        rows = yield Query("type_names", (kind,))
    elif kind == "agent":
        rows = yield Query("agent_names")
    else:
        rows = yield Query("mailbox_names", (kind,))
    # Imported only here, where something went wrong: the command line should start without it.
    from difflib import get_close_matches

    return get_close_matches(name, [row[0] for row in rows], n=3, cutoff=0.6)


def recipient(kind: str, name: str, owner: str) -> str:
    """A mailbox as people write it."""
    if kind == "replies":
        return f"{owner} (reply)"
    return name if kind == "agent" else f"{'topic' if kind == 'subscription' else kind}:{name}"


def agent_record(row: Row) -> AgentRecord:
    values: list[Any] = list(row)
    values[7] = decode(row[7])
    values[11] = None if row[11] is None else row[11] / 1000
    values[12] = decode(row[12])
    values[18] = None if row[18] is None else row[18] / 1000
    values[26] = None if row[26] is None else decode(row[26])
    return AgentRecord(*values)


def _message(row: Row) -> MessageRecord:
    id, message_id, sender, kind, name, owner, type, payload, crc, *rest = row
    message_id = message_id or f"m-{id}"
    record = MessageRecord(id, message_id, sender, recipient(kind, name, owner), type, None, *rest)
    try:
        check(payload, crc, f"message {message_id}")
    except DamagedPayload as damage:
        # One damaged payload must not hide the others of a page.
        return msgspec.structs.replace(record, error=str(damage))
    return msgspec.structs.replace(record, payload=decode(payload))
