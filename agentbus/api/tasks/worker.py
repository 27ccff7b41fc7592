"""A worker: claim tasks, run their workflows, renew leases, and react to operators."""

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

from agentbus import core
from agentbus.api.agent import Agent
from agentbus.api.tasks.run import Run, first_of, retry_transient
from agentbus.api.tasks.task import RUNNING, Task
from agentbus.api.tasks.workflow import Workflow
from agentbus.core.cancellation import (
    await_user_code,
    call,
    check_callback,
    exception_chain,
    finish_shielded,
    fire_and_forget,
    is_being_cancelled,
    is_user_code_exit,
    log_failure,
)
from agentbus.core.codec import plain
from agentbus.engine.waiters import Waiter
from agentbus.errors import AgentBusError, AgentFenced, BusClosed, InvalidInput, TaskLost
from agentbus.operations.task_lookups import Replay, read_held_tasks, replay_of
from agentbus.operations.task_ownership import READY, HeldTask, worker_channel
from agentbus.operations.task_signatures import AnnounceRequest, announce_workflows
from agentbus.operations.tasks import (
    ClaimedTask,
    ClaimedTasks,
    ClaimTasksRequest,
    ReleaseRequest,
    RenewTasksRequest,
    claim_tasks,
    release_task,
    renew_tasks,
)
from agentbus.records import TaskChange

if TYPE_CHECKING:
    from agentbus.api.bus import Bus


log = logging.getLogger("agentbus")

T = TypeVar("T")

Callback = Callable[[TaskChange], Any]
_CALLBACKS = {"phase": "on_phase", "workflow": "on_task"}
"""The callback of each kind of change, if not ``on_step``."""

THREADS = 40
"""Steps of a worker that may run on threads at the same time, at least."""
POLL_INTERVAL = 1.0
"""Seconds after which a worker with tasks polls for changes whose notification was lost."""


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
    """Work until cancelled or, with ``until_idle``, until no task can be claimed."""
    known = {workflow.name: workflow for workflow in _checked(workflows)}
    if len(known) < len(workflows):
        raise InvalidInput(reason="two workflows have the same name")
    callbacks = {"on_step": on_step, "on_phase": on_phase, "on_task": on_task}
    for name, callback in callbacks.items():
        if callback is not None:
            check_callback(callback, name, "change")
    async with _worker_agent(bus, agent, known) as handle, announce(handle, known.values()):
        worker = Worker(bus, handle, known, concurrency, lease, callbacks)
        try:
            await worker.work(until_idle)
        except BaseExceptionGroup as group:
            # An error that ends one part ends all: a fenced agent, a closed bus.
            raise first_of(group) from None


def _checked(workflows: Sequence[object]) -> Sequence[Workflow[..., Any]]:
    if not workflows:
        raise InvalidInput(reason="a worker needs at least one workflow: run_worker(feature)")
    checked: list[Workflow[..., Any]] = []
    for workflow in workflows:
        if not isinstance(workflow, Workflow):
            raise InvalidInput(reason=f"{workflow!r} is not a workflow; make one with @agentbus.workflow('name')")
        checked.append(workflow)
    return checked


@asynccontextmanager
async def _worker_agent(bus: Bus, agent: Agent | str | None, workflows: Iterable[str]) -> AsyncIterator[Agent]:
    """Yield the given agent, or register one for the length of a block. A generated one declares its capabilities."""
    if isinstance(agent, Agent):
        yield agent
        return
    if agent is None:
        made = bus.agent(f"worker-{secrets.token_hex(6)}", type="worker", capabilities=sorted(workflows))
    else:
        # The capabilities of a named agent are up to the caller.
        made = bus.agent(agent, type="worker")
    async with made as registered:
        yield registered


@asynccontextmanager
async def announce(agent: Agent, workflows: Iterable[Workflow[..., Any]]) -> AsyncIterator[None]:
    """Announce the signatures of workflows for the length of a block. The bus also drops them when the agent ends."""
    found = tuple((workflow.name, plain(workflow.signature)) for workflow in workflows)
    request = AnnounceRequest(agent._actor, found)
    await retry_transient(
        agent._engine.waiters, agent.id, lambda: agent._write(announce_workflows, request), repeatable=True
    )
    try:
        yield
    finally:
        await finish_shielded(agent._engine, _withdraw(agent, [name for name, _ in found]))


async def _withdraw(agent: Agent, names: Iterable[str]) -> None:
    with suppress(AgentBusError):
        await agent._write(announce_workflows, AnnounceRequest(agent._actor, tuple((name, None) for name in names)))


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
        self._engine = bus._engine
        self._workflows = workflows
        self._concurrency = concurrency
        self._lease = lease
        self._callbacks = callbacks
        # By task and lease: a task may be claimed again before the run that lost it has ended.
        self._runs: dict[tuple[int, int], Run] = {}
        self._around = list(exception_chain(sys.exception()))
        """The exceptions that were being handled when the worker started."""
        self._others = WeakSet(asyncio.all_tasks())
        self._more = False
        """True if there may be tasks that found no free slot."""
        self._poll_timer = self._engine.waiters.listen(())
        self._idle = False
        """True while it has no tasks and does not poll."""
        self.slots = anyio.CapacityLimiter(max(THREADS, concurrency))
        """Slots for steps on threads. Not anyio's default, which the whole process shares."""
        self._changes: asyncio.Queue[tuple[Callback, TaskChange]] = asyncio.Queue()

    async def work(self, until_idle: bool) -> None:
        """Claim tasks and run them."""
        # A worker whose loop runs is alive, however long its steps take.
        self.agent._waiting += 1
        self.bus._watchdog.add(self._held_runs)
        try:
            async with (
                self.bus._listening.to(READY) as ready,
                self.bus._listening.to(worker_channel(self.agent.id)) as news,
                anyio.create_task_group() as background,
            ):
                background.start_soon(self._renew)
                background.start_soon(self._watch_tasks, news)
                background.start_soon(self._poll)
                background.start_soon(self._run_callbacks)
                async with anyio.create_task_group() as tasks:
                    await self._claim_loop(ready, tasks, until_idle)
                await self._changes.join()
                background.cancel_scope.cancel()
        finally:
            self.bus._watchdog.remove(self._held_runs)
            self.agent._waiting -= 1

    # Claiming

    async def _claim_loop(self, ready: Waiter, tasks: anyio.abc.TaskGroup, until_idle: bool) -> None:
        while True:
            room = self._concurrency - len(self._runs)
            if not room or any(run.alone for run in self._runs.values()):
                self._more = True
                await ready.wait(None)
                continue
            found = await self._claim(room)
            for claimed in found.tasks:
                self._start(claimed, ready, tasks)
            self._more = found.more
            # A task that is left although there are slots must run alone: the last other may have ended meanwhile.
            if until_idle and not self._runs and not found.more:
                return
            await ready.wait(self._until_next(found))

    async def _claim(self, room: int) -> ClaimedTasks:
        request = ClaimTasksRequest(self.agent._actor, tuple(self._workflows), room, self._lease, busy=bool(self._runs))
        # After a claim with an unknown outcome, its tasks are free again when their leases expire.
        return await self._retry_transient(
            lambda: self.agent._write(claim_tasks, request, on_abandoned=self._release_claimed)
        )

    def _release_claimed(self, found: ClaimedTasks) -> None:
        """Release the tasks of a claim whose caller was cancelled."""
        for claimed in found.tasks:
            with suppress(AgentBusError):
                fire_and_forget(self._engine.write(release_task, ReleaseRequest(self.agent._actor, claimed.hold)))

    def _until_next(self, found: ClaimedTasks) -> float | None:
        """Return the seconds until the next known task is due."""
        now = self._engine.clock.now()
        waits = [
            moment - present
            for moment, present in ((found.next_wall, now.wall), (found.next_awake, now.awake))
            if moment is not None
        ]
        if found.more:
            # Another worker that claims a task which must run alone unblocks those behind it without a notification.
            waits.append(round(POLL_INTERVAL * 1000))
        return max(0.001, min(waits) / 1000) if waits else None

    def claim_more(self) -> None:
        """Claim again: a task that ran alone no longer needs to."""
        self._engine.waiters.ring((READY,))

    # Running

    def _start(self, claimed: ClaimedTask, ready: Waiter, tasks: anyio.abc.TaskGroup) -> None:
        # Registered at once, so that its lease is renewed and its loss noticed; its record is read before it runs.
        run = Run(self, claimed, self._workflows[claimed.workflow], self._lease)
        self._runs[claimed.number, claimed.lease] = run
        self.bus._watchdog.cover(self._lease)
        if self._idle:
            self._poll_timer.ring()
        tasks.start_soon(self._run, run, ready)

    async def _run(self, run: Run, ready: Waiter) -> None:
        try:
            await self._execute(run)
        except TaskLost as error:
            await self._log_loss(run, error)
        except AgentFenced:
            raise
        except AgentBusError as error:
            # Its progress could not be written: another worker resumes it, at the latest when its lease expires.
            log.warning("%s: could not write the outcome of task %s: %s", self.agent.id, run.claimed.id, error)
            if error.transient:
                await finish_shielded(self._engine, self._release(run))
        except BaseException:
            await finish_shielded(self._engine, self._release(run))
            raise
        finally:
            self._runs.pop((run.claimed.number, run.claimed.lease), None)
            if self._more or not self._runs:
                ready.ring()

    async def _execute(self, run: Run) -> None:
        claimed = run.claimed
        if core.tracer is None and claimed.trace is not None:
            from agentbus.core.trace_context import propagate

            propagate(claimed.trace)
        with core.NO_SPAN if core.tracer is None else core.tracer.run_task(claimed) as span:
            status, problem = await self._run_workflow(run)
            if span is not None:
                span.note({"agentbus.task.status": status, "agentbus.task.generation": claimed.generation})
                if problem is not None:
                    span.fail(problem)

    async def _run_workflow(self, run: Run) -> tuple[str, BaseException | None]:
        claimed = run.claimed
        run.open(Replay() if claimed.fresh else await self._engine.read(replay_of, claimed.number))

        async def call() -> Any:
            arguments, keywords = run.arguments()
            task = Task(run)
            token = RUNNING.set(task)
            try:
                return await await_user_code(run.workflow.function(task, *arguments, **keywords))
            finally:
                RUNNING.reset(token)

        return await run.run(call)

    async def _log_loss(self, run: Run, error: TaskLost) -> None:
        """Log why a task was lost; at INFO if an operator stopped, redid or restarted it."""
        task: HeldTask | None = None
        with suppress(AgentBusError):
            task = (await self._engine.read_inline(read_held_tasks, [run.claimed.number])).get(run.claimed.number)
        if task is not None and task.status == "stopped":
            log.info("%s: task %s was stopped", self.agent.id, run.claimed.id)
        elif task is not None and task.generation > run.claimed.generation:
            log.info("%s: task %s was interrupted for a redo or a restart", self.agent.id, run.claimed.id)
        else:
            log.warning("%s: %s", self.agent.id, error)

    async def _release(self, run: Run) -> None:
        """Release the task as the worker ends, so that others may claim it at once.

        An asyncio task started by user code that raises SystemExit or KeyboardInterrupt ends the event loop, and the
        worker with it. That counts as a lost worker, unlike a cancellation or an exception of a signal handler.
        """
        # This coroutine runs in a task of its own, so the exception is the one that ends the loop.
        lost = any(
            is_user_code_exit(error) and not self._is_callers(error) for error in exception_chain(sys.exception())
        )
        with suppress(AgentBusError):
            run.forget_waits()
            await run.release(lost=lost)

    def _is_callers(self, error: BaseException) -> bool:
        """Return True if this was raised around the worker, or by an asyncio task older than it."""
        ended = (task for task in list(self._others) if task.done() and not task.cancelled())
        return any(error is known for known in (*self._around, *(task.exception() for task in ended)))

    # Leases, notifications, callbacks

    def _held_runs(self) -> list[Run]:
        """Return the runs whose leases this worker holds. May be called from another thread."""
        return [run for run in list(self._runs.values()) if not run.closing]

    async def _renew(self) -> None:
        """Renew all leases after a third of their duration; after a tenth, if that failed."""
        timer = self._engine.waiters.listen(())
        pause = self._lease / 3000
        while True:
            await timer.wait(pause)
            pause = self._lease / 3000
            holds = tuple(run.hold for run in self._runs.values() if not run.closing)
            if not holds:
                continue
            request = RenewTasksRequest(self.agent._actor, holds, self._lease)
            try:
                lost = await self._retry_transient(partial(self.agent._write, renew_tasks, request))
            except (AgentFenced, BusClosed):
                raise
            except Exception as error:
                # The tasks keep running: their next write shows whether they are still held.
                log.warning("%s: could not renew leases, retrying: %s", self.agent.id, error)
                pause = max(0.1, self._lease / 10_000)
            else:
                for number, lease in lost:
                    self._lose(number, lease)

    async def _watch_tasks(self, news: Waiter) -> None:
        """Cancel runs whose tasks an operator has stopped, redone or restarted."""
        while True:
            await news.wait(None)
            if not self._runs:
                continue
            expected = list(self._runs)
            numbers = [number for number, _ in expected]
            present = await self._retry_transient(partial(self._engine.read_inline, read_held_tasks, numbers))
            for number, lease in expected:
                task = present.get(number)
                if task is None or (task.status, task.lease) != ("running", lease):
                    self._lose(number, lease)

    async def _poll(self) -> None:
        """Poll every second while there are tasks: a process killed between a commit and its notification notifies no
        worker."""
        while True:
            self._idle = not self._runs
            await self._poll_timer.wait(None if self._idle else POLL_INTERVAL)
            if not self._idle:
                self._engine.waiters.ring((worker_channel(self.agent.id),))

    async def _retry_transient(self, request: Callable[[], Awaitable[T]]) -> T:
        return await retry_transient(self._engine.waiters, self.agent.id, request, repeatable=True)

    def _lose(self, number: int, lease: int) -> None:
        run = self._runs.get((number, lease))
        if run is not None:
            reason = "it was reassigned, stopped or restarted"
            run.lose(TaskLost(task=run.claimed.id, agent=self.agent.id, lease=lease, reason=reason))

    def changed(self, change: TaskChange) -> None:
        """Queue a change for its callback; callbacks run one at a time, concurrently with the tasks."""
        callback = self._callbacks[_CALLBACKS.get(change.kind, "on_step")]
        if callback is not None:
            self._changes.put_nowait((callback, change))

    async def _run_callbacks(self) -> None:
        while True:
            callback, change = await self._changes.get()
            try:
                await call(self.bus._threads, f"the callback on {change.kind} {change.name}", callback, change)
            except (Exception, asyncio.CancelledError) as error:
                if is_being_cancelled():
                    raise
                log_failure(log, error, "callback failed on %s", change)
            finally:
                self._changes.task_done()
