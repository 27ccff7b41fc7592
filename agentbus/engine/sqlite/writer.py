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
from agentbus.errors import AgentBusError, BusClosed, OutcomeUnknown
from agentbus.operations.protocol import Operation

R = TypeVar("R")
T = TypeVar("T")

MAX_QUEUED_CALLS = 10_000
"""Calls in the writer's queue; further ones are held back on the loop, in order of arrival."""
_CHECK_EVERY = 1.0
"""Seconds between two checks for lost callbacks, while a call is in progress."""
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
_WAKE_EVERY = 64
_WAKES = 4
"""Of each 64 queued calls, the first 4 schedule another start, in case the one before was lost."""

Committed = tuple[Batch, list[str], bool]
"""A batch that was committed, the channels to wake, and True if every doorbell was rung."""
Job = tuple[asyncio.Future[Any], Callable[[], Any]]
"""A checkpoint or a sync that the thread runs between two batches, and the future of its callers."""


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

    def has_calls(self) -> bool:
        """Return True if something is queued that the thread has not taken."""
        return not self._tx.empty()


class SharedSync:
    """A sync of the log that several reads wait for; those that come after it has begun need another one."""

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future
        self.has_begun = False


class Writer:
    """The only writer of a process. Used on the event loop; its batches run on the connection's thread, or inline.

    A call is in ``_queue``, then in ``_batch`` (inline) or taken by the thread, then in ``_syncing`` or
    ``_handed_over`` if it must be synced, then in ``_done``. Each step adds it to the next place before it removes it
    from the one before, and ``_advance`` derives from the places alone what is to be done. It may be called at any
    time, any number of times: a signal handler may raise anywhere on the loop's thread, and asyncio loses a callback
    if one raises where it would run it. Later calls schedule ``_advance`` again, and so does a timer.
    """

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
        self._moved: PendingCall | None = None
        """The call that was last moved from those held back to the queue."""
        self._batch: Batch = deque()
        """The batch that runs inline; not empty afterwards only if a signal handler raised in it."""
        self._syncing: Committed | None = None
        """The batch whose sync the kernel does."""
        self._handed_over: tuple[Committed | None, int] | None = None
        """Arguments of ``_run_batches``, until the thread has run it: until then no other batch starts."""
        self._jobs: deque[Job] = deque()
        """Checkpoints and syncs that the thread has not finished: until then no batch runs inline."""
        self._on_thread = False
        """True while the thread runs batches and jobs. Only the thread changes it."""
        self._done: deque[Committed] = deque()
        """Batches whose callers have not got their outcomes yet."""
        self._answers: deque[tuple[asyncio.Future[Any], object]] = deque()
        """Outcomes of jobs that have not been delivered yet."""
        self._inline_left = _MAX_INLINE_BATCHES
        self._ringing = False
        self._ring: Callable[[], None] | None = None
        """The ring that was scheduled last."""
        self._next_ring = 0.0
        """The time by which the ring that was scheduled last must have ended; otherwise its callback was lost."""
        self._kernel = kernel
        if self._kernel is not None:
            self._loop.add_reader(self._kernel.event, self._on_synced)
        self._check: asyncio.TimerHandle | None = None
        self._next_check = 0.0
        """The time of the next check for lost callbacks. Checks end when no call is in progress."""
        self._sync: SharedSync | None = None
        """The sync that was last queued on the thread."""
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
        is_idle = not self._queue and self._is_idle()
        try:
            if len(self._queue) >= MAX_QUEUED_CALLS or self._held_back:
                self._held_back.append(call)
            else:
                self._queue.append(call)
            if not is_idle:
                if len(self._queue) % _WAKE_EVERY <= _WAKES:
                    # In case a signal handler raised where the loop would have called it.
                    self._wake()
            else:
                if time.monotonic() > self._next_check:
                    self._check_later()
                if self._inline_left % _YIELD_EVERY and self._is_likely_alone(durable) and _has_stack():
                    self._advance()
                else:
                    # Not immediately: every task that is ready in this iteration of the loop may join the batch.
                    self._loop.call_soon(self._advance)
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
        if number and not self._is_idle():
            # The sync of the batch in progress covers it, or that of the next one.
            for _ in range(2):
                if not self._is_idle():
                    if self._reads is None:
                        self._reads = self._loop.create_future()
                    self._wake()
                    await asyncio.shield(self._reads)
            if self._ended:
                raise BusClosed
            number = 0 if self._runner.is_synced(number) else number
        if number:
            await self._sync_on_thread()

    def _is_idle(self) -> bool:
        """Return True if no call is queued or in progress."""
        # In the order of the steps of a call: it may take the next one on the thread meanwhile.
        return not (self._queue or self._batch or self._syncing or self._handed_over or self._done)

    def _check_later(self) -> None:
        """Call ``_advance`` after a second, in case a signal handler raises where the loop would call it."""
        self._check = self._loop.call_later(_CHECK_EVERY, self._check_progress)
        self._next_check = time.monotonic() + _CHECK_EVERY

    def _check_progress(self) -> None:
        if self._jobs or self._answers or not self._is_idle():
            self._check_later()
            self._advance()

    def _wake(self) -> None:
        """Schedule ``_advance``, unless the kernel or the thread will."""
        if self._done or self._answers or (self._syncing is None and not self._on_thread):
            self._loop.call_soon(self._advance)

    def _is_likely_alone(self, durable: bool) -> bool:
        """Return True if other calls are unlikely to join the batch in this iteration of the loop."""
        return self._has_only_caller() or (self._ready is None and self._single and not durable)

    def _has_only_caller(self) -> bool:
        """Return True if the last batch was a single call and the loop has nothing else to run."""
        return self._single and self._ready is not None and not self._ready

    async def _sync_on_thread(self) -> None:
        """Sync the log, together with others that wait for it."""
        sync = self._sync
        if sync is None or sync.has_begun:
            if self._closed:
                raise BusClosed
            sync = SharedSync(self._loop.create_future())
            self._add_job(sync.future, partial(self._run_sync, sync))
            self._sync = sync
        problem = await asyncio.shield(sync.future)
        if problem is not None:
            raise problem

    def _run_sync(self, sync: SharedSync) -> AgentBusError | None:
        # What was read before this line is covered; a later read queues another sync.
        sync.has_begun = True
        return self._runner.wait_until_synced()

    async def checkpoint(self, *, truncate: bool) -> bool:
        """Checkpoint the log between two batches; return True if all of it was moved."""
        if self._closed:
            raise BusClosed
        future: asyncio.Future[bool | Exception] = self._loop.create_future()
        self._add_job(future, partial(self._runner.checkpoint, truncate=truncate))
        outcome = await future
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _add_job(self, future: asyncio.Future[Any], function: Callable[[], Any]) -> None:
        """Run ``function`` on the thread, and resolve the future with what it returns or raises."""
        if time.monotonic() > self._next_check:
            self._check_later()
        self._jobs.append((future, function))
        self._connection.run_on_thread(self._work)

    async def close(self) -> None:
        """Commit what is queued, then close the connection under the lock."""
        self._closed = True
        while not self._is_idle():
            self._idle = self._loop.create_future()
            # Again after a second, in case a signal handler raised when the loop called it.
            self._advance()
            await asyncio.wait([self._idle], timeout=_CHECK_EVERY)
        if self._check is not None:
            self._check.cancel()
        if self._kernel is not None:
            self._loop.remove_reader(self._kernel.event)
        await self._connection.run(self._runner.close)
        self._ended = True
        self._release_reads()
        await self._connection.close()

    def _advance(self) -> None:
        """Do what is to be done next: deliver what is done, fail a batch that was interrupted, start what is queued.
        On the loop. Without effect while the thread or the kernel is busy."""
        try:
            while True:
                self._deliver()
                if (self._handed_over or self._jobs) and not self._on_thread and not self._connection.has_calls():
                    # A signal handler raised before the thread was called.
                    self._connection.run_on_thread(self._work)
                if self._batch and not self._jobs:
                    self._fail_interrupted()
                if self._batch or self._syncing or self._handed_over or self._done:
                    return
                if not self._queue:
                    break
                self._start()
            self._release_reads()
            if self._idle is not None and not self._idle.done():
                self._idle.set_result(None)
        except BaseException:
            self._loop.call_soon(self._advance)
            raise

    def _fail_interrupted(self) -> None:
        """Fail the calls of an inline batch in which a signal handler raised: the program is likely to end and must not
        wait for them."""
        # A caller that was interrupted inside write() gets the signal handler's exception instead.
        fail_with_unknown_outcome(self._batch)
        self._release_reads()
        if not self._syncing and not self._handed_over:
            # If it fails, the next batch does the same.
            with suppress(sqlite3.Error, OSError):
                self._runner.leave()
            if self._kernel is not None:
                # It may have begun a sync that no caller waits for.
                self._kernel.end()
        self._batch = deque()

    def _start(self) -> None:
        """Start the queued calls: inline if they are small and need not wait for another process, else on the thread.
        Durable ones run inline only where the kernel can sync.

        The hop to the thread and back costs as much as a few small calls (100 µs), and Python runs on only one of the
        threads at a time. The thread still gets some batches, because only its commits checkpoint the log.
        """
        if self._inline_left > 0 and self._is_small_batch() and self._run_inline():
            return
        self._inline_left = _MAX_INLINE_BATCHES if self._inline_left >= 0 else self._inline_left + 1
        self._hand_over()

    def _is_small_batch(self) -> bool:
        """Return True if everything queued may run inline."""
        # Not while the thread may use the connection: to ring doorbells again, to checkpoint, or to close.
        if self._ringing or self._jobs or self._closed:
            return False
        rows = 0
        for call in self._queue:
            if call.durable and self._kernel is None:
                return False
            estimate = getattr(call.request, "row_estimate", None)
            if estimate is None or (rows := rows + max(1, estimate)) > _MAX_INLINE_ROWS:
                return False
        return True

    def _run_inline(self) -> bool:
        """Run the queue on the loop's own thread. Return False, with nothing done, if it would have to wait for another
        process."""
        self._inline_left -= 1
        batch = self._batch
        take_batch(self._queue, batch)
        start = time.perf_counter()
        done = self._runner.run_nowait(batch) if batch else ([], True, None)
        if time.perf_counter() - start > _MAX_INLINE_SECONDS:
            self._inline_left = -_MAX_INLINE_BATCHES
        if done is None:
            self._queue.extendleft(reversed(batch))
            self._batch = deque()
            return False
        channels, all_rung, waits_for = done
        committed = (batch, channels, all_rung)
        if waits_for is None:
            self._done.append(committed)
        elif waits_for == "kernel":
            self._syncing = committed
        else:
            self._hand_over(committed)
        self._batch = deque()
        if self._syncing and self._kernel is not None and self._has_only_caller() and self._kernel.spin():
            # The loop has nothing else to do, and to sleep and wake up takes as long as the disk.
            self._end_sync(self._kernel)
        return True

    def _on_synced(self) -> None:
        """Deliver the batch whose sync has ended, and continue. Called again while the kernel's event is readable."""
        if self._kernel is None:
            return
        try:
            if self._syncing is None:
                # A signal handler interrupted what had begun it, or what followed.
                self._deliver()
                self._kernel.end()
            elif not self._end_sync(self._kernel):
                return
            self._advance()
        except BaseException:
            self._loop.call_soon(self._advance)
            raise

    def _end_sync(self, kernel: KernelSync) -> bool:
        """Deliver the batch whose sync has ended, or let the thread complete it. Return False if it has not ended."""
        committed, error = self._syncing, kernel.result()
        if committed is None or error is None:
            return False
        # Otherwise interrupted when it was handed over.
        if not self._handed_over:
            if error == 0 and self._runner.end_sync(committed[0]):
                self._done.append(committed)
            else:
                self._hand_over(committed, error)
        self._syncing = None
        self._deliver()
        # Last: until then, the loop calls ``_on_synced`` again.
        kernel.end()
        return True

    def _hand_over(self, committed: Committed | None = None, error: int = 0) -> None:
        self._handed_over = (committed, error)
        self._connection.run_on_thread(self._work)

    def _work(self) -> None:
        """Run what was handed over, and the jobs, if an earlier call has not. On the thread."""
        try:
            if self._handed_over is not None:
                self._on_thread = True
                self._run_batches(*self._handed_over)
            while self._jobs:
                self._on_thread = True
                future, function = self._jobs[0]
                try:
                    outcome = function()
                except Exception as error:
                    outcome = error
                self._answers.append((future, outcome))
                self._jobs.popleft()
                self._call_loop()
        finally:
            self._on_thread = False

    def _call_loop(self) -> None:
        # First: the loop may run for long before the thread continues.
        self._on_thread = self._handed_over is not None
        # If the loop is closed, so is every caller.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._advance)

    def _run_batches(self, committed: Committed | None, error: int) -> None:
        """Run batches until the queue is empty; first, wait for the disk for one that is committed, unless its sync
        failed. On the thread."""
        last = False
        while not last:
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
                channels, all_rung = self._run(batch)
            self._done.append((batch, channels, all_rung))
            # What waits for the thread comes between two batches; then the loop hands the queue over again.
            last = not self._queue or bool(self._jobs) or self._connection.has_calls() or self._loop.is_closed()
            if last:
                # Before the loop is called: it may then hand over the next batch.
                self._handed_over = None
            self._call_loop()

    def _run(self, batch: Batch) -> tuple[list[str], bool]:
        """Run a batch on the thread. Whatever is raised, its callers get an answer."""
        try:
            return self._runner.run(batch) if batch else ([], True)
        except BaseException as error:
            # Raised by a filter of the program's logging, for example: after the commit, before the sync.
            with suppress(sqlite3.Error, OSError):
                self._runner.leave()
            for call in batch:
                if not isinstance(call.outcome, BaseException):
                    call.outcome = OutcomeUnknown(path="the bus", reason=repr(error))
            # Whom the batch would have woken is not known.
            return [], True

    def _deliver(self) -> None:
        """Resolve the calls of the batches that are done, and wake the waiters of this process. If a signal handler
        raises, it runs again: what is repeated has no effect."""
        while self._done:
            batch, channels, all_rung = self._done[0]
            self._single = len(batch) <= 1
            resolve(batch)
            self._release_reads()
            self._waiters.ring(channels)
            if not all_rung and (not self._ringing or time.monotonic() > self._next_ring):
                self._ring_later(1)
                self._ringing = True
            self._done.popleft()
        while self._answers:
            future, outcome = self._answers[0]
            # Unless the caller was cancelled.
            if not future.done():
                future.set_result(outcome)
            self._answers.popleft()
        while self._held_back and len(self._queue) < MAX_QUEUED_CALLS:
            call = self._held_back[0]
            if call is not self._moved:
                self._moved = call
                self._queue.append(call)
            self._held_back.popleft()

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
                self._loop.call_soon_threadsafe(self._rung_again, next_attempt, ring_again)

        delay = backoff(attempt, _FIRST_RING_RETRY, _MAX_RING_RETRY)
        self._ring = ring_again
        self._next_ring = time.monotonic() + delay + _MAX_RING_RETRY
        self._loop.call_later(delay, self._connection.run_on_thread, ring_again)

    def _rung_again(self, next_attempt: int | None, ring: Callable[[], None]) -> None:
        if ring is not self._ring:
            # It was late, not lost: another one has been scheduled.
            return
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
