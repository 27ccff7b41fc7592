"""Ownership of tasks: write permission of the holder, release of tasks whose holder is gone, and redos, which take a
task from its worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import plain
from agentbus.core.validation import MAX_ID, TASK_ENDED
from agentbus.errors import AgentBusError, TaskLost, UnknownTask, WorkersLost
from agentbus.operations.common import fence
from agentbus.operations.events import event, record
from agentbus.operations.protocol import Actor, ExecuteMany, Op, Outcome, Query, Row, Wake
from agentbus.operations.task_dependencies import settle_dependents

READY = "tasks"
"""The channel that wakes workers when a task is ready."""
ITEMS = "tasks/items"
"""The channel that wakes agents when a work item is ready."""
ENDED = "tasks/ended"
T = TypeVar("T")
_OPEN = frozenset({"running", "retrying", "interrupted", "unknown", "open", "waiting"})
_RECEIVING = frozenset({"signal", "receive"})


def worker_channel(agent: str) -> str:
    """Return the channel that wakes a worker about a task it holds, or what it waits for."""
    return f"worker/{agent}"


def ready_channel(manual: int | bool) -> str:
    """Return the channel that wakes workers, or agents that take work items."""
    return ITEMS if manual else READY


def ended_channel(task: str) -> str:
    """Return the channel that wakes callers that wait for the end of a task. Processes listen to the part before the
    ``#``."""
    return f"{ENDED}#{task}"


class Hold(msgspec.Struct, frozen=True):
    """A task held by a worker, and the number of the lease."""

    number: int
    id: str
    lease: int


class HeldRequest(msgspec.Struct, frozen=True):
    """A write by the holder of a task."""

    actor: Actor
    hold: Hold


H = TypeVar("H", bound=HeldRequest)


class HeldTask(msgspec.Struct, frozen=True):
    """The columns of a task that operations need, without those that may be large."""

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
    manual: int
    on_failed: str | None

    @property
    def ready_channel(self) -> str:
        """Return the channel that wakes those who may take it."""
        return ready_channel(self.manual)

    @property
    def paused(self) -> bool:
        """Return whether no step of it may start: it is to be halted, or a redo waits."""
        return bool(self.halting) or self.redo is not None

    @property
    def redos(self) -> list[Redo]:
        """Return the redos that wait for concurrent steps to end."""
        return [] if self.redo is None else msgspec.json.decode(self.redo, type=list[Redo])


class Redo(msgspec.Struct, frozen=True):
    """A redo of a step or approval: ``step`` as the caller named it, ``kind`` and ``key`` as recorded."""

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
    """A step or approval of a task. ``ending``: its number in the order of endings; ``seen``: the last ending that the
    workflow had seen when it reached this one."""

    kind: str
    key: str
    position: int
    status: str
    ending: int | None
    seen: int | None
    child: str | None

    @property
    def seen_as(self) -> int | None:
        """Return the ending that dependents of this one have seen; None if unknown: then everything later depends on
        it."""
        # Nothing depends on a step that has not ended.
        return MAX_ID if self.ending is None and self.status in _OPEN else self.ending

    def repeats(self, other: StepPosition) -> bool:
        """Return whether a redo of this one repeats ``other``: itself, and everything that has seen its ending."""
        number = self.seen_as
        if number is None or other.seen is None:
            return other.position >= self.position
        return other.position == self.position or other.seen >= number


def known_task(id: str) -> Op[HeldTask | UnknownTask]:
    """Return a task, whichever worker holds it."""
    rows = yield Query("task_by_id", ([id],))
    return HeldTask(*rows[0]) if rows else UnknownTask(task=id)


def next_ending(task: HeldTask) -> Op[int]:
    """Return the number of the next step or approval of a task that ends."""
    ((*_, ending),) = yield Query("step_last", (task.number,))
    return int(ending) + 1


def check_holders(requests: Sequence[HeldRequest]) -> Op[tuple[dict[int, AgentBusError], dict[int, HeldTask]]]:
    """Return the errors of requests that may not write, by position, and the tasks of all requests."""
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
    """Answer, one by one, the requests of the holders of their tasks."""
    errors, tasks = yield from check_holders(requests)
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
        reason = f"it is held by {task.holder} (lease {task.lease})"
    else:
        reason = f"it is {task.status}"
    return TaskLost(task=hold.id, agent=request.actor.agent, lease=hold.lease, reason=reason)


def release_tasks(tasks: Sequence[HeldTask], reason: str, now: Now, *, lost: bool = True) -> Op[list[HeldTask]]:
    """Release tasks whose holder is gone: another worker may take them; those to be halted are. Steps that only an
    operator can settle are reported.

    ``lost``: the worker died or lost its lease. A task that has lost too many workers without progress fails. Return
    those that failed.
    """
    failed: list[HeldTask] = []
    if not tasks:
        return failed
    for held_task in tasks:
        task = yield from apply_redos(held_task, now)
        facts: dict[str, Any] = {"holder": task.holder, "reason": reason}
        if lost:
            yield ExecuteMany("task_lost", [(task.number,)])
            facts["losses"] = task.losses + 1
        if lost and not task.halting and task.losses + 1 >= task.max_losses:
            yield from _fail_lost(task, facts, now)
            failed.append(task)
        else:
            yield ExecuteMany("step_interrupt", [(task.number,)])
            yield from _release_task(task, facts, now)
    yield Wake([task.ready_channel for task in tasks if not task.halting])
    yield Wake([worker_channel(task.holder) for task in tasks if task.holder is not None])
    yield from notify_parents(failed, now)
    return failed


def _release_task(task: HeldTask, facts: dict[str, Any], now: Now) -> Op[None]:
    rows = [] if task.halting else (yield Query("task_awaited", (task.number,)))
    waits = unsettled_waits(rows)
    if waits:
        yield Query("task_let_go", ("pending", 0, plain(waits), now.wall, task.number))
        yield from record(task_events([task], "task_pending", None, now, waits=waits, **facts))
    else:
        yield Query("task_free", (now.wall, task.number))
        yield from record(task_events([task], f"task_{released_status(task)}", None, now, **facts))


def _fail_lost(task: HeldTask, facts: dict[str, Any], now: Now) -> Op[None]:
    """Fail a task that repeatedly lost its workers. Its running steps are interrupted: a resume runs them again."""
    # Imported only here: senders of messages need no tasks.
    from agentbus.records import TaskProblem

    rows = yield Query("step_running", (task.number,))
    at = [key for (key,) in rows]
    yield ExecuteMany("step_interrupt", [(task.number,)])
    where = f"at step {', '.join(at)}" if at else f"by {task.holder}" if task.manual else "between two steps"
    losses = task.losses + 1
    if losses == 1:
        lost = "1 worker died or lost its lease"
    else:
        lost, where = f"{losses} workers in a row died or lost their lease", f"the last {where}"
    error = WorkersLost(task=task.id, losses=losses, lost=lost, where=where, steps=at, reason=facts["reason"])
    problem = TaskProblem(type(error).__name__, str(error.args[0]), [], at[0] if at else None, at[1:])
    yield Query("task_fail", (plain(problem), now.wall, task.number))
    yield from record(task_events([task], "task_failed", None, now, error=str(error.args[0]), **facts))


def unsettled_waits(awaited: Sequence[Row]) -> list[str]:
    """Return, of the things a task may wait for, the steps with an unknown outcome."""
    return [f"step:{key}" for kind, key in awaited if kind == "step"]


def released_status(task: HeldTask) -> str:
    """Return the status of a task once it is released."""
    return "halted" if task.halting else "pending"


def release_tasks_of(agents: Sequence[str], reason: str, now: Now, *, lost: bool = True) -> Op[None]:
    """Release the tasks of ended agents; ``lost``: they died, or were taken over."""
    rows = (yield Query("task_held_by", (list(agents),))) if agents else []
    yield from release_tasks([HeldTask(*row) for row in rows], reason, now, lost=lost)


def release_all_tasks(reason: str, now: Now) -> Op[None]:
    """Release every held task: leases are in awake time, which restarts. This counts no losses: a machine may be
    rebooted any number of times during a long step."""
    rows = yield Query("task_running")
    yield from release_tasks([HeldTask(*row) for row in rows], reason, now, lost=False)


def notify_parents(tasks: Sequence[HeldTask], now: Now) -> Op[None]:
    """Wake the parents, the dependents, and callers that wait, of tasks that have ended."""
    if not tasks:
        return
    yield Wake([ended_channel(task.id) for task in tasks])
    yield from _wake_parents(tasks, now)
    yield from notify_dependents([task.id for task in tasks], now)


def _wake_parents(tasks: Sequence[HeldTask], now: Now) -> Op[None]:
    parents = [task.parent for task in tasks if task.parent is not None]
    if parents:
        rows = yield Query("task_by_id", (parents,))
        yield from make_waiting_ready([HeldTask(*row) for row in rows], now)


def notify_dependents(ended: Sequence[str], now: Now) -> Op[None]:
    """Make those tasks ready that waited only for these, and stop those whose policy demands it."""
    settled = yield from settle_dependents(ended, now)
    yield Wake([ready_channel(manual) for _, manual in settled.ready])
    if settled.stopped:
        yield Wake([ended_channel(id) for id in settled.stopped])
        rows = yield Query("task_by_id", (list(settled.stopped),))
        yield from _wake_parents([HeldTask(*row) for row in rows], now)


def make_waiting_ready(tasks: Sequence[HeldTask], now: Now) -> Op[None]:
    """Make those tasks ready that wait, and wake the holders of the others."""
    waiting = [task for task in tasks if task.status == "waiting"]
    if waiting:
        yield ExecuteMany("task_ready_now", [(now.wall, task.number) for task in waiting])
        yield from record([
            event(now.wall, "task_pending", ("task", task.id), None, before="waiting") for task in waiting
        ])  # fmt: skip
    yield Wake([task.ready_channel for task in waiting])
    yield Wake([worker_channel(task.holder) for task in tasks if task.holder is not None])


def task_events(tasks: Sequence[HeldTask], kind: str, actor: str | None, now: Now, **facts: Any) -> list[Row]:
    return [event(now.wall, kind, ("task", task.id), actor, before=task.status, **facts) for task in tasks]


def step_positions(task: HeldTask) -> Op[list[StepPosition]]:
    """Return the current steps and approvals of a task in order."""
    rows = yield Query("step_places", (task.number,))
    return [StepPosition(*row) for row in rows]


def running_concurrently(redos: Sequence[Redo], known: Sequence[StepPosition]) -> list[str]:
    """Return the running steps that none of these redos repeats."""
    wanted = {(redo.kind, redo.key) for redo in redos}
    starts = [step for step in known if (step.kind, step.key) in wanted]
    running = [step for step in known if (step.kind, step.status) == ("step", "running")]
    return [step.key for step in running if not any(start.repeats(step) for start in starts)]


def redo_when_ready(task: HeldTask, now: Now) -> Op[None]:
    """Apply waiting redos once no step that they retain is running."""
    if task.redo is not None and not running_concurrently(task.redos, (yield from step_positions(task))):
        yield from redo_now(task, task.redos, now)


def redo_now(task: HeldTask, redos: Sequence[Redo], now: Now) -> Op[None]:
    """Repeat steps, with everything that depends on them. The holder loses the task."""
    yield from apply_redos(task, now, redos)
    yield ExecuteMany("step_interrupt", [(task.number,)])
    yield Query("task_again", (now.wall, task.number))
    yield from wake_holder(task)
    yield Wake([] if task.halting else [task.ready_channel])


def apply_redos(task: HeldTask, now: Now, redos: Sequence[Redo] | None = None) -> Op[HeldTask]:
    """Supersede the steps that redos repeat, by default the waiting ones; the status of the task stays. Return the task
    afterwards."""
    redos = task.redos if redos is None else redos
    if not redos:
        return task
    for redo in redos:
        known = yield from step_positions(task)
        start = next((one for one in known if (one.kind, one.key) == (redo.kind, redo.key)), None)
        # None: another of these redos has superseded it.
        if start is not None:
            yield from supersede_steps(task, [one for one in known if start.repeats(one)], redo.by, now, start)
        yield from record(task_events([task], "task_redone", redo.by, now, **redo.facts))
    notes = {redo.key: redo.note for redo in redos if redo.note is not None}
    return (yield from start_generation(task, notes, now))


def supersede_steps(
    task: HeldTask, void: Sequence[StepPosition], by: str | None, now: Now, named: StepPosition | None = None
) -> Op[None]:
    """Supersede steps and approvals of a task; they remain as history. Sub-tasks among them are stopped. Signals and
    messages that they received can be received again, except that of the step that a redo ``named``: it waits for
    another."""
    generation = task.generation + 1
    for child in [one.child for one in void if one.child is not None]:
        found = yield Query("task_by_id", ([child],))
        for row in found:
            members = yield from with_subtasks(HeldTask(*row))
            stopped = yield from stop_all(members, by, now, reason=f"{task.id} runs again")
            yield Wake([ended_channel(one.id) for one in stopped])
            yield from notify_dependents([one.id for one in stopped], now)
    received = [(task.number, one.position) for one in void if one.kind in _RECEIVING and one is not named]
    if received:
        yield ExecuteMany("signal_give_back", received)
        yield ExecuteMany("message_give_back", received)
    steps = [one for one in void if one.kind != "approval"]
    yield ExecuteMany("step_supersede", [(generation, now.wall, task.number, one.kind, one.key) for one in steps])
    approvals = [one for one in void if one.kind == "approval"]
    yield ExecuteMany("approval_supersede", [(generation, task.number, one.key) for one in approvals])


def start_generation(task: HeldTask, notes: dict[str, str], now: Now) -> Op[HeldTask]:
    """Start a new generation of a task after steps were superseded."""
    yield Query("task_redo_apply", (plain(notes), now.wall, task.number))
    return msgspec.structs.replace(task, generation=task.generation + 1, losses=0, redo=None)


def stop_all(tasks: Sequence[HeldTask], by: str | None, now: Now, **facts: Any) -> Op[list[HeldTask]]:
    """Stop those tasks that have not ended, and return them. A waiting redo is applied by their resume."""
    going = [task for task in tasks if task.status not in TASK_ENDED]
    for task in going:
        yield from apply_redos(task, now)
    yield ExecuteMany("step_cancel", [(now.wall, task.number) for task in going])
    yield ExecuteMany("task_stop", [(now.wall, task.number) for task in going])
    yield from record(task_events(going, "task_stopped", by, now, **facts))
    for task in going:
        yield from wake_holder(task)
    return going


def with_subtasks(task: HeldTask) -> Op[list[HeldTask]]:
    """Return a task with all its sub-tasks that have not ended."""
    rows = yield Query("task_descendants", (task.id,))
    return [task, *(HeldTask(*row) for row in rows)]


def wake_holder(task: HeldTask) -> Op[None]:
    """Wake the worker that holds a task."""
    yield Wake([] if task.holder is None else [worker_channel(task.holder)])
