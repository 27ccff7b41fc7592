"""Receiving: claims, and what becomes of a leased message (acknowledged, extended, given back, rejected).

A claim first tends its mailboxes: it promotes what has become due, expires what is too old, and takes back leases
that ran out. So delivery works with no monitor running.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import islice

import msgspec

from agentbus.clock import Now
from agentbus.errors import AgentBusError, LeaseLost
from agentbus.operations import Actor, Each, Op, Outcome, Query, Row, Separately, Wake, mailbox_channel, operation
from agentbus.operations.dead_letters import Ending, bury
from agentbus.operations.fencing import fence

MAILBOX = 13
"""Where a message's row, as its receiver gets it, has the mailbox."""

Lease = tuple[int, int]
"""A message's row id, and the number of the hand-out."""


class Settlement(msgspec.Struct, frozen=True):
    """Leases that one caller settles together: all, or none."""

    actor: Actor
    leases: tuple[Lease, ...]


class ClaimRequest(Settlement, frozen=True):
    """Up to ``limit`` messages from these mailboxes, most urgent first, leased for ``duration`` milliseconds.

    ``own`` are read by this agent alone, ``pools`` by others too. ``leases`` are acknowledged in the same commit.
    ``counted``: the messages are handed to the code at once, so
    the attempt counts; otherwise they are only reserved.
    """

    own: tuple[int, ...]
    pools: tuple[int, ...]
    limit: int
    duration: int
    counted: bool = True

    @property
    def mailboxes(self) -> tuple[int, ...]:
        return self.own + self.pools


class Claim(msgspec.Struct, frozen=True):
    """What a claim got. ``more``: something is left in these mailboxes. ``next_wall`` and ``next_awake``: when
    the next scheduled message is due, and when the next lease runs out."""

    rows: Sequence[Row]
    more: bool
    next_wall: int | None
    next_awake: int | None


class AckRequest(Settlement, frozen=True):
    """Messages that are done. ``begin``: a reserved message that is handed to the code in the same commit."""

    begin: Lease | None = None


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


@operation(durable=False, last=True)
def claim(requests: Sequence[ClaimRequest], now: Now) -> Op[list[Outcome[Claim]]]:
    """Lease the most urgent messages of each request's mailboxes. No message is given to two requests."""
    errors, _ = yield from _refusals(requests)
    granted = [request for index, request in enumerate(requests) if index not in errors]
    done = [id for request in granted for id, _ in request.leases]
    if done:
        yield Query("message_ack", (now.wall, done))

    wanted: dict[int, int] = {}
    for request in granted:
        for mailbox in request.mailboxes:
            wanted[mailbox] = wanted.get(mailbox, 0) + request.limit
    boxes = list(wanted)
    horizon = yield from tend(boxes, now)
    # One more than wanted, to know whether something is left.
    found = yield Query("message_ready", (boxes, max(wanted.values(), default=0) + 1))
    ready: dict[int, list[tuple[int, int]]] = {}
    for mailbox, priority, id in found:
        ready.setdefault(mailbox, []).append((-priority, id))

    taken: set[int] = set()
    shares = [
        None if index in errors else _most_urgent(request, ready, taken) for index, request in enumerate(requests)
    ]
    rows: dict[int, Row] = {}
    if taken:
        rows = {row[0]: row for row in (yield Query("message_rows", (list(taken),)))}
        for (holder, duration, counted), ids in _alike(requests, shares, rows).items():
            yield Query("message_lease", (holder, now.awake + duration, counted, ids))
    left = {mailbox for mailbox, queue in ready.items() if queue and queue[-1][1] not in taken}
    return [
        errors[index]
        if share is None
        else Claim(
            [rows[id] for id in share],
            bool(left) and not left.isdisjoint(request.mailboxes),
            *_earliest(request.mailboxes, horizon),
        )
        for index, (request, share) in enumerate(zip(requests, shares, strict=True))
    ]


@operation(durable=False)
def ack(requests: Sequence[AckRequest], now: Now) -> Op[list[Outcome[bool]]]:
    """Mark messages as done. The outcome says whether ``begin`` is still ours and may be handed to the code."""
    errors, held = yield from _refusals(requests)
    valid = [request for index, request in enumerate(requests) if index not in errors]
    yield Query("message_ack", (now.wall, [id for request in valid for id, _ in request.leases]))
    begun = [request.begin for request in valid if request.begin is not None]
    if begun:
        begun = [lease for lease in begun if _is_held(lease, held)]
        yield Query("message_begin", ([id for id, _ in begun],))
    return [
        errors.get(index, request.begin is None or request.begin in begun) for index, request in enumerate(requests)
    ]


@operation(durable=False)
def begin(requests: Sequence[Settlement], now: Now) -> Op[list[Outcome[None]]]:
    """Hand reserved messages to the code: from here on the attempt counts."""
    errors, _ = yield from _refusals(requests)
    yield Query(
        "message_begin",
        ([id for index, request in enumerate(requests) if index not in errors for id, _ in request.leases],),
    )
    return [errors.get(index) for index in range(len(requests))]


@operation(durable=False)
def extend(requests: Sequence[ExtendRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Hold leases for longer."""
    errors, _ = yield from _refusals(requests)
    yield Each(
        "message_extend",
        [
            (now.awake + request.duration, id)
            for index, request in enumerate(requests)
            if index not in errors
            for id, _ in request.leases
        ],
    )
    return [errors.get(index) for index in range(len(requests))]


@operation(durable=False)
def release(requests: Sequence[ReleaseRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Give messages back to their mailboxes; what has no attempt left becomes a dead letter."""
    errors, held = yield from _refusals(requests)
    back: list[Row] = []
    endings: list[Ending] = []
    channels: list[str] = []
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
            back.append((due, attempts, request.error, id))
            channels.append(mailbox_channel(message.mailbox))
    yield from _give_back(back, channels)
    yield from bury(endings, now)
    return [errors.get(index) for index in range(len(requests))]


@operation(durable=False)
def reject(requests: Sequence[RejectRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Make dead letters of messages that nobody should try again."""
    errors, held = yield from _refusals(requests)
    yield from bury(
        [
            held[id].ending(request.error, request.actor.agent)
            for index, request in enumerate(requests)
            if index not in errors
            for id, _ in request.leases
        ],
        now,
    )
    return [errors.get(index) for index in range(len(requests))]


def tend(mailboxes: Sequence[int], now: Now) -> Op[dict[int, Row]]:
    """Promote, expire and take back what is due in these mailboxes; answer when each has something due next."""
    horizon = yield from _horizon(mailboxes)
    expired = [box for box, (_, _, expires) in horizon.items() if expires is not None and expires <= now.wall]
    lapsed = [box for box, (_, until, _) in horizon.items() if until is not None and until <= now.awake]
    due = [box for box, (due, _, _) in horizon.items() if due is not None and due <= now.wall]
    if expired:
        yield Query("message_expire", (now.wall, expired))
    if due:
        yield Query("message_promote", (now.wall, due))
    if lapsed:
        rows = yield Query("message_lapsed", (now.awake, lapsed))
        yield from take_back([Held(*row) for row in rows], "its lease ran out", now)
    return (yield from _horizon(mailboxes)) if expired or due or lapsed else horizon


def take_back(messages: Sequence[Held], reason: str, now: Now) -> Op[None]:
    """Free leases whose holder is gone: back to the queue, or dead where no attempt is left."""
    back = [message for message in messages if message.attempts < message.max_attempts]
    yield from _give_back(
        [(None, message.attempts, f"{message.holder}: {reason}", message.id) for message in back],
        [mailbox_channel(message.mailbox) for message in back],
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


def _refusals(
    requests: Sequence[Settlement],
) -> Op[tuple[dict[int, AgentBusError], dict[int, Held]]]:
    """The requests that may not settle (by position, with the error), and the messages they speak of."""
    refused = yield from fence(request.actor for request in requests)
    errors: dict[int, AgentBusError] = {
        index: refused[request.actor] for index, request in enumerate(requests) if request.actor in refused
    }
    ids = [id for request in requests for id, _ in request.leases]
    ids += [request.begin[0] for request in requests if isinstance(request, AckRequest) and request.begin]
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
                if not _is_held(lease, held):
                    errors[index] = _lost(lease, held.get(lease[0]))
                    break
    return errors, held


def _is_held(lease: Lease, held: dict[int, Held]) -> bool:
    message = held.get(lease[0])
    return message is not None and message.status == "leased" and message.lease == lease[1]


def _lost(lease: Lease, message: Held | None) -> LeaseLost:
    if message is None:
        return LeaseLost(message_id=f"m-{lease[0]}", status="purged", holder="nobody")
    holder = message.holder if message.status == "leased" else None
    return LeaseLost(
        message_id=message.message_id or f"m-{message.id}", status=message.status, holder=holder or "nobody"
    )


def _most_urgent(request: ClaimRequest, ready: dict[int, list[tuple[int, int]]], taken: set[int]) -> list[int]:
    queues = [ready[mailbox] for mailbox in request.mailboxes if mailbox in ready]
    if not queues:
        return []
    urgent = queues[0] if len(queues) == 1 else merge(*queues)
    share = list(islice((id for _, id in urgent if id not in taken), request.limit))
    taken.update(share)
    return share


def _alike(
    requests: Sequence[ClaimRequest], shares: Sequence[list[int] | None], rows: dict[int, Row]
) -> dict[tuple[str | None, int, bool], list[int]]:
    """The messages that can be leased by one statement: same holder, same duration.

    A message of an own mailbox needs no holder told: it is the mailbox's owner.
    """
    groups: dict[tuple[str | None, int, bool], list[int]] = {}
    for request, share in zip(requests, shares, strict=True):
        for id in share or ():
            holder = request.actor.agent if rows[id][MAILBOX] in request.pools else None
            groups.setdefault((holder, request.duration, request.counted), []).append(id)
    return groups


def _horizon(mailboxes: Sequence[int]) -> Op[dict[int, Row]]:
    rows = yield Query("mailbox_horizon", (list(mailboxes),))
    return {row[0]: row[1:] for row in rows}


def _earliest(mailboxes: Iterable[int], horizon: dict[int, Row]) -> tuple[int | None, int | None]:
    found = [horizon[mailbox] for mailbox in mailboxes if mailbox in horizon]
    return (
        min((due for due, _, _ in found if due is not None), default=None),
        min((until for _, until, _ in found if until is not None), default=None),
    )


def _give_back(rows: Sequence[Row], channels: Sequence[str]) -> Op[None]:
    if rows:
        yield Each("message_release", rows)
        yield Wake(channels)
