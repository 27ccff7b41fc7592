"""Several statements in one round trip: what a transaction writes last goes with its COMMIT, and so do the bells.

The driver takes parameters for one statement at a time only, so that they are written into the text here. That is for
numbers and plain names, which need no quoting. What people wrote (payloads, values, errors) always goes as a parameter:
a server may keep the text of a statement in its log.

What a connection runs again and again is prepared there once: planning it anew took longer than running it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from agentbus.engine.postgres.connection import Connection
from agentbus.engine.postgres.statements import statements
from agentbus.operations import Each, Query

_MOST_ROWS = 4
_MOST_CHANNELS = 64
_parameter = re.compile(r"\$(\d+)")
_by_people = re.compile(r"\b(?:error|evidence|expected|metadata|note|result|value) = (?:coalesce\()?\$(\d+)")
_is_name = re.compile(r"[A-Za-z][A-Za-z0-9._/:#@-]{0,255}").fullmatch


class Scripts:
    """Writes the scripts of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._used: set[str] = set()
        self._prepared: set[str] = set()

    async def deferred(self, step: Query | Each) -> str | None:
        """The statements of a step that gives nothing back, if it may wait for the COMMIT; None if it must be run
        now."""
        if not _is_silent(step.name):
            return None
        rows: Sequence[Sequence[Any]] = step.rows if isinstance(step, Each) else [step.parameters]
        if len(rows) > _MOST_ROWS or any(row[place] is not None for row in rows for place in _written(step.name)):
            return None
        if not rows:
            return ""
        try:
            literals = [[_literal(value) for value in row] for row in rows]
        except _Unwritable:
            return None
        *locks, _ = statements()[step.name]
        return "; ".join([*(lock.sql for lock in locks), *[await self._run(step.name, values) for values in literals]])

    async def ringing(self, channels: Sequence[str], process: int) -> str | None:
        """The statement that rings whoever else listens to these channels; None if they do not go into a script."""
        if len(channels) > _MOST_CHANNELS:
            return None
        try:
            literals = [_literal(list(channels)), _literal(process)]
        except _Unwritable:
            return None
        return await self._run("listeners_of", literals)

    async def _run(self, name: str, literals: Sequence[str]) -> str:
        """The last statement of a query with these parameters. Prepared at its second use: many connections, those of
        the command line, never come to one."""
        sql = statements()[name][-1].sql
        if name not in self._used or not literals:
            self._used.add(name)
            return _parameter.sub(lambda match: literals[int(match[1]) - 1], sql)
        if name not in self._prepared:
            await self.connection.execute(f"PREPARE agentbus_{name} AS {sql}")
            self._prepared.add(name)
        return f"EXECUTE agentbus_{name} ({', '.join(literals)})"


@cache
def _is_silent(name: str) -> bool:
    """Whether a query only changes rows (new ones hold what people wrote), and takes no parameters for its locks."""
    *locks, last = statements()[name]
    writes = last.sql.startswith(("UPDATE", "DELETE")) and "RETURNING" not in last.sql
    return writes and not any(lock.width for lock in locks)


@cache
def _written(name: str) -> frozenset[int]:
    """Which parameters of a query hold what people wrote: one word of it may look like a name."""
    return frozenset(int(number) - 1 for number in _by_people.findall(statements()[name][-1].sql))


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int):
        # In brackets: a number below zero after an operator must not become another operator.
        return f"({int(value):d})"
    if isinstance(value, str) and _is_name(value):
        return f"'{value}'"
    if isinstance(value, list) and value:
        kind = {int: "bigint", str: "text"}.get(type(value[0]))
        if kind is not None and all(type(item) is type(value[0]) for item in value):
            return f"ARRAY[{', '.join(map(_literal, value))}]::{kind}[]"
    raise _Unwritable


class _Unwritable(Exception):
    """A parameter that is better left to the driver."""
