"""One run of a task by a worker: replay what is recorded, write new steps, wait, and end or release the task.

The workflow runs from its beginning each time. Recorded steps return their results at once; the first step that is not
recorded is executed. When nothing more can be done (an approval is open, a sub-task runs, the task sleeps) the workflow
is cancelled and the task is released; it runs again when there is progress to make. Transient errors of the store are
retried: they are failures neither of the task nor of its worker.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from traceback import walk_tb
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import msgspec

from agentbus.api.tasks.workflow import Workflow, result_type
from agentbus.core.cancellation import exception_chain, is_cancelled_by_group, is_foreign_cancellation, unwrap_exit
from agentbus.core.codec import check, decode, encode, plain, verify_value
from agentbus.core.validation import check_name, error_text, plain_text
from agentbus.engine.waiters import Waiters
from agentbus.errors import (
    AgentBusError,
    AgentFenced,
    OutcomeUnknown,
    SignalTimedOut,
    StepAbandoned,
    StepFailed,
    StoreError,
    TaskFailed,
    TaskFailure,
    TaskLost,
    WorkflowChanged,
)
from agentbus.operations.protocol import Op, Operation, Part
from agentbus.operations.task_lookups import Recorded, Replay, read_held_tasks
from agentbus.operations.task_ownership import worker_channel
from agentbus.operations.task_steps import StepIdentity
from agentbus.operations.tasks import (
    ClaimedTask,
    CompleteRequest,
    FailRequest,
    ReleaseRequest,
    RenewTasksRequest,
    complete_task,
    fail_task,
    release_task,
    renew_tasks,
)
from agentbus.records import TaskChange, TaskProblem

if TYPE_CHECKING:
    from agentbus.api.tasks.worker import Worker
    from agentbus.api.unit import Unit
    from agentbus.core.clock import Now
    from agentbus.engine.waiters import Waiter

log = logging.getLogger("agentbus")

Q = TypeVar("Q")
T = TypeVar("T")

LINGER = 5000
"""Milliseconds for which a task is kept when it only waits for another attempt."""
_RETRY_PAUSE = 0.5
_MAX_FRAMES = 8
_MAX_MESSAGE = 2000
_LOOP_ITERATIONS = 5
"""Iterations of the event loop in which branches may reach their next step before the task is released."""
_OF_STEPS = (StepFailed, StepAbandoned, SignalTimedOut, WorkflowChanged)
"""Errors that name the step of their task."""
_FINAL = frozenset({WorkflowChanged.__name__, StepAbandoned.__name__})
"""Errors that occur every time that a workflow runs: its code must be fixed."""


async def retry_transient(
    waiters: Waiters, who: str, request: Callable[[], Awaitable[T]], *, repeatable: bool = False
) -> T:
    """Repeat a request to the store until it gets past transient errors. After an unknown outcome only a ``repeatable``
    request is repeated."""
    while True:
        try:
            return await request()
        except StoreError as error:
            if not error.transient or (isinstance(error, OutcomeUnknown) and not repeatable):
                raise
            log.warning("%s: retrying: %s", who, error)
            await waiters.listen(()).wait(_RETRY_PAUSE)


def problem_of(error: BaseException, task: str, step: str | None = None) -> TaskProblem:
    """Return the stored form of an exception: type, message and frames, without values of variables. ``step`` defaults
    to the step that raised it."""
    cause = first_of(error)
    name, _, message = error_text(cause).partition(": ")
    if isinstance(cause, TaskFailure) and cause.fix:
        # The record shows the fix separately.
        message = message.removesuffix(f" ({cause.fix})")
    frames = deque(walk_tb(cause.__traceback__), _MAX_FRAMES)
    places = [plain_text(f"{_file(frame)}:{line} in {frame.f_code.co_name}") for frame, line in frames]
    return TaskProblem(name, message[:_MAX_MESSAGE], places, step or _step(cause, task))


def steps_of(error: BaseException, task: str) -> list[str]:
    """Return the steps of this task that raised an exception; several for an exception group."""
    found: list[str] = []
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if isinstance(one, BaseExceptionGroup):
            waiting += reversed(one.exceptions)
        elif (step := _step(one, task)) is not None:
            found.append(step)
    return found


def summary_of(problem: TaskProblem) -> str:
    """Return the problem in one line."""
    return f"{problem.type}: {problem.message}"[:500]


def first_of(error: BaseException) -> BaseException:
    """Return the first exception of a group, or the exception itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _step(error: BaseException, task: str) -> str | None:
    """Return the step of this task that raised an exception or its cause."""
    for found in exception_chain(error):
        if isinstance(found, _OF_STEPS) and found.facts.get("task") == task:
            return str(found.facts["step"])
        if isinstance(found, TaskFailed) and found.facts.get("parent") == task:
            return str(found.facts["step"])
    return None


def _file(frame: FrameType) -> str:
    return os.path.basename(frame.f_code.co_filename)


class Wait(msgspec.Struct, eq=False):
    """A wait of a branch of a workflow, until ``due`` (wall) at the latest."""

    kind: str
    name: str
    due: int | None = None


class Run:
    """One execution of a workflow for a task."""

    def __init__(self, worker: Worker, claimed: ClaimedTask, workflow: Workflow[..., Any], duration: int) -> None:
        self.worker = worker
        self._duration = duration
        self.bus = worker.bus
        self.agent = worker.agent
        self.engine = worker.bus._engine
        self.workflow = workflow
        self.claimed = claimed
        self.hold = claimed.hold
        self.closing = False
        self.alone = claimed.suspect
        """True while its worker runs no other task: until this one has made progress."""
        self.notes: dict[str, str] = decode(claimed.notes)
        self.recorded: dict[tuple[str, str], Recorded] = {}
        self.approvals: dict[str, int] = {}
        self.unrepeatable: set[str] = set()
        """Failed steps with an unknown outcome, which only an operator may run again."""
        self.unhandled: dict[str, None] = {}
        """Steps that failed since the workflow last called a step: it has not handled them yet."""
        self._uncalled: dict[tuple[str, str], None] = {}
        self._in_order: dict[tuple[str, str], None] = {}
        self._last = 0
        self._endings = 0
        self.seen = 0
        """The last ending that the workflow has seen."""
        self._counts: Counter[tuple[str, str]] = Counter()
        self._busy = 0
        self._executing: dict[str, asyncio.Task[Any] | None] = {}
        """The running steps, each with the branch of the workflow that runs it."""
        self._waits: set[Wait] = set()
        self._waiting: set[asyncio.Task[Any]] = set()
        """The branches of the workflow that wait."""
        self._loss: AgentBusError | None = None
        self._failure: str | None = None
        """The error that the task fails with, for the worker's callbacks."""
        self._releasing = False
        self._scope = anyio.CancelScope()
        self._main: asyncio.Task[Any] | None = None

    def open(self, replay: Replay) -> None:
        """Load the recorded steps and approvals."""
        self.recorded = {(step.kind, step.key): step for step in replay.steps}
        self.approvals = dict(replay.approvals)
        # Steps after a failed one that is retried may not be called again.
        settled = [
            step for step in replay.steps if step.status in {"finished", "failed"} and step.position < replay.doubtful
        ]
        self._uncalled = {(step.kind, step.key): None for step in settled}
        self._in_order = {(step.kind, step.key): None for step in settled if step.main}
        self._last = replay.last
        self._endings = self.seen = replay.endings

    # Ending

    async def run(self, call: Callable[[], Awaitable[Any]]) -> tuple[str, BaseException | None]:
        """Run the workflow and write how it ended. Return the status of the task, and the error that it failed
        with."""
        self._main = asyncio.current_task()
        problem: BaseException | None = None
        value: Any = None
        with self._scope:
            try:
                value = await call()
                self._check_none_abandoned()
                self._check_all_called()
            except Exception as error:
                problem = unwrap_exit(error)
            except asyncio.CancelledError as error:
                if not is_foreign_cancellation(error) and await is_cancelled_by_group():
                    self.closing = True
                    self._cancel_branches()
                    raise
                problem = error
        self.closing = True
        self._cancel_branches()
        if self._loss is not None:
            raise self._loss
        # Whatever the workflow does when it is cancelled for a release (even return a result), it waits for something.
        if self._releasing:
            status, problem = await self.release(), None
        elif problem is not None:
            status = await self._fail(problem)
        else:
            status = await self._complete(value)
        self.report("workflow", self.workflow.name, status, error=self._failure if status == "failed" else None)
        return status, problem

    async def release(self, *, lost: bool = False) -> str:
        """Release the task with what it waits for. ``lost``: the code of a task ends the worker."""
        self.closing = True
        awaits = sorted({(wait.kind, wait.name) for wait in self._waits if wait.kind != "halt"})
        due = min((wait.due for wait in self._waits if wait.due is not None), default=None)
        request = ReleaseRequest(self.agent._actor, self.hold, tuple(awaits), due, lost)
        status: str = await self.agent._write(release_task, request)
        return status

    def forget_waits(self) -> None:
        """Discard the waits: the next worker determines them again."""
        self._waits.clear()

    async def _complete(self, value: Any) -> str:
        try:
            text, crc = encode(value, self.bus._max_payload)
            verify_value(text, crc, f"the result of workflow {self.workflow.name}", result_type(self.workflow.function))
        except Exception as error:
            return await self._fail(error)
        return await self.write(complete_task, CompleteRequest(self.agent._actor, self.hold, (text, crc)))

    async def _fail(self, error: BaseException) -> str:
        problem = problem_of(error, self.claimed.id)
        step = problem.step
        steps: tuple[str, ...] = ()
        if step is not None:
            failed = dict.fromkeys([*steps_of(error, self.claimed.id), *self.unhandled])
            others = [one for one in failed if one != step and one not in self.unrepeatable]
            problem = msgspec.structs.replace(problem, others=others)
            steps = (step, *others)
        request = FailRequest(
            self.agent._actor, self.hold, plain(problem), summary_of(problem), steps,
            problem.type in _FINAL or step in self.unrepeatable,
        )  # fmt: skip
        self._failure = summary_of(problem)
        return await self.write(fail_task, request)

    def lose(self, error: AgentBusError) -> None:
        """Cancel the run: the task belongs to another worker, and nothing more is written."""
        if not self.closing:
            self._loss = error
            self._scope.cancel()

    def _renewing(self) -> tuple[Operation[RenewTasksRequest, Any], RenewTasksRequest]:
        """Return the operation and request that renew the lease."""
        return renew_tasks, RenewTasksRequest(self.agent._actor, (self.hold,), self._duration)

    def _title(self, task: asyncio.Task[Any] | None) -> str | None:
        """Return the name for the log, with the step that this asyncio task executes; None if it runs another task."""
        if task is None:
            return f"task {self.claimed.id}"
        for step, branch in list(self._executing.items()):
            if branch is task:
                return f"step {step!r} of task {self.claimed.id}"
        return f"workflow {self.workflow.name} of task {self.claimed.id}" if task is self._main else None

    # Replay

    def locate(self, kind: str, name: str, digest: str = "") -> tuple[StepIdentity, Recorded | None]:
        """Return the position of a call of the workflow, and its record if there is one."""
        key = self.key(kind, name)
        known = self.recorded.get((kind, key))
        main = asyncio.current_task() is self._main
        if known is None:
            if main and self._in_order:
                _, other = next(iter(self._in_order))
                self._changed(other, f"was recorded where the workflow now calls {kind} {key!r}")
            return StepIdentity(kind, key, name, self.next_position(), main, digest, self.seen), None
        self._uncalled.pop((kind, key), None)
        self._in_order.pop((kind, key), None)
        # An imported step has no digest of its arguments.
        if known.digest not in {"", digest} and known.status in {"finished", "failed"}:
            self._changed(key, "was recorded with other arguments")
        return StepIdentity(kind, key, name, known.position, bool(known.main), digest), known

    def key(self, kind: str, name: str) -> str:
        """Return the key of a call: its name, with a number if the name was used before."""
        check_name(name, kind)
        self.unhandled.clear()
        self._counts[kind, name] += 1
        count = self._counts[kind, name]
        return name if count == 1 else f"{name}#{count}"

    def next_position(self) -> int:
        """Return the next position in the order of the calls of the task."""
        self._last += 1
        return self._last

    def next_ending(self) -> int:
        """Return the number of the next ending of a step, sub-task, phase or checkpoint."""
        self._endings += 1
        return self._endings

    def mark_seen(self, ending: int | None) -> None:
        """Record that the workflow has seen an ending: its later calls may depend on it."""
        self.seen = max(self.seen, ending or 0)
        self._endings = max(self._endings, self.seen)

    def _check_all_called(self) -> None:
        for _, key in self._uncalled:
            self._changed(key, "was recorded, and the workflow ended without calling it")

    def _check_none_abandoned(self) -> None:
        for step, branch in self._executing.items():
            # A branch that the workflow has cancelled ends with it.
            if branch is None or not branch.cancelling():
                raise StepAbandoned(task=self.claimed.id, step=step)

    def _cancel_branches(self) -> None:
        """Cancel branches that outlive the workflow: they could write nothing and would overlap the next run."""
        for branch in {*self._executing.values(), *self._waiting}:
            if branch is not None and branch is not self._main:
                branch.cancel()

    def _changed(self, step: str, reason: str) -> None:
        raise WorkflowChanged(task=self.claimed.id, step=step, reason=reason)

    def stored(self, known: Recorded, as_: Any) -> Any:
        """Return a recorded result."""
        what = f"the result of step {known.key} of task {self.claimed.id}"
        return verify_value(str(known.result), known.checksum or 0, what, as_)

    # Writing and reading

    async def write(self, operation: Operation[Any, T], request: Any, *, durable: bool | None = None) -> T:
        """Write for the task. If another worker has it, raise and end the run."""
        return await self._write(lambda: self.agent._write(operation, request, durable=durable))

    async def commit(self, *parts: Part) -> list[Any]:
        """Write several parts in one commit."""
        return await self._write(lambda: self.agent._commit(parts))

    async def commit_unit(self, unit: Unit, first: Part) -> None:
        """Write the contents of a unit in one commit with ``first``."""
        await self._write(lambda: unit._commit(first=first))

    async def _write(self, request: Callable[[], Awaitable[T]]) -> T:
        """Retry a write until it succeeds, so that finished work is not repeated. After an unknown outcome the run
        ends, and the task resumes from its record."""
        try:
            return await retry_transient(self.engine.waiters, self.claimed.id, request)
        except (TaskLost, AgentFenced, OutcomeUnknown) as error:
            self.lose(error)
            raise

    async def read_inline(self, question: Callable[[Q, Now], Op[T]], request: Q) -> T:
        """Read from the store, retrying transient errors."""
        return await retry_transient(
            self.engine.waiters, self.claimed.id, lambda: self.engine.read_inline(question, request)
        )

    @property
    def lost(self) -> bool:
        """True if nothing more may be written for the task."""
        return self._loss is not None

    def report(self, kind: str, name: str, status: str, attempt: int = 1, error: str | None = None) -> None:
        """Report a change to the worker's callbacks. Once a step has finished, other tasks may run concurrently."""
        if self.alone and status == "finished":
            self.alone = False
            self.worker.claim_more()
        self.worker.changed(TaskChange(self.claimed.id, kind, name, status, attempt, error))

    # Waiting

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Mark the task busy, so that it is not released."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._release_if_idle()

    @contextmanager
    def executing(self, step: str) -> Iterator[None]:
        """Record which branch executes a step."""
        self._executing[step] = asyncio.current_task()
        try:
            yield
        finally:
            del self._executing[step]

    async def wait(self, wait: Wait, found: Callable[[], Awaitable[T | None]]) -> T:
        """Wait until ``found`` returns a value, while other branches are busy; otherwise the task is released."""
        # Subscribe before reading, so that no change falls in between.
        waiter = self.engine.waiters.watch((worker_channel(self.agent.id),))
        self._waits.add(wait)
        branch = asyncio.current_task()
        assert branch is not None  # noqa: S101 - a coroutine runs in a task
        self._waiting.add(branch)
        try:
            while True:
                # Busy during the read, which may have to write.
                result = await found()
                if result is not None:
                    return result
                await self._pause(waiter, wait.due)
        finally:
            # A branch that is cancelled for the release was waiting for this.
            if not self._releasing:
                self._waits.discard(wait)
            self._waiting.discard(branch)
            waiter.close()

    async def _pause(self, waiter: Waiter, due: int | None) -> None:
        """Sleep until a notification or a time. Only this counts as waiting."""
        self._busy -= 1
        self._release_if_idle()
        try:
            await waiter.wait(None if due is None else max(0, due - self.engine.clock.now().wall) / 1000)
        finally:
            self._busy += 1

    async def wait_out_halt(self) -> None:
        """Start no step while the task is to be halted, unless it is continued before all other steps end."""

        async def is_continued() -> bool | None:
            mine = (await self.read_inline(read_held_tasks, (self.hold.number,))).get(self.hold.number)
            return True if mine is not None and not mine.paused else None

        await self.wait(Wait("halt", ""), is_continued)

    async def wait_until(self, key: str, due: int) -> None:
        """Wait for another attempt. Setting the wall clock back does not prolong the wait."""
        now = self.engine.clock.now()
        until = now.awake + max(0, due - now.wall)

        async def is_due() -> bool | None:
            now = self.engine.clock.now()
            return True if now.wall >= due or now.awake >= until else None

        await self.wait(Wait("retry", key, due), is_due)

    def _release_if_idle(self, iterations: int = _LOOP_ITERATIONS) -> None:
        """Cancel the workflow for a release if all of its branches wait."""
        if self._busy or not self._waits or self.closing or self._releasing:
            return
        wall = self.engine.clock.now().wall
        if any(wait.kind == "retry" and (wait.due or 0) - wall <= LINGER for wait in self._waits):
            return
        if iterations:
            asyncio.get_running_loop().call_soon(self._release_if_idle, iterations - 1)
            return
        self._releasing = True
        self._scope.cancel()

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """Return the checked and converted arguments of the workflow."""
        check(self.claimed.arguments, self.claimed.checksum, f"the arguments of task {self.claimed.id}")
        given = decode(self.claimed.arguments)
        # The bus accepts any arguments while no worker announces the workflow.
        self.workflow.check_arguments(given["arguments"], given["keywords"])
        return self.workflow.convert_arguments(given["arguments"], given["keywords"])
