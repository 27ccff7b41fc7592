"""Group commit: calls that arrive while a batch is being written form the next batch, in one transaction.

No caller ever holds an open transaction. Cancelling a caller only detaches it: a queued call is withdrawn; a call that
is being written commits, and ``on_abandoned`` receives the result.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from agentbus.engine.group_commit import (
    Batch,
    PendingCall,
    await_result,
    fail_with_unknown_outcome,
    resolve,
    take_batch,
)
from agentbus.engine.postgres.notify import Bell
from agentbus.engine.postgres.transaction import Bells, TransactionRunner
from agentbus.errors import BusClosed
from agentbus.operations.protocol import Operation

R = TypeVar("R")
T = TypeVar("T")

CLOSE_TIMEOUT = 10.0
"""Seconds that queued calls get when a bus is closed."""


class Writer:
    """Write batches, one after the other."""

    def __init__(self, runner: TransactionRunner, bell: Bell) -> None:
        self._loop = asyncio.get_running_loop()
        self._runner = runner
        self._bell = bell
        runner.hint = bell.hint
        self._queue: Batch = deque()
        self._closed = False
        self._wakeup: asyncio.Future[None] | None = None
        self._task = self._loop.create_task(self._work(), name="agentbus writer")

    def write(
        self,
        operation: Operation[R, T],
        request: R,
        durable: bool,
        on_abandoned: Callable[[T], None] | None = None,
    ) -> Awaitable[T]:
        """Queue a call and return an awaitable of its result."""
        if self._closed or self._task.done():
            raise BusClosed
        future: asyncio.Future[T] = self._loop.create_future()
        self._queue.append(PendingCall(operation, request, durable, future=future, on_abandoned=on_abandoned))
        self._wake()
        return future if on_abandoned is None else await_result(future, on_abandoned)

    @property
    def busy(self) -> bool:
        return not self._task.done() and (bool(self._queue) or self._wakeup is None or self._wakeup.done())

    @property
    def process(self) -> int:
        return self._runner.process

    @process.setter
    def process(self, number: int) -> None:
        self._runner.process = number

    def stop_waiting(self) -> None:
        self._runner.stop_waiting()

    async def close(self) -> None:
        """Write the queued calls, then close the connection."""
        self._closed = True
        self._wake()
        while not (await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT))[0]:
            # The server is unresponsive: what it has not committed is rolled back with the connection.
            self._runner.stop_waiting()
            self._runner.abort()
        await self._runner.close()

    def _wake(self) -> None:
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    async def _work(self) -> None:
        """Write batches until the bus is closed and the queue is empty."""
        batch: Batch = deque()
        try:
            while True:
                if not self._queue:
                    if self._closed:
                        return
                    self._wakeup = self._loop.create_future()
                    await self._wakeup
                    # Every task that is ready in this turn of the loop may still join the batch.
                    await asyncio.sleep(0)
                take_batch(self._queue, batch)
                if batch:
                    self._deliver(batch, await self._runner.run(batch))
        finally:
            # The loop is being torn down: the outcome of the batch in flight is unknown.
            fail_with_unknown_outcome(batch)
            fail_with_unknown_outcome(self._queue)

    def _deliver(self, batch: Batch, bells: Bells) -> None:
        """Wake waiters here and in other processes, then resolve every caller."""
        self._bell.ring(bells.channels, bells.again, notified=bells.notified)
        resolve(batch)
