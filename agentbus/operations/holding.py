"""Tasks that workers hold: who may write for one, what becomes of those whose holder is gone, and redos, which take a
task from its worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from agentbus.clock import Now
from agentbus.codec import plain
from agentbus.errors import AgentBusError, TaskLost, UnknownTask, WorkersLost
from agentbus.limits import MAX_ID, TASK_ENDED
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
    losses: int
    max_losses: int
    redo: str | None

    @property
    def paused(self) -> bool:
        """Return whether no step of it may begin: it is to be halted, or a redo waits."""
        return bool(self.halting) or self.redo is not None

    @property
    def redos(self) -> list[Redo]:
        """The redos that wait until the steps beside them have ended."""
        return [] if self.redo is None else msgspec.json.decode(self.redo, type=list[Redo])


class Redo(msgspec.Struct, frozen=True):
    """A redo of a step or approval: ``step`` as the caller named it, ``kind`` and ``key`` as it is recorded."""

    step: str
    kind: str
    key: str
    note: str | None = None
    by: str | None = None
    reason: str | None = None

    @property
    def facts(self) -> dict[str, Any]:
        found = {"step": self.step, "reason": self.reason, "note": self.note}
        return {name: value for name, value in found.items() if value is not None}


class StepPosition(msgspec.Struct, frozen=True):
    """A step or approval that a task came to. ``ending``: its number in the order in which those end; ``seen``: the
    last of these numbers that the workflow knew of when it came to this one."""

    kind: str
    key: str
    position: int
    status: str
    ending: int | None
    seen: int | None
    child: str | None

    @property
    def seen_as(self) -> int | None:
        """The number that what depends on this one has seen; None if it is not known: then all that came later does."""
        # Nothing depends on what has not ended.
        return MAX_ID if self.ending is None and self.status in _OPEN else self.ending

    def repeats(self, other: StepPosition) -> bool:
        """Return whether a redo of this one repeats another: itself, and all that has seen its ending."""
        number = self.seen_as
        if number is None or other.seen is None:
            return other.position >= self.position
        return other.position == self.position or other.seen >= number


_OPEN = frozenset({"running", "retrying", "interrupted", "unknown", "open"})


def known_task(id: str) -> Op[HeldTask | UnknownTask]:
    """A task as it stands, whoever holds it."""
    rows = yield Query("task_standing", ([id],))
    return HeldTask(*rows[0]) if rows else UnknownTask(task=id)


def next_ending(task: HeldTask) -> Op[int]:
    """Return the number of the next step or approval of a task that ends."""
    ((*_, ending),) = yield Query("step_last", (task.number,))
    return int(ending) + 1


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


def free(tasks: Sequence[HeldTask], reason: str, now: Now, *, lost: bool = True) -> Op[list[HeldTask]]:
    """Release tasks whose holder is gone: another worker may take them; one that was to be halted is. What only a
    person can say of one, what became of a step, is named, though no worker may come to ask.

    ``lost``: the worker died or lost its lease. A task that has lost too many workers without progress fails. Returns
    those that failed.
    """
    failed: list[HeldTask] = []
    if not tasks:
        return failed
    for held_task in tasks:
        task = yield from apply_redos(held_task, now)
        facts: dict[str, Any] = {"holder": task.holder, "reason": reason}
        if lost:
            yield Each("task_lost", [(task.number,)])
            facts["losses"] = task.losses + 1
        if lost and not task.halting and task.losses + 1 >= task.max_losses:
            yield from _fail_lost(task, facts, now)
            failed.append(task)
        else:
            yield Each("step_interrupt", [(task.number,)])
            yield from _release(task, facts, now)
    yield Wake([READY for task in tasks if not task.halting])
    yield Wake([worker_channel(task.holder) for task in tasks if task.holder is not None])
    yield from tell_parents(failed, now)
    return failed


def _release(task: HeldTask, facts: dict[str, Any], now: Now) -> Op[None]:
    rows = [] if task.halting else (yield Query("task_awaited", (task.number,)))
    waits = unsettled(rows)
    if waits:
        yield Query("task_let_go", ("pending", 0, plain(waits), now.wall, task.number))
        yield from record(task_events([task], "task_pending", None, now, waits=waits, **facts))
    else:
        yield Query("task_free", (now.wall, task.number))
        yield from record(task_events([task], f"task_{after(task)}", None, now, **facts))


def _fail_lost(task: HeldTask, facts: dict[str, Any], now: Now) -> Op[None]:
    """Fail a task that takes its workers down. The steps that ran are interrupted: a resume runs them again."""
    # Imported only here: what sends messages needs no tasks.
    from agentbus.records import TaskProblem

    rows = yield Query("step_running", (task.number,))
    at = [key for (key,) in rows]
    yield Each("step_interrupt", [(task.number,)])
    where = f"at step {', '.join(at)}" if at else "between two steps"
    losses = task.losses + 1
    if losses == 1:
        lost = "1 worker died or lost its lease"
    else:
        lost, where = f"{losses} workers in a row died or lost their lease", f"the last {where}"
    error = WorkersLost(task=task.id, losses=losses, lost=lost, where=where, steps=at, reason=facts["reason"])
    problem = TaskProblem(type(error).__name__, str(error.args[0]), [], at[0] if at else None, at[1:])
    yield Query("task_fail", (plain(problem), now.wall, task.number))
    yield from record(task_events([task], "task_failed", None, now, error=str(error.args[0]), **facts))


def unsettled(awaited: Sequence[Row]) -> list[str]:
    """Of what a task may wait for, the steps of which nobody knows what became."""
    return [f"step:{key}" for kind, key in awaited if kind == "step"]


def after(task: HeldTask) -> str:
    """What a task is when nobody holds it any more."""
    return "halted" if task.halting else "pending"


def free_held_by(agents: Sequence[str], reason: str, now: Now, *, lost: bool = True) -> Op[None]:
    """Release the tasks of agents whose life is over; ``lost``: they died, or were taken over."""
    rows = (yield Query("task_held_by", (list(agents),))) if agents else []
    yield from free([HeldTask(*row) for row in rows], reason, now, lost=lost)


def free_all(reason: str, now: Now) -> Op[None]:
    """Release every task that is held: leases count in awake time, which starts again. No worker is counted as lost: a
    machine may be restarted any number of times during a long step."""
    rows = yield Query("task_running")
    yield from free([HeldTask(*row) for row in rows], reason, now, lost=False)


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


# Redos


def places(task: HeldTask) -> Op[list[StepPosition]]:
    """All that a task came to and that counts, in its order."""
    rows = yield Query("step_places", (task.number,))
    return [StepPosition(*row) for row in rows]


def running_beside(redos: Sequence[Redo], known: Sequence[StepPosition]) -> list[str]:
    """The steps that are being executed and that none of these redos repeats."""
    wanted = {(redo.kind, redo.key) for redo in redos}
    starts = [place for place in known if (place.kind, place.key) in wanted]
    running = [place for place in known if (place.kind, place.status) == ("step", "running")]
    return [place.key for place in running if not any(start.repeats(place) for start in starts)]


def redo_when_ready(task: HeldTask, now: Now) -> Op[None]:
    """Carry out the redos that wait, if no step that they keep is being executed any more."""
    if task.redo is not None and not running_beside(task.redos, (yield from places(task))):
        yield from redo_now(task, task.redos, now)


def redo_now(task: HeldTask, redos: Sequence[Redo], now: Now) -> Op[None]:
    """Repeat steps, with all that depends on them. The worker that holds the task loses it."""
    yield from apply_redos(task, now, redos)
    yield Each("step_interrupt", [(task.number,)])
    yield Query("task_again", (now.wall, task.number))
    yield from ring(task)
    yield Wake([] if task.halting else [READY])


def apply_redos(task: HeldTask, now: Now, redos: Sequence[Redo] | None = None) -> Op[HeldTask]:
    """Void what redos repeat, by default those that wait; the status of the task stays. Returns the task as it is
    then."""
    redos = task.redos if redos is None else redos
    if not redos:
        return task
    for redo in redos:
        known = yield from places(task)
        start = next((one for one in known if (one.kind, one.key) == (redo.kind, redo.key)), None)
        # None: another of these redos has voided it.
        if start is not None:
            yield from void_steps(task, [one for one in known if start.repeats(one)], redo.by, now)
        yield from record(task_events([task], "task_redone", redo.by, now, **redo.facts))
    notes = {redo.key: redo.note for redo in redos if redo.note is not None}
    return (yield from voided(task, notes, now))


def void_steps(task: HeldTask, void: Sequence[StepPosition], by: str | None, now: Now) -> Op[None]:
    """Void steps and approvals that a task came to; they are kept as history. Sub-tasks among them are stopped."""
    generation = task.generation + 1
    for child in [one.child for one in void if one.child is not None]:
        found = yield Query("task_standing", ([child],))
        for row in found:
            members = yield from family(HeldTask(*row))
            stopped = yield from stop_all(members, by, now, reason=f"{task.id} is done again")
            yield Wake([ended_channel(one.id) for one in stopped])
    steps = [one for one in void if one.kind != "approval"]
    yield Each("step_supersede", [(generation, now.wall, task.number, one.kind, one.key) for one in steps])
    approvals = [one for one in void if one.kind == "approval"]
    yield Each("approval_supersede", [(generation, task.number, one.key) for one in approvals])


def voided(task: HeldTask, notes: dict[str, str], now: Now) -> Op[HeldTask]:
    """Note that parts of a task were voided: its next steps belong to another generation."""
    yield Query("task_redo_apply", (plain(notes), now.wall, task.number))
    return msgspec.structs.replace(task, generation=task.generation + 1, losses=0, redo=None)


def stop_all(tasks: Sequence[HeldTask], by: str | None, now: Now, **facts: Any) -> Op[list[HeldTask]]:
    """Stop those of these tasks that have not ended; returns them. A redo that waits is carried out by their resume."""
    going = [task for task in tasks if task.status not in TASK_ENDED]
    for task in going:
        yield from apply_redos(task, now)
    yield Each("step_cancel", [(now.wall, task.number) for task in going])
    yield Each("task_stop", [(now.wall, task.number) for task in going])
    yield from record(task_events(going, "task_stopped", by, now, **facts))
    for task in going:
        yield from ring(task)
    return going


def family(task: HeldTask) -> Op[list[HeldTask]]:
    """A task with all sub-tasks of it that have not ended."""
    rows = yield Query("task_descendants", (task.id,))
    return [task, *(HeldTask(*row) for row in rows)]


def ring(task: HeldTask) -> Op[None]:
    """Wake the worker that holds a task."""
    yield Wake([] if task.holder is None else [worker_channel(task.holder)])
