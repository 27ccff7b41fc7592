"""Named SQL: every query can be prepared on the real schema, is used, and is explained."""

from __future__ import annotations

import ast
import re
import sqlite3
from collections.abc import Iterator
from functools import cache

import pytest

from agentbus.engine.queries import load, named, parse, text, widened
from agentbus.operations.copy import TABLES
from agentbus.operations.rows import COLUMNS, MessageRow, NewMessage
from agentbus.operations.task_ownership import HeldTask
from agentbus.records import AgentRecord
from tests.support.cases import each
from tests.support.queries import PACKAGE, QUERIES, schema, width
from tests.support.source import package_nodes

each_query = each("name", QUERIES)


@pytest.fixture(scope="module")
def empty() -> Iterator[sqlite3.Connection]:
    connection = schema()
    yield connection
    connection.close()


NAMING = {"Query", "ExecuteMany", "InsertNumbered", "line_loader"}
"""Functions that are called with the name of a query."""


FOR_LOST = {"message_ack_one_lost", "message_claim_one_lost"}
"""Queries after a connection was lost during the only statement of a shortcut. SQLite has no connection to lose."""


@cache
def uses() -> tuple[tuple[str, str, int | None], ...]:
    """Return every place that names a query: where, which, and with how many parameters, if that can be seen there."""
    return tuple(_uses())


def _uses() -> Iterator[tuple[str, str, int | None]]:
    words = re.compile("|".join((*NAMING, "queries")))
    for file in PACKAGE.rglob("*.py"):
        if not words.search(file.read_text(encoding="utf-8")):
            continue
        for node in package_nodes(file):
            count: int | None = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in NAMING:
                name = node.args[0]
                count = _count(node) if node.func.id == "Query" else None
            elif isinstance(node, ast.Subscript) and _may_name(node.slice) and _is_queries(node.value):
                name = node.slice
            else:
                continue
            for query in _named(name):
                yield f"{file.relative_to(PACKAGE.parent)}:{node.lineno}", query, count


def _may_name(index: ast.expr) -> bool:
    return isinstance(index, ast.Constant | ast.JoinedStr)


def _is_queries(node: ast.expr) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name.endswith("queries")


def _named(name: ast.expr) -> list[str]:
    """The queries that a name stands for: those of copying are named by their tables."""
    if isinstance(name, ast.JoinedStr) and isinstance(name.values[0], ast.Constant):
        start = str(name.values[0].value)
        return [f"{start}{table.name}" for table in TABLES.values() if table.long or start != "copy_sizes_"]
    return [name.value] if isinstance(name, ast.Constant) and isinstance(name.value, str) else []


def _count(call: ast.Call) -> int | None:
    if len(call.args) < 2:
        return 0
    values = call.args[1]
    if not isinstance(values, ast.Tuple) or any(isinstance(value, ast.Starred) for value in values.elts):
        return None
    return len(values.elts)


def comments(sql: str) -> dict[str, str]:
    """The comment of each query."""
    parts = re.split(r"^-- name: (\w+)$", sql, flags=re.MULTILINE)
    return {
        name: " ".join(line.removeprefix("--").strip() for line in body.splitlines() if line.startswith("--"))
        for name, body in zip(parts[1::2], parts[2::2], strict=True)
    }


@each_query
def test_a_query_can_be_prepared_on_the_real_schema(name: str, empty: sqlite3.Connection) -> None:
    # SQLite refuses a wrong number of parameters, and numbers without a gap are what the drivers give.
    sql = QUERIES[name]
    assert {int(number) for number in re.findall(r"\?(\d+)", sql)} == set(range(1, width(sql) + 1))
    empty.execute(f"EXPLAIN {sql}", [None] * width(sql)).fetchall()


def test_only_queries_that_exist_are_used() -> None:
    known = {*QUERIES, *FOR_LOST, *named("postgres/server"), *named("sqlite/schema")}
    assert [f"{place}: {name}" for place, name, _ in uses() if name not in known] == []


def test_every_query_is_used() -> None:
    assert set(QUERIES) - {name for _, name, _ in uses()} == set()
    engine = "".join(file.read_text(encoding="utf-8") for file in (PACKAGE / "engine" / "postgres").glob("*.py"))
    assert [name for name in named("postgres/server") if f'"{name}"' not in engine] == []


def test_queries_are_given_as_many_parameters_as_they_take() -> None:
    wrong = [
        f"{place}: {name} takes {width(QUERIES[name])}, is given {count}"
        for place, name, count in uses()
        if count is not None and name in QUERIES and count != width(QUERIES[name])
    ]
    assert wrong == []


def test_every_query_has_a_sentence() -> None:
    files = [file.read_text(encoding="utf-8") for file in (PACKAGE / "engine" / "sql").rglob("*.sql")]
    without = [
        f"{name}: {comment!r}"
        for sql in files
        for name, comment in comments(sql).items()
        if not re.match(r"[A-Z`$].*\.$", comment)
    ]
    assert without == []


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_a_query_of_a_dialect_says_why_it_differs(dialect: str) -> None:
    assert [name for name, comment in comments(text(dialect)).items() if not re.search(r"Differs: \w", comment)] == []


def test_both_dialects_define_the_same_names() -> None:
    assert set(load("postgres")) == set(QUERIES) | FOR_LOST
    # Each query that SQLite says in its own words is one that PostgreSQL must too.
    assert set(comments(text("sqlite"))) <= set(comments(text("postgres")))


def test_a_common_query_speaks_no_dialect_outside_a_macro() -> None:
    for name, sql in parse(text("common")).items():
        common = re.sub(r"/\* .*? \*/", "", sql, flags=re.DOTALL)
        assert not re.search(r"json_each|json_extract|rowid|INSERT OR |\?|unnest|::|FOR UPDATE|INDEXED", common), name


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_macro_is_expanded(dialect: str) -> None:
    assert [name for name, sql in load(dialect).items() if "/*" in sql or "*/" in sql] == []


def test_a_column_list_names_the_fields_of_its_row() -> None:
    assert QUERIES["reply_again"].startswith(f"SELECT {', '.join(MessageRow.__struct_fields__)}\nFROM messages")
    assert "SELECT agents.id, agents.name, " in QUERIES["agent_archive"]
    insert = QUERIES["message_insert"]
    assert insert.startswith(f"INSERT INTO messages ({', '.join(NewMessage.__struct_fields__)})\nVALUES (?1, ?2, ")
    assert width(insert) == len(NewMessage.__struct_fields__)
    assert COLUMNS["held_task"] == HeldTask.__struct_fields__
    assert COLUMNS["agent"] == AgentRecord.__struct_fields__


def test_a_list_is_read_as_each_dialect_reads_it() -> None:
    assert QUERIES["event_remove"].count("IN (SELECT value FROM json_each(?1))") == 1
    assert load("postgres")["event_remove"].count("= ANY ($1)") == 1
    assert "FROM json_each(?1) AS wanted CROSS JOIN messages ON messages.id = wanted.value" in QUERIES["message_rows"]
    assert "FROM messages WHERE messages.id = ANY ($1)" in load("postgres")["message_rows"]


def test_a_parameter_that_may_be_null_says_its_type() -> None:
    # PostgreSQL refuses to prepare "$1 IS NULL OR name = $1": it settles the type of $1 where it stands first.
    for name, sql in parse(text("common")).items():
        assert not re.search(r"\$\d+ IS (NOT )?NULL", sql), name


@each_query
def test_a_query_is_named_entity_first(name: str) -> None:
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", name)


def test_a_name_that_is_defined_twice_is_an_error() -> None:
    with pytest.raises(ValueError, match="twice"):
        parse("-- name: a\nSELECT 1;\n-- name: a\nSELECT 2;\n")


def test_an_insert_is_widened_to_many_rows(empty: sqlite3.Connection) -> None:
    wide = widened(QUERIES["event_insert"], 3)
    assert wide is not None
    rows = [(n, "kind", "bus", "it", None, f'{{"n":{n}}}') for n in range(3)]
    empty.execute("BEGIN")
    try:
        empty.execute(wide, [value for row in rows for value in row])
        found = empty.execute("SELECT at, kind, subject_kind, subject, actor, facts FROM events ORDER BY id").fetchall()
        assert found == rows
    finally:
        empty.execute("ROLLBACK")


@each_query
def test_only_plain_inserts_are_widened(name: str, empty: sqlite3.Connection) -> None:
    wide = widened(QUERIES[name], 16)
    if wide is None:
        assert not re.fullmatch(r"INSERT [^()]*\([^()]*\)\s*VALUES \([^()]*\)", QUERIES[name])
    else:
        assert width(wide) == 16 * width(QUERIES[name])
        empty.execute(f"EXPLAIN {wide}", [None] * width(wide)).fetchall()
