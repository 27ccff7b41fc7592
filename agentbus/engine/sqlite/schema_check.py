"""Compare a database's schema with the one that the migrations create, and its rows with their CHECK constraints."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from functools import cache

from agentbus.engine.queries import load, named
from agentbus.engine.sqlite.connection import migrations
from agentbus.engine.sqlite.migration import build

_TOKEN = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\bCHECK\b|[()]")


def missing_objects(connection: sqlite3.Connection) -> list[str]:
    """Return the tables, indexes and triggers that do not exist."""
    found = _objects(connection)
    return [thing for thing in _expected() if thing not in found]


def foreign_objects(connection: sqlite3.Connection, version: int) -> list[str]:
    """Return the triggers, views and virtual tables that the migrations up to a version did not create. Tables and
    indexes of another program are harmless."""
    expected = set(_created(version).values())
    rows = connection.execute(named("sqlite/schema")["schema_acting"]).fetchall()
    return [_printable(f"{kind} {name}") for sql, kind, name in rows if sql not in expected]


def schema_differences(connection: sqlite3.Connection) -> list[str]:
    """Return the objects that are missing, changed, or foreign."""
    expected, found = _expected(), _objects(connection)
    wrong = {
        "missing": missing_objects(connection),
        "changed": [thing for thing, sql in expected.items() if found.get(thing, sql) != sql],
        "added": [thing for thing in foreign_objects(connection, max(migrations())) if thing not in expected],
    }
    return [f"{what}: {', '.join(things)}" for what, things in wrong.items() if things]


def tables_with_invalid_rows(connection: sqlite3.Connection) -> list[str]:
    """Return the tables with rows that violate a CHECK constraint, of those with the expected schema.

    SQLite does not load the constraints of a database that is opened read-only, and its integrity_check skips them.
    """
    found = _objects(connection)
    return [
        thing.removeprefix("table ")
        for thing, sql in _expected().items()
        if thing.startswith("table ") and found.get(thing) == sql and _has_invalid_rows(connection, thing, sql)
    ]


def _has_invalid_rows(connection: sqlite3.Connection, thing: str, sql: str) -> bool:
    checks = list(check_expressions(sql))
    if not checks:
        return False
    queries = named("sqlite/schema")
    # In order, like the table itself: a value that is not JSON must not reach the JSON functions.
    cases = " ".join(queries["schema_case"].format(check=check) for check in checks)
    question = queries["schema_refused"].format(table=thing.removeprefix("table "), cases=cases)
    return bool(connection.execute(question).fetchone()[0])


def check_expressions(sql: str) -> Iterator[str]:
    """Yield the expressions of all CHECK constraints of a CREATE TABLE statement."""
    depth = 0
    open_checks: list[tuple[int, int]] = []
    expected = False
    for token in _TOKEN.finditer(sql):
        if token[0] == "CHECK":
            expected = True
        elif token[0] == "(":
            depth += 1
            if expected:
                open_checks.append((depth, token.end()))
                expected = False
        elif token[0] == ")":
            if open_checks and open_checks[-1][0] == depth:
                yield sql[open_checks.pop()[1] : token.start()]
            depth -= 1


def _expected() -> dict[str, str]:
    return _created(max(migrations()))


@cache
def _created(version: int) -> dict[str, str]:
    """Return the objects that the migrations up to a version create."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        build(connection, [step for number, step in sorted(migrations().items()) if number <= version])
        return _objects(connection)
    finally:
        connection.close()


def _objects(connection: sqlite3.Connection) -> dict[str, str]:
    queries = load("sqlite")
    rows = connection.execute(queries["schema_objects"])
    return {f"{kind} {name}": sql for kind, name, sql in rows}


def _printable(thing: str) -> str:
    """Escape control characters in a name that another program chose."""
    return thing if thing.isprintable() else ascii(thing)[1:-1]
