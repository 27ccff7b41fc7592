"""Group commit: what callers ask for while a batch is being written goes into the next, one transaction for all of it.

No caller ever holds an open transaction. Cancelling one only detaches it: still queued, its call is withdrawn; already
taken, it commits, and ``orphaned`` hears of the result that nobody waits for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agentbus.engine.batches import Batch, Waiting, answer, answered, cut_off, take
from agentbus.engine.postgres.bell import Bell
from agentbus.engine.postgres.transaction import Bells, Transactor
from agentbus.errors import BusClosed
from agentbus.operations import Operation

R = TypeVar("R")
T = TypeVar("T")

LAST = 10.0
"""Seconds for what still waits when a bus is closed."""


class Writer:
    """The one way to write, batch after batch."""

    def __init__(self, transactor: Transactor, bell: Bell) -> None:
        self._loop = asyncio.get_running_loop()
        self._transactor = transactor
        self._bell = bell
        transactor.hint = bell.hint
        self._queue: Batch = deque()
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
        self._queue.append(Waiting(operation, request, durable, future, orphaned))
        self._call()
        return future if orphaned is None else answered(future, orphaned)

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
        batch: Batch = deque()
        try:
            while True:
                if not self._queue:
                    if self._closed:
                        return
                    self._comes = self._loop.create_future()
                    await self._comes
                    # Every task that is ready in this turn of the loop may still join the batch.
                    await asyncio.sleep(0)
                take(self._queue, batch)
                if batch:
                    self._deliver(batch, await self._transactor.run(batch))
        finally:
            # The loop is being torn down: whatever was being written may be written or not.
            cut_off(batch)
            cut_off(self._queue)

    def _deliver(self, batch: Batch, bells: Bells) -> None:
        """Ring who waits, here and elsewhere; answer every caller."""
        self._bell.ring(bells.channels, bells.again, told=bells.told)
        answer(batch)
