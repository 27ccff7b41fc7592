"""The task that a workflow receives: its steps, approvals, waits, sub-tasks, phases and checkpoints."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

import msgspec

from agentbus import core
from agentbus.api.tasks.run import Run, Wait
from agentbus.api.tasks.step import CURRENT, Current, digest, step_options, take_step
from agentbus.api.tasks.waits import check_duration, check_moment, finish_wait
from agentbus.api.tasks.workflow import (
    BoundWorkflow,
    ChildOptions,
    Workflow,
    WorkflowOnly,
    result_type,
    start_request,
    unbind,
)
from agentbus.core.addresses import Address, parse_address
from agentbus.core.codec import decode, encode, plain, verify_value
from agentbus.core.validation import (
    MAX_LOSSES,
    RETRY_DELAY,
    TASK_ENDED,
    check_choice,
    check_options,
    check_range,
    check_seconds,
    check_text,
)
from agentbus.errors import Misuse, TaskFailed
from agentbus.operations.checkpoints import Owner
from agentbus.operations.protocol import Part
from agentbus.operations.send import SendRequest, send
from agentbus.operations.task_approvals import (
    Answer,
    AskRequest,
    ExpireRequest,
    ask_approval,
    expire_approval,
    get_answer,
)
from agentbus.operations.task_lookups import Ending, Recorded, ending_of, problem
from agentbus.operations.task_steps import (
    ChildRequest,
    FailStepRequest,
    FinishStepRequest,
    PhaseRequest,
    StepIdentity,
    TaskCheckpointRequest,
    TaskProgressRequest,
    checkpoint_task,
    enter_phase,
    fail_step,
    finish_step,
    progress_task,
    start_child,
)
from agentbus.operations.task_waits import ExposeRequest, expose_value
from agentbus.records import Checkpoint, TaskMessage, TaskProblem, Verdict

if TYPE_CHECKING:
    from datetime import datetime

    from agentbus.api.checkpoints import CheckpointOptions
    from agentbus.api.unit import Unit

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_MAX_ID = 128
_ID_PREFIX = 100


class StepOptions(TypedDict, total=False):
    """Options of ``task.step`` and ``task.options``."""

    retries: int
    """Further attempts after the first has failed (default 0)."""
    backoff: float
    """Seconds before the second attempt; the delays grow."""
    timeout: float | None
    """Seconds that an attempt may take."""
    once: bool
    """Have an operator settle the step if its process dies, instead of running it again."""
    validate: Callable[[Any], Any] | None
    """Called with the result: it rejects the result by raising or returning False."""


class Child(Generic[R]):
    """A sub-task. Awaiting it returns its result or raises TaskFailed.

    >>> child = await task.start(build, "docs")                                       # doctest: +SKIP
    >>> report = await child                                                          # doctest: +SKIP
    """

    id: str
    """The id of the sub-task."""

    def __init__(self, task: Task, id: str, identity: StepIdentity, known: Recorded | None, as_: Any) -> None:
        self.id = id
        self._identity = identity
        self._known = known
        self._as = as_
        self._task = task

    def __repr__(self) -> str:
        return f"<Child {self.id}>"

    def __await__(self) -> Generator[Any, None, R]:
        return self._task.result(self).__await__()


class Task:
    """A task as its workflow sees it.

    >>> @agentbus.workflow("feature")                                                 # doctest: +SKIP
    ... async def feature(task: agentbus.Task, request: str) -> str:
    ...     return await task.step("plan", make_plan, request)
    """

    id: str
    """Its id."""
    name: str
    """Its name for display."""
    session: str | None
    """Its session, if any."""
    context: dict[str, Any]
    """The data for the workflow that it was started with or edited to."""
    settings: dict[str, Any]
    """The settings that it was started with or edited to."""

    def __init__(self, run: Run) -> None:
        self._run = run
        claimed = run.claimed
        self.id = claimed.id
        self.name = claimed.name
        self.session = claimed.session
        self.context = decode(claimed.context)
        self.settings = decode(claimed.settings)

    def __repr__(self) -> str:
        return f"<Task {self.id}>"

    # A ParamSpec takes all keywords for itself, so that options have overloads of their own, in which a TypeVarTuple
    # checks the positional arguments. Keywords of the function together with options: ``task.options(…).step(…)``.
    @overload
    async def step(
        self, name: str, function: Callable[P, Awaitable[R]], *arguments: P.args, **keywords: P.kwargs
    ) -> R: ...
    @overload
    async def step(self, name: str, function: Callable[P, R], *arguments: P.args, **keywords: P.kwargs) -> R: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[[Unpack[Ts]], Awaitable[R]],
        *arguments: *Ts,
        **options: Unpack[StepOptions],
    ) -> R: ...
    @overload
    async def step(
        self, name: str, function: Callable[[Unpack[Ts]], R], *arguments: *Ts, **options: Unpack[StepOptions]
    ) -> R: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[[Unpack[Ts]], object],
        *arguments: *Ts,
        returns: type[T],
        **options: Unpack[StepOptions],
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        function: Callable[[Unpack[Ts]], object],
        *arguments: *Ts,
        returns: Any,
        **options: Unpack[StepOptions],
    ) -> Any: ...
    async def step(  # type: ignore[misc]  # mypy compares *arguments: Any with a TypeVarTuple
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        retries: int = 0,
        backoff: float = RETRY_DELAY,
        timeout: float | None = None,
        once: bool = False,
        validate: Callable[[Any], Any] | None = None,
        returns: Any = None,
        **keywords: Any,
    ) -> Any:
        """Call a function and store its result: a finished step never runs again. Raise StepFailed if it fails, now and
        on every replay.

        The result is JSON, decoded as the return annotation of the function or as ``returns``. A step that raises,
        takes longer than ``timeout`` seconds, or whose result ``validate(result)`` rejects (by raising or returning
        False) has ``retries`` more attempts, the first after ``backoff`` seconds, then with growing delays. If its
        process dies, the step runs again; with ``once`` an operator settles it instead (``bus.tasks.settle``). Calls on
        ``task.unit`` commit with the result. A plain function runs on a thread, where it may block. It cannot be
        cancelled: after a timeout it runs to its end, concurrently with the next attempt.

        A repeated name gets a number in the order of the calls: ``plan``, ``plan#2``. Give parallel steps distinct
        names if their order can change.

        Further keywords are those of the function. A type checker accepts them without options of the step;
        ``task.options`` takes the options apart, also those that have the name of a keyword of the function.

        >>> plan = await task.step("plan", make_plan, request, retries=2, timeout=600)   # doctest: +SKIP
        >>> plan = await task.step("plan", make_plan, request, model="small")         # doctest: +SKIP
        """
        self._outside("task.step")
        options = step_options(retries, backoff, timeout, once, validate, returns)
        return await take_step(self._run, name, function, arguments, keywords, options)

    def options(self, **options: Unpack[StepOptions]) -> ConfiguredTask:
        """Return the task with options for its next steps: every keyword of their ``step`` belongs to the function.

        >>> await task.options(retries=2, timeout=600).step("fetch", fetch, url, timeout=10)   # doctest: +SKIP
        """
        check_options(options, tuple(StepOptions.__annotations__))
        return ConfiguredTask(self, options)

    # Inside a step

    @property
    def unit(self) -> Unit:
        """Inside a step: a unit that commits with the result of the step, or not at all.

        >>> task.unit.send("reviewer-1", "note", {"text": "look at this"})            # doctest: +SKIP
        """
        return self._current("task.unit").unit

    @property
    def note(self) -> str | None:
        """Inside a step: the note of a redo, or None.

        >>> prompt = f"{request} ({task.note})" if task.note else request             # doctest: +SKIP
        """
        return self._current("task.note").note

    @property
    def attempt(self) -> int:
        """Inside a step: the number of this attempt, from 1.

        >>> task.attempt                                                              # doctest: +SKIP
        1
        """
        return self._current("task.attempt").attempt

    async def progress(self, percent: int, note: str | None = None) -> None:
        """Set the progress of the step (outside a step: of the task), from 0 to 100, with a note for display.

        >>> await task.progress(40, "writing tests")                                  # doctest: +SKIP
        """
        current = CURRENT.get()
        key = current.key if current is not None and current.run is self._run else None
        percent = check_range(percent, "progress", 0, 100)
        text = None if note is None else check_text(note, "note", 10_000)
        run = self._run
        with run.busy():
            await run.write(progress_task, TaskProgressRequest(run.agent._actor, run.hold, percent, text, key))

    # Approvals

    async def approval(
        self,
        name: str,
        show: Any = None,
        *,
        expires: float | None = None,
        notify: str | Address | None = None,
    ) -> Verdict:
        """Request an approval and wait for the verdict, for days if necessary; the task occupies no worker meanwhile. A
        rejection is a value, not an exception: ``verdict.approved``, ``verdict.reason``.

        ``show`` is the JSON value to decide on. After ``expires`` seconds the request counts as rejected
        (``verdict.expired``). ``notify``, an agent, pool or topic, receives an ``approval_request``. A task with
        ``auto`` is approved at once.

        >>> verdict = await task.approval("plan", show=plan, expires=86400, notify="chief")   # doctest: +SKIP
        >>> while not verdict.approved:                                               # doctest: +SKIP
        ...     plan = await task.step("plan", make_plan, request, verdict.reason)
        ...     verdict = await task.approval("plan", show=plan)
        """
        run = self._outside("task.approval")
        with run.busy():
            key = run.key("approval", name)
            wanted = (run.hold.number, key)
            if key in run.approvals:
                answer = await run.read_inline(get_answer, wanted)
                assert answer is not None  # noqa: S101 - it is recorded
            else:
                answer = await self._ask(name, key, show, expires, notify)

            async def decided() -> Answer | None:
                found = await run.read_inline(get_answer, wanted)
                due = found is not None and found.expires is not None and found.expires <= run.engine.clock.now().wall
                if found is not None and found.status == "open" and due:
                    await run.write(expire_approval, ExpireRequest(run.agent._actor, run.hold, key))
                    found = await run.read_inline(get_answer, wanted)
                return None if found is None or found.status == "open" else found

            if answer.status == "open":
                answer = await run.wait(Wait("approval", key, answer.expires), decided)
            run.mark_seen(answer.ending)
        return Verdict(
            answer.status == "approved", answer.by, answer.reason, answer.decided or 0, bool(answer.auto),
            answer.status == "expired",
        )  # fmt: skip

    async def _ask(self, name: str, key: str, show: Any, expires: float | None, notify: str | Address | None) -> Answer:
        run = self._run
        to = None if notify is None else parse_address(notify)
        request = AskRequest(
            run.agent._actor, run.hold, key, name, run.next_position(), encode(show, run.bus._max_payload),
            None if expires is None else check_seconds(expires, "expires"), None if to is None else str(to),
            run.seen, run.next_ending(),
        )  # fmt: skip
        if to is None:
            return await run.write(ask_approval, request)
        payload = {"task": self.id, "name": self.name, "approval": key, "show": show}
        draft = run.agent._draft(to, "approval_request", payload, session=self.session)
        results = await run.commit(Part(ask_approval, request), Part(send, SendRequest(run.agent._actor, (draft,))))
        answer: Answer = results[0]
        return answer

    # Waits

    async def sleep(
        self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0, name: str = "sleep"
    ) -> None:
        """Wait for a duration, for days if necessary; the task occupies no worker meanwhile, and the time counts while
        no worker runs. The end is fixed when the workflow first comes here. ``name`` is the name of the step.

        >>> await task.sleep(days=3)                                                  # doctest: +SKIP
        >>> await task.sleep(minutes=10, name="cool-down")                            # doctest: +SKIP
        """
        delay = check_duration(seconds, minutes, hours, days)
        await finish_wait(self._outside("task.sleep"), "sleep", name, delay=delay)

    async def until(self, time: datetime | float, *, name: str = "until") -> None:
        """Wait until a time: an aware datetime, or seconds since the epoch. A time in the past does not wait.

        >>> await task.until(datetime(2026, 12, 24, 9, tzinfo=UTC))                   # doctest: +SKIP
        """
        due = check_moment(time)
        await finish_wait(self._outside("task.until"), "until", name, due=due)

    @overload
    async def signal(self, name: str, *, as_: type[T], timeout: float | None = None) -> T: ...
    @overload
    async def signal(self, name: str, *, as_: Any = None, timeout: float | None = None) -> Any: ...
    async def signal(self, name: str, *, as_: Any = None, timeout: float | None = None) -> Any:
        """Wait for a signal of this name, sent by ``bus.tasks.signal``, and return its value, as JSON or as the type
        ``as_``; the task occupies no worker meanwhile. Signals of a name are received in the order in which they were
        sent, each once, whether the task waited for them or not.

        Raise PayloadMismatch if the value does not match ``as_``: the signal is received, and another call waits for
        the next one. Raise SignalTimedOut if none arrives within ``timeout`` seconds.

        >>> payment = await task.signal("payment", as_=Payment, timeout=86400)        # doctest: +SKIP
        """
        limit = None if timeout is None else check_seconds(timeout, "timeout", zero=True)
        run = self._outside("task.signal")
        text, checksum = await finish_wait(run, "signal", name, delay=limit)
        return verify_value(text, checksum, f"signal {name} of task {self.id}", as_)

    async def receive(self, *, timeout: float | None = None) -> TaskMessage | None:
        """Wait for a message to ``task:ID`` and return it, the most urgent first, or None after ``timeout`` seconds;
        the task occupies no worker meanwhile. The message is acknowledged in the commit that records it: the workflow
        receives it exactly once, and after a crash the same one.

        >>> message = await task.receive(timeout=3600)                                # doctest: +SKIP
        >>> if message is not None and message.type == "note": ...                    # doctest: +SKIP
        """
        limit = None if timeout is None else check_seconds(timeout, "timeout", zero=True)
        run = self._outside("task.receive")
        text, checksum = await finish_wait(run, "receive", "message", delay=limit)
        message: TaskMessage | None = verify_value(text, checksum, f"a message to task {self.id}", TaskMessage | None)
        return message

    # Values

    async def expose(self, name: str, value: Any) -> None:
        """Expose a JSON value under a name: ``bus.tasks.query`` reads the last one, while the task runs or waits, and
        after it has ended.

        >>> await task.expose("stage", {"phase": "review", "open": 3})                # doctest: +SKIP
        """
        run = self._outside("task.expose")
        with run.busy():
            identity, known = run.locate("expose", name)
            if known is None:
                ending = run.next_ending()
                encoded = encode(value, run.bus._max_payload)
                await run.write(expose_value, ExposeRequest(run.agent._actor, run.hold, identity, encoded, ending))
                run.mark_seen(ending)
                run.report("expose", identity.key, "finished")

    # Sub-tasks

    @overload
    async def start(
        self,
        workflow: Callable[[WorkflowOnly, Unpack[Ts]], Coroutine[Any, Any, R]],
        *arguments: *Ts,
        **options: Unpack[ChildOptions],
    ) -> Child[R]: ...
    @overload
    async def start(self, workflow: BoundWorkflow[R], **options: Unpack[ChildOptions]) -> Child[R]: ...
    @overload
    async def start(
        self,
        workflow: Workflow[..., R],
        *arguments: Any,
        keywords: Mapping[str, Any],
        **options: Unpack[ChildOptions],
    ) -> Child[R]: ...
    @overload
    async def start(
        self,
        workflow: Workflow[..., Any] | str,
        *arguments: Any,
        keywords: Mapping[str, Any] | None = None,
        returns: type[T],
        **options: Unpack[ChildOptions],
    ) -> Child[T]: ...
    @overload
    async def start(
        self,
        workflow: Workflow[..., Any] | str,
        *arguments: Any,
        keywords: Mapping[str, Any] | None = None,
        returns: Any,
        **options: Unpack[ChildOptions],
    ) -> Child[Any]: ...
    @overload
    async def start(
        self,
        workflow: str,
        *arguments: Any,
        keywords: Mapping[str, Any] | None = None,
        **options: Unpack[ChildOptions],
    ) -> Child[Any]: ...
    async def start(  # type: ignore[misc]  # mypy compares *arguments: Any with a TypeVarTuple
        self,
        workflow: Workflow[..., Any] | BoundWorkflow[Any] | str | Callable[..., Any],
        *arguments: Any,
        keywords: Mapping[str, Any] | None = None,
        name: str | None = None,
        restarts: int = 0,
        backoff: float = RETRY_DELAY,
        max_losses: int = MAX_LOSSES,
        context: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        returns: Any = None,
    ) -> Child[Any]:
        """Start a sub-task in the same session, with the ``auto`` of this task. ``name`` is the name of the step
        (default: the workflow). Await the returned child for its result. The arguments are checked as those of
        ``bus.tasks.start``.

        >>> children = [await task.start(build, part) for part in parts]              # doctest: +SKIP
        >>> reports = [await child for child in children]                             # doctest: +SKIP
        """
        run = self._outside("task.start")
        called, arguments, keywords = unbind(workflow, arguments, keywords)
        checked = start_request(
            called, arguments, keywords, run.bus._max_payload, id="-", name=name, session=self.session,
            auto=bool(run.claimed.auto), context=context, settings=settings, restarts=restarts, backoff=backoff,
            delay=None, max_losses=max_losses, parent=self.id, by=run.agent.id,
        )  # fmt: skip
        as_ = returns
        if as_ is None and isinstance(called, Workflow):
            as_ = result_type(called.function)
        with run.busy():
            identity, known = run.locate("task", name or checked.workflow, digest(arguments, dict(keywords or {})))
            if known is not None:
                return Child(self, str(known.child), identity, known, as_)
            child = await self._free_id(identity.position)
            checked = checked.with_id(child)
            with core.NO_SPAN if core.tracer is None else core.tracer.start_task(checked) as span:
                if span is not None:
                    checked = msgspec.structs.replace(checked, trace=span.trace)
                request = ChildRequest(run.agent._actor, run.hold, identity, checked)
                while not await run.write(start_child, request):
                    await run.wait_out_halt()
            run.report("task", identity.key, "running")
        return Child(self, child, identity, None, as_)

    async def _free_id(self, position: int) -> str:
        """Return an id for a sub-task, derived from its parent's; with a random suffix if that is too long or taken."""
        id = f"{self.id}/{position}"
        if len(id) <= _MAX_ID and await self._run.read_inline(ending_of, id) is None:
            return id
        return f"{self.id[:_ID_PREFIX]}/{position}-{secrets.token_hex(6)}"

    async def result(self, child: Child[R]) -> R:
        """Wait for a sub-task and return its result; raise TaskFailed if it failed or was stopped.

        >>> report = await task.result(child)                                         # doctest: +SKIP
        """
        run = self._run
        known = child._known
        with run.busy():
            if known is not None and known.status == "finished":
                return run.stored(known, child._as)  # type: ignore[no-any-return]
            if known is not None and known.status == "failed":
                raise self._child_failed(child, problem(known.error))

            async def ended() -> Ending | None:
                found = await run.read_inline(ending_of, child.id)
                is_over = found is None or found.status in TASK_ENDED
                return (found or Ending("deleted", None, None, None)) if is_over else None

            ending = await run.wait(Wait("task", child.id), ended)
            if ending.status == "completed" and ending.result is not None and ending.checksum is not None:
                encoded = (ending.result, ending.checksum)
                result = verify_value(*encoded, f"the result of task {child.id}", child._as)
                number = run.next_ending()
                request = FinishStepRequest(run.agent._actor, run.hold, child._identity, encoded, ending=number)
                await run.write(finish_step, request)
                run.mark_seen(number)
                run.report("task", child._identity.key, "finished")
                return result  # type: ignore[no-any-return]
            cause = problem(ending.error) if ending.status == "failed" else None
            text = f"it was {ending.status}" if cause is None else f"{cause.type}: {cause.message}"
            failure = TaskProblem("TaskFailed", text, [], child._identity.key)
            run.unhandled[child._identity.key] = None
            number = run.next_ending()
            failing = FailStepRequest(run.agent._actor, run.hold, child._identity, plain(failure), 1, ending=number)
            await run.write(fail_step, failing)
            run.mark_seen(number)
            run.report("task", child._identity.key, "failed", error=failure.message)
            raise self._child_failed(child, failure)

    def _child_failed(self, child: Child[Any], cause: TaskProblem | None) -> TaskFailed:
        message = "?" if cause is None else cause.message
        return TaskFailed(task=child.id, status="failed", message=message, parent=self.id, step=child._identity.key)

    # Phases and checkpoints

    async def phase(self, name: str) -> None:
        """Enter a phase of the work, which the record shows and callbacks receive.

        >>> await task.phase("implementing")                                          # doctest: +SKIP
        """
        run = self._outside("task.phase")
        if run.workflow.phases:
            check_choice(name, "phase", run.workflow.phases)
        with run.busy():
            identity, known = run.locate("phase", name)
            if known is None:
                ending = run.next_ending()
                await run.write(enter_phase, PhaseRequest(run.agent._actor, run.hold, identity, ending))
                run.mark_seen(ending)
                run.report("phase", name, "entered")

    async def checkpoint(
        self,
        name: str,
        snapshot: Any,
        **options: Unpack[CheckpointOptions],
    ) -> int:
        """Save a named snapshot of the task, once, and return its id for ``bus.checkpoints.get``. The options are those
        of ``Agent.checkpoint``.

        >>> await task.checkpoint("after_planning", {"plan": plan})                   # doctest: +SKIP
        7
        """
        from agentbus.api.checkpoints import draft

        run = self._outside("task.checkpoint")
        with run.busy():
            identity, known = run.locate("checkpoint", name)
            if known is not None:
                return int(run.stored(known, int))
            checked = draft(
                Owner("task", self.id), name, snapshot, run.bus._max_snapshot, actor=run.agent._actor,
                session=self.session, **options,
            )  # fmt: skip
            request, _ = await checked.prepare(run.engine)
            ending = run.next_ending()
            saving = TaskCheckpointRequest(run.agent._actor, run.hold, identity, request, ending)
            number = await run.write(checkpoint_task, saving)
            run.mark_seen(ending)
            run.report("checkpoint", identity.key, "finished")
            return number

    async def restore(self, name: str | None = None) -> Checkpoint | None:
        """Return the newest checkpoint of the task (of that name), or None.

        >>> last = await task.restore("after_planning")                               # doctest: +SKIP
        """
        return await self._run.bus.checkpoints.latest(self.id, name, kind="task")

    def _current(self, what: str) -> Current:
        current = CURRENT.get()
        if current is None or current.run is not self._run:
            raise Misuse(reason=f"{what} is only available inside a step: in the function that task.step(…) calls")
        return current

    def _outside(self, what: str) -> Run:
        """Return the run; refuse a call from inside a step, which would not be replayed once the step has finished."""
        current = CURRENT.get()
        if current is not None and current.run is self._run:
            raise Misuse(reason=f"{what} was called inside step {current.key!r}; call it from the workflow itself")
        return self._run


RUNNING: ContextVar[Task | None] = ContextVar("agentbus_task", default=None)
"""The task whose workflow is executed in this context, for adapters that are not given it."""


class ConfiguredTask:
    """A task with options for its steps, made by ``task.options``.

    >>> patient = task.options(retries=5, backoff=10)                                 # doctest: +SKIP
    >>> page = await patient.step("fetch", fetch, url, timeout=10)                    # doctest: +SKIP
    """

    def __init__(self, task: Task, options: StepOptions) -> None:
        self._task = task
        self._options = options

    @overload
    async def step(
        self, name: str, function: Callable[P, Awaitable[R]], /, *arguments: P.args, **keywords: P.kwargs
    ) -> R: ...
    @overload
    async def step(self, name: str, function: Callable[P, R], /, *arguments: P.args, **keywords: P.kwargs) -> R: ...
    async def step(self, name: str, function: Callable[..., Any], /, *arguments: Any, **keywords: Any) -> Any:
        """Take a step, as ``task.step`` does; the keywords are those of the function.

        >>> await task.options(retries=2).step("plan", make_plan, request, model="small")   # doctest: +SKIP
        """
        run = self._task._outside("task.step")
        return await take_step(run, name, function, arguments, keywords, step_options(**self._options))
