"""Reads that concurrent requests share: an event wakes every open dashboard, and all of them ask the same."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress


class SharedReads:
    """Runs equal reads once. A request shares only a read that starts after it arrived, so that it sees every commit
    before it: while one read runs, all that arrive wait for the next."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[bytes]] = {}
        self._next: dict[Hashable, asyncio.Task[bytes]] = {}

    async def read(self, key: Hashable, run: Callable[[], Awaitable[bytes]]) -> bytes:
        """Return the content that ``run`` returns, for this request or for another with the same key."""
        running = self._running.get(key)
        if running is None:
            task = self._running[key] = asyncio.create_task(self._run(key, None, run), name="agentbus read")
        elif key in self._next:
            task = self._next[key]
        else:
            task = self._next[key] = asyncio.create_task(self._run(key, running, run), name="agentbus read")
        # A client that leaves must not cancel the read of the others.
        return await asyncio.shield(task)

    async def _run(
        self, key: Hashable, before: asyncio.Task[bytes] | None, run: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        if before is not None:
            await asyncio.wait({before})
            self._running[key] = self._next.pop(key)
        try:
            return await run()
        finally:
            if self._running.get(key) is asyncio.current_task():
                del self._running[key]

    async def close(self) -> None:
        """Cancel what still runs."""
        for task in [*self._running.values(), *self._next.values()]:
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
