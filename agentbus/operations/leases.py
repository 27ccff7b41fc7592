"""Leases: what becomes of a message in somebody's hands. Acknowledged, extended, given back, rejected, taken back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import msgspec

from agentbus.clock import Now
from agentbus.errors import AgentBusError, LeaseLost
from agentbus.limits import generated_id
from agentbus.operations import Actor, Each, Op, Outcome, Query, Row, Separately, Wake, mailbox_channel, operation
from agentbus.operations.dead_letters import Ending, bury
from agentbus.operations.fencing import fence

Lease = tuple[int, int]
"""A message's row id, and the number of the hand-out."""


class Settlement(msgspec.Struct, frozen=True):
    """Leases that one caller settles together: all, or none."""

    actor: Actor
    leases: tuple[Lease, ...]

    @property
    def touches(self) -> int:
        return len(self.leases)


S = TypeVar("S", bound=Settlement)


class Beginning(msgspec.Struct, frozen=True):
    """A reserved message that is handed to the code: its lease, and how many attempts that makes.

    The number is told, not counted up: two who begin the same message count one attempt.
    """

    lease: Lease
    attempts: int


class BeginRequest(Settlement, frozen=True):
    """A reserved message that is handed to the code."""

    attempts: int


class AckRequest(Settlement, frozen=True):
    """Messages that are done. ``begin``: a reserved message that is handed to the code in the same commit."""

    begin: Beginning | None = None


class ExtendRequest(Settlement, frozen=True):
    """Leases to hold for ``duration`` milliseconds from now."""

    duration: int


class ReleaseRequest(Settlement, frozen=True):
    """Messages to give back, ready again after ``delay`` milliseconds.

    ``restore`` says, for each lease, how many attempts the message had before a hand-over that shall not count
    (the caller was cancelled, or it was only reserved). Without it the attempt stands; the last makes a dead letter.
    """

    delay: int = 0
    error: str | None = None
    restore: tuple[int, ...] = ()


class RejectRequest(Settlement, frozen=True):
    """Messages that become dead letters at once."""

    error: str


@operation(durable=False, beside=True)
def ack(requests: Sequence[AckRequest], now: Now) -> Op[list[Outcome[bool]]]:
    """Mark messages as done. The outcome says whether ``begin`` is still ours and may be handed to the code."""
    refused = yield from fence(request.actor for request in requests)
    valid = [request for request in requests if request.actor not in refused] if refused else requests
    following = {request.begin.lease[0] for request in valid if request.begin is not None}
    if len(valid) > 1 and following and any(id in following for request in valid for id, _ in request.leases):
        # What one begins another settles: the order matters.
        raise Separately
    yield from acknowledge(valid, now)
    begun = yield from _begin_following(valid)
    return [
        refused[request.actor]
        if refused and request.actor in refused
        else request.begin is None or (request.begin, request.actor) in begun
        for request in requests
    ]


def acknowledge(requests: Sequence[Settlement], now: Now) -> Op[None]:
    """Mark what these requests hold as done, or raise.

    One statement both settles and looks. When it tells of a lease that is lost, it has already settled others, so that
    the driver must undo it: one request then hears which lease it is, several are run one by one.
    """
    wanted = [(id, lease, request.actor.agent) for request in requests for id, lease in request.leases]
    if not wanted:
        return
    rows = yield Query("message_ack", (now.wall, [id for id, _, _ in wanted]))
    if len(requests) > 1:
        # Of two that settle the same lease, the second must hear that it is lost.
        if len(rows) != len(wanted) or set(rows) != set(wanted):
            raise Separately
    elif set(rows) != set(wanted):
        id, lease, _ = next(one for one in wanted if one not in rows)
        found = yield Query("message_held", ([id],))
        message = Held(*found[0]) if found else None
        settled = {row[0] for row in rows}
        if message is not None and id in settled:
            # It looks settled only because the statement above took it from somebody else.
            message = msgspec.structs.replace(message, status="leased")
        raise _lost((id, lease), message)


def _begin_following(requests: Sequence[AckRequest]) -> Op[set[tuple[Beginning, Actor]]]:
    """Hand the next reserved messages to the code, as far as they are still held."""
    wanted = [(request.begin, request.actor) for request in requests if request.begin is not None]
    if not wanted:
        return set()
    rows = yield Query("message_held", ([beginning.lease[0] for beginning, _ in wanted],))
    held = {row[0]: Held(*row) for row in rows}
    begun = {(beginning, actor) for beginning, actor in wanted if _is_held(beginning.lease, actor, held)}
    yield Each("message_begin", [(beginning.attempts, beginning.lease[0]) for beginning, _ in begun])
    return begun


@operation(durable=False, beside=True)
def begin(requests: Sequence[BeginRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Hand reserved messages to the code: from here on the attempt counts."""
    errors, _ = yield from refusals(requests)
    yield Each("message_begin", [(request.attempts, id) for request, id in _rightful(requests, errors)])
    return [errors.get(index) for index in range(len(requests))]


@operation(durable=False, beside=True)
def extend(requests: Sequence[ExtendRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Hold leases for longer."""
    errors, _ = yield from refusals(requests)
    yield Each("message_extend", [(now.awake + request.duration, id) for request, id in _rightful(requests, errors)])
    return [errors.get(index) for index in range(len(requests))]


@operation(durable=False, beside=True)
def release(requests: Sequence[ReleaseRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Give messages back to their mailboxes; what has no attempt left becomes a dead letter."""
    errors, held = yield from refusals(requests)
    back: list[Row] = []
    endings: list[Ending] = []
    mailboxes: list[int] = []
    for index, request in enumerate(requests):
        if index in errors:
            continue
        for position, (id, _) in enumerate(request.leases):
            message = held[id]
            attempts = request.restore[position] if request.restore else message.attempts
            if not request.restore and attempts >= message.max_attempts:
                reason = request.error or f"given back after attempt {attempts} of {message.max_attempts}"
                endings.append(message.ending(reason, request.actor.agent))
                continue
            due = now.wall + request.delay if request.delay else None
            back.append(("scheduled" if due else "queued", due, attempts, request.error, id))
            mailboxes.append(message.mailbox)
    yield from _give_back(back, mailboxes, now)
    yield from bury(endings, now)
    return [errors.get(index) for index in range(len(requests))]


@operation(durable=False, beside=True)
def reject(requests: Sequence[RejectRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Make dead letters of messages that nobody should try again."""
    errors, held = yield from refusals(requests)
    endings = [held[id].ending(request.error, request.actor.agent) for request, id in _rightful(requests, errors)]
    yield from bury(endings, now)
    return [errors.get(index) for index in range(len(requests))]


def take_back(messages: Sequence[Held], reason: str, now: Now) -> Op[None]:
    """Free leases whose holder is gone: back to the queue, or dead where no attempt is left."""
    back = [message for message in messages if message.attempts < message.max_attempts]
    yield from _give_back(
        [("queued", None, message.attempts, f"{message.holder}: {reason}", message.id) for message in back],
        [message.mailbox for message in back],
        now,
    )
    yield from bury(
        [
            message.ending(f"{message.holder}: {reason}, attempt {message.attempts} of {message.max_attempts}")
            for message in messages
            if message.attempts >= message.max_attempts
        ],
        now,
    )


class Held(msgspec.Struct, frozen=True):
    """A message as the settling operations see it: everything but its payload."""

    id: int
    lease: int
    status: str
    holder: str | None
    attempts: int
    max_attempts: int
    mailbox: int
    type: str
    message_id: str | None
    correlation: str | None
    reply_to: int | None
    session: str | None
    expires: int | None

    def ending(self, reason: str, actor: str | None = None) -> Ending:
        return Ending(
            self.id,
            self.message_id or f"m-{self.id}",
            self.type,
            reason,
            actor,
            self.correlation,
            self.reply_to,
            self.session,
            self.expires,
        )


def refusals(
    requests: Sequence[Settlement],
) -> Op[tuple[dict[int, AgentBusError], dict[int, Held]]]:
    """The requests that may not settle (by position, with the error), and the messages they speak of."""
    refused = yield from fence(request.actor for request in requests)
    errors: dict[int, AgentBusError] = {
        index: refused[request.actor] for index, request in enumerate(requests) if request.actor in refused
    }
    ids = [id for request in requests for id, _ in request.leases]
    if not ids:
        return errors, {}
    if len(requests) > 1 and len(set(ids)) < len(ids):
        # Of two that settle the same lease, the second must hear that it is lost.
        raise Separately
    rows = yield Query("message_held", (ids,))
    held = {row[0]: Held(*row) for row in rows}
    for index, request in enumerate(requests):
        if index not in errors:
            for lease in request.leases:
                if not _is_held(lease, request.actor, held):
                    errors[index] = _lost(lease, held.get(lease[0]))
                    break
    return errors, held


def _rightful(requests: Sequence[S], errors: dict[int, AgentBusError]) -> Iterator[tuple[S, int]]:
    """The messages of those requests that may settle them."""
    for index, request in enumerate(requests):
        if index not in errors:
            for id, _ in request.leases:
                yield request, id


def _is_held(lease: Lease, actor: Actor, held: dict[int, Held]) -> bool:
    message = held.get(lease[0])
    return (
        message is not None
        and message.status == "leased"
        and message.lease == lease[1]
        and message.holder == actor.agent
    )


def _lost(lease: Lease, message: Held | None) -> LeaseLost:
    if message is None:
        return LeaseLost(message_id=f"m-{lease[0]}", status="purged", holder="nobody")
    holder = message.holder if message.status == "leased" else None
    return LeaseLost(
        message_id=message.message_id or f"m-{message.id}", status=message.status, holder=holder or "nobody"
    )


def _give_back(rows: Sequence[Row], mailboxes: Sequence[int], now: Now) -> Op[None]:
    """Put messages back into these mailboxes. What goes back to a subscription that has ended expires."""
    if rows:
        yield Each("message_release", rows)
        ended = yield Query("mailbox_unsubscribed", (list(mailboxes),))
        if ended:
            yield Query("message_expire_all", (now.wall, "the subscription ended", [box for (box,) in ended]))
        yield Wake([mailbox_channel(box) for box in mailboxes])


# Questions


def holdings(agent: str, now: Now) -> Op[list[Held]]:
    """What an agent holds."""
    rows = yield Query("message_held_by", ([agent],))
    return [Held(*row) for row in rows]


def letter(wanted: tuple[str, str], now: Now) -> Op[tuple[Held, str] | None]:
    """The message of this name, and who sent it. Of several copies the one that this agent holds, if it does."""
    message_id, agent = wanted
    mine = [held for held in (yield from holdings(agent, now)) if (held.message_id or f"m-{held.id}") == message_id]
    id = mine[0].id if mine else generated_id(message_id)
    rows = yield Query("message_get", (id, message_id if id is None else None))
    if not rows:
        return None
    ((number, _, sender, *_),) = rows
    found = yield Query("message_standing", (number,))
    return Held(*found[0]), sender
