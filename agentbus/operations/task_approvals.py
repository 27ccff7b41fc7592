"""Approvals: requested by tasks, decided by operators. Agents cannot decide."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from agentbus.core.clock import Now
from agentbus.errors import AgentBusError, NotAnOperator, UnknownApproval, WrongState
from agentbus.operations.events import event, record
from agentbus.operations.protocol import ExecuteMany, Op, Outcome, Query, operation, single_operation
from agentbus.operations.task_lookups import approval_record
from agentbus.operations.task_ownership import (
    HeldRequest,
    HeldTask,
    for_holders,
    known_task,
    make_waiting_ready,
    next_ending,
)

if TYPE_CHECKING:
    from agentbus.records import ApprovalRecord


class AskRequest(HeldRequest, frozen=True):
    """Request an approval: the value to decide on (JSON and its checksum), the milliseconds until it expires, the
    address to notify; the last ending that the workflow has seen, and its own number if it is passed through."""

    key: str
    name: str
    position: int
    shown: tuple[str, int]
    expires: int | None = None
    notify: str | None = None
    seen: int | None = None
    ending: int | None = None

    @property
    def data_size(self) -> int:
        return len(self.shown[0])


class Answer(msgspec.Struct, frozen=True):
    """The status of an approval."""

    status: str
    by: str | None
    reason: str | None
    decided: int | None
    auto: int
    expires: int | None
    ending: int | None = None


class DecideRequest(msgspec.Struct, frozen=True):
    """Decide an approval; without a name, the only open one of the task."""

    task: str
    name: str | None
    approved: bool
    by: str
    reason: str | None = None


class ExpireRequest(HeldRequest, frozen=True):
    """Expire an approval that is overdue."""

    key: str


@operation(durable=True, stores_data=True)
def ask_approval(requests: Sequence[AskRequest], now: Now) -> Op[list[Outcome[Answer]]]:
    """Request approvals. A task that passes approvals through gets its answer at once."""
    return (yield from for_holders(requests, _ask, now))


def _ask(request: AskRequest, task: HeldTask, now: Now) -> Op[Answer]:
    expires = None if request.expires is None else now.wall + request.expires
    answer = Answer(
        "approved" if task.auto else "open", None, None, now.wall if task.auto else None, task.auto, expires,
        request.ending if task.auto else None,
    )  # fmt: skip
    yield Query(
        "approval_insert",
        (
            task.number, request.key, request.name, request.position, answer.status, task.auto, request.notify,
            expires, now.wall, answer.decided, request.shown[1], request.shown[0],
            request.seen, answer.ending,
        ),
    )  # fmt: skip
    facts = {"approval": request.key, "expires": expires}
    yield from record([event(now.wall, "approval_requested", ("task", task.id), request.actor.agent, **facts)])
    if task.auto:
        yield from record([decision(task.id, request.key, "approved", None, None, now, auto=True)])
    return answer


@single_operation(durable=True)
def decide_approval(request: DecideRequest, now: Now) -> Op[Outcome[ApprovalRecord]]:
    """Record decisions, and make the tasks ready. The outcome is the approval afterwards."""
    found = yield from _decidable(request, now)
    if isinstance(found, AgentBusError):
        return found
    task, key = found
    status = "approved" if request.approved else "rejected"
    ending = yield from next_ending(task)
    yield Query("approval_decide", (status, 0, request.by, request.reason, now.wall, ending, task.number, key))
    yield from record([decision(task.id, key, status, request.by, request.reason, now)])
    yield from make_waiting_ready([task], now)
    (row,) = yield Query("approval_get", (task.number, key))
    return approval_record(row)


@operation(durable=True)
def expire_approval(requests: Sequence[ExpireRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Expire approvals that were not decided in time."""
    return (yield from for_holders(requests, _expire, now))


def _expire(request: ExpireRequest, task: HeldTask, now: Now) -> Op[None]:
    ending = yield from next_ending(task)
    rows = yield Query("approval_expire", (now.wall, ending, task.number, request.key))
    yield from record([decision(task.id, request.key, "expired", None, None, now) for _ in rows])


def pass_through(tasks: Sequence[HeldTask], now: Now) -> Op[None]:
    """Approve all open approvals of tasks that pass approvals through from now on."""
    for task in tasks:
        rows = yield Query("approval_open", (task.number,))
        if not rows:
            continue
        first = yield from next_ending(task)
        decided = [
            ("approved", 1, None, None, now.wall, ending, task.number, key)
            for ending, (key, *_) in enumerate(rows, first)
        ]
        yield ExecuteMany("approval_decide", decided)
        yield from record([
            decision(task.id, key, "approved", None, None, now, auto=True) for key, *_ in rows
        ])  # fmt: skip
        yield from make_waiting_ready([task], now)


def decision(
    task: str, key: str, verdict: str, by: str | None, reason: str | None, now: Now, auto: bool = False
) -> tuple[object, ...]:
    facts = {"approval": key, "verdict": verdict, "reason": reason, "auto": auto}
    return event(now.wall, "approval_decided", ("task", task), by, **facts)


def operator_or_error(by: str) -> Op[NotAnOperator | None]:
    """Return the error if the name of the operator is that of an agent."""
    # An agent's name may have its epoch appended: coord-001#7.
    rows = yield Query("agent_status", (by.partition("#")[0],))
    return NotAnOperator(by=by) if rows else None


def _decidable(request: DecideRequest, now: Now) -> Op[tuple[HeldTask, str] | AgentBusError]:
    """Return the task and the key of the approval to decide, or the error."""
    task = yield from known_task(request.task)
    if isinstance(task, AgentBusError):
        return task
    error = yield from operator_or_error(request.by)
    if error is not None:
        return error
    known = yield Query("approval_known", (task.number,))
    open_ones = [row for row in known if row[2] == "open"]
    if request.name is None:
        if len(open_ones) == 1:
            key, _, _, expires = open_ones[0]
            return (task, key) if expires is None or expires > now.wall else _closed(task, key, "expired")
        if open_ones:
            names = ", ".join(key for key, *_ in open_ones)
            advice = f"name one of them: {names}"
        else:
            advice = "it asks again when it comes to an approval"
        status = f"waiting for {len(open_ones)} approvals" if open_ones else "not waiting for an approval"
        return WrongState(what="task", name=task.id, status=status, action="decide", advice=advice)
    named = [row for row in known if request.name in row[:2]]
    if not named:
        return UnknownApproval(task=task.id, name=request.name)
    # Of several of a name the one that is open, else the last.
    key, _, status, expires = next((row for row in named if row[2] == "open"), named[-1])
    if status != "open":
        return _closed(task, key, status)
    return (task, key) if expires is None or expires > now.wall else _closed(task, key, "expired")


def _closed(task: HeldTask, key: str, status: str) -> WrongState:
    fixed = "a decision is final; to make the task ask again:"
    return WrongState(
        what=f"of task {task.id} the approval",
        name=key,
        status=status,
        action="decide it",
        advice=f"{fixed} bus.tasks.redo({task.id!r}, 'approval:{key}')",
        shell_advice=f"{fixed} agentbus task redo {task.id} approval:{key}",
    )


def get_answer(wanted: tuple[int, str], now: Now) -> Op[Answer | None]:
    """Return the status of an approval, by the number of its task and its key."""
    rows = yield Query("approval_answer", wanted)
    return Answer(*rows[0]) if rows else None
