"""Work that takes long: beside the event loop where one runs, at once where there is none (the command line)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from agentbus.errors import NoEventLoop

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

T = TypeVar("T")


class Interruption:
    """A request to end work on a thread before its time."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked = False


class Interrupted(Exception):
    """Work on a thread was asked to end. Its caller was cancelled, and is told that instead."""


interruption: ContextVar[Interruption | None] = ContextVar("interruption", default=None)
"""The way to ask the work that runs now to end, if there is one."""


def is_interrupted() -> bool:
    """Return whether the work that runs here shall end."""
    asked = interruption.get()
    return asked is not None and asked.asked


def check_interruption() -> None:
    """Raise Interrupted if the work that runs here shall end. Called between the chunks of long work."""
    if is_interrupted():
        raise Interrupted


async def aside(work: Callable[..., T], *arguments: Any, **options: Any) -> T:
    """Run ``work`` on a thread, so that the loop goes on meanwhile; the options are those of anyio's ``run_sync``."""
    if not has_loop():
        return work(*arguments)
    # Imported only here: the command line does without.
    import anyio.to_thread

    return await anyio.to_thread.run_sync(work, *arguments, **options)


async def breathe() -> None:
    """Let others have their turn, if there are any."""
    if has_loop():
        import asyncio

        await asyncio.sleep(0)


def has_loop() -> bool:
    """Return whether an asyncio event loop runs on this thread."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


def running_loop() -> AbstractEventLoop:
    """Return the asyncio event loop of this thread; raise ``NoEventLoop`` if another library's runs here, or none."""
    import asyncio

    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise NoEventLoop(library=_other_library()) from None


def _other_library() -> str | None:
    """Return the name of the library whose event loop runs here, as far as it announces itself (trio does)."""
    sniffio = sys.modules.get("sniffio")
    if sniffio is None:
        return None
    try:
        return str(sniffio.current_async_library())
    except sniffio.AsyncLibraryNotFoundError:
        return None
