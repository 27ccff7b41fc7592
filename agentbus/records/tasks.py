"""Durable tasks as people see them: tasks, their steps, approvals and verdicts."""

from __future__ import annotations

from typing import Any

import msgspec


class TaskProblem(msgspec.Struct, frozen=True):
    """What went wrong: the exception's type and message, where it was raised, and the step that it comes from.
    ``others`` are steps that failed beside it; what tries the one again tries them too.

    >>> TaskProblem("ValueError", "no such file", ["plan.py:12 in read"], "plan").type
    'ValueError'
    """

    type: str
    message: str
    traceback: list[str] = []
    step: str | None = None
    others: list[str] = []


class TaskRecord(msgspec.Struct, frozen=True):
    """A task as the bus knows it. ``status`` is pending, running, waiting, halted, completed, failed or stopped;
    ``phase`` what its workflow calls the part that it is in; ``halting``: it will halt before its next step.

    ``waits`` says what a waiting one waits for: ``approval:plan``, ``task:feature-1/3``, ``step:charge`` (one whose
    outcome is unknown), ``retry:fetch``. ``due`` is the wall time before which no worker takes it (0: any may now).
    ``holder`` is the worker that has it. ``restarted`` of ``restarts`` automatic restarts, ``backoff`` seconds apart
    (ever longer), were needed. ``losses`` counts the workers that died or lost their lease while they ran it, since it
    last made progress; at ``max_losses`` it fails. ``redo`` names the steps whose redo waits until those that run
    beside them have ended. ``error`` is why it failed, until it is taken up again.

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
    max_losses: int = 5
    redo: list[str] = []


class StepRecord(msgspec.Struct, frozen=True):
    """A step of a task, in the order in which they were begun (``position``). ``kind`` is step, task (a sub-task,
    whose id is ``child``), phase or checkpoint. ``status`` is running, retrying (again when ``due``), finished,
    failed, interrupted (its worker went away; it is run again), unknown (the same, of one that must run only once) or
    cancelled.

    ``attempt`` counts executions, ``failures`` those that raised. ``note`` was handed to it by a redo. One that a redo
    has made void is kept: ``superseded`` is then the number of that redo, and 0 for what counts.

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


class ApprovalRecord(msgspec.Struct, frozen=True):
    """A question to a person. ``status`` is open, approved, rejected or expired; ``shown`` is what there is to judge.

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
    """What became of an approval: ``approved`` or not, ``by`` whom, why, and when (wall milliseconds). ``auto``: the
    task passes approvals through; ``expired``: nobody decided in time.

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


class TaskChange(msgspec.Struct, frozen=True):
    """What the callbacks of a worker are told: the step or phase of a task that has changed, or what became of its
    workflow.

    >>> TaskChange("feature-1", "step", "plan", "finished", 1).status
    'finished'
    """

    task: str
    kind: str
    """step, task (one that this one waits for), phase, checkpoint or workflow."""
    name: str
    """The key of the step, the phase, or the workflow."""
    status: str
    attempt: int = 1


class TaskStatistics(msgspec.Struct, frozen=True):
    """Tasks in numbers: by status, by workflow and status; steps by status; approvals that are open;
    ``oldest_pending``, the milliseconds that the oldest task has waited for a worker; ``mean_duration``, in
    milliseconds, of completed ones.

    >>> (await bus.tasks.statistics()).tasks                                          # doctest: +SKIP
    {'completed': 40, 'running': 2}
    """

    tasks: dict[str, int]
    workflows: dict[str, dict[str, int]]
    steps: dict[str, int]
    open_approvals: int
    oldest_pending: int | None
    mean_duration: float | None
