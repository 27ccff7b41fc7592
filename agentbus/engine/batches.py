"""Calls that wait to be written together: taken into a batch, and answered once it is done. Of both writers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from agentbus.engine.calls import Call
from agentbus.errors import OutcomeUnknown
from agentbus.operations import Operation

T = TypeVar("T")
log = logging.getLogger("agentbus.engine")

MOST_CALLS = 1000
"""Calls in one transaction."""
MOST_BYTES = 4 * 1024 * 1024
"""Payload in one transaction, so that a large message does not hold the others up for long."""


class Waiting(Call):
    """A call whose caller awaits the future. A result that nobody waits for any more goes to ``orphaned``."""

    __slots__ = ("future", "orphaned")

    def __init__(
        self,
        operation: Operation[Any, Any],
        request: Any,
        durable: bool,
        future: asyncio.Future[Any],
        orphaned: Callable[[Any], None] | None,
    ) -> None:
        self.operation = operation
        self.request = request
        self.durable = durable
        self.outcome: Any = None
        self.future = future
        self.orphaned = orphaned


Batch = deque[Waiting]


def take(queue: Batch, batch: Batch) -> None:
    """Move what goes into one transaction from the queue into the batch."""
    weight = 0
    while queue and len(batch) < MOST_CALLS and weight < MOST_BYTES:
        call = queue[0]
        # A cancelled caller withdraws its call, as long as nobody has taken it.
        if not call.future.done():
            batch.append(call)
            weight += getattr(call.request, "weight", 0)
        # Last: whoever is cut off here by a signal handler finds the call in the batch.
        queue.popleft()


def answer(batch: Batch) -> None:
    """Tell every caller what became of its call. May be called again, should something raise in the middle of it."""
    while batch:
        call = batch[0]
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
        batch.popleft()


def cut_off(batch: Batch) -> None:
    """Whatever was being written may be written or not."""
    for call in batch:
        if not call.future.done():
            call.future.set_exception(OutcomeUnknown(path="the bus", reason="interrupted"))
            # Perhaps nobody is left to hear of it.
            call.future.exception()


async def answered(future: asyncio.Future[T], orphaned: Callable[[T], None]) -> T:
    """Wait for an answer. A caller cancelled after it came, but before it could take it, is an orphan's too."""
    try:
        return await future
    except asyncio.CancelledError:
        if future.done() and not future.cancelled() and future.exception() is None:
            orphaned(future.result())
        raise
