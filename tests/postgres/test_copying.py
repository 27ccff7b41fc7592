"""Copying carries every table and every column that the schema has on a server, too."""

from __future__ import annotations

import asyncio
import re

import pytest

from agentbus.engine.postgres.address import parse
from agentbus.engine.postgres.connection import connect
from agentbus.engine.postgres.statements import statements
from agentbus.operations.copying import LEFT_OUT, TABLES
from tests.support.postgres import Schemas, at_schema

NO_TABLE = {"sequences"}
OF_THE_SERVER = {"migrations"}
NOT_KEPT = {"participants": {"id"}}
"""Columns that only number rows for whoever reads them all."""


@pytest.fixture(scope="module")
def columns(schemas: Schemas) -> dict[str, set[str]]:
    name = schemas.take()

    async def found() -> list[tuple[str, str]]:
        connection = await connect(parse(at_schema(schemas.url, name)))
        try:
            rows = await connection.fetch(
                "SELECT table_name::text, column_name::text FROM information_schema.columns WHERE table_schema = $1",
                name,
            )
        finally:
            await connection.close()
        return [(row[0], row[1]) for row in rows]

    known: dict[str, set[str]] = {}
    for table, column in asyncio.run(found()):
        known.setdefault(table, set()).add(column)
    schemas.give_back(name)
    return known


def test_every_table_is_copied_or_left_out_for_a_reason(columns: dict[str, set[str]]) -> None:
    assert set(columns) == (set(TABLES) - NO_TABLE) | set(LEFT_OUT) | OF_THE_SERVER


@pytest.mark.parametrize("table", [name for name in TABLES if name not in NO_TABLE | {"counters"}])
def test_every_column_is_read_and_written(columns: dict[str, set[str]], table: str) -> None:
    (read,), (write,) = (statements()[f"copy_{verb}_{table}"] for verb in ("read", "write"))
    match = re.match(rf"SELECT\s+(.*?)\s+FROM {table} ", read.sql, re.DOTALL)
    written = re.match(rf"INSERT INTO {table} \(([^)]*)\)", write.sql)
    assert match is not None
    assert written is not None
    carried = match[1].replace(",", " ").split()
    assert carried == written[1].replace(",", " ").split()
    assert set(carried) == columns[table] - NOT_KEPT.get(table, set())
