"""Long work: on a thread where an event loop runs, inline where there is none (the command line)."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from agentbus.errors import NoEventLoop

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")


class Interruption:
    """A request to end work on a thread early."""

    __slots__ = ("requested",)

    def __init__(self) -> None:
        self.requested = False


class Interrupted(Exception):
    """Work on a thread ended early. The cancelled caller receives its CancelledError instead."""


interruption: ContextVar[Interruption | None] = ContextVar("interruption", default=None)
"""The interruption request of the work that runs in this context, if any."""


def is_interrupted() -> bool:
    """Return True if the work in this context should end."""
    current = interruption.get()
    return current is not None and current.requested


def check_interruption() -> None:
    """Raise Interrupted if the work in this context should end. Call it between the chunks of long work."""
    if is_interrupted():
        raise Interrupted


async def run_in_thread(work: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Run ``work`` on a thread if a loop runs here. The options are those of anyio's ``run_sync``."""
    if not has_loop():
        return work(*arguments)
    # Imported late: the command line runs without anyio.
    import anyio.to_thread

    return await anyio.to_thread.run_sync(work, *arguments, **options)


async def yield_to_loop() -> None:
    """Let other tasks of the event loop run, if there is one."""
    if has_loop():
        import asyncio

        await asyncio.sleep(0)


async def sleep(seconds: float) -> None:
    """Sleep; on an event loop, other tasks continue to run."""
    if has_loop():
        import asyncio

        await asyncio.sleep(seconds)
    else:
        time.sleep(seconds)  # noqa: ASYNC251 - there is no loop


def has_loop() -> bool:
    """Return True if an asyncio event loop runs on this thread."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def running_loop() -> AbstractEventLoop:
    """Return the asyncio event loop of this thread; raise NoEventLoop if there is none, or another library's."""
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise NoEventLoop(library=_other_library()) from None


def _other_library() -> str | None:
    """Return the library whose event loop runs here, if sniffio knows it (trio)."""
    sniffio = sys.modules.get("sniffio")
    if sniffio is None:
        return None
    try:
        return str(sniffio.current_async_library())
    except sniffio.AsyncLibraryNotFoundError:
        return None
