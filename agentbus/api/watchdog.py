"""The watchdog: a thread that renews leases while the event loop is blocked, and reports what blocks it.

Normally tasks of the event loop renew leases. Code that blocks the loop (``time.sleep`` in a coroutine) stops them.
While a lease is held, the watchdog pings the loop a few times per lease. Without an answer, it renews the leases and
sends the heartbeat of the process on a connection of its own, for a limited number of lease periods: a loop that is
blocked for longer counts as hung, and its leases are abandoned.

Code that holds the interpreter's lock, such as a long call into a C extension, stops this thread as well.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from agentbus.errors import AgentFenced, LeaseLost, TaskLost
from agentbus.operations.processes import HeartbeatRequest, heartbeat
from agentbus.operations.protocol import Operation

if TYPE_CHECKING:
    from agentbus.api.agent import Agent
    from agentbus.engine.blocking import BlockingEngine
    from agentbus.engine.interface import Engine

log = logging.getLogger("agentbus")

MAX_BLOCKED = 10.0
"""Lease periods for which the leases of a blocked event loop are renewed."""
_PINGS = 6
"""Pings of the loop per lease: two of them take a third of the lease, after which it should be renewed."""
_MIN_PAUSE = 0.05
"""Seconds between two pings, at least."""
_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_STOP_TIMEOUT = 2.0
"""Seconds that closing waits for the thread."""


class Leased(Protocol):
    """A message or task that is held under a lease of ``duration`` milliseconds. Read by the watchdog's thread."""

    @property
    def _duration(self) -> int: ...

    def _renewing(self) -> tuple[Operation[Any, Any], Any]:
        """Return the operation that renews the lease, and its request. If the lease is lost, the operation raises
        LeaseLost or TaskLost, or returns a true value."""

    def _title(self, task: asyncio.Task[Any] | None) -> str | None:
        """Return its name if this task works on it; with None, the name in any case."""


Source = Callable[[], Sequence[Leased]]


class Watchdog:
    """Watch one event loop for one bus."""

    def __init__(self, engine: Engine, agents: set[Agent], max_blocked: float) -> None:
        self._engine = engine
        self._agents = agents
        self._max_blocked = max_blocked
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._sources: list[Source] = []
        self._covered: float = math.inf
        """The shortest lease that the thread pings often enough for; infinite while it sleeps."""
        self._event = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] | None = None
        self._stopping = False
        self._pings = 0
        self._answers = 0
        self._answer_time = 0.0
        self._block = _Blockage(0.0)
        self._store: BlockingEngine | None = None

    # On the event loop

    def add(self, source: Source) -> None:
        """Renew the leases that this function returns."""
        self._sources.append(source)

    def remove(self, source: Source) -> None:
        self._sources.remove(source)

    def cover(self, duration: int) -> None:
        """Note a new lease of ``duration`` milliseconds."""
        if duration < self._covered:
            self._covered = duration
            if self._thread is None:
                self._start()
            self._event.set()

    async def stop(self) -> None:
        """End the thread. One that waits for the database ends by itself later."""
        self._stopping = True
        self._covered = -1
        self._event.set()
        if self._ended is not None:
            await asyncio.wait([self._ended], timeout=_STOP_TIMEOUT)

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._ended = self._loop.create_future()
        # A daemon: a bus that was never closed must not keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._run, name="agentbus-watchdog", daemon=True)
        self._thread.start()

    def _answer(self, asked: int) -> None:
        self._answer_time = time.monotonic()
        self._answers = asked

    def _set_ended(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    # On the thread

    def _run(self) -> None:
        try:
            while True:
                self._event.clear()
                if self._stopping:
                    return
                # Before collecting the leases: one that is taken later sets the event.
                self._covered = math.inf
                held = [lease for source in tuple(self._sources) for lease in source()]
                if self._answers == self._pings:
                    self._block.report(self._answer_time - self._block.since)
                if not held:
                    self._disconnect()
                    self._event.wait()
                    continue
                self._covered = min(lease._duration for lease in held)
                pause = max(_MIN_PAUSE, self._covered / 1000 / _PINGS)
                try:
                    self._ping(held, pause)
                except Exception as error:
                    level = logging.DEBUG if self._block.failed else logging.WARNING
                    log.log(level, "leases could not be renewed while the event loop is blocked: %s", error)
                    self._block.failed = True
                    self._disconnect()
                self._event.wait(pause)
        finally:
            self._disconnect()
            self._call_on_loop(self._set_ended)

    def _call_on_loop(self, function: Callable[..., None], *arguments: Any) -> None:
        """Schedule a call on the event loop."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop was closed without closing the bus.
            self._stopping = True

    def _ping(self, held: list[Leased], pause: float) -> None:
        """Ping the loop; if it has not answered the last ping, renew the leases."""
        now = time.monotonic()
        if self._answers == self._pings:
            self._disconnect()
            self._block = _Blockage(now)
            self._pings += 1
            self._call_on_loop(self._answer, self._pings)
            return
        blocked = now - self._block.since
        # The last ping may be too recent, if a shorter lease has shortened the pause.
        if blocked >= pause * 0.9:
            self._renew(held, blocked)

    def _renew(self, held: list[Leased], blocked: float) -> None:
        block = self._block
        block.blocker = block.blocker or self._blocker(held)
        block.lease = min(block.lease, *(lease._duration for lease in held))
        block.report(blocked)
        kept: list[Leased] = []
        for lease in held:
            if blocked * 1000 <= self._max_blocked * lease._duration:
                kept.append(lease)
            elif block.abandon(lease):
                log.error("the lease on %s is abandoned: the event loop is blocked", lease._title(None))
        now = time.monotonic()
        if not kept or now - block.renewed < min(lease._duration for lease in kept) / 3000:
            return
        for lease in kept:
            if lease in block.lost:
                continue
            # The loop finds out about a lost lease itself, once it runs again.
            try:
                lost = self._connect().write(*lease._renewing())
            except (LeaseLost, TaskLost, AgentFenced):
                lost = True
            if lost:
                block.lost.add(lease)
        block.renewed = now
        if now - block.last_heartbeat >= self._engine.beat_every:
            self._send_heartbeat()
            block.last_heartbeat = now

    def _send_heartbeat(self) -> None:
        """Send the heartbeat: a process whose leases are renewed must not be marked dead. It counts waiting workers and
        receivers as active, as the loop would."""
        awake = self._engine.clock.now().awake
        calls = tuple((agent.id, agent.epoch, awake) for agent in tuple(self._agents) if agent._waiting)
        if self._connect().write(heartbeat, HeartbeatRequest(self._engine.process, calls)):
            log.warning("this process was silent for too long and was marked dead; its agents have failed")
            # Calls that wait for a message must raise AgentFenced.
            self._call_on_loop(self._engine.waiters.ring_all)

    def _connect(self) -> BlockingEngine:
        if self._store is None:
            self._store = self._engine.blocking()
        return self._store

    def _disconnect(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            try:
                store.close()
            except Exception:
                log.debug("the watchdog's connection could not be closed", exc_info=True)

    def _blocker(self, held: list[Leased]) -> str:
        """Return the name of what blocks the loop: the step or message whose task runs, or all that are held."""
        task = None
        if self._loop is not None:
            with suppress(RuntimeError):
                task = asyncio.current_task(self._loop)
        names = [] if task is None else [name for lease in held if (name := lease._title(task)) is not None]
        shown = ", ".join(names or sorted({str(lease._title(None)) for lease in held})[:10])
        return f"{shown} ({_location(sys._current_frames().get(self._loop_thread))})"


class _Blockage:
    """A period in which the loop has not answered."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.renewed = -math.inf
        self.last_heartbeat = -math.inf
        self.failed = False
        self.blocker = ""
        self.lease = math.inf
        """The shortest of the leases that were held, in milliseconds."""
        self.lost: set[Leased] = set()
        self._reported = False
        self._abandoned: set[Leased] = set()

    def report(self, seconds: float) -> None:
        """Log once what blocks the loop for longer than half a lease."""
        if not self._reported and seconds * 2000 > self.lease:
            self._reported = True
            log.warning(
                "the event loop was blocked for %.1f s by %s; a thread renews the leases until then: run blocking "
                "code in a plain function, or in anyio.to_thread.run_sync",
                seconds, self.blocker,
            )  # fmt: skip

    def abandon(self, lease: Leased) -> bool:
        """Note that a lease is not renewed any more; return False if it was noted before."""
        before = len(self._abandoned)
        self._abandoned.add(lease)
        return len(self._abandoned) > before


def _location(frame: FrameType | None) -> str:
    """Return where the loop's thread is, outside of the standard library."""
    found = frame
    while found is not None and found.f_code.co_filename.startswith(_STANDARD_LIBRARY):
        found = found.f_back
    found = found or frame
    if found is None:
        return "location unknown"
    return f"{os.path.basename(found.f_code.co_filename)}:{found.f_lineno} in {found.f_code.co_name}"
