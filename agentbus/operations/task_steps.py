"""Steps of a task: started, finished or failed, each in one commit with everything that belongs to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import plain_payload
from agentbus.errors import AgentBusError
from agentbus.operations.checkpoints import SaveRequest, save_checkpoint
from agentbus.operations.events import event, record
from agentbus.operations.protocol import ExecuteMany, Op, Outcome, Query, Row, operation, run_one
from agentbus.operations.task_ownership import H, HeldRequest, HeldTask, check_holders, for_holders, redo_when_ready
from agentbus.operations.task_signatures import Signatures, signatures_of
from agentbus.operations.tasks import StartRequest, insert_tasks


class StepIdentity(msgspec.Struct, frozen=True):
    """A step of a task: its name, its key (the name, numbered if repeated), its position in the order of starts, and
    whether the workflow itself runs it, rather than one of several branches. ``seen``: the last ending that the
    workflow had seen."""

    kind: str
    key: str
    name: str
    position: int
    main: bool = True
    digest: str = ""
    seen: int | None = None

    def row(
        self,
        task: int,
        status: str,
        started: int,
        *,
        once: int = 0,
        note: str | None = None,
        child: str | None = None,
        finished: int | None = None,
        checksum: int | None = None,
        result: str | None = None,
        ending: int | None = None,
        trace: str | None = None,
    ) -> Row:
        """Return the row to insert when a task reaches the step."""
        return (
            task, self.kind, self.key, self.name, self.position, status, int(self.main), once, self.digest, note, child,
            started, finished, checksum, result, self.seen, ending, trace,
        )  # fmt: skip


class StartStepRequest(HeldRequest, frozen=True):
    """Start the first or another ``attempt`` of a step."""

    row_estimate: ClassVar[int] = 2
    step: StepIdentity
    attempt: int = 1
    once: bool = False
    note: str | None = None
    trace: str | None = None
    """The trace context of the attempt."""


class FinishStepRequest(HeldRequest, frozen=True):
    """Store the result of a step, JSON and its checksum, and that of its validation, as JSON. ``ending`` is its number
    in the order in which the steps of its task end."""

    step: StepIdentity
    result: tuple[str, int]
    validation: str | None = None
    ending: int | None = None

    @property
    def data_size(self) -> int:
        return len(self.result[0])


class FailStepRequest(HeldRequest, frozen=True):
    """Store the problem, as JSON, of an attempt that raised. With ``delay`` (milliseconds) another attempt follows;
    otherwise ``ending`` is its number in the order in which the steps of its task end."""

    row_estimate: ClassVar[int] = 2
    step: StepIdentity
    problem: str
    failures: int
    delay: int | None = None
    ending: int | None = None


class ChildRequest(HeldRequest, frozen=True):
    """Start a sub-task as a step of another task."""

    step: StepIdentity
    child: StartRequest

    @property
    def data_size(self) -> int:
        return self.child.data_size


class PhaseRequest(HeldRequest, frozen=True):
    """Enter a phase of a task."""

    step: StepIdentity
    ending: int | None = None


class TaskCheckpointRequest(HeldRequest, frozen=True):
    """Save a checkpoint of a task."""

    step: StepIdentity
    save: SaveRequest
    ending: int | None = None

    @property
    def data_size(self) -> int:
        return self.save.data_size


class TaskProgressRequest(HeldRequest, frozen=True):
    """Set the progress of a task, or of one of its steps (``key``); the note is the task's."""

    row_estimate: ClassVar[int] = 2
    percent: int
    note: str | None = None
    key: str | None = None


@operation(durable=False)
def start_step(requests: Sequence[StartStepRequest], now: Now) -> Op[list[Outcome[bool]]]:
    """Record the start of steps. The outcome is False, and nothing is written, for a paused task: it is to be halted,
    or a redo waits."""
    errors, tasks = yield from check_holders(requests)
    begun = _may_start(requests, errors, tasks)
    fresh = [request for request in begun if request.attempt == 1]
    if fresh:
        yield ExecuteMany(
            "step_insert",
            [
                request.step.row(
                    request.hold.number,
                    "running",
                    now.wall,
                    once=int(request.once),
                    note=request.note,
                    trace=request.trace,
                )
                for request in fresh
            ],
        )
    again = [request for request in begun if request.attempt > 1]
    if again:
        yield ExecuteMany(
            "step_again",
            [
                (request.attempt, now.wall, request.step.digest, request.trace, request.hold.number, request.step.key)
                for request in again
            ],
        )
    return [errors.get(index) or not tasks[request.hold.number].paused for index, request in enumerate(requests)]


def _may_start(requests: Sequence[H], errors: dict[int, AgentBusError], tasks: dict[int, HeldTask]) -> list[H]:
    """Return the requests whose task is held by the caller and not paused."""
    return [
        request
        for index, request in enumerate(requests)
        if index not in errors and not tasks[request.hold.number].paused
    ]


@operation(durable=True, stores_data=True)
def finish_step(requests: Sequence[FinishStepRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Store the results of steps."""
    errors, tasks = yield from check_holders(requests)
    yield ExecuteMany(
        "step_finish",
        [
            (
                now.wall, request.result[1], request.validation, request.result[0], request.ending,
                request.hold.number, request.step.kind, request.step.key,
            )
            for index, request in enumerate(requests)
            if index not in errors
        ],
    )  # fmt: skip
    finished = {request.hold.number for index, request in enumerate(requests) if index not in errors}
    for number in finished:
        yield from _reset_losses(tasks[number])
        yield from redo_when_ready(tasks[number], now)
    return [errors.get(index) for index in range(len(requests))]


def _reset_losses(task: HeldTask) -> Op[None]:
    """Reset the losses of a task that made progress: one that kills its workers does so at the same step each time."""
    if task.losses:
        yield Query("task_progressed", (task.number,))


@operation(durable=True)
def fail_step(requests: Sequence[FailStepRequest], now: Now) -> Op[list[Outcome[int | None]]]:
    """Store the failures of steps; the outcome is the wall time of the next attempt, if any."""
    errors, tasks = yield from check_holders(requests)
    outcomes: list[Outcome[int | None]] = []
    for index, request in enumerate(requests):
        outcomes.append(errors[index] if index in errors else (yield from _fail(request, now)))
    # Once per task: applying a redo takes the task from its worker.
    for number in dict.fromkeys(request.hold.number for index, request in enumerate(requests) if index not in errors):
        yield from redo_when_ready(tasks[number], now)
    return outcomes


def _fail(request: FailStepRequest, now: Now) -> Op[int | None]:
    due = None if request.delay is None else now.wall + request.delay
    yield Query(
        "step_fail",
        (
            "failed" if due is None else "retrying", due, request.failures, request.problem,
            now.wall if due is None else None, request.ending if due is None else None, request.hold.number,
            request.step.kind, request.step.key,
        ),
    )  # fmt: skip
    return due


@operation(durable=True, stores_data=True)
def start_child(requests: Sequence[ChildRequest], now: Now) -> Op[list[Outcome[bool]]]:
    """Start sub-tasks, each as a step of its parent. The outcome is False, and nothing is written, for a paused task:
    it is to be halted, or a redo waits."""
    errors, tasks = yield from check_holders(requests)
    takes = Signatures((yield signatures_of(request.child.workflow for request in requests)))
    for index, request in enumerate(requests):
        misfit = takes.misfit(request.child.workflow, request.child.arguments[0])
        if index not in errors and misfit is not None:
            errors[index] = misfit
    valid = _may_start(requests, errors, tasks)
    yield ExecuteMany(
        "step_insert",
        [
            request.step.row(
                request.hold.number, "running", now.wall, child=request.child.id, trace=request.child.trace
            )
            for request in valid
        ],
    )
    # Passing approvals through may have changed since the parent was claimed.
    yield from insert_tasks(
        [msgspec.structs.replace(request.child, auto=bool(tasks[request.hold.number].auto)) for request in valid],
        now,
    )
    return [errors.get(index) or not tasks[request.hold.number].paused for index, request in enumerate(requests)]


@operation(durable=True)
def enter_phase(requests: Sequence[PhaseRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Record the phases of tasks."""
    return (yield from for_holders(requests, _enter_phase, now))


def _enter_phase(request: PhaseRequest, task: HeldTask, now: Now) -> Op[None]:
    yield from _insert_done(request, task, None, now)
    yield Query("task_phase", (request.step.name, now.wall, task.number))
    facts = {"phase": request.step.name, "before": task.phase}
    yield from record([event(now.wall, "task_phase", ("task", task.id), request.actor.agent, **facts)])


@operation(durable=True, stores_data=True)
def checkpoint_task(requests: Sequence[TaskCheckpointRequest], now: Now) -> Op[list[Outcome[int]]]:
    """Save checkpoints of tasks, each as a step; the outcome is its id."""
    return (yield from for_holders(requests, _checkpoint, now))


def _checkpoint(request: TaskCheckpointRequest, task: HeldTask, now: Now) -> Op[int]:
    saved = yield from run_one(save_checkpoint, request.save, now)
    yield from _insert_done(request, task, saved.id, now)
    return saved.id


@operation(durable=False)
def progress_task(requests: Sequence[TaskProgressRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Record the progress of tasks and steps."""
    return (yield from for_holders(requests, _progress, now))


def _progress(request: TaskProgressRequest, task: HeldTask, now: Now) -> Op[None]:
    if request.key is None:
        yield Query("task_progress", (request.percent, request.note, now.wall, task.number))
    else:
        yield Query("step_progress", (request.percent, task.number, request.key))
        if request.note is not None:
            yield Query("task_note", (request.note, now.wall, task.number))


def _insert_done(
    request: PhaseRequest | TaskCheckpointRequest, task: HeldTask, result: int | None, now: Now
) -> Op[None]:
    """Insert a step that is finished at once."""
    text, crc = plain_payload(result)
    row = request.step.row(
        task.number, "finished", now.wall, finished=now.wall, checksum=crc, result=text, ending=request.ending
    )
    yield Query("step_insert", row)
    yield from _reset_losses(task)
