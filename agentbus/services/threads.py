"""Work that blocks, on a thread, to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import anyio
import anyio.to_thread

P = ParamSpec("P")
T = TypeVar("T")


async def to_its_end(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run this on a thread. A caller that is cancelled meanwhile hears of it when the thread is through: whatever it
    works with, a file or a generator, is nobody else's until then."""
    task = asyncio.ensure_future(anyio.to_thread.run_sync(lambda: work(*args, **kwargs)))
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        task.exception()
        raise cancelled
    return task.result()
