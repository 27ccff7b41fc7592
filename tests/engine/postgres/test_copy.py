"""Copying carries every table and every column that the schema has on a server, too."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import agentbus
from agentbus.api.maintenance.copy import copy_bus
from agentbus.engine.postgres.connection import connect
from agentbus.engine.postgres.server import parse
from agentbus.engine.postgres.statements import statements
from agentbus.errors import AccessDenied, CopyFailed, CopyUnfinished, ServerUnreachable
from agentbus.operations.copy import LEFT_OUT, TABLES
from agentbus.sync.bus import open_bus, open_store
from tests.support.guarded import run
from tests.support.postgres import Schemas, at_schema

NO_TABLE = {"sequences"}
OF_THE_SERVER = {"migrations"}
NOT_KEPT = {"participants": {"id"}}
"""Columns that only number rows, for readers of the whole table."""


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


async def test_no_server_is_outgrown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("WAITS", "WRITERS", "SIZE"):
        monkeypatch.setenv(f"AGENTBUS_OUTGROWN_{bound}", "0.001")
    async with agentbus.connect(url) as bus:
        assert "room" not in {check.name for check in await bus.doctor()}
    assert "room" not in {check.name for check in await agentbus.doctor(url)}


async def test_without_the_right_to_make_a_schema_nothing_is_copied(url: str, tmp_path: Path) -> None:
    connection = await connect(parse(url))
    await connection.execute("DROP ROLE IF EXISTS nobodys; CREATE ROLE nobodys LOGIN")
    await connection.close()
    barred = url.replace("agentbus@", "nobodys@").rpartition("schema=")[0] + "schema=not_mine"

    def copy() -> None:
        open_bus(tmp_path / "bus", create=True).close()
        with closing(open_store(tmp_path / "bus")) as source, pytest.raises(AccessDenied):
            copy_bus(source, lambda: open_store(barred, create=True))

    await asyncio.to_thread(copy)


async def test_a_row_that_a_server_does_not_take_is_named(url: str, tmp_path: Path) -> None:
    """A NUL was written with the sqlite3 shell: a server has no such text."""

    def copy() -> None:
        with open_bus(tmp_path / "bus", create=True) as bus:
            bus.register("planner-1", type="worker")
        with closing(sqlite3.connect(tmp_path / "bus" / "bus.db", isolation_level=None)) as connection:
            connection.execute("UPDATE agents SET note = 'x' || char(0)")
        with (
            closing(open_store(tmp_path / "bus")) as source,
            pytest.raises(CopyFailed, match="of agents from planner-1"),
        ):
            copy_bus(source, lambda: open_store(url, create=True))

    await asyncio.to_thread(copy)


def test_a_copy_that_could_not_keep_others_from_writing_is_not_finished(url: str, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    with open_bus(url, create=True) as bus:
        bus.register("a", type="worker")
    cut: list[str] = []

    def progress(done: int, total: int, what: str) -> None:
        if what == "comparing vocabulary" and not cut:
            cut.append(what)
            run(
                parse(url).dsn,
                "SELECT pg_terminate_backend(pid) FROM pg_locks"
                " WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND pid <> pg_backend_pid()",
            )

    with closing(open_store(url)) as source:
        with pytest.raises(ServerUnreachable):
            copy_bus(source, lambda: open_store(target, create=True), progress)
        with pytest.raises(CopyUnfinished):
            open_bus(target)
        assert copy_bus(source, lambda: open_store(target)).resumed
