"""Control: what people do with a task, whatever it is at. All is committed when the call returns; a worker that has the
task hears of it at once, and one that does not hear is fenced: it holds another lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.clock import Now
from agentbus.codec import plain
from agentbus.errors import AgentBusError, UnknownStep, WrongState
from agentbus.operations import Each, Op, Outcome, Query, Wake, one_by_one
from agentbus.operations.approvals import operator_or_error, pass_through
from agentbus.operations.events import event, record
from agentbus.operations.fencing import LIVE, standings
from agentbus.operations.holding import (
    READY,
    HeldTask,
    ended_channel,
    free,
    go_on,
    known_task,
    task_events,
    tell_parents,
    unsettled,
    worker_channel,
)
from agentbus.operations.task_reading import record_of
from agentbus.operations.tasks import TRANSITIONS, problem_steps, refuse, try_again

if TYPE_CHECKING:
    from agentbus.records import TaskRecord


class ControlRequest(msgspec.Struct, frozen=True):
    """What shall become of a task: halt, continue, resume, stop, redo or restart. ``step`` and ``note`` are a
    redo's."""

    task: str
    action: str
    by: str | None = None
    reason: str | None = None
    step: str | None = None
    note: str | None = None


class AutoRequest(msgspec.Struct, frozen=True):
    """Whether a task passes approvals through."""

    task: str
    on: bool
    by: str | None = None


class EditRequest(msgspec.Struct, frozen=True):
    """What is to be changed of a task; None stays as it is. ``context`` and ``settings`` are JSON."""

    task: str
    name: str | None = None
    context: str | None = None
    settings: str | None = None
    restarts: int | None = None
    backoff: int | None = None
    by: str | None = None

    @property
    def weight(self) -> int:
        return len(self.context or "") + len(self.settings or "")


class SettleRequest(msgspec.Struct, frozen=True):
    """What a person found out of a step whose outcome was unknown: its result (JSON and checksum); or the problem that
    it failed with (JSON); or neither, and it is run again."""

    task: str
    step: str
    by: str
    result: tuple[str, int] | None = None
    problem: str | None = None


ADVICE = {
    "halt": "only what has not ended can be halted",
    "continue": "only what was halted goes on; resume() takes up what failed or was stopped",
    "resume": "one that waits goes on when it gets what it waits for; restart() does all again",
    "stop": "it has ended",
}


@one_by_one(durable=True)
def control_task(request: ControlRequest, now: Now) -> Op[Outcome[TaskRecord]]:
    """Carry out what people want of tasks, or say why that cannot be. The outcome is the task as it is then."""
    task = yield from known_task(request.task)
    if isinstance(task, AgentBusError):
        return task
    if request.action == "resume" and task.status == "running":
        task = yield from _freed(task, now)
    if task.status not in TRANSITIONS[request.action]:
        return refuse(task, request.action, ADVICE[request.action])
    error = yield from _CONTROLS[request.action](task, request, now)
    return error or (yield from record_of(task.id, now))


def _freed(task: HeldTask, now: Now) -> Op[HeldTask]:
    """A task whose holder is gone is in nobody's hands, though nobody has noticed yet."""
    known = yield from standings([str(task.holder)])
    if any(standing.status in LIVE for standing in known.values()):
        return task
    yield from free([task], "its holder is gone", now)
    rows = yield Query("task_standing", ([task.id],))
    return HeldTask(*rows[0])


def _halt(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    for one in (yield from _family(task)):
        if one.status == "running":
            yield Query("task_halting", (1, now.wall, one.number))
            yield from record(task_events([one], "task_halting", request.by, now, **_facts(request)))
            yield from _ring(one)
        elif one.status in TRANSITIONS["halt"]:
            yield Query("task_halt", (now.wall, one.number))
            yield from record(task_events([one], "task_halted", request.by, now, **_facts(request)))
    return None


def _continue(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    if task.status == "running" and not task.halting:
        return refuse(task, "continue", ADVICE["continue"])
    for one in (yield from _family(task)):
        if one.halting:
            yield Query("task_halting", (0, now.wall, one.number))
            yield from record(task_events([one], "task_continued", request.by, now, **_facts(request)))
            yield from _ring(one)
        elif one.status == "halted":
            yield from record(task_events([one], "task_continued", request.by, now, **_facts(request)))
            yield from _make_ready(one, now)
    return None


def _resume(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    if task.status == "failed":
        yield from try_again(task, problem_steps(task.error))
    # What was halted or stopped with it goes on with it.
    for one in [task, *(yield from _kept_with(task))]:
        yield from record(task_events([one], "task_resumed", request.by, now, **_facts(request)))
        yield from _make_ready(one, now)
    return None


def _kept_with(task: HeldTask) -> Op[list[HeldTask]]:
    """The sub-tasks that a task still waits for and that were halted or stopped, and theirs."""
    rows = yield Query("task_awaited_children", (task.number,))
    found = [HeldTask(*row) for row in rows]
    for one in list(found):
        found.extend((yield from _kept_with(one)))
    return [one for one in found if one.status in {"halted", "stopped"}]


def _stop(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    stopped = yield from _stop_all((yield from _family(task)), request.by, now, **_facts(request))
    yield from tell_parents(stopped, now)
    return None


def _redo(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    key = str(request.step)
    rows = yield Query("step_places", (task.number,))
    # A step before a phase or an approval of the same name; those can be told by their kind: approval:plan.
    places = sorted(rows, key=lambda row: (row[0] not in {"step", "task"}, row[2]))
    positions: dict[str, tuple[int, str]] = {}
    for kind, found, position in places:
        positions.setdefault(found, (position, found))
        positions.setdefault(f"{kind}:{found}", (position, found))
    if key not in positions:
        near = [name for name in positions if ":" not in name and name.partition("#")[0] == key.partition("#")[0]]
        return UnknownStep(task=task.id, step=key, near=near)
    facts = {"step": key, **_facts(request), **({} if request.note is None else {"note": request.note})}
    position, name = positions[key]
    yield from _do_again(task, position, {} if request.note is None else {name: request.note}, request.by, now)
    yield from record(task_events([task], "task_redone", request.by, now, **facts))
    return None


def _restart(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    yield from _do_again(task, 0, {}, request.by, now)
    yield Query("task_reset", (task.number,))
    yield from record(task_events([task], "task_restarted", request.by, now, **_facts(request)))
    return None


_CONTROLS = {
    "halt": _halt,
    "continue": _continue,
    "resume": _resume,
    "stop": _stop,
    "redo": _redo,
    "restart": _restart,
}


def _do_again(task: HeldTask, position: int, notes: dict[str, str], by: str | None, now: Now) -> Op[None]:
    """All from a position on is void, and kept; sub-tasks among it are stopped. Whoever holds the task loses it."""
    generation = task.generation + 1
    rows = yield Query("step_children", (task.number, position))
    for (child,) in rows:
        found = yield Query("task_standing", ([child],))
        for row in found:
            family = yield from _family(HeldTask(*row))
            stopped = yield from _stop_all(family, by, now, reason=f"{task.id} is done again")
            yield Wake([ended_channel(one.id) for one in stopped])
    yield Query("step_supersede", (generation, now.wall, task.number, position))
    yield Query("approval_supersede", (generation, task.number, position))
    yield Each("step_interrupt", [(task.number,)])
    yield Query("task_again", (plain(notes), now.wall, task.number))
    yield from _ring(task)
    yield Wake([READY])


def _stop_all(tasks: Sequence[HeldTask], by: str | None, now: Now, **facts: Any) -> Op[list[HeldTask]]:
    going = [task for task in tasks if task.status in TRANSITIONS["stop"]]
    yield Each("step_cancel", [(now.wall, task.number) for task in going])
    yield Each("task_stop", [(now.wall, task.number) for task in going])
    yield from record(task_events(going, "task_stopped", by, now, **facts))
    for task in going:
        yield from _ring(task)
    return going


def _make_ready(task: HeldTask, now: Now) -> Op[None]:
    yield Query("task_resume", (now.wall, task.number))
    yield Wake([READY])


def _family(task: HeldTask) -> Op[list[HeldTask]]:
    """A task with all sub-tasks of it that have not ended."""
    rows = yield Query("task_descendants", (task.id,))
    return [task, *(HeldTask(*row) for row in rows)]


def _ring(task: HeldTask) -> Op[None]:
    yield Wake([] if task.holder is None else [worker_channel(task.holder)])


def _facts(request: ControlRequest) -> dict[str, Any]:
    return {} if request.reason is None else {"reason": request.reason}


@one_by_one(durable=True)
def set_auto(request: AutoRequest, now: Now) -> Op[Outcome[TaskRecord]]:
    """Pass approvals through from now on, those that are open too; or ask people again. With all sub-tasks."""
    task = yield from known_task(request.task)
    if isinstance(task, AgentBusError):
        return task
    # Passing approvals through is approving them.
    error = (yield from operator_or_error(request.by)) if request.on and request.by is not None else None
    if error is not None:
        return error
    # Those too that were stopped with it: they go on with it.
    stopped = [one for one in (yield from _kept_with(task)) if one.status == "stopped"]
    family = [*(yield from _family(task)), *stopped]
    yield Each("task_auto", [(int(request.on), now.wall, one.number) for one in family])
    yield from record([
        event(now.wall, "task_edited", ("task", one.id), request.by, changed={"auto": request.on}) for one in family
    ])  # fmt: skip
    if request.on:
        yield from pass_through(family, now)
    return (yield from record_of(request.task, now))


@one_by_one(durable=True, grows=True)
def edit_task(request: EditRequest, now: Now) -> Op[Outcome[TaskRecord]]:
    """Change what is known of tasks. A worker that has one sees it with the next hand-out."""
    task = yield from known_task(request.task)
    if isinstance(task, AgentBusError):
        return task
    values = (request.name, request.context, request.settings, request.restarts, request.backoff)
    yield Query("task_edit", (*values, now.wall, task.number))
    names = ("name", "context", "settings", "restarts", "backoff")
    changed = [name for name, value in zip(names, values, strict=True) if value is not None]
    yield from record([event(now.wall, "task_edited", ("task", task.id), request.by, changed=changed)])
    yield from _ring(task)
    return (yield from record_of(request.task, now))


@one_by_one(durable=True)
def settle_step(request: SettleRequest, now: Now) -> Op[Outcome[TaskRecord]]:
    """Keep what people found out of steps whose outcome was unknown, and let their tasks go on."""
    task = yield from known_task(request.task)
    if isinstance(task, AgentBusError):
        return task
    error = yield from operator_or_error(request.by)
    if error is not None:
        return error
    found = yield Query("step_status", (task.number, request.step))
    if not found:
        return UnknownStep(task=task.id, step=request.step)
    ((status, failures),) = found
    if status != "unknown":
        advice = "only what nobody knows the outcome of is settled by a person; redo() runs a step again"
        return WrongState(
            what=f"of task {task.id} the step", name=request.step, status=status, action="settle it", advice=advice
        )
    if request.result is not None:
        outcome = "finished"
        text, crc = request.result
        yield Query("step_finish", (now.wall, crc, None, text, task.number, "step", request.step))
    elif request.problem is not None:
        outcome = "failed"
        facts = ("failed", None, failures + 1, request.problem, now.wall, task.number, "step", request.step)
        yield Query("step_fail", facts)
    else:
        outcome = "redo"
        yield Query("step_run_again", (task.number, request.step))
    yield from record([
        event(now.wall, "step_settled", ("task", task.id), request.by, step=request.step, outcome=outcome)
    ])  # fmt: skip
    if task.status == "pending":
        rows = yield Query("task_awaited", (task.number,))
        yield Query("task_let_go", ("pending", 0, plain(unsettled(rows)), now.wall, task.number))
        yield Wake([READY])
    yield from go_on([task], now)
    return (yield from record_of(request.task, now))
