"""Group commit: calls that arrive while a batch is written form the next one, with one thread hop and one transaction.

No coroutine ever holds an open transaction. Cancelling a caller only detaches it: a call that is still queued is
withdrawn; one already taken commits, and its result goes to ``on_abandoned``.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sized
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, cast

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
from agentbus.engine.sqlite.wal import KernelSync
from agentbus.engine.waiters import Waiters
from agentbus.errors import AgentBusError, BusClosed
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


Committed = tuple[Batch, list[str], bool]
"""A batch that was committed, the channels to wake, and True if every doorbell was rung."""
Done = tuple[Committed, bool]
"""A batch whose calls have their outcomes, and True if nothing else runs on the thread."""


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

    def __init__(
        self,
        connection: WriterConnection,
        runner: TransactionRunner,
        waiters: Waiters,
        kernel: KernelSync | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        is_own = type(self._loop).__module__.startswith("asyncio.")
        self._ready: Sized | None = getattr(self._loop, "_ready", None) if is_own else None
        """The callbacks that the loop runs next; unknown of a loop that is not asyncio's."""
        self._connection = connection
        self._runner = runner
        self._waiters = waiters
        self._queue: Batch = deque()
        self._held_back: Batch = deque()
        self._running = False
        self._ringing = False
        self._on_thread = False
        self._handed_over: deque[tuple[Committed | None, int]] = deque()
        """Arguments of ``_run_batches`` that the thread has not taken yet."""
        self._started_again = False
        """True if a batch is scheduled twice, in case a signal handler raises when the loop calls ``_start``."""
        self._done: deque[Done] = deque()
        """Batches whose callers have not got their outcomes yet."""
        self._inline_left = _MAX_INLINE_BATCHES
        self._on_connection = 0
        """Number of checkpoints and syncs on the thread."""
        self._kernel = kernel
        self._syncing: Committed | None = None
        """The batch whose sync the kernel does."""
        if self._kernel is not None:
            self._loop.add_reader(self._kernel.event, self._on_synced)
        self._sync: asyncio.Future[AgentBusError | None] | None = None
        """The sync that is queued on the thread and has not begun."""
        self._reads: asyncio.Future[None] | None = None
        """Resolved when the batch in progress has ended: reads wait for its sync."""
        self._single = False
        """True if the last batch was a single call: its caller is then likely to be the only one."""
        self._closed = False
        self._ended = False
        """True once the runner is closed."""
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
                if self._inline_left % _YIELD_EVERY and self._is_likely_alone(durable) and _has_stack():
                    self._start()
                else:
                    # Not immediately: every task that is ready in this iteration of the loop may join the batch.
                    self._loop.call_soon(self._start)
                    self._running = True
            except BaseException:
                # Out of stack, or a signal handler raised: the caller gets the error, so the call must not run later.
                future.cancel()
                raise
        elif self._done:
            # Again, in case a signal handler raised when the loop called it.
            self._loop.call_soon(self._deliver)
        elif not self._on_thread and not self._started_again:
            self._started_again = True
            self._loop.call_soon(self._start)
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

    def has_pages(self, pages: int) -> bool:
        return self._runner.has_pages(pages)

    def lock_wait_ms(self) -> int:
        return self._runner.lock_wait_ms()

    def stop_waiting(self) -> None:
        self._runner.stop_waiting()

    async def wait_until_synced(self) -> None:
        """After a read, wait until nothing that it has seen can be undone by a power cut."""
        if self._ended:
            raise BusClosed
        number = self._runner.unsynced()
        if number and self._running:
            # The sync of the batch in progress covers it, or that of the next one.
            for _ in range(2):
                if self._running:
                    if self._reads is None:
                        self._reads = self._loop.create_future()
                    await asyncio.shield(self._reads)
            if self._ended:
                raise BusClosed
            number = 0 if self._runner.is_synced(number) else number
        if number:
            await self._sync_on_thread()

    def _is_likely_alone(self, durable: bool) -> bool:
        """Return True if other calls are unlikely to join the batch in this iteration of the loop."""
        return self._has_only_caller() or (self._ready is None and self._single and not durable)

    def _has_only_caller(self) -> bool:
        """Return True if the last batch was a single call and the loop has nothing else to run."""
        return self._single and self._ready is not None and not self._ready

    async def _sync_on_thread(self) -> None:
        """Sync the log, together with others that wait for it."""
        sync = self._sync
        if sync is None:
            if self._closed:
                raise BusClosed
            sync = self._sync = self._loop.create_future()
            self._on_connection += 1
            try:
                self._connection.run_on_thread(partial(self._run_sync, sync))
            except BaseException:
                # A signal handler raised.
                self._sync = None
                self._on_connection -= 1
                raise
        problem = await asyncio.shield(sync)
        if problem is not None:
            raise problem

    def _run_sync(self, sync: asyncio.Future[AgentBusError | None]) -> None:
        # What was read before this line is covered; a later read queues another sync.
        self._sync = None
        problem = self._runner.wait_until_synced()
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._on_thread_done, sync, problem)

    async def checkpoint(self, *, truncate: bool) -> bool:
        """Checkpoint the log between two batches; return True if all of it was moved."""
        if self._closed:
            raise BusClosed
        future: asyncio.Future[bool | Exception] = self._loop.create_future()

        def checkpoint() -> None:
            outcome = self._runner.checkpoint(truncate=truncate)
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._on_thread_done, future, outcome)

        self._on_connection += 1
        self._connection.run_on_thread(checkpoint)
        outcome = await future
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _on_thread_done(self, future: asyncio.Future[Any], outcome: object) -> None:
        """Resolve the future; also if it was cancelled, allow inline batches on the connection again."""
        self._on_connection -= 1
        if not future.done():
            future.set_result(outcome)

    async def close(self) -> None:
        """Commit what is queued, then close the connection under the lock."""
        self._closed = True
        while self._running:
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=1)
            if not self._idle.done() and self._syncing is None:
                # Busy, or a signal handler raised between queueing and starting; then this starts it.
                self._hand_over()
        if self._kernel is not None:
            self._loop.remove_reader(self._kernel.event)
        await self._connection.run(self._runner.close)
        self._ended = True
        self._release_reads()
        await self._connection.close()

    def _start(self) -> None:
        """Start the queued calls: inline if they are small and need not wait for another process, else on the thread.
        Durable ones run inline only where the kernel can sync.

        The hop to the thread and back costs as much as a few small calls (100 µs), and Python runs on only one of the
        threads at a time. The thread still gets some batches, because only its commits checkpoint the log.
        """
        # What is done is delivered first: its delivery may allow the next batch.
        if self._on_thread or self._done or not self._queue:
            return
        batch: Batch = deque()
        try:
            self._running = True
            self._started_again = False
            if self._inline_left > 0 and self._is_small_batch() and self._run_inline(batch):
                return
            self._inline_left = _MAX_INLINE_BATCHES if self._inline_left >= 0 else self._inline_left + 1
            self._hand_over()
        except BaseException:
            # A signal handler raised: the program is about to end and must not wait for the batch.
            self._interrupt(batch)
            raise

    def _is_small_batch(self) -> bool:
        """Return True if everything queued may run inline."""
        # Not while the thread may use the connection: to ring doorbells again, to checkpoint, or to close.
        if self._ringing or self._on_connection or self._closed:
            return False
        rows = 0
        for call in self._queue:
            if call.durable and self._kernel is None:
                return False
            estimate = getattr(call.request, "row_estimate", None)
            if estimate is None or (rows := rows + max(1, estimate)) > _MAX_INLINE_ROWS:
                return False
        return True

    def _run_inline(self, batch: Batch) -> bool:
        """Take the queue into ``batch`` and run it on the loop's own thread. Return False, with nothing done, if it
        would have to wait for another process."""
        self._inline_left -= 1
        take_batch(self._queue, batch)
        start = time.perf_counter()
        done = self._runner.run_nowait(batch) if batch else ([], True, None)
        if time.perf_counter() - start > _MAX_INLINE_SECONDS:
            self._inline_left = -_MAX_INLINE_BATCHES
        if done is None:
            self._queue.extendleft(reversed(batch))
            batch.clear()
            return False
        channels, all_rung, waits_for = done
        committed = (batch.copy(), channels, all_rung)
        if waits_for is None:
            self._done.append((committed, False))
        elif waits_for == "kernel":
            self._syncing = committed
            self._on_thread = True
        else:
            self._hand_over(committed)
        batch.clear()
        if waits_for is None:
            self._deliver()
        elif self._kernel is not None and waits_for == "kernel" and self._has_only_caller() and self._kernel.spin():
            # The loop has nothing else to do, and to sleep and wake up takes as long as the disk.
            self._on_synced()
        return True

    def _on_synced(self) -> None:
        """Deliver the batch whose sync has ended."""
        kernel, committed = self._kernel, self._syncing
        error = None if kernel is None else kernel.result()
        if kernel is None or error is None:
            return
        if committed is None:
            # A signal handler interrupted what had begun it.
            kernel.end()
            return
        try:
            if self._end_sync(kernel, committed, error):
                self._deliver()
        except BaseException:
            if self._done:
                self._loop.call_soon(self._deliver)
            raise

    def _end_sync(self, kernel: KernelSync, committed: Committed, error: int) -> bool:
        """End a sync. Return True if its batch can be delivered; otherwise the thread completes it."""
        try:
            done = error == 0 and self._runner.end_sync(committed[0])
            if done:
                self._done.append((committed, True))
            kernel.end()
            if not done:
                self._hand_over(committed, error)
                self._syncing = None
        except BaseException:
            if all(other is not committed for other, _ in self._done):
                self._syncing = None
                self._on_thread = False
                self._interrupt(committed[0])
            raise
        return done

    def _interrupt(self, batch: Batch) -> None:
        """Fail the interrupted inline batch, and schedule what is still queued."""
        # A caller that was interrupted inside write() gets the signal handler's exception instead.
        fail_with_unknown_outcome(batch)
        self._release_reads()
        if self._syncing is not None:
            self._on_thread = True
        elif self._handed_over or self._on_thread:
            # It may have been interrupted before the thread was called.
            self._on_thread = True
            self._connection.run_on_thread(self._take_over)
        elif self._done:
            # No other batch may start before: its delivery would take the thread of that one for idle.
            self._running = True
            self._loop.call_soon(self._deliver)
        else:
            self._running = bool(self._queue)
            if self._running:
                self._loop.call_soon(self._start)

    def _hand_over(self, committed: Committed | None = None, error: int = 0) -> None:
        self._handed_over.append((committed, error))
        self._on_thread = True
        self._connection.run_on_thread(self._take_over)

    def _take_over(self) -> None:
        """Run what was handed over, if an earlier call has not. On the thread."""
        try:
            committed, error = self._handed_over.popleft()
        except IndexError:
            return
        self._run_batches(committed, error)

    def _run_batches(self, committed: Committed | None, error: int) -> None:
        """Run batches until the queue is empty; first, wait for the disk for one that is committed, unless its sync
        failed. On the thread."""
        while True:
            if committed is not None:
                batch, channels, all_rung = committed
                committed = None
                if error:
                    self._runner.fail_sync(batch, OSError(error, os.strerror(error)))
                else:
                    self._runner.wait_for_disk(batch)
            else:
                batch = deque()
                take_batch(self._queue, batch)
                channels, all_rung = self._runner.run(batch) if batch else ([], True)
            last = not self._queue
            self._done.append(((batch, channels, all_rung), last))
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:
                return  # the loop is closed, and with it every caller
            if last:
                return

    def _deliver(self) -> None:
        """Resolve the calls of the batches that are done, wake the waiters of this process, and continue with the
        queue. On the loop. If a signal handler raises, it runs again: what is repeated has no effect."""
        try:
            while self._done:
                committed, last = self._done[0]
                batch, channels, all_rung = committed
                self._single = len(batch) <= 1
                resolve(batch)
                self._release_reads()
                self._waiters.ring(channels)
                if not all_rung and not self._ringing:
                    self._ring_later(1)
                    self._ringing = True
                if committed is self._syncing:
                    self._syncing = None
                if last:
                    self._on_thread = False
                self._done.popleft()
            while self._held_back and len(self._queue) < MAX_QUEUED_CALLS:
                self._queue.append(self._held_back.popleft())
            if not self._on_thread:
                self._running = bool(self._queue)
                if self._running:
                    self._start()
                elif self._idle is not None and not self._idle.done():
                    self._idle.set_result(None)
        except BaseException:
            self._loop.call_soon(self._deliver)
            raise

    def _release_reads(self) -> None:
        if self._reads is not None and not self._reads.done():
            self._reads.set_result(None)
        self._reads = None

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
