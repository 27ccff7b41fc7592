"""Group commit: the queue of calls that both asynchronous writers commit in batches, and the engine around it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from agentbus.core import process_info
from agentbus.core.clock import Clock
from agentbus.core.threads import running_loop
from agentbus.core.validation import HEARTBEAT_INTERVAL
from agentbus.engine import process_safety
from agentbus.engine.waiters import Waiters
from agentbus.errors import BusClosed, NotPicklable, OutcomeUnknown, WrongLoop
from agentbus.operations.processes import EnterRequest, Entry, enter
from agentbus.operations.protocol import Call, Operation

R = TypeVar("R")
T = TypeVar("T")
log = logging.getLogger("agentbus.engine")

MAX_BATCH_CALLS = 1000
"""Maximum number of calls in one transaction."""
MAX_BATCH_BYTES = 4 * 1024 * 1024
"""Payload in one transaction beyond which no call is added, so that large messages do not delay the others."""


class PendingCall(Call, eq=False, kw_only=True):
    """A call whose caller awaits the future. If the caller was cancelled, the result goes to ``on_abandoned``."""

    future: asyncio.Future[Any]
    on_abandoned: Callable[[Any], None] | None


Batch = deque[PendingCall]


def take_batch(queue: Batch, batch: Batch) -> None:
    """Move the calls of one transaction from the queue into the batch."""
    size = 0
    while queue and len(batch) < MAX_BATCH_CALLS and size < MAX_BATCH_BYTES:
        call = queue[0]
        # The call of a cancelled caller is withdrawn.
        if not call.future.done():
            batch.append(call)
            size += getattr(call.request, "data_size", 0)
        # Last: if a signal handler raises here, the call is in the batch.
        queue.popleft()


def resolve(batch: Batch) -> None:
    """Deliver every outcome to its caller. May be called again if something raised half-way."""
    while batch:
        call = batch[0]
        outcome = call.outcome
        if call.future.done():
            # Not if the caller got it before something raised.
            is_abandoned = call.future.cancelled() or call.future.exception() is not None
            if call.on_abandoned is not None and is_abandoned and not isinstance(outcome, BaseException):
                try:
                    call.on_abandoned(outcome)
                except Exception:
                    log.exception("on_abandoned callback of %s failed", call.operation.name)
        elif isinstance(outcome, BaseException):
            call.future.set_exception(outcome)
        else:
            call.future.set_result(outcome)
        batch.popleft()


def fail_with_unknown_outcome(batch: Batch) -> None:
    """Fail calls that were interrupted while they ran: they may be committed or not."""
    for call in batch:
        if not call.future.done():
            call.future.set_exception(OutcomeUnknown(path="the bus", reason="interrupted"))
            # Retrieved here, in case the caller is gone.
            call.future.exception()


async def await_result(future: asyncio.Future[T], on_abandoned: Callable[[T], None]) -> T:
    """Wait for the result. It is abandoned also if the caller is cancelled between its arrival and the next step."""
    try:
        return await future
    except asyncio.CancelledError:
        if future.done() and not future.cancelled() and future.exception() is None:
            on_abandoned(future.result())
        raise


class GroupWriter(Protocol):
    """Commits many calls in one transaction."""

    process: int

    def write(
        self, operation: Operation[R, T], request: R, durable: bool, on_abandoned: Callable[[T], None] | None = None
    ) -> Awaitable[T]:
        """Queue a call; await its result."""


W = TypeVar("W", bound=GroupWriter)


class AsyncEngine(Generic[W]):
    """An engine for the event loop and the process that opened it. ``engine.interface`` describes the methods."""

    def __init__(self, clock: Clock, directory: Path, *, home: str | None, durability: str) -> None:
        self.clock = clock
        self.waiters = Waiters(clock)
        self.process = 0
        self.beat_every = HEARTBEAT_INTERVAL
        self.directory = directory
        self.home = home
        self.location = home or ""
        self.last_lock_timeout = float("-inf")
        self._disk = durability == "disk"
        self._owner = process_safety.Owner()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer: W | None = None

    async def _enter(self, bell: str | None) -> Entry:
        """Register this process and its doorbell."""
        pid = self._owner.pid
        every = max(1, round(self.beat_every * 1000))
        request = EnterRequest(process_info.host_key(), pid, process_info.start_time(pid), bell, every=every)
        entry = await self.write(enter, request, on_abandoned=self._entered)
        self._entered(entry)
        return entry

    def _entered(self, entry: Entry) -> None:
        self.process = entry.process
        if self._writer is not None:
            self._writer.process = entry.process

    def write(
        self,
        operation: Operation[R, T],
        request: R,
        *,
        durable: bool | None = None,
        on_abandoned: Callable[[T], None] | None = None,
    ) -> Awaitable[T]:
        self.check()
        if self._writer is None:
            raise BusClosed
        if durable is None:
            durable = operation.durable
        return self._writer.write(operation, request, durable and self._disk, on_abandoned)

    def owns_file(self, device: int, inode: int) -> bool:
        # Also on PostgreSQL: this process may have another bus open in a file.
        return process_safety.is_open((device, inode))

    def check(self) -> None:
        if process_safety.generation != self._owner.generation:
            self._owner.check()
        if asyncio._get_running_loop() is not self._loop:
            running_loop()
            raise WrongLoop if self._loop is not None else BusClosed

    def __reduce__(self) -> NoReturn:
        # Every object of a bus refers to its engine: this refuses all of them.
        raise NotPicklable
