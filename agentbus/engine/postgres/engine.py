"""The PostgreSQL engine: one connection that writes, a few that read, one for notifications."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from agentbus.core.clock import Clock, Now
from agentbus.core.measurements import writes
from agentbus.core.threads import running_loop
from agentbus.engine.blocking import BlockingEngine
from agentbus.engine.group_commit import AsyncEngine
from agentbus.engine.interface import Progress
from agentbus.engine.postgres import errors as driver_errors
from agentbus.engine.postgres.blocking import BlockingPostgres
from agentbus.engine.postgres.connection import admission, open_bus_connection
from agentbus.engine.postgres.health import examine, oldest
from agentbus.engine.postgres.notify import Bell
from agentbus.engine.postgres.readers import Readers
from agentbus.engine.postgres.server import Address, ServerClock
from agentbus.engine.postgres.transaction import TransactionRunner
from agentbus.engine.postgres.writer import Writer
from agentbus.errors import BusClosed, TooManyConnections, UseServerTools
from agentbus.operations.health import OpenTransaction, SkippedCheck
from agentbus.operations.processes import Entry
from agentbus.operations.protocol import Op
from agentbus.records import BackupRecord, Check

R = TypeVar("R")
T = TypeVar("T")


class PostgresEngine(AsyncEngine[Writer]):
    """Run a bus in a schema of a PostgreSQL server."""

    def __init__(
        self, address: Address, *, create: bool, durability: str, clock: Clock | None, lock_timeout: float
    ) -> None:
        super().__init__(clock or ServerClock(), address.directory, home=None, durability=durability)
        self.location = address.location
        self._address = address
        self._create = create
        self._lock_timeout = lock_timeout
        self._readers: Readers | None = None
        self._bell: Bell | None = None

    async def open(self) -> Entry:
        self._loop = running_loop()
        async with admission(self._address).turn(self._address, self._lock_timeout):
            try:
                return await self._open()
            except TooManyConnections:
                # Free what was opened before another bus of this process tries.
                await self._release_all()
                raise

    async def _open(self) -> Entry:
        connection = await open_bus_connection(self._address, self._lock_timeout, self.clock, create=self._create)
        self._bell = bell = Bell(self._address, self.waiters)
        runner = TransactionRunner(
            self._address, self.clock, lock_timeout=self._lock_timeout, connection=connection, writes=writes
        )
        self._writer = Writer(runner, bell)
        self._readers = Readers(self._address, self._lock_timeout, lender=runner)
        bell.is_refused = lambda: runner.is_refused
        runner.is_heard = bell.is_heard
        runner.refused = self._close_idle
        try:
            await bell.open()
        except driver_errors.DRIVER as error:
            raise driver_errors.translate_error(error, self._address) from error
        return await self._enter(bell.name)

    def _close_idle(self) -> None:
        """Free idle connections: the one that writes was lost, and the server refuses another."""
        if self._readers is not None:
            self._readers.close_idle()
        if self._bell is not None:
            self._bell.close_idle()

    def _entered(self, entry: Entry) -> None:
        super()._entered(entry)
        if self._bell is not None:
            self._bell.process = entry.process

    @property
    def busy(self) -> bool:
        """Return True while a statement is in flight."""
        parts = (self._writer, self._readers, self._bell)
        return any(part is not None and part.busy for part in parts)

    async def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        return await self._reading().answer(lambda: question(request, self.clock.now()))

    async def read_inline(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        return await self._reading().answer(lambda: question(request, self.clock.now()))

    def _reading(self) -> Readers:
        self.check()
        if self._readers is None:
            raise BusClosed
        return self._readers

    async def backup(self, path: Path | None, keep: int, progress: Progress | None = None) -> BackupRecord:
        self.check()
        raise UseServerTools(path=self._address.shown, command=self._address.dump(path))

    async def check_health(self) -> list[Check | SkippedCheck]:
        return await examine(self._reading(), self._address)

    async def read_isolated(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        return await self.read(question, request)

    async def sizes(self) -> tuple[int, int]:
        ((bytes,),) = await self._reading().fetch("server_size")
        return bytes, 0

    def free_space(self) -> int | None:
        return None

    async def oldest_transaction(self) -> OpenTransaction | None:
        return await oldest(self._reading())

    def lock_wait_ms(self) -> int:
        # Transactions run concurrently.
        return 0

    async def checkpoint(self) -> None:
        """Do nothing: the server maintains its own log."""

    def blocking(self) -> BlockingEngine:
        # The clock of this engine belongs to the loop's thread; the other connection learns the server's time itself.
        clock = None if isinstance(self.clock, ServerClock) else self.clock
        durability = "disk" if self._disk else "process"
        store = BlockingPostgres(
            self._address, create=False, durability=durability, clock=clock, lock_timeout=self._lock_timeout
        )
        store.set_process(self.process)
        return store

    def stop_waiting(self) -> None:
        if self._writer is not None:
            self._writer.stop_waiting()
        if self._readers is not None:
            self._readers.stop_waiting()

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        """Do nothing: a doorbell ends with its connection."""

    async def close(self, *, left: bool = True) -> None:
        if self._owner.is_current:
            await self._release_all()

    async def _release_all(self) -> None:
        writer, self._writer = self._writer, None
        readers, self._readers = self._readers, None
        bell, self._bell = self._bell, None
        try:
            if writer is not None:
                await writer.close()
        finally:
            await asyncio.gather(*(part.close() for part in (readers, bell) if part is not None))
            # Receivers that still wait must see that the bus is closed.
            self.waiters.ring_all()
