"""The blocking PostgreSQL driver: every call is done when it returns. It has an event loop of its own, which runs only
meanwhile. For the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar, cast

from agentbus.clock import Clock, Now
from agentbus.engine import forking
from agentbus.engine.blocking import Attendance
from agentbus.engine.calls import Call
from agentbus.engine.postgres import problems
from agentbus.engine.postgres.address import Address
from agentbus.engine.postgres.attending import attend
from agentbus.engine.postgres.clock import ServerClock
from agentbus.engine.postgres.connection import Connection, connect, let_go, opened, server_queries, writing
from agentbus.engine.postgres.readers import Readers
from agentbus.engine.postgres.standstill import watched
from agentbus.engine.postgres.transaction import Transactor
from agentbus.engine.signals import postponed
from agentbus.errors import AgentBusError, BusClosed, Misuse
from agentbus.operations import Op, Operation

R = TypeVar("R")
T = TypeVar("T")


class BlockingPostgres:
    """A bus on a server, for callers without an event loop. ``engine.blocking`` says what its methods do."""

    read_only = False

    def __init__(
        self, address: Address, *, create: bool, durability: str, clock: Clock | None, lock_timeout: float
    ) -> None:
        if _in_a_loop():
            raise Misuse(reason="a blocking bus cannot be used in an event loop: use agentbus.connect()")
        self.clock: Clock = clock or ServerClock()
        self._address = address
        self._patience = lock_timeout
        self._disk = durability == "disk"
        self._owner = forking.Owner()
        self._loop = asyncio.new_event_loop()
        self._transactor: Transactor | None = None
        self.contested = False
        """What the last call came for was in the hands of another transaction, which may put it back."""
        try:
            connection = self.run(opened(address, lock_timeout, self.clock, create=create))
        except BaseException:
            self._loop.close()
            raise
        self._transactor = Transactor(address, self.clock, patience=lock_timeout, connection=connection)
        self._readers = Readers(address, lock_timeout, lender=self._transactor)
        self._transactor.refused = self._readers.give_back

    home = None

    @property
    def shown(self) -> str:
        """Its URL, without a password."""
        return self._address.bare

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the loop run until this is done. What interrupts it ends it: nothing goes on at the next call."""
        task = self._loop.create_task(work)

        def stop() -> None:
            if not task.done():
                self._loop.stop()

        try:
            while True:
                # From the handler of a signal: the loop may be asleep.
                with postponed(lambda: self._loop.call_soon_threadsafe(stop)):
                    try:
                        return self._loop.run_until_complete(task)
                    except RuntimeError:
                        if task.done():
                            raise
                # It was stopped by a signal, and whoever handles that has let it go on.
        except BaseException:
            if not task.done():
                if self._transactor is not None:
                    self._transactor.break_off()
                self._end([task])
            raise

    def write(
        self, operation: Operation[R, T], request: R, *, durable: bool | None = None, patience: float | None = None
    ) -> T:
        transactor = self._checked()
        call = Call(operation, request, self._disk and (operation.durable if durable is None else durable))
        bells = self.run(transactor.run([call], patience))
        self.contested = bool(bells.again)
        if bells.channels and not bells.told:
            with suppress(AgentBusError):
                self.run(self._readers.ring(list(dict.fromkeys(bells.channels)), transactor.process))
        if isinstance(call.outcome, BaseException):
            raise call.outcome
        return cast(T, call.outcome)

    def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        self._checked()
        return self.run(self._readers.answer(lambda: question(request, self.clock.now())))

    @contextmanager
    def still(self) -> Iterator[None]:
        self._checked()
        connection = self.run(self._keeping_still())
        try:
            yield
            # Gone with the connection, the lock would have kept nobody from writing.
            self.run(self._asked(connection, "server_version"))
        finally:
            let_go(connection)

    async def _keeping_still(self) -> Connection:
        try:
            connection = await connect(self._address, writing(self._patience))
        except problems.DRIVER as error:
            raise problems.translated(error, self._address) from error
        try:
            await self._asked(connection, "server_keep_still")
        except BaseException:
            let_go(connection)
            raise
        return connection

    async def _asked(self, connection: Connection, name: str) -> None:
        try:
            with watched(connection, self._address):
                await connection.execute(server_queries()[name])
        except problems.DRIVER as error:
            raise problems.translated(error, self._address, waited=self._patience) from error

    def attend(self) -> AbstractContextManager[Attendance]:
        self._checked()
        return attend(self, self._address)

    def entered(self, process: int) -> None:
        self._checked().process = process

    def holds(self, device: int, inode: int) -> bool:
        """No file of this bus is here, but another bus may be open in one."""
        return forking.is_open((device, inode))

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        """A bell is gone with the connection that it hung on."""

    def sizes(self) -> tuple[int, int]:
        """Bytes of the store and of its log, which is the server's."""
        self._checked()
        ((bytes,),) = self.run(self._readers.fetch("server_size"))
        return bytes, 0

    def waited(self) -> int:
        # Transactions run beside each other.
        return 0

    def close(self) -> None:
        transactor, self._transactor = self._transactor, None
        if transactor is not None and self._owner.is_here:
            self.run(self._readers.close())
            self.run(transactor.close())
            self._end(asyncio.all_tasks(self._loop))
            self._loop.close()

    def _end(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        async def ended() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._loop.run_until_complete(ended())

    def _checked(self) -> Transactor:
        self._owner.check()
        if self._transactor is None:
            raise BusClosed
        return self._transactor


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
