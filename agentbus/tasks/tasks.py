"""``bus.tasks``: starting tasks, looking at them, deciding, and controlling them. Running them is in ``worker``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentbus.codec import decode_as, plain
from agentbus.errors import TaskFailed, TaskTimedOut, UnknownTask
from agentbus.limits import (
    MAX_PAGE,
    TASK_STATUSES,
    check_choice,
    check_name,
    check_range,
    check_row,
    check_seconds,
    choices_or_none,
    name_or_none,
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
from agentbus.operations.tasks import MAX_LOSSES, start_task
from agentbus.records import ApprovalRecord, Page, StepRecord, TaskChange, TaskRecord, TaskStatistics
from agentbus.tasks.control import Control
from agentbus.tasks.starting import check_switch, start_request
from agentbus.tasks.workflow import Workflow

if TYPE_CHECKING:
    from agentbus.agent import Agent

APPROVAL_STATUSES = ("open", "approved", "rejected", "expired")


class Tasks(Control):
    """The durable tasks of the bus.

    >>> task = await bus.tasks.start(feature, "Add login")                            # doctest: +SKIP
    >>> await bus.tasks.run_worker(feature)                                           # doctest: +SKIP
    """

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
        max_losses: int = MAX_LOSSES,
    ) -> TaskRecord:
        """Have a workflow done with these arguments, by any worker that has it. When this returns, the task is
        committed. Arguments that the workflow does not take are refused (WrongArguments): by its function, if that is
        given, and by what live workers announce. Of several versions of a workflow one has to take them.

        ``name`` is for people, ``context`` and ``settings`` are for the workflow. ``auto`` passes approvals through. A
        task that fails is tried again ``restarts`` times, first after ``backoff`` seconds, then ever later. ``delay``
        is the number of seconds before it may begin. A task fails once ``max_losses`` workers in a row died or
        lost their lease while they ran it, without a step of it having finished. With an ``id`` of your own you may
        call again after a crash: the same id with the same workflow and arguments is the same task.

        >>> await bus.tasks.start(feature, "Add login", session="planning-001")       # doctest: +SKIP
        """
        request = start_request(
            workflow, arguments, keywords, self._bus.max_payload, id=id, name=name, session=session, auto=auto,
            context=context, settings=settings, restarts=restarts, backoff=backoff, delay=delay, max_losses=max_losses,
        )  # fmt: skip
        await self._checked(start_task, request)
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
            choices_or_none(status, "status", TASK_STATUSES),
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

    # Working

    async def run_worker(
        self,
        *workflows: Workflow[..., Any],
        concurrency: int = 8,
        agent: Agent | str | None = None,
        lease: float = 60.0,
        on_step: Callable[[TaskChange], Any] | None = None,
        on_phase: Callable[[TaskChange], Any] | None = None,
        on_task: Callable[[TaskChange], Any] | None = None,
        until_idle: bool = False,
    ) -> None:
        """Take tasks of these workflows and run them, so many at a time, for ever; with ``until_idle`` until none can
        be taken. Interrupted ones go on after their last finished step. Any number of workers may run, in many
        processes.

        A worker is an agent, of the type worker: this one, one of this id, or one with an id of its own (whose
        capabilities are the workflows). It holds each task for ``lease`` seconds, and renews that while it runs. The
        callbacks are told of each change; ``on_task`` when a task ends, or is let go because it waits.

        >>> await bus.tasks.run_worker(feature, bugfix, concurrency=32)               # doctest: +SKIP
        """
        from agentbus.tasks.worker import run_worker

        await run_worker(
            self._bus, workflows, check_range(concurrency, "concurrency", 1, 10_000), agent,
            check_seconds(lease, "lease"), on_step, on_phase, on_task, check_switch(until_idle, "until_idle"),
        )  # fmt: skip

    async def _record(self, task: str) -> TaskRecord:
        record = await self._engine.look(get_task, task)
        if record is None:
            raise UnknownTask(task=task)
        return record
