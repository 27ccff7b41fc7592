"""The PostgreSQL engine: one connection that writes, a few that read, one that rings and is rung."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from agentbus.aside import running_loop
from agentbus.clock import Clock, Now
from agentbus.engine.blocking import BlockingEngine
from agentbus.engine.interface import Progress
from agentbus.engine.looped import LoopEngine
from agentbus.engine.postgres import problems
from agentbus.engine.postgres.address import Address
from agentbus.engine.postgres.admission import admission
from agentbus.engine.postgres.bell import Bell
from agentbus.engine.postgres.blocking import BlockingPostgres
from agentbus.engine.postgres.clock import ServerClock
from agentbus.engine.postgres.connection import opened
from agentbus.engine.postgres.examination import examine, oldest
from agentbus.engine.postgres.readers import Readers
from agentbus.engine.postgres.transaction import Transactor
from agentbus.engine.postgres.writer import Writer
from agentbus.errors import BusClosed, TooManyConnections, UseServerTools
from agentbus.operations import Op
from agentbus.operations.examining import OpenTransaction, Unseen
from agentbus.operations.processes import Entry
from agentbus.records import BackupRecord, Check

R = TypeVar("R")
T = TypeVar("T")


class PostgresEngine(LoopEngine[Writer]):
    """A bus in a schema of a server."""

    def __init__(
        self, address: Address, *, create: bool, durability: str, clock: Clock | None, lock_timeout: float
    ) -> None:
        super().__init__(clock or ServerClock(), address.directory, home=None, durability=durability)
        self._address = address
        self._create = create
        self._patience = lock_timeout
        self._readers: Readers | None = None
        self._bell: Bell | None = None

    async def open(self) -> Entry:
        self._loop = running_loop()
        async with admission(self._address).turn(self._address, self._patience):
            try:
                return await self._open()
            except TooManyConnections:
                # Before anything else of this process tries.
                await self._let_go()
                raise

    async def _open(self) -> Entry:
        connection = await opened(self._address, self._patience, self.clock, create=self._create)
        self._bell = bell = Bell(self._address, self.hub)
        transactor = Transactor(self._address, self.clock, patience=self._patience, connection=connection)
        self._writer = Writer(transactor, bell)
        self._readers = Readers(self._address, self._patience, lender=transactor)
        bell.is_barred = lambda: transactor.is_refused
        transactor.refused = self._give_back
        try:
            await bell.open()
        except problems.DRIVER as error:
            raise problems.translated(error, self._address) from error
        return await self._enter(bell.name)

    def _give_back(self) -> None:
        """The connection that writes was lost, and the server refuses another."""
        if self._readers is not None:
            self._readers.give_back()
        if self._bell is not None:
            self._bell.give_back()

    def _entered(self, entry: Entry) -> None:
        super()._entered(entry)
        if self._bell is not None:
            self._bell.process = entry.process

    @property
    def busy(self) -> bool:
        """Whether something is on its way to the server or back."""
        parts = (self._writer, self._readers, self._bell)
        return any(part is not None and part.busy for part in parts)

    async def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        return await self._reading().answer(lambda: question(request, self.clock.now()))

    async def look(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        return await self._reading().answer(lambda: question(request, self.clock.now()))

    def _reading(self) -> Readers:
        self.check()
        if self._readers is None:
            raise BusClosed
        return self._readers

    async def backup(self, path: Path | None, keep: int, progress: Progress | None = None) -> BackupRecord:
        self.check()
        raise UseServerTools(path=self._address.shown, command=self._address.dump(path))

    async def examine(self) -> list[Check | Unseen]:
        return await examine(self._reading(), self._address)

    async def inspect(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        return await self.read(question, request)

    async def sizes(self) -> tuple[int, int]:
        ((bytes,),) = await self._reading().fetch("server_size")
        return bytes, 0

    def free_space(self) -> int | None:
        return None

    async def oldest_transaction(self) -> OpenTransaction | None:
        return await oldest(self._reading())

    def waited(self) -> int:
        # Transactions run beside each other.
        return 0

    async def checkpoint(self) -> None:
        """The server looks after its own log."""

    def blocking(self) -> BlockingEngine:
        # The server's time as that connection hears of it: the clock of this one belongs to the loop's thread.
        clock = None if isinstance(self.clock, ServerClock) else self.clock
        durability = "disk" if self._disk else "process"
        store = BlockingPostgres(
            self._address, create=False, durability=durability, clock=clock, lock_timeout=self._patience
        )
        store.entered(self.process)
        return store

    def hurry(self) -> None:
        if self._writer is not None:
            self._writer.hurry()
        if self._readers is not None:
            self._readers.hurry()

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        """A bell is gone with the connection that it hung on."""

    async def close(self, *, left: bool = True) -> None:
        if self._owner.is_here:
            await self._let_go()

    async def _let_go(self) -> None:
        writer, self._writer = self._writer, None
        readers, self._readers = self._readers, None
        bell, self._bell = self._bell, None
        try:
            if writer is not None:
                await writer.close()
        finally:
            await asyncio.gather(*(part.close() for part in (readers, bell) if part is not None))
            # Whoever waits for a message hears that there will be none.
            self.hub.ring_all()
