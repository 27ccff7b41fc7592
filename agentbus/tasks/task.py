"""The task that a workflow is given: its steps, approvals, sub-tasks, phases and checkpoints."""

from __future__ import annotations

import os
import secrets
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, overload

from agentbus.addresses import Address, address
from agentbus.codec import decode, encode, open_value, plain
from agentbus.errors import Misuse, TaskFailed
from agentbus.limits import TASK_ENDED, check_choice, check_range, check_seconds, check_text
from agentbus.operations import Part
from agentbus.operations.approvals import Answer, AskRequest, ExpireRequest, ask_approval, expire_approval, get_answer
from agentbus.operations.checkpoints import Owner
from agentbus.operations.messages import SendRequest, send
from agentbus.operations.steps import (
    ChildRequest,
    FailStepRequest,
    FinishStepRequest,
    PhaseRequest,
    StepPlace,
    TaskCheckpointRequest,
    TaskProgressRequest,
    checkpoint_task,
    enter_phase,
    fail_step,
    finish_step,
    progress_task,
    start_child,
)
from agentbus.operations.task_reading import Ending, Recorded, ending_of, problem
from agentbus.operations.tasks import MAX_LOSSES
from agentbus.records import Checkpoint, TaskProblem, Verdict
from agentbus.tasks.running import Run, Wait
from agentbus.tasks.starting import start_request
from agentbus.tasks.stepping import CURRENT, Current, digest, options, take_step
from agentbus.tasks.workflow import Workflow, result_type

if TYPE_CHECKING:
    from agentbus.unit import Unit

P = ParamSpec("P")
R = TypeVar("R")

_LONGEST = 128
_CUT = 100


class Child(Generic[R]):
    """A sub-task that was started. Awaiting it gives its result, or raises TaskFailed.

    >>> child = await task.start(build, "docs")                                       # doctest: +SKIP
    >>> report = await child                                                          # doctest: +SKIP
    """

    def __init__(self, task: Task, id: str, place: StepPlace, known: Recorded | None, as_: Any) -> None:
        self.id = id
        self.place = place
        self.known = known
        self.as_ = as_
        self._task = task

    def __repr__(self) -> str:
        return f"<Child {self.id}>"

    def __await__(self) -> Generator[Any, None, R]:
        return self._task.result(self).__await__()


class Task:
    """A task as its workflow sees it. ``id``, ``name``, ``session``, ``context`` and ``settings`` are what it was
    started with, or edited to since.

    >>> @agentbus.workflow("feature")                                                 # doctest: +SKIP
    ... async def feature(task: agentbus.Task, request: str) -> str:
    ...     return await task.step("plan", make_plan, request)
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        claimed = run.claimed
        self.id = claimed.id
        self.name = claimed.name
        self.session = claimed.session
        self.context: dict[str, Any] = decode(claimed.context)
        self.settings: dict[str, Any] = decode(claimed.settings)

    def __repr__(self) -> str:
        return f"<Task {self.id}>"

    @overload
    async def step(
        self, name: str, function: Callable[..., Awaitable[R]], *arguments: Any, retries: int = 0,
        backoff: float = 1.0, timeout: float | None = None, once: bool = False,
        validate: Callable[[Any], Any] | None = None, returns: Any = None, **keywords: Any,
    ) -> R: ...  # fmt: skip
    @overload
    async def step(
        self, name: str, function: Callable[..., R], *arguments: Any, retries: int = 0,
        backoff: float = 1.0, timeout: float | None = None, once: bool = False,
        validate: Callable[[Any], Any] | None = None, returns: Any = None, **keywords: Any,
    ) -> R: ...  # fmt: skip
    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *arguments: Any,
        retries: int = 0,
        backoff: float = 1.0,
        timeout: float | None = None,
        once: bool = False,
        validate: Callable[[Any], Any] | None = None,
        returns: Any = None,
        **keywords: Any,
    ) -> Any:
        """Call a function, and keep its result: a finished step is never executed again. Raises StepFailed, now and
        whenever the workflow comes here again.

        The result is JSON, read as what the function says it returns, or as ``returns``. A step that raises, takes
        longer than ``timeout`` seconds, or whose result ``validate(result)`` refuses (by raising, or with False) has
        ``retries`` more attempts, ``backoff`` seconds later, then ever later. One whose process dies is executed
        again; with ``once`` a person is asked instead (``bus.tasks.settle``). What it does through ``task.unit`` is
        committed with its result. A plain function runs on a thread, where it may block. It cannot be cancelled: one
        that takes longer than ``timeout`` runs to its end, beside the next attempt.

        The same name again gets a number: ``plan``, ``plan#2``, in the order of calling; give steps that run in
        parallel names of their own, if that order can change.

        >>> plan = await task.step("plan", make_plan, request, retries=2, timeout=600)   # doctest: +SKIP
        """
        self._outside("task.step")
        how = options(retries, backoff, timeout, once, validate, returns)
        return await take_step(self._run, name, function, arguments, keywords, how)

    # What a step finds

    @property
    def unit(self) -> Unit:
        """Inside a step: what it does here is committed with its result, or not at all.

        >>> task.unit.send("reviewer-1", "note", {"text": "look at this"})            # doctest: +SKIP
        """
        return self._current("task.unit").unit

    @property
    def note(self) -> str | None:
        """Inside a step: what a person handed to it with a redo; None if nobody did.

        >>> prompt = f"{request} ({task.note})" if task.note else request             # doctest: +SKIP
        """
        return self._current("task.note").note

    @property
    def attempt(self) -> int:
        """Inside a step: how many times it has been executed, this time included.

        >>> task.attempt                                                              # doctest: +SKIP
        1
        """
        return self._current("task.attempt").attempt

    async def progress(self, percent: int, note: str | None = None) -> None:
        """Say how far the step is, from 0 to 100, or (outside of one) the task. The note is shown with the task.

        >>> await task.progress(40, "writing tests")                                  # doctest: +SKIP
        """
        current = CURRENT.get()
        key = current.key if current is not None and current.run is self._run else None
        percent = check_range(percent, "progress", 0, 100)
        text = None if note is None else check_text(note, "note", 10_000)
        run = self._run
        with run.busy():
            await run.write(progress_task, TaskProgressRequest(run.agent.actor, run.hold, percent, text, key))

    # People

    async def approval(
        self,
        name: str,
        show: Any = None,
        *,
        expires: float | None = None,
        notify: str | Address | None = None,
    ) -> Verdict:
        """Ask a person, and wait for the verdict, for days if need be; no worker is kept busy meanwhile. A rejection
        is a value, not an exception: ``verdict.approved``, ``verdict.reason``.

        ``show`` is what there is to judge. After ``expires`` seconds it counts as rejected (``verdict.expired``).
        ``notify`` gets an ``approval_request``: an agent, a pool or a topic. A task with ``auto`` goes on at once.

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
                answer = await run.look(get_answer, wanted)
                assert answer is not None  # noqa: S101 - it is recorded
            else:
                answer = await self._ask(name, key, show, expires, notify)

            async def decided() -> Answer | None:
                found = await run.look(get_answer, wanted)
                due = found is not None and found.expires is not None and found.expires <= run.engine.clock.now().wall
                if found is not None and found.status == "open" and due:
                    await run.write(expire_approval, ExpireRequest(run.agent.actor, run.hold, key))
                    found = await run.look(get_answer, wanted)
                return None if found is None or found.status == "open" else found

            if answer.status == "open":
                answer = await run.wait(Wait("approval", key, answer.expires), decided)
            run.saw(answer.ending)
        return Verdict(
            answer.status == "approved", answer.by, answer.reason, answer.decided or 0, bool(answer.auto),
            answer.status == "expired",
        )  # fmt: skip

    async def _ask(self, name: str, key: str, show: Any, expires: float | None, notify: str | Address | None) -> Answer:
        run = self._run
        to = None if notify is None else address(notify)
        request = AskRequest(
            run.agent.actor, run.hold, key, name, run.place(), encode(show, run.bus.max_payload),
            None if expires is None else check_seconds(expires, "expires"), None if to is None else str(to),
            run.seen, run.ending(),
        )  # fmt: skip
        if to is None:
            return await run.write(ask_approval, request)
        told = {"task": self.id, "name": self.name, "approval": key, "show": show}
        draft = run.agent.draft(to, "approval_request", told, session=self.session)
        results = await run.commit(Part(ask_approval, request), Part(send, SendRequest(run.agent.actor, (draft,))))
        answer: Answer = results[0]
        return answer

    # Sub-tasks

    async def start(
        self,
        workflow: Workflow[P, R] | str,
        *arguments: Any,
        keywords: Mapping[str, Any] | None = None,
        name: str | None = None,
        restarts: int = 0,
        backoff: float = 1.0,
        max_losses: int = MAX_LOSSES,
        context: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        returns: Any = None,
    ) -> Child[R]:
        """Start another task as a part of this one; it belongs to the same session, and passes approvals through if
        this one does. ``name`` is how the step is called, by default like the workflow. Await what it gives for the
        result.

        >>> children = [await task.start(build, part) for part in parts]              # doctest: +SKIP
        >>> reports = [await child for child in children]                             # doctest: +SKIP
        """
        run = self._outside("task.start")
        checked = start_request(
            workflow, arguments, keywords, run.bus.max_payload, id="-", name=name, session=self.session,
            auto=bool(run.claimed.auto), context=context, settings=settings, restarts=restarts, backoff=backoff,
            delay=None, max_losses=max_losses, parent=self.id, by=run.agent.id,
        )  # fmt: skip
        as_ = returns
        if as_ is None and isinstance(workflow, Workflow):
            as_ = result_type(workflow.function)
        with run.busy():
            place, known = run.ask("task", name or checked.workflow, digest(arguments, dict(keywords or {})))
            if known is not None:
                return Child(self, str(known.child), place, known, as_)
            child = await self._free_id(place.position)
            request = ChildRequest(run.agent.actor, run.hold, place, checked.named(child))
            while not await run.write(start_child, request):
                await run.wait_out_halt()
            run.tell("task", place.key, "running")
        return Child(self, child, place, None, as_)

    async def _free_id(self, position: int) -> str:
        """An id for a sub-task: after its parent's, if that is short enough and nobody has taken it."""
        id = f"{self.id}/{position}"
        if len(id) <= _LONGEST and await self._run.look(ending_of, id) is None:
            return id
        return f"{self.id[:_CUT]}/{position}-{secrets.token_hex(6)}"

    async def result(self, child: Child[R]) -> R:
        """Wait for a sub-task and give its result; TaskFailed if it failed or was stopped.

        >>> report = await task.result(child)                                         # doctest: +SKIP
        """
        run = self._run
        known = child.known
        with run.busy():
            if known is not None and known.status == "finished":
                return run.stored(known, child.as_)  # type: ignore[no-any-return]
            if known is not None and known.status == "failed":
                raise self._child_failed(child, problem(known.error))

            async def ended() -> Ending | None:
                found = await run.look(ending_of, child.id)
                gone = found is None or found.status in TASK_ENDED
                return (found or Ending("deleted", None, None, None)) if gone else None

            ending = await run.wait(Wait("task", child.id), ended)
            if ending.status == "completed" and ending.result is not None and ending.checksum is not None:
                kept = (ending.result, ending.checksum)
                result = open_value(*kept, f"the result of task {child.id}", child.as_)
                number = run.ending()
                request = FinishStepRequest(run.agent.actor, run.hold, child.place, kept, ending=number)
                await run.write(finish_step, request)
                run.saw(number)
                run.tell("task", child.place.key, "finished")
                return result  # type: ignore[no-any-return]
            cause = problem(ending.error) if ending.status == "failed" else None
            text = f"it was {ending.status}" if cause is None else f"{cause.type}: {cause.message}"
            told = TaskProblem("TaskFailed", text, [], child.place.key)
            run.unheard[child.place.key] = None
            number = run.ending()
            failing = FailStepRequest(run.agent.actor, run.hold, child.place, plain(told), 1, ending=number)
            await run.write(fail_step, failing)
            run.saw(number)
            run.tell("task", child.place.key, "failed")
            raise self._child_failed(child, told)

    def _child_failed(self, child: Child[Any], told: TaskProblem | None) -> TaskFailed:
        message = "?" if told is None else told.message
        return TaskFailed(task=child.id, status="failed", message=message, parent=self.id, step=child.place.key)

    # What people see of it

    async def phase(self, name: str) -> None:
        """Say which part of the work begins. People see it, and callbacks are told.

        >>> await task.phase("implementing")                                          # doctest: +SKIP
        """
        run = self._outside("task.phase")
        if run.workflow.phases:
            check_choice(name, "phase", run.workflow.phases)
        with run.busy():
            place, known = run.ask("phase", name)
            if known is None:
                ending = run.ending()
                await run.write(enter_phase, PhaseRequest(run.agent.actor, run.hold, place, ending))
                run.saw(ending)
                run.tell("phase", name, "entered")

    async def checkpoint(
        self,
        name: str,
        snapshot: Any,
        *,
        notes: str = "",
        files: Iterable[str | os.PathLike[str]] = (),
        root: str | os.PathLike[str] | None = None,
        keep: int | None = None,
    ) -> int:
        """Save a named snapshot of the task, once; its number, for ``bus.checkpoints.get``. The options are those of
        ``Agent.checkpoint``.

        >>> await task.checkpoint("after_planning", {"plan": plan})                   # doctest: +SKIP
        7
        """
        from agentbus.checkpoints import draft

        run = self._outside("task.checkpoint")
        with run.busy():
            place, known = run.ask("checkpoint", name)
            if known is not None:
                return int(run.stored(known, int))
            checked = draft(
                Owner("task", self.id), name, snapshot, run.bus.max_snapshot, notes=notes, files=files, root=root,
                keep=keep, actor=run.agent.actor, session=self.session,
            )  # fmt: skip
            request, _ = await checked.finished(run.engine)
            ending = run.ending()
            saving = TaskCheckpointRequest(run.agent.actor, run.hold, place, request, ending)
            number = await run.write(checkpoint_task, saving)
            run.saw(ending)
            run.tell("checkpoint", place.key, "finished")
            return number

    async def restore(self, name: str | None = None) -> Checkpoint | None:
        """The newest checkpoint of the task (of that name); None if there is none.

        >>> last = await task.restore("after_planning")                               # doctest: +SKIP
        """
        return await self._run.bus.checkpoints.latest(self.id, name, kind="task")

    def _current(self, what: str) -> Current:
        current = CURRENT.get()
        if current is None or current.run is not self._run:
            raise Misuse(reason=f"{what} is used inside a step: by the function that task.step(…) calls")
        return current

    def _outside(self, what: str) -> Run:
        """Nobody would come to what a step asks for once that step has finished."""
        current = CURRENT.get()
        if current is not None and current.run is self._run:
            raise Misuse(reason=f"{what} is used inside step {current.key!r}; call it from the workflow itself")
        return self._run
