"""``bus.tasks``: starting tasks, looking at them, deciding, and controlling them. Running them is in ``worker``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentbus.codec import decode_as, encode, plain
from agentbus.errors import InvalidInput, TaskFailed, TaskTimedOut, UnknownTask
from agentbus.limits import (
    MAX_PAGE,
    check_choice,
    check_choices,
    check_name,
    check_range,
    check_row,
    check_seconds,
    check_text,
    name_or_none,
)
from agentbus.operations.approvals import DecideRequest, decide_approval
from agentbus.operations.controls import (
    AutoRequest,
    ControlRequest,
    EditRequest,
    SettleRequest,
    control_task,
    edit_task,
    set_auto,
    settle_step,
)
from agentbus.operations.task_reading import (
    ApprovalFilter,
    TaskFilter,
    get_task,
    list_approvals,
    list_tasks,
    resumable_tasks,
    task_statistics,
    task_steps,
)
from agentbus.operations.tasks import start_task
from agentbus.records import ApprovalRecord, Page, StepRecord, TaskChange, TaskProblem, TaskRecord, TaskStatistics
from agentbus.tasks.starting import MAX_NAME, MAX_RESTARTS, check_switch, encode_notes, start_request
from agentbus.tasks.workflow import Workflow

if TYPE_CHECKING:
    from agentbus.agent import Agent
    from agentbus.bus import Bus

TASK_STATUSES = ("pending", "running", "waiting", "halted", "completed", "failed", "stopped")
APPROVAL_STATUSES = ("open", "approved", "rejected", "expired")
ENDED = frozenset({"completed", "failed", "stopped"})
_UNSET: Any = object()


class Tasks:
    """The durable tasks of the bus.

    >>> task = await bus.tasks.start(feature, "Add login")                            # doctest: +SKIP
    >>> await bus.tasks.run_worker(feature)                                           # doctest: +SKIP
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._engine = bus.engine

    async def start(
        self,
        workflow: Workflow[..., Any] | str,
        *arguments: Any,
        keywords: Mapping[str, Any] | None = None,
        id: str | None = None,
        name: str | None = None,
        session: str | None = None,
        auto: bool = False,
        context: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        restarts: int = 0,
        backoff: float = 1.0,
        delay: float | None = None,
    ) -> TaskRecord:
        """Have a workflow done with these arguments, by any worker that has it. When this returns, the task is
        committed.

        ``name`` is for people, ``context`` and ``settings`` are for the workflow. ``auto`` passes approvals through. A
        task that fails is tried again ``restarts`` times, first after ``backoff`` seconds, then ever later; ``delay``:
        not before so many seconds. With an ``id`` of your own you may call again after a crash: the same id with the
        same workflow and arguments is the same task.

        >>> await bus.tasks.start(feature, "Add login", session="planning-001")       # doctest: +SKIP
        """
        request = start_request(
            workflow, arguments, keywords, self._bus.max_payload, id=id, name=name, session=session, auto=auto,
            context=context, settings=settings, restarts=restarts, backoff=backoff, delay=delay,
        )  # fmt: skip
        await self._engine.write(start_task, request)
        return await self._record(request.id)

    # Looking

    async def get(self, task: str) -> TaskRecord | None:
        """The record of one task, or None.

        >>> (await bus.tasks.get("feature-1")).status                                 # doctest: +SKIP
        'waiting'
        """
        return await self._engine.look(get_task, check_name(task, "task"))

    async def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: str | None = None,
        session: str | None = None,
        parent: str | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[TaskRecord]:
        """Tasks, newest first.

        >>> page = await bus.tasks.list(status=["waiting", "halted"])                 # doctest: +SKIP
        """
        wanted = TaskFilter(
            None if status is None else check_choices(status, "status", TASK_STATUSES),
            name_or_none(workflow, "workflow"),
            name_or_none(session, "session"),
            name_or_none(parent, "parent"),
            check_row(cursor),
            check_range(limit, "limit", 1, MAX_PAGE),
        )
        return await self._engine.read(list_tasks, wanted)

    async def resumable(self, *, limit: int = 100) -> Sequence[TaskRecord]:
        """Tasks that were begun and not completed, that nobody is at work on, and that wait for no person, newest
        first.

        >>> [task.id for task in await bus.tasks.resumable()]                         # doctest: +SKIP
        ['feature-1']
        """
        return await self._engine.read(resumable_tasks, check_range(limit, "limit", 1, MAX_PAGE))

    async def steps(self, task: str, *, history: bool = False) -> Sequence[StepRecord]:
        """The steps of a task in their order; with ``history`` also those that a redo has made void.

        >>> [(step.key, step.status) for step in await bus.tasks.steps("feature-1")]  # doctest: +SKIP
        [('plan', 'finished'), ('implement', 'running')]
        """
        found = await self._engine.read(task_steps, (check_name(task, "task"), check_switch(history, "history")))
        if found is None:
            raise UnknownTask(task=task)
        return found

    async def approvals(
        self, task: str | None = None, *, status: str | None = "open", history: bool = False, limit: int = 100
    ) -> Sequence[ApprovalRecord]:
        """What people are asked, the oldest first; of one task or of all. ``status=None`` takes what was decided too.

        >>> [(one.task, one.key, one.shown) for one in await bus.tasks.approvals()]   # doctest: +SKIP
        """
        wanted = ApprovalFilter(
            name_or_none(task, "task"),
            None if status is None else check_choice(status, "status", APPROVAL_STATUSES),
            check_switch(history, "history"),
            check_range(limit, "limit", 1, MAX_PAGE),
        )
        return await self._engine.read(list_approvals, wanted)

    async def statistics(self, *, workflow: str | None = None) -> TaskStatistics:
        """Tasks in numbers, of one workflow or of all.

        >>> (await bus.tasks.statistics()).tasks                                      # doctest: +SKIP
        {'completed': 40, 'running': 2}
        """
        return await self._engine.read(task_statistics, name_or_none(workflow, "workflow"))

    async def wait(self, task: str, *, timeout: float | None = None) -> TaskRecord | None:
        """The record of a task once it has ended; None if it has not within ``timeout`` seconds.

        >>> record = await bus.tasks.wait("feature-1", timeout=60)                    # doctest: +SKIP
        """
        # Imported only here: looking at tasks needs no event loop.
        from agentbus.tasks.waiting import ended

        milliseconds = None if timeout is None else check_seconds(timeout, "timeout", zero=True)
        return await ended(self._bus, check_name(task, "task"), milliseconds)

    async def result(self, task: str, *, timeout: float | None = None, as_: Any = None) -> Any:
        """What a task came to, as plain JSON or read as a type. Raises TaskFailed if it failed or was stopped, and
        TaskTimedOut if it has not ended in time.

        >>> await bus.tasks.result("feature-1", as_=Report)                           # doctest: +SKIP
        """
        record = await self.wait(task, timeout=timeout)
        if record is None:
            raise TaskTimedOut(task=task, timeout=timeout)
        if record.status != "completed":
            message = "" if record.error is None else f"{record.error.type}: {record.error.message}"
            raise TaskFailed(task=task, status=record.status, message=message or record.status)
        if as_ is None:
            return record.result
        return decode_as(plain(record.result), as_, f"the result of task {task}")

    # Deciding

    async def approve(
        self, task: str, name: str | None = None, *, by: str, reason: str | None = None
    ) -> ApprovalRecord:
        """Approve what a task asks for: ``by`` is the name of a person. Without a name it is the only open approval.

        >>> await bus.tasks.approve("feature-1", "plan", by="ada")                    # doctest: +SKIP
        """
        return await self._decide(task, name, True, by, reason)

    async def reject(self, task: str, name: str | None = None, *, by: str, reason: str | None = None) -> ApprovalRecord:
        """Reject what a task asks for. Its workflow gets the verdict and the reason, and decides how to go on.

        >>> await bus.tasks.reject("feature-1", "plan", by="ada", reason="too large")  # doctest: +SKIP
        """
        return await self._decide(task, name, False, by, reason)

    async def settle(
        self, task: str, step: str, *, by: str, result: Any = _UNSET, error: str | None = None, redo: bool = False
    ) -> TaskRecord:
        """Say what became of a step with ``once=True`` whose worker went away: its ``result``; or the ``error`` that it
        failed with; or let it run again (``redo``). ``by`` is the name of a person.

        >>> await bus.tasks.settle("order-7", "charge", by="ada", result={"paid": True})   # doctest: +SKIP
        """
        if (result is not _UNSET) + (error is not None) + bool(redo) != 1:
            raise InvalidInput(reason="settle() takes one of result=, error= and redo=True")
        request = SettleRequest(
            check_name(task, "task"),
            _check_key(step),
            _operator(by),
            None if result is _UNSET else encode(result, self._bus.max_payload),
            None if error is None else plain(TaskProblem("Settled", check_text(error, "error", 10_000), [], step)),
        )
        await self._engine.write(settle_step, request)
        return await self._record(task)

    # Control

    async def halt(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Let a task, and its sub-tasks, come to a halt before the next step.

        >>> await bus.tasks.halt("feature-1", by="ada")                               # doctest: +SKIP
        """
        return await self._control("halt", task, by, reason)

    async def continue_(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Let a task that was halted go on.

        >>> await bus.tasks.continue_("feature-1")                                    # doctest: +SKIP
        """
        return await self._control("continue", task, by, reason)

    async def stop(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Give a task up, with its sub-tasks: the step that runs is cancelled. It can be resumed.

        >>> await bus.tasks.stop("feature-1", reason="not wanted any more")           # doctest: +SKIP
        """
        return await self._control("stop", task, by, reason)

    async def resume(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Let a task go on that was halted, stopped or failed, after its last finished step; the step that failed runs
        again. One that waits for its time goes on at once.

        >>> await bus.tasks.resume("feature-1")                                       # doctest: +SKIP
        """
        return await self._control("resume", task, by, reason)

    async def redo(
        self, task: str, step: str, *, note: str | None = None, by: str | None = None, reason: str | None = None
    ) -> TaskRecord:
        """Do a step again, and everything after it. What it made void is kept as history; sub-tasks among it are
        stopped. The step finds the ``note`` as ``task.note``. An approval is named like ``approval:plan``.

        >>> await bus.tasks.redo("feature-1", "implement", note="use the new client")  # doctest: +SKIP
        """
        checked = None if note is None else check_text(note, "note")
        return await self._control("redo", task, by, reason, _check_key(step), checked)

    async def restart(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Do a task again from its beginning. What was done is kept as history.

        >>> await bus.tasks.restart("feature-1")                                      # doctest: +SKIP
        """
        return await self._control("restart", task, by, reason)

    async def auto(self, task: str, on: bool = True, *, by: str | None = None) -> TaskRecord:
        """Pass the approvals of a task through from now on, the open ones too, and those of its sub-tasks; or ask
        people again. It is recorded which were passed through.

        >>> await bus.tasks.auto("feature-1", True)                                   # doctest: +SKIP
        """
        await self._engine.write(set_auto, AutoRequest(check_name(task, "task"), check_switch(on, "on"), _name(by)))
        return await self._record(task)

    async def edit(
        self,
        task: str,
        *,
        name: str | None = None,
        context: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        restarts: int | None = None,
        backoff: float | None = None,
        by: str | None = None,
    ) -> TaskRecord:
        """Change what a task is called, what its workflow is told, or how it is restarted. A worker that is at it
        learns of a new context and new settings when it takes the task next.

        >>> await bus.tasks.edit("feature-1", settings={"model": "small"})            # doctest: +SKIP
        """
        limit = self._bus.max_payload
        request = EditRequest(
            check_name(task, "task"),
            None if name is None else check_text(name, "name", MAX_NAME, low=1),
            None if context is None else encode_notes(context, "context", limit),
            None if settings is None else encode_notes(settings, "settings", limit),
            None if restarts is None else check_range(restarts, "restarts", 0, MAX_RESTARTS),
            None if backoff is None else check_seconds(backoff, "backoff", zero=True),
            _name(by),
        )
        await self._engine.write(edit_task, request)
        return await self._record(task)

    # Working

    async def run_worker(
        self,
        *workflows: Workflow[..., Any],
        concurrency: int = 8,
        agent: Agent | str | None = None,
        lease: float = 60.0,
        on_step: Callable[[TaskChange], Any] | None = None,
        on_phase: Callable[[TaskChange], Any] | None = None,
        until_idle: bool = False,
    ) -> None:
        """Take tasks of these workflows and run them, so many at a time, for ever; with ``until_idle`` until none can
        be taken. Interrupted ones go on after their last finished step. Any number of workers may run, in many
        processes.

        A worker is an agent, of the type worker: this one, one of this id, or one with an id of its own. It holds each
        task for ``lease`` seconds, and renews that while it runs. The callbacks are told of each change.

        >>> await bus.tasks.run_worker(feature, bugfix, concurrency=32)               # doctest: +SKIP
        """
        from agentbus.tasks.worker import run_worker

        await run_worker(
            self._bus, workflows, check_range(concurrency, "concurrency", 1, 10_000), agent,
            check_seconds(lease, "lease"), on_step, on_phase, check_switch(until_idle, "until_idle"),
        )  # fmt: skip

    async def _control(
        self,
        action: str,
        task: str,
        by: str | None,
        reason: str | None,
        step: str | None = None,
        note: str | None = None,
    ) -> TaskRecord:
        checked = None if reason is None else check_text(reason, "reason")
        request = ControlRequest(check_name(task, "task"), action, _name(by), checked, step, note)
        await self._engine.write(control_task, request)
        return await self._record(task)

    async def _decide(self, task: str, name: str | None, approved: bool, by: str, reason: str | None) -> ApprovalRecord:
        request = DecideRequest(
            check_name(task, "task"),
            None if name is None else _check_key(name),
            approved,
            _operator(by),
            None if reason is None else check_text(reason, "reason"),
        )
        decided = await self._engine.write(decide_approval, request)
        found = await self._engine.read(list_approvals, ApprovalFilter(task))
        return next(record for record in found if record.key == decided.key)

    async def _record(self, task: str) -> TaskRecord:
        record = await self._engine.look(get_task, task)
        if record is None:
            raise UnknownTask(task=task)
        return record


def _check_key(key: object) -> str:
    """A step's name, with the number that it may have, and its kind before it: ``plan``, ``plan#2``,
    ``approval:plan``."""
    name, mark, number = key.partition("#") if isinstance(key, str) else (key, "", "")
    if mark and not (number.isascii() and number.isdigit()):
        raise InvalidInput(reason=f"{key!r} is not a step; write plan, or plan#2 for the second of that name")
    check_name(name, "step")
    return str(key)


def _operator(by: object) -> str:
    return check_text(by, "by", 200, low=1)


def _name(by: object) -> str | None:
    return None if by is None else _operator(by)
