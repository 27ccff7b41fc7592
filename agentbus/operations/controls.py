"""Control: what people do with a task, whatever it is at. All is committed when the call returns; a worker that has the
task hears of it at once, and one that does not hear is fenced: it holds another lease."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.clock import Now
from agentbus.codec import check, decode, plain, plain_payload
from agentbus.errors import AgentBusError, PayloadTooLarge, UnknownStep, WrongState
from agentbus.operations import Each, Op, Outcome, Query, Wake, one_by_one
from agentbus.operations.approvals import operator_or_error, pass_through
from agentbus.operations.events import event, record
from agentbus.operations.fencing import LIVE, standings
from agentbus.operations.holding import (
    READY,
    HeldTask,
    Redo,
    StepPosition,
    family,
    free,
    go_on,
    known_task,
    next_ending,
    places,
    redo_now,
    ring,
    running_beside,
    stop_all,
    task_events,
    tell_parents,
    unsettled,
    void_steps,
    voided,
)
from agentbus.operations.signatures import first_misfit
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
    """Changes of a task; None leaves a value as it is. ``context``, ``settings``, ``arguments`` and ``keywords``
    are JSON; both of the latter may take ``limit`` bytes."""

    task: str
    name: str | None = None
    context: str | None = None
    settings: str | None = None
    restarts: int | None = None
    backoff: int | None = None
    max_losses: int | None = None
    arguments: str | None = None
    keywords: str | None = None
    limit: int = 0
    by: str | None = None

    @property
    def weight(self) -> int:
        return sum(len(text or "") for text in (self.context, self.settings, self.arguments, self.keywords))


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
EDIT_ADVICE = {
    "running": "a worker has it: halt or stop it first",
    "completed": "what is done stays so: start another task",
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
    for one in (yield from family(task)):
        if one.status == "running":
            yield Query("task_halting", (1, now.wall, one.number))
            yield from record(task_events([one], "task_halting", request.by, now, **_facts(request)))
            yield from ring(one)
        elif one.status in TRANSITIONS["halt"]:
            yield Query("task_halt", (now.wall, one.number))
            yield from record(task_events([one], "task_halted", request.by, now, **_facts(request)))
    return None


def _continue(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    if task.status == "running" and not task.halting:
        return refuse(task, "continue", ADVICE["continue"])
    for one in (yield from family(task)):
        if one.halting:
            yield Query("task_halting", (0, now.wall, one.number))
            yield from record(task_events([one], "task_continued", request.by, now, **_facts(request)))
            yield from ring(one)
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
    stopped = yield from stop_all((yield from family(task)), request.by, now, **_facts(request))
    yield from tell_parents(stopped, now)
    return None


def _redo(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    key = str(request.step)
    known = yield from places(task)
    # A step before a phase or an approval of the same name; those can be told by their kind: approval:plan.
    named: dict[str, StepPosition] = {}
    for place in sorted(known, key=lambda one: (one.kind not in {"step", "task"}, one.position)):
        named.setdefault(place.key, place)
        named.setdefault(f"{place.kind}:{place.key}", place)
    if key not in named:
        near = [name for name in named if ":" not in name and name.partition("#")[0] == key.partition("#")[0]]
        return UnknownStep(task=task.id, step=key, near=near)
    start = named[key]
    redo = Redo(key, start.kind, start.key, request.note, request.by, request.reason)
    # The last word about a step counts.
    redos = [*(one for one in task.redos if (one.kind, one.key) != (start.kind, start.key)), redo]
    beside = running_beside(redos, known)
    if not beside:
        yield from redo_now((yield from _unhalted(task, now)), redos, now)
        return None
    yield Query("task_redo_wait", (plain(redos), now.wall, task.number))
    yield from record(task_events([task], "task_redo_waits", request.by, now, running=beside, **redo.facts))
    yield from ring(task)
    return None


def _restart(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    task = yield from _unhalted(task, now)
    yield from void_steps(task, (yield from places(task)), request.by, now)
    yield from voided(task, {}, now)
    yield Query("task_again", (now.wall, task.number))
    yield Query("task_reset", (task.number,))
    yield from ring(task)
    yield Wake([READY])
    yield from record(task_events([task], "task_restarted", request.by, now, **_facts(request)))
    return None


def _unhalted(task: HeldTask, now: Now) -> Op[HeldTask]:
    """A task that was to be halted is done again instead."""
    if task.halting:
        yield Query("task_halting", (0, now.wall, task.number))
    return msgspec.structs.replace(task, halting=0)


_CONTROLS = {
    "halt": _halt,
    "continue": _continue,
    "resume": _resume,
    "stop": _stop,
    "redo": _redo,
    "restart": _restart,
}


def _make_ready(task: HeldTask, now: Now) -> Op[None]:
    yield Query("task_resume", (now.wall, task.number))
    yield Wake([READY])


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
    members = [*(yield from family(task)), *stopped]
    yield Each("task_auto", [(int(request.on), now.wall, one.number) for one in members])
    yield from record([
        event(now.wall, "task_edited", ("task", one.id), request.by, changed={"auto": request.on}) for one in members
    ])  # fmt: skip
    if request.on:
        yield from pass_through(members, now)
    return (yield from record_of(request.task, now))


@one_by_one(durable=True, grows=True)
def edit_task(request: EditRequest, now: Now) -> Op[Outcome[TaskRecord]]:
    """Change what is known of tasks. A worker that has one sees it with the next hand-out."""
    task = yield from known_task(request.task)
    if isinstance(task, AgentBusError):
        return task
    error = yield from _edit_arguments(request, task, now)
    if error is not None:
        return error
    names = ("name", "context", "settings", "restarts", "backoff", "max_losses")
    values = [getattr(request, name) for name in names]
    yield Query("task_edit", (*values, now.wall, task.number))
    changed = [name for name in (*names, "arguments", "keywords") if getattr(request, name) is not None]
    yield from record([event(now.wall, "task_edited", ("task", task.id), request.by, changed=changed)])
    yield from ring(task)
    return (yield from record_of(request.task, now))


def _edit_arguments(request: EditRequest, task: HeldTask, now: Now) -> Op[AgentBusError | None]:
    """Give a task other arguments. What is finished stays so: a step of it that would be asked for with other arguments
    than it was done with is named when the workflow comes to it (WorkflowChanged)."""
    if request.arguments is None and request.keywords is None:
        return None
    if task.status in {"running", "completed"}:
        return refuse(task, "change the arguments of", EDIT_ADVICE[task.status])
    ((checksum, text),) = yield Query("task_arguments", (task.number,))
    check(text, checksum, f"the arguments of task {task.id}")
    given = decode(text)
    for name, value in (("arguments", request.arguments), ("keywords", request.keywords)):
        if value is not None:
            given[name] = decode(value)
    changed, crc = plain_payload(given)
    if len(changed.encode()) > request.limit:
        return PayloadTooLarge(size=len(changed.encode()), limit=request.limit)
    error = yield from first_misfit(task.workflow, given)
    if error is None:
        yield Query("task_edit_arguments", (crc, changed, now.wall, task.number))
    return error


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
        ending = yield from next_ending(task)
        yield Query("step_finish", (now.wall, crc, None, text, ending, task.number, "step", request.step))
    elif request.problem is not None:
        outcome = "failed"
        ending = yield from next_ending(task)
        facts = ("failed", None, failures + 1, request.problem, now.wall, ending, task.number, "step", request.step)
        yield Query("step_fail", facts)
    else:
        outcome = "redo"
        yield Query("step_run_again", (task.number, request.step))
    yield from record([
        event(now.wall, "step_settled", ("task", task.id), request.by, step=request.step, outcome=outcome)
    ])  # fmt: skip
    yield Query("task_progressed", (task.number,))
    if task.status == "pending":
        rows = yield Query("task_awaited", (task.number,))
        yield Query("task_let_go", ("pending", 0, plain(unsettled(rows)), now.wall, task.number))
        yield Wake([READY])
    yield from go_on([task], now)
    return (yield from record_of(request.task, now))
