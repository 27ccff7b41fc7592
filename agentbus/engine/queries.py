"""Named SQL, a file for each subject: ``sql/common`` overlaid by an engine's dialect.

A query is a name, a sentence, then SQL. ``$1``, ``$2`` … are its parameters; one that may be NULL for "all" is cast
there, because PostgreSQL must know its type. Lists arrive in SQLite as JSON text, and are opened with json_each.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from agentbus.codec import plain
from agentbus.operations import Query

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_FOLDER = Path(__file__).parent / "sql"


def parse(sql: str) -> dict[str, str]:
    """The queries by name; a name that stands twice is an error."""
    parts = _NAME.split(sql)
    queries: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in queries:
            raise ValueError(f"the query {name} stands twice")
        queries[name] = _uncommented(body).strip().removesuffix(";")
    return queries


def text(dialect: str) -> str:
    """All that is written in a dialect, or in the words that are common to all."""
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted((_FOLDER / dialect).glob("*.sql")))


@cache
def load(dialect: str) -> dict[str, str]:
    """Every named query in an engine's words."""
    queries = {**parse(text("common")), **parse(text(dialect))}
    if dialect == "sqlite":
        # SQLite takes $1 for a named parameter; ?1 is its positional one.
        return {name: re.sub(r"\$(\d+)", r"?\1", sql) for name, sql in queries.items()}
    return queries


def bound(query: Query) -> list[Any]:
    """Parameters as SQLite takes them: a list as JSON text, which the query opens with json_each."""
    return [plain(item) if type(item) is list else item for item in query.parameters]


def widened(sql: str, rows: int) -> str | None:
    """An INSERT of one row as an INSERT of ``rows`` rows; None for any other query."""
    match = re.fullmatch(r"(INSERT .*VALUES )\(\?1(?:, \?\d+)*\)", sql, re.DOTALL)
    if match is None:
        return None
    width = sql.count("?")
    groups = (", ".join(f"?{row * width + column + 1}" for column in range(width)) for row in range(rows))
    return match[1] + ", ".join(f"({group})" for group in groups)


def _uncommented(body: str) -> str:
    return "\n".join(line for line in body.splitlines() if not line.lstrip().startswith("--"))
