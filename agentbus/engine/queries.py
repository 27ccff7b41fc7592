"""Named SQL: ``common.sql`` overlaid by an engine's dialect."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

from agentbus.codec import plain
from agentbus.operations import Query

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_FOLDER = Path(__file__).parent / "sql"


def parse(text: str) -> dict[str, str]:
    """The queries of a file by name; a name that stands twice is an error."""
    parts = _NAME.split(text)
    queries: dict[str, str] = {}
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in queries:
            raise ValueError(f"the query {name} stands twice")
        queries[name] = _uncommented(body).strip().removesuffix(";")
    return queries


@cache
def load(dialect: str) -> dict[str, str]:
    """Every named query in an engine's words."""
    common = parse((_FOLDER / "common.sql").read_text(encoding="utf-8"))
    own = parse((_FOLDER / f"{dialect}.sql").read_text(encoding="utf-8"))
    queries = {**common, **own}
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
