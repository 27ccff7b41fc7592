"""Several statements in one round trip: the last writes of a transaction go with its COMMIT, and so do notifications.

The driver takes parameters for one statement at a time, so they are written into the text here. That is done only for
numbers and plain names, which need no quoting. User data (payloads, values, errors) is always sent as a parameter: a
server may log the text of a statement.

Repeated statements are prepared once per connection: planning takes longer than running them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from agentbus.engine.postgres.connection import Connection
from agentbus.engine.postgres.statements import statements
from agentbus.operations.protocol import ExecuteMany, Query

_MOST_ROWS = 4
_MOST_CHANNELS = 64
_parameter = re.compile(r"\$(\d+)")
_user_data = re.compile(r"\b(?:error|evidence|expected|metadata|note|result|value) = (?:coalesce\()?\$(\d+)")
_is_name = re.compile(r"[A-Za-z][A-Za-z0-9._/:#@-]{0,255}").fullmatch


class Scripts:
    """Build the scripts of one connection."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._used: set[str] = set()
        self._prepared: set[str] = set()

    async def deferred(self, step: Query | ExecuteMany) -> str | None:
        """Return the statements of a step without results, if it can go with the COMMIT; None if it must run now."""
        if not _is_silent(step.name):
            return None
        rows: Sequence[Sequence[Any]] = step.rows if isinstance(step, ExecuteMany) else [step.parameters]
        if len(rows) > _MOST_ROWS or any(row[index] is not None for row in rows for index in _written(step.name)):
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
        """Return the statement that notifies other listeners; None if it cannot go into a script."""
        if len(channels) > _MOST_CHANNELS:
            return None
        try:
            literals = [_literal(list(channels)), _literal(process)]
        except _Unwritable:
            return None
        return await self._run("listeners_of", literals)

    async def _run(self, name: str, literals: Sequence[str]) -> str:
        """Return the last statement of a query with these parameters. It is prepared at its second use, which short-
        lived connections of the command line never reach."""
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
    """Return True if a query only changes rows (inserts carry user data) and its locks take no parameters."""
    *locks, last = statements()[name]
    writes = last.sql.startswith(("UPDATE", "DELETE")) and "RETURNING" not in last.sql
    return writes and not any(lock.width for lock in locks)


@cache
def _written(name: str) -> frozenset[int]:
    """Return the parameters of a query that hold user data, which may look like a name."""
    return frozenset(int(number) - 1 for number in _user_data.findall(statements()[name][-1].sql))


def _literal(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int):
        # In parentheses: a minus sign after an operator would form another operator.
        return f"({int(value):d})"
    if isinstance(value, str) and _is_name(value):
        return f"'{value}'"
    if isinstance(value, list) and value:
        kind = {int: "bigint", str: "text"}.get(type(value[0]))
        if kind is not None and all(type(item) is type(value[0]) for item in value):
            return f"ARRAY[{', '.join(map(_literal, value))}]::{kind}[]"
    raise _Unwritable


class _Unwritable(Exception):
    """A parameter that must go through the driver."""
