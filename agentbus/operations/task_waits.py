"""Waits of a task: for a time, for a signal, or for a message. A wait is a step; its end and what it was for are one
commit. Also the values that a task exposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import check, decode, plain, plain_payload
from agentbus.errors import AgentBusError, SignalTimedOut
from agentbus.operations.protocol import Op, Outcome, Query, operation
from agentbus.operations.task_mail import next_message, take_message
from agentbus.operations.task_ownership import HeldRequest, HeldTask, for_holders, known_task

if TYPE_CHECKING:
    from agentbus.operations.task_steps import StepIdentity

WAITS = frozenset({"sleep", "until", "signal", "receive"})
"""The kinds of steps that wait."""


class WaitRequest(HeldRequest, frozen=True):
    """Start a wait (``new``), or look whether it is over. It ends at ``due`` (wall) or after ``delay`` milliseconds at
    the latest; ``expired``: that time has passed by the clock of the worker. ``ending`` is its number in the order in
    which the steps of its task end."""

    row_estimate: ClassVar[int] = 3
    step: StepIdentity
    new: bool = True
    delay: int | None = None
    due: int | None = None
    expired: bool = False
    ending: int | None = None


class Waited(msgspec.Struct, frozen=True):
    """A wait: its status (waiting, finished or failed), when it ends at the latest, the JSON that it recorded with the
    checksum, and the problem of one that failed."""

    status: str
    due: int | None = None
    result: tuple[str, int] | None = None
    error: str | None = None


class ExposeRequest(HeldRequest, frozen=True):
    """Expose a value (JSON and its checksum) under the name of the step."""

    step: StepIdentity
    value: tuple[str, int]
    ending: int | None = None

    @property
    def data_size(self) -> int:
        return len(self.value[0])


@operation(durable=True, stores_data=True)
def wait_step(requests: Sequence[WaitRequest], now: Now) -> Op[list[Outcome[Waited]]]:
    """Start or end waits."""
    return (yield from for_holders(requests, _wait, now))


def _wait(request: WaitRequest, task: HeldTask, now: Now) -> Op[Waited]:
    step = request.step
    found = [] if request.new else (yield Query("step_recorded", (task.number, step.kind, step.key)))
    abandoned = bool(found) and found[0][3] == "cancelled"
    if request.new or abandoned:
        due = request.due if request.delay is None else now.wall + request.delay
    else:
        due = found[0][10]
    waited, message = yield from _outcome(request, task, due, now)
    text, crc = waited.result or (None, None)
    over = waited.status != "waiting"
    finished, ending = (now.wall, request.ending) if over else (None, None)
    if request.new:
        row = step.row(
            task.number, waited.status, now.wall, finished=finished, checksum=crc, result=text, ending=ending
        )
        yield Query("step_wait", (*row, waited.due, message, waited.error))
    elif over:
        end = (waited.status, finished, crc, text, waited.error, ending, message)
        yield Query("step_wait_over", (*end, task.number, step.kind, step.key))
    elif abandoned:
        yield Query("step_wait_again", (now.wall, due, task.number, step.kind, step.key))
    if task.losses:
        yield Query("task_progressed", (task.number,))
    return waited


def _outcome(request: WaitRequest, task: HeldTask, due: int | None, now: Now) -> Op[tuple[Waited, int | None]]:
    """Return the wait as it is now, and the row of the message that it received."""
    step = request.step
    message: int | None = None
    result: tuple[str, int] | None = None
    if step.kind == "signal":
        rows = yield Query("signal_take", (step.position, task.number, step.name))
        result = (rows[0][1], rows[0][0]) if rows else None
    elif step.kind == "receive":
        taken = yield from take_message(task, now)
        message, result = taken or (None, None)
    if result is not None:
        return Waited("finished", None, result), message
    if not request.expired and (due is None or due > now.wall):
        return Waited("waiting", due), None
    if step.kind != "signal":
        return Waited("finished", None, plain_payload(None)), None
    return Waited("failed", error=_timed_out(task.id, step)), None


def _timed_out(task: str, step: StepIdentity) -> str:
    # Imported only here: senders of messages need no tasks.
    from agentbus.records import TaskProblem

    error = SignalTimedOut(task=task, name=step.name, step=step.key)
    return plain(TaskProblem(type(error).__name__, str(error.args[0]), [], step.key))


def has_arrived(wanted: tuple[int, str, str], now: Now) -> Op[bool]:
    """Return whether what a task waits for may be there, by its number, the kind of the wait, and the name."""
    task, kind, name = wanted
    if kind == "signal":
        return bool((yield Query("signal_waiting", (task, name))))
    found = yield Query("message_for_task", (task, now.wall))
    return bool(found and found[0][1])


def describe_waits(
    task: HeldTask, awaits: Sequence[tuple[str, str]], due: int | None, now: Now
) -> Op[tuple[list[str], int | None]]:
    """Return what a task waits for as its record names it, and when it is due: at the latest when the next scheduled
    message is."""
    if not any(kind in WAITS for kind, _ in awaits):
        return [f"{kind}:{name}" for kind, name in awaits], due
    rows = yield Query("step_waits", (task.number,))
    known = {(kind, key): (name, until) for kind, key, name, until in rows}
    texts: list[str] = []
    for kind, key in awaits:
        name, until = known.get((kind, key), (key, None))
        if kind in {"sleep", "until"}:
            texts.append(f"sleep:{_iso(until or due or now.wall)}")
        else:
            texts.append("message" if kind == "receive" else f"{kind}:{name}")
    if any(kind == "receive" for kind, _ in awaits):
        arrives = yield from next_message(task, now)
        due = min((one for one in (due, arrives) if one is not None), default=None)
    return list(dict.fromkeys(texts)), due


def _iso(wall: int) -> str:
    # Imported only here: few releases wait for a time.
    from datetime import UTC, datetime

    # Rounded up: at that second the wait is over.
    return datetime.fromtimestamp(-(-wall // 1000), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@operation(durable=True, stores_data=True)
def expose_value(requests: Sequence[ExposeRequest], now: Now) -> Op[list[Outcome[None]]]:
    """Store the values that tasks expose, each as a step; the last of a name counts."""
    return (yield from for_holders(requests, _expose, now))


def _expose(request: ExposeRequest, task: HeldTask, now: Now) -> Op[None]:
    text, crc = request.value
    row = request.step.row(
        task.number, "finished", now.wall, finished=now.wall, checksum=crc, result=text, ending=request.ending
    )
    yield Query("step_insert", row)
    if task.losses:
        yield Query("task_progressed", (task.number,))


def exposed_values(wanted: tuple[str, str | None], now: Now) -> Op[dict[str, Any]]:
    """Return the values that a task exposes, by name; of one name, or of all."""
    id, name = wanted
    task = yield from known_task(id)
    if isinstance(task, AgentBusError):
        raise task
    rows = yield Query("step_exposed", (task.number, name))
    values: dict[str, Any] = {}
    for key, checksum, text in rows:
        check(text, checksum, f"the value {key} of task {id}")
        values[key] = decode(text)
    return values
