"""Claim and settle messages, match replies to requests, and handle dead letters.

A claim first maintains its mailboxes: it queues scheduled messages that are due, expires old ones, and takes back
expired leases. So delivery works without a monitor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, TypeAlias, TypeVar

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import plain_payload
from agentbus.core.validation import TASK_ENDED, Priority, generated_id
from agentbus.errors import AgentBusError, AgentEnded, LeaseLost, TaskEnded, UnknownMessage, WrongState
from agentbus.operations.common import agent_status_query, agent_statuses_from, fence, fence_error, reject_fenced
from agentbus.operations.events import event, record
from agentbus.operations.protocol import (
    BUS,
    Actor,
    Announce,
    CannotBatch,
    ExecuteMany,
    Op,
    Outcome,
    Query,
    Row,
    Rows,
    Wake,
    WakeLater,
    gather,
    mailbox_channel,
    operation,
    single_operation,
)
from agentbus.operations.rows import Draft, Ending, Held, Lease, MessageRow, stored_message
from agentbus.operations.send import post

FINISHED = ("acked", "dead", "expired")
_NAMED = 100
"""Messages that one event names."""
_ARRIVALS = 10_000
"""Waiting messages of a mailbox that a watcher reads."""
_FEW = 32
"""Up to this limit, mailboxes share one query."""

CONTESTED, CONTESTS = 0.01, 20
"""Seconds after which a claim without a timeout retries if other transactions have locked everything; how often."""

Ready: TypeAlias = tuple[int, int, int]
"""A message that can be claimed: minus its priority, its id, its mailbox. The most urgent sorts first."""

Queue: TypeAlias = deque[Ready]
"""The ready messages of a mailbox, most urgent first."""


class Settlement(msgspec.Struct, frozen=True):
    """Leases that a caller settles together: all, or none."""

    actor: Actor
    leases: tuple[Lease, ...]

    @property
    def row_estimate(self) -> int:
        return len(self.leases)


S = TypeVar("S", bound=Settlement)


class DeliveryStart(msgspec.Struct, frozen=True):
    """A reserved message that is delivered: its lease, and the number of this attempt.

    The number is stored, not incremented: two callers that start the same delivery count one attempt.
    """

    lease: Lease
    attempts: int


class StartDeliveryRequest(Settlement, frozen=True):
    """A reserved message that is delivered to the handler."""

    attempts: int


class AckRequest(Settlement, frozen=True):
    """Messages that are done. ``start``: a reserved message that is delivered in the same commit."""

    start: DeliveryStart | None = None


class ExtendRequest(Settlement, frozen=True):
    """Leases to extend to ``duration`` milliseconds from now."""

    duration: int


class ReleaseRequest(Settlement, frozen=True):
    """Messages to release, ready again after ``delay`` milliseconds.

    ``restore`` has, for each lease, the number of attempts before a delivery that does not count (the caller was
    cancelled, or the message was only reserved). Without it the attempt counts; the last makes a dead letter.
    """

    delay: int = 0
    error: str | None = None
    restore: tuple[int, ...] = ()


class RejectRequest(Settlement, frozen=True):
    """Messages that become dead letters at once."""

    error: str


@operation(durable=False, concurrent=True)
def ack(requests: Sequence[AckRequest], now: Now) -> Op[list[Outcome[bool]]]:
    """Acknowledge messages. The outcome is False if ``start`` is no longer leased by the caller."""
    refused = yield from fence(request.actor for request in requests)
    valid = [request for request in requests if request.actor not in refused] if refused else requests
    following = {request.start.lease[0] for request in valid if request.start is not None}
    if len(valid) > 1 and following and any(id in following for request in valid for id, _ in request.leases):
        # One request starts what another settles: the order matters.
        raise CannotBatch
    yield from acknowledge(valid, now)
    started = yield from _start_following(valid)
    return [
        refused[request.actor]
        if refused and request.actor in refused
        else request.start is None or (request.start, request.actor) in started
        for request in requests
    ]


@ack.alone
def _ack_one(request: AckRequest, now: Now) -> Op[Outcome[bool] | None]:
    """Acknowledge one message by one statement."""
    if len(request.leases) != 1 or request.start is not None or (yield from fence_error(request.actor, now)):
        return None
    ((id, lease),) = request.leases
    if not (yield Query("message_ack_one", (now.wall, id, lease, request.actor.agent))):
        return None
    yield Announce("acked", [id])
    return True


def acknowledge(requests: Sequence[Settlement], now: Now) -> Op[None]:
    """Acknowledge the leases of these requests, or raise.

    One statement both settles and reads. If it finds a lost lease, it has already settled others, so that the driver
    must roll back: a single request gets the error, several are run one by one.
    """
    wanted = [(id, lease, request.actor.agent) for request in requests for id, lease in request.leases]
    if not wanted:
        return
    rows = yield Query("message_ack", (now.wall, [id for id, _, _ in wanted]))
    if len(requests) > 1:
        # Of two requests that settle the same lease, the second must get LeaseLost.
        if len(rows) != len(wanted) or set(rows) != set(wanted):
            raise CannotBatch
    elif set(rows) != set(wanted):
        id, lease, _ = next(one for one in wanted if one not in rows)
        found = yield Query("message_held", ([id],))
        message = Held(*found[0]) if found else None
        settled = {row[0] for row in rows}
        if message is not None and id in settled:
            # The statement above settled it for another holder.
            message = msgspec.structs.replace(message, status="leased")
        raise _lost((id, lease), message)
    yield Announce("acked", [id for id, _, _ in wanted])


def _start_following(requests: Sequence[AckRequest]) -> Op[set[tuple[DeliveryStart, Actor]]]:
    """Start the delivery of the next reserved messages that are still held; return those."""
    wanted = [(request.start, request.actor) for request in requests if request.start is not None]
    if not wanted:
        return set()
    rows = yield Query("message_held", ([start.lease[0] for start, _ in wanted],))
    held = {row[0]: Held(*row) for row in rows}
    started = {(start, actor) for start, actor in wanted if _is_held(start.lease, actor, held)}
    yield ExecuteMany("message_start", [(start.attempts, start.lease[0]) for start, _ in started])
    return started


@operation(durable=False, concurrent=True)
def start_delivery(requests: Sequence[StartDeliveryRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Deliver reserved messages: from here on the attempt counts."""
    errors, _ = yield from refusals(requests)
    yield ExecuteMany("message_start", [(request.attempts, id) for request, id in _permitted(requests, errors)])
    return [errors.get(index) for index in range(len(requests))]


@operation(durable=False, concurrent=True)
def extend(requests: Sequence[ExtendRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Extend leases."""
    errors, _ = yield from refusals(requests)
    yield ExecuteMany(
        "message_extend", [(now.awake + request.duration, id) for request, id in _permitted(requests, errors)]
    )
    return [errors.get(index) for index in range(len(requests))]


@operation(durable=False, concurrent=True)
def check_delivery(requests: Sequence[Settlement], now: Now) -> Op[list[Outcome[None]]]:
    """Refuse replies to messages that were delivered again since: the answer is that of the later holder."""
    refused = yield from fence(request.actor for request in requests)
    rows = yield Query("message_held", ([id for request in requests for id, _ in request.leases],))
    held = {row[0]: Held(*row) for row in rows}
    return [refused.get(request.actor) or _redelivered(request, held) for request in requests]


def _redelivered(request: Settlement, held: dict[int, Held]) -> LeaseLost | None:
    for id, lease in request.leases:
        if id in held and held[id].lease > lease:
            return _lost((id, lease), held[id])
    return None


@operation(durable=False, concurrent=True)
def release(requests: Sequence[ReleaseRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Release messages to their mailboxes; one without an attempt left becomes a dead letter."""
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
            if not request.restore and message.is_last_attempt:
                reason = request.error or f"released after attempt {attempts} of {message.max_attempts}"
                endings.append(message.ending(reason, request.actor.agent))
                continue
            due = now.wall + request.delay if request.delay else None
            back.append(("scheduled" if due else "queued", due, attempts, request.error, id))
            mailboxes.append(message.mailbox)
    yield from _release(back, mailboxes, now)
    yield from dead_letter(endings, now)
    return [errors.get(index) for index in range(len(requests))]


@operation(durable=False, concurrent=True)
def reject(requests: Sequence[RejectRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Make messages dead letters without another attempt."""
    errors, held = yield from refusals(requests)
    endings = [held[id].ending(request.error, request.actor.agent) for request, id in _permitted(requests, errors)]
    yield from dead_letter(endings, now)
    return [errors.get(index) for index in range(len(requests))]


def take_back(messages: Sequence[Held], reason: str, now: Now) -> Op[None]:
    """Take back leases whose holder is gone: queue the message, or make it a dead letter if no attempt is left."""
    back = [message for message in messages if not message.is_last_attempt]
    yield from _release(
        [("queued", None, message.attempts, f"{message.holder}: {reason}", message.id) for message in back],
        [message.mailbox for message in back],
        now,
    )
    yield from dead_letter(
        [
            message.ending(f"{message.holder}: {reason}, attempt {message.attempts} of {message.max_attempts}")
            for message in messages
            if message.attempts >= message.max_attempts
        ],
        now,
    )


def refusals(
    requests: Sequence[Settlement],
) -> Op[tuple[dict[int, AgentBusError], dict[int, Held]]]:
    """Return the errors of requests that may not settle, by position, and the messages of all."""
    refused = yield from fence(request.actor for request in requests)
    errors: dict[int, AgentBusError] = {
        index: refused[request.actor] for index, request in enumerate(requests) if request.actor in refused
    }
    ids = [id for request in requests for id, _ in request.leases]
    if not ids:
        return errors, {}
    if len(requests) > 1 and len(set(ids)) < len(ids):
        # Of two requests that settle the same lease, the second must get LeaseLost.
        raise CannotBatch
    rows = yield Query("message_held", (ids,))
    held = {row[0]: Held(*row) for row in rows}
    for index, request in enumerate(requests):
        if index not in errors:
            for lease in request.leases:
                if not _is_held(lease, request.actor, held):
                    errors[index] = _lost(lease, held.get(lease[0]))
                    break
    return errors, held


def _permitted(requests: Sequence[S], errors: dict[int, AgentBusError]) -> Iterator[tuple[S, int]]:
    """Yield the messages that requests without an error settle."""
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
        return LeaseLost(message_id=f"m-{lease[0]}", status="purged", holder="no agent")
    holder = message.holder if message.status == "leased" else None
    return LeaseLost(message_id=message.public_id, status=message.status, holder=holder or "no agent")


def _release(rows: Sequence[Row], mailboxes: Sequence[int], now: Now) -> Op[None]:
    """Queue messages in their mailboxes again. Those of an ended subscription expire."""
    if rows:
        yield ExecuteMany("message_release", rows)
        yield Announce("released", [row[-1] for row in rows])
        ended = yield Query("mailbox_unsubscribed", (list(mailboxes),))
        if ended:
            yield Query("message_expire_all", (now.wall, "the subscription ended", [box for (box,) in ended]))
        yield Wake([mailbox_channel(box) for box in mailboxes])


def list_held(agent: str, now: Now) -> Op[list[Held]]:
    """Return the messages that an agent holds."""
    rows = yield Query("message_held_by", ([agent],))
    return [Held(*row) for row in rows]


def find_delivery(wanted: tuple[str, str], now: Now) -> Op[tuple[Held, str] | None]:
    """Return a message by message_id, with its sender. Of several copies the one that the agent holds, if it does."""
    message_id, agent = wanted
    mine = [held for held in (yield from list_held(agent, now)) if held.public_id == message_id]
    id = mine[0].id if mine else generated_id(message_id)
    rows = yield Query("message_get", (id, message_id if id is None else None))
    if not rows:
        return None
    message = stored_message(rows[0])
    return Held(*(getattr(message, name) for name in Held.__struct_fields__)), message.sender


class ClaimRequest(Settlement, frozen=True):
    """Up to ``limit`` messages of these mailboxes, most urgent first, leased for ``duration`` milliseconds.

    Only this agent reads ``own``; other agents read ``pools`` too. ``leases`` are acknowledged in the same commit.
    ``counted``: the messages are delivered at once, so that the attempt counts; otherwise they are only reserved.
    ``minimum`` is the lowest priority that is claimed.
    """

    own: tuple[int, ...]
    pools: tuple[int, ...]
    limit: int
    duration: int
    counted: bool = True
    minimum: int = 0

    @property
    def row_estimate(self) -> int:
        return len(self.leases) + self.limit

    @property
    def mailboxes(self) -> tuple[int, ...]:
        return self.own + self.pools


class Claim(msgspec.Struct, frozen=True):
    """The result of a claim. ``more``: messages are left in these mailboxes. Without messages, ``next_wall`` is when
    the next scheduled message is due, and ``next_awake`` when the next lease expires. ``contested``: another
    transaction has locked messages, and may release them."""

    rows: Sequence[MessageRow]
    more: bool
    next_wall: int | None = None
    next_awake: int | None = None
    contested: bool = False


@operation(durable=False, run_last=True, concurrent=True)
def claim(requests: Sequence[ClaimRequest], now: Now) -> Op[list[Outcome[Claim]]]:
    """Lease the most urgent messages of the mailboxes of each request, each message to one request."""
    wanted = _wanted(requests)
    agents = {request.actor.agent for request in requests}
    statuses, dues, *found = yield from gather(agent_status_query(agents), _due(wanted), *_most_urgent_of(wanted))
    refused = reject_fenced([request.actor for request in requests], agent_statuses_from(statuses))
    granted = [request for request in requests if request.actor not in refused] if refused else requests
    wanted = _wanted(granted) if refused else wanted
    yield from acknowledge(granted, now)
    horizon = _horizon(dues)
    if refused:
        horizon = {mailbox: due for mailbox, due in horizon.items() if mailbox in wanted}
    if (yield from _maintain(horizon, now)):
        # A message found before may have expired, or not be the most urgent.
        dues, *found = yield from gather(_due(wanted), *_most_urgent_of(wanted))
        horizon = _horizon(dues)
    rows: dict[int, Row] = {}
    ready, left = _queues(found, rows)
    contested = left - ready.keys()
    if contested:
        yield WakeLater([mailbox_channel(mailbox) for mailbox in sorted(contested)])
    shares = [_most_urgent(request, ready) for request in granted]
    taken = [id for share in shares for _, id, _ in share]
    if taken:
        if taken[0] not in rows:
            rows = {row[0]: row for row in (yield Query("message_rows", (taken,)))}
        for (holder, duration, counted), ids in _group_leases(granted, shares).items():
            yield Query("message_lease", (holder, now.awake + duration, counted, ids, now.wall))
        yield Announce("leased", taken)
    left |= {mailbox for mailbox, queue in ready.items() if queue}
    claims = iter(
        [
            Claim([MessageRow(*rows[id]) for _, id, _ in share], bool(left) and not left.isdisjoint(request.mailboxes))
            if share
            else Claim(
                [], False, *_earliest(request.mailboxes, horizon),
                contested=bool(contested) and not contested.isdisjoint(request.mailboxes),
            )
            for request, share in zip(granted, shares, strict=True)
        ]
    )  # fmt: skip
    return [refused[request.actor] if refused and request.actor in refused else next(claims) for request in requests]


@claim.alone
def _claim_one(request: ClaimRequest, now: Now) -> Op[Outcome[Claim] | None]:
    """Lease one message by one statement. Leave the call to the operation if a mailbox needs maintenance, other
    transactions have locked the message, or, on SQLite, none is ready."""
    if request.limit != 1 or request.leases or request.minimum or (yield from fence_error(request.actor, now)):
        return None
    until = now.awake + request.duration
    parameters = (list(request.mailboxes), request.actor.agent, until, request.counted, now.wall, now.awake)
    rows = yield Query("message_claim_one", parameters)
    if not rows:
        return None
    ((left, *row),) = rows
    more = bool(left)
    if row[0] is not None:
        leased = MessageRow(*row)
        yield Announce("leased", [leased.id])
        # As it was before this delivery.
        attempts = leased.attempts - request.counted
        return Claim([msgspec.structs.replace(leased, lease=leased.lease - 1, attempts=attempts)], more)
    if more:
        return None
    return Claim([], False, *(yield from read_horizon(request.mailboxes, now)))


def _wanted(requests: Sequence[ClaimRequest]) -> dict[int, int]:
    """Return the number of messages wanted from each mailbox."""
    wanted: dict[int, int] = {}
    for request in requests:
        for mailbox in request.mailboxes:
            wanted[mailbox] = wanted.get(mailbox, 0) + request.limit
    return wanted


def maintain(mailboxes: Sequence[int], now: Now) -> Op[None]:
    """Queue due messages of these mailboxes, expire old ones, and take back expired leases."""
    yield from _maintain(_horizon((yield _due(mailboxes))), now)


def _maintain(horizon: dict[int, Row], now: Now) -> Op[bool]:
    """Maintain mailboxes by their horizon; return whether anything changed."""
    expired = [box for box, (_, _, expires) in horizon.items() if expires is not None and expires <= now.wall]
    lapsed = [box for box, (_, until, _) in horizon.items() if until is not None and until <= now.awake]
    due = [box for box, (due, _, _) in horizon.items() if due is not None and due <= now.wall]
    if due:
        yield Query("message_promote", (now.wall, due))
    if lapsed:
        rows = yield Query("message_lapsed", (now.awake, lapsed))
        yield from take_back([Held(*row) for row in rows], "its lease ran out", now)
    if expired or lapsed:
        # Last: a message that was taken back may have expired.
        yield Query("message_expire", (now.wall, expired + lapsed))
    return bool(expired or due or lapsed)


def _most_urgent_of(wanted: dict[int, int]) -> list[Query]:
    """Return queries for the most urgent messages of each mailbox, which also tell whether more are left.

    Mailboxes from which many are wanted have a query of their own, so that the others read less. All that is found in a
    single mailbox is claimed, so that its messages are read at once.
    """
    if len(wanted) == 1:
        return [Query("message_next", one) for one in wanted.items()]
    few = [mailbox for mailbox, limit in wanted.items() if limit <= _FEW]
    many = [mailbox for mailbox, limit in wanted.items() if limit > _FEW]
    return [
        Query("message_ready", (mailboxes, max(wanted[mailbox] for mailbox in mailboxes) + 1))
        for mailboxes in (few, many)
        if mailboxes
    ]


def _queues(found: Sequence[Rows], rows: dict[int, Row]) -> tuple[dict[int, Queue], set[int]]:
    """Return the ready messages by mailbox, and the mailboxes with more. Where there is more but none is ready, other
    transactions have locked them and may take fewer: the receivers retry. Rows that an engine returns at once go into
    ``rows``."""
    ready: dict[int, Queue] = {}
    left: set[int] = set()
    for messages in found:
        for mailbox, priority, id, *row in messages:
            if id is None:
                left.add(mailbox)
                continue
            if row:
                rows[id] = (id, *row)
            if mailbox not in ready:
                ready[mailbox] = deque()
            ready[mailbox].append((-priority, id, mailbox))
    return ready, left


def _most_urgent(request: ClaimRequest, ready: dict[int, Queue]) -> list[Ready]:
    """Take the share of a request from the queues."""
    queues = [queue for mailbox in request.mailboxes if (queue := ready.get(mailbox))]
    share: list[Ready] = []
    while queues and len(share) < request.limit:
        queue = queues[0] if len(queues) == 1 else min(queues, key=_head)
        if -queue[0][0] < request.minimum:
            break
        share.append(queue.popleft())
        if not queue:
            queues.remove(queue)
    return share


def _head(queue: Queue) -> Ready:
    return queue[0]


def _group_leases(
    requests: Sequence[ClaimRequest], shares: Sequence[list[Ready]]
) -> dict[tuple[str | None, int, bool], list[int]]:
    """Return the messages that one statement can lease: same holder, same duration.

    The holder of a message in an own mailbox is NULL here: it is the owner of the mailbox.
    """
    groups: dict[tuple[str | None, int, bool], list[int]] = {}
    for request, share in zip(requests, shares, strict=True):
        for _, id, mailbox in share:
            holder = request.actor.agent if mailbox in request.pools else None
            groups.setdefault((holder, request.duration, request.counted), []).append(id)
    return groups


def _due(mailboxes: Iterable[int]) -> Query:
    """Return the query for the horizon: when each mailbox has something due next."""
    return Query("mailbox_horizon", (list(mailboxes),))


def _horizon(rows: Rows) -> dict[int, Row]:
    return {row[0]: row[1:] for row in rows}


def _earliest(mailboxes: Iterable[int], horizon: dict[int, Row]) -> tuple[int | None, int | None]:
    found = [horizon[mailbox] for mailbox in mailboxes if mailbox in horizon]
    return (
        min((due for due, _, _ in found if due is not None), default=None),
        min((until for _, until, _ in found if until is not None), default=None),
    )


def list_ready(wanted: tuple[Sequence[int], int], now: Now) -> Op[list[MessageRow]]:
    """Return the messages that a claim would get of these mailboxes, without maintaining them."""
    mailboxes, limit = wanted
    ready: list[tuple[int, int]] = []
    for mailbox in mailboxes:
        # Not the query of a claim, which locks messages.
        ready += [(-priority, id) for priority, id in (yield Query("message_waiting", (mailbox, limit)))]
    ids = [id for _, id in sorted(ready)[:limit]]
    rows = {row[0]: MessageRow(*row) for row in (yield Query("message_rows", (ids,)))}
    return [rows[id] for id in ids]


def list_arrived(mailboxes: Sequence[int], now: Now) -> Op[tuple[list[int], int | None]]:
    """Return the messages that wait in these mailboxes, due ones included, oldest first, with a limit for each; and the
    milliseconds until a further one is due. One that is due stays scheduled until a claim."""
    found: list[int] = []
    dues: list[int] = []
    for mailbox in mailboxes:
        found += [id for (id,) in (yield Query("mailbox_arrivals", (mailbox, now.wall, _ARRIVALS)))]
        ((due,),) = yield Query("mailbox_next_due", (mailbox, now.wall))
        dues += [] if due is None else [due - now.wall]
    return sorted(found), min(dues, default=None)


def get_rows(ids: Sequence[int], now: Now) -> Op[list[MessageRow]]:
    """Return messages by row id, in this order."""
    rows = {row[0]: MessageRow(*row) for row in (yield Query("message_rows", (list(ids),)))} if ids else {}
    return [rows[id] for id in ids if id in rows]


def list_waiting(wanted: tuple[Sequence[int], int], now: Now) -> Op[list[int]]:
    """Return the ids of the messages that wait in these mailboxes, with a limit for each."""
    mailboxes, limit = wanted
    found: list[int] = []
    for mailbox in mailboxes:
        found += [id for _, id in (yield Query("message_waiting", (mailbox, limit)))]
    return found


def read_horizon(mailboxes: Sequence[int], now: Now) -> Op[tuple[int | None, int | None]]:
    """Return when the next scheduled message of these mailboxes is due (wall), and the next lease expires (awake)."""
    return _earliest(mailboxes, _horizon((yield _due(mailboxes))))


class ReplyRequest(msgspec.Struct, frozen=True):
    """The reply to the request with this correlation. ``again``: also one that was delivered before."""

    row_estimate: ClassVar[int] = 1
    actor: Actor
    mailbox: int
    correlation: str
    again: bool = False


@operation(durable=False, run_last=True, concurrent=True)
def take_reply(requests: Sequence[ReplyRequest], now: Now) -> Op[list[Outcome[MessageRow | None]]]:
    """Deliver and acknowledge replies. A request repeated under the same id gets the same reply again."""
    refused = yield from fence(request.actor for request in requests)
    # Replies that came too late for their request have no reader; they expire here.
    yield from maintain(list({request.mailbox for request in requests}), now)
    outcomes: list[Outcome[MessageRow | None]] = []
    for request in requests:
        if request.actor in refused:
            outcomes.append(refused[request.actor])
            continue
        rows = yield Query("reply_take", (now.wall, request.mailbox, request.correlation))
        if not rows and request.again:
            rows = yield Query("reply_again", (request.mailbox, request.correlation))
        outcomes.append(MessageRow(*rows[0]) if rows else None)
    return outcomes


class RequeueRequest(msgspec.Struct, frozen=True):
    """Dead letters to try again: all, or none."""

    message_ids: tuple[str, ...]
    actor: str | None = None


class PurgeRequest(msgspec.Struct, frozen=True):
    """Finished messages to delete: of this status, finished before this wall time, after this row."""

    status: str | None
    before: int
    limit: int
    after: int = 0
    by: str | None = None


def dead_letter(endings: Sequence[Ending], now: Now) -> Op[None]:
    """Make messages dead letters, and send an error report to the requester of each that was a request."""
    if not endings:
        return
    yield ExecuteMany("message_dead_letter", [(ending.reason, now.wall, ending.id) for ending in endings])
    yield Announce("dead", [ending.id for ending in endings])
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
                # The requester waits for a reply as long as the request was valid.
                ttl=None if ending.expires is None else max(1, ending.expires - now.wall),
            )
            for ending in endings
            if ending.reply_to is not None
        ],
        BUS,
        now,
    )


@single_operation(durable=True)
def requeue(request: RequeueRequest, now: Now) -> Op[Outcome[int]]:
    """Queue dead letters again, with all their attempts; the audit log has the earlier ones."""
    messages = yield from _find(request.message_ids)
    missing = [message_id for message_id in request.message_ids if message_id not in messages]
    if missing:
        return UnknownMessage(message_id=missing[0])
    found = [message for copies in messages.values() for message in copies]
    other = next((message for message in found if message.status != "dead"), None)
    if other is not None:
        return WrongState(
            what="message",
            name=other.public_id,
            status=other.status,
            action="requeue it",
            advice="only dead letters can be requeued: bus.messages.dead() returns them",
            shell_advice="only dead letters can be requeued: agentbus messages dead lists them",
        )
    unread = next((message for message in found if not message.has_reader), None)
    if unread is not None and unread.kind == "task":
        return TaskEnded(task=unread.name, status=unread.owner_status or "been deleted", message_id=unread.public_id)
    if unread is not None:
        status = unread.owner_status or "been deleted"
        return AgentEnded(agent=unread.owner, status=status, message_id=unread.public_id)
    yield ExecuteMany("message_requeue", [(message.id,) for message in found])
    # One event for all of them; the audit log has the reason of each already.
    attempts = {message.public_id: message.attempts for message in found[:_NAMED]}
    facts = {"count": len(found), "attempts": attempts}
    yield from record([event(now.wall, "messages_requeued", ("bus", "messages"), request.actor, **facts)])
    yield Wake([mailbox_channel(message.mailbox) for message in found])
    tasks = {message.name for message in found if message.kind == "task"}
    if tasks:
        # Imported only here: it receives messages itself.
        from agentbus.operations.task_mail import notify_tasks, read_mailboxes

        yield from notify_tasks((yield from read_mailboxes(list(tasks))).values(), now)
    return len(found)


@single_operation(durable=True, concurrent=True)
def purge(request: PurgeRequest, now: Now) -> Op[Outcome[list[int]]]:
    """Delete finished messages, oldest first. Repeat after the last row while it deletes as many as its limit."""
    # Dead letters are for inspection: they are deleted only if their status is named.
    statuses = [request.status] if request.status else ["acked", "expired"]
    rows = yield Query("message_purge", (statuses, request.before, request.limit, request.after))
    if rows:
        yield Query("receipt_delete", ([id for (id,) in rows],))
        facts = {"count": len(rows), "status": request.status, "before": request.before}
        yield from record([event(now.wall, "messages_purged", ("bus", "messages"), request.by, **facts)])
    return [id for (id,) in rows]


def count_purgeable(request: PurgeRequest, now: Now) -> Op[int]:
    """Return the number of messages that a purge would delete."""
    statuses = [request.status] if request.status else ["acked", "expired"]
    ((number,),) = yield Query("message_purgeable", (statuses, request.before))
    return int(number)


class _Candidate(msgspec.Struct, frozen=True):
    """A message that may be requeued, and the mailbox that it is in."""

    id: int
    message_id: str | None
    status: str
    mailbox: int
    attempts: int
    error: str | None
    kind: str
    owner: str
    owner_status: str | None
    subscription: int | None
    name: str

    @property
    def public_id(self) -> str:
        return self.message_id or f"m-{self.id}"

    @property
    def has_reader(self) -> bool:
        """Any agent may join a pool; another mailbox has a reader unless its owner, or the subscription, has ended."""
        if self.kind == "subscription" and self.subscription is None:
            return False
        if self.kind == "task":
            return self.owner_status is not None and self.owner_status not in TASK_ENDED
        return self.kind == "pool" or self.owner_status not in {None, "completed", "stopped"}


def _find(message_ids: Sequence[str]) -> Op[dict[str, list[_Candidate]]]:
    """Return the messages of these public ids; a published one may have several copies."""
    own = {generated_id(message_id): message_id for message_id in message_ids}
    own.pop(None, None)
    rows = yield Query("message_find", ([id for id in own if id is not None], list(message_ids)))
    found: dict[str, list[_Candidate]] = {}
    for row in rows:
        message = _Candidate(*row)
        found.setdefault(message.public_id, []).append(message)
    return found
