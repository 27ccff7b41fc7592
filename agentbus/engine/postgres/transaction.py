"""Driving operations in PostgreSQL transactions: many calls in one commit, neighbours never noticing each other.

A transaction holds the bus's lock from its beginning to its commit: shared, if all its operations may run beside
others; alone otherwise. So only what runs beside others needs locks of its own, and those are in the queries.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeAlias, TypeVar

from agentbus.clock import Clock, Now
from agentbus.engine.calls import Call, grouped
from agentbus.engine.postgres import problems
from agentbus.engine.postgres.address import Address
from agentbus.engine.postgres.clock import ServerClock
from agentbus.engine.postgres.connection import Connection, connect, let_go, lock_timeout, server_queries, writing
from agentbus.engine.postgres.directory import Directory, Planned
from agentbus.engine.postgres.merging import ask_several
from agentbus.engine.postgres.retries import Retries, pause_of
from agentbus.engine.postgres.scripts import Scripts
from agentbus.engine.postgres.standstill import watched
from agentbus.engine.postgres.statements import ask, write_each, write_numbered
from agentbus.errors import AgentBusError, BusClosed, OutcomeUnknown, StoreError
from agentbus.operations import Again, Each, Numbered, Op, Query, Rows, Several, Wake

log = logging.getLogger("agentbus.engine")

T = TypeVar("T")
Questions: TypeAlias = Callable[[Connection, Sequence[Query]], Awaitable[list[Rows]]]
"""How several questions are asked."""


class Bells:
    """Channels to be rung once a transaction is committed, and those to be rung here again a little later. ``told``:
    the other processes have been rung already."""

    __slots__ = ("again", "channels", "told")

    def __init__(self) -> None:
        self.channels: list[str] = []
        self.again: list[str] = []
        self.told = False

    def add(self, others: Bells) -> None:
        self.channels += others.channels
        self.again += others.again


class Transactor:
    """Commits batches of calls on one connection."""

    def __init__(self, address: Address, clock: Clock, *, patience: float, connection: Connection | None) -> None:
        self._address = address
        self._clock = clock
        self._patience = patience
        self._limit: float | None = None
        self.process = 0
        self.hint: Callable[[Sequence[str]], None] | None = None
        """Told before a commit that takes time who will be rung after it."""
        self.refused: Callable[[], None] | None = None
        """Called when the server refuses the connection: the bus then gives back the others that it has."""
        self.is_refused = False
        self._connection = connection
        self._turn = asyncio.Lock()
        self._lent: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._scripts: Scripts | None = None
        self._directory = Directory()
        self._doubted: Planned | None = None
        self._hurried = False
        queries = server_queries()
        self._beside, self._alone = queries["server_lock_beside"], queries["server_lock_alone"]
        self._unlock = queries["server_unlock"]

    async def run(self, calls: Sequence[Call], patience: float | None = None) -> Bells:
        """Commit the calls and note each one's outcome; the bells to ring. ``patience`` replaces that of the bus: it is
        the server that ends the wait for a lock, because a COMMIT that is cancelled may have been carried out."""
        async with self._turn:
            self._limit = patience
            return await self._run(calls)

    @property
    def _waits(self) -> float:
        """Seconds that the present calls may wait for others."""
        return self._patience if self._limit is None else self._limit

    async def _run(self, calls: Sequence[Call]) -> Bells:
        begun = time.perf_counter()
        self._doubted = None
        try:
            try:
                bells = await self._attempt(calls)
            except (_Lost, _Conflict) as error:
                bells = await self._patiently(calls, error)
        except (_Lost, _Conflict) as error:
            return self._failed(calls, problems.translated(error.reason, self._address, waited=self._waits))
        except Exception as error:
            let_go(self._connection)
            return self._failed(calls, error)
        if log.isEnabledFor(logging.DEBUG):
            names = ", ".join(sorted({call.operation.name for call in calls}))
            log.debug("%d calls (%s) in %.2f ms", len(calls), names, (time.perf_counter() - begun) * 1000)
        return bells

    async def lend(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """Read on this connection, between two transactions; first come, first served. Cancelling the caller does not
        cancel the statement: that would cost the connection. Raises what the driver does."""
        task = asyncio.ensure_future(self._read(work))
        self._lent.add(task)
        task.add_done_callback(self._returned)
        return await asyncio.shield(task)

    async def _read(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        async with self._turn:
            if self._closed:
                raise BusClosed
            connection = await self._connected()
            try:
                with watched(connection, self._address):
                    return await work(connection)
            except BaseException as error:
                if problems.is_lost(error) or not isinstance(error, Exception):
                    let_go(connection)
                raise

    def _returned(self, task: asyncio.Task[Any]) -> None:
        self._lent.discard(task)
        if not task.cancelled():
            task.exception()

    def hurry(self) -> None:
        """Wait for the server no longer."""
        self._hurried = True

    async def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=0.5)
            except problems.DRIVER:
                let_go(connection)

    def break_off(self) -> None:
        """Whoever waited for a batch was interrupted: what was not committed is undone with the connection."""
        let_go(self._connection)

    async def _patiently(self, calls: Sequence[Call], error: _Lost) -> Bells:
        """Nothing was written (or one message, perhaps): the connection was lost, or another transaction was in the
        way. Try for a while."""
        # Imported only here, on the slow path.
        from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

        retries = Retries(self._address, self._waits, error.reason)

        def enough(state: RetryCallState) -> bool:
            last = state.outcome.exception() if state.outcome is not None else None
            return self._hurried or retries.are_over(last.reason if isinstance(last, _Lost) else last)

        retrying = AsyncRetrying(
            retry=retry_if_exception_type((_Lost, _Conflict)),
            stop=enough,
            wait=pause_of,
            reraise=True,
        )
        return await retrying(self._attempt, calls)

    async def _attempt(self, calls: Sequence[Call]) -> Bells:
        try:
            connection = await self._connected()
            with watched(connection, self._address):
                try:
                    bells = await self._by_itself(connection, calls[0]) if len(calls) == 1 else None
                    return bells or await self._together(connection, calls)
                except _Undone:
                    return await self._one_by_one(connection, calls)
        except problems.DRIVER as error:
            if problems.is_lost(error):
                let_go(self._connection)
                raise _Lost(error) from error
            if problems.is_conflict(error):
                raise _Conflict(error) from error
            raise

    async def _connected(self) -> Connection:
        """Return the connection, or another if it was lost. Raises what the driver does."""
        if self._connection is None or self._connection.is_closed():
            try:
                self._connection = await connect(self._address, writing(self._patience))
            except Exception as error:
                self.is_refused = problems.is_crowded(error)
                if self.is_refused and self.refused is not None:
                    # Writing comes first: buses that hold connections and wait for more would wait for each other.
                    self.refused()
                raise
            self.is_refused = False
            # Another server may be there by now, whose tables have counted otherwise.
            self._directory.forget()
            if isinstance(self._clock, ServerClock):
                self._clock.forget()
        return self._connection

    async def _by_itself(self, connection: Connection, call: Call) -> Bells | None:
        """One statement instead of a transaction, if it is that kind of call. None if not: nothing was written."""
        if self._doubted is not None:
            return await self._settled(connection, call, self._doubted)
        clock = self._clock
        if not call.operation.single or not call.durable or (isinstance(clock, ServerClock) and not clock.is_fresh):
            return None
        if self._limit is not None:
            # Only a transaction has a limit of its own.
            return None
        if (planned := self._directory.plan(call, clock.now())) is None:
            return None
        if self.hint is not None:
            self.hint(planned.channels)
        try:
            number = await planned.write(connection)
        except problems.DRIVER as error:
            if problems.is_lost(error):
                self._doubted = planned
                raise
            if problems.is_lock_timeout(error):
                raise
            await connection.execute(self._unlock)
            number = []
        if not number:
            self._directory.forget()
            return None
        return await self._written(connection, call, planned, number[0][0])

    async def _settled(self, connection: Connection, call: Call, doubted: Planned) -> Bells | None:
        """The answer to the one statement was lost. None if it was not carried out, and will not be."""
        await connection.execute(f"BEGIN; {self._alone}")
        number, certain = await doubted.look(connection)
        await connection.execute("COMMIT")
        self._directory.forget()
        if number is None and not certain:
            return self._failed([call], StoreError(path=self._address.shown, reason="messages were removed meanwhile"))
        self._doubted = None
        return None if number is None else await self._written(connection, call, doubted, number)

    async def _written(self, connection: Connection, call: Call, planned: Planned, number: int) -> Bells:
        bells = Bells()
        bells.channels += planned.channels
        call.outcome = planned.end(number)
        self._directory.numbered(number)
        bells.told = await self._ring(connection, planned.channels)
        return bells

    async def _ring(self, connection: Connection, channels: Sequence[str]) -> bool:
        """Ring the other processes; whether that was possible: if not, the bell does it."""
        try:
            await ask(connection, Query("listeners_of", (list(channels), self.process)))
        except problems.DRIVER:
            let_go(connection)
            return False
        return True

    async def _together(self, connection: Connection, calls: Sequence[Call]) -> Bells:
        """All calls in one transaction, those of one operation as one list. Optimistic: no savepoints."""
        bells = Bells()
        last: list[str] = []
        # What asks after it has written may be undone, and its answers with it: only what asks first is remembered.
        several = self._directory.ask if len(calls) == 1 and calls[0].operation.single else ask_several
        now = await self._begin(connection, calls)
        try:
            for operation, group in grouped(calls):
                op = operation.run([call.request for call in group], now)
                results = await self._drive(connection, op, bells, last, several)
                for call, outcome in zip(group, results, strict=True):
                    call.outcome = outcome
            return await self._commit(connection, calls, bells, last)
        except Exception as error:
            await self._rollback(connection, error)
            if len(calls) > 1:
                raise _Undone from error
            calls[0].outcome = self._problem(error)
            return Bells()

    async def _one_by_one(self, connection: Connection, calls: Sequence[Call]) -> Bells:
        """Each call behind a savepoint, so that one that fails takes nothing of its neighbours with it."""
        bells = Bells()
        now = await self._begin(connection, calls)
        for call in calls:
            rung = Bells()
            try:
                await connection.execute("SAVEPOINT call")
                (call.outcome,) = await self._drive(connection, call.operation.run([call.request], now), rung)
                await connection.execute("RELEASE call")
                bells.add(rung)
            except Exception as error:
                if problems.is_lost(error) or problems.is_conflict(error):
                    await self._rollback(connection, error)
                    raise
                call.outcome = self._problem(error)
                await connection.execute(f"ROLLBACK TO call; RELEASE call; {self._unlock}")
        return await self._commit(connection, calls, bells, [])

    async def _begin(self, connection: Connection, calls: Sequence[Call]) -> Now:
        # Only promises are waited for: a crash that undoes a claim or a beat merely repeats work.
        begin = "BEGIN" if any(call.durable for call in calls) else "BEGIN; SET LOCAL synchronous_commit = off"
        if self._limit is not None:
            begin += f"; SET LOCAL lock_timeout = {lock_timeout(self._limit):d}"
        lock = self._beside if all(call.beside for call in calls) else self._alone
        clock = self._clock
        try:
            if not isinstance(clock, ServerClock) or clock.is_fresh:
                # One round trip for both; what the second says is not heard.
                await connection.execute(f"{begin}; {lock}")
                return clock.now()
            await connection.execute(begin)
            ((_, moment),) = await connection.fetch(lock)
            return clock.told(moment)
        except problems.DRIVER as error:
            # The lock was not to be had: that is so for every call, so that none needs to be tried by itself.
            await self._rollback(connection, error)
            raise

    async def _commit(self, connection: Connection, calls: Sequence[Call], bells: Bells, last: list[str]) -> Bells:
        """Write what is left, commit, and ring the other processes: one round trip, of which the ringing is not in the
        transaction any more."""
        scripts = self._scripts_of(connection)
        ring = await scripts.ringing(list(dict.fromkeys(bells.channels)), self.process) if bells.channels else None
        script = "; ".join([*last, "COMMIT", *([ring] if ring else [])])
        try:
            await connection.execute(script)
        except problems.DRIVER as error:
            lost = problems.is_lost(error)
            if not lost and (connection.is_in_transaction() or ring is None or problems.is_conflict(error)):
                # Something before the COMMIT was refused, or the COMMIT itself.
                raise
            # The server may have committed before the connection went; or it was only the ringing that it refused.
            self._unknown(calls, error)
            if lost:
                # If it was committed, the server has rung too.
                let_go(connection)
            else:
                # Who is not rung by the server is rung by the bell.
                return bells
        bells.told = ring is not None
        return bells

    def _unknown(self, calls: Sequence[Call], error: Exception) -> None:
        reason = problems.translated(error, self._address).facts.get("reason", "the connection was lost")
        for call in calls:
            if not isinstance(call.outcome, BaseException):
                call.outcome = OutcomeUnknown(path=self._address.shown, reason=reason)

    async def _rollback(self, connection: Connection, error: Exception) -> None:
        """Undo a transaction that failed. One that was lost needs none, and whoever drives it must hear of that."""
        if problems.is_lost(error):
            raise error
        await connection.execute(f"ROLLBACK; {self._unlock}")
        if problems.is_conflict(error):
            raise error

    async def _drive(
        self,
        connection: Connection,
        op: Op[Any],
        bells: Bells,
        last: list[str] | None = None,
        several: Questions = ask_several,
    ) -> Any:
        """With ``last``, what gives nothing back waits there, until something is asked for or all is committed."""
        try:
            step = next(op)
            while True:
                rows: Rows = []
                if type(step) is Wake:
                    bells.channels.extend(step.channels)
                elif type(step) is Again:
                    bells.again.extend(step.channels)
                else:
                    rows = await self._do(connection, step, last, several)
                step = op.send(rows)
        except StopIteration as stop:
            return stop.value

    async def _do(self, connection: Connection, step: Any, last: list[str] | None, several: Questions) -> Any:
        if last is not None and isinstance(step, Query | Each):
            script = await self._scripts_of(connection).deferred(step)
            if script is not None:
                last += [script] if script else []
                return []
        if last:
            await connection.execute("; ".join(last))
            last.clear()
        match step:
            case Query():
                return await ask(connection, step)
            case Several():
                return await several(connection, step.queries)
            case Numbered():
                ((first,),) = rows = await write_numbered(connection, step)
                self._directory.numbered(first + len(step.rows) - 1)
                return rows
        await write_each(connection, step)
        return []

    def _scripts_of(self, connection: Connection) -> Scripts:
        if self._scripts is None or self._scripts.connection is not connection:
            self._scripts = Scripts(connection)
        return self._scripts

    def _failed(self, calls: Sequence[Call], error: Exception) -> Bells:
        """Whatever it is, every caller must hear of it."""
        if self._doubted is not None:
            bells = Bells()
            bells.channels += self._doubted.channels
            self._unknown(calls, error)
            return bells
        for call in calls:
            call.outcome = self._problem(error)
        return Bells()

    def _problem(self, error: Exception) -> Exception:
        """What a caller is told. Our own errors are made anew for each, because each is raised somewhere else."""
        if isinstance(error, AgentBusError):
            return type(error)(**error.facts)
        if isinstance(error, problems.DRIVER):
            return problems.translated(error, self._address, waited=self._waits)
        return error


class _Lost(Exception):
    """The connection is gone. Nothing was written, but for one message perhaps that was sent alone."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Conflict(_Lost):
    """Another transaction was in the way; nothing was written."""


class _Undone(Exception):
    """The common transaction was rolled back; each call must be tried by itself."""
