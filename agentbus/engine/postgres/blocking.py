"""The blocking PostgreSQL engine for the command line: an event loop of its own runs only during a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar, cast

from agentbus.core.clock import Clock, Now
from agentbus.engine import process_safety
from agentbus.engine.blocking import WaitingProcess
from agentbus.engine.postgres import errors as driver_errors
from agentbus.engine.postgres.connection import (
    Connection,
    connect,
    open_bus_connection,
    server_queries,
    terminate,
    with_response_timeout,
    writing,
)
from agentbus.engine.postgres.notify import AGAIN, Bell
from agentbus.engine.postgres.readers import Readers
from agentbus.engine.postgres.server import Address, ServerClock
from agentbus.engine.postgres.transaction import TransactionRunner
from agentbus.engine.process_safety import signals_blocked, signals_deferred
from agentbus.errors import AgentBusError, BusClosed, Misuse
from agentbus.operations.processes import enter
from agentbus.operations.protocol import Call, Op, Operation


@contextmanager
def wait_for_wakeups(store: BlockingPostgres, address: Address) -> Iterator[PostgresWaitingProcess]:
    """Register a process with a doorbell for the length of a block."""
    process = PostgresWaitingProcess(store, address)
    try:
        process.enter()
        yield process
    finally:
        with signals_blocked():
            process.leave()


class PostgresWaitingProcess(WaitingProcess):
    """A waiting process that the server notifies."""

    def __init__(self, store: BlockingPostgres, address: Address) -> None:
        super().__init__(store)
        self._server = store
        self._address = address
        self._bell_event = BellEvent()
        self._bell: Bell | None = None

    def enter(self) -> None:
        self._bell = self._server.run(self._open_bell())
        request = self.entry(self._bell.name)
        # An interruption between the two would leave a process that cannot be deregistered.
        with signals_blocked():
            self.entered(self._server.write(enter, request).process)

    def wake(self) -> None:
        self._server.call_soon(self._bell_event.ring_all)

    def sleep(self, seconds: float) -> bool:
        contested = self._server.contested
        return self._server.run(self._rings(min(seconds, AGAIN) if contested else seconds)) or contested

    def close_doorbell(self) -> None:
        if self._bell is not None:
            self._server.run(self._bell.close())

    async def _open_bell(self) -> Bell:
        bell = Bell(self._address, self._bell_event)
        try:
            await bell.open()
        except driver_errors.DRIVER as error:
            raise driver_errors.translate_error(error, self._address) from error
        return bell

    async def _rings(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._bell_event.rung.wait(), max(0.0, seconds))
        except TimeoutError:
            return False
        self._bell_event.rung.clear()
        return True


class BellEvent:
    """Set by any ring: others ring this process only for channels it listens to."""

    def __init__(self) -> None:
        self.rung = asyncio.Event()

    def is_followed(self, channel: str) -> bool:
        return False

    def ring(self, channels: Iterable[str]) -> None:
        self.rung.set()

    def ring_all(self) -> None:
        self.rung.set()


R = TypeVar("R")
T = TypeVar("T")


class BlockingPostgres:
    """A bus on a server, for callers without an event loop. ``engine.blocking`` documents the methods."""

    read_only = False

    def __init__(
        self, address: Address, *, create: bool, durability: str, clock: Clock | None, lock_timeout: float
    ) -> None:
        if _in_a_loop():
            raise Misuse(reason="a blocking bus cannot be used in an event loop: use agentbus.connect()")
        self.clock: Clock = clock or ServerClock()
        self._address = address
        self._lock_timeout = lock_timeout
        self._disk = durability == "disk"
        self._owner = process_safety.Owner()
        self._loop = asyncio.new_event_loop()
        self._runner: TransactionRunner | None = None
        self.contested = False
        """Another transaction held what the last call wanted, and may release it."""
        try:
            connection = self.run(open_bus_connection(address, lock_timeout, self.clock, create=create))
        except BaseException:
            self._loop.close()
            raise
        self._runner = TransactionRunner(address, self.clock, lock_timeout=lock_timeout, connection=connection)
        self._readers = Readers(address, lock_timeout, lender=self._runner)
        self._runner.refused = self._readers.close_idle

    home = None

    @property
    def shown(self) -> str:
        """Return the URL without a password."""
        return self._address.bare

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the loop until this is done. An interruption ends it: nothing continues at the next call."""
        task = self._loop.create_task(work)

        def stop() -> None:
            if not task.done():
                self._loop.stop()

        try:
            while True:
                # From the handler of a signal: the loop may be asleep.
                with signals_deferred(lambda: self._loop.call_soon_threadsafe(stop)):
                    try:
                        return self._loop.run_until_complete(task)
                    except RuntimeError:
                        if task.done():
                            raise
                # A signal stopped it, and the handler returned.
        except BaseException:
            if not task.done():
                if self._runner is not None:
                    self._runner.abort()
                self._end([task])
            raise

    def call_soon(self, action: Callable[[], object]) -> None:
        """Run an action in the loop during the call that is going on, or the next one. Called by another thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action)

    def write(
        self, operation: Operation[R, T], request: R, *, durable: bool | None = None, lock_timeout: float | None = None
    ) -> T:
        runner = self._checked()
        call = Call(operation, request, self._disk and (operation.durable if durable is None else durable))
        bells = self.run(runner.run([call], lock_timeout))
        self.contested = bool(bells.again)
        if bells.channels and not bells.notified:
            with suppress(AgentBusError):
                self.run(self._readers.ring(list(dict.fromkeys(bells.channels)), runner.process))
        if isinstance(call.outcome, BaseException):
            raise call.outcome
        return cast(T, call.outcome)

    def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        self._checked()
        return self.run(self._readers.answer(lambda: question(request, self.clock.now())))

    @contextmanager
    def pause_writes(self) -> Iterator[None]:
        self._checked()
        connection = self.run(self._keeping_still())
        try:
            yield
            # If the connection was lost, so was the lock.
            self.run(self._asked(connection, "server_version"))
        finally:
            terminate(connection)

    async def _keeping_still(self) -> Connection:
        try:
            connection = await connect(self._address, writing(self._lock_timeout))
        except driver_errors.DRIVER as error:
            raise driver_errors.translate_error(error, self._address) from error
        try:
            await self._asked(connection, "server_block_writers")
        except BaseException:
            terminate(connection)
            raise
        return connection

    async def _asked(self, connection: Connection, name: str) -> None:
        try:
            with with_response_timeout(connection, self._address):
                await connection.execute(server_queries()[name])
        except driver_errors.DRIVER as error:
            raise driver_errors.translate_error(error, self._address, waited=self._lock_timeout) from error

    def wait_for_wakeups(self) -> AbstractContextManager[WaitingProcess]:
        self._checked()
        return wait_for_wakeups(self, self._address)

    def set_process(self, process: int) -> None:
        self._checked().process = process

    def owns_file(self, device: int, inode: int) -> bool:
        """Return True if another bus of this process has this file open; this one has none."""
        return process_safety.is_open((device, inode))

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        """Do nothing: a doorbell ends with its connection."""

    def sizes(self) -> tuple[int, int]:
        """Return the bytes of the store; the log is the server's."""
        self._checked()
        ((bytes,),) = self.run(self._readers.fetch("server_size"))
        return bytes, 0

    def lock_wait_ms(self) -> int:
        # Transactions run concurrently.
        return 0

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None and self._owner.is_current:
            self.run(self._readers.close())
            self.run(runner.close())
            self._end(asyncio.all_tasks(self._loop))
            self._loop.close()

    def _end(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        async def ended() -> None:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._loop.run_until_complete(ended())

    def _checked(self) -> TransactionRunner:
        self._owner.check()
        if self._runner is None:
            raise BusClosed
        return self._runner


def _in_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
