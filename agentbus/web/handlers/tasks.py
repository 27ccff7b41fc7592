"""Durable tasks: start, show, decide and control. An agent may never decide: those routes need an operator."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from agentbus.core.validation import MAX_LOSSES, PAGE_SIZE, RETRY_DELAY
from agentbus.errors import UnknownTask
from agentbus.records import ApprovalRecord, Page, StepRecord, TaskRecord, TaskStatistics
from agentbus.web.call import Body, Call, Created, Query, given, set_fields
from agentbus.web.handlers.agents import poll


class TasksQuery(Query, frozen=True):
    status: list[str] | None = None
    workflow: str | None = None
    session: str | None = None
    parent: str | None = None
    cursor: str | None = None
    limit: int = PAGE_SIZE


class StartTaskBody(Body, frozen=True, kw_only=True):
    """``id``, or the header Idempotency-Key: the same id with the same workflow and arguments is the same task."""

    workflow: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any] | None = None
    id: str | None = None
    name: str | None = None
    session: str | None = None
    auto: bool = False
    context: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    restarts: int = 0
    backoff: float = RETRY_DELAY
    delay: float | None = None
    max_losses: int = MAX_LOSSES


class TaskView(msgspec.Struct, frozen=True):
    """A task with its steps, its approvals, and its sub-tasks."""

    task: TaskRecord
    steps: list[StepRecord]
    approvals: list[ApprovalRecord]
    children: list[TaskRecord]


class HistoryQuery(Query, frozen=True):
    """``history``: also the steps and approvals that a redo has replaced."""

    history: bool = False


class ApprovalsQuery(Query, frozen=True):
    """``status``: open (the default), approved, rejected, expired, or all."""

    task: str | None = None
    status: Literal["open", "approved", "rejected", "expired", "all"] = "open"
    history: bool = False
    limit: int = PAGE_SIZE


class Approvals(msgspec.Struct, frozen=True):
    """Requests for a decision, oldest first."""

    items: list[ApprovalRecord]


class LimitQuery(Query, frozen=True):
    limit: int = PAGE_SIZE


class WorkflowQuery(Query, frozen=True):
    workflow: str | None = None


class TimeoutQuery(Query, frozen=True):
    """``timeout``: seconds to wait for the end of the task, up to 55."""

    timeout: float = 0


class TaskResult(msgspec.Struct, frozen=True):
    """The result of a task that has completed."""

    task: str
    result: Any


class DecideBody(Body, frozen=True):
    """``name``: the approval; it may be left out if one is open."""

    name: str | None = None
    reason: str | None = None


class ControlBody(Body, frozen=True):
    reason: str | None = None


class RedoBody(Body, frozen=True):
    """``step``: the key of the step, or ``approval:KEY``; ``note`` is for the step."""

    step: str
    note: str | None = None
    reason: str | None = None


class AutoBody(Body, frozen=True):
    on: bool = True


class SettleBody(Body, frozen=True):
    """A step with an unknown outcome: give its ``result``, its ``error``, or ``redo``."""

    step: str
    result: Any = msgspec.UNSET
    error: str | None = None
    redo: bool = False


class EditBody(Body, frozen=True):
    name: str | None = None
    context: dict[str, Any] | None = None
    settings: dict[str, Any] | None = None
    auto: bool | None = None
    restarts: int | None = None
    backoff: float | None = None
    max_losses: int | None = None
    arguments: list[Any] | None = None
    keywords: dict[str, Any] | None = None


async def list_tasks(call: Call, query: TasksQuery) -> Page[TaskRecord]:
    """List tasks, newest first."""
    return await call.bus.tasks.list(
        status=query.status, workflow=query.workflow, session=query.session, parent=query.parent,
        cursor=query.cursor, limit=query.limit,
    )  # fmt: skip


async def start_task(call: Call, body: StartTaskBody) -> Created | TaskRecord:
    """Start a task, which any worker with its workflow runs."""
    options = set_fields(body, "workflow", "arguments", "id")
    made = await call.bus.tasks.start(body.workflow, *body.arguments, id=call.key_or(body.id), **options)
    return Created(made)


async def get_task(call: Call, query: HistoryQuery) -> TaskView:
    """Show a task with its steps, approvals and sub-tasks."""
    id = call.names["task"]
    task = await _task(call)
    return TaskView(
        task,
        list(await call.bus.tasks.steps(id, history=query.history)),
        list(await call.bus.tasks.approvals(id, status=None, history=query.history, limit=1000)),
        (await call.bus.tasks.list(parent=id, limit=1000)).items,
    )


async def task_steps(call: Call, query: HistoryQuery) -> list[StepRecord]:
    """List the steps of a task in their order."""
    return list(await call.bus.tasks.steps(call.names["task"], history=query.history))


async def task_result(call: Call, query: TimeoutQuery) -> TaskResult:
    """Return the result of a task, waiting for it. One that failed, was stopped or has not ended is a problem."""
    id = call.names["task"]
    return TaskResult(id, await call.bus.tasks.result(id, timeout=poll(query.timeout, zero=True)))


async def approvals(call: Call, query: ApprovalsQuery) -> Approvals:
    """List requests for a decision, oldest first."""
    status = None if query.status == "all" else query.status
    found = await call.bus.tasks.approvals(query.task, status=status, history=query.history, limit=query.limit)
    return Approvals(list(found))


async def resumable(call: Call, query: LimitQuery) -> list[TaskRecord]:
    """List tasks that were started and not completed, that no worker holds, and that wait for no approval."""
    return list(await call.bus.tasks.resumable(limit=query.limit))


async def statistics(call: Call, query: WorkflowQuery) -> TaskStatistics:
    """Show statistics of tasks, of one workflow or all."""
    return await call.bus.tasks.statistics(workflow=query.workflow)


async def approve(call: Call, body: DecideBody) -> ApprovalRecord:
    """Approve a request of a task, as the operator of the token."""
    return await call.bus.tasks.approve(call.names["task"], body.name, by=call.by, reason=body.reason)


async def reject(call: Call, body: DecideBody) -> ApprovalRecord:
    """Reject a request of a task, as the operator of the token."""
    return await call.bus.tasks.reject(call.names["task"], body.name, by=call.by, reason=body.reason)


async def settle(call: Call, body: SettleBody) -> TaskRecord:
    """Settle a step with an unknown outcome, as the operator of the token."""
    outcome = given(body, "step", "error", "redo")
    return await call.bus.tasks.settle(
        call.names["task"], body.step, by=call.by, error=body.error, redo=body.redo, **outcome
    )


async def halt(call: Call, body: ControlBody) -> TaskRecord:
    """Halt a task and its sub-tasks before their next step."""
    return await call.bus.tasks.halt(call.names["task"], by=call.by, reason=body.reason)


async def continue_task(call: Call, body: ControlBody) -> TaskRecord:
    """Continue a halted task."""
    return await call.bus.tasks.continue_(call.names["task"], by=call.by, reason=body.reason)


async def stop(call: Call, body: ControlBody) -> TaskRecord:
    """Stop a task and its sub-tasks."""
    return await call.bus.tasks.stop(call.names["task"], by=call.by, reason=body.reason)


async def resume(call: Call, body: ControlBody) -> TaskRecord:
    """Resume a halted, stopped or failed task after its last finished step."""
    return await call.bus.tasks.resume(call.names["task"], by=call.by, reason=body.reason)


async def restart(call: Call, body: ControlBody) -> TaskRecord:
    """Restart a task from its beginning."""
    return await call.bus.tasks.restart(call.names["task"], by=call.by, reason=body.reason)


async def redo(call: Call, body: RedoBody) -> TaskRecord:
    """Run a step or a sub-task again, and every step that started after it had ended."""
    return await call.bus.tasks.redo(
        call.names["task"], body.step, note=body.note, by=call.by, reason=body.reason
    )  # fmt: skip


async def set_auto(call: Call, body: AutoBody) -> TaskRecord:
    """Approve all requests of a task automatically, or ask again."""
    return await call.bus.tasks.auto(call.names["task"], body.on, by=call.by)


async def edit(call: Call, body: EditBody) -> TaskRecord:
    """Change the name, context, settings, restart policy or arguments of a task; fields that are not given stay."""
    changes = set_fields(body, "auto")
    if changes or body.auto is None:
        made = await call.bus.tasks.edit(call.names["task"], by=call.by, **changes)
    if body.auto is not None:
        made = await call.bus.tasks.auto(call.names["task"], body.auto, by=call.by)
    return made


async def _task(call: Call) -> TaskRecord:
    found = await call.bus.tasks.get(call.names["task"])
    if found is None:
        raise UnknownTask(task=call.names["task"])
    return found
