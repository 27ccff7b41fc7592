"""Control of tasks by operators, in any status. A change is committed when the call returns; the worker of the task is
notified, and fenced if it misses the notification: the lease is another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import check, decode, plain, plain_payload
from agentbus.errors import AgentBusError, NotAnItem, PayloadTooLarge, UnknownStep, WrongState
from agentbus.operations.common import LIVE, read_agent_statuses
from agentbus.operations.events import event, record
from agentbus.operations.protocol import ExecuteMany, Op, Outcome, Query, Wake, single_operation
from agentbus.operations.task_approvals import operator_or_error, pass_through
from agentbus.operations.task_dependencies import (
    ChangedDependencies,
    change_dependencies,
    is_blocked,
    reopen_dependency,
)
from agentbus.operations.task_lookups import existing_task
from agentbus.operations.task_ownership import (
    HeldTask,
    Redo,
    StepPosition,
    known_task,
    make_waiting_ready,
    next_ending,
    notify_parents,
    redo_now,
    release_tasks,
    running_concurrently,
    start_generation,
    step_positions,
    stop_all,
    supersede_steps,
    task_events,
    unsettled_waits,
    wake_holder,
    with_subtasks,
)
from agentbus.operations.task_signatures import first_misfit
from agentbus.operations.tasks import TRANSITIONS, problem_steps, retry_steps, wrong_state

if TYPE_CHECKING:
    from agentbus.records import TaskRecord

ADVICE = {
    "halt": "only a task that has not ended can be halted",
    "continue": "only a halted task can be continued; resume a failed or stopped one",
    "resume": "a waiting task continues when its wait ends; restart runs all steps again; edit removes a dependency",
    "stop": "it has ended",
}
EDIT_ADVICE = {
    "running": "a worker runs it: halt or stop it first",
    "completed": "a completed task does not change: start another one",
}


class ControlRequest(msgspec.Struct, frozen=True):
    """Halt, continue, resume, stop, redo or restart a task. ``step`` and ``note`` belong to a redo."""

    task: str
    action: str
    by: str | None = None
    reason: str | None = None
    step: str | None = None
    note: str | None = None


class AutoRequest(msgspec.Struct, frozen=True):
    """Turn passing approvals through on or off for a task."""

    task: str
    on: bool
    by: str | None = None


class EditRequest(msgspec.Struct, frozen=True):
    """Change a task; None leaves a value. ``context``, ``settings``, ``arguments`` and ``keywords`` are JSON; the
    latter two together may take ``limit`` bytes."""

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
    priority: int | None = None
    dependencies: ChangedDependencies | None = None

    @property
    def data_size(self) -> int:
        return sum(len(text or "") for text in (self.context, self.settings, self.arguments, self.keywords))


class SettleRequest(msgspec.Struct, frozen=True):
    """Settle a step with an unknown outcome: by its result (JSON and checksum); by the problem that it failed with
    (JSON); or by neither, to run it again."""

    task: str
    step: str
    by: str
    result: tuple[str, int] | None = None
    problem: str | None = None


@single_operation(durable=True)
def control_task(request: ControlRequest, now: Now) -> Op[Outcome[TaskRecord]]:
    """Apply control actions to tasks. The outcome is the task afterwards."""
    task = yield from known_task(request.task)
    if isinstance(task, AgentBusError):
        return task
    if request.action == "resume" and task.status == "running":
        task = yield from _release_if_abandoned(task, now)
    if task.status not in TRANSITIONS[request.action]:
        return wrong_state(task, request.action, ADVICE[request.action])
    error = yield from _CONTROLS[request.action](task, request, now)
    return error or (yield from existing_task(task.id, now))


def _release_if_abandoned(task: HeldTask, now: Now) -> Op[HeldTask]:
    """Release a task whose holder is gone, if that was not noticed yet."""
    known = yield from read_agent_statuses([str(task.holder)])
    if any(holder.status in LIVE for holder in known.values()):
        return task
    yield from release_tasks([task], "its holder is gone", now)
    rows = yield Query("task_by_id", ([task.id],))
    return HeldTask(*rows[0])


def _halt(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    for one in (yield from with_subtasks(task)):
        if one.status == "running":
            yield Query("task_halting", (1, now.wall, one.number))
            yield from record(task_events([one], "task_halting", request.by, now, **_facts(request)))
            yield from wake_holder(one)
        elif one.status in TRANSITIONS["halt"]:
            yield Query("task_halt", (now.wall, one.number))
            yield from record(task_events([one], "task_halted", request.by, now, **_facts(request)))
    return None


def _continue(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    if task.status == "running" and not task.halting:
        return wrong_state(task, "continue", ADVICE["continue"])
    for one in (yield from with_subtasks(task)):
        if one.halting:
            yield Query("task_halting", (0, now.wall, one.number))
            yield from record(task_events([one], "task_continued", request.by, now, **_facts(request)))
            yield from wake_holder(one)
        elif one.status == "halted":
            yield from record(task_events([one], "task_continued", request.by, now, **_facts(request)))
            yield from _make_ready(one, now)
    return None


def _resume(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    if task.status == "failed":
        yield from retry_steps(task, problem_steps(task.error))
    # Sub-tasks that were halted or stopped with it resume with it.
    for one in [task, *(yield from _suspended_children(task))]:
        yield from record(task_events([one], "task_resumed", request.by, now, **_facts(request)))
        yield from _make_ready(one, now)
    return None


def _suspended_children(task: HeldTask) -> Op[list[HeldTask]]:
    """Return the halted or stopped sub-tasks that a task still waits for, recursively."""
    rows = yield Query("task_awaited_children", (task.number,))
    found = [HeldTask(*row) for row in rows]
    for one in list(found):
        found.extend((yield from _suspended_children(one)))
    return [one for one in found if one.status in {"halted", "stopped"}]


def _stop(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    stopped = yield from stop_all((yield from with_subtasks(task)), request.by, now, **_facts(request))
    yield from notify_parents(stopped, now)
    return None


def _redo(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    key = str(request.step)
    known = yield from step_positions(task)
    # A step precedes a phase or approval of the same name; those are named by their kind: approval:plan.
    named: dict[str, StepPosition] = {}
    for one in sorted(known, key=lambda step: (step.kind not in {"step", "task"}, step.position)):
        named.setdefault(one.key, one)
        named.setdefault(f"{one.kind}:{one.key}", one)
    if key not in named:
        near = [name for name in named if ":" not in name and name.partition("#")[0] == key.partition("#")[0]]
        return UnknownStep(task=task.id, step=key, near=near)
    start = named[key]
    redo = Redo(key, start.kind, start.key, request.note, request.by, request.reason)
    # The last redo of a step replaces earlier ones.
    redos = [*(one for one in task.redos if (one.kind, one.key) != (start.kind, start.key)), redo]
    concurrent = running_concurrently(redos, known)
    if not concurrent:
        yield from redo_now((yield from _cancel_halt(task, now)), redos, now)
        yield from _reopen(task)
        return None
    yield Query("task_redo_wait", (plain(redos), now.wall, task.number))
    yield from record(task_events([task], "task_redo_waits", request.by, now, running=concurrent, **redo.facts))
    yield from wake_holder(task)
    return None


def _restart(task: HeldTask, request: ControlRequest, now: Now) -> Op[AgentBusError | None]:
    task = yield from _cancel_halt(task, now)
    yield from supersede_steps(task, (yield from step_positions(task)), request.by, now)
    yield from start_generation(task, {}, now)
    yield Query("task_again", (now.wall, task.number))
    yield Query("task_reset", (task.number,))
    yield from wake_holder(task)
    if (yield from is_blocked(task.number, task.on_failed)):
        yield Query("dependency_block", (now.wall, task.number))
    else:
        yield Wake([task.ready_channel])
    yield from _reopen(task)
    yield from record(task_events([task], "task_restarted", request.by, now, **_facts(request)))
    return None


def _reopen(task: HeldTask) -> Op[None]:
    """Let the dependents of a completed task that runs again wait for it, unless they are ready or have started."""
    if task.status == "completed":
        yield from reopen_dependency(task.id)


def _cancel_halt(task: HeldTask, now: Now) -> Op[HeldTask]:
    """Clear a pending halt: the task runs again instead."""
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
    if (yield from is_blocked(task.number, task.on_failed)):
        yield Query("dependency_block", (now.wall, task.number))
    else:
        yield Query("task_resume", (now.wall, task.number))
        yield Wake([task.ready_channel])


def _facts(request: ControlRequest) -> dict[str, Any]:
    return {} if request.reason is None else {"reason": request.reason}


@single_operation(durable=True)
def set_auto(request: AutoRequest, now: Now) -> Op[Outcome[TaskRecord]]:
    """Pass approvals through from now on, open ones included; or ask again. Applies to all sub-tasks."""
    task = yield from known_task(request.task)
    if isinstance(task, AgentBusError):
        return task
    # Passing approvals through is a decision.
    error = (yield from operator_or_error(request.by)) if request.on and request.by is not None else None
    if error is not None:
        return error
    # Including those that were stopped with it: they resume with it.
    stopped = [one for one in (yield from _suspended_children(task)) if one.status == "stopped"]
    members = [*(yield from with_subtasks(task)), *stopped]
    yield ExecuteMany("task_auto", [(int(request.on), now.wall, one.number) for one in members])
    yield from record([
        event(now.wall, "task_edited", ("task", one.id), request.by, changed={"auto": request.on}) for one in members
    ])  # fmt: skip
    if request.on:
        yield from pass_through(members, now)
    return (yield from existing_task(request.task, now))


@single_operation(durable=True, stores_data=True)
def edit_task(request: EditRequest, now: Now) -> Op[Outcome[TaskRecord]]:
    """Edit tasks. A worker that holds one sees the change with the next claim."""
    task = yield from known_task(request.task)
    if isinstance(task, AgentBusError):
        return task
    if request.priority is not None and not task.manual:
        return NotAnItem(task=task.id, workflow=task.workflow)
    error = yield from _edit_arguments(request, task, now)
    if error is not None:
        return error
    names = ("name", "context", "settings", "restarts", "backoff", "max_losses")
    values = [getattr(request, name) for name in names]
    yield Query("task_edit", (*values, now.wall, task.number))
    if request.priority is not None:
        yield Query("item_priority", (request.priority, now.wall, task.number))
    yield from _edit_dependencies(request, task, now)
    all_names = (*names, "arguments", "keywords", "priority", "dependencies")
    changed = [name for name in all_names if getattr(request, name) is not None]
    yield from record([event(now.wall, "task_edited", ("task", task.id), request.by, changed=changed)])
    yield from wake_holder(task)
    return (yield from existing_task(request.task, now))


def _edit_dependencies(request: EditRequest, task: HeldTask, now: Now) -> Op[None]:
    """Change the dependencies of a task. An error undoes the other changes."""
    if request.dependencies is None:
        return
    status = yield from change_dependencies(task.id, request.dependencies, now)
    if isinstance(status, AgentBusError):
        raise status
    if status == "pending":
        yield Wake([task.ready_channel])
    elif status == "stopped":
        yield from notify_parents([task], now)


def _edit_arguments(request: EditRequest, task: HeldTask, now: Now) -> Op[AgentBusError | None]:
    """Change the arguments of a task. Finished steps stay: one that the workflow calls with other arguments raises
    WorkflowChanged."""
    if request.arguments is None and request.keywords is None:
        return None
    if task.status in {"running", "completed"}:
        return wrong_state(task, "change the arguments of", EDIT_ADVICE[task.status])
    ((checksum, text),) = yield Query("task_arguments", (task.number,))
    check(text, checksum, f"the arguments of task {task.id}")
    given = decode(text)
    for name, value in (("arguments", request.arguments), ("keywords", request.keywords)):
        if value is not None:
            given[name] = decode(value)
    changed, crc = plain_payload(given)
    if len(changed.encode()) > request.limit:
        return PayloadTooLarge(size=len(changed.encode()), limit=request.limit)
    error = None if task.manual else (yield from first_misfit(task.workflow, given))
    if error is None:
        yield Query("task_edit_arguments", (crc, changed, now.wall, task.number))
    return error


@single_operation(durable=True)
def settle_step(request: SettleRequest, now: Now) -> Op[Outcome[TaskRecord]]:
    """Settle steps with an unknown outcome, and make their tasks ready."""
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
        final = "only a step with an unknown outcome can be settled;"
        return WrongState(
            what=f"of task {task.id} the step",
            name=request.step,
            status=status,
            action="settle it",
            advice=f"{final} bus.tasks.redo({task.id!r}, {request.step!r}) runs it again",
            shell_advice=f"{final} agentbus task redo {task.id} {request.step} runs it again",
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
    yield from make_waiting_ready([task], now)
    if task.status in {"pending", "waiting"}:
        rows = yield Query("task_awaited", (task.number,))
        yield Query("task_let_go", ("pending", 0, plain(unsettled_waits(rows)), now.wall, task.number))
        yield Wake([task.ready_channel])
    return (yield from existing_task(request.task, now))
