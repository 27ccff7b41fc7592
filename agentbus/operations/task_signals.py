"""Signals: values that other programs send to a task under a name. A task receives those of a name in the order in
which they were sent, each once, whether it waits for them already or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import canonical
from agentbus.core.validation import TASK_ENDED
from agentbus.errors import AgentBusError, ReceivesNothing, SignalIdConflict, TaskEnded
from agentbus.operations.events import event, record
from agentbus.operations.protocol import Op, Outcome, Query, single_operation
from agentbus.operations.task_ownership import HeldTask, known_task, make_waiting_ready, wake_holder

if TYPE_CHECKING:
    from agentbus.records import SignalReceipt


class SignalRequest(msgspec.Struct, frozen=True):
    """Send a signal to a task: the JSON of its value and the checksum. ``signal_id``: the same id is one signal."""

    task: str
    name: str
    value: tuple[str, int]
    signal_id: str | None = None
    by: str | None = None

    @property
    def data_size(self) -> int:
        return len(self.value[0])


@single_operation(durable=True, stores_data=True)
def signal_task(request: SignalRequest, now: Now) -> Op[Outcome[SignalReceipt]]:
    """Store signals, and make the tasks ready that wait for them."""
    # Imported only here: workers and commands that read tasks send no signals.
    from agentbus.records import SignalReceipt

    task = yield from known_task(request.task)
    if isinstance(task, AgentBusError):
        return task
    if task.manual:
        return ReceivesNothing(task=task.id)
    if request.signal_id is not None:
        known = yield Query("signal_known", (task.number, request.signal_id))
        if known:
            differs = _difference(request, *known[0])
            if differs is not None:
                return SignalIdConflict(task=task.id, signal_id=request.signal_id, differs=differs)
            # The first sender may have died before its fsync: writing a row makes this commit a real one.
            yield Query("counter_take", ("message", 0))
            return SignalReceipt(task.id, request.name, request.signal_id, duplicate=True)
    if task.status in TASK_ENDED:
        return TaskEnded(task=task.id, status=task.status)
    text, checksum = request.value
    values = (task.number, request.name, request.signal_id, request.by, now.wall, checksum, text)
    ((id,),) = yield Query("signal_insert", values)
    signal_id = request.signal_id or f"s-{id}"
    facts = {"signal": request.name, "signal_id": signal_id}
    yield from record([event(now.wall, "task_signalled", ("task", task.id), request.by, **facts)])
    yield from _wake(task, request.name, now)
    return SignalReceipt(task.id, request.name, signal_id)


def _difference(request: SignalRequest, name: str, value: str) -> str | None:
    """Return the part of the content in which the first signal of this id differs, or None."""
    if name != request.name:
        return "name"
    return None if canonical(value) == canonical(request.value[0]) else "value"


def _wake(task: HeldTask, name: str, now: Now) -> Op[None]:
    """Make a task ready that waits for a signal of this name, or wake its worker. Others receive it later."""
    if task.status == "waiting" and (yield Query("step_awaits", (task.number, name))):
        yield from make_waiting_ready([task], now)
    yield from wake_holder(task)
