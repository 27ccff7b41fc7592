"""Wait without an event loop: the waiters of ``engine.waiters``, which block the calling thread."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from agentbus.engine.process_safety import signals_blocked
from agentbus.sync.bus import Interruption

if TYPE_CHECKING:
    from agentbus.engine.blocking import BlockingEngine, WaitingProcess

MAX_WAIT = 5.0
"""Seconds after which a waiter wakes by itself, sends the heartbeat of its agent, and has its caller look again."""


class BlockingWaiter:
    """A waiter on some channels. While it waits, this process is entered on the bus, so that others can wake it."""

    def __init__(self, waiters: BlockingWaiters, channels: tuple[str, ...]) -> None:
        self.channels = channels
        self.rung = False
        """Set by callers that pass a wake-up on. Another process wakes the next waiter itself."""
        self._waiters = waiters
        self._entered: AbstractContextManager[WaitingProcess] | None = None
        self._process: WaitingProcess | None = None

    async def wait(self, seconds: float | None) -> None:
        """Block until woken, for this many seconds, or for MAX_WAIT.

        The first call enters the process and returns at once: what was sent before does not wake it. So a caller that
        need not wait does not enter.
        """
        interruption = self._waiters.interruption
        interruption.check()
        with self._waiters.signals_allowed():
            if not self.channels:
                time.sleep(seconds or 0)  # noqa: ASYNC251 - there is no loop
            elif self._process is None:
                self.enter()
            else:
                with interruption.applies_to(self._process):
                    rung = self._process.wait(MAX_WAIT if seconds is None else min(MAX_WAIT, seconds))
                if not rung:
                    self._waiters.heartbeat()

    def enter(self) -> None:
        """Enter the process and listen."""
        # An interruption between the two would leave a process that is never deregistered.
        with signals_blocked():
            entered = self._waiters.store.wait_for_wakeups()
            self._process = entered.__enter__()
            self._entered = entered
        self._process.listen(self.channels)

    def close(self) -> None:
        entered, self._entered, self._process = self._entered, None, None
        if entered is not None:
            entered.__exit__(None, None, None)


class BlockingWaiters:
    """The waiters of one bus, or of one visiting agent, whose heartbeat is sent while it waits."""

    def __init__(
        self,
        store: BlockingEngine,
        heartbeat: Callable[[], object] = lambda: None,
        interruption: Interruption | None = None,
    ) -> None:
        self.store = store
        self.heartbeat = heartbeat
        self.interruption = Interruption() if interruption is None else interruption
        self._mask: set[int | signal.Signals] | None = None
        """The signals to block while waiting; None if that does not differ."""

    def listen(self, channels: tuple[str, ...]) -> BlockingWaiter:
        return BlockingWaiter(self, channels)

    @asynccontextmanager
    async def to(self, channel: str) -> AsyncIterator[BlockingWaiter]:
        """Watch a channel for the length of a block, as ``Listening.to`` does."""
        waiter = self.listen((channel,))
        try:
            waiter.enter()
            yield waiter
        finally:
            waiter.close()

    @contextmanager
    def signals_blocked(self) -> Iterator[None]:
        """Block the signals that would interrupt this, except while a waiter waits: the caller of a claim must get to
        know what it has claimed."""
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        try:
            with signals_blocked():
                yield
        finally:
            self._mask = None

    @contextmanager
    def signals_allowed(self) -> Iterator[None]:
        if self._mask is None:
            yield
            return
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
