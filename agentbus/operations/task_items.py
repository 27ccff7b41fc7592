"""Work items: tasks without code, which agents take, and finish, fail or release.

An item is leased to its agent as a message is: each call of a visiting agent extends the lease. When the lease expires
or the agent ends, the item is ready again, and the former holder is fenced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from agentbus.core.clock import Now
from agentbus.errors import AgentBusError, NotAnItem, TaskLost, UnknownTask, WrongState
from agentbus.operations.common import fence
from agentbus.operations.events import event, record
from agentbus.operations.protocol import (
    Actor,
    CannotBatch,
    ExecuteMany,
    Op,
    Outcome,
    Query,
    Row,
    operation,
    run_one,
    single_operation,
)
from agentbus.operations.task_lookups import existing_task, task_records
from agentbus.operations.task_ownership import HeldTask, Hold, known_task, notify_parents, task_events
from agentbus.operations.tasks import (
    FailRequest,
    ReleaseRequest,
    fail_task,
    maintain_tasks,
    release_task,
)

if TYPE_CHECKING:
    from agentbus.records import TaskRecord

_TAKE_ADVICE = {
    "pending": "it is delayed; bus.tasks.resume({task!r}) makes it ready now",
    "running": "another agent holds it: {holder}",
    "waiting": "it waits for its dependencies: bus.tasks.get({task!r}).after",
    "halted": "bus.tasks.continue_({task!r}) makes it ready",
    "completed": "it is done; bus.tasks.restart({task!r}) makes it ready again",
    "failed": "bus.tasks.resume({task!r}) makes it ready again",
    "stopped": "bus.tasks.resume({task!r}) makes it ready again",
}
_TAKE_SHELL_ADVICE = {
    "pending": "it is delayed; agentbus task resume {task} makes it ready now",
    "running": "another agent holds it: {holder}",
    "waiting": "it waits for its dependencies: agentbus task show {task}",
    "halted": "agentbus task continue {task} makes it ready",
    "completed": "it is done; agentbus task restart {task} makes it ready again",
    "failed": "agentbus task resume {task} makes it ready again",
    "stopped": "agentbus task resume {task} makes it ready again",
}


class TakeRequest(msgspec.Struct, frozen=True):
    """Take a work item for ``duration`` milliseconds: the named one, or the most urgent one, of one workflow or any."""

    actor: Actor
    duration: int
    task: str | None = None
    workflow: str | None = None

    @property
    def row_estimate(self) -> int:
        return 4


class Taken(msgspec.Struct, frozen=True):
    """The item that was taken, and the number of its lease; ``known`` if the agent held it before. Without one,
    ``next_wall`` is the time at which the next task is due, ``next_awake`` that at which the next lease lapses."""

    task: TaskRecord | None = None
    lease: int = 0
    next_wall: int | None = None
    next_awake: int | None = None
    known: bool = False


class ItemRequest(msgspec.Struct, frozen=True):
    """A write by the holder of an item; None stands for its present lease."""

    actor: Actor
    task: str
    lease: int | None = None


class FinishItemRequest(ItemRequest, frozen=True):
    """Finish an item with a result: JSON and its checksum."""

    result: tuple[str, int] = ("null", 0)

    @property
    def data_size(self) -> int:
        return len(self.result[0])


class FailItemRequest(ItemRequest, frozen=True):
    """Fail an item with a problem, as JSON, and its summary."""

    problem: str = "{}"
    summary: str = ""


class ReleaseItemRequest(ItemRequest, frozen=True):
    """Release an item, with a note for the agent that takes it next."""

    note: str | None = None


class ItemProgressRequest(ItemRequest, frozen=True):
    """Report the progress of an item; None leaves a value."""

    percent: int | None = None
    note: str | None = None


class ExtendItemRequest(ItemRequest, frozen=True):
    """Extend the lease of an item to ``duration`` milliseconds from now."""

    duration: int = 0


@operation(durable=False, run_last=True)
def take_item(requests: Sequence[TakeRequest], now: Now) -> Op[list[Outcome[Taken]]]:
    """Lease work items to agents. Due items are made ready and lapsed ones released first, so that no monitor is
    needed. An agent that takes an item which it holds gets it with the same lease, extended."""
    refused = yield from fence(request.actor for request in requests)
    horizon = yield from maintain_tasks(now)
    outcomes: list[Outcome[Taken]] = [Taken(None, 0, *horizon)] * len(requests)
    alike: dict[str | None, list[int]] = {}
    for index, request in enumerate(requests):
        error = refused.get(request.actor)
        if error is not None:
            outcomes[index] = error
        elif request.task is not None:
            outcomes[index] = yield from _take_named(request.task, request, now)
        else:
            alike.setdefault(request.workflow, []).append(index)
    for workflow, indexes in alike.items():
        rows = yield Query("item_ready", (workflow, len(indexes)))
        taken = yield from _take([requests[index] for index in indexes[: len(rows)]], rows, now)
        for index, one in zip(indexes, taken, strict=False):
            outcomes[index] = one
    return outcomes


def _take(requests: Sequence[TakeRequest], rows: Sequence[Row], now: Now) -> Op[list[Taken]]:
    """Lease one item to each."""
    found = yield from task_records([row[1:] for row in rows])
    leases = [(row[1], task.id, row[0] + 1) for row, task in zip(rows, found, strict=True)]
    yield from _lease(requests, leases, now)
    return [
        Taken(
            msgspec.structs.replace(
                task, status="running", holder=request.actor.agent, waits=[], due=None, error=None,
                started=now.wall if task.started is None else task.started, updated=now.wall,
            ),
            lease,
        )
        for request, task, (_, _, lease) in zip(requests, found, leases, strict=True)
    ]  # fmt: skip


def _take_named(id: str, request: TakeRequest, now: Now) -> Op[Outcome[Taken]]:
    task = yield from _item(id)
    if isinstance(task, AgentBusError):
        return task
    if task.status == "running" and task.holder == request.actor.agent:
        yield ExecuteMany("task_renew", [(now.awake + request.duration, task.number)])
        return Taken((yield from existing_task(id, now)), task.lease, known=True)
    ((due,),) = yield Query("item_due", (task.number,))
    if task.status != "pending" or due > 0:
        return _cannot_take(task)
    yield from _lease([request], [(task.number, id, task.lease + 1)], now)
    return Taken((yield from existing_task(id, now)), task.lease + 1)


def _lease(requests: Sequence[TakeRequest], leases: Sequence[tuple[int, str, int]], now: Now) -> Op[None]:
    """Lease items, by number and id, under these lease numbers."""
    pairs = list(zip(requests, leases, strict=True))
    yield ExecuteMany(
        "task_lease",
        [(request.actor.agent, now.awake + request.duration, now.wall, number) for request, (number, *_) in pairs],
    )
    yield from record([
        event(now.wall, "task_running", ("task", id), request.actor.agent, before="pending", lease=lease)
        for request, (_, id, lease) in pairs
    ])  # fmt: skip


def _cannot_take(task: HeldTask) -> WrongState:
    facts = {"task": task.id, "holder": task.holder}
    return WrongState(
        what="task", name=task.id, status=task.status, action="take it", holder=task.holder,
        advice=_TAKE_ADVICE[task.status].format_map(facts),
        shell_advice=_TAKE_SHELL_ADVICE[task.status].format_map(facts),
    )  # fmt: skip


def _item(id: str) -> Op[HeldTask | AgentBusError]:
    """Return a work item."""
    task = yield from known_task(id)
    if isinstance(task, HeldTask) and not task.manual:
        return NotAnItem(task=id, workflow=task.workflow)
    return task


def _held(requests: Sequence[ItemRequest]) -> Op[list[HeldTask | AgentBusError]]:
    """Return, for each request, the item if its caller holds it, or the error."""
    refused = yield from fence(request.actor for request in requests)
    rows = yield Query("task_by_id", (list({request.task for request in requests}),))
    tasks = {task.id: task for task in (HeldTask(*row) for row in rows)}
    found: list[HeldTask | AgentBusError] = []
    for request in requests:
        found.append(refused.get(request.actor) or (yield from _checked(request, tasks.get(request.task))))
    return found


def _checked(request: ItemRequest, task: HeldTask | None) -> Op[HeldTask | AgentBusError]:
    if task is None:
        return UnknownTask(task=request.task)
    if not task.manual:
        return NotAnItem(task=task.id, workflow=task.workflow)
    if (
        task.status == "running"
        and task.holder == request.actor.agent
        and (request.lease is None or request.lease == task.lease)
    ):
        return task
    lease = task.lease if request.lease is None else request.lease
    reason = yield from _why_not_held(request, task)
    return TaskLost(task=task.id, agent=request.actor.agent, lease=lease, reason=reason)


def _why_not_held(request: ItemRequest, task: HeldTask) -> Op[str]:
    """Return why the caller may not settle an item: who holds or finished it, and whether the caller ever took it."""
    agent = request.actor.agent
    if task.status == "running":
        reason = f"it is held by {task.holder} (lease {task.lease})"
    else:
        reason = f"it is {task.status}"
        finishers = (yield Query("item_finisher", (task.id,))) if task.status == "completed" else []
        for (finisher,) in finishers:
            reason += f", finished by {finisher} (lease {task.lease})"
            if isinstance(request, FinishItemRequest) and finisher == agent and request.lease in {None, task.lease}:
                reason += " with another result"
    taken = yield Query("item_takers", (task.id, agent))
    return reason if taken else f"{agent} never took it; {reason}"


def _hold(task: HeldTask) -> Hold:
    return Hold(task.number, task.id, task.lease)


@operation(durable=True, stores_data=True)
def finish_item(requests: Sequence[FinishItemRequest], now: Now) -> Op[list[Outcome[bool]]]:
    """Finish items. The outcome is False for one that was finished before with the same lease and result: the caller
    repeats a call."""
    if len({request.task for request in requests}) < len(requests):
        raise CannotBatch
    found = yield from _held(requests)
    outcomes: list[Outcome[bool]] = []
    done: list[tuple[FinishItemRequest, HeldTask]] = []
    for request, task in zip(requests, found, strict=True):
        if isinstance(task, HeldTask):
            done.append((request, task))
            outcomes.append(True)
        else:
            repeated = isinstance(task, TaskLost) and (yield from _was_finished(request))
            outcomes.append(False if repeated else task)
    # An item has no steps.
    yield ExecuteMany("task_complete", [(*reversed(request.result), now.wall, task.number) for request, task in done])
    yield from record([
        row
        for request, task in done
        for row in task_events([task], "task_completed", request.actor.agent, now)
    ])  # fmt: skip
    yield from notify_parents([task for _, task in done], now)
    return outcomes


def _was_finished(request: FinishItemRequest) -> Op[bool]:
    task = yield from known_task(request.task)
    if not isinstance(task, HeldTask) or task.status != "completed" or request.lease not in {None, task.lease}:
        return False
    ((checksum, text),) = yield Query("item_result", (task.number,))
    return (text, checksum) == request.result


@single_operation(durable=True)
def fail_item(request: FailItemRequest, now: Now) -> Op[Outcome[str]]:
    """Fail items. The outcome is the status: one with restarts left is pending again, after a delay."""
    (task,) = yield from _held([request])
    if isinstance(task, AgentBusError):
        return task
    failure = FailRequest(request.actor, _hold(task), request.problem, request.summary)
    return (yield from run_one(fail_task, failure, now))


@single_operation(durable=True)
def release_item(request: ReleaseItemRequest, now: Now) -> Op[Outcome[str]]:
    """Release items, which others may take then. This counts as no loss. The outcome is the status: pending, or halted
    if that was requested."""
    (task,) = yield from _held([request])
    if isinstance(task, AgentBusError):
        return task
    if request.note is not None:
        yield Query("task_note", (request.note, now.wall, task.number))
    return (yield from run_one(release_task, ReleaseRequest(request.actor, _hold(task)), now))


@single_operation(durable=False)
def progress_item(request: ItemProgressRequest, now: Now) -> Op[Outcome[None]]:
    """Record the progress of items, and notes for those who take them next."""
    (task,) = yield from _held([request])
    if isinstance(task, AgentBusError):
        return task
    if request.percent is not None:
        yield Query("task_progress", (request.percent, request.note, now.wall, task.number))
    elif request.note is not None:
        yield Query("task_note", (request.note, now.wall, task.number))
    return None


@single_operation(durable=False)
def extend_item(request: ExtendItemRequest, now: Now) -> Op[Outcome[None]]:
    """Extend the leases of items."""
    (task,) = yield from _held([request])
    if isinstance(task, AgentBusError):
        return task
    yield ExecuteMany("task_renew", [(now.awake + request.duration, task.number)])
    return None


def held_items(agent: str, now: Now) -> Op[list[tuple[TaskRecord, int]]]:
    """Return the items that an agent holds, with the numbers of their leases."""
    found: list[tuple[TaskRecord, int]] = []
    for id, lease in (yield Query("item_held", (agent,))):
        found.append(((yield from existing_task(id, now)), lease))
    return found
