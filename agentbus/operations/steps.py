"""Steps of a task: begun, finished or failed, each in one commit with whatever belongs to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from agentbus.clock import Now
from agentbus.codec import plain_payload
from agentbus.errors import AgentBusError
from agentbus.operations import Each, Op, Outcome, Query, Row, carry_out, operation
from agentbus.operations.checkpoints import SaveRequest, save_checkpoint
from agentbus.operations.events import event, record
from agentbus.operations.holding import H, HeldRequest, HeldTask, for_holders, held, redo_when_ready
from agentbus.operations.signatures import Signatures, signatures_of
from agentbus.operations.tasks import StartRequest, insert


class StepPlace(msgspec.Struct, frozen=True):
    """Which step of a task: its name, its key (the name, with a number if it came before), where in the order of all it
    was begun, and whether the workflow itself asked for it, not one of several branches. ``seen``: the last ending that
    the workflow knew of then."""

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
    ) -> Row:
        """All that is written when a task comes to it."""
        return (
            task, self.kind, self.key, self.name, self.position, status, int(self.main), once, self.digest, note, child,
            started, finished, checksum, result, self.seen, ending,
        )  # fmt: skip


class BeginStepRequest(HeldRequest, frozen=True):
    """A step that is about to be executed, for the first time or (``attempt``) again."""

    touches: ClassVar[int] = 2
    place: StepPlace
    attempt: int = 1
    once: bool = False
    note: str | None = None


class FinishStepRequest(HeldRequest, frozen=True):
    """The result of a step: JSON and its checksum; what its validation said, as JSON. ``ending`` is its number in
    the order in which the steps of its task end."""

    place: StepPlace
    result: tuple[str, int]
    validation: str | None = None
    ending: int | None = None

    @property
    def weight(self) -> int:
        return len(self.result[0])


class FailStepRequest(HeldRequest, frozen=True):
    """An attempt that raised: the problem as JSON. With ``delay`` (milliseconds) there is another one after it, else
    ``ending`` is its number in the order in which the steps of its task end."""

    touches: ClassVar[int] = 2
    place: StepPlace
    problem: str
    failures: int
    delay: int | None = None
    ending: int | None = None


class ChildRequest(HeldRequest, frozen=True):
    """A sub-task that is started as a step of another task."""

    place: StepPlace
    child: StartRequest

    @property
    def weight(self) -> int:
        return self.child.weight


class PhaseRequest(HeldRequest, frozen=True):
    """The part of its work that a task has come to."""

    place: StepPlace
    ending: int | None = None


class TaskCheckpointRequest(HeldRequest, frozen=True):
    """A checkpoint of a task."""

    place: StepPlace
    save: SaveRequest
    ending: int | None = None

    @property
    def weight(self) -> int:
        return self.save.weight


class TaskProgressRequest(HeldRequest, frozen=True):
    """How far a task is, or (``key``) one of its steps; the note is the task's."""

    touches: ClassVar[int] = 2
    percent: int
    note: str | None = None
    key: str | None = None


@operation(durable=False)
def begin_step(requests: Sequence[BeginStepRequest], now: Now) -> Op[list[Outcome[bool]]]:
    """Note that steps are being executed. The outcome is False, and nothing is written, for a task that is paused:
    it is to be halted, or a redo waits."""
    errors, tasks = yield from held(requests)
    begun = _may_begin(requests, errors, tasks)
    fresh = [request for request in begun if request.attempt == 1]
    if fresh:
        yield Each(
            "step_insert",
            [
                request.place.row(request.hold.number, "running", now.wall, once=int(request.once), note=request.note)
                for request in fresh
            ],
        )
    again = [request for request in begun if request.attempt > 1]
    if again:
        yield Each(
            "step_again",
            [
                (request.attempt, now.wall, request.place.digest, request.hold.number, request.place.key)
                for request in again
            ],
        )
    return [errors.get(index) or not tasks[request.hold.number].paused for index, request in enumerate(requests)]


def _may_begin(requests: Sequence[H], errors: dict[int, AgentBusError], tasks: dict[int, HeldTask]) -> list[H]:
    """Those whose task is theirs, and may begin its next step."""
    return [
        request
        for index, request in enumerate(requests)
        if index not in errors and not tasks[request.hold.number].paused
    ]


@operation(durable=True, grows=True)
def finish_step(requests: Sequence[FinishStepRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Keep the results of steps."""
    errors, tasks = yield from held(requests)
    yield Each(
        "step_finish",
        [
            (
                now.wall, request.result[1], request.validation, request.result[0], request.ending,
                request.hold.number, request.place.kind, request.place.key,
            )
            for index, request in enumerate(requests)
            if index not in errors
        ],
    )  # fmt: skip
    finished = {request.hold.number for index, request in enumerate(requests) if index not in errors}
    for number in finished:
        yield from _progressed(tasks[number])
        yield from redo_when_ready(tasks[number], now)
    return [errors.get(index) for index in range(len(requests))]


def _progressed(task: HeldTask) -> Op[None]:
    """A task that takes its workers down does so at the same place each time; this one has come further."""
    if task.losses:
        yield Query("task_progressed", (task.number,))


@operation(durable=True)
def fail_step(requests: Sequence[FailStepRequest], now: Now) -> Op[list[Outcome[int | None]]]:
    """Keep what went wrong with steps; the outcome is when there is another attempt (wall), if there is."""
    errors, tasks = yield from held(requests)
    outcomes: list[Outcome[int | None]] = []
    for index, request in enumerate(requests):
        outcomes.append(errors[index] if index in errors else (yield from _fail(request, now)))
    # Once per task: a redo that is carried out takes the task from its worker.
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
            request.place.kind, request.place.key,
        ),
    )  # fmt: skip
    return due


@operation(durable=True, grows=True)
def start_child(requests: Sequence[ChildRequest], now: Now) -> Op[list[Outcome[bool]]]:
    """Start sub-tasks, each with the step that it is of its parent. The outcome is False, and nothing is written, for a
    task that is paused: it is to be halted, or a redo waits."""
    errors, tasks = yield from held(requests)
    takes = Signatures((yield signatures_of(request.child.workflow for request in requests)))
    for index, request in enumerate(requests):
        misfit = takes.misfit(request.child.workflow, request.child.arguments[0])
        if index not in errors and misfit is not None:
            errors[index] = misfit
    valid = _may_begin(requests, errors, tasks)
    yield Each(
        "step_insert",
        [request.place.row(request.hold.number, "running", now.wall, child=request.child.id) for request in valid],
    )
    # Whether approvals are passed through may have changed since the parent was taken.
    yield from insert(
        [msgspec.structs.replace(request.child, auto=bool(tasks[request.hold.number].auto)) for request in valid],
        now,
    )
    return [errors.get(index) or not tasks[request.hold.number].paused for index, request in enumerate(requests)]


@operation(durable=True)
def enter_phase(requests: Sequence[PhaseRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Note the parts that tasks have come to."""
    return (yield from for_holders(requests, _enter_phase, now))


def _enter_phase(request: PhaseRequest, task: HeldTask, now: Now) -> Op[None]:
    yield from _insert_done(request, task, None, now)
    yield Query("task_phase", (request.place.name, now.wall, task.number))
    facts = {"phase": request.place.name, "before": task.phase}
    yield from record([event(now.wall, "task_phase", ("task", task.id), request.actor.agent, **facts)])


@operation(durable=True, grows=True)
def checkpoint_task(requests: Sequence[TaskCheckpointRequest], now: Now) -> Op[list[Outcome[int]]]:
    """Save checkpoints of tasks, each with the step that it is; the outcome is its number."""
    return (yield from for_holders(requests, _checkpoint, now))


def _checkpoint(request: TaskCheckpointRequest, task: HeldTask, now: Now) -> Op[int]:
    saved = yield from carry_out(save_checkpoint, request.save, now)
    yield from _insert_done(request, task, saved.id, now)
    return saved.id


@operation(durable=False)
def progress_task(requests: Sequence[TaskProgressRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Note how far tasks and steps are."""
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
    """What is done as soon as it is recorded."""
    text, crc = plain_payload(result)
    row = request.place.row(
        task.number, "finished", now.wall, finished=now.wall, checksum=crc, result=text, ending=request.ending
    )
    yield Query("step_insert", row)
    yield from _progressed(task)
