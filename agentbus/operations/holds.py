"""The loop guard: count the messages of agents in a thread, hold those beyond the bound, release or discard them.

A thread is the messages that share a correlation. The first reply to a message, and a request with its reply, are not
counted, so that they cost nothing: a loop needs a reply to a reply. A counted send costs one statement more. The count
starts again when a person writes in the thread, and when the bound is reached although an agent of the thread has made
progress since the count started.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from agentbus.core.addresses import Address, is_operator
from agentbus.core.clock import Now
from agentbus.core.codec import plain_payload
from agentbus.core.validation import PAGE_SIZE, Priority
from agentbus.errors import AgentBusError, NothingHeld
from agentbus.operations.events import event, record
from agentbus.operations.protocol import (
    BUS,
    Announce,
    ExecuteMany,
    Op,
    Outcome,
    Query,
    Row,
    Rows,
    Wake,
    mailbox_channel,
    reply_channel,
    single_operation,
)
from agentbus.operations.quotas import thread_bound
from agentbus.operations.rows import Draft

if TYPE_CHECKING:
    from agentbus.operations.send import Plan, Positions, SendRequest
    from agentbus.records import HoldRecord, Page

_STEP = 1000
"""Messages that one transaction releases or discards, and rows that it deletes."""
_FORGET_AFTER = 7 * 24 * 3600 * 1000
"""Milliseconds without a message after which a thread is forgotten."""


class HoldsQuery(msgspec.Struct, frozen=True):
    """Threads with held messages, after a cursor."""

    cursor: str = ""
    limit: int = PAGE_SIZE


class ReleaseHoldsRequest(msgspec.Struct, frozen=True):
    """Release the held messages of a thread, a bounded number of them; ``first``: no step of this call came before."""

    thread: str
    by: str
    first: bool = True


class DiscardHoldsRequest(ReleaseHoldsRequest, frozen=True):
    """Discard the held messages of a thread, a bounded number of them."""

    reason: str | None = None


class HoldsStep(msgspec.Struct, frozen=True):
    """The number of messages of this step. ``more``: there may be more."""

    count: int
    more: bool


class _Thread(msgspec.Struct, frozen=True):
    """A thread after its new messages were counted."""

    name: str
    messages: int
    held: int
    since: int
    agents: str

    @property
    def members(self) -> list[str]:
        return _members(self.agents)


def _members(agents: str) -> list[str]:
    """Return the agents of a thread, whose names are stored each after a comma."""
    return sorted({name for name in agents.split(",") if name})


class _Additions(msgspec.Struct):
    """The requests of a batch that add to a thread, and what it has at least before them."""

    opened: int
    requests: dict[int, list[int]] = {}
    """The positions of requests, each with those of its drafts."""
    senders: dict[str, None] = {}


def is_counted(draft: Draft) -> bool:
    """Return True if the loop guard counts a message of an agent: it goes to agents, and follows others."""
    to = draft.to
    return draft.follows is not None and not (
        isinstance(to, Address) and (to.kind == "task" or (to.kind == "agent" and is_operator(to.name)))
    )


def hold_back(requests: Sequence[SendRequest], plans: Sequence[Plan], quotas: Rows, now: Now) -> Op[Positions]:
    """Count the messages of each thread. Return the positions of those that are held.

    The messages of one request in a thread count as one, and are held together.
    """
    bound = thread_bound(quotas)
    if bound is None:
        return set()
    added: dict[str, _Additions] = {}
    answered: set[str] = set()
    for index, (request, plan) in enumerate(zip(requests, plans, strict=True)):
        if isinstance(plan, AgentBusError):
            continue
        sender = request.actor.agent
        for position, (draft, boxes) in enumerate(zip(request.drafts, plan, strict=True)):
            if draft.correlation is None or not isinstance(boxes, list):
                continue
            if is_operator(sender):
                answered.add(draft.correlation)
            elif boxes and is_counted(draft):
                additions = added.setdefault(draft.correlation, _Additions(draft.follows or 0))
                additions.requests.setdefault(index, []).append(position)
                additions.senders[sender] = None
    if answered:
        yield Query("thread_reset", (sorted(answered),))
    if not added:
        return set()
    # In a fixed order, so that concurrent transactions cannot deadlock.
    names = sorted(added)
    opened = [added[name].opened for name in names]
    counts = [len(added[name].requests) for name in names]
    senders = ["".join(f",{sender}" for sender in added[name].senders) for name in names]
    rows = yield Query("thread_count", (names, opened, counts, senders, now.wall))
    held: set[tuple[int, int]] = set()
    for row in sorted(rows):
        thread = _Thread(*row)
        if thread.held or thread.messages > bound:
            calls = added[thread.name].requests
            free = yield from _allowance(thread, len(calls), bound, now)
            for index in list(calls)[free:]:
                held.update((index, position) for position in calls[index])
    return held


def _allowance(thread: _Thread, count: int, bound: int, now: Now) -> Op[int]:
    """Return how many of the last ``count`` messages of a thread are delivered."""
    if thread.held:
        return 0
    free = max(0, bound - thread.messages + count)
    if (yield Query("thread_progress", (thread.members, thread.since))):
        yield Query("thread_restart", (count, now.wall, thread.name))
        free = bound
    if count <= free:
        return count
    yield Query("thread_hold", (thread.name,))
    facts = {"messages": bound, "agents": thread.members}
    yield from record([event(now.wall, "thread_held", ("message", thread.name), None, **facts)])
    return free


def list_holds(wanted: HoldsQuery, now: Now) -> Op[Page[HoldRecord]]:
    """Return the threads with held messages, in order of their names."""
    from agentbus.operations.common import page
    from agentbus.records import HoldRecord

    rows = yield Query("hold_threads", (wanted.cursor, wanted.limit + 1))

    def made(row: Row) -> HoldRecord:
        thread, held, first, last, since, sent, agents = row
        return HoldRecord(thread, held, sent, _members(agents), f"m-{first}", f"m-{last}", since)

    return page(rows, wanted.limit, made, lambda one: one.thread)


def count_holds(_: None, now: Now) -> Op[tuple[int, int]]:
    """Return the number of held messages and of their threads."""
    ((messages, threads),) = yield Query("hold_count")
    return int(messages), int(threads)


@single_operation(durable=True)
def release_holds(request: ReleaseHoldsRequest, now: Now) -> Op[Outcome[HoldsStep]]:
    """Queue the held messages of a thread, which then has its whole bound again."""
    rows = yield from _held(request)
    if isinstance(rows, AgentBusError):
        return rows
    yield Query("thread_reset", ([request.thread],))
    wakes: list[str] = []
    releases: list[Row] = []
    for id, due, mailbox, _, _, correlation, _, _, _ in rows:
        waits = due is not None and due > now.wall
        releases.append(("scheduled", due, id) if waits else ("queued", None, id))
        wakes += [mailbox_channel(mailbox), reply_channel(mailbox, correlation)]
    if rows:
        yield ExecuteMany("hold_release", releases)
        yield from _end(rows, "released")
        subject = ("message", request.thread)
        yield from record([event(now.wall, "thread_released", subject, request.by, count=len(rows))])
        yield Wake(wakes)
    return HoldsStep(len(rows), len(rows) == _STEP)


@single_operation(durable=True)
def discard_holds(request: DiscardHoldsRequest, now: Now) -> Op[Outcome[HoldsStep]]:
    """Expire the held messages of a thread, and inform the requester of each that was a request. The thread stays held:
    its next message waits for a person again."""
    # Imported only here: it counts with this module.
    from agentbus.operations.send import post

    rows = yield from _held(request)
    if isinstance(rows, AgentBusError):
        return rows
    reason = f"discarded by {request.by}" + (f": {request.reason}" if request.reason else "")
    reports: list[Draft] = []
    for id, _, _, message_id, _, correlation, reply_to, session, expires in rows:
        if reply_to is not None:
            reports.append(
                Draft(
                    to=reply_to,
                    type="error_report",
                    payload=plain_payload({"request": message_id or f"m-{id}", "dead": reason}),
                    priority=Priority.NORMAL,
                    max_attempts=1,
                    correlation=correlation,
                    session=session,
                    ttl=None if expires is None else max(1, expires - now.wall),
                )
            )
    if rows:
        yield ExecuteMany("hold_discard", [(now.wall, reason, row[0]) for row in rows])
        yield from _end(rows, "expired")
        facts = {"count": len(rows), "reason": request.reason}
        yield from record([event(now.wall, "thread_discarded", ("message", request.thread), request.by, **facts)])
        yield from post(reports, BUS, now)
    return HoldsStep(len(rows), len(rows) == _STEP)


def _held(request: ReleaseHoldsRequest) -> Op[Outcome[Rows]]:
    """Return held messages of a thread, oldest first, for a person who decides about them."""
    # Imported only here: those who send need no tasks.
    from agentbus.operations.task_approvals import operator_or_error

    error = yield from operator_or_error(request.by)
    if error is not None:
        return error
    rows = yield Query("hold_messages", (request.thread, _STEP))
    return NothingHeld(thread=request.thread) if not rows and request.first else rows


def _end(rows: Rows, change: str) -> Op[None]:
    """Delete the holds of messages."""
    ids = [row[0] for row in rows]
    yield Query("hold_delete", (ids,))
    yield Announce(change, ids)


@single_operation(durable=False)
def clean_holds(_: None, now: Now) -> Op[Outcome[bool]]:
    """Delete holds of messages that are finished, and forget threads without a message for a week: a bounded number.
    Return True if there may be more."""
    holds = yield Query("hold_clean", (_STEP,))
    threads = yield Query("thread_forget", (now.wall - _FORGET_AFTER, _STEP))
    return len(holds) == _STEP or len(threads) == _STEP


def held_reply(wanted: tuple[int, str], now: Now) -> Op[bool]:
    """Return whether the reply to a request, by the mailbox of replies and the correlation, is held, or was until it
    expired."""
    return bool((yield Query("hold_reply", wanted)))
