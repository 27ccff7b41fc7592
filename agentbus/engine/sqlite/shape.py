"""The shape of a database: whether its tables, indexes and triggers are those that the migrations make, and whether its
rows are what these tables take."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from agentbus.engine.queries import load, named
from agentbus.engine.sqlite.backup import opened_backup, verify
from agentbus.engine.sqlite.connection import migrations
from agentbus.engine.sqlite.migration import build
from agentbus.errors import DamagedBackup

_TOKEN = re.compile(r"--[^\n]*|'(?:[^']|'')*'|\bCHECK\b|[()]")


def missing(connection: sqlite3.Connection) -> list[str]:
    """Tables, indexes and triggers that are not there."""
    found = _shape(connection)
    return [thing for thing in _expected() if thing not in found]


def foreign(connection: sqlite3.Connection, version: int) -> list[str]:
    """Return what the migrations up to a version did not create and what acts on their tables: triggers, views, virtual
    tables. Tables and indexes of another program do no harm."""
    expected = set(_created(version).values())
    rows = connection.execute(named("file")["file_acting"]).fetchall()
    return [_printable(f"{kind} {name}") for sql, kind, name in rows if sql not in expected]


def differences(connection: sqlite3.Connection) -> list[str]:
    """Return what is missing, changed, or foreign."""
    expected, found = _expected(), _shape(connection)
    wrong = {
        "missing": missing(connection),
        "changed": [thing for thing, sql in expected.items() if found.get(thing, sql) != sql],
        "added": [thing for thing in foreign(connection, max(migrations())) if thing not in expected],
    }
    return [f"{what}: {', '.join(things)}" for what, things in wrong.items() if things]


def refused(connection: sqlite3.Connection) -> list[str]:
    """Tables with rows that their CHECK constraints refuse, of those that are as they should be.

    Of a database that is opened to read only, SQLite does not keep the constraints, and its integrity_check passes them
    over without a word.
    """
    found = _shape(connection)
    return [
        thing.removeprefix("table ")
        for thing, sql in _expected().items()
        if thing.startswith("table ") and found.get(thing) == sql and _has_refused(connection, thing, sql)
    ]


def _has_refused(connection: sqlite3.Connection, thing: str, sql: str) -> bool:
    checks = list(constraints(sql))
    if not checks:
        return False
    queries = named("file")
    # One after the other, as the table itself asks: what is no JSON must not be taken apart.
    cases = " ".join(queries["file_case"].format(check=check) for check in checks)
    question = queries["file_refused"].format(table=thing.removeprefix("table "), cases=cases)
    return bool(connection.execute(question).fetchone()[0])


def constraints(sql: str) -> Iterator[str]:
    """The expressions of all CHECKs of a CREATE TABLE."""
    depth = 0
    begun: list[tuple[int, int]] = []
    expected = False
    for token in _TOKEN.finditer(sql):
        if token[0] == "CHECK":
            expected = True
        elif token[0] == "(":
            depth += 1
            if expected:
                begun.append((depth, token.end()))
                expected = False
        elif token[0] == ")":
            if begun and begun[-1][0] == depth:
                yield sql[begun.pop()[1] : token.start()]
            depth -= 1


def is_sound(backup: Path) -> bool:
    """Whether a bus can be restored from this backup."""
    try:
        with opened_backup(backup) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            newest = max(migrations())
            if not 1 <= version <= newest or verify(connection) is not None:
                return False
            if foreign(connection, version):
                return False
            return version < newest or not (differences(connection) or refused(connection))
    except (DamagedBackup, UnicodeDecodeError):
        return False


def _expected() -> dict[str, str]:
    return _created(max(migrations()))


@cache
def _created(version: int) -> dict[str, str]:
    """Return what the migrations create, up to a version."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        build(connection, [step for number, step in sorted(migrations().items()) if number <= version])
        return _shape(connection)
    finally:
        connection.close()


def _shape(connection: sqlite3.Connection) -> dict[str, str]:
    queries = load("sqlite")
    rows = connection.execute(queries["schema_objects"])
    return {f"{kind} {name}": sql for kind, name, sql in rows}


def _printable(thing: str) -> str:
    """A name that another program chose, without what a terminal would act on."""
    return thing if thing.isprintable() else ascii(thing)[1:-1]
