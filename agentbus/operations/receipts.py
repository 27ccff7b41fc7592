"""Receipts: which messages were delivered into which context; and how adapters of agents wake them.

A message is seen once its text was delivered into a context: the incarnation of an agent, and the session of its
client. It is acknowledged once it was processed. A receipt is written after the delivery and is not fsynced: one that
is lost with the power makes a message seem unseen, never the reverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from agentbus.core.clock import Now
from agentbus.core.validation import generated_id
from agentbus.errors import AgentBusError, NotRecipient, UnknownMessage
from agentbus.operations.common import fence
from agentbus.operations.lookups import list_receipts
from agentbus.operations.protocol import (
    SEEN,
    Actor,
    Announce,
    ExecuteMany,
    Op,
    Outcome,
    Query,
    Row,
    Wake,
    operation,
)
from agentbus.operations.receive import FINISHED
from agentbus.operations.send import Reach
from agentbus.records import SeenRecord, SeenReport

Wakes: TypeAlias = Literal["tool", "turn"]
_OWN = ("agent", "replies", "subscription")


class SeenRequest(msgspec.Struct, frozen=True):
    """Messages that were delivered into the context of an agent, by message_id: all are marked, or none. ``channel``:
    by what; ``client``: the session of its client, empty if it is unknown."""

    actor: Actor
    message_ids: tuple[str, ...]
    channel: str
    client: str = ""

    @property
    def row_estimate(self) -> int:
        return len(self.message_ids)


class ReachRequest(msgspec.Struct, frozen=True):
    """Declare that an adapter delivers messages after every ``tool`` call, or with every ``turn``; None withdraws
    it."""

    actor: Actor
    channel: str
    wakes: Wakes | None


class _Readable(msgspec.Struct, frozen=True):
    """A message, and what decides which agents may mark it as seen."""

    id: int
    message_id: str | None
    holder: str | None
    mailbox: int
    kind: str
    owner: str

    @property
    def public_id(self) -> str:
        return self.message_id or f"m-{self.id}"


@operation(durable=False, concurrent=True)
def mark_seen(requests: Sequence[SeenRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Record that agents have seen messages of their mailboxes, or that they hold. The first time counts."""
    refused = yield from fence(request.actor for request in requests)
    outcomes: list[Outcome[None]] = []
    rows: list[Row] = []
    for request in requests:
        error: AgentBusError | None = refused.get(request.actor)
        found = [] if error is not None else (yield from _find(request.message_ids))
        mine = yield from _readable_by(request.actor.agent, found)
        if error is None:
            error = _unreadable(request, found, mine)
        outcomes.append(error)
        if error is None:
            rows += [
                (id, request.actor.agent, request.actor.epoch, request.client, request.channel, now.wall)
                for id in sorted(mine)
            ]
    if rows:
        yield ExecuteMany("receipt_insert", rows)
        yield Wake([SEEN])
        yield Announce("seen", [row[0] for row in rows])
    return outcomes


def _find(message_ids: Sequence[str]) -> Op[list[_Readable]]:
    if not message_ids:
        return []
    rows = yield Query("receipt_readable", _names(message_ids))
    return [_Readable(*row) for row in rows]


def _names(message_ids: Sequence[str]) -> tuple[list[int], list[str]]:
    """Return the row ids of generated names, and all names."""
    ids = [id for message_id in message_ids if (id := generated_id(message_id)) is not None]
    return ids, list(message_ids)


def _readable_by(agent: str, messages: Sequence[_Readable]) -> Op[set[int]]:
    """Return the messages among these that an agent holds, or that are in a mailbox of its own or of its pools."""
    mine = {one.id for one in messages if one.holder == agent or (one.kind in _OWN and one.owner == agent)}
    pools = {one.mailbox for one in messages if one.kind == "pool" and one.id not in mine}
    if pools:
        member = {pool for (pool,) in (yield Query("receipt_members", (agent, sorted(pools))))}
        mine |= {one.id for one in messages if one.mailbox in member}
    return mine


def _unreadable(request: SeenRequest, found: Sequence[_Readable], mine: set[int]) -> AgentBusError | None:
    known = {one.public_id for one in found}
    readable = {one.public_id for one in found if one.id in mine}
    for message_id in request.message_ids:
        if message_id not in known:
            return UnknownMessage(message_id=message_id)
        if message_id not in readable:
            return NotRecipient(message_id=message_id, agent=request.actor.agent)
    return None


@operation(durable=False, concurrent=True)
def declare_reach(requests: Sequence[ReachRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Record how adapters deliver messages to incarnations, or that they no longer do."""
    refused = yield from fence(request.actor for request in requests)
    for request in requests:
        if request.actor not in refused:
            agent, epoch = request.actor.agent, request.actor.epoch
            if request.wakes is None:
                yield ExecuteMany("reach_withdraw", [(agent, request.channel, epoch)])
            else:
                yield ExecuteMany("reach_declare", [(agent, request.channel, epoch, request.wakes, now.wall)])
    return [refused.get(request.actor) for request in requests]


class Steered(msgspec.Struct, frozen=True):
    """The result of steering an agent. ``seen``: the message is in the context of the agent; ``reach`` says how it can
    be reached otherwise.

    >>> (await bus.messages.steer("executor-1", "use the new API", by="ada")).seen    # doctest: +SKIP
    True
    """

    message_id: str
    seen: bool
    receipts: list[SeenRecord]
    reach: Reach


def _progress(message_ids: Sequence[str]) -> Op[list[tuple[str, bool]]]:
    """Return the status of messages and their copies, and whether each was seen."""
    rows = yield Query("receipt_progress", _names(message_ids))
    known = {message_id or f"m-{id}" for id, message_id, *_ in rows}
    missing = next((message_id for message_id in message_ids if message_id not in known), None)
    if missing is not None:
        raise UnknownMessage(message_id=missing)
    return [(status, at is not None) for _, _, status, at in rows]


def _is_final(states: Sequence[tuple[str, bool]]) -> bool:
    return all(seen or status in FINISHED for status, seen in states)


def seen_is_final(message_ids: Sequence[str], now: Now) -> Op[bool]:
    """Return True if a wait for the receipts of messages is over: each copy was seen, or is finished."""
    return _is_final((yield from _progress(message_ids)))


def seen_report(message_ids: Sequence[str], now: Now) -> Op[SeenReport]:
    """Return how far messages and their copies were seen. One that was acknowledged without a receipt counts: a program
    has processed it."""
    states = yield from _progress(message_ids)
    receipts: list[SeenRecord] = []
    for message_id in dict.fromkeys(message_ids):
        receipts += yield from list_receipts(message_id, now)
    return SeenReport(
        seen=all(seen or status == "acked" for status, seen in states),
        final=_is_final(states),
        copies=len(states),
        seen_copies=sum(seen for _, seen in states),
        acked_copies=sum(status == "acked" for status, _ in states),
        receipts=receipts,
    )
