"""``bus.tasks``: start, read, decide and control durable tasks. ``worker`` runs them.

Written by ``make sync`` from ``agentbus.api.tasks.client``: change that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast, overload

from agentbus.api.tasks import client as api
from agentbus.api.tasks.client import _UNSET
from agentbus.core.validation import LEASE, MAX_LOSSES, PAGE_SIZE, RETRY_DELAY, Priority
from agentbus.sync.client.base import Wrapper, unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Unpack

    from agentbus.api.tasks.client import T, Ts
    from agentbus.api.tasks.workflow import BoundWorkflow, StartOptions, Workflow, WorkflowOnly
    from agentbus.operations.task_dependencies import OnFailedDependency
    from agentbus.records import ApprovalRecord, Page, SignalReceipt, StepRecord, TaskChange, TaskRecord, TaskStatistics
    from agentbus.sync.client.agent import Agent


class Control(Wrapper[api.Control], wraps=api.Control):
    """Decisions and control of tasks, the base of ``bus.tasks``.

    >>> bus.tasks.approve("feature-1", "plan", by="ada")                        # doctest: +SKIP
    """

    __slots__ = ()

    def approve(self, task: str, name: str | None = None, *, by: str, reason: str | None = None) -> ApprovalRecord:
        """Approve a request of a task; ``by`` is the operator. ``name`` may be omitted if one approval is open.

        >>> bus.tasks.approve("feature-1", "plan", by="ada")                    # doctest: +SKIP
        """
        return self._call(self._inner.approve, task, name, by=by, reason=reason)

    def reject(self, task: str, name: str | None = None, *, by: str, reason: str | None = None) -> ApprovalRecord:
        """Reject a request of a task. Its workflow receives the verdict with the reason, and continues.

        >>> bus.tasks.reject("feature-1", "plan", by="ada", reason="too large")  # doctest: +SKIP
        """
        return self._call(self._inner.reject, task, name, by=by, reason=reason)

    def settle(
        self, task: str, step: str, *, by: str, result: Any = _UNSET, error: str | None = None, redo: bool = False
    ) -> TaskRecord:
        """Settle a step with ``once=True`` whose worker died: with its ``result``, with the ``error`` that it failed
        with, or by running it again (``redo``). ``by`` is the operator.

        >>> bus.tasks.settle("order-7", "charge", by="ada", result={"paid": True})   # doctest: +SKIP
        """
        return self._call(self._inner.settle, task, step, by=by, result=result, error=error, redo=redo)

    def signal(
        self, task: str, name: str, value: Any = None, *, signal_id: str | None = None, by: str | None = None
    ) -> SignalReceipt:
        """Send a signal to a task, whose workflow receives it with ``task.signal(name)``, now or later. When this
        returns, the signal is committed. ``value`` is JSON; ``by`` is the sender, for the audit log.

        The same ``signal_id`` is one signal: pass one to retry a send after a crash. Raise UnknownTask, or TaskEnded
        if the task has completed, failed or was stopped.

        >>> bus.tasks.signal("order-7", "payment", {"paid": 12}, signal_id="pay-1")   # doctest: +SKIP
        """
        return self._call(self._inner.signal, task, name, value, signal_id=signal_id, by=by)

    def halt(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Halt a task and its sub-tasks before their next step.

        >>> bus.tasks.halt("feature-1", by="ada")                               # doctest: +SKIP
        """
        return self._call(self._inner.halt, task, by=by, reason=reason)

    def continue_(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Continue a halted task.

        >>> bus.tasks.continue_("feature-1")                                    # doctest: +SKIP
        """
        return self._call(self._inner.continue_, task, by=by, reason=reason)

    def stop(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Stop a task and its sub-tasks: the running step is cancelled. A stopped task can be resumed.

        >>> bus.tasks.stop("feature-1", reason="no longer wanted")              # doctest: +SKIP
        """
        return self._call(self._inner.stop, task, by=by, reason=reason)

    def resume(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Resume a halted, stopped or failed task after its last finished step; a failed step runs again. A delayed
        task starts at once.

        >>> bus.tasks.resume("feature-1")                                       # doctest: +SKIP
        """
        return self._call(self._inner.resume, task, by=by, reason=reason)

    def redo(
        self, task: str, step: str, *, note: str | None = None, by: str | None = None, reason: str | None = None
    ) -> TaskRecord:
        """Run a step again, and every step that started after it had ended. Invalidated steps are stored as history;
        their sub-tasks are stopped. The step reads ``note`` as ``task.note``. ``approval:plan`` names an approval.

        Concurrent steps that do not depend on it finish first; until then no other step starts, and the record names
        the step in ``redo``. If their worker dies meanwhile, the redo takes effect at once.

        >>> bus.tasks.redo("feature-1", "implement", note="use the new client")  # doctest: +SKIP
        """
        return self._call(self._inner.redo, task, step, note=note, by=by, reason=reason)

    def restart(self, task: str, *, by: str | None = None, reason: str | None = None) -> TaskRecord:
        """Restart a task from its beginning. Its steps are stored as history.

        >>> bus.tasks.restart("feature-1")                                      # doctest: +SKIP
        """
        return self._call(self._inner.restart, task, by=by, reason=reason)

    def auto(self, task: str, on: bool = True, *, by: str | None = None) -> TaskRecord:
        """Approve all requests of a task and its sub-tasks automatically, including open ones; or, with False, ask
        again. Automatic approvals are recorded as such.

        >>> bus.tasks.auto("feature-1", True)                                   # doctest: +SKIP
        """
        return self._call(self._inner.auto, task, on, by=by)

    def edit(
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

        >>> bus.tasks.edit("feature-1", settings={"model": "small"})            # doctest: +SKIP
        >>> bus.tasks.edit("deploy-1", after=["audit-1"], no_after=["build-1"])  # doctest: +SKIP
        >>> bus.tasks.edit("feature-1", arguments=["Add logout"])               # doctest: +SKIP
        """
        return self._call(
            self._inner.edit,
            task,
            name=name,
            context=context,
            settings=settings,
            restarts=restarts,
            backoff=backoff,
            max_losses=max_losses,
            arguments=arguments,
            keywords=keywords,
            priority=priority,
            after=after,
            no_after=no_after,
            on_failed_dependency=on_failed_dependency,
            by=by,
        )


class Tasks(Control, wraps=api.Tasks):
    """The durable tasks of the bus.

    >>> task = bus.tasks.start(feature, "Add login")                            # doctest: +SKIP
    >>> bus.tasks.run_worker(feature)                                           # doctest: +SKIP
    """

    __slots__ = ()
    _inner: api.Tasks

    @overload
    def start(
        self,
        workflow: Callable[[WorkflowOnly, Unpack[Ts]], Coroutine[Any, Any, Any]],
        *arguments: *Ts,
        **options: Unpack[StartOptions],
    ) -> TaskRecord: ...

    @overload
    def start(self, workflow: BoundWorkflow[Any], **options: Unpack[StartOptions]) -> TaskRecord: ...

    @overload
    def start(
        self,
        workflow: Workflow[..., Any],
        *arguments: Any,
        keywords: Mapping[str, Any],
        **options: Unpack[StartOptions],
    ) -> TaskRecord: ...

    @overload
    def start(
        self, workflow: str, *arguments: Any, keywords: Mapping[str, Any] | None = None, **options: Unpack[StartOptions]
    ) -> TaskRecord: ...

    def start(  # type: ignore[misc]  # as in the asynchronous API
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

        >>> bus.tasks.start(feature, "Add login", session="planning-001")       # doctest: +SKIP
        >>> bus.tasks.start(feature.bind("Add login", model="small"), id="login-1")   # doctest: +SKIP
        >>> bus.tasks.start(deploy, after=["build-1", "test-1"])                # doctest: +SKIP
        """
        return cast(
            "TaskRecord",
            self._call_wrapping(
                cast(Any, self._inner).start,
                workflow,
                *arguments,
                keywords=keywords,
                id=id,
                name=name,
                session=session,
                auto=auto,
                context=context,
                settings=settings,
                restarts=restarts,
                backoff=backoff,
                delay=delay,
                max_losses=max_losses,
                after=after,
                on_failed_dependency=on_failed_dependency,
            ),
        )

    def add(
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

        >>> bus.tasks.add("review", {"file": "login.py"}, priority=7)           # doctest: +SKIP
        >>> bus.tasks.add("merge", id="merge-1", after=["review-1"])            # doctest: +SKIP
        """
        return self._call(
            self._inner.add,
            workflow,
            input,
            id=id,
            name=name,
            session=session,
            context=context,
            priority=priority,
            restarts=restarts,
            backoff=backoff,
            delay=delay,
            max_losses=max_losses,
            after=after,
            on_failed_dependency=on_failed_dependency,
        )

    def get(self, task: str) -> TaskRecord | None:
        """Return the record of one task, or None.

        >>> bus.tasks.get("feature-1").status                                 # doctest: +SKIP
        'waiting'
        """
        return self._call(self._inner.get, task)

    def list(
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

        >>> page = bus.tasks.list(status=["waiting", "halted"])                 # doctest: +SKIP
        """
        return self._call(
            self._inner.list,
            status=status,
            workflow=workflow,
            session=session,
            parent=parent,
            cursor=cursor,
            limit=limit,
        )

    def resumable(self, *, limit: int = PAGE_SIZE) -> Sequence[TaskRecord]:
        """Return tasks that were started and not completed, that no worker holds, and that wait for no approval, newest
        first.

        >>> [task.id for task in bus.tasks.resumable()]                         # doctest: +SKIP
        ['feature-1']
        """
        return self._call(self._inner.resumable, limit=limit)

    def ready(
        self, *, workflow: str | None = None, manual: bool | None = None, limit: int = PAGE_SIZE
    ) -> Sequence[TaskRecord]:
        """Return the tasks that can be taken now, most urgent first, then oldest: by workers, and work items by agents
        (``manual``: only items, or only those of workers).

        >>> [task.id for task in bus.tasks.ready(manual=True)]                  # doctest: +SKIP
        ['review-2', 'review-1']
        """
        return self._call(self._inner.ready, workflow=workflow, manual=manual, limit=limit)

    def steps(self, task: str, *, history: bool = False) -> Sequence[StepRecord]:
        """Return the steps of a task in order; with ``history`` also those that a redo has invalidated.

        >>> [(step.key, step.status) for step in bus.tasks.steps("feature-1")]  # doctest: +SKIP
        [('plan', 'finished'), ('implement', 'running')]
        """
        return self._call(self._inner.steps, task, history=history)

    @overload
    def query(self, task: str, name: None = None) -> dict[str, Any]: ...

    @overload
    def query(self, task: str, name: str, *, as_: type[T]) -> T: ...

    @overload
    def query(self, task: str, name: str, *, as_: Any = None) -> Any: ...

    def query(self, task: str, name: str | None = None, *, as_: Any = None) -> Any:
        """Return the value that a task exposed last under a name, as JSON or as the type ``as_``; without a name, all
        values by name. Raise NotExposed if there is none, UnknownTask if there is no such task.

        >>> bus.tasks.query("feature-1", "stage")                               # doctest: +SKIP
        {'phase': 'review', 'open': 3}
        """
        return self._call(cast(Any, self._inner).query, task, name, as_=as_)

    def approvals(
        self, task: str | None = None, *, status: str | None = "open", history: bool = False, limit: int = PAGE_SIZE
    ) -> Sequence[ApprovalRecord]:
        """Return approval requests of one task or all, oldest first. ``status=None`` includes decided ones.

        >>> [(one.task, one.key, one.shown) for one in bus.tasks.approvals()]   # doctest: +SKIP
        """
        return self._call(self._inner.approvals, task, status=status, history=history, limit=limit)

    def statistics(self, *, workflow: str | None = None) -> TaskStatistics:
        """Return task statistics, of one workflow or all.

        >>> bus.tasks.statistics().tasks                                      # doctest: +SKIP
        {'completed': 40, 'running': 2}
        """
        return self._call(self._inner.statistics, workflow=workflow)

    def wait(self, task: str, *, timeout: float | None = None) -> TaskRecord | None:
        """Wait for the end of a task and return its record; None if it does not end within ``timeout`` seconds.

        >>> record = bus.tasks.wait("feature-1", timeout=60)                    # doctest: +SKIP
        """
        return self._call(self._inner.wait, task, timeout=timeout)

    @overload
    def result(self, task: str, *, timeout: float | None = None, as_: type[T]) -> T: ...

    @overload
    def result(self, task: str, *, timeout: float | None = None, as_: Any = None) -> Any: ...

    def result(self, task: str, *, timeout: float | None = None, as_: Any = None) -> Any:
        """Wait for a task and return its result, as JSON or as the type ``as_``. Raise TaskFailed if it failed or was
        stopped, TaskTimedOut if it does not end in time.

        >>> bus.tasks.result("feature-1", as_=Report)                           # doctest: +SKIP
        """
        return self._call(cast(Any, self._inner).result, task, timeout=timeout, as_=as_)

    def run_worker(
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

        >>> bus.tasks.run_worker(feature, bugfix, concurrency=32)               # doctest: +SKIP
        """
        self._call(
            self._inner.run_worker,
            *workflows,
            concurrency=concurrency,
            agent=unwrap(agent),
            lease=lease,
            on_step=on_step,
            on_phase=on_phase,
            on_task=on_task,
            until_idle=until_idle,
        )
