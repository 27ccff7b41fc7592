"""Connections that only read: a few, made when they are needed, and used again."""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeAlias, TypeVar, cast

from agentbus.engine.postgres import problems
from agentbus.engine.postgres.address import Address
from agentbus.engine.postgres.connection import Connection, connect, let_go, server_queries
from agentbus.engine.postgres.retries import Retries, pause_of
from agentbus.engine.postgres.standstill import watched
from agentbus.engine.postgres.statements import ask
from agentbus.errors import BusClosed
from agentbus.operations import Op, Query, Rows

log = logging.getLogger("agentbus.engine")

T = TypeVar("T")
Work: TypeAlias = Callable[[Connection], Coroutine[Any, Any, T]]


class Lender(Protocol):
    """Runs reads on a connection that is open for something else."""

    async def lend(self, work: Work[T]) -> T: ...


MOST = 4
IDLE = 10.0
"""Seconds after which connections that were not needed are given back to the server, which has only so many."""
_SETTINGS = {"default_transaction_read_only": "on"}
"""A question that would write, or lock a row against others, is refused."""


class Readers:
    """Answers questions, several at once. First come, first served.

    While the server refuses connections, reads share those that are open; if there is none, they run on the connection
    of ``lender``. So a bus that is open needs no further connection to finish its work.
    """

    def __init__(
        self, address: Address, patience: float, *, standby: bool = False, lender: Lender | None = None
    ) -> None:
        self._address = address
        self._patience = patience
        self._standby = standby
        self._lender = lender
        self._lent = 0
        self._most = MOST
        self._few_until = 0.0
        self._idle: list[Connection] = []
        self._count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._hurried = False
        self._spare = 0
        self._look: asyncio.TimerHandle | None = None
        self._partings: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        return self._lent > 0 or self._count > len(self._idle)

    async def answer(self, question: Callable[[], Op[T]]) -> T:
        """Answer a question of the bus."""
        return await self._do(lambda connection: _drive(question(), connection))

    async def fetch(self, name: str, *parameters: Any) -> Rows:
        """Ask the server about itself."""
        sql = server_queries()[name]

        async def ask_server(connection: Connection) -> Rows:
            return [tuple(row) for row in await connection.fetch(sql, *parameters)]

        return await self._do(ask_server)

    async def ask(self, name: str) -> Rows:
        """Run a query of the bus that takes nothing."""
        return await self._do(lambda connection: ask(connection, Query(name)))

    async def ring(self, channels: Sequence[str], process: int) -> None:
        """Notify whoever listens to these channels: more of them than go with a commit."""
        await self._do(lambda connection: ask(connection, Query("listeners_of", (list(channels), process))))

    async def _do(self, work: Work[T]) -> T:
        """If the connection is lost meanwhile, do it again: reading twice does no harm."""
        try:
            return await self._once(work)
        except Exception as error:
            if not problems.is_lost(error) or self._closed:
                raise self._problem(error) from error
            lost = error
        return await self._patiently(work, lost)

    async def _patiently(self, work: Work[T], lost: Exception) -> T:
        from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

        retries = Retries(self._address, self._patience, lost)

        def enough(state: RetryCallState) -> bool:
            last = state.outcome.exception() if state.outcome is not None else None
            return self._closed or self._hurried or retries.are_over(last)

        retrying = AsyncRetrying(
            retry=retry_if_exception(problems.is_lost),
            stop=enough,
            wait=pause_of,
            reraise=True,
        )
        try:
            return await retrying(self._once, work)
        except Exception as error:
            raise self._problem(error) from error

    def _problem(self, error: Exception) -> Exception:
        if self._closed:
            return BusClosed()
        driver = isinstance(error, problems.DRIVER)
        return problems.translated(error, self._address, waited=self._patience) if driver else error

    async def _once(self, work: Work[T]) -> T:
        try:
            async with self._connection() as connection:
                with watched(connection, self._address):
                    return await work(connection)
        except Exception as error:
            if self._lender is None or not (isinstance(error, _Refused) or problems.is_crowded(error)):
                raise
        return await self._borrow(self._lender, work)

    async def _borrow(self, lender: Lender, work: Work[T]) -> T:
        self._lent += 1
        try:
            return await lender.lend(work)
        finally:
            self._lent -= 1

    def _limit(self) -> int:
        return self._most if asyncio.get_running_loop().time() < self._few_until else MOST

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        loop = asyncio.get_running_loop()
        while not self._idle and self._count >= max(1, self._limit()):
            turn: asyncio.Future[None] = loop.create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._next()
                raise
        if self._closed:
            raise BusClosed
        if self._lender is not None and not self._idle and self._limit() == 0:
            self._next()
            raise _Refused
        connection: Connection | None = self._idle.pop() if self._idle else None
        self._spare = min(self._spare, len(self._idle))
        if connection is None:
            self._count += 1
        sound = False
        try:
            if connection is None or connection.is_closed():
                connection = await connect(self._address, _SETTINGS, standby=self._standby)
            yield connection
            sound = True
        except Exception as error:
            # Whatever the server answered, the connection can go on, unless it was lost.
            sound = not problems.is_lost(error)
            if problems.is_crowded(error):
                self._refused(loop.time())
            raise
        finally:
            if sound and connection is not None and not self._closed and not connection.is_closed():
                self._idle.append(connection)
                self._look_later()
            else:
                # Also after a cancellation: a statement may be on its way.
                let_go(connection)
                self._count -= 1
            self._next()

    def _refused(self, now: float) -> None:
        """Make do with the connections that are open, for a while. Then try again: not all buses at the same time."""
        if now >= self._few_until and self._lender is not None:
            log.warning("the server has no connection left for reading; reads share those that this bus has")
        self._most, self._few_until = self._count - 1, now + IDLE * random.uniform(0.5, 1.5)  # noqa: S311

    def give_back(self) -> None:
        """Close the connections that are idle: the one that writes was refused."""
        idle, self._idle = self._idle, []
        self._count -= len(idle)
        self._most, self._few_until = self._count, asyncio.get_running_loop().time() + IDLE
        for connection in idle:
            let_go(connection)

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _look_later(self) -> None:
        """One connection is kept. How many others are spared all the time until then?"""
        if self._look is None and len(self._idle) > 1:
            self._spare = len(self._idle)
            self._look = asyncio.get_running_loop().call_later(IDLE, self._give_back)

    def _give_back(self) -> None:
        self._look = None
        for connection in self._idle[: max(0, self._spare - 1)]:
            self._idle.remove(connection)
            self._count -= 1
            parting = asyncio.get_running_loop().create_task(_part(connection), name="agentbus reader")
            self._partings.add(parting)
            parting.add_done_callback(self._partings.discard)
        self._look_later()

    def hurry(self) -> None:
        self._hurried = True

    async def close(self) -> None:
        self._closed = True
        while self._waiting:
            self._next()
        if self._look is not None:
            self._look.cancel()
        idle, self._idle = self._idle, []
        for connection in idle:
            await _part(connection)
        await asyncio.gather(*self._partings)


class _Refused(Exception):
    """The server has refused a connection lately, and this bus has none that only reads."""


async def _part(connection: Connection) -> None:
    try:
        await connection.close(timeout=0.5)
    except Exception:
        let_go(connection)


async def _drive(op: Op[T], connection: Connection) -> T:
    try:
        step = next(op)
        while True:
            step = op.send(await ask(connection, cast(Query, step)))
    except StopIteration as stop:
        return cast(T, stop.value)
