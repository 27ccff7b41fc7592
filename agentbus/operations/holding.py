"""Tasks in somebody's hands: who may write for one, and what becomes of those whose holder is gone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from agentbus.clock import Now
from agentbus.codec import plain
from agentbus.errors import AgentBusError, TaskLost, UnknownTask
from agentbus.operations import Actor, Each, Op, Outcome, Query, Row, Wake
from agentbus.operations.events import event, record
from agentbus.operations.fencing import fence

READY = "tasks"
"""The channel that rings when a task may be taken."""


def worker_channel(agent: str) -> str:
    """Rings when there is news for a worker: about a task of its, or of what one waits for."""
    return f"worker/{agent}"


def ended_channel(task: str) -> str:
    """Rings those who wait for the end of a task. Processes listen to the part before the ``#``."""
    return f"{ENDED}#{task}"


ENDED = "tasks/ended"


class Hold(msgspec.Struct, frozen=True):
    """A task in a worker's hands: which one, and which hand-out of it."""

    number: int
    id: str
    lease: int


class HeldRequest(msgspec.Struct, frozen=True):
    """What a worker writes for a task of its."""

    actor: Actor
    hold: Hold


H = TypeVar("H", bound=HeldRequest)
T = TypeVar("T")


class HeldTask(msgspec.Struct, frozen=True):
    """A task as those operations see it that change it: all but what may be large."""

    number: int
    id: str
    workflow: str
    name: str
    session: str | None
    parent: str | None
    status: str
    phase: str | None
    auto: int
    halting: int
    generation: int
    holder: str | None
    lease: int
    restarts: int
    backoff: int
    restarted: int
    error: str | None


def known_task(id: str) -> Op[HeldTask | UnknownTask]:
    """A task as it stands, whoever holds it."""
    rows = yield Query("task_standing", ([id],))
    return HeldTask(*rows[0]) if rows else UnknownTask(task=id)


def held(requests: Sequence[HeldRequest]) -> Op[tuple[dict[int, AgentBusError], dict[int, HeldTask]]]:
    """The requests that may not write (by position, with the error), and the tasks they speak of."""
    refused = yield from fence(request.actor for request in requests)
    rows = yield Query("task_held", (list({request.hold.number for request in requests}),))
    tasks = {row[0]: HeldTask(*row) for row in rows}
    errors: dict[int, AgentBusError] = {}
    for index, request in enumerate(requests):
        error = refused.get(request.actor) or _lost(request, tasks.get(request.hold.number))
        if error is not None:
            errors[index] = error
    return errors, tasks


def for_holders(requests: Sequence[H], answer: Callable[[H, HeldTask, Now], Op[T]], now: Now) -> Op[list[Outcome[T]]]:
    """Answer those requests, one by one, whose task is in the hands of whoever asks."""
    errors, tasks = yield from held(requests)
    outcomes: list[Outcome[T]] = []
    for index, request in enumerate(requests):
        if index in errors:
            outcomes.append(errors[index])
        else:
            outcomes.append((yield from answer(request, tasks[request.hold.number], now)))
    return outcomes


def _lost(request: HeldRequest, task: HeldTask | None) -> TaskLost | None:
    hold = request.hold
    if (
        task is not None
        and task.status == "running"
        and task.lease == hold.lease
        and task.holder == request.actor.agent
    ):
        return None
    if task is None:
        reason = "it was deleted"
    elif task.status == "running":
        reason = f"it is in the hands of {task.holder} (hand-out {task.lease})"
    else:
        reason = f"it is {task.status}"
    return TaskLost(task=hold.id, agent=request.actor.agent, lease=hold.lease, reason=reason)


def free(tasks: Sequence[HeldTask], reason: str, now: Now) -> Op[None]:
    """Tasks whose holder is gone: another worker may take them; one that was to be halted is. What only a
    person can say of one, what became of a step, is named, though no worker may come to ask."""
    if not tasks:
        return
    yield Each("step_interrupt", [(task.number,) for task in tasks])
    for task in tasks:
        facts: dict[str, Any] = {"holder": task.holder, "reason": reason}
        rows = [] if task.halting else (yield Query("task_awaited", (task.number,)))
        waits = unsettled(rows)
        if waits:
            yield Query("task_let_go", ("pending", 0, plain(waits), now.wall, task.number))
            yield from record(task_events([task], "task_pending", None, now, waits=waits, **facts))
        else:
            yield Query("task_free", (now.wall, task.number))
            yield from record(task_events([task], f"task_{after(task)}", None, now, **facts))
    yield Wake([READY for task in tasks if not task.halting])
    yield Wake([worker_channel(task.holder) for task in tasks if task.holder is not None])


def unsettled(awaited: Sequence[Row]) -> list[str]:
    """Of what a task may wait for, the steps of which nobody knows what became."""
    return [f"step:{key}" for kind, key in awaited if kind == "step"]


def after(task: HeldTask) -> str:
    """What a task is when nobody holds it any more."""
    return "halted" if task.halting else "pending"


def free_held_by(agents: Sequence[str], reason: str, now: Now) -> Op[None]:
    """The tasks of agents whose life is over."""
    rows = yield Query("task_held_by", (list(agents),))
    yield from free([HeldTask(*row) for row in rows], reason, now)


def free_all(reason: str, now: Now) -> Op[None]:
    """Every task that somebody holds: leases count in awake time, which began anew."""
    rows = yield Query("task_running")
    yield from free([HeldTask(*row) for row in rows], reason, now)


def tell_parents(tasks: Sequence[HeldTask], now: Now) -> Op[None]:
    """Sub-tasks have ended: whoever waits for them goes on."""
    yield Wake([ended_channel(task.id) for task in tasks])
    parents = [task.parent for task in tasks if task.parent is not None]
    if parents:
        rows = yield Query("task_standing", (parents,))
        yield from go_on([HeldTask(*row) for row in rows], now)


def go_on(tasks: Sequence[HeldTask], now: Now) -> Op[None]:
    """Something that these tasks may wait for is there."""
    waiting = [task for task in tasks if task.status == "waiting"]
    if waiting:
        yield Each("task_ready_now", [(now.wall, task.number) for task in waiting])
        yield from record([
            event(now.wall, "task_pending", ("task", task.id), None, before="waiting") for task in waiting
        ])  # fmt: skip
    yield Wake([READY] * len(waiting))
    yield Wake([worker_channel(task.holder) for task in tasks if task.holder is not None])


def task_events(tasks: Sequence[HeldTask], kind: str, actor: str | None, now: Now, **facts: Any) -> list[Row]:
    return [event(now.wall, kind, ("task", task.id), actor, before=task.status, **facts) for task in tasks]
