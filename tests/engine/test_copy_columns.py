"""Copying carries every table and every column that the schema has: a later migration cannot be forgotten."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import pytest

from agentbus.engine.queries import load
from agentbus.engine.sqlite.connection import Connection, migrations
from agentbus.engine.sqlite.migration import build
from agentbus.operations.copy import LEFT_OUT, TABLES

QUERIES = load("sqlite")
OF_THEIR_OWN = {"sequences"}
"""Copied like a table, but not one."""


@pytest.fixture(scope="module")
def schema() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:", isolation_level=None, factory=Connection)
    build(connection, [step for _, step in sorted(migrations().items())])
    yield connection
    connection.close()


def tables(schema: sqlite3.Connection) -> list[str]:
    found = schema.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )
    return [name for (name,) in found]


def columns(schema: sqlite3.Connection, table: str) -> dict[str, tuple[str, int]]:
    """The type of each column, and its position in the primary key."""
    return {name: (kind, key) for _, name, kind, _, _, key in schema.execute(f"PRAGMA table_info({table})")}


def read(schema: sqlite3.Connection, table: str) -> list[str]:
    """The columns that are read of a table, in their order."""
    found = schema.execute(QUERIES[f"copy_read_{table}"], (*TABLES[table].start, 1))
    return [column[0] for column in found.description]


def test_every_table_is_copied_or_left_out_for_a_reason(schema: sqlite3.Connection) -> None:
    assert set(tables(schema)) == (set(TABLES) - OF_THEIR_OWN) | set(LEFT_OUT)
    assert all(LEFT_OUT.values())


def test_every_table_is_counted(schema: sqlite3.Connection) -> None:
    counted = {name for name, _ in schema.execute(QUERIES["copy_counts"])}
    assert counted == set(TABLES) - OF_THEIR_OWN - {"counters"}


@pytest.mark.parametrize("table", [name for name in TABLES if name not in OF_THEIR_OWN])
def test_every_column_is_read_and_written(schema: sqlite3.Connection, table: str) -> None:
    known = columns(schema, table)
    carried = read(schema, table)
    assert sorted(carried) == sorted(known)
    if table != "counters":
        match = re.match(rf"INSERT INTO {table} \(([^)]*)\)\s+VALUES \(", QUERIES[f"copy_write_{table}"])
        assert match is not None
        assert match[1].replace(",", " ").split() == carried, "in the order in which they are read"


@pytest.mark.parametrize("table", [name for name in TABLES if name not in OF_THEIR_OWN])
def test_a_table_is_read_from_its_beginning_in_the_order_of_its_key(schema: sqlite3.Connection, table: str) -> None:
    known = columns(schema, table)
    key = sorted((name for name, (_, position) in known.items() if position), key=lambda name: known[name][1])
    assert read(schema, table)[: len(key)] == key
    start = TABLES[table].start
    assert [type(value) for value in start] == [int if known[name][0] == "INTEGER" else str for name in key]
    steps = [
        row[3]
        for name in ("copy_read_", "copy_sizes_")[: 1 + TABLES[table].long]
        for row in schema.execute(f"EXPLAIN QUERY PLAN {QUERIES[name + table]}", (*start, 1))
    ]
    assert all(step.startswith("SEARCH") for step in steps), "from one page to the next without a look at the others"


def test_a_table_with_text_of_any_length_is_read_by_its_size(schema: sqlite3.Connection) -> None:
    """JSON has the length that a setting allows; other text is bounded."""
    for table in TABLES.values():
        if table.name in OF_THEIR_OWN | {"meta"}:
            continue
        ((sql,),) = schema.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (table.name,))
        json = set(re.findall(r"json_valid\((\w+)\)", sql)) - BOUNDED
        assert table.long == bool(json), table.name
        if table.long:
            assert all(f"length({name})" in QUERIES[f"copy_sizes_{table.name}"] for name in json), table.name


BOUNDED = {"schema", "capabilities", "headers"}
"""JSON that the schema, or what everybody calls, keeps short; as are the facts of a bus."""


def test_every_sequence_and_counter_is_copied(schema: sqlite3.Connection) -> None:
    made = {
        name
        for (name, sql) in schema.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'")
        if "AUTOINCREMENT" in (sql or "")
    }
    assert {name for name, _ in schema.execute(QUERIES["copy_read_sequences"], ("", 100))} == made
    counters = {name for (name,) in schema.execute("SELECT name FROM counters")}
    own = {"directory", "topology"}
    assert {name for name, _ in schema.execute(QUERIES["copy_read_counters"], ("", 100))} == counters - own
