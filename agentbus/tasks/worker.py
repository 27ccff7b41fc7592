"""A worker: takes tasks, runs their workflows, keeps what it holds, and hears what people want of it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import anyio
import anyio.abc

from agentbus.agent import Agent
from agentbus.engine.hub import Ear
from agentbus.errors import AgentBusError, AgentFenced, BusClosed, InvalidInput, TaskLost
from agentbus.operations.holding import READY, HeldTask, worker_channel
from agentbus.operations.task_reading import Replay, present_state, replay_of
from agentbus.operations.tasks import (
    ClaimedTask,
    ClaimedTasks,
    ClaimTasksRequest,
    LetGoRequest,
    RenewTasksRequest,
    claim_tasks,
    let_go_task,
    renew_tasks,
)
from agentbus.parting import farewell, unheeded
from agentbus.records import TaskChange
from agentbus.services.callbacks import (
    being_cancelled,
    call,
    chain,
    check_callback,
    guarded,
    left_by_code,
    log_failure,
)
from agentbus.tasks.announcement import announced
from agentbus.tasks.patience import patiently
from agentbus.tasks.problems import first_of
from agentbus.tasks.running import Run
from agentbus.tasks.task import Task
from agentbus.tasks.workflow import Workflow

if TYPE_CHECKING:
    from agentbus.bus import Bus

log = logging.getLogger("agentbus")

T = TypeVar("T")

Callback = Callable[[TaskChange], Any]
_CALLBACKS = {"phase": "on_phase", "workflow": "on_task"}
"""Who is told of what kind of change, if not ``on_step``."""

THREADS = 40
"""Steps of a worker that may run on threads at the same time, unless it has more tasks than that."""
LOOK_AGAIN = 1.0
"""Seconds after which a worker that has tasks looks for what it was not rung for."""


async def run_worker(
    bus: Bus,
    workflows: Sequence[Workflow[..., Any]],
    concurrency: int,
    agent: Agent | str | None,
    lease: int,
    on_step: Callback | None,
    on_phase: Callback | None,
    on_task: Callback | None,
    until_idle: bool,
) -> None:
    """Work until cancelled, or until there is nothing to do."""
    known = {workflow.name: workflow for workflow in _checked(workflows)}
    if len(known) < len(workflows):
        raise InvalidInput(reason="two workflows have the same name")
    callbacks = {"on_step": on_step, "on_phase": on_phase, "on_task": on_task}
    for name, callback in callbacks.items():
        if callback is not None:
            check_callback(callback, name, "change")
    async with _as_agent(bus, agent, known) as handle, announced(handle, known.values()):
        worker = Worker(bus, handle, known, concurrency, lease, callbacks)
        try:
            await worker.work(until_idle)
        except BaseExceptionGroup as group:
            # What ends one part ends them all: a fenced agent, a closed bus.
            raise first_of(group) from None


def _checked(workflows: Sequence[object]) -> Sequence[Workflow[..., Any]]:
    if not workflows:
        raise InvalidInput(reason="a worker needs a workflow at least: run_worker(feature)")
    checked: list[Workflow[..., Any]] = []
    for workflow in workflows:
        if not isinstance(workflow, Workflow):
            raise InvalidInput(reason=f"{workflow!r} is not a workflow; make one with @agentbus.workflow('name')")
        checked.append(workflow)
    return checked


@asynccontextmanager
async def _as_agent(bus: Bus, agent: Agent | str | None, workflows: Iterable[str]) -> AsyncIterator[Agent]:
    """The agent that works: the one that was given, or one for as long as this lasts. One of our own says what it can
    do."""
    if isinstance(agent, Agent):
        yield agent
        return
    if agent is None:
        made = bus.agent(f"worker-{secrets.token_hex(6)}", type="worker", capabilities=sorted(workflows))
    else:
        # What somebody else calls it by, somebody else says what it can do.
        made = bus.agent(agent, type="worker")
    async with made as registered:
        yield registered


class Worker:
    """An agent that runs tasks."""

    def __init__(
        self,
        bus: Bus,
        agent: Agent,
        workflows: dict[str, Workflow[..., Any]],
        concurrency: int,
        lease: int,
        callbacks: Mapping[str, Callback | None],
    ) -> None:
        self.bus = bus
        self.agent = agent
        self._engine = bus.engine
        self._workflows = workflows
        self._concurrency = concurrency
        self._lease = lease
        self._callbacks = callbacks
        # By hand-out: a task may come back before the run that lost it has come to its end.
        self._runs: dict[tuple[int, int], Run] = {}
        self._around = list(chain(sys.exception()))
        """The error that was being handled when the worker began."""
        self._others = WeakSet(asyncio.all_tasks())
        self._more = False
        """Whether there may be tasks that nobody has room for."""
        self._pulse = self._engine.hub.listen(())
        self._dozing = False
        """Whether it has no tasks, and looks for no news of them."""
        self.slots = anyio.CapacityLimiter(max(THREADS, concurrency))
        """Room for the steps that run on threads. Not anyio's own, which everything else in the process shares."""
        self._changes: asyncio.Queue[tuple[Callback, TaskChange]] = asyncio.Queue()

    async def work(self, until_idle: bool) -> None:
        """Take tasks and run them."""
        # A worker whose loop turns is alive, however long the steps take that it runs.
        self.agent.waiting += 1
        self.bus.watchdog.add(self._held)
        try:
            async with (
                self.bus.listening.to(READY) as ready,
                self.bus.listening.to(worker_channel(self.agent.id)) as news,
                anyio.create_task_group() as background,
            ):
                background.start_soon(self._renew)
                background.start_soon(self._hear, news)
                background.start_soon(self._listen_again)
                background.start_soon(self._call_back)
                async with anyio.create_task_group() as tasks:
                    await self._take(ready, tasks, until_idle)
                await self._changes.join()
                background.cancel_scope.cancel()
        finally:
            self.bus.watchdog.remove(self._held)
            self.agent.waiting -= 1

    # Taking

    async def _take(self, ready: Ear, tasks: anyio.abc.TaskGroup, until_idle: bool) -> None:
        while True:
            room = self._concurrency - len(self._runs)
            if not room or any(run.alone for run in self._runs.values()):
                self._more = True
                await ready.wait(None)
                continue
            found = await self._claim(room)
            for claimed in found.tasks:
                self._begin(claimed, ready, tasks)
            self._more = found.more
            # What is left although there is room runs alone: the last of the others may have ended during the claim.
            if until_idle and not self._runs and not found.more:
                return
            await ready.wait(self._until_next(found))

    async def _claim(self, room: int) -> ClaimedTasks:
        request = ClaimTasksRequest(self.agent.actor, tuple(self._workflows), room, self._lease, busy=bool(self._runs))
        # If nobody knows what a claim got, that is free again when its lease has run out.
        return await self._patiently(lambda: self.agent.write(claim_tasks, request, orphaned=self._give_back))

    def _give_back(self, found: ClaimedTasks) -> None:
        """The claim's caller was cancelled: the tasks go back at once."""
        for claimed in found.tasks:
            with suppress(AgentBusError):
                unheeded(self._engine.write(let_go_task, LetGoRequest(self.agent.actor, claimed.hold)))

    def _until_next(self, found: ClaimedTasks) -> float | None:
        """Seconds until there is something to look for, as far as that is known."""
        now = self._engine.clock.now()
        waits = [
            moment - present
            for moment, present in ((found.next_wall, now.wall), (found.next_awake, now.awake))
            if moment is not None
        ]
        if found.more:
            # Another worker that takes a task which runs alone, and makes way for those behind it, rings no bell.
            waits.append(round(LOOK_AGAIN * 1000))
        return max(0.001, min(waits) / 1000) if waits else None

    def take_more(self) -> None:
        """Look for tasks again: one that ran alone need not any more."""
        self._engine.hub.ring((READY,))

    # Running

    def _begin(self, claimed: ClaimedTask, ready: Ear, tasks: anyio.abc.TaskGroup) -> None:
        # Known at once, so that it is renewed and can be lost; what is recorded of it comes before it runs.
        run = Run(self, claimed, self._workflows[claimed.workflow], self._lease)
        self._runs[claimed.number, claimed.lease] = run
        self.bus.watchdog.cover(self._lease)
        if self._dozing:
            self._pulse.ring()
        tasks.start_soon(self._run, run, ready)

    async def _run(self, run: Run, ready: Ear) -> None:
        try:
            await self._execute(run)
        except TaskLost as error:
            await self._log_loss(run, error)
        except AgentFenced:
            raise
        except AgentBusError as error:
            # It could not be written down how far it is: another worker goes on with it, at the latest when its lease
            # has run out.
            log.warning("%s: what became of %s could not be written: %s", self.agent.id, run.claimed.id, error)
            if error.transient:
                await farewell(self._engine, self._part(run))
        except BaseException:
            await farewell(self._engine, self._part(run))
            raise
        finally:
            self._runs.pop((run.claimed.number, run.claimed.lease), None)
            if self._more or not self._runs:
                ready.ring()

    async def _execute(self, run: Run) -> None:
        claimed = run.claimed
        run.open(Replay() if claimed.fresh else await self._engine.read(replay_of, claimed.number))

        async def call() -> Any:
            arguments, keywords = run.arguments()
            return await guarded(run.workflow.function(Task(run), *arguments, **keywords))

        await run.run(call)

    async def _log_loss(self, run: Run, error: TaskLost) -> None:
        """Log why a task was lost. A person who stops or repeats it wants that: it is no fault."""
        task: HeldTask | None = None
        with suppress(AgentBusError):
            task = (await self._engine.look(present_state, [run.claimed.number])).get(run.claimed.number)
        if task is not None and task.status == "stopped":
            log.info("%s: task %s was stopped", self.agent.id, run.claimed.id)
        elif task is not None and task.generation > run.claimed.generation:
            log.info("%s: task %s was interrupted, for a redo or a restart of it", self.agent.id, run.claimed.id)
        else:
            log.warning("%s: %s", self.agent.id, error)

    async def _part(self, run: Run) -> None:
        """Release the task as the worker ends: others may take it at once.

        A task that user code has started and that raises SystemExit or KeyboardInterrupt ends the event loop, and the
        worker with it. That counts as a worker lost, unlike a cancellation or what a signal handler raised.
        """
        # This coroutine is a task of its own, so the exception is one under which the loop is being torn down.
        lost = any(left_by_code(error) and not self._is_callers(error) for error in chain(sys.exception()))
        with suppress(AgentBusError):
            run.forget_waits()
            await run.let_go(lost=lost)

    def _is_callers(self, error: BaseException) -> bool:
        """Return whether this was raised around the worker, or by a task that was there before it."""
        ended = (task for task in list(self._others) if task.done() and not task.cancelled())
        return any(error is known for known in (*self._around, *(task.exception() for task in ended)))

    # Keeping, hearing, telling

    def _held(self) -> list[Run]:
        """Return what this worker holds. May be called from another thread."""
        return [run for run in list(self._runs.values()) if not run.closing]

    async def _renew(self) -> None:
        """Renew all leases after a third of their time; after a tenth, if that failed."""
        pulse = self._engine.hub.listen(())
        pause = self._lease / 3000
        while True:
            await pulse.wait(pause)
            pause = self._lease / 3000
            holds = tuple(run.hold for run in self._runs.values() if not run.closing)
            if not holds:
                continue
            request = RenewTasksRequest(self.agent.actor, holds, self._lease)
            try:
                lost = await self._patiently(partial(self.agent.write, renew_tasks, request))
            except (AgentFenced, BusClosed):
                raise
            except Exception as error:
                # The tasks run on: what they write shows whether they are still held.
                log.warning("%s: leases could not be renewed, trying again: %s", self.agent.id, error)
                pause = max(0.1, self._lease / 10_000)
            else:
                for number, lease in lost:
                    self._lose(number, lease)

    async def _hear(self, news: Ear) -> None:
        """People stop, redo and restart tasks; whoever is at one hears of it at once."""
        while True:
            await news.wait(None)
            if not self._runs:
                continue
            expected = list(self._runs)
            numbers = [number for number, _ in expected]
            present = await self._patiently(partial(self._engine.look, present_state, numbers))
            for number, lease in expected:
                task = present.get(number)
                if task is None or (task.status, task.lease) != ("running", lease):
                    self._lose(number, lease)

    async def _listen_again(self) -> None:
        """Whoever is killed between a commit and its bell rings nobody: as long as there are tasks, look every second,
        for them and for what they wait for."""
        while True:
            self._dozing = not self._runs
            await self._pulse.wait(None if self._dozing else LOOK_AGAIN)
            if not self._dozing:
                self._engine.hub.ring((worker_channel(self.agent.id),))

    async def _patiently(self, asking: Callable[[], Awaitable[T]]) -> T:
        return await patiently(self._engine.hub, self.agent.id, asking, repeatable=True)

    def _lose(self, number: int, lease: int) -> None:
        run = self._runs.get((number, lease))
        if run is not None:
            reason = "it was given to somebody else, stopped, or is done again"
            run.lose(TaskLost(task=run.claimed.id, agent=self.agent.id, lease=lease, reason=reason))

    def changed(self, change: TaskChange) -> None:
        """Tell whoever wants to know, one after the other, beside the work."""
        callback = self._callbacks[_CALLBACKS.get(change.kind, "on_step")]
        if callback is not None:
            self._changes.put_nowait((callback, change))

    async def _call_back(self) -> None:
        while True:
            callback, change = await self._changes.get()
            try:
                await call(self.bus.threads, f"the callback on {change.kind} {change.name}", callback, change)
            except (Exception, asyncio.CancelledError) as error:
                if being_cancelled():
                    raise
                log_failure(log, error, "a callback failed on %s", change)
            finally:
                self._changes.task_done()
