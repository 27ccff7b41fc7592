"""A server that stands still: it takes what it is sent and answers nothing, as if its machine were frozen.

Whoever has waited for an answer for long knocks once more, with another connection. If nobody opens, the server counts
as gone, and the first connection is given up. Otherwise the answer merely takes its time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from agentbus.engine.postgres import problems
from agentbus.engine.postgres.address import Address
from agentbus.engine.postgres.connection import Connection, connect, let_go
from agentbus.errors import AgentBusError

LONG = 10.0
"""Seconds without an answer after which it is asked whether anybody is there."""


@contextmanager
def watched(connection: Connection, address: Address) -> Iterator[None]:
    """While something is asked over this connection."""
    watch = _Watch(connection, address)
    try:
        yield
    finally:
        watch.end()


class _Watch:
    def __init__(self, connection: Connection, address: Address) -> None:
        self._connection = connection
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._knocking: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(LONG, self._knock)

    def end(self) -> None:
        self._timer.cancel()
        if self._knocking is not None:
            self._knocking.cancel()

    def _knock(self) -> None:
        self._knocking = self._loop.create_task(self._ask(), name="agentbus watch")

    async def _ask(self) -> None:
        try:
            let_go(await connect(self._address))
        except (asyncpg.PostgresError, AgentBusError):
            # It says no, but it says something.
            pass
        except problems.DRIVER:
            let_go(self._connection)
            return
        self._timer = self._loop.call_later(LONG, self._knock)
