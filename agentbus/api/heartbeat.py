"""The background work of a process that has the bus open: its heartbeat, and the renewal of its leases."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import anyio

from agentbus.api.watchdog import Watchdog
from agentbus.core import process_info
from agentbus.core.clock import Timer
from agentbus.engine.interface import Engine
from agentbus.engine.processes import notice_deaths
from agentbus.errors import AgentBusError, AgentFenced, DatabaseGone, LeaseLost, TaskLost
from agentbus.operations.lookups import pending
from agentbus.operations.processes import HeartbeatRequest, PeerProcess, heartbeat
from agentbus.operations.state import ExpireRequest, expire, next_expiry

if TYPE_CHECKING:
    from agentbus.api.agent import Agent
    from agentbus.api.message import Message
    from agentbus.api.tasks.items import WorkItem

log = logging.getLogger("agentbus")

_RETRY_AFTER = 1.0
"""Seconds until renewal is retried after an unexpected error."""


class Renewer:
    """Renew the leases of the messages and work items whose block is open."""

    def __init__(self, engine: Engine, watchdog: Watchdog) -> None:
        self._engine = engine
        self._watchdog = watchdog
        self._held: set[Message | WorkItem] = set()
        self._timer: Timer | None = None
        self._next = 0
        """When the timer fires, in awake milliseconds."""
        self._due = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        watchdog.add(self.held)

    def add(self, message: Message | WorkItem) -> None:
        self._held.add(message)
        self._set_timer(message._renew_at)
        self._watchdog.cover(message._duration)

    def discard(self, message: Message | WorkItem) -> None:
        self._held.discard(message)

    def reschedule(self, message: Message | WorkItem) -> None:
        """Note that the lease of a message was extended; it may end earlier than before."""
        if message in self._held:
            self._set_timer(message._renew_at)
            self._watchdog.cover(message._duration)

    def held(self) -> list[Message | WorkItem]:
        """Return the messages and items whose block is open. May be called from another thread."""
        return list(self._held)

    async def run(self) -> None:
        """Renew leases until cancelled.

        The timer only sets an event. A callback of the event loop runs outside of any task, where anyio refuses to
        start tasks if sniffio is installed.
        """
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                try:
                    self._renew_due()
                except Exception:
                    log.exception("leases could not be renewed, trying again")
                    loop.call_later(_RETRY_AFTER, self._due.set)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in self._tasks:
                task.cancel()

    def _set_timer(self, at: int) -> None:
        if self._timer is not None:
            if self._next <= at:
                return
            self._timer.cancel()
        self._next = at
        seconds = max(0.0, (at - self._engine.clock.now().awake) / 1000)
        self._timer = self._engine.clock.call_later(asyncio.get_running_loop(), seconds, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._due.set()

    def _renew_due(self) -> None:
        now = self._engine.clock.now().awake
        for message in [message for message in self._held if message._renew_at <= now]:
            # Not due again while this renewal runs.
            message._renew_at = now + message._duration
            # One request each: a lost lease must not fail the others. The writer commits them together.
            task = asyncio.create_task(self._renew_one(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._held:
            self._set_timer(min(message._renew_at for message in self._held))

    async def _renew_one(self, message: Message | WorkItem) -> None:
        before = self._engine.clock.now().awake
        try:
            await self._engine.write(*message._renewing())
        except (LeaseLost, TaskLost, AgentFenced) as error:
            if message in self._held:
                self._held.discard(message)
                message._lose(error)
        except Exception as error:
            # The task must survive any error: this lease and the others are still to be renewed.
            log.warning("the lease on %s could not be renewed, trying again: %s", message._title(None), error)
            message._renew_at = self._engine.clock.now().awake + max(100, message._duration // 10)
        else:
            message._renew_at = renewal_time(before, message._duration)
        if message in self._held:
            self._set_timer(message._renew_at)


def renewal_time(taken: int, duration: int) -> int:
    """Return the time to renew a lease: after a third of it."""
    return taken + duration // 3


async def expire_state(engine: Engine) -> int:
    """Make tombstones of state entries that have expired, in bounded transactions; return their number."""
    gone = 0
    while (expiry := await engine.read_inline(next_expiry, None)) is not None and expiry <= engine.clock.now().wall:
        gone += await engine.write(expire, ExpireRequest())
    return gone


def is_gone(other: PeerProcess) -> bool:
    """Return True if a process of this host certainly does not exist any more."""
    return process_info.is_gone(other.pid, other.started, other.bell)


class Heartbeat:
    """The task of a process that sends its heartbeat and renews its leases."""

    def __init__(self, engine: Engine, interval: float, max_blocked: float) -> None:
        self.agents: set[Agent] = set()
        """The agents of this process that have not ended."""
        self.watchdog = Watchdog(engine, self.agents, max_blocked)
        self._engine = engine
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Renewer:
        # A separate task, not a task group around the caller's block: a group would wrap the caller's exceptions, and
        # require that the task that opened the bus closes it.
        started: asyncio.Future[Renewer] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(started), name="agentbus")
        return await started

    async def stop(self) -> BaseException | None:
        """Stop the task; return the exception that had ended it before, if any."""
        if self._task is None:
            return None
        self._task.cancel()
        (ending,) = await asyncio.gather(self._task, return_exceptions=True)
        await self.watchdog.stop()
        return ending

    async def _run(self, started: asyncio.Future[Renewer]) -> None:
        async with anyio.create_task_group() as tasks:
            renewer = Renewer(self._engine, self.watchdog)
            tasks.start_soon(self._send_heartbeats)
            tasks.start_soon(renewer.run)
            started.set_result(renewer)

    async def _send_heartbeats(self) -> None:
        """Send a heartbeat per interval; then look for missed wake-ups, dead processes and expired state."""
        engine = self._engine
        timer = engine.waiters.listen(())
        while True:
            await timer.wait(self._interval)
            try:
                if await self._send_heartbeat():
                    log.warning("this process was silent for too long and was marked dead; its agents have failed")
                    # Calls that wait for a message here must raise AgentFenced.
                    engine.waiters.ring_all()
                await self._wake_missed()
                await notice_deaths(engine)
                await expire_state(engine)
            except AgentBusError as error:
                log.warning("heartbeat failed: %s", error)
                if isinstance(error, DatabaseGone):
                    # Calls that only wait would never find out.
                    engine.waiters.ring_all()
            except Exception:
                log.exception("heartbeat failed")

    async def _send_heartbeat(self) -> bool:
        """Report the agents that were active since the last heartbeat. Return True if this process was marked dead."""
        engine = self._engine
        awake = engine.clock.now().awake
        active = [agent for agent in self.agents if agent._active]
        calls = tuple((agent.id, agent.epoch, awake) for agent in self.agents if agent._active or agent._waiting)
        for agent in active:
            agent._active = False
        try:
            return await engine.write(heartbeat, HeartbeatRequest(engine.process, calls, engine.lock_wait_ms()))
        except BaseException:
            # Not reported: the next heartbeat must.
            for agent in active:
                agent._active = True
            raise

    async def _wake_missed(self) -> None:
        """Wake waiters whose mailbox has messages: a writer killed between its commit and its wake-up, or a lease that
        expired, wakes none."""
        waiters = self._engine.waiters
        waiters.ring_watchers()
        mailboxes: dict[int, list[str]] = {}
        for channel in waiters.channels:
            if channel.startswith("mailbox/"):
                mailboxes.setdefault(int(channel[8:].partition("#")[0]), []).append(channel)
        if mailboxes:
            for mailbox in await self._engine.read(pending, tuple(mailboxes)):
                waiters.ring(mailboxes[mailbox])
