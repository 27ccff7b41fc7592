"""Work that blocks, on threads: our own, which is waited for to its end, and functions of the caller's."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

import anyio
import anyio.to_thread

from agentbus.aside import Interruption, interruption

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("agentbus")

GRACE = 5.0
"""Seconds that a caller who is cancelled, and a bus that is closed, wait for a function that still runs."""


async def to_its_end(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run this on a thread. If the caller is cancelled meanwhile, the cancellation is raised when the thread has
    ended: until then no other code may use the file or generator that the thread works with. Work that
    calls ``check_interruption`` between its chunks ends there."""
    stop = Interruption()

    def run() -> T:
        interruption.set(stop)  # in the context of this call, which no other has
        return work(*args, **kwargs)

    task = asyncio.ensure_future(anyio.to_thread.run_sync(run))
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
                stop.asked = True
    if cancelled is not None:
        task.exception()
        raise cancelled
    return task.result()


class Threads:
    """Runs functions of the caller's on threads, for one bus, and knows which of them are still running."""

    def __init__(self) -> None:
        self._running: set[_Work] = set()
        # Not anyio's own, which everything else in the process shares. Callers bound how much they start at once.
        self._limiter: anyio.CapacityLimiter | None = None

    @property
    def running(self) -> list[str]:
        """Return the names of the functions that are running."""
        return [work.name for work in self._running]

    async def run(self, name: str, call: Callable[[], Any], abandons: Callable[[], bool]) -> Any:
        """Call this on a thread, with the context of the task, and return what it returns or raise what it raises.

        A thread cannot be cancelled. If the task is, this waits a few seconds for the function to return before the
        cancellation continues, so that what it works on is not given to others meanwhile; not if ``abandons`` says that
        others have it anyway. The function's result is discarded then.
        """
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(float("inf"))
        work = _Work(name, call, asyncio.get_running_loop(), self._running)
        self._running.add(work)
        try:
            await anyio.to_thread.run_sync(work.run, abandon_on_cancel=True, limiter=self._limiter)
        except asyncio.CancelledError:
            if work.abandon() and not abandons():
                await work.settle(GRACE)
            raise
        except BaseException:
            # No thread could be started.
            work.abandon()
            raise
        return work.outcome()

    async def finish(self) -> None:
        """Wait for what is still running, for a few seconds, and say what does not end."""
        waiting = [work.ended for work in self._running if not work.overdue]
        if waiting:
            await asyncio.wait(waiting, timeout=GRACE)
        if self._running:
            log.warning(
                "the bus is closed while functions are still running on threads, which cannot be cancelled: %s",
                ", ".join(sorted(self.running)),
            )


class _Work:
    """One call on a thread."""

    def __init__(
        self, name: str, call: Callable[[], Any], loop: asyncio.AbstractEventLoop, running: set[_Work]
    ) -> None:
        self.name = name
        self.ended: asyncio.Future[None] = loop.create_future()
        self.overdue = False
        """True once a wait for its end has timed out."""
        self._call = call
        self._loop = loop
        self._running = running
        self._lock = threading.Lock()
        self._begun = False
        self._abandoned = False
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """On the thread."""
        with self._lock:
            if self._abandoned:
                return
            self._begun = True
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._end)

    def abandon(self) -> bool:
        """Discard the outcome; return False if the function was not called at all, and will not be."""
        with self._lock:
            self._abandoned = True
        if not self._begun:
            self._end()
        return self._begun

    async def settle(self, seconds: float) -> None:
        """Wait until the function has returned, for so long at most."""
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self.ended], timeout=seconds)
        self.overdue = not self.ended.done()
        if self.overdue:
            log.warning("%s was cancelled, and is still running on its thread", self.name)

    def outcome(self) -> Any:
        # It may be told later than anyio tells of its result.
        self._end()
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return self._value
        finally:
            # A traceback refers to this frame.
            del error

    def _end(self) -> None:
        self._running.discard(self)
        if not self.ended.done():
            self.ended.set_result(None)
            if self._abandoned and self._begun:
                log.info("%s has returned after it was cancelled; its result is discarded", self.name)
