"""Load named SQL: one file for each subject, ``sql/common`` overlaid by the dialect of an engine.

A query is a name, a sentence, then SQL. ``$1``, ``$2`` … are its parameters; one that may be NULL for "all" is cast
there, because PostgreSQL must know its type. A list is an array on PostgreSQL, and JSON text on SQLite. The loader
expands these macros:

- ``/* columns: message */``: the columns of a row of ``operations.rows``; ``/* columns: message m */`` as ``m.id, …``;
- ``/* values: message */``: a parameter for each of these columns, from ``$1`` or ``/* values: message $7 */`` on;
- ``/* given: agents.profile $7 */``: assigns each of these columns its parameter, unless that is NULL;
- ``/* nulls: message */``: NULL for each of these columns;
- ``id /* in: $1 */``: the value is in a list;
- ``FROM /* rows: agents.id $1 */``: the rows of a table whose key is in a list; ``AND`` adds further conditions;
- ``SELECT /* list: $1 bigint */``: the values of a list;
- ``/* sqlite: … */``, ``/* postgres: … */``: SQL of one dialect in a common query.
"""

from __future__ import annotations

import os
from functools import cache

from agentbus.operations.rows import COLUMNS

_FOLDER = f"{os.path.dirname(__file__)}/sql"
_SUBJECTS = {
    "agent": "agents", "listener": "agents", "listeners": "agents",
    "bus": "bus", "counter": "bus", "meta": "bus", "wall": "bus",
    "checkpoint": "checkpoints", "copy": "copy", "document": "documents", "event": "events",
    "mailbox": "mailboxes", "pool": "mailboxes", "queue": "mailboxes", "subscription": "mailboxes",
    "topic": "mailboxes",
    "message": "messages", "reply": "messages", "receipt": "receipts", "reach": "receipts",
    "process": "processes", "schema": "bus",
    "session": "sessions", "participant": "sessions", "recovery": "sessions",
    "state": "state", "type": "types", "token": "tokens",
    "task": "tasks", "workflow": "tasks", "step": "steps", "approval": "approvals", "signal": "signals",
    "dependency": "dependencies", "item": "items", "hold": "holds", "thread": "holds", "metrics": "metrics",
    "history": "histories",
    "notifier": "notifiers",
}  # fmt: skip
"""The file of a query, by the first word of its name."""
_ENGINE_FILES = frozenset({"foreign", "schema", "server"})
"""Files whose queries no operation uses: they are read by ``named``, and may be templates."""
DIRECTORY = frozenset({"agent_statuses", "bus_quotas", "pool_mailbox", "type_known"})
"""Queries whose answers are cached. The counter ``directory`` counts the changes of the rows that they read; on
PostgreSQL not additions, which do not affect an answer that admits a message."""
_LISTS = {
    "sqlite": {
        "in": "IN (SELECT value FROM json_each({list}))",
        # A join, because IN copies the list into a b-tree first.
        "rows": "json_each({list}) AS wanted CROSS JOIN {table} ON {table}.{key} = wanted.value",
        "list": "value FROM json_each({list})",
    },
    "postgres": {
        "in": "= ANY ({list})",
        "rows": "{table} WHERE {table}.{key} = ANY ({list})",
        "list": "unnest({list}::{type}[])",
    },
}
"""The SQL that reads a list, by dialect."""


class Queries(dict[str, str]):
    """The queries of an engine, by name. A file is parsed when the first of its queries is used: a command needs few of
    them."""

    def __init__(self, dialect: str) -> None:
        super().__init__()
        self._dialect = dialect
        read_all(dialect)

    def __missing__(self, name: str) -> str:
        subject = _SUBJECTS.get(name.partition("_")[0])
        found = {} if subject is None else _subject(self._dialect, subject)
        if name not in found:
            raise KeyError(name)
        sql = self[name] = _translate(_statement(found[name]), self._dialect)
        return sql


@cache
def queries(dialect: str) -> Queries:
    """Return the queries of an engine, which all buses of a process share."""
    return Queries(dialect)


def parse(sql: str) -> dict[str, str]:
    """Return the queries of a text by name. A name that occurs twice is an error."""
    return {name: _statement(body) for name, body in _split(sql).items()}


def _split(sql: str) -> dict[str, str]:
    """Return the queries of a text by name, each with its comments."""
    found: dict[str, str] = {}
    for part in f"\n{sql}".split("\n-- name: ")[1:]:
        name, _, body = part.partition("\n")
        if name in found:
            raise ValueError(f"the query {name} is defined twice")
        found[name] = body
    return found


def read_all(dialect: str) -> None:
    """Read all SQL that an engine may use. An open bus keeps working if the package is replaced or removed while the
    process runs."""
    # Also that of SQLite: a bus on PostgreSQL imports databases of SQLite.
    for folder in {"common", "sqlite", dialect}:
        _files(folder)


def text(folder: str) -> str:
    """Return the SQL of the operations in a folder, as it is written."""
    return "\n".join(sql for name, sql in _files(folder).items() if name not in _ENGINE_FILES)


@cache
def named(file: str) -> dict[str, str]:
    """Return the queries of one file (``sqlite/schema``) as they are written."""
    folder, _, name = file.partition("/")
    return parse(_files(folder)[name])


@cache
def load(dialect: str) -> dict[str, str]:
    """Return every named query of an engine."""
    written = {**parse(text("common")), **parse(text(dialect))}
    return {name: _translate(sql, dialect) for name, sql in written.items()}


@cache
def _subject(dialect: str, subject: str) -> dict[str, str]:
    """Return the queries of a subject with their comments, which are removed from those that are used."""
    return {**_split(_files("common").get(subject, "")), **_split(_files(dialect).get(subject, ""))}


@cache
def _files(folder: str) -> dict[str, str]:
    """Return the files of a folder by subject. Each is read once in a process."""
    texts: dict[str, str] = {}
    for name in sorted(os.listdir(f"{_FOLDER}/{folder}")):
        if name.endswith(".sql"):
            with open(f"{_FOLDER}/{folder}/{name}", "rb") as file:
                texts[name.removesuffix(".sql")] = file.read().decode()
    return texts


def _translate(sql: str, dialect: str) -> str:
    """Expand macros. SQLite reads $1 as a named parameter; ?1 is its positional one."""
    if "/* " in sql:
        first, *rest = sql.split("/* ")
        for part in rest:
            macro, _, after = part.partition(" */")
            first += _expand(macro, dialect) + after
        sql = first
    if dialect == "sqlite":
        for digit in "123456789":
            sql = sql.replace(f"${digit}", f"?{digit}")
    return sql


def _expand(macro: str, dialect: str) -> str:
    name, _, rest = macro.partition(": ")
    if name in _LISTS:
        return rest if name == dialect else ""
    first, _, second = rest.partition(" ")
    if name == "columns":
        prefix = f"{second}." if second else ""
        return ", ".join(prefix + column for column in COLUMNS[first])
    if name == "values":
        return ", ".join(f"${number}" for number, _ in enumerate(COLUMNS[first], int(second[1:] or 1)))
    if name == "nulls":
        return ", ".join(["NULL"] * len(COLUMNS[first]))
    table, _, key = first.partition(".")
    if name == "given":
        columns = enumerate(COLUMNS[key], int(second[1:]))
        return ", ".join(f"{column} = coalesce(${number}, {table}.{column})" for number, column in columns)
    if name != "rows":
        return _LISTS[dialect][name].format(list=first, type=second)
    return _LISTS[dialect][name].format(table=table, key=key, list=second)


def widened(sql: str, rows: int) -> str | None:
    """Return an INSERT of one row as an INSERT of ``rows`` rows; None for any other query."""
    import re

    match = re.fullmatch(r"(INSERT .*VALUES )\(\s*\?1(?:,\s*\?\d+)*\s*\)", sql, re.DOTALL)
    if match is None:
        return None
    width = sql.count("?")
    groups = (", ".join(f"?{row * width + column + 1}" for column in range(width)) for row in range(rows))
    return match[1] + ", ".join(f"({group})" for group in groups)


def _statement(body: str) -> str:
    """Return the SQL of a query without comments."""
    lines = (line for line in body.splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(lines).strip().removesuffix(";")
