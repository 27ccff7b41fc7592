"""Server connections that outlive a test: a new one costs the server and the driver more than most tests do."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias
from weakref import WeakKeyDictionary

import asyncpg
from anyio import pytest_plugin

from agentbus.engine.postgres import connection as product
from agentbus.engine.postgres.connection import Connection
from agentbus.engine.postgres.server import Address

_Key: TypeAlias = tuple[Address, frozenset[tuple[str, str]], bool]
_MAX_IDLE = 24
_PREPARE = "PREPARE "


class Connections:
    """Keep the connections that buses close on one event loop, with their prepared statements, for the next bus on the
    same schema. Those that are terminated, broken or in a transaction are not kept."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._connected = product._connected
        self._idle: dict[Connection, None] = {}
        """Least recently used first."""

    @contextmanager
    def reused(self) -> Iterator[None]:
        """Let the buses that are opened in this block use them."""
        product._connected = self._take
        try:
            yield
        finally:
            product._connected = self._connected

    def end_tasks(self) -> None:
        """Cancel the tasks that a test left on the loop, as the end of a loop of its own would. The task that runs the
        tests is replaced if a test was cancelled in it, or left a cancellation pending."""
        runner: Any = pytest_plugin._current_runner
        if (task := runner._runner_task) is not None and (task.done() or task.cancelling()):
            runner._runner_task = None
        left = asyncio.all_tasks(self._loop) - {runner._runner_task}
        for task in left:
            task.cancel()
        if left:
            _, pending = self._loop.run_until_complete(asyncio.wait(left, timeout=30))
            assert not pending, f"tasks that ignore their cancellation: {pending}"

    async def close(self) -> None:
        while self._idle:
            await asyncpg.Connection.close(self._idle.popitem()[0])

    async def _take(self, address: Address, wanted: Mapping[str, str], *, standby: bool) -> Connection:
        if asyncio.get_running_loop() is not self._loop:
            return await self._connected(address, wanted, standby=standby)
        key = (address, frozenset(wanted.items()), standby)
        for connection in reversed(self._idle):
            if _kept[connection].key == key:
                del self._idle[connection]
                if not connection.is_closed():
                    return connection
                break
        connection = await self._connected(address, wanted, standby=standby)
        connection.__class__ = ReusableConnection
        _kept[connection] = _Kept(self, key)
        return connection

    async def release(self, connection: Connection) -> bool:
        """Reset a connection and keep it; return False if it must be closed."""
        if connection in self._idle:
            return True
        if connection.is_in_transaction() or asyncio.get_running_loop() is not self._loop:
            return False
        try:
            await connection.reset(timeout=5)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
            return False
        if connection.is_closed():
            return False
        self._idle[connection] = None
        if len(self._idle) > _MAX_IDLE:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            oldest.terminate()
        return True


class _Kept:
    """State of a connection that can be used again."""

    def __init__(self, owner: Connections, key: _Key) -> None:
        self.owner = owner
        self.key = key
        self.prepared: set[str] = set()
        """The statements that a bus prepared by name: the next bus does so again."""


_kept: WeakKeyDictionary[Connection, _Kept] = WeakKeyDictionary()


if TYPE_CHECKING:
    _Base = asyncpg.Connection[asyncpg.Record]
else:
    _Base = asyncpg.Connection


class ReusableConnection(_Base):
    """A connection that is kept when it is closed."""

    __slots__ = ()

    async def close(self, *, timeout: float | None = None) -> None:
        if self.is_closed() or not await _kept[self].owner.release(self):
            await super().close(timeout=timeout)

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        if not query.startswith(_PREPARE):
            return await super().execute(query, *args, timeout=timeout)
        prepared = _kept[self].prepared
        if query not in prepared:
            await super().execute(query, *args, timeout=timeout)
            prepared.add(query)
        return "PREPARE"
