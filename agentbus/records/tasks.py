"""Records of durable tasks: tasks, steps, approvals and verdicts, signals and messages."""

from __future__ import annotations

import builtins
from typing import Any, TypeVar, overload

import msgspec

from agentbus.core.codec import decode_as, plain
from agentbus.core.validation import MAX_LOSSES

T = TypeVar("T")


class TaskProblem(msgspec.Struct, frozen=True):
    """A failure: the exception's type and message, its traceback, and the step that raised it. ``others`` are steps
    that failed concurrently; a retry of one retries them all.

    >>> TaskProblem("ValueError", "no such file", ["plan.py:12 in read"], "plan").type
    'ValueError'
    """

    type: str
    message: str
    traceback: list[str] = []
    step: str | None = None
    others: list[str] = []


class TaskDependency(msgspec.Struct, frozen=True):
    """A task that another one depends on. ``status`` is its present status, ``deleted`` if it is gone; ``completed`` is
    the time at which it completed, None while the other one waits for it.

    >>> TaskDependency("build-1", "running").completed is None
    True
    """

    task: str
    status: str
    completed: int | None = None


class TaskRecord(msgspec.Struct, frozen=True):
    """A durable task. ``status`` is pending, running, waiting, halted, completed, failed or stopped; ``phase`` is the
    current phase of its workflow; ``halting``: it will halt before its next step.

    ``waits`` is the list of things it waits for: ``approval:plan``, ``task:feature-1/3``, ``step:charge`` (a step with
    an unknown outcome), ``retry:fetch``, ``sleep:2026-11-21T09:00:00Z``, ``signal:payment``, ``message``,
    ``after:build-1`` (a dependency that has not completed). ``due`` is the wall time before which no worker takes it
    (0: now). ``holder`` is its worker. ``restarted`` of ``restarts`` automatic restarts were used, the first after
    ``backoff`` seconds, then doubling. ``losses`` counts the workers that died or lost their lease while running it
    since its last progress; at ``max_losses`` it fails. ``redo`` lists the steps whose redo waits for concurrent steps.
    ``error`` is why it failed, until it is resumed.

    A ``manual`` task is a work item, which an agent takes instead of a worker, those of the highest ``priority`` first.
    ``after`` lists the tasks that it depends on; when one fails or is stopped, ``on_failed_dependency`` is ``block`` or
    ``cancel``. ``trace`` is the trace context in which it was started: ``traceparent``, then ``tracestate`` after a
    space.

    >>> record = await bus.tasks.get("feature-1")                                     # doctest: +SKIP
    >>> record.status, record.phase, record.waits                                     # doctest: +SKIP
    ('waiting', 'planning', ['approval:plan'])
    """

    id: str
    name: str
    workflow: str
    status: str
    phase: str | None
    session: str | None
    parent: str | None
    auto: bool
    halting: bool
    progress: int
    note: str | None
    holder: str | None
    waits: list[str]
    due: int | None
    restarts: int
    backoff: float
    restarted: int
    context: dict[str, Any]
    settings: dict[str, Any]
    arguments: list[Any]
    keywords: dict[str, Any]
    result: Any
    error: TaskProblem | None
    created: int
    started: int | None
    updated: int
    ended: int | None
    losses: int = 0
    max_losses: int = MAX_LOSSES
    redo: list[str] = []
    manual: bool = False
    priority: int = 5
    after: list[TaskDependency] = []
    on_failed_dependency: str | None = None
    trace: str | None = None


class StepRecord(msgspec.Struct, frozen=True):
    """A step of a task, in the order of their start (``position``). ``kind`` is step, task (a sub-task, whose id is
    ``child``), phase, checkpoint, sleep, until, signal, receive or expose. ``status`` is running, retrying (at
    ``due``), finished, failed, interrupted (its worker is gone; it is run again), unknown (the same for a step that
    must run only once), waiting (until ``due`` at the latest) or cancelled.

    ``attempt`` counts executions, ``failures`` those that raised. ``note`` was passed by a redo. A step that a redo
    replaced is stored with ``superseded``, the number of that redo; 0 is current. ``trace`` is the trace context of its
    last attempt.

    >>> [(step.key, step.status) for step in await bus.tasks.steps("feature-1")]      # doctest: +SKIP
    [('plan', 'finished'), ('implement', 'running')]
    """

    key: str
    name: str
    kind: str
    status: str
    position: int
    attempt: int
    failures: int
    once: bool
    digest: str
    progress: int | None
    note: str | None
    child: str | None
    due: int | None
    result: Any
    validation: Any
    error: TaskProblem | None
    started: int
    finished: int | None
    superseded: int = 0
    trace: str | None = None


class ApprovalRecord(msgspec.Struct, frozen=True):
    """A request for a decision. ``status`` is open, approved, rejected or expired; ``shown`` is the value to decide on.

    >>> [(one.task, one.key) for one in await bus.tasks.approvals()]                  # doctest: +SKIP
    [('feature-1', 'plan')]
    """

    task: str
    key: str
    name: str
    status: str
    position: int
    shown: Any
    notify: str | None
    expires: int | None
    created: int
    decided: int | None
    by: str | None
    reason: str | None
    auto: bool
    superseded: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """The decision on an approval: ``approved`` or not, ``by`` whom, the reason, and the time (wall milliseconds).
    ``auto``: the task passes approvals through; ``expired``: no decision was made in time.

    >>> verdict = Verdict(approved=False, by="ada", reason="too large")
    >>> verdict.approved, verdict.reason
    (False, 'too large')
    """

    approved: bool
    by: str | None = None
    reason: str | None = None
    decided: int = 0
    auto: bool = False
    expired: bool = False


class TaskMessage(msgspec.Struct, frozen=True):
    """A message that a task received with ``task.receive()``. ``wants_reply``: its sender waits for a reply, which a
    step sends with ``task.unit.reply``. ``created`` is wall time in milliseconds.

    >>> message = await task.receive(timeout=3600)                                    # doctest: +SKIP
    >>> message.type, message.sender, message.payload                                 # doctest: +SKIP
    ('note', 'reviewer-1', {'text': 'looks good'})
    """

    message_id: str
    sender: str
    type: str
    payload: Any
    priority: int
    session: str | None
    correlation: str | None
    wants_reply: bool
    created: int
    expires: int | None = None
    headers: dict[str, str] = {}
    reply_to: int | None = None
    """The mailbox that waits for the reply."""

    @overload
    def decode(self, as_: builtins.type[T]) -> T: ...
    @overload
    def decode(self, as_: Any) -> Any: ...
    def decode(self, as_: Any) -> Any:
        """Decode the content as a Struct, or any other type that msgspec supports. Raises PayloadMismatch.

        >>> message.decode(Plan)                                                      # doctest: +SKIP
        Plan(files=12)
        """
        return decode_as(plain(self.payload), as_, f"the payload of {self.message_id}")


class SignalReceipt(msgspec.Struct, frozen=True):
    """The result of ``bus.tasks.signal``, once the signal is committed. ``duplicate``: this ``signal_id`` was sent
    before, and there is still one signal.

    >>> SignalReceipt("order-7", "payment", "pay-1").duplicate
    False
    """

    task: str
    name: str
    signal_id: str
    duplicate: bool = False


class TaskChange(msgspec.Struct, frozen=True):
    """A change that a worker's callbacks receive: of a step or phase of a task, or of its workflow.

    >>> TaskChange("feature-1", "step", "plan", "finished", 1).status
    'finished'
    """

    task: str
    kind: str
    """One of step, task (a sub-task), phase, checkpoint, sleep, until, signal, receive, expose or workflow."""
    name: str
    """The key of the step, the phase, or the workflow."""
    status: str
    attempt: int = 1
    error: str | None = None
    """The type and text of the exception, if the status is failed or retrying."""


class TaskStatistics(msgspec.Struct, frozen=True):
    """Counters of tasks: by status, by workflow and status; steps by status; open approvals; ``oldest_pending``, the
    milliseconds that the oldest task has waited for a worker; ``mean_duration`` of completed ones, in milliseconds.

    >>> (await bus.tasks.statistics()).tasks                                          # doctest: +SKIP
    {'completed': 40, 'running': 2}
    """

    tasks: dict[str, int]
    workflows: dict[str, dict[str, int]]
    steps: dict[str, int]
    open_approvals: int
    oldest_pending: int | None
    mean_duration: float | None
