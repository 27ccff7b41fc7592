"""Group commit: what callers ask for while a batch is being written goes into the next, one thread hop and one
transaction for all of it.

No coroutine ever holds an open transaction. Cancelling a caller only detaches it: still queued, its call is withdrawn;
already taken, it commits, and ``orphaned`` hears of the result that nobody waits for.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar, cast

import aiosqlite

from agentbus.engine.batches import Batch, Waiting, answer, answered, cut_off, take
from agentbus.engine.hub import Hub
from agentbus.engine.sqlite.transaction import Transactor
from agentbus.errors import BusClosed
from agentbus.operations import Operation

R = TypeVar("R")
T = TypeVar("T")

MOST_WAITING = 10_000
"""Calls that the thread may find waiting; what comes then is held back on the loop, first come first served."""
_RING_AGAIN = 0.002
_RING_SELDOM = 1.0
_MOST_HERE = 63
"""Batches in a row that may be run on the loop's own thread."""
_TURN = 8
"""After so many of them in a row the loop has a turn, even if nobody seems to wait for it."""
_MOST_TOUCHED = 128
"""Rows that may be touched on the loop's own thread: less than a millisecond, unless payloads are large."""
_ROOM = 100
"""Calls that must still fit on a stack on which a batch is run."""
_LONG = 0.003
"""Seconds after which the loop's own thread is spared for a while."""


class DaemonConnection(aiosqlite.Connection):
    """aiosqlite's connection on a daemon thread: a bus that nobody closed must not hang the interpreter's exit."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        self._thread.daemon = True

    def join(self) -> None:
        """After a failed opening: wait for the thread, which would else answer a loop that may be closed by then."""
        self._thread.join(1)

    async def run(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the thread and wait for it."""
        return cast(T, await self._execute(function))  # type: ignore[no-untyped-call]


class WriterConnection(DaemonConnection):
    """One method more: run a callable on the connection's thread, without waiting for it."""

    def hop(self, function: Callable[[], object]) -> None:
        """Run ``function`` on the thread. It must not raise: nobody waits for it."""
        self._tx.put_nowait((None, function))


class Writer:
    """The one way to write. Lives on the event loop; its batches run on the connection's thread."""

    def __init__(self, connection: WriterConnection, transactor: Transactor, hub: Hub) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._transactor = transactor
        self._hub = hub
        self._queue: Batch = deque()
        self._held_back: Batch = deque()
        self._running = False
        self._ringing = False
        self._on_thread = False
        self._here = _MOST_HERE
        self._tending = 0
        """How many use the thread for something else than a batch."""
        self._alone = False
        """Whether the last batch was of one call: then its caller is likely to be the only one about."""
        self._closed = False
        self._idle: asyncio.Future[None] | None = None

    def write(
        self,
        operation: Operation[R, T],
        request: R,
        durable: bool,
        orphaned: Callable[[T], None] | None = None,
    ) -> Awaitable[T]:
        """Queue a call; await the answer."""
        if self._closed:
            raise BusClosed
        future: asyncio.Future[T] = self._loop.create_future()
        call = Waiting(operation, request, durable, future, orphaned)
        if len(self._queue) >= MOST_WAITING or self._held_back:
            self._held_back.append(call)
        else:
            self._queue.append(call)
        if not self._running:
            try:
                if self._alone and not durable and self._here % _TURN and _has_room():
                    self._start()
                else:
                    # Not at once: every task that is ready in this turn of the loop may still join the batch.
                    self._loop.call_soon(self._start)
                    self._running = True
            except BaseException:
                # No stack left, or a signal handler: the caller is told, and must not be written later.
                future.cancel()
                raise
        return future if orphaned is None or future.done() else answered(future, orphaned)

    @property
    def process(self) -> int:
        return self._transactor.process

    @process.setter
    def process(self, number: int) -> None:
        self._transactor.process = number

    @property
    def gone(self) -> bool:
        return self._transactor.gone

    def check_there(self) -> None:
        self._transactor.check_there()

    def waited(self) -> int:
        return self._transactor.waited()

    def hurry(self) -> None:
        self._transactor.hurry()

    async def checkpoint(self, *, whole: bool) -> bool:
        """Move the log into the database, between two batches; whether all of it."""
        if self._closed:
            raise BusClosed
        future: asyncio.Future[bool] = self._loop.create_future()

        def tend() -> None:
            outcome = self._transactor.checkpoint(whole=whole)
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._tended, future, outcome)

        self._tending += 1
        self._connection.hop(tend)
        return await future

    def _tended(self, future: asyncio.Future[bool], outcome: bool | Exception) -> None:
        """Also when nobody waits for it any more: until now the loop's own thread had to keep off the connection."""
        self._tending -= 1
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    async def close(self) -> None:
        """Write what waits, then close the connection under the lock."""
        self._closed = True
        while self._running:
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=1)
            if not self._idle.done():
                # Busy, or a signal handler cut somebody off between queueing and starting; then this starts it.
                self._connection.hop(self._work)
        await self._connection.run(self._transactor.close)
        await self._connection.close()

    def _start(self) -> None:
        """Begin with what waits: on the thread; or here, if it is little that needs neither fsync nor waiting.

        The hop to the thread and back costs as much as some small calls (100 µs), and while Python runs on the one
        thread it does not on the other. Now and then the thread has its turn all the same: only its commits checkpoint
        the log.
        """
        if self._on_thread:
            return
        batch: Batch = deque()
        try:
            self._running = True
            if self._here > 0 and self._is_little() and self._run_here(batch):
                return
            self._here = _MOST_HERE if self._here >= 0 else self._here + 1
            self._on_thread = True
            self._connection.hop(self._work)
        except BaseException:
            # A signal handler raised in the middle of it: the program wants to end, and must not wait for us.
            self._cut_off(batch)
            raise

    def _is_little(self) -> bool:
        """Whether all that waits may be run on the loop's own thread."""
        # Not while the thread may use the connection too: to ring bells again, to checkpoint, at the call of close().
        if self._ringing or self._tending or self._closed:
            return False
        rows = 0
        for call in self._queue:
            touched = None if call.durable else getattr(call.request, "touches", None)
            if touched is None or (rows := rows + max(1, touched)) > _MOST_TOUCHED:
                return False
        return True

    def _run_here(self, batch: Batch) -> bool:
        """Take what waits into ``batch`` and run it on the loop's own thread; False, with nothing done, if another
        process would have to be waited for."""
        self._here -= 1
        take(self._queue, batch)
        begun = time.perf_counter()
        done = self._transactor.run_at_once(batch) if batch else ([], True)
        if time.perf_counter() - begun > _LONG:
            self._here = -_MOST_HERE
        if done is None:
            self._queue.extendleft(reversed(batch))
            batch.clear()
            return False
        self._deliver(batch, *done, True)
        return True

    def _cut_off(self, batch: Batch) -> None:
        """Whatever was being run here may be written or not; what waits goes on."""
        # Whoever was cut off while it called hears of the signal handler's exception instead.
        cut_off(batch)
        if not self._on_thread:
            self._running = bool(self._queue)
            if self._running:
                self._loop.call_soon(self._start)

    def _work(self) -> None:
        """On the thread: batch after batch until nothing waits."""
        while True:
            batch: Batch = deque()
            take(self._queue, batch)
            channels, all_rung = self._transactor.run(batch) if batch else ([], True)
            last = not self._queue
            try:
                self._loop.call_soon_threadsafe(self._deliver, batch, channels, all_rung, last)
            except RuntimeError:
                return  # the loop is closed; nobody is left to tell
            if last:
                return

    def _deliver(self, batch: Batch, channels: list[str], all_rung: bool, last: bool) -> None:
        """On the loop: answer every caller, wake who waits here, go on if more has come."""
        self._alone = len(batch) <= 1
        try:
            answer(batch)
        finally:
            # Also when a signal handler raised in the middle of it.
            answer(batch)
            self._hub.ring(channels)
            self._go_on(all_rung, last)

    def _go_on(self, all_rung: bool, last: bool) -> None:
        if not all_rung and not self._ringing:
            self._ringing = True
            self._ring_later(_RING_AGAIN)
        while self._held_back and len(self._queue) < MOST_WAITING:
            self._queue.append(self._held_back.popleft())
        if last:
            self._on_thread = False
            self._running = bool(self._queue)
            if self._running:
                self._start()
            elif self._idle is not None and not self._idle.done():
                self._idle.set_result(None)

    def _ring_later(self, delay: float) -> None:
        """Try again, ever less often: a process that is stopped must not keep us busy. The beat is its backstop."""

        def ring_again() -> None:
            following = None if self._transactor.ring_again() else min(_RING_SELDOM, delay * 2)
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._rung_again, following)

        self._loop.call_later(delay, self._connection.hop, ring_again)

    def _rung_again(self, following: float | None) -> None:
        self._ringing = following is not None and not self._closed
        if following is not None and self._ringing:
            self._ring_later(following)


def _has_room() -> bool:
    """Whether a batch may be run on the caller's own stack, and not run out of it half-way."""
    try:
        sys._getframe(sys.getrecursionlimit() - _ROOM)
    except ValueError:
        return True
    return False
