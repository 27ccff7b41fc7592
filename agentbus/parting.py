"""Letting go on the way out: what must still be written when a block is left by an exception or a cancellation.

It is shielded from the cancellation, but it must not hold up the exit. Where another process holds the lock, the first
that waits in vain is the last that waits for long. What need not be waited for at all is written unheeded.
"""

from __future__ import annotations

import asyncio
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


def unheeded(writing: Awaitable[Any]) -> None:
    """Let a write happen whose outcome nobody waits for."""
    asyncio.ensure_future(writing).add_done_callback(_take_note)


def _take_note(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()
