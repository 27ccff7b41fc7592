"""Driving operations in PostgreSQL transactions: many calls in one commit, neighbours never noticing each other.

A transaction holds the bus's lock from its beginning to its commit: shared, if all its operations may run beside
others; alone otherwise. So only what runs beside others needs locks of its own, and those are in the queries.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from agentbus.clock import Clock, Now
from agentbus.engine.calls import Call
from agentbus.engine.postgres import problems
from agentbus.engine.postgres.address import Address
from agentbus.engine.postgres.clock import ServerClock
from agentbus.engine.postgres.connection import Connection, connect, let_go, server_queries, writing
from agentbus.engine.postgres.merging import ask_several
from agentbus.engine.postgres.scripts import deferred, ringing
from agentbus.engine.postgres.statements import ask, write_each, write_numbered
from agentbus.errors import AgentBusError, OutcomeUnknown
from agentbus.operations import Again, Each, Numbered, Op, Operation, Query, Rows, Several, Wake

log = logging.getLogger("agentbus.engine")


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
        self.process = 0
        self._connection = connection
        self._hurried = False
        queries = server_queries()
        self._beside, self._alone = queries["server_lock_beside"], queries["server_lock_alone"]
        self._unlock = queries["server_unlock"]

    async def run(self, calls: Sequence[Call]) -> Bells:
        """Commit the calls and note each one's outcome; the bells to ring."""
        begun = time.perf_counter()
        try:
            try:
                bells = await self._attempt(calls)
            except (_Lost, _Conflict):
                bells = await self._patiently(calls)
        except (_Lost, _Conflict) as error:
            return self._failed(calls, problems.translated(error.reason, self._address, waited=self._patience))
        except Exception as error:
            let_go(self._connection)
            return self._failed(calls, error)
        if log.isEnabledFor(logging.DEBUG):
            names = ", ".join(sorted({call.operation.name for call in calls}))
            log.debug("%d calls (%s) in %.2f ms", len(calls), names, (time.perf_counter() - begun) * 1000)
        return bells

    def hurry(self) -> None:
        """Wait for the server no longer."""
        self._hurried = True

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=0.5)
            except problems.DRIVER:
                let_go(connection)

    def break_off(self) -> None:
        """Whoever waited for a batch was interrupted: what was not committed is undone with the connection."""
        let_go(self._connection)

    async def _patiently(self, calls: Sequence[Call]) -> Bells:
        """Nothing was written: the connection was lost, or another transaction was in the way. Try for a while."""
        # Imported only here, on the slow path.
        from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

        begun = time.monotonic()

        def enough(_: RetryCallState) -> bool:
            return self._hurried or time.monotonic() - begun > self._patience

        retrying = AsyncRetrying(
            retry=retry_if_exception_type((_Lost, _Conflict)),
            stop=enough,
            wait=wait_random_exponential(0.02, max=1.0),
            reraise=True,
        )
        return await retrying(self._attempt, calls)

    async def _attempt(self, calls: Sequence[Call]) -> Bells:
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await connect(self._address, writing(self._patience))
            connection = self._connection
            try:
                return await self._together(connection, calls)
            except _Undone:
                return await self._one_by_one(connection, calls)
        except problems.DRIVER as error:
            if problems.is_lost(error):
                let_go(self._connection)
                raise _Lost(error) from error
            if problems.is_conflict(error):
                raise _Conflict(error) from error
            raise

    async def _together(self, connection: Connection, calls: Sequence[Call]) -> Bells:
        """All calls in one transaction, those of one operation as one list. Optimistic: no savepoints."""
        groups: dict[Operation[Any, Any], list[Call]] = {}
        for call in calls:
            groups.setdefault(call.operation, []).append(call)
        bells = Bells()
        last: list[str] = []
        now = await self._begin(connection, calls)
        try:
            for operation, group in sorted(groups.items(), key=_claims_last):
                op = operation.run([call.request for call in group], now)
                results = await self._drive(connection, op, bells, last)
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
                await connection.execute(f"ROLLBACK TO call; {self._unlock}")
        return await self._commit(connection, calls, bells, [])

    async def _begin(self, connection: Connection, calls: Sequence[Call]) -> Now:
        # Only promises are waited for: a crash that undoes a claim or a beat merely repeats work.
        begin = "BEGIN" if any(call.durable for call in calls) else "BEGIN; SET LOCAL synchronous_commit = off"
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
        ring = ringing(list(dict.fromkeys(bells.channels)), self.process) if bells.channels else None
        script = "; ".join([*last, "COMMIT", *([ring] if ring else [])])
        try:
            await connection.execute(script)
        except problems.DRIVER as error:
            if problems.is_lost(error):
                # The server may have committed before the connection went.
                reason = problems.translated(error, self._address).facts.get("reason", "the connection was lost")
                for call in calls:
                    if not isinstance(call.outcome, BaseException):
                        call.outcome = OutcomeUnknown(path=self._address.shown, reason=reason)
                let_go(connection)
                return Bells()
            if connection.is_in_transaction():
                # Something before the COMMIT was refused.
                raise
            log.warning("nobody was rung: %s", error)
        bells.told = ring is not None
        return bells

    async def _rollback(self, connection: Connection, error: Exception) -> None:
        """Undo a transaction that failed. One that was lost needs none, and whoever drives it must hear of that."""
        if problems.is_lost(error):
            raise error
        await connection.execute(f"ROLLBACK; {self._unlock}")
        if problems.is_conflict(error):
            raise error

    async def _drive(self, connection: Connection, op: Op[Any], bells: Bells, last: list[str] | None = None) -> Any:
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
                    rows = await self._do(connection, step, last)
                step = op.send(rows)
        except StopIteration as stop:
            return stop.value

    async def _do(self, connection: Connection, step: Any, last: list[str] | None) -> Any:
        if last is not None and isinstance(step, Query | Each) and (script := deferred(step)) is not None:
            if script:
                last.append(script)
            return []
        if last:
            await connection.execute("; ".join(last))
            last.clear()
        match step:
            case Query():
                return await ask(connection, step)
            case Several():
                return await ask_several(connection, step.queries)
            case Numbered():
                return await write_numbered(connection, step)
        await write_each(connection, step)
        return []

    def _failed(self, calls: Sequence[Call], error: Exception) -> Bells:
        """Whatever it is, every caller must hear of it."""
        for call in calls:
            call.outcome = self._problem(error)
        return Bells()

    def _problem(self, error: Exception) -> Exception:
        """What a caller is told. Our own errors are made anew for each, because each is raised somewhere else."""
        if isinstance(error, AgentBusError):
            return type(error)(**error.facts)
        if isinstance(error, problems.DRIVER):
            return problems.translated(error, self._address, waited=self._patience)
        return error


class _Lost(Exception):
    """The connection is gone, and nothing was written."""

    def __init__(self, reason: BaseException) -> None:
        super().__init__(str(reason))
        self.reason = reason


class _Conflict(_Lost):
    """Another transaction was in the way; nothing was written."""


class _Undone(Exception):
    """The common transaction was rolled back; each call must be tried by itself."""


def _claims_last(item: tuple[Operation[Any, Any], list[Call]]) -> bool:
    return item[0].last
