"""Letting go on the way out: what must still be written when a block is left by an exception or a cancellation.

It is shielded from the cancellation, but it must not hold up the exit. Where another process holds the lock, the first
that waits in vain is the last that waits for long. What need not be waited for at all is written unheeded.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Awaitable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import anyio

from agentbus.aside import has_loop
from agentbus.engine.interface import Engine

PATIENCE = 0.7
IMPATIENCE = 0.05
_REMEMBERED = 5.0
_TURNS = 5
"""Turns of the event loop until a cancelled task has cancelled the group that it hosts."""


@contextmanager
def parting(engine: Engine) -> Iterator[None]:
    """What is written in the block is given up if it takes too long; then it was withdrawn, or commits by itself."""
    if not has_loop():
        # In a forked child, or under another event loop than asyncio's: the engine refuses at once.
        yield
        return
    recently = time.monotonic() - engine.waited_in_vain < _REMEMBERED
    with anyio.move_on_after(IMPATIENCE if recently else PATIENCE, shield=True) as scope:
        yield
    if scope.cancelled_caught:
        engine.waited_in_vain = time.monotonic()


async def farewell(engine: Engine, writing: Coroutine[Any, Any, None]) -> bool:
    """Write the last words of a block. They are waited for as long as patience lasts, or until the task is cancelled
    once more; after that they are written all the same, as long as the bus is open. Return True if they are written."""
    if not has_loop():
        await writing
        return True
    task = asyncio.ensure_future(writing)
    task.add_done_callback(_take_note)
    with parting(engine):
        await asyncio.shield(task)
    return task.done()


def is_stray(error: BaseException) -> bool:
    """Whether a cancellation is not meant for this task: its code awaited something else that was cancelled."""
    if not isinstance(error, asyncio.CancelledError):
        return False
    task = asyncio.current_task()
    return task is not None and task.cancelling() == 0


def forget_cancellations(task: asyncio.Task[Any] | None, count: int = 0) -> None:
    """Set the number of cancellations that were requested of this task back, after user code that was not cancelled.

    ``asyncio.TaskGroup`` of Python 3.11 and 3.12 leaves one behind when a child fails while the group waits for it. A
    CancelledError that code merely awaits would then look like a cancellation of the task.
    """
    if task is not None and sys.version_info < (3, 13):
        while task.cancelling() > count:
            task.uncancel()


async def is_cancelled_by_group() -> bool:
    """Return whether this task, which runs in a task group, is being cancelled, although the count alone cannot tell.

    A cancellation reaches the task by a scope; or, where the event loop ends, the host of the group as well, which then
    cancels its scope within a few turns of the loop.
    """
    if sys.version_info >= (3, 13):
        return True
    for _ in range(_TURNS):
        if anyio.current_effective_deadline() == -math.inf:
            return True
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            return True
    forget_cancellations(asyncio.current_task())
    return False


def unheeded(writing: Awaitable[Any]) -> None:
    """Let a write happen whose outcome nobody waits for."""
    asyncio.ensure_future(writing).add_done_callback(_take_note)


def _take_note(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
