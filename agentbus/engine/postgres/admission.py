"""Opening buses of one process on one server: a few at a time, and one at a time while the server refuses connections.

A bus needs two connections to open. Many that open at once would each take one and be refused the other. And each try
costs the server a process and this event loop a turn: hundreds of them a second leave no time for the buses that are
open, which then hold the lock of the bus for longer than others wait for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakKeyDictionary

from agentbus.engine.postgres import problems
from agentbus.engine.postgres.address import Address
from agentbus.engine.postgres.retries import pause
from agentbus.errors import LockTimeout, TooManyConnections

MOST = 4
"""Buses that open at the same time."""
_PATIENCE = 30.0
"""Seconds to wait in line, at least."""
_FIRST = 0.1
_LONGEST = 0.75
"""Seconds after a refusal until the next bus may try, at most: twice as long after each."""
_OUTDATED = 5.0
"""Seconds after which a refusal says nothing any more about the server."""


class Admission:
    """The line of those that open a bus on a server. First come, first served."""

    def __init__(self) -> None:
        self._inside = 0
        self._line: deque[asyncio.Future[None]] = deque()
        self._refusals = 0
        self._last: tuple[float, TooManyConnections] | None = None
        self._opened = 0.0

    @asynccontextmanager
    async def turn(self, address: Address, patience: float) -> AsyncIterator[None]:
        """Wait until it is this one's turn to open: until none has opened for ``patience`` seconds. While the server
        refuses connections, wait about a second; then the error is that of the last one that was refused."""
        await self._wait(address, max(patience, _PATIENCE))
        try:
            yield
        except TooManyConnections as error:
            self._refused(error)
            raise
        except BaseException:
            self._leave()
            raise
        self._refusals, self._last, self._opened = 0, None, asyncio.get_running_loop().time()
        self._leave()

    async def _wait(self, address: Address, patience: float) -> None:
        if not self._line and self._inside < self._most:
            self._inside += 1
            return
        loop = asyncio.get_running_loop()
        begun = loop.time()
        turn: asyncio.Future[None] = loop.create_future()
        self._line.append(turn)
        try:
            while not turn.done():
                await asyncio.wait([turn], timeout=problems.CROWDED)
                # More may open at a time once the last refusal is outdated.
                self._next()
                if not turn.done() and (refusal := self._refusal) is not None:
                    raise TooManyConnections(**refusal.facts)
                if not turn.done() and loop.time() - max(begun, self._opened) > patience:
                    raise LockTimeout(path=address.shown, pid="of this process", waited=patience)
        except BaseException:
            if turn.done():
                self._leave()
            else:
                self._line.remove(turn)
            raise

    @property
    def _refusal(self) -> TooManyConnections | None:
        """The last refusal, unless it is outdated."""
        if self._last is not None and asyncio.get_running_loop().time() - self._last[0] > _OUTDATED:
            self._refusals, self._last = 0, None
        return None if self._last is None else self._last[1]

    @property
    def _most(self) -> int:
        return MOST if self._refusal is None else 1

    def _refused(self, error: TooManyConnections) -> None:
        """Keep the turn for a while: whatever was held is given back by then."""
        loop = asyncio.get_running_loop()
        self._refusals, self._last = self._refusals + 1, (loop.time(), error)
        loop.call_later(pause(self._refusals, _FIRST, _LONGEST), self._leave)

    def _leave(self) -> None:
        self._inside -= 1
        self._next()

    def _next(self) -> None:
        while self._line and self._inside < self._most:
            self._inside += 1
            self._line.popleft().set_result(None)


_admissions: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Admission]] = WeakKeyDictionary()


def admission(address: Address) -> Admission:
    """Return the line of this event loop for a server and a user of it."""
    servers = _admissions.setdefault(asyncio.get_running_loop(), {})
    return servers.setdefault(address.dsn, Admission())
