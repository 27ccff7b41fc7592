"""The asynchronous SQLite engine: one writer, one reader, one doorbell."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TypeVar, cast

from agentbus.clock import Clock, Now
from agentbus.codec import plain
from agentbus.engine import presence
from agentbus.engine.hub import Hub
from agentbus.engine.queries import load
from agentbus.engine.sqlite import bells, forking, home
from agentbus.engine.sqlite.connection import open_reader, open_writer, translated
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.transaction import Transactor
from agentbus.engine.sqlite.writer import DaemonConnection, Writer, WriterConnection
from agentbus.errors import BusClosed, BusForked, WrongLoop
from agentbus.operations import Op, Operation, Query, Rows
from agentbus.operations.processes import EnterRequest, Entry, enter

R = TypeVar("R")
T = TypeVar("T")


class SQLiteEngine:
    """A bus in one file."""

    def __init__(self, place: home.Home, *, durability: str, clock: Clock, lock_timeout: float) -> None:
        self.clock = clock
        self.hub = Hub(clock)
        self.process = 0
        self._home = place
        self._disk = durability == "disk"
        self._lock_timeout = lock_timeout
        self._queries = load("sqlite")
        self._pid = os.getpid()
        self._generation = forking.generation()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer: Writer | None = None
        self._reader: DaemonConnection | None = None
        self._bell: bells.Bell | None = None

    async def open(self) -> Entry:
        self._loop = asyncio.get_running_loop()
        home.prepare(self._home)
        directory = home.prepare_bells(self._home)
        lock = FileLock(self._home.lock, self._lock_timeout)
        connection = WriterConnection(lambda: open_writer(self._home, lock, self._lock_timeout))
        try:
            await connection
        except BaseException:
            lock.hurry()
            connection.join()
            lock.close()
            raise
        transactor = Transactor(self._home, connection._conn, lock, self.clock, disk=self._disk)
        self._writer = Writer(connection, transactor, self.hub)
        try:
            self._reader = DaemonConnection(lambda: open_reader(self._home, self._lock_timeout))
            await self._reader
            self._bell = bells.Bell(directory)
            self._loop.add_reader(self._bell.socket, self._rung)
            me = EnterRequest(presence.host_key(), self._pid, presence.start_time(self._pid), self._bell.path)
            entry = await self.write(enter, me)
        except BaseException:
            self.hurry()
            await self.close()
            raise
        self.process = transactor.process = entry.process
        # The bells of processes that still count as live are evidence; they go once those are struck off.
        bells.sweep(directory, keep={neighbour.bell for neighbour in entry.neighbours})
        return entry

    def write(
        self,
        operation: Operation[R, T],
        request: R,
        *,
        durable: bool | None = None,
        orphaned: Callable[[T], None] | None = None,
    ) -> Awaitable[T]:
        self._check()
        if self._writer is None:
            raise BusClosed
        return self._writer.write(operation, request, operation.durable if durable is None else durable, orphaned)

    async def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        self._check()
        if self._reader is None:
            raise BusClosed
        op = question(request, self.clock.now())
        try:
            step = next(op)
            while True:
                query = cast(Query, step)
                parameters = [plain(item) if type(item) is list else item for item in query.parameters]
                rows = cast(Rows, await self._reader.execute_fetchall(self._queries[query.name], parameters))
                step = op.send(rows)
        except StopIteration as stop:
            return cast(T, stop.value)
        except sqlite3.Error as error:
            raise translated(error, self._home) from error

    async def sizes(self) -> tuple[int, int]:
        return _size(str(self._home.database)), _size(str(self._home.log))

    def hurry(self) -> None:
        if self._writer is not None:
            self._writer.hurry()

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        for bell in bells:
            if bell is not None:
                with suppress(OSError):
                    os.unlink(bell)

    async def close(self) -> None:
        if forking.generation() != self._generation:
            return
        bell, self._bell = self._bell, None
        reader, self._reader = self._reader, None
        writer, self._writer = self._writer, None
        if bell is not None and self._loop is not None:
            self._loop.remove_reader(bell.socket)
            bell.close()
        try:
            if reader is not None:
                await reader.close()
        finally:
            if writer is not None:
                await writer.close()
            # Whoever waits for a message hears that there will be none.
            self.hub.ring_all()

    def _check(self) -> None:
        if forking.generation() != self._generation:
            raise BusForked(parent=self._pid)
        if asyncio.get_running_loop() is not self._loop:
            raise WrongLoop if self._loop is not None else BusClosed

    def _rung(self) -> None:
        if self._bell is None:
            return
        channels = self._bell.rung()
        if bells.ANY in channels:
            self.hub.ring_all()
        else:
            self.hub.ring(channels)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
