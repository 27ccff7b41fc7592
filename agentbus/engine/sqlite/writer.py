"""Group commit: calls that arrive while a batch is written form the next one, with one thread hop and one transaction.

No coroutine ever holds an open transaction. Cancelling a caller only detaches it: a call that is still queued is
withdrawn; one already taken commits, and its result goes to ``on_abandoned``.
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

from agentbus.core.clock import backoff
from agentbus.engine.group_commit import (
    Batch,
    PendingCall,
    await_result,
    fail_with_unknown_outcome,
    resolve,
    take_batch,
)
from agentbus.engine.sqlite.transaction import TransactionRunner
from agentbus.engine.waiters import Waiters
from agentbus.errors import BusClosed
from agentbus.operations.protocol import Operation

R = TypeVar("R")
T = TypeVar("T")

MAX_QUEUED_CALLS = 10_000
"""Calls in the writer's queue; further ones are held back on the loop, in order of arrival."""
_FIRST_RING_RETRY = 0.002
_MAX_RING_RETRY = 1.0
_MAX_INLINE_BATCHES = 63
"""Consecutive batches that may run on the loop's own thread."""
_YIELD_EVERY = 8
"""Inline batches after which the loop runs other tasks, even if none seems to be ready."""
_MAX_INLINE_ROWS = 128
"""Rows that an inline batch may change: less than a millisecond, unless payloads are large."""
_STACK_RESERVE = 100
"""Stack frames that must be free to run a batch on the caller's stack."""
_MAX_INLINE_SECONDS = 0.003
"""Duration of an inline batch after which the next ones run on the thread."""


class DaemonConnection(aiosqlite.Connection):
    """An aiosqlite connection on a daemon thread: a bus that was not closed must not hang the interpreter's exit."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, iter_chunk_size=64)
        self._thread.daemon = True

    def join(self) -> None:
        """Wait for the thread after a failed open: otherwise it would answer a loop that may be closed by then."""
        self._thread.join(1)

    async def run(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the thread and wait for it."""
        return cast(T, await self._execute(function))  # type: ignore[no-untyped-call]


class WriterConnection(DaemonConnection):
    """A connection whose thread also runs callables that are not awaited."""

    def run_on_thread(self, function: Callable[[], object]) -> None:
        """Run ``function`` on the thread. It must not raise: its result is not awaited."""
        self._tx.put_nowait((None, function))


class Writer:
    """The only writer of a process. Used on the event loop; its batches run on the connection's thread."""

    def __init__(self, connection: WriterConnection, runner: TransactionRunner, waiters: Waiters) -> None:
        self._loop = asyncio.get_running_loop()
        self._connection = connection
        self._runner = runner
        self._waiters = waiters
        self._queue: Batch = deque()
        self._held_back: Batch = deque()
        self._running = False
        self._ringing = False
        self._on_thread = False
        self._inline_left = _MAX_INLINE_BATCHES
        self._checkpointing = 0
        """Number of checkpoints on the thread."""
        self._single = False
        """True if the last batch was a single call: its caller is then likely to be the only one."""
        self._closed = False
        self._idle: asyncio.Future[None] | None = None

    def write(
        self,
        operation: Operation[R, T],
        request: R,
        durable: bool,
        on_abandoned: Callable[[T], None] | None = None,
    ) -> Awaitable[T]:
        """Queue a call; await its result."""
        if self._closed:
            raise BusClosed
        future: asyncio.Future[T] = self._loop.create_future()
        call = PendingCall(operation, request, durable, future=future, on_abandoned=on_abandoned)
        if len(self._queue) >= MAX_QUEUED_CALLS or self._held_back:
            self._held_back.append(call)
        else:
            self._queue.append(call)
        if not self._running:
            try:
                if self._single and not durable and self._inline_left % _YIELD_EVERY and _has_stack():
                    self._start()
                else:
                    # Not immediately: every task that is ready in this iteration of the loop may join the batch.
                    self._loop.call_soon(self._start)
                    self._running = True
            except BaseException:
                # Out of stack, or a signal handler raised: the caller gets the error, so the call must not run later.
                future.cancel()
                raise
        return future if on_abandoned is None or future.done() else await_result(future, on_abandoned)

    @property
    def process(self) -> int:
        return self._runner.process

    @process.setter
    def process(self, number: int) -> None:
        self._runner.process = number

    @property
    def gone(self) -> bool:
        return self._runner.gone

    def check_exists(self) -> None:
        self._runner.check_exists()

    def lock_wait_ms(self) -> int:
        return self._runner.lock_wait_ms()

    def stop_waiting(self) -> None:
        self._runner.stop_waiting()

    async def checkpoint(self, *, truncate: bool) -> bool:
        """Checkpoint the log between two batches; return True if all of it was moved."""
        if self._closed:
            raise BusClosed
        future: asyncio.Future[bool] = self._loop.create_future()

        def checkpoint() -> None:
            outcome = self._runner.checkpoint(truncate=truncate)
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._checkpointed, future, outcome)

        self._checkpointing += 1
        self._connection.run_on_thread(checkpoint)
        return await future

    def _checkpointed(self, future: asyncio.Future[bool], outcome: bool | Exception) -> None:
        """Resolve the future; also if it was cancelled, allow inline batches on the connection again."""
        self._checkpointing -= 1
        if future.done():
            return
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    async def close(self) -> None:
        """Commit what is queued, then close the connection under the lock."""
        self._closed = True
        while self._running:
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=1)
            if not self._idle.done():
                # Busy, or a signal handler raised between queueing and starting; then this starts it.
                self._connection.run_on_thread(self._run_batches)
        await self._connection.run(self._runner.close)
        await self._connection.close()

    def _start(self) -> None:
        """Start the queued calls: on the thread, or inline if they are small and need neither fsync nor waiting.

        The hop to the thread and back costs as much as a few small calls (100 µs), and Python runs on only one of the
        threads at a time. The thread still gets some batches, because only its commits checkpoint the log.
        """
        if self._on_thread:
            return
        batch: Batch = deque()
        try:
            self._running = True
            if self._inline_left > 0 and self._is_small_batch() and self._run_inline(batch):
                return
            self._inline_left = _MAX_INLINE_BATCHES if self._inline_left >= 0 else self._inline_left + 1
            self._on_thread = True
            self._connection.run_on_thread(self._run_batches)
        except BaseException:
            # A signal handler raised: the program is about to end and must not wait for the batch.
            self._interrupt(batch)
            raise

    def _is_small_batch(self) -> bool:
        """Return True if everything queued may run inline."""
        # Not while the thread may use the connection: to ring doorbells again, to checkpoint, or to close.
        if self._ringing or self._checkpointing or self._closed:
            return False
        rows = 0
        for call in self._queue:
            estimate = None if call.durable else getattr(call.request, "row_estimate", None)
            if estimate is None or (rows := rows + max(1, estimate)) > _MAX_INLINE_ROWS:
                return False
        return True

    def _run_inline(self, batch: Batch) -> bool:
        """Take the queue into ``batch`` and run it on the loop's own thread. Return False, with nothing done, if it
        would have to wait for another process."""
        self._inline_left -= 1
        take_batch(self._queue, batch)
        start = time.perf_counter()
        done = self._runner.run_nowait(batch) if batch else ([], True)
        if time.perf_counter() - start > _MAX_INLINE_SECONDS:
            self._inline_left = -_MAX_INLINE_BATCHES
        if done is None:
            self._queue.extendleft(reversed(batch))
            batch.clear()
            return False
        self._deliver(batch, *done, True)
        return True

    def _interrupt(self, batch: Batch) -> None:
        """Fail the interrupted inline batch, and schedule what is still queued."""
        # A caller that was interrupted inside write() gets the signal handler's exception instead.
        fail_with_unknown_outcome(batch)
        if not self._on_thread:
            self._running = bool(self._queue)
            if self._running:
                self._loop.call_soon(self._start)

    def _run_batches(self) -> None:
        """Run batches until the queue is empty. On the thread."""
        while True:
            batch: Batch = deque()
            take_batch(self._queue, batch)
            channels, all_rung = self._runner.run(batch) if batch else ([], True)
            last = not self._queue
            try:
                self._loop.call_soon_threadsafe(self._deliver, batch, channels, all_rung, last)
            except RuntimeError:
                return  # the loop is closed, and with it every caller
            if last:
                return

    def _deliver(self, batch: Batch, channels: list[str], all_rung: bool, last: bool) -> None:
        """Resolve every call, wake the waiters of this process, and continue with the queue. On the loop."""
        self._single = len(batch) <= 1
        try:
            resolve(batch)
        finally:
            # Again, in case a signal handler raised half-way.
            resolve(batch)
            self._waiters.ring(channels)
            self._continue(all_rung, last)

    def _continue(self, all_rung: bool, last: bool) -> None:
        if not all_rung and not self._ringing:
            self._ringing = True
            self._ring_later(1)
        while self._held_back and len(self._queue) < MAX_QUEUED_CALLS:
            self._queue.append(self._held_back.popleft())
        if last:
            self._on_thread = False
            self._running = bool(self._queue)
            if self._running:
                self._start()
            elif self._idle is not None and not self._idle.done():
                self._idle.set_result(None)

    def _ring_later(self, attempt: int) -> None:
        """Ring again after a delay that doubles: a stopped process must not keep this one busy. Heartbeats make up for
        a ring that is lost."""

        def ring_again() -> None:
            next_attempt = None if self._runner.ring_again() else attempt + 1
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._rung_again, next_attempt)

        self._loop.call_later(
            backoff(attempt, _FIRST_RING_RETRY, _MAX_RING_RETRY), self._connection.run_on_thread, ring_again
        )

    def _rung_again(self, next_attempt: int | None) -> None:
        self._ringing = next_attempt is not None and not self._closed
        if next_attempt is not None and self._ringing:
            self._ring_later(next_attempt)


def _has_stack() -> bool:
    """Return True if the caller's stack has room to run a batch."""
    try:
        sys._getframe(sys.getrecursionlimit() - _STACK_RESERVE)
    except ValueError:
        return True
    return False
