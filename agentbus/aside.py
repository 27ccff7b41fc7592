"""Work that takes long: beside the event loop where one runs, at once where there is none (the command line)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


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
    """Whether an event loop runs on this thread."""
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None
