"""Read-only connections, opened on demand and reused; several queries merged into one round trip."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import msgspec

from agentbus.engine.postgres import errors as driver_errors
from agentbus.engine.postgres.connection import (
    Connection,
    Retries,
    connect,
    pause_of,
    server_queries,
    terminate,
    with_response_timeout,
)
from agentbus.engine.postgres.server import Address
from agentbus.engine.postgres.statements import ask, statements
from agentbus.errors import BusClosed
from agentbus.operations.protocol import Op, Query, Rows

log = logging.getLogger("agentbus.engine")

T = TypeVar("T")
Work: TypeAlias = Callable[[Connection], Coroutine[Any, Any, T]]


class Lender(Protocol):
    """Runs reads on a connection that is open for another purpose."""

    async def lend(self, work: Work[T]) -> T: ...


MAX_CONNECTIONS = 4
IDLE = 10.0
"""Seconds after which unused connections are closed."""
_SETTINGS = {"default_transaction_read_only": "on"}
"""The server refuses a query that would write or lock a row."""


class Readers:
    """Run reads concurrently, first come, first served.

    While the server refuses connections, reads share the open ones; if there is none, they run on the connection of
    ``lender``. So an open bus needs no further connection to finish its work.
    """

    def __init__(
        self, address: Address, lock_timeout: float, *, standby: bool = False, lender: Lender | None = None
    ) -> None:
        self._address = address
        self._lock_timeout = lock_timeout
        self._standby = standby
        self._lender = lender
        self._lent = 0
        self._max_connections = MAX_CONNECTIONS
        self._limited_until = 0.0
        self._idle: list[Connection] = []
        self._count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._closed = False
        self._stopping = False
        self._spare = 0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def busy(self) -> bool:
        return self._lent > 0 or self._count > len(self._idle)

    async def answer(self, question: Callable[[], Op[T]]) -> T:
        """Run a read of the bus."""
        return await self._do(lambda connection: _drive(question(), connection))

    async def fetch(self, name: str, *parameters: Any) -> Rows:
        """Run a query about the server itself."""
        sql = server_queries()[name]

        async def ask_server(connection: Connection) -> Rows:
            return [tuple(row) for row in await connection.fetch(sql, *parameters)]

        return await self._do(ask_server)

    async def ask(self, name: str) -> Rows:
        """Run a query of the bus without parameters."""
        return await self._do(lambda connection: ask(connection, Query(name)))

    async def ring(self, channels: Sequence[str], process: int) -> None:
        """Notify the listeners of channels, more than fit into a commit."""
        await self._do(lambda connection: ask(connection, Query("listeners_of", (list(channels), process))))

    async def _do(self, work: Work[T]) -> T:
        """Run a read, and repeat it if the connection is lost: reading twice is harmless."""
        try:
            return await self._once(work)
        except Exception as error:
            if not driver_errors.is_lost(error) or self._closed:
                raise self._error_for_caller(error) from error
            lost = error
        return await self._retry(work, lost)

    async def _retry(self, work: Work[T], lost: Exception) -> T:
        from tenacity import AsyncRetrying, RetryCallState, retry_if_exception

        retries = Retries(self._address, self._lock_timeout, lost)

        def is_over(state: RetryCallState) -> bool:
            last = state.outcome.exception() if state.outcome is not None else None
            return self._closed or self._stopping or retries.are_over(last)

        retrying = AsyncRetrying(
            retry=retry_if_exception(driver_errors.is_lost),
            stop=is_over,
            wait=pause_of,
            reraise=True,
        )
        try:
            return await retrying(self._once, work)
        except Exception as error:
            raise self._error_for_caller(error) from error

    def _error_for_caller(self, error: Exception) -> Exception:
        if self._closed:
            return BusClosed()
        driver = isinstance(error, driver_errors.DRIVER)
        return driver_errors.translate_error(error, self._address, waited=self._lock_timeout) if driver else error

    async def _once(self, work: Work[T]) -> T:
        try:
            async with self._connection() as connection:
                with with_response_timeout(connection, self._address):
                    return await work(connection)
        except Exception as error:
            if self._lender is None or not (isinstance(error, _Refused) or driver_errors.is_crowded(error)):
                raise
        return await self._borrow(self._lender, work)

    async def _borrow(self, lender: Lender, work: Work[T]) -> T:
        self._lent += 1
        try:
            return await lender.lend(work)
        finally:
            self._lent -= 1

    def _limit(self) -> int:
        return self._max_connections if asyncio.get_running_loop().time() < self._limited_until else MAX_CONNECTIONS

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
            # Any answer of the server leaves the connection usable, unless it was lost.
            sound = not driver_errors.is_lost(error)
            if driver_errors.is_crowded(error):
                self._refused(loop.time())
            raise
        finally:
            if sound and connection is not None and not self._closed and not connection.is_closed():
                self._idle.append(connection)
                self._schedule_close_idle()
            else:
                # Also after a cancellation: a statement may be in flight.
                terminate(connection)
                self._count -= 1
            self._next()

    def _refused(self, now: float) -> None:
        """Use only the open connections for a while. The delay is random, so that not all buses retry at once."""
        if now >= self._limited_until and self._lender is not None:
            log.warning("the server has no connection left for reading; reads share the open connections")
        self._max_connections, self._limited_until = self._count - 1, now + IDLE * random.uniform(0.5, 1.5)  # noqa: S311

    def close_idle(self) -> None:
        """Close idle connections: the one that writes was refused."""
        idle, self._idle = self._idle, []
        self._count -= len(idle)
        self._max_connections, self._limited_until = self._count, asyncio.get_running_loop().time() + IDLE
        for connection in idle:
            terminate(connection)

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _schedule_close_idle(self) -> None:
        """Schedule the closing of connections that stay idle until then; one stays open."""
        if self._idle_timer is None and len(self._idle) > 1:
            self._spare = len(self._idle)
            self._idle_timer = asyncio.get_running_loop().call_later(IDLE, self._close_idle)

    def _close_idle(self) -> None:
        self._idle_timer = None
        for connection in self._idle[: max(0, self._spare - 1)]:
            self._idle.remove(connection)
            self._count -= 1
            closing = asyncio.get_running_loop().create_task(_disconnect(connection), name="agentbus reader")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
        self._schedule_close_idle()

    def stop_waiting(self) -> None:
        self._stopping = True

    async def close(self) -> None:
        self._closed = True
        while self._waiting:
            self._next()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        idle, self._idle = self._idle, []
        for connection in idle:
            await _disconnect(connection)
        await asyncio.gather(*self._closing)


class _Refused(Exception):
    """The server refused a connection recently, and this bus has no read-only one."""


async def _disconnect(connection: Connection) -> None:
    try:
        await connection.close(timeout=0.5)
    except Exception:
        terminate(connection)


async def _drive(op: Op[T], connection: Connection) -> T:
    try:
        step = next(op)
        while True:
            step = op.send(await ask(connection, cast(Query, step)))
    except StopIteration as stop:
        return cast(T, stop.value)


_parameter = re.compile(r"\$(\d+)")


class Merged(msgspec.Struct, frozen=True):
    """Several queries as one statement, and the columns of each in a row."""

    sql: str
    columns: tuple[slice, ...]


_merged: dict[tuple[str, ...], Merged] = {}
"""Keyed by the names of the queries."""


async def ask_several(connection: Connection, queries: Sequence[Query]) -> list[Rows]:
    """Run queries and return the rows of each: in one statement, except those that lock first."""
    answers: list[Rows] = [[] for _ in queries]
    together: list[int] = []
    for index, query in enumerate(queries):
        if len(statements()[query.name]) > 1:
            answers[index] = await ask(connection, query)
        else:
            together.append(index)
    if together:
        names = tuple(queries[index].name for index in together)
        merged = _merged.get(names) or await _merge(connection, names)
        parameters = [value for index in together for value in queries[index].parameters]
        for row in await connection.fetch(merged.sql, *parameters):
            number = row[0]
            answers[together[number]].append(row[merged.columns[number]])
    return answers


async def _merge(connection: Connection, names: tuple[str, ...]) -> Merged:
    """Build the merged statement. A row has the number of its query, the columns of that query, and NULL for the
    others. The column types are looked up once."""
    queries = server_queries()
    questions: list[str] = []
    kinds: list[list[str]] = []
    width = 0
    for number, name in enumerate(names):
        (statement,) = statements()[name]
        prepared = await connection.prepare(statement.sql)
        kinds.append([attribute.type.name for attribute in prepared.get_attributes()])
        columns = ", ".join(f"c{index}" for index in range(len(kinds[-1])))
        sql = _shifted(statement.sql, width)
        questions.append(queries["server_question"].format(number=number, columns=columns, sql=sql))
        width += statement.width
    answers: list[str] = []
    slices: list[slice] = []
    start = 1
    for number, own in enumerate(kinds):
        values = [
            f"c{index}" if other == number else f"CAST(NULL AS {kind})"
            for other, columns_of in enumerate(kinds)
            for index, kind in enumerate(columns_of)
        ]
        answers.append(queries["server_answer"].format(number=number, values=", ".join(values)))
        slices.append(slice(start, start + len(own)))
        start += len(own)
    sql = queries["server_several"].format(questions=", ".join(questions), answers=" UNION ALL ".join(answers))
    merged = _merged[names] = Merged(sql, tuple(slices))
    return merged


def _shifted(sql: str, width: int) -> str:
    """Return the SQL with its parameters numbered after those of the previous queries."""
    return _parameter.sub(lambda match: f"${int(match[1]) + width}", sql)
