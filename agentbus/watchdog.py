"""The watchdog: a thread that keeps leases while the event loop is blocked, and reports what blocks it.

As long as the loop turns, leases are renewed by tasks of the loop. Code that blocks it (``time.sleep`` in a coroutine)
stops them. The watchdog asks the loop for an answer a few times per lease, as long as a lease is held. Without one, it
renews the leases and sends the heartbeat of the process, on a connection of its own, until a number of leases has
passed: what is blocked for longer than that counts as hung, and its leases are given up.

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

from agentbus.errors import AgentFenced, LeaseLost
from agentbus.operations import Operation
from agentbus.operations.processes import BeatRequest, beat

if TYPE_CHECKING:
    from agentbus.engine.blocking import BlockingEngine
    from agentbus.engine.interface import Engine
    from agentbus.handle import Handle

log = logging.getLogger("agentbus")

MAX_BLOCKED = 10.0
"""Leases for which a blocked event loop keeps what it holds."""
_LOOKS = 6
"""Questions to the loop per lease: two of them are a third of the lease, after which it should be renewed."""
_SHORTEST = 0.05
"""Seconds between two questions at least, however short a lease is."""
_STANDARD = os.path.dirname(os.__file__)
_STOPPING = 2.0
"""Seconds that closing waits for the thread."""


class Leased(Protocol):
    """Something that is held under a lease of ``duration`` milliseconds. Read by the watchdog's thread."""

    @property
    def duration(self) -> int: ...

    def renewing(self) -> tuple[Operation[Any, Any], Any]:
        """Return the operation that renews the lease, and its request. If the lease is lost, the operation raises
        LeaseLost or returns what is lost."""

    def title(self, task: asyncio.Task[Any] | None) -> str | None:
        """Return the name of what is held, if this task works on it; with None, the name in any case."""


Source = Callable[[], Sequence[Leased]]


class Watchdog:
    """Watches one event loop for one bus."""

    def __init__(self, engine: Engine, handles: set[Handle], max_blocked: float) -> None:
        self._engine = engine
        self._handles = handles
        self._max_blocked = max_blocked
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._sources: list[Source] = []
        self._covered: float = math.inf
        """The shortest lease that the thread looks often enough for; infinite while it sleeps."""
        self._bell = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None] | None = None
        self._stopping = False
        self._asked = 0
        self._answered = 0
        self._answered_at = 0.0
        self._block = _Block(0.0)
        self._store: BlockingEngine | None = None

    # On the event loop

    def add(self, source: Source) -> None:
        """Watch over what this function returns."""
        self._sources.append(source)

    def remove(self, source: Source) -> None:
        self._sources.remove(source)

    def cover(self, duration: int) -> None:
        """Note that something is held from now on, for a lease of ``duration`` milliseconds."""
        if duration < self._covered:
            self._covered = duration
            if self._thread is None:
                self._start()
            self._bell.set()

    async def stop(self) -> None:
        """End the thread. One that waits for the database is left to end by itself."""
        self._stopping = True
        self._covered = -1
        self._bell.set()
        if self._ended is not None:
            await asyncio.wait([self._ended], timeout=_STOPPING)

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._ended = self._loop.create_future()
        # A daemon: a bus that was never closed must not keep the interpreter from exiting.
        self._thread = threading.Thread(target=self._run, name="agentbus-watchdog", daemon=True)
        self._thread.start()

    def _answer(self, asked: int) -> None:
        self._answered_at = time.monotonic()
        self._answered = asked

    def _has_ended(self) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    # On the thread

    def _run(self) -> None:
        try:
            while True:
                self._bell.clear()
                if self._stopping:
                    return
                # First this, then look: whatever is taken after the look rings the bell.
                self._covered = math.inf
                held = [lease for source in tuple(self._sources) for lease in source()]
                if self._answered == self._asked:
                    self._block.report(self._answered_at - self._block.since)
                if not held:
                    self._disconnect()
                    self._bell.wait()
                    continue
                self._covered = min(lease.duration for lease in held)
                pause = max(_SHORTEST, self._covered / 1000 / _LOOKS)
                try:
                    self._look(held, pause)
                except Exception as error:
                    level = logging.DEBUG if self._block.failed else logging.WARNING
                    log.log(level, "leases could not be renewed while the event loop is blocked: %s", error)
                    self._block.failed = True
                    self._disconnect()
                self._bell.wait(pause)
        finally:
            self._disconnect()
            self._tell(self._has_ended)

    def _tell(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have the loop call this."""
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The loop was closed, and the bus was not.
            self._stopping = True

    def _look(self, held: list[Leased], pause: float) -> None:
        """Ask the loop, or find that it has not answered."""
        now = time.monotonic()
        if self._answered == self._asked:
            self._disconnect()
            self._block = _Block(now)
            self._asked += 1
            self._tell(self._answer, self._asked)
            return
        blocked = now - self._block.since
        # Asked only just now, if a shorter lease has shortened the pause.
        if blocked >= pause * 0.9:
            self._keep(held, blocked)

    def _keep(self, held: list[Leased], blocked: float) -> None:
        block = self._block
        block.culprit = block.culprit or self._culprit(held)
        block.lease = min(block.lease, *(lease.duration for lease in held))
        block.report(blocked)
        kept: list[Leased] = []
        for lease in held:
            if blocked * 1000 <= self._max_blocked * lease.duration:
                kept.append(lease)
            elif block.give_up(lease):
                log.error("the lease on %s is given up: the event loop is blocked", lease.title(None))
        now = time.monotonic()
        if not kept or now - block.renewed < min(lease.duration for lease in kept) / 3000:
            return
        for lease in kept:
            if lease in block.lost:
                continue
            # What is lost is found out by the loop itself, once it turns again.
            try:
                lost = self._connected().write(*lease.renewing())
            except (LeaseLost, AgentFenced):
                lost = True
            if lost:
                block.lost.add(lease)
        block.renewed = now
        if now - block.beaten >= self._engine.beat_every:
            self._beat()
            block.beaten = now

    def _beat(self) -> None:
        """Send the heartbeat: a process whose leases are kept must not count as dead. It speaks for workers and
        receivers, which would say the same if the loop turned."""
        awake = self._engine.clock.now().awake
        calls = tuple((agent.id, agent.epoch, awake) for agent in tuple(self._handles) if agent.waiting)
        if self._connected().write(beat, BeatRequest(self._engine.process, calls)):
            # Those who wait for a message must hear that their agent has failed.
            log.warning("this process was silent for so long that it counted as dead; its agents have failed")
            self._tell(self._engine.hub.ring_all)

    def _connected(self) -> BlockingEngine:
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

    def _culprit(self, held: list[Leased]) -> str:
        """Return what blocks the loop: the step or message whose task is running, or all that is held."""
        task = None
        if self._loop is not None:
            with suppress(RuntimeError):
                task = asyncio.current_task(self._loop)
        names = [] if task is None else [name for lease in held if (name := lease.title(task)) is not None]
        shown = ", ".join(names or sorted({str(lease.title(None)) for lease in held})[:10])
        return f"{shown} ({_place(sys._current_frames().get(self._loop_thread))})"


class _Block:
    """A time for which the loop did not answer, if it turns out to be one."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.renewed = -math.inf
        self.beaten = -math.inf
        self.failed = False
        self.culprit = ""
        self.lease = math.inf
        """The shortest of the leases that were held, in milliseconds."""
        self.lost: set[Leased] = set()
        self._reported = False
        self._given_up: set[Leased] = set()

    def report(self, seconds: float) -> None:
        """Say once what blocks the loop for longer than half a lease."""
        if not self._reported and seconds * 2000 > self.lease:
            self._reported = True
            log.warning(
                "the event loop was blocked for %.1f s by %s; leases are renewed by a thread meanwhile: run blocking "
                "code in a plain function, or in anyio.to_thread.run_sync",
                seconds, self.culprit,
            )  # fmt: skip

    def give_up(self, lease: Leased) -> bool:
        """Note that a lease is not renewed any more; return False if that was noted before."""
        before = len(self._given_up)
        self._given_up.add(lease)
        return len(self._given_up) > before


def _place(frame: FrameType | None) -> str:
    """Return where the loop's thread is, in the code that called the standard library."""
    found = frame
    while found is not None and found.f_code.co_filename.startswith(_STANDARD):
        found = found.f_back
    found = found or frame
    if found is None:
        return "place unknown"
    return f"{os.path.basename(found.f_code.co_filename)}:{found.f_lineno} in {found.f_code.co_name}"
