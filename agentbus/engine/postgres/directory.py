"""A message that is sent alone: one statement instead of a transaction.

What a send looks up (who is there, which types are known, the quotas) seldom changes, and the tables count the changes.
So the answers are remembered, together with the count. The statement that inserts the message takes the bus's lock as a
transaction would, compares the count, and commits by itself: one round trip instead of four, before that of the bells.
If the count is another, or somebody runs alone, it writes nothing, and a transaction is made after all.

If the answer to that statement is lost with the connection, the next one moves the count on, so that the statement
cannot be carried out any more, and looks whether it was: whatever this process wrote before has a lower number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import msgspec

from agentbus.clock import Now
from agentbus.engine.calls import Call
from agentbus.engine.postgres.connection import Connection
from agentbus.engine.postgres.merging import ask_several
from agentbus.engine.postgres.statements import find_written, write_if_current
from agentbus.errors import AgentBusError
from agentbus.operations import Numbered, Op, Outcome, Query, Rows, Separately, Several, Wake

_COUNTED = frozenset({"agent_standing", "bus_quotas", "pool_mailbox", "type_known"})
"""Questions whose answers change only with the count; who or what is added changes none that let a message through."""
_VERSION = Query("counter_value", ("directory",))
_NEWEST = Query("counter_value", ("message",))
_MOST = 1000
"""Answers that are remembered."""

_Key: TypeAlias = tuple[Any, ...]


class Planned(msgspec.Struct):
    """An operation that has come to its only write."""

    op: Op[list[Outcome[Any]]]
    channels: Sequence[str]
    """To be rung afterwards."""
    step: Numbered
    version: int
    newest: int
    """No row of ours has a higher number."""

    async def write(self, connection: Connection) -> Rows:
        """Write it, unless the directory has changed; the number that it got. Raises what the driver does."""
        return await write_if_current(connection, self.step, self.version)

    async def look(self, connection: Connection) -> tuple[int | None, bool]:
        """The number that it got, if it was written (otherwise it will never be), and whether that can be told. In a
        transaction that runs alone."""
        return await find_written(connection, self.step, self.newest)

    def end(self, number: int) -> Outcome[Any]:
        """The outcome of the call."""
        try:
            step = self.op.send([(number,)])
        except StopIteration as stop:
            (outcome,) = stop.value
            return outcome
        raise ValueError(f"{step} comes after what was to be the last")


class Directory:
    """What a bus answered to senders, as of one version of it."""

    def __init__(self) -> None:
        self._version = -1
        self._newest = 0
        self._answers: dict[_Key, Rows] = {}

    async def ask(self, connection: Connection, queries: Sequence[Query]) -> list[Rows]:
        """Ask these in a transaction, and remember the answers if they are of that kind."""
        if not all(query.name in _COUNTED for query in queries):
            return await ask_several(connection, queries)
        *answers, ((version,),), ((newest,),) = await ask_several(connection, [*queries, _VERSION, _NEWEST])
        self.numbered(newest)
        if version != self._version or len(self._answers) > _MOST:
            self.forget()
            self._version = version
        self._answers.update(zip(map(_key, queries), answers, strict=True))
        return answers

    def plan(self, call: Call, now: Now) -> Planned | None:
        """How this call can be run by one statement, as far as is remembered; None if it needs a transaction."""
        op = call.operation.run([call.request], now)
        try:
            step = next(op)
            if type(step) is not Several or (answers := self._remembered(step.queries)) is None:
                return None
            step = op.send(cast(Any, answers))
            if type(step) is not Wake:
                return None
            channels = list(dict.fromkeys(step.channels))
            step = op.send([])
        except (StopIteration, AgentBusError, Separately):
            # It is refused: whether that is still right, only a transaction can tell.
            return None
        if type(step) is not Numbered or len(step.rows) != 1:
            return None
        return Planned(op, channels, step, self._version, self._newest)

    def numbered(self, newest: int) -> None:
        """Numbers up to this one have been given out."""
        self._newest = max(self._newest, newest)

    def forget(self) -> None:
        self._answers.clear()
        self._newest = 0

    def _remembered(self, queries: Sequence[Query]) -> list[Rows] | None:
        found = [self._answers.get(_key(query)) for query in queries]
        return None if None in found else [rows for rows in found if rows is not None]


def _key(query: Query) -> _Key:
    return (query.name, *(tuple(value) if type(value) is list else value for value in query.parameters))
