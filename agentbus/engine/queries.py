"""Named SQL, a file for each subject: ``sql/common`` overlaid by an engine's dialect.

A query is a name, a sentence, then SQL. ``$1``, ``$2`` … are its parameters; one that may be NULL for "all" is cast
there, because PostgreSQL must know its type. Lists arrive in SQLite as JSON text, and are opened with json_each.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

from agentbus.codec import plain
from agentbus.operations import Query

_FOLDER = f"{os.path.dirname(__file__)}/sql"
_SUBJECTS = {
    "agent": "agents", "listener": "agents", "listeners": "agents",
    "bus": "bus", "counter": "bus", "meta": "bus", "wall": "bus",
    "checkpoint": "checkpoints", "copy": "copying", "document": "documents", "event": "events",
    "mailbox": "mailboxes", "pool": "mailboxes", "queue": "mailboxes", "subscription": "mailboxes",
    "topic": "mailboxes", "topology": "mailboxes",
    "message": "messages", "reply": "messages",
    "process": "processes", "schema": "bus",
    "session": "sessions", "participant": "sessions", "recovery": "sessions",
    "state": "state", "type": "vocabulary",
    "task": "tasks", "workflow": "tasks", "step": "steps", "approval": "approvals",
}  # fmt: skip
"""The file in which a query is, by the first word of its name."""


_BESIDE = {"sqlite": ("common", "file", "foreign"), "postgres": ("common", "server", "foreign")}
"""The folders that an engine uses besides that of its dialect."""


class Queries(dict[str, str]):
    """The queries of an engine, by name. A file is parsed when the first of its queries is asked for: one call of the
    command line needs few of them."""

    def __init__(self, dialect: str) -> None:
        super().__init__()
        self._dialect = dialect
        read_all(dialect)

    def __missing__(self, name: str) -> str:
        subject = _SUBJECTS.get(name.partition("_")[0])
        found = {} if subject is None else _subject(self._dialect, subject)
        if name not in found:
            raise KeyError(name)
        sql = self[name] = _in_dialect(found[name], self._dialect)
        return sql


def parse(sql: str) -> dict[str, str]:
    """The queries by name; a name that stands twice is an error."""
    queries: dict[str, str] = {}
    for part in f"\n{sql}".split("\n-- name: ")[1:]:
        name, _, body = part.partition("\n")
        if name in queries:
            raise ValueError(f"the query {name} stands twice")
        queries[name] = _uncommented(body).strip().removesuffix(";")
    return queries


def read_all(dialect: str) -> None:
    """Read all SQL that an engine may ever use. Once opened, a bus works with what it was opened with, also when the
    package is replaced or removed under the running process."""
    for folder in (dialect, *_BESIDE[dialect]):
        _files(folder)


def text(folder: str) -> str:
    """All that is written in a dialect, or in the words that are common to all."""
    return "\n".join(_files(folder).values())


@cache
def named(folder: str) -> dict[str, str]:
    """The queries of one folder, as they are written."""
    return parse(text(folder))


@cache
def load(dialect: str) -> dict[str, str]:
    """Every named query in an engine's words."""
    queries = {**parse(text("common")), **parse(text(dialect))}
    return {name: _in_dialect(sql, dialect) for name, sql in queries.items()}


@cache
def _subject(dialect: str, subject: str) -> dict[str, str]:
    return {**parse(_files("common").get(subject, "")), **parse(_files(dialect).get(subject, ""))}


@cache
def _files(folder: str) -> dict[str, str]:
    """The texts of a folder by subject, read once in the life of a process."""
    texts: dict[str, str] = {}
    for name in sorted(os.listdir(f"{_FOLDER}/{folder}")):
        if name.endswith(".sql"):
            with open(f"{_FOLDER}/{folder}/{name}", "rb") as file:
                texts[name.removesuffix(".sql")] = file.read().decode()
    return texts


def _in_dialect(sql: str, dialect: str) -> str:
    """SQLite takes $1 for a named parameter; ?1 is its positional one."""
    if dialect == "sqlite":
        for digit in "123456789":
            sql = sql.replace(f"${digit}", f"?{digit}")
    return sql


def bound(query: Query) -> list[Any]:
    """Parameters as SQLite takes them: a list as JSON text, which the query opens with json_each."""
    return [plain(item) if type(item) is list else item for item in query.parameters]


def widened(sql: str, rows: int) -> str | None:
    """An INSERT of one row as an INSERT of ``rows`` rows; None for any other query."""
    import re

    match = re.fullmatch(r"(INSERT .*VALUES )\(\?1(?:, \?\d+)*\)", sql, re.DOTALL)
    if match is None:
        return None
    width = sql.count("?")
    groups = (", ".join(f"?{row * width + column + 1}" for column in range(width)) for row in range(rows))
    return match[1] + ", ".join(f"({group})" for group in groups)


def _uncommented(body: str) -> str:
    return "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("--"))
