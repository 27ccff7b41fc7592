"""One task in the hands of a worker: what is recorded of it, what it writes, and what it waits for.

The workflow runs from its beginning each time. What was recorded answers at once; the first thing that was not is
done. Where nothing more can be done (a person must decide, a sub-task must end) the workflow is cancelled and the task
let go; it runs again when there is something to go on with.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import msgspec

from agentbus.codec import check, decode, encode, open_value, plain
from agentbus.errors import AgentBusError, AgentFenced, OutcomeUnknown, StepAbandoned, TaskLost, WorkflowChanged
from agentbus.limits import check_name
from agentbus.operations import Op, Operation, Part
from agentbus.operations.holding import worker_channel
from agentbus.operations.steps import StepPlace
from agentbus.operations.task_reading import Recorded, Replay, present_state
from agentbus.operations.tasks import (
    ClaimedTask,
    CompleteRequest,
    FailRequest,
    LetGoRequest,
    RenewTasksRequest,
    complete_task,
    fail_task,
    let_go_task,
    renew_tasks,
)
from agentbus.parting import is_stray
from agentbus.records import TaskChange
from agentbus.services.callbacks import is_cancelled_by_group, raised
from agentbus.tasks.patience import patiently
from agentbus.tasks.problems import problem_of, steps_of, summary_of
from agentbus.tasks.workflow import Workflow, result_type

if TYPE_CHECKING:
    from agentbus.clock import Now
    from agentbus.engine.hub import Ear
    from agentbus.tasks.worker import Worker
    from agentbus.unit import Unit

Q = TypeVar("Q")
T = TypeVar("T")

LINGER = 5000
"""Milliseconds for which a task is kept in hand when all it waits for is another attempt."""
_TURNS = 5
"""Turns of the event loop that the branches of a workflow have, to come to their next step, before it is let go."""

_FINAL = frozenset({WorkflowChanged.__name__, StepAbandoned.__name__})
"""What is the same each time that a workflow runs: it has to be mended."""


class Wait(msgspec.Struct, eq=False):
    """Something that a branch of a workflow waits for. ``due`` is when it need not any longer (wall)."""

    kind: str
    name: str
    due: int | None = None


class Run:
    """One execution of a workflow for a task."""

    def __init__(self, worker: Worker, claimed: ClaimedTask, workflow: Workflow[..., Any], duration: int) -> None:
        self.worker = worker
        self.duration = duration
        self.bus = worker.bus
        self.agent = worker.agent
        self.engine = worker.bus.engine
        self.workflow = workflow
        self.claimed = claimed
        self.hold = claimed.hold
        self.closing = False
        self.alone = claimed.suspect
        """True while its worker runs nothing else: until it has made progress."""
        self.notes: dict[str, str] = decode(claimed.notes)
        self.recorded: dict[tuple[str, str], Recorded] = {}
        self.approvals: dict[str, int] = {}
        self.unrepeatable: set[str] = set()
        """Failed steps that only a person has run again: whether they happened nobody knows."""
        self.unheard: dict[str, None] = {}
        """Steps that have failed since the workflow last came to something: it has done nothing about them yet."""
        self._unasked: dict[tuple[str, str], None] = {}
        self._in_order: dict[tuple[str, str], None] = {}
        self._last = 0
        self._endings = 0
        self.seen = 0
        """The last ending that the workflow knows of."""
        self._counts: Counter[tuple[str, str]] = Counter()
        self._busy = 0
        self._executing: dict[str, asyncio.Task[Any] | None] = {}
        """The steps that the workflow is at, and the branch of it that is at each."""
        self._waits: set[Wait] = set()
        self._loss: AgentBusError | None = None
        self._letting_go = False
        self._scope = anyio.CancelScope()
        self._main: asyncio.Task[Any] | None = None

    def open(self, replay: Replay) -> None:
        """What is recorded of it."""
        self.recorded = {(step.kind, step.key): step for step in replay.steps}
        self.approvals = dict(replay.approvals)
        # What came after a step that failed and is tried again may not be come to any more.
        settled = [
            step for step in replay.steps if step.status in {"finished", "failed"} and step.position < replay.doubtful
        ]
        self._unasked = {(step.kind, step.key): None for step in settled}
        self._in_order = {(step.kind, step.key): None for step in settled if step.main}
        self._last = replay.last
        self._endings = self.seen = replay.endings

    # Its end

    async def run(self, call: Callable[[], Awaitable[Any]]) -> None:
        """Run the workflow, and write down how that ended."""
        self._main = asyncio.current_task()
        problem: BaseException | None = None
        value: Any = None
        with self._scope:
            try:
                value = await call()
                self._check_none_abandoned()
                self._check_all_asked()
            except Exception as error:
                problem = raised(error)
            except asyncio.CancelledError as error:
                if not is_stray(error) and await is_cancelled_by_group():
                    self.closing = True
                    self._cancel_branches()
                    raise
                problem = error
        self.closing = True
        self._cancel_branches()
        if self._loss is not None:
            raise self._loss
        # Whatever a workflow makes of being let go (it may answer with a result): it waits for something.
        if self._letting_go:
            status = await self.let_go()
        elif problem is not None:
            status = await self._fail(problem)
        else:
            status = await self._complete(value)
        self.tell("workflow", self.workflow.name, status)

    async def let_go(self, *, lost: bool = False) -> str:
        """Nothing more can be done for it at present, or here. ``lost``: the code of a task ends the worker."""
        self.closing = True
        awaits = sorted({(wait.kind, wait.name) for wait in self._waits if wait.kind != "halt"})
        due = min((wait.due for wait in self._waits if wait.due is not None), default=None)
        request = LetGoRequest(self.agent.actor, self.hold, tuple(awaits), due, lost)
        status: str = await self.agent.write(let_go_task, request)
        return status

    def forget_waits(self) -> None:
        """Whoever takes it next finds out what it waits for."""
        self._waits.clear()

    async def _complete(self, value: Any) -> str:
        try:
            text, crc = encode(value, self.bus.max_payload)
            open_value(text, crc, f"the result of workflow {self.workflow.name}", result_type(self.workflow.function))
        except Exception as error:
            return await self._fail(error)
        return await self.write(complete_task, CompleteRequest(self.agent.actor, self.hold, (text, crc)))

    async def _fail(self, error: BaseException) -> str:
        problem = problem_of(error, self.claimed.id)
        step = problem.step
        steps: tuple[str, ...] = ()
        if step is not None:
            beside = dict.fromkeys([*steps_of(error, self.claimed.id), *self.unheard])
            others = [one for one in beside if one != step and one not in self.unrepeatable]
            problem = msgspec.structs.replace(problem, others=others)
            steps = (step, *others)
        request = FailRequest(
            self.agent.actor, self.hold, plain(problem), summary_of(problem), steps,
            problem.type in _FINAL or step in self.unrepeatable,
        )  # fmt: skip
        return await self.write(fail_task, request)

    def lose(self, error: AgentBusError) -> None:
        """It is no longer ours: whatever it does is cancelled, and nothing more is written."""
        if not self.closing:
            self._loss = error
            self._scope.cancel()

    def renewing(self) -> tuple[Operation[RenewTasksRequest, Any], RenewTasksRequest]:
        """Return what renews the lease."""
        return renew_tasks, RenewTasksRequest(self.agent.actor, (self.hold,), self.duration)

    def title(self, task: asyncio.Task[Any] | None) -> str | None:
        """Return what the log calls it, and the step that this task executes; None if the task works on another."""
        if task is None:
            return f"task {self.claimed.id}"
        for step, branch in list(self._executing.items()):
            if branch is task:
                return f"step {step!r} of task {self.claimed.id}"
        return f"workflow {self.workflow.name} of task {self.claimed.id}" if task is self._main else None

    # What is asked for

    def ask(self, kind: str, name: str, digest: str = "") -> tuple[StepPlace, Recorded | None]:
        """The place of something that the workflow comes to, and what is recorded of it."""
        key = self.key(kind, name)
        known = self.recorded.get((kind, key))
        main = asyncio.current_task() is self._main
        if known is None:
            if main and self._in_order:
                _, other = next(iter(self._in_order))
                self._changed(other, f"was done where the workflow now comes to {kind} {key!r}")
            return StepPlace(kind, key, name, self.place(), main, digest, self.seen), None
        self._unasked.pop((kind, key), None)
        self._in_order.pop((kind, key), None)
        # What came from elsewhere does not say with which arguments it was done.
        if known.digest not in {"", digest} and known.status in {"finished", "failed"}:
            self._changed(key, "was done with other arguments than it is asked for now")
        return StepPlace(kind, key, name, known.position, bool(known.main), digest), known

    def key(self, kind: str, name: str) -> str:
        """The name, with a number if it was asked for before."""
        check_name(name, kind)
        self.unheard.clear()
        self._counts[kind, name] += 1
        count = self._counts[kind, name]
        return name if count == 1 else f"{name}#{count}"

    def place(self) -> int:
        """The next position in the order of all that the task comes to."""
        self._last += 1
        return self._last

    def ending(self) -> int:
        """The number of the next ending of a step, sub-task, phase or checkpoint."""
        self._endings += 1
        return self._endings

    def saw(self, ending: int | None) -> None:
        """Note that the workflow is told of an ending: what it comes to from now on may depend on it."""
        self.seen = max(self.seen, ending or 0)
        self._endings = max(self._endings, self.seen)

    def _check_all_asked(self) -> None:
        for _, key in self._unasked:
            self._changed(key, "was done, and the workflow ends without coming to it")

    def _check_none_abandoned(self) -> None:
        for step, branch in self._executing.items():
            # One that the workflow has cancelled ends with it.
            if branch is None or not branch.cancelling():
                raise StepAbandoned(task=self.claimed.id, step=step)

    def _cancel_branches(self) -> None:
        """What the workflow has left behind would go on beside the next run, and could write nothing."""
        for branch in set(self._executing.values()):
            if branch is not None and branch is not self._main:
                branch.cancel()

    def _changed(self, step: str, reason: str) -> None:
        raise WorkflowChanged(task=self.claimed.id, step=step, reason=reason)

    def stored(self, known: Recorded, as_: Any) -> Any:
        """A result that was kept."""
        what = f"the result of step {known.key} of task {self.claimed.id}"
        return open_value(str(known.result), known.checksum or 0, what, as_)

    # Writing and looking

    async def write(self, operation: Operation[Any, T], request: Any, *, durable: bool | None = None) -> T:
        """Write for the task; a named error, and the end of the run, if it is not ours any more."""
        return await self._written(lambda: self.agent.write(operation, request, durable=durable))

    async def commit(self, *parts: Part) -> list[Any]:
        """The same for several that belong together."""
        return await self._written(lambda: self.agent.commit(parts))

    async def commit_unit(self, unit: Unit, first: Part) -> None:
        """The same for what was collected in a unit."""
        await self._written(lambda: unit.commit(first=first))

    async def _written(self, writing: Callable[[], Awaitable[T]]) -> T:
        """What was done is not done again because it could not be written at once. If nobody knows whether it was, the
        run ends, and the task goes on from what is recorded."""
        try:
            return await patiently(self.engine.hub, self.claimed.id, writing)
        except (TaskLost, AgentFenced, OutcomeUnknown) as error:
            self.lose(error)
            raise

    async def look(self, question: Callable[[Q, Now], Op[T]], request: Q) -> T:
        """Look at what is recorded now."""
        return await patiently(self.engine.hub, self.claimed.id, lambda: self.engine.look(question, request))

    @property
    def lost(self) -> bool:
        """Whether nothing more may be written for it."""
        return self._loss is not None

    def tell(self, kind: str, name: str, status: str, attempt: int = 1) -> None:
        """Tell the callbacks of the worker. What finishes is progress: others may run beside the task from then on."""
        if self.alone and status == "finished":
            self.alone = False
            self.worker.take_more()
        self.worker.changed(TaskChange(self.claimed.id, kind, name, status, attempt))

    # Waiting

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Something is being done for the task, so that it is not let go."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._look_whether_all_wait()

    @contextmanager
    def executing(self, step: str) -> Iterator[None]:
        """A step is being executed, or waits to be."""
        self._executing[step] = asyncio.current_task()
        try:
            yield
        finally:
            del self._executing[step]

    async def wait(self, wait: Wait, found: Callable[[], Awaitable[T | None]]) -> T:
        """Wait until ``found`` gives something, as long as others are busy; else the task is let go."""
        # Listen first, then look: what comes in between rings.
        ear = self.engine.hub.watch((worker_channel(self.agent.id),))
        self._waits.add(wait)
        try:
            while True:
                # Busy until it has looked: that may have to write, which takes longer than letting go.
                result = await found()
                if result is not None:
                    return result
                await self._pause(ear, wait.due)
        finally:
            # What is cancelled to be let go was waiting for this.
            if not self._letting_go:
                self._waits.discard(wait)
            ear.close()

    async def _pause(self, ear: Ear, due: int | None) -> None:
        """Sleep until there is news, or until a time; only this is waiting, looking is not."""
        self._busy -= 1
        self._look_whether_all_wait()
        try:
            await ear.wait(None if due is None else max(0, due - self.engine.clock.now().wall) / 1000)
        finally:
            self._busy += 1

    async def wait_out_halt(self) -> None:
        """The task is to be halted: no step begins any more, unless somebody has it continued before all others end."""

        async def going_on() -> bool | None:
            mine = (await self.look(present_state, (self.hold.number,))).get(self.hold.number)
            return True if mine is not None and not mine.paused else None

        await self.wait(Wait("halt", ""), going_on)

    async def wait_until(self, key: str, due: int) -> None:
        """Wait for another attempt. Setting the wall clock back does not make that longer."""
        now = self.engine.clock.now()
        until = now.awake + max(0, due - now.wall)

        async def is_due() -> bool | None:
            now = self.engine.clock.now()
            return True if now.wall >= due or now.awake >= until else None

        await self.wait(Wait("retry", key, due), is_due)

    def _look_whether_all_wait(self, turns: int = _TURNS) -> None:
        if self._busy or not self._waits or self.closing or self._letting_go:
            return
        wall = self.engine.clock.now().wall
        if any(wait.kind == "retry" and (wait.due or 0) - wall <= LINGER for wait in self._waits):
            return
        if turns:
            asyncio.get_running_loop().call_soon(self._look_whether_all_wait, turns - 1)
            return
        self._letting_go = True
        self._scope.cancel()

    def arguments(self) -> tuple[list[Any], dict[str, Any]]:
        """What the workflow is called with."""
        check(self.claimed.arguments, self.claimed.checksum, f"the arguments of task {self.claimed.id}")
        given = decode(self.claimed.arguments)
        # While no worker ran, any were accepted.
        self.workflow.check_arguments(given["arguments"], given["keywords"])
        return self.workflow.converted(given["arguments"], given["keywords"])
