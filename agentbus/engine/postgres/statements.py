"""Run named queries on PostgreSQL: parameters, lists of rows, and queries of several statements."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgspec

from agentbus.core.codec import plain
from agentbus.engine.postgres.connection import Connection, server_queries
from agentbus.engine.queries import load
from agentbus.operations.protocol import ExecuteMany, InsertNumbered, Query, Row, Rows

_wide: dict[str, str] = {}
"""INSERTs that take a list for each column, by the name of the query."""
_plain_insert = re.compile(r"(INSERT INTO [^()]*\([^()]*\)\s*)VALUES \((\$\d+(?:, \$\d+)*)\)(.*)", re.DOTALL).fullmatch


class Statement(msgspec.Struct, frozen=True):
    """One statement of a query, the number of parameters it takes, and those that it expands as JSON."""

    sql: str
    width: int
    opened: frozenset[int] = frozenset()


@cache
def statements() -> dict[str, tuple[Statement, ...]]:
    """Return every named query. Statements before the last only lock, so that the last sees the changes of others."""
    return {name: tuple(_statement(part) for part in sql.split(";\n")) for name, sql in load("postgres").items()}


def _statement(sql: str) -> Statement:
    opened = frozenset(int(number) - 1 for number in re.findall(r"CAST\(\$(\d+) AS json\)", sql))
    return Statement(sql.strip(), max((int(number) for number in re.findall(r"\$(\d+)", sql)), default=0), opened)


async def ask(connection: Connection, query: Query) -> Rows:
    """Run a query and fetch its rows."""
    found = statements()[query.name]
    parameters: Sequence[Any] = query.parameters
    if found[-1].opened:
        parameters = [_bound(value, index in found[-1].opened) for index, value in enumerate(parameters)]
    for statement in found[:-1]:
        await connection.fetch(statement.sql, *parameters[: statement.width])
    return [tuple(row) for row in await connection.fetch(found[-1].sql, *parameters)]


async def write_each(connection: Connection, step: ExecuteMany) -> None:
    """Run a query for every row of parameters."""
    if not step.rows:
        return
    found = statements()[step.name]
    for statement in found[:-1]:
        await connection.fetch(statement.sql)
    sql = found[-1].sql
    if len(step.rows) == 1:
        await connection.fetch(sql, *step.rows[0])
    elif (match := _plain_insert(sql)) is not None:
        wide = _wide.get(step.name) or await _widened(connection, step.name, sql, match)
        await connection.fetch(wide, *_columns(step.rows))
    else:
        await connection.executemany(sql, step.rows)


async def _widened(connection: Connection, name: str, sql: str, match: re.Match[str]) -> str:
    """Return an INSERT of one row as an INSERT of many. The types are looked up once."""
    prepared = await connection.prepare(sql)
    lists = ", ".join(f"${number}::{kind.name}[]" for number, kind in enumerate(prepared.get_parameters(), 1))
    _wide[name] = f"{match[1]}{_FROM_LISTS.format(lists=lists)}{match[3]}"
    return _wide[name]


async def write_numbered(connection: Connection, step: InsertNumbered) -> Rows:
    """Insert rows that the server numbers, in one statement; return the first number."""
    if len(step.rows) == 1:
        sql = await _numbering(connection, step.name, "server_numbered_one")
        return [tuple(row) for row in await connection.fetch(sql, *step.rows[0], step.counter)]
    sql = await _numbering(connection, step.name, "server_numbered")
    parameters = (*_columns(step.rows), step.counter, len(step.rows))
    return [tuple(row) for row in await connection.fetch(sql, *parameters)]


async def write_if_current(connection: Connection, step: InsertNumbered, version: int) -> Rows:
    """Insert the only row of this step and return its number. Nothing if the count has changed, or cannot be read
    without waiting."""
    sql = await _numbering(connection, step.name, "server_numbered_if_current")
    return [tuple(row) for row in await connection.fetch(sql, *step.rows[0], step.counter, version)]


async def find_written(connection: Connection, step: InsertNumbered, newest: int) -> tuple[int | None, bool]:
    """Prevent the insertion of the only row of this step, and return its number if it was inserted (after ``newest``),
    and whether that is certain."""
    _, match = _inserting(step.name)
    _, *columns = (name.strip() for name in match[1].partition("(")[2].strip(" )\n").split(","))
    row = dict(zip(columns, step.rows[0], strict=True))
    marks = [row[name] for name in ("mailbox", "sender", "type", "checksum", "created")]
    ((number, certain),) = await connection.fetch(server_queries()["server_written"], newest, *marks)
    return number, certain


async def _numbering(connection: Connection, name: str, template: str) -> str:
    """Return an INSERT of one row as one that takes numbers from a counter. The types are looked up once."""
    if (name, template) not in _numbered:
        statement, match = _inserting(name)
        prepared = await connection.prepare(statement.sql)
        kinds = [kind.name for kind in prepared.get_parameters()[1:]]
        _numbered[name, template] = server_queries()[template].format(
            insert=match[1],
            columns=", ".join(f"c{index}" for index in range(len(kinds))),
            lists=", ".join(f"${index}::{kind}[]" for index, kind in enumerate(kinds, 1)),
            values=", ".join(f"${index}::{kind}" for index, kind in enumerate(kinds, 1)),
            counter=f"${len(kinds) + 1}",
            amount=f"CAST(${len(kinds) + 2} AS bigint)",
            version=f"${len(kinds) + 2}",
        )
    return _numbered[name, template]


def _inserting(name: str) -> tuple[Statement, re.Match[str]]:
    (statement,) = statements()[name]
    match = _plain_insert(statement.sql)
    if match is None:
        raise ValueError(f"{name} does not insert one row")
    return statement, match


_numbered: dict[tuple[str, str], str] = {}
"""INSERTs that take their numbers from a counter, keyed by query and template."""
_FROM_LISTS = "(SELECT * FROM unnest({lists}))"


def _columns(rows: Sequence[Row]) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)]


def _bound(value: Any, opened: bool) -> Any:
    """Return a parameter for the driver: a list of pairs as JSON, where the query expands it."""
    return plain(value) if opened and type(value) is list else value
