"""``bus.tasks``: start, read, decide and control durable tasks. ``worker`` runs them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple, Unpack, overload

import msgspec

from agentbus import core
from agentbus.api.tasks.workflow import (
    LOSSES_LIMIT,
    MAX_NAME,
    MAX_RESTARTS,
    BoundWorkflow,
    StartOptions,
    Workflow,
    WorkflowOnly,
    check_bool,
    check_task_ids,
    encode_object,
    start_request,
    unbind,
)
from agentbus.core.codec import decode_as, encode, plain
from agentbus.core.validation import (
    LEASE,
    MAX_LOSSES,
    MAX_PAGE,
    PAGE_SIZE,
    RETRY_DELAY,
    TASK_STATUSES,
    Priority,
    check_choice,
    check_name,
    check_range,
    check_row_cursor,
    check_seconds,
    check_text,
    choices_or_none,
    name_or_none,
)
from agentbus.errors import InvalidInput, NotExposed, TaskFailed, TaskTimedOut, UnknownTask, WrongArguments
from agentbus.operations.protocol import Operation
from agentbus.operations.task_approvals import DecideRequest, decide_approval
from agentbus.operations.task_control import (
    AutoRequest,
    ControlRequest,
    EditRequest,
    SettleRequest,
    control_task,
    edit_task,
    set_auto,
    settle_step,
)
from agentbus.operations.task_dependencies import POLICIES, ChangedDependencies, OnFailedDependency
from agentbus.operations.task_lookups import (
    ApprovalFilter,
    ReadyFilter,
    TaskFilter,
    get_task,
    list_approvals,
    list_tasks,
    ready_tasks,
    resumable_tasks,
    task_statistics,
    task_steps,
)
from agentbus.operations.task_ownership import ENDED, ended_channel
from agentbus.operations.task_signals import SignalRequest, signal_task
from agentbus.operations.task_waits import exposed_values
from agentbus.operations.tasks import StartRequest, start_task
from agentbus.records import (
    ApprovalRecord,
    Page,
    SignalReceipt,
    StepRecord,
    TaskChange,
    TaskProblem,
    TaskRecord,
    TaskStatistics,
)

if TYPE_CHECKING:
    from agentbus.api.agent import Agent
    from agentbus.api.bus import Bus

_UNSET: Any = object()
_NEAR = 3
"""Names that an error suggests."""

APPROVAL_STATUSES = ("open", "approved", "rejected", "expired")

R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Control:
    """Decisions and control of tasks, the base of ``bus.tasks``.

    >>> await bus.tasks.approve("feature-1", "plan", by="ada")                        # doctest: +SKIP
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._engine = bus._engine

    # Decisions

    async def approve(
        self, task: str, name: str | None = None, *, by: str, reason: str | None = None
    ) -> ApprovalRecord:
        """Approve a request of a task; ``by`` is the operator. ``name`` may be omitted if one approval is open.

        >>> await bus.tasks.approve("feature-1", "plan", by="ada")                    # doctest: +SKIP
        """
        return await self._decide(task, name, True, by, reason)

    async def reject(self, task: str, name: str | None = None, *, by: str, reason: str | None = None) -> ApprovalRecord:
        """Reject a request of a task. Its workflow receives the verdict with the reason, and continues.

        >>> await bus.tasks.reject("feature-1", "plan", by="ada", reason="too large")  # doctest: +SKIP
        """
        return await self._decide(task, name, False, by, reason)

    async def settle(
        self, task: str, step: str, *, by: str, result: Any = _UNSET, error: str | None = None, redo: bool = False
    ) -> TaskRecord:
        """Settle a step with ``once=True`` whose worker died: with its ``result``, with the ``error`` that it failed
        with, or by running it again (``redo``). ``by`` is the operator.

        >>> await bus.tasks.settle("order-7", "charge", by="ada", result={"paid": True})   # doctest: +SKIP
        """
        if (result is not _UNSET) + (error is not None) + bool(redo) != 1:
            raise InvalidInput(reason="settle() takes one of result=, error= and redo=True")
        step = _check_key(step).removeprefix("step:")
        request = SettleRequest(
            check_name(task, "task"),
            step,
            _operator(by),
            None if result is _UNSET else encode(result, self._bus._max_payload),
            None if error is None else plain(TaskProblem("Settled", check_text(error, "error", 10_000), [], step)),
        )
        return await self._engine.write(settle_step, request)

    # Signals

    async def signal(
        self, task: str, name: str, value: Any = None, *, signal_id: str | None = None, by: str | None = None
    ) -> SignalReceipt:
        """Send a signal to a task, whose workflow receives it with ``task.signal(name)``, now or later. When this
        returns, the signal is committed. ``value`` is JSON; ``by`` is the sender, for the audit log.

        The same ``signal_id`` is one signal: pass one to retry a send after a crash. Raise UnknownTask, or TaskEnded
        if the task has completed, failed or was stopped.

        >>> await bus.tasks.signal("order-7", "payment", {"paid": 12}, signal_id="pay-1")   # doctest: +SKIP
        """
        request = SignalRequest(
            check_name(task, "task"),
            check_name(name, "signal"),
            encode(value, self._bus._max_payload),
            None if signal_id is None else check_name(signal_id, "signal_id"),
            _operator_or_none(by),
        )
        return await self._engine.write(signal_task, request)

    # Control

    async def halt(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Halt a task and its sub-tasks before their next step.

        >>> await bus.tasks.halt("feature-1", by="ada")                               # doctest: +SKIP
        """
        return await self._control("halt", task, by, reason)

    async def continue_(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Continue a halted task.

        >>> await bus.tasks.continue_("feature-1")                                    # doctest: +SKIP
        """
        return await self._control("continue", task, by, reason)

    async def stop(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Stop a task and its sub-tasks: the running step is cancelled. A stopped task can be resumed.

        >>> await bus.tasks.stop("feature-1", reason="no longer wanted")              # doctest: +SKIP
        """
        return await self._control("stop", task, by, reason)

    async def resume(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Resume a halted, stopped or failed task after its last finished step; a failed step runs again. A delayed
        task starts at once.

        >>> await bus.tasks.resume("feature-1")                                       # doctest: +SKIP
        """
        return await self._control("resume", task, by, reason)

    async def redo(
        self, task: str, step: str, *, note: str | None = None, by: str | None = None, reason: str | None = None
    ) -> TaskRecord:
        """Run a step again, and every step that started after it had ended. Invalidated steps are stored as history;
        their sub-tasks are stopped. The step reads ``note`` as ``task.note``. ``approval:plan`` names an approval.

        Concurrent steps that do not depend on it finish first; until then no other step starts, and the record names
        the step in ``redo``. If their worker dies meanwhile, the redo takes effect at once.

        >>> await bus.tasks.redo("feature-1", "implement", note="use the new client")  # doctest: +SKIP
        """
        checked = None if note is None else check_text(note, "note")
        return await self._control("redo", task, by, reason, _check_key(step), checked)

    async def restart(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Restart a task from its beginning. Its steps are stored as history.

        >>> await bus.tasks.restart("feature-1")                                      # doctest: +SKIP
        """
        return await self._control("restart", task, by, reason)

    async def auto(self, task: str, on: bool = True, *, by: str | None = None) -> TaskRecord:
        """Approve all requests of a task and its sub-tasks automatically, including open ones; or, with False, ask
        again. Automatic approvals are recorded as such.

        >>> await bus.tasks.auto("feature-1", True)                                   # doctest: +SKIP
        """
        request = AutoRequest(check_name(task, "task"), check_bool(on, "on"), _operator_or_none(by))
        return await self._engine.write(set_auto, request)

    async def edit(
        self,
        task: str,
        *,
        name: str | None = None,
        context: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        restarts: int | None = None,
        backoff: float | None = None,
        max_losses: int | None = None,
        arguments: Sequence[Any] | None = None,
        keywords: Mapping[str, Any] | None = None,
        priority: int | None = None,
        after: Sequence[str] = (),
        no_after: Sequence[str] = (),
        on_failed_dependency: OnFailedDependency | None = None,
        by: str | None = None,
    ) -> TaskRecord:
        """Change the name, context, settings or restart policy of a task. A running worker sees a new context and new
        settings when it claims the task next.

        ``arguments`` and ``keywords`` replace those of a task that no worker holds and that is not completed: one that
        failed because they were wrong can then be resumed. Finished steps stay finished. If the workflow now calls a
        finished step with other arguments, the task fails with WorkflowChanged, which names the step: redo it.

        ``priority`` is that of a work item. ``after`` adds dependencies to a task that has not started, ``no_after``
        removes some: without the last open one it starts.

        >>> await bus.tasks.edit("feature-1", settings={"model": "small"})            # doctest: +SKIP
        >>> await bus.tasks.edit("deploy-1", after=["audit-1"], no_after=["build-1"])  # doctest: +SKIP
        >>> await bus.tasks.edit("feature-1", arguments=["Add logout"])               # doctest: +SKIP
        """
        dependencies = _changed_dependencies(after, no_after, on_failed_dependency)
        changes = (name, context, settings, restarts, backoff, max_losses, arguments, keywords, priority, dependencies)
        if all(one is None for one in changes):
            raise InvalidInput(
                reason="edit() needs at least one change: name, context, settings, restarts, backoff, max_losses, "
                "arguments, keywords, priority, after, no_after, on_failed_dependency"
            )
        if arguments is not None and (isinstance(arguments, str) or not isinstance(arguments, Sequence)):
            raise InvalidInput(reason="arguments must be a list: arguments=[…]")
        limit = self._bus._max_payload
        request = EditRequest(
            check_name(task, "task"),
            None if name is None else check_text(name, "name", MAX_NAME, low=1),
            None if context is None else encode_object(context, "context", limit),
            None if settings is None else encode_object(settings, "settings", limit),
            None if restarts is None else check_range(restarts, "restarts", 0, MAX_RESTARTS),
            None if backoff is None else check_seconds(backoff, "backoff", zero=True),
            None if max_losses is None else check_range(max_losses, "max_losses", 1, LOSSES_LIMIT),
            None if arguments is None else encode(list(arguments), limit)[0],
            None if keywords is None else encode_object(keywords, "keywords", limit),
            limit,
            _operator_or_none(by),
            None if priority is None else check_range(priority, "priority", 0, 9),
            dependencies,
        )
        return await self._write_arguments(edit_task, request)

    async def _write_arguments(self, operation: Operation[R, T], request: R) -> T:
        """Write a request that carries workflow arguments. If they are refused, check for dead workers and retry."""
        try:
            return await self._engine.write(operation, request)
        except WrongArguments:
            from agentbus.engine.processes import notice_deaths

            if not await notice_deaths(self._engine):
                raise
        return await self._engine.write(operation, request)

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
        request = ControlRequest(check_name(task, "task"), action, _operator_or_none(by), checked, step, note)
        return await self._engine.write(control_task, request)

    async def _decide(self, task: str, name: str | None, approved: bool, by: str, reason: str | None) -> ApprovalRecord:
        request = DecideRequest(
            check_name(task, "task"),
            None if name is None else _check_key(name),
            approved,
            _operator(by),
            None if reason is None else check_text(reason, "reason"),
        )
        return await self._engine.write(decide_approval, request)


def _changed_dependencies(
    after: Sequence[str], no_after: Sequence[str], policy: str | None
) -> ChangedDependencies | None:
    """Return the checked changes of dependencies, or None if there are none."""
    added, removed = check_task_ids(after, "after"), check_task_ids(no_after, "no_after")
    both = [id for id in added if id in removed]
    if both:
        raise InvalidInput(reason=f"after and no_after both name {both[0]}")
    if policy is not None:
        check_choice(policy, "on_failed_dependency", POLICIES)
    return ChangedDependencies(added, removed, policy) if added or removed or policy is not None else None


def _check_key(key: object) -> str:
    """Check the key of a step: its name, optionally with a number or a kind (``plan``, ``plan#2``,
    ``approval:plan``)."""
    name, mark, number = key.partition("#") if isinstance(key, str) else (key, "", "")
    if mark and not (number.isascii() and number.isdigit()):
        raise InvalidInput(reason=f"{key!r} is not a step; write plan, or plan#2 for the second of that name")
    check_name(name, "step")
    return str(key)


def _operator(by: object) -> str:
    return check_text(by, "by", 200, low=1)


def _operator_or_none(by: object) -> str | None:
    return None if by is None else _operator(by)


class Tasks(Control):
    """The durable tasks of the bus.

    >>> task = await bus.tasks.start(feature, "Add login")                            # doctest: +SKIP
    >>> await bus.tasks.run_worker(feature)                                           # doctest: +SKIP
    """

    @overload
    async def start(
        self,
        workflow: Callable[[WorkflowOnly, Unpack[Ts]], Coroutine[Any, Any, Any]],
        *arguments: *Ts,
        **options: Unpack[StartOptions],
    ) -> TaskRecord: ...
    @overload
    async def start(self, workflow: BoundWorkflow[Any], **options: Unpack[StartOptions]) -> TaskRecord: ...
    @overload
    async def start(
        self,
        workflow: Workflow[..., Any],
        *arguments: Any,
        keywords: Mapping[str, Any],
        **options: Unpack[StartOptions],
    ) -> TaskRecord: ...
    @overload
    async def start(
        self,
        workflow: str,
        *arguments: Any,
        keywords: Mapping[str, Any] | None = None,
        **options: Unpack[StartOptions],
    ) -> TaskRecord: ...
    async def start(  # type: ignore[misc]  # mypy compares *arguments: Any with a TypeVarTuple
        self,
        workflow: Workflow[..., Any] | BoundWorkflow[Any] | str | Callable[..., Any],
        *arguments: Any,
        keywords: Mapping[str, Any] | None = None,
        id: str | None = None,
        name: str | None = None,
        session: str | None = None,
        auto: bool = False,
        context: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        restarts: int = 0,
        backoff: float = RETRY_DELAY,
        delay: float | None = None,
        max_losses: int = MAX_LOSSES,
        after: Sequence[str] = (),
        on_failed_dependency: OnFailedDependency = "block",
    ) -> TaskRecord:
        """Start a task that any worker with this workflow runs. When this returns, the task is committed. Arguments
        that the workflow does not accept raise WrongArguments: they are checked against its function, if given, and
        against the signatures that live workers announce, of which one must accept them.

        ``name`` is for display; ``context`` and ``settings`` are for the workflow. ``auto`` approves every request. A
        failed task restarts up to ``restarts`` times, first after ``backoff`` seconds, then with growing delays. It
        starts after ``delay`` seconds at the earliest. A task fails once ``max_losses`` workers in a row died or lost
        their lease while running it, with no step finished. Starting with an ``id`` is idempotent: after a crash, the
        same id with the same workflow and arguments is the same task.

        The task starts when all tasks of ``after`` have completed; an unknown id raises UnknownTask. If one of them
        fails or is stopped, ``on_failed_dependency`` decides: ``block`` waits until it completes after all, or is
        removed by ``edit``; ``cancel`` stops this task.

        A type checker checks the positional arguments against the workflow. Keyword arguments of the workflow are given
        as ``keywords={…}``, which is checked at run time only, or with ``workflow.bind(…)``, which is checked.

        >>> await bus.tasks.start(feature, "Add login", session="planning-001")       # doctest: +SKIP
        >>> await bus.tasks.start(feature.bind("Add login", model="small"), id="login-1")   # doctest: +SKIP
        >>> await bus.tasks.start(deploy, after=["build-1", "test-1"])                # doctest: +SKIP
        """
        called, arguments, keywords = unbind(workflow, arguments, keywords)
        request = start_request(
            called, arguments, keywords, self._bus._max_payload, id=id, name=name, session=session, auto=auto,
            context=context, settings=settings, restarts=restarts, backoff=backoff, delay=delay, max_losses=max_losses,
            after=after, on_failed_dependency=on_failed_dependency,
        )  # fmt: skip
        return await self._start(request)

    async def _start(self, request: StartRequest) -> TaskRecord:
        span = core.NO_SPAN if core.tracer is None else core.tracer.start_task(request)
        with span as traced:
            if traced is not None:
                request = msgspec.structs.replace(request, trace=traced.trace)
            await self._write_arguments(start_task, request)
        return await self._record(request.id)

    async def add(
        self,
        workflow: str,
        input: Any = None,
        *,
        id: str | None = None,
        name: str | None = None,
        session: str | None = None,
        context: Mapping[str, Any] | None = None,
        priority: int = Priority.NORMAL,
        restarts: int = 0,
        backoff: float = RETRY_DELAY,
        delay: float | None = None,
        max_losses: int = MAX_LOSSES,
        after: Sequence[str] = (),
        on_failed_dependency: OnFailedDependency = "block",
    ) -> TaskRecord:
        """Add a work item: a task without code, for an agent to take with ``agent.items.take()`` and to finish.

        ``workflow`` names the kind of work, by which agents can choose; ``input`` is JSON. If it is a text, its first
        line is the default of ``name``. The item of the highest ``priority`` is taken first, then the oldest. The other
        options are those of ``start``. An item whose agent fails it is ready again up to ``restarts`` times; one whose
        agents die fails after ``max_losses`` of them.

        >>> await bus.tasks.add("review", {"file": "login.py"}, priority=7)           # doctest: +SKIP
        >>> await bus.tasks.add("merge", id="merge-1", after=["review-1"])            # doctest: +SKIP
        """
        if name is None and isinstance(input, str):
            name = input.strip().partition("\n")[0][:MAX_NAME] or None
        if not isinstance(workflow, str):
            raise InvalidInput(reason="a work item has no code: pass the name of the kind of work, or use start()")
        request = start_request(
            workflow, () if input is None else (input,), None, self._bus._max_payload, id=id, name=name,
            session=session, auto=False, context=context, settings=None, restarts=restarts, backoff=backoff,
            delay=delay, max_losses=max_losses, manual=True, priority=priority, after=after,
            on_failed_dependency=on_failed_dependency,
        )  # fmt: skip
        return await self._start(request)

    # Reading

    async def get(self, task: str) -> TaskRecord | None:
        """Return the record of one task, or None.

        >>> (await bus.tasks.get("feature-1")).status                                 # doctest: +SKIP
        'waiting'
        """
        return await self._engine.read_inline(get_task, check_name(task, "task"))

    async def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: str | None = None,
        session: str | None = None,
        parent: str | None = None,
        cursor: str | None = None,
        limit: int = PAGE_SIZE,
    ) -> Page[TaskRecord]:
        """Return tasks, newest first.

        >>> page = await bus.tasks.list(status=["waiting", "halted"])                 # doctest: +SKIP
        """
        wanted = TaskFilter(
            choices_or_none(status, "status", TASK_STATUSES),
            name_or_none(workflow, "workflow"),
            name_or_none(session, "session"),
            name_or_none(parent, "parent"),
            check_row_cursor(cursor),
            check_range(limit, "limit", 1, MAX_PAGE),
        )
        return await self._engine.read(list_tasks, wanted)

    async def resumable(self, *, limit: int = PAGE_SIZE) -> Sequence[TaskRecord]:
        """Return tasks that were started and not completed, that no worker holds, and that wait for no approval, newest
        first.

        >>> [task.id for task in await bus.tasks.resumable()]                         # doctest: +SKIP
        ['feature-1']
        """
        return await self._engine.read(resumable_tasks, check_range(limit, "limit", 1, MAX_PAGE))

    async def ready(
        self, *, workflow: str | None = None, manual: bool | None = None, limit: int = PAGE_SIZE
    ) -> Sequence[TaskRecord]:
        """Return the tasks that can be taken now, most urgent first, then oldest: by workers, and work items by agents
        (``manual``: only items, or only those of workers).

        >>> [task.id for task in await bus.tasks.ready(manual=True)]                  # doctest: +SKIP
        ['review-2', 'review-1']
        """
        wanted = ReadyFilter(
            name_or_none(workflow, "workflow"),
            None if manual is None else check_bool(manual, "manual"),
            check_range(limit, "limit", 1, MAX_PAGE),
        )
        return await self._engine.read(ready_tasks, wanted)

    async def steps(self, task: str, *, history: bool = False) -> Sequence[StepRecord]:
        """Return the steps of a task in order; with ``history`` also those that a redo has invalidated.

        >>> [(step.key, step.status) for step in await bus.tasks.steps("feature-1")]  # doctest: +SKIP
        [('plan', 'finished'), ('implement', 'running')]
        """
        found = await self._engine.read(task_steps, (check_name(task, "task"), check_bool(history, "history")))
        if found is None:
            raise UnknownTask(task=task)
        return found

    @overload
    async def query(self, task: str, name: None = None) -> dict[str, Any]: ...
    @overload
    async def query(self, task: str, name: str, *, as_: type[T]) -> T: ...
    @overload
    async def query(self, task: str, name: str, *, as_: Any = None) -> Any: ...
    async def query(self, task: str, name: str | None = None, *, as_: Any = None) -> Any:
        """Return the value that a task exposed last under a name, as JSON or as the type ``as_``; without a name, all
        values by name. Raise NotExposed if there is none, UnknownTask if there is no such task.

        >>> await bus.tasks.query("feature-1", "stage")                               # doctest: +SKIP
        {'phase': 'review', 'open': 3}
        """
        wanted = (check_name(task, "task"), name_or_none(name, "name"))
        found = await self._engine.read(exposed_values, wanted)
        if name is None:
            return found
        if name not in found:
            others = await self._engine.read(exposed_values, (task, None))
            raise NotExposed(task=task, name=name, near=sorted(others)[:_NEAR])
        return found[name] if as_ is None else decode_as(plain(found[name]), as_, f"value {name} of task {task}")

    async def approvals(
        self, task: str | None = None, *, status: str | None = "open", history: bool = False, limit: int = PAGE_SIZE
    ) -> Sequence[ApprovalRecord]:
        """Return approval requests of one task or all, oldest first. ``status=None`` includes decided ones.

        >>> [(one.task, one.key, one.shown) for one in await bus.tasks.approvals()]   # doctest: +SKIP
        """
        wanted = ApprovalFilter(
            name_or_none(task, "task"),
            None if status is None else check_choice(status, "status", APPROVAL_STATUSES),
            check_bool(history, "history"),
            check_range(limit, "limit", 1, MAX_PAGE),
        )
        return await self._engine.read(list_approvals, wanted)

    async def statistics(self, *, workflow: str | None = None) -> TaskStatistics:
        """Return task statistics, of one workflow or all.

        >>> (await bus.tasks.statistics()).tasks                                      # doctest: +SKIP
        {'completed': 40, 'running': 2}
        """
        return await self._engine.read(task_statistics, name_or_none(workflow, "workflow"))

    async def wait(self, task: str, *, timeout: float | None = None) -> TaskRecord | None:
        """Wait for the end of a task and return its record; None if it does not end within ``timeout`` seconds.

        >>> record = await bus.tasks.wait("feature-1", timeout=60)                    # doctest: +SKIP
        """
        milliseconds = None if timeout is None else check_seconds(timeout, "timeout", zero=True)
        return await _wait_for_end(self._bus, check_name(task, "task"), milliseconds)

    @overload
    async def result(self, task: str, *, timeout: float | None = None, as_: type[T]) -> T: ...
    @overload
    async def result(self, task: str, *, timeout: float | None = None, as_: Any = None) -> Any: ...
    async def result(self, task: str, *, timeout: float | None = None, as_: Any = None) -> Any:
        """Wait for a task and return its result, as JSON or as the type ``as_``. Raise TaskFailed if it failed or was
        stopped, TaskTimedOut if it does not end in time.

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

    # Workers

    async def run_worker(
        self,
        *workflows: Workflow[..., Any],
        concurrency: int = 8,
        agent: Agent | str | None = None,
        lease: float = LEASE,
        on_step: Callable[[TaskChange], Any] | None = None,
        on_phase: Callable[[TaskChange], Any] | None = None,
        on_task: Callable[[TaskChange], Any] | None = None,
        until_idle: bool = False,
    ) -> None:
        """Claim and run tasks of these workflows, ``concurrency`` at a time, indefinitely; with ``until_idle`` until no
        task can be claimed. Interrupted tasks resume after their last finished step. Any number of workers may run, in
        many processes.

        A worker is an agent of type worker: ``agent`` itself, one with that id, or one with a generated id whose
        capabilities are the workflows. It leases each task for ``lease`` seconds and renews the lease while it runs.
        The callbacks receive each change; ``on_task`` when a task ends or is released because it waits.

        >>> await bus.tasks.run_worker(feature, bugfix, concurrency=32)               # doctest: +SKIP
        """
        from agentbus.api.tasks.worker import run_worker

        await run_worker(
            self._bus, workflows, check_range(concurrency, "concurrency", 1, 10_000), agent,
            check_seconds(lease, "lease"), on_step, on_phase, on_task, check_bool(until_idle, "until_idle"),
        )  # fmt: skip

    async def _record(self, task: str) -> TaskRecord:
        record = await self._engine.read_inline(get_task, task)
        if record is None:
            raise UnknownTask(task=task)
        return record


async def _wait_for_end(bus: Bus, task: str, timeout: int | None) -> TaskRecord | None:
    """Return the record of a task once it has ended, or None after ``timeout`` milliseconds."""
    engine = bus._engine
    deadline = None if timeout is None else engine.clock.now().awake + timeout
    # Subscribe before reading, so that no change falls in between.
    waiter = engine.waiters.watch((ended_channel(task),))
    try:
        async with bus._listening.to(ENDED):
            while True:
                record = await engine.read_inline(get_task, task)
                if record is None:
                    raise UnknownTask(task=task)
                if record.ended is not None:
                    return record
                left = None if deadline is None else deadline - engine.clock.now().awake
                if left is not None and left <= 0:
                    return None
                await waiter.wait(None if left is None else left / 1000)
    finally:
        waiter.close()
