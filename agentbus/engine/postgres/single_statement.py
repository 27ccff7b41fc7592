"""Run a single call by one statement instead of a transaction: a send, a claim of one message, an acknowledgement.

What such a call looks up (agents, types, quotas) seldom changes, and the tables count the changes. So the answers are
cached together with the count. The statement takes the lock of the bus, compares the count, writes and commits by
itself: one round trip instead of three or four. If the count differs, or an exclusive transaction runs, it writes
nothing, and the call looks up again or falls back to a transaction.

If the answer to that statement is lost with the connection, the next one advances the count, so that the statement can
no longer be carried out, and then looks whether it was. A message that was sent is found after the earlier rows of this
process, an acknowledgement by its lease; a message that was claimed is released, and claimed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import msgspec

from agentbus.core.clock import Now
from agentbus.engine.postgres.connection import Connection, server_queries
from agentbus.engine.postgres.readers import ask_several
from agentbus.engine.postgres.statements import ask, find_written, write_if_current
from agentbus.engine.queries import DIRECTORY
from agentbus.errors import AgentBusError
from agentbus.operations.protocol import (
    Announce,
    Call,
    CannotBatch,
    Gather,
    InsertNumbered,
    Op,
    Outcome,
    Query,
    Row,
    Rows,
    Wake,
)

_VERSION = Query("counter_directory")
_NEWEST = Query("counter_value", ("message",))
_MOST = 1000
"""Maximum number of cached answers."""


class PlannedInsert(msgspec.Struct):
    """A send that has reached its only write."""

    op: Op[list[Outcome[Any]]]
    channels: Sequence[str]
    """Channels to ring afterwards."""
    step: InsertNumbered
    version: int
    newest: int
    """No row of this process has a higher number."""
    is_cached: bool = False
    """A send looks up in a transaction."""

    async def write(self, connection: Connection) -> Rows:
        """Insert the row, unless the count has changed; return its number. Raises errors of the driver."""
        return await write_if_current(connection, self.step, self.version)

    async def find(self, connection: Connection) -> tuple[Rows, bool]:
        """Return the number of the row if it was written (otherwise it never will be), and whether that is certain.
        Call it in an exclusive transaction."""
        number, certain = await find_written(connection, self.step, self.newest)
        return ([] if number is None else [(number,)]), certain

    async def end(self, connection: Connection, rows: Rows) -> tuple[Outcome[Any], list[Announce]]:
        """Return the outcome of the call."""
        try:
            step = self.op.send(rows)
        except StopIteration as stop:
            (outcome,) = stop.value
            return outcome, []
        raise ValueError(f"{step} comes after what was to be the last")


class PlannedStatement(msgspec.Struct):
    """A shortcut that has reached its only write."""

    op: Op[Outcome[Any] | None]
    step: Query
    version: int
    is_cached: bool
    """True if every answer came from the cache."""
    channels: Sequence[str] = ()

    async def write(self, connection: Connection) -> Rows:
        """Run the statement, unless the count has changed; return its rows. Raises errors of the driver."""
        return await ask(connection, Query(self.step.name, (*self.step.parameters, self.version)))

    async def find(self, connection: Connection) -> tuple[Rows, bool]:
        """Return the rows if they were written (otherwise they never will be), or undo it. Call it in an exclusive
        transaction."""
        await connection.execute(server_queries()["server_change_directory"])
        return await ask(connection, Query(f"{self.step.name}_lost", self.step.parameters)), True

    async def end(self, connection: Connection, rows: Rows) -> tuple[Outcome[Any] | None, list[Announce]]:
        """Return the outcome of the call, and what to announce; None if nothing was written, and the operation must
        run. Raises errors of the driver if nothing was written."""
        changes: list[Announce] = []
        try:
            step = self.op.send(rows)
            while True:
                if isinstance(step, Announce):
                    changes.append(step)
                    step = self.op.send([])
                else:
                    step = self.op.send(await ask(connection, cast(Query, step)))
        except StopIteration as stop:
            return stop.value, changes


Planned: TypeAlias = PlannedInsert | PlannedStatement


class LookupCache:
    """Cached answers to lookups, as of one version of the bus."""

    def __init__(self) -> None:
        self._version = -1
        self._newest = 0
        self._answers: dict[Row, Rows] = {}

    async def ask(self, connection: Connection, queries: Sequence[Query]) -> list[Rows]:
        """Run queries before all writes of a transaction, or outside of one, and cache the answers if all of them
        are of the directory."""
        if not all(query.name in DIRECTORY for query in queries):
            return await ask_several(connection, queries)
        *answers, ((version,),), ((newest,),) = await ask_several(connection, [*queries, _VERSION, _NEWEST])
        if version != self._version or len(self._answers) > _MOST:
            self.forget()
            self._version = version
        self.numbered(newest)
        self._answers.update(zip((query.key for query in queries), answers, strict=True))
        return answers

    async def plan(self, connection: Connection, call: Call, now: Now) -> Planned | None:
        """Plan a call as one statement; None if it needs a transaction. Raises errors of the driver."""
        if call.operation.single_insert:
            return self._plan_insert(call, now) if call.durable else None
        if call.operation.shortcut is None or call.durable:
            return None
        op = call.operation.shortcut(call.request, now)
        is_cached = True
        try:
            step = next(op)
            while type(step) is Query and step.name in DIRECTORY:
                if (answers := self._remembered([step])) is None:
                    is_cached = False
                    answers = await self.ask(connection, [step])
                step = op.send(answers[0])
        except StopIteration:
            return None
        return PlannedStatement(op, step, self._version, is_cached) if type(step) is Query else None

    def _plan_insert(self, call: Call, now: Now) -> PlannedInsert | None:
        """Plan a send from cached answers; None if it needs a transaction."""
        op = call.operation.run([call.request], now)
        try:
            step = next(op)
            if type(step) is not Gather or (answers := self._remembered(step.queries)) is None:
                return None
            step = op.send(cast(Any, answers))
            if type(step) is not Wake:
                return None
            channels = list(dict.fromkeys(step.channels))
            step = op.send([])
        except (StopIteration, AgentBusError, CannotBatch):
            # It would be refused; only a transaction can tell whether that is still right.
            return None
        if type(step) is not InsertNumbered or len(step.rows) != 1:
            return None
        return PlannedInsert(op, channels, step, self._version, self._newest)

    def numbered(self, newest: int) -> None:
        """Note that numbers up to this one are in use."""
        self._newest = max(self._newest, newest)

    def forget(self) -> None:
        self._answers.clear()
        self._newest = 0

    def _remembered(self, queries: Sequence[Query]) -> list[Rows] | None:
        found = [self._answers.get(query.key) for query in queries]
        return None if None in found else [rows for rows in found if rows is not None]
