"""Claims: which messages a receiver gets.

A claim first tends its mailboxes: it promotes what has become due, expires what is too old, and takes back leases
that ran out. So delivery works with no monitor running.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import msgspec

from agentbus.clock import Now
from agentbus.operations import Again, Op, Outcome, Query, Row, Rows, mailbox_channel, operation, several
from agentbus.operations.fencing import known, standing, turned_away
from agentbus.operations.leases import Held, Settlement, acknowledge, take_back

_FEW = 32
"""How many messages a request may want without being asked for apart."""

CONTESTED, CONTESTS = 0.01, 20
"""Seconds after which one who does not want to wait, but found everything in other hands, looks again; how often."""

Ready: TypeAlias = tuple[int, int, int]
"""A message that can be claimed: minus its priority, its id, its mailbox. The most urgent is the least."""

Queue: TypeAlias = deque[Ready]
"""What is ready in a mailbox, most urgent first."""


class ClaimRequest(Settlement, frozen=True):
    """Up to ``limit`` messages from these mailboxes, most urgent first, leased for ``duration`` milliseconds.

    ``own`` are read by this agent alone, ``pools`` by others too. ``leases`` are acknowledged in the same commit.
    ``counted``: the messages are handed to the code at once, so the attempt counts; otherwise they are only reserved.
    """

    own: tuple[int, ...]
    pools: tuple[int, ...]
    limit: int
    duration: int
    counted: bool = True

    @property
    def touches(self) -> int:
        return len(self.leases) + self.limit

    @property
    def mailboxes(self) -> tuple[int, ...]:
        return self.own + self.pools


class Claim(msgspec.Struct, frozen=True):
    """A claim's result. ``more``: something is left in these mailboxes. One that got nothing learns when to look again:
    ``next_wall``, when the next scheduled message is due, and ``next_awake``, when the next lease runs out.
    ``contested``: there is something, but in the hands of another transaction, which may put it back."""

    rows: Sequence[Row]
    more: bool
    next_wall: int | None = None
    next_awake: int | None = None
    contested: bool = False


@operation(durable=False, last=True, beside=True)
def claim(requests: Sequence[ClaimRequest], now: Now) -> Op[list[Outcome[Claim]]]:
    """Lease the most urgent messages of each request's mailboxes. No message is given to two requests."""
    wanted = _wanted(requests)
    agents = {request.actor.agent for request in requests}
    standings, dues, *found = yield from several(standing(agents), _due(wanted), *_most_urgent_of(wanted))
    refused = turned_away([request.actor for request in requests], known(standings))
    granted = [request for request in requests if request.actor not in refused] if refused else requests
    wanted = _wanted(granted) if refused else wanted
    yield from acknowledge(granted, now)
    horizon = {mailbox: due for mailbox, due in _horizon(dues).items() if mailbox in wanted}
    if (yield from _tended(horizon, now)):
        # What was found before may be too old by now, or not the most urgent.
        dues, *found = yield from several(_due(wanted), *_most_urgent_of(wanted))
        horizon = _horizon(dues)
    rows: dict[int, Row] = {}
    ready, left = _queues(found, rows)
    contested = left - ready.keys()
    if contested:
        yield Again([mailbox_channel(mailbox) for mailbox in sorted(contested)])
    shares = [_most_urgent(request, ready) for request in granted]
    taken = [id for share in shares for _, id, _ in share]
    if taken:
        if taken[0] not in rows:
            rows = {row[0]: row for row in (yield Query("message_rows", (taken,)))}
        for (holder, duration, counted), ids in _alike(granted, shares).items():
            yield Query("message_lease", (holder, now.awake + duration, counted, ids))
    left |= {mailbox for mailbox, queue in ready.items() if queue}
    claims = iter(
        [
            Claim([rows[id] for _, id, _ in share], bool(left) and not left.isdisjoint(request.mailboxes))
            if share
            else Claim(
                [], False, *_earliest(request.mailboxes, horizon),
                contested=bool(contested) and not contested.isdisjoint(request.mailboxes),
            )
            for request, share in zip(granted, shares, strict=True)
        ]
    )  # fmt: skip
    return [refused[request.actor] if refused and request.actor in refused else next(claims) for request in requests]


def _wanted(requests: Sequence[ClaimRequest]) -> dict[int, int]:
    """How much is wanted from each mailbox."""
    wanted: dict[int, int] = {}
    for request in requests:
        for mailbox in request.mailboxes:
            wanted[mailbox] = wanted.get(mailbox, 0) + request.limit
    return wanted


def tend(mailboxes: Sequence[int], now: Now) -> Op[None]:
    """Promote, expire and take back what is due in these mailboxes."""
    yield from _tended(_horizon((yield _due(mailboxes))), now)


def _tended(horizon: dict[int, Row], now: Now) -> Op[bool]:
    """The same, by when each has something due next; whether there was anything to do."""
    expired = [box for box, (_, _, expires) in horizon.items() if expires is not None and expires <= now.wall]
    lapsed = [box for box, (_, until, _) in horizon.items() if until is not None and until <= now.awake]
    due = [box for box, (due, _, _) in horizon.items() if due is not None and due <= now.wall]
    if due:
        yield Query("message_promote", (now.wall, due))
    if lapsed:
        rows = yield Query("message_lapsed", (now.awake, lapsed))
        yield from take_back([Held(*row) for row in rows], "its lease ran out", now)
    if expired or lapsed:
        # Last: what was taken back may be too old by now.
        yield Query("message_expire", (now.wall, expired + lapsed))
    return bool(expired or due or lapsed)


def _most_urgent_of(wanted: dict[int, int]) -> list[Query]:
    """Asks for the most urgent messages of each mailbox, one more than wanted, to know whether something is left.

    Mailboxes from which much is wanted are asked apart, so that the others need not read as much.
    """
    few = [mailbox for mailbox, limit in wanted.items() if limit <= _FEW]
    many = [mailbox for mailbox, limit in wanted.items() if limit > _FEW]
    return [
        Query("message_ready", (mailboxes, max(wanted[mailbox] for mailbox in mailboxes) + 1))
        for mailboxes in (few, many)
        if mailboxes
    ]


def _queues(found: Sequence[Rows], rows: dict[int, Row]) -> tuple[dict[int, Queue], set[int]]:
    """What is ready, and the mailboxes in which an engine says that there is more. Where there is more but nothing is
    ready, it is in the hands of other transactions, which may take less than they look at: the receivers come again. An
    engine may give all that the receivers of messages get, too: that goes into ``rows``."""
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
    """Take the request's share from the queues."""
    queues = [queue for mailbox in request.mailboxes if (queue := ready.get(mailbox))]
    share: list[Ready] = []
    while queues and len(share) < request.limit:
        queue = queues[0] if len(queues) == 1 else min(queues, key=_head)
        share.append(queue.popleft())
        if not queue:
            queues.remove(queue)
    return share


def _head(queue: Queue) -> Ready:
    return queue[0]


def _alike(
    requests: Sequence[ClaimRequest], shares: Sequence[list[Ready]]
) -> dict[tuple[str | None, int, bool], list[int]]:
    """The messages that can be leased by one statement: same holder, same duration.

    A message of an own mailbox needs no holder told: it is the mailbox's owner.
    """
    groups: dict[tuple[str | None, int, bool], list[int]] = {}
    for request, share in zip(requests, shares, strict=True):
        for _, id, mailbox in share:
            holder = request.actor.agent if mailbox in request.pools else None
            groups.setdefault((holder, request.duration, request.counted), []).append(id)
    return groups


def _due(mailboxes: Iterable[int]) -> Query:
    """Asks for what ``_horizon`` reads: when each mailbox has something due next."""
    return Query("mailbox_horizon", (list(mailboxes),))


def _horizon(rows: Rows) -> dict[int, Row]:
    return {row[0]: row[1:] for row in rows}


def _earliest(mailboxes: Iterable[int], horizon: dict[int, Row]) -> tuple[int | None, int | None]:
    found = [horizon[mailbox] for mailbox in mailboxes if mailbox in horizon]
    return (
        min((due for due, _, _ in found if due is not None), default=None),
        min((until for _, until, _ in found if until is not None), default=None),
    )


# Questions


def ready_rows(wanted: tuple[Sequence[int], int], now: Now) -> Op[list[Row]]:
    """What a claim would get of these mailboxes, as far as it is ready without being tended."""
    mailboxes, most = wanted
    ready: list[tuple[int, int]] = []
    for mailbox in mailboxes:
        # Not as a claim finds them, which may lock what it finds.
        ready += [(-priority, id) for priority, id in (yield Query("message_waiting", (mailbox, most)))]
    ids = [id for _, id in sorted(ready)[:most]]
    rows = {row[0]: row for row in (yield Query("message_rows", (ids,)))}
    return [rows[id] for id in ids]


def horizon(mailboxes: Sequence[int], now: Now) -> Op[tuple[int | None, int | None]]:
    """When the next scheduled message of these mailboxes is due (wall), and the next lease runs out (awake)."""
    return _earliest(mailboxes, _horizon((yield _due(mailboxes))))
