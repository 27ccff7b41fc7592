"""Run operations in PostgreSQL transactions: many calls in one commit, isolated from each other.

A transaction holds the lock of the bus from its start to its commit: shared, if all its operations may run
concurrently; exclusive otherwise. So only concurrent operations need locks of their own, and those are in the queries.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from agentbus.core.clock import Clock, Now
from agentbus.engine.postgres import errors as driver_errors
from agentbus.engine.postgres.connection import (
    Connection,
    Retries,
    connect,
    lock_timeout_ms,
    pause_of,
    server_queries,
    terminate,
    with_response_timeout,
    writing,
)
from agentbus.engine.postgres.pipeline import Scripts
from agentbus.engine.postgres.readers import ask_several
from agentbus.engine.postgres.server import Address, ServerClock
from agentbus.engine.postgres.single_statement import LookupCache, Planned
from agentbus.engine.postgres.statements import ask, write_each, write_numbered
from agentbus.errors import AgentBusError, BusClosed, OutcomeUnknown, StoreError
from agentbus.operations.protocol import (
    Announce,
    Call,
    ExecuteMany,
    Gather,
    InsertNumbered,
    Op,
    Query,
    Rows,
    Wake,
    WakeLater,
    group_by_operation,
)

if TYPE_CHECKING:
    from agentbus.core.measurements import Writes

log = logging.getLogger("agentbus.engine")

T = TypeVar("T")
Questions: TypeAlias = Callable[[Connection, Sequence[Query]], Awaitable[list[Rows]]]
"""Runs several queries at once."""


class Bells:
    """Channels to ring after a commit, and those to ring here once more shortly after. ``notified``: other processes
    have been notified already."""

    __slots__ = ("again", "channels", "notified")

    def __init__(self) -> None:
        self.channels: list[str] = []
        self.again: list[str] = []
        self.notified = False

    def add(self, others: Bells) -> None:
        self.channels += others.channels
        self.again += others.again


def _always() -> bool:
    return True


class TransactionRunner:
    """Commit batches of calls on one connection. ``writes`` counts them; a short command has none."""

    def __init__(
        self,
        address: Address,
        clock: Clock,
        *,
        lock_timeout: float,
        connection: Connection | None,
        writes: Writes | None = None,
    ) -> None:
        self._address = address
        self._clock = clock
        self._lock_timeout = lock_timeout
        self._writes = writes
        self._limit: float | None = None
        self.is_heard: Callable[[], bool] = _always
        """Return True if a process may listen to ``LIVE``."""
        self.process = 0
        self.hint: Callable[[Sequence[str]], None] | None = None
        """Called before a slow commit with the channels that will be rung."""
        self.refused: Callable[[], None] | None = None
        """Called when the server refuses the connection: the bus then closes its idle ones."""
        self.is_refused = False
        self._connection = connection
        self._turn = asyncio.Lock()
        self._lent: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._scripts: Scripts | None = None
        self._cache = LookupCache()
        self._doubted: Planned | None = None
        self._stopping = False
        queries = server_queries()
        self._shared, self._alone = queries["server_lock_concurrent"], queries["server_lock_alone"]
        self._unlock = queries["server_unlock"]

    async def run(self, calls: Sequence[Call], lock_timeout: float | None = None) -> Bells:
        """Commit the calls, set their outcomes, and return the channels to ring. ``lock_timeout`` overrides the lock
        timeout of the bus. The server enforces it, because a cancelled COMMIT may have been carried out."""
        async with self._turn:
            self._limit = lock_timeout
            return await self._run(calls)

    @property
    def _effective_timeout(self) -> float:
        """Return the lock timeout of the present calls."""
        return self._lock_timeout if self._limit is None else self._limit

    async def _run(self, calls: Sequence[Call]) -> Bells:
        started = time.perf_counter()
        self._doubted = None
        try:
            try:
                bells = await self._attempt(calls)
            except (_Lost, _Conflict) as error:
                bells = await self._retry(calls, error)
        except (_Lost, _Conflict) as error:
            return self._failed(
                calls, driver_errors.translate_error(error.reason, self._address, waited=self._effective_timeout)
            )
        except Exception as error:
            terminate(self._connection)
            return self._failed(calls, error)
        if log.isEnabledFor(logging.DEBUG):
            names = ", ".join(sorted({call.operation.name for call in calls}))
            log.debug("%d calls (%s) in %.2f ms", len(calls), names, (time.perf_counter() - started) * 1000)
        return bells

    async def lend(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """Read on this connection between two transactions, first come, first served. Cancelling the caller does not
        cancel the statement, which would cost the connection. Raises errors of the driver."""
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
                with with_response_timeout(connection, self._address):
                    return await work(connection)
            except BaseException as error:
                if driver_errors.is_lost(error) or not isinstance(error, Exception):
                    terminate(connection)
                raise

    def _returned(self, task: asyncio.Task[Any]) -> None:
        self._lent.discard(task)
        if not task.cancelled():
            task.exception()

    def stop_waiting(self) -> None:
        """Stop retrying."""
        self._stopping = True

    async def close(self) -> None:
        self._closed = True
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=0.5)
            except driver_errors.DRIVER:
                terminate(connection)

    def abort(self) -> None:
        """Close the connection: the caller was interrupted, and what is not committed is rolled back."""
        terminate(self._connection)

    async def _retry(self, calls: Sequence[Call], error: _Lost) -> Bells:
        """Retry for a bounded time after a lost connection or a conflict. Nothing was written, except possibly one
        message that was sent alone."""
        # Imported on the slow path only.
        from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

        retries = Retries(self._address, self._effective_timeout, error.reason)

        def is_over(state: RetryCallState) -> bool:
            last = state.outcome.exception() if state.outcome is not None else None
            return self._stopping or retries.are_over(last.reason if isinstance(last, _Lost) else last)

        retrying = AsyncRetrying(
            retry=retry_if_exception_type((_Lost, _Conflict)),
            stop=is_over,
            wait=pause_of,
            reraise=True,
        )
        return await retrying(self._attempt, calls)

    async def _attempt(self, calls: Sequence[Call]) -> Bells:
        try:
            connection = await self._connected()
            with with_response_timeout(connection, self._address):
                try:
                    bells = await self._run_single_statement(connection, calls[0]) if len(calls) == 1 else None
                    return bells or await self._run_batch(connection, calls)
                except _RolledBack:
                    if self._writes is not None:
                        self._writes.replays += 1
                    return await self._run_with_savepoints(connection, calls)
        except driver_errors.DRIVER as error:
            if driver_errors.is_lost(error):
                terminate(self._connection)
                raise _Lost(error) from error
            if driver_errors.is_conflict(error):
                raise _Conflict(error) from error
            raise

    async def _connected(self) -> Connection:
        """Return the connection, or a new one if it was lost. Raises errors of the driver."""
        if self._connection is None or self._connection.is_closed():
            try:
                self._connection = await connect(self._address, writing(self._lock_timeout))
            except Exception as error:
                self.is_refused = driver_errors.is_crowded(error)
                if self.is_refused and self.refused is not None:
                    # Writing comes first: buses that hold connections and wait for more would deadlock.
                    self.refused()
                raise
            self.is_refused = False
            # After a failover the counters of the tables may differ.
            self._cache.forget()
            if isinstance(self._clock, ServerClock):
                self._clock.forget()
        return self._connection

    async def _run_single_statement(self, connection: Connection, call: Call) -> Bells | None:
        """Run the call as one statement instead of a transaction. None if that is not possible; nothing is written
        then."""
        if self._doubted is not None:
            return await self._settle_doubt(connection, call, self._doubted)
        clock = self._clock
        if self._limit is not None or (isinstance(clock, ServerClock) and not clock.is_fresh):
            # Only a transaction can have its own lock timeout, or read the time.
            return None
        if self.hint is None and not call.operation.single_insert:
            # A short command: its lookups are not cached yet.
            return None
        if (planned := await self._cache.plan(connection, call, clock.now())) is None:
            return None
        if self.hint is not None and planned.channels:
            self.hint(planned.channels)
        start = time.perf_counter()
        rows = await self._write(connection, planned)
        if not rows and planned.is_cached:
            # The directory has changed: look up and try again, which takes fewer round trips than a transaction.
            if (planned := await self._cache.plan(connection, call, clock.now())) is None:
                return None
            rows = await self._write(connection, planned)
        if not rows:
            return None
        taken = time.perf_counter() - start
        bells = await self._written(connection, call, planned, rows)
        if bells is not None and self._writes is not None:
            self._writes.committed(1, taken, call.durable)
        return bells

    async def _write(self, connection: Connection, planned: Planned) -> Rows:
        """Run a planned statement. Without rows it has written nothing, and the cache is dropped."""
        try:
            rows = await planned.write(connection)
        except driver_errors.DRIVER as error:
            if driver_errors.is_lost(error):
                self._doubted = planned
                raise
            if driver_errors.is_lock_timeout(error):
                raise
            await connection.execute(self._unlock)
            rows = []
        if not rows:
            self._cache.forget()
        return rows

    async def _settle_doubt(self, connection: Connection, call: Call, doubted: Planned) -> Bells | None:
        """Find out whether a statement whose answer was lost was carried out. None if it was not, and will not be."""
        await connection.execute(f"BEGIN; {self._alone}")
        rows, certain = await doubted.find(connection)
        await connection.execute("COMMIT")
        self._cache.forget()
        if not rows and not certain:
            return self._failed(
                [call], StoreError(path=self._address.shown, reason="messages were deleted concurrently")
            )
        self._doubted = None
        return await self._written(connection, call, doubted, rows) if rows else None

    async def _written(self, connection: Connection, call: Call, planned: Planned, rows: Rows) -> Bells | None:
        """Set the outcome of a call whose statement returned these rows. None if it has written nothing."""
        outcome, changes = await planned.end(connection, rows)
        if outcome is None:
            return None
        call.outcome = outcome
        bells = Bells()
        bells.channels += planned.channels
        if changes and self.is_heard():
            bells.channels += [change.channel for change in changes]
        if call.operation.single_insert:
            self._cache.numbered(rows[0][0])
        if bells.channels and self.hint is None:
            bells.notified = await self._ring(connection, bells.channels)
        # Otherwise the doorbell notifies, while the caller continues.
        return bells

    async def _ring(self, connection: Connection, channels: Sequence[str]) -> bool:
        """Notify other processes. False if that failed; the doorbell then does it."""
        try:
            await ask(connection, Query("listeners_of", (list(channels), self.process)))
        except driver_errors.DRIVER:
            terminate(connection)
            return False
        return True

    async def _run_batch(self, connection: Connection, calls: Sequence[Call]) -> Bells:
        """Run all calls in one transaction, those of one operation as one list. Optimistic: no savepoints."""
        bells = Bells()
        last: list[str] = []
        # Only queries that precede all writes are cached: later answers may be rolled back.
        several = self._cache.ask if len(calls) == 1 and calls[0].operation.single_insert else ask_several
        now = await self._begin(connection, calls)
        try:
            for operation, group in group_by_operation(calls):
                op = operation.run([call.request for call in group], now)
                results = await self._drive(connection, op, bells, last, several)
                for call, outcome in zip(group, results, strict=True):
                    call.outcome = outcome
            return await self._commit(connection, calls, bells, last)
        except Exception as error:
            await self._rollback(connection, error)
            if len(calls) > 1:
                raise _RolledBack from error
            calls[0].outcome = self._error_for_caller(error)
            return Bells()

    async def _run_with_savepoints(self, connection: Connection, calls: Sequence[Call]) -> Bells:
        """Run each call behind a savepoint, so that a failure affects no other call."""
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
                if driver_errors.is_lost(error) or driver_errors.is_conflict(error):
                    await self._rollback(connection, error)
                    raise
                call.outcome = self._error_for_caller(error)
                await connection.execute(f"ROLLBACK TO call; RELEASE call; {self._unlock}")
        return await self._commit(connection, calls, bells, [])

    async def _begin(self, connection: Connection, calls: Sequence[Call]) -> Now:
        # Only durable calls wait for the disk: a crash that undoes a claim or a heartbeat only repeats work.
        begin = "BEGIN" if any(call.durable for call in calls) else "BEGIN; SET LOCAL synchronous_commit = off"
        if self._limit is not None:
            begin += f"; SET LOCAL lock_timeout = {lock_timeout_ms(self._limit):d}"
        lock = self._shared if all(call.concurrent for call in calls) else self._alone
        clock = self._clock
        start = time.perf_counter()
        try:
            if not isinstance(clock, ServerClock) or clock.is_fresh:
                # One round trip for both; the result of the second is not needed.
                await connection.execute(f"{begin}; {lock}")
                now = clock.now()
            else:
                await connection.execute(begin)
                start = time.perf_counter()
                ((_, moment),) = await connection.fetch(lock)
                now = clock.set(moment)
            if self._writes is not None:
                self._writes.lock_wait.observe(time.perf_counter() - start)
            return now
        except driver_errors.DRIVER as error:
            if self._writes is not None and driver_errors.is_lock_timeout(error):
                self._writes.timed_out(time.perf_counter() - start)
            # The lock timeout concerns every call, so none needs to run separately.
            await self._rollback(connection, error)
            raise

    async def _commit(self, connection: Connection, calls: Sequence[Call], bells: Bells, last: list[str]) -> Bells:
        """Run the deferred statements, commit, and notify other processes in one round trip. The notification is
        outside the transaction."""
        scripts = self._scripts_of(connection)
        ring = await scripts.ringing(list(dict.fromkeys(bells.channels)), self.process) if bells.channels else None
        script = "; ".join([*last, "COMMIT", *([ring] if ring else [])])
        start = time.perf_counter()
        try:
            await connection.execute(script)
            if self._writes is not None:
                self._writes.committed(len(calls), time.perf_counter() - start, any(call.durable for call in calls))
        except driver_errors.DRIVER as error:
            lost = driver_errors.is_lost(error)
            if not lost and (connection.is_in_transaction() or ring is None or driver_errors.is_conflict(error)):
                # A statement before the COMMIT was refused, or the COMMIT itself.
                raise
            # The server may have committed before the connection was lost, or refused only the notification.
            self._unknown(calls, error)
            if lost:
                # If it was committed, the notification was sent too.
                terminate(connection)
            else:
                # The doorbell notifies instead.
                return bells
        bells.notified = ring is not None
        return bells

    def _unknown(self, calls: Sequence[Call], error: Exception) -> None:
        reason = driver_errors.translate_error(error, self._address).facts.get("reason", "the connection was lost")
        for call in calls:
            if not isinstance(call.outcome, BaseException):
                call.outcome = OutcomeUnknown(path=self._address.shown, reason=reason)

    async def _rollback(self, connection: Connection, error: Exception) -> None:
        """Roll a failed transaction back. A lost connection or a conflict is raised to the caller instead."""
        if driver_errors.is_lost(error):
            raise error
        await connection.execute(f"ROLLBACK; {self._unlock}")
        if driver_errors.is_conflict(error):
            raise error

    async def _drive(
        self,
        connection: Connection,
        op: Op[Any],
        bells: Bells,
        last: list[str] | None = None,
        several: Questions = ask_several,
    ) -> Any:
        """Run an operation. With ``last``, statements without results are deferred there until a query or the
        commit."""
        try:
            step = next(op)
            while True:
                rows: Rows = []
                if type(step) is Wake:
                    bells.channels.extend(step.channels)
                elif type(step) is WakeLater:
                    bells.again.extend(step.channels)
                elif type(step) is Announce:
                    if self.is_heard():
                        bells.channels.append(step.channel)
                else:
                    rows = await self._do(connection, step, last, several)
                step = op.send(rows)
        except StopIteration as stop:
            return stop.value

    async def _do(self, connection: Connection, step: Any, last: list[str] | None, several: Questions) -> Any:
        if last is not None and isinstance(step, Query | ExecuteMany):
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
            case Gather():
                return await several(connection, step.queries)
            case InsertNumbered():
                ((first,),) = rows = await write_numbered(connection, step)
                self._cache.numbered(first + len(step.rows) - 1)
                return rows
        await write_each(connection, step)
        return []

    def _scripts_of(self, connection: Connection) -> Scripts:
        if self._scripts is None or self._scripts.connection is not connection:
            self._scripts = Scripts(connection)
        return self._scripts

    def _failed(self, calls: Sequence[Call], error: Exception) -> Bells:
        """Set the error as the outcome of every call."""
        if self._doubted is not None:
            bells = Bells()
            bells.channels += self._doubted.channels
            self._unknown(calls, error)
            return bells
        for call in calls:
            call.outcome = self._error_for_caller(error)
        return Bells()

    def _error_for_caller(self, error: Exception) -> Exception:
        """Return the error for one caller. Errors of the bus are copied, because each caller raises its own."""
        if isinstance(error, AgentBusError):
            return type(error)(**error.facts)
        if isinstance(error, driver_errors.DRIVER):
            return driver_errors.translate_error(error, self._address, waited=self._effective_timeout)
        return error


class _Lost(Exception):
    """The connection was lost. Nothing was written, except possibly one message that was sent alone."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Conflict(_Lost):
    """A concurrent transaction conflicted; nothing was written."""


class _RolledBack(Exception):
    """The batch was rolled back; each call must run separately."""
