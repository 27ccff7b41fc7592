"""Group commit: what callers ask for while a batch is being written goes into the next, one transaction for all of it.

No caller ever holds an open transaction. Cancelling one only detaches it: still queued, its call is withdrawn; already
taken, it commits, and ``orphaned`` hears of the result that nobody waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from agentbus.engine.calls import Call
from agentbus.engine.postgres.bell import Bell
from agentbus.engine.postgres.transaction import Bells, Transactor
from agentbus.errors import BusClosed, OutcomeUnknown
from agentbus.operations import Operation

R = TypeVar("R")
T = TypeVar("T")
log = logging.getLogger("agentbus.engine")

MOST_CALLS = 1000
"""Calls in one transaction."""
MOST_BYTES = 4 * 1024 * 1024
"""Payload in one transaction, so that a large message does not hold the others up for long."""
LAST = 10.0
"""Seconds for what still waits when a bus is closed."""


class _Waiting(Call):
    """A call whose caller awaits the future."""

    __slots__ = ("future", "orphaned")

    def __init__(
        self,
        operation: Operation[Any, Any],
        request: Any,
        durable: bool,
        future: asyncio.Future[Any],
        orphaned: Callable[[Any], None] | None,
    ) -> None:
        super().__init__(operation, request, durable)
        self.future = future
        self.orphaned = orphaned


class Writer:
    """The one way to write, batch after batch."""

    def __init__(self, transactor: Transactor, bell: Bell) -> None:
        self._loop = asyncio.get_running_loop()
        self._transactor = transactor
        self._bell = bell
        self._queue: deque[_Waiting] = deque()
        self._closed = False
        self._comes: asyncio.Future[None] | None = None
        self._task = self._loop.create_task(self._work(), name="agentbus writer")

    def write(
        self,
        operation: Operation[R, T],
        request: R,
        durable: bool,
        orphaned: Callable[[T], None] | None = None,
    ) -> Awaitable[T]:
        """Queue a call; await the answer."""
        if self._closed or self._task.done():
            raise BusClosed
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.append(_Waiting(operation, request, durable, future, orphaned))
        self._call()
        return future if orphaned is None else _answered(future, orphaned)

    @property
    def busy(self) -> bool:
        return not self._task.done() and (bool(self._queue) or self._comes is None or self._comes.done())

    @property
    def process(self) -> int:
        return self._transactor.process

    @process.setter
    def process(self, number: int) -> None:
        self._transactor.process = number

    def hurry(self) -> None:
        self._transactor.hurry()

    async def close(self) -> None:
        """Write what waits, then close the connection."""
        self._closed = True
        self._call()
        while not (await asyncio.wait([self._task], timeout=LAST))[0]:
            # The server stands still: what it has not committed is undone with the connection.
            self._transactor.hurry()
            self._transactor.break_off()
        await self._transactor.close()

    def _call(self) -> None:
        if self._comes is not None and not self._comes.done():
            self._comes.set_result(None)

    async def _work(self) -> None:
        """Batch after batch, until the bus is closed and nothing waits any more."""
        batch: deque[_Waiting] = deque()
        try:
            while True:
                if not self._queue:
                    if self._closed:
                        return
                    self._comes = self._loop.create_future()
                    await self._comes
                    # Every task that is ready in this turn of the loop may still join the batch.
                    await asyncio.sleep(0)
                self._take(batch)
                if batch:
                    self._deliver(batch, await self._transactor.run(batch))
        finally:
            # The loop is being torn down: whatever was being written may be written or not.
            for call in (*batch, *self._queue):
                if not call.future.done():
                    call.future.set_exception(OutcomeUnknown(path="the bus", reason="interrupted"))
                    call.future.exception()

    def _take(self, batch: deque[_Waiting]) -> None:
        weight = 0
        while self._queue and len(batch) < MOST_CALLS and weight < MOST_BYTES:
            call = self._queue.popleft()
            # A cancelled caller withdraws its call, as long as nobody has taken it.
            if not call.future.done():
                batch.append(call)
                weight += getattr(call.request, "weight", 0)

    def _deliver(self, batch: deque[_Waiting], bells: Bells) -> None:
        """Ring who waits, here and elsewhere; answer every caller."""
        self._bell.ring(bells.channels, bells.again, told=bells.told)
        while batch:
            call = batch.popleft()
            outcome = call.outcome
            if call.future.done():
                if call.orphaned is not None and not isinstance(outcome, BaseException):
                    try:
                        call.orphaned(outcome)
                    except Exception:
                        log.exception("nobody took the result of %s", call.operation.name)
            elif isinstance(outcome, BaseException):
                call.future.set_exception(outcome)
            else:
                call.future.set_result(outcome)


async def _answered(future: asyncio.Future[T], orphaned: Callable[[T], None]) -> T:
    """Wait for an answer. A caller cancelled after it came, but before it could take it, is an orphan's too."""
    try:
        return await future
    except asyncio.CancelledError:
        if future.done() and not future.cancelled() and future.exception() is None:
            orphaned(future.result())
        raise
