"""Dead letters: how a message becomes one, and how it gets out again (requeue) or away (purge)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from agentbus.clock import Now
from agentbus.codec import plain_payload
from agentbus.errors import AgentEnded, UnknownMessage, WrongState
from agentbus.limits import Priority, generated_id
from agentbus.operations import BUS, Each, Op, Outcome, Query, Row, Wake, mailbox_channel, one_by_one
from agentbus.operations.events import event, record
from agentbus.operations.messages import Draft, post

FINISHED = ("acked", "dead", "expired")
_NAMED = 100
"""Messages that one line of the trail names."""


class Ending(msgspec.Struct, frozen=True):
    """A message that becomes a dead letter, and why."""

    id: int
    message_id: str
    type: str
    reason: str
    actor: str | None = None
    correlation: str | None = None
    reply_to: int | None = None
    session: str | None = None
    expires: int | None = None


class RequeueRequest(msgspec.Struct, frozen=True):
    """Dead letters to try again: all, or none."""

    message_ids: tuple[str, ...]
    actor: str | None = None


class PurgeRequest(msgspec.Struct, frozen=True):
    """Finished messages to delete: of this status, finished before this wall time, after this row, so many."""

    status: str | None
    before: int
    limit: int
    after: int = 0


def bury(endings: Sequence[Ending], now: Now) -> Op[None]:
    """Make dead letters of these, and tell the requester of each that was a request."""
    if not endings:
        return
    yield Each("message_bury", [(ending.reason, now.wall, ending.id) for ending in endings])
    yield from record([
        event(
            now.wall, "message_dead", ("message", ending.message_id), ending.actor,
            type=ending.type, error=ending.reason,
        )
        for ending in endings
    ])  # fmt: skip
    yield from post(
        [
            Draft(
                to=ending.reply_to,
                type="error_report",
                payload=plain_payload({"request": ending.message_id, "dead": ending.reason}),
                priority=Priority.NORMAL,
                max_attempts=1,
                correlation=ending.correlation,
                session=ending.session,
                # A reply is wanted for as long as the request was.
                ttl=None if ending.expires is None else max(1, ending.expires - now.wall),
            )
            for ending in endings
            if ending.reply_to is not None
        ],
        BUS,
        now,
    )


@one_by_one(durable=True)
def requeue(request: RequeueRequest, now: Now) -> Op[Outcome[int]]:
    """Put dead letters back into their mailboxes. Their attempts start again; the trail keeps what was before."""
    messages = yield from _find(request.message_ids)
    missing = [message_id for message_id in request.message_ids if message_id not in messages]
    if missing:
        return UnknownMessage(message_id=missing[0])
    alive = [id for id, rows in messages.items() if any(row[1] != "dead" for row in rows)]
    if alive:
        status = next(row[1] for row in messages[alive[0]] if row[1] != "dead")
        advice = "only dead letters are requeued: bus.messages.dead() lists them"
        return WrongState(what="message", name=alive[0], status=status, action="requeue it", advice=advice)
    rows = [(message_id, *row) for message_id, found in messages.items() for row in found]
    nobody = next((row for row in rows if not _is_read(*row[6:])), None)
    if nobody is not None:
        return AgentEnded(agent=nobody[7], status=nobody[8] or "been deleted", message_id=nobody[0])
    yield Each("message_requeue", [(row[1],) for row in rows])
    # One line for all of them; why each had died is in the trail already.
    facts = {"count": len(rows), "attempts": {row[0]: row[4] for row in rows[:_NAMED]}}
    yield from record([event(now.wall, "messages_requeued", ("bus", "messages"), request.actor, **facts)])
    yield Wake([mailbox_channel(row[3]) for row in rows])
    return len(rows)


@one_by_one(durable=True, beside=True)
def purge(request: PurgeRequest, now: Now) -> Op[Outcome[list[int]]]:
    """Delete finished messages, oldest first; ask again, after the last, while it deletes as many as its limit."""
    # Dead letters are there to be looked at: they go only when they are named.
    statuses = [request.status] if request.status else ["acked", "expired"]
    rows = yield Query("message_purge", (statuses, request.before, request.limit, request.after))
    if rows:
        facts = {"count": len(rows), "status": request.status, "before": request.before}
        yield from record([event(now.wall, "messages_purged", ("bus", "messages"), None, **facts)])
    return [id for (id,) in rows]


def _is_read(kind: str, owner: str, status: str | None, subscription: int | None) -> bool:
    """Whether anybody will read a mailbox: a pool somebody may join, an agent's as long as it may come back."""
    if kind == "subscription" and subscription is None:
        return False
    return kind == "pool" or status not in {None, "completed", "stopped"}


def _find(message_ids: Sequence[str]) -> Op[dict[str, list[Row]]]:
    """The rows (id, status, mailbox, attempts, error; kind, owner, its status, subscription) by public ids."""
    own = {generated_id(message_id): message_id for message_id in message_ids}
    own.pop(None, None)
    rows = yield Query("message_find", ([id for id in own if id is not None], list(message_ids)))
    found: dict[str, list[Row]] = {}
    for id, message_id, *rest in rows:
        found.setdefault(message_id or f"m-{id}", []).append((id, *rest))
    return found
