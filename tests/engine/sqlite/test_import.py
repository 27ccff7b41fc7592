"""Importing and the files of SQLite: a bus is not imported by its own, and only what its tables refuse is left out."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from agentbus import Bus
from agentbus.errors import NotImportable
from tests.api.helpers import worker
from tests.api.legacy_files import agent, write


async def test_a_row_that_the_tables_refuse_does_not_hold_up_the_others(bus: Bus, tmp_path: Path) -> None:
    connection = sqlite3.connect(bus._engine.directory / "bus.db", isolation_level=None)
    connection.execute(
        "CREATE TRIGGER no_bad_agents BEFORE INSERT ON agents WHEN NEW.id = 'bad'"
        " BEGIN SELECT RAISE(ABORT, 'no agent has this name'); END"
    )
    connection.close()
    write(tmp_path / "agent_state.json", [agent("a"), agent("bad"), agent("b")])
    write(tmp_path / "x.json", agent("x"))
    report = await bus.import_path(tmp_path)
    assert report.imported == {"agent": 3}
    assert [(problem.file, problem.line) for problem in report.problems] == [("agent_state.json", 2)]
    assert "no agent has this name" in report.problems[0].reason
    assert await bus.agents.get("bad") is None


async def test_a_bus_is_not_imported_by_its_files(bus: Bus, tmp_path: Path) -> None:
    home = bus._engine.directory
    for path in (home, home / "bus.db", home / "bus.db-wal"):
        with pytest.raises(NotImportable) as refused:
            await bus.import_path(path)
        assert refused.value.code == "not_importable"
        assert "export" in str(refused.value.fix)
    report = await bus.import_path(home.parent)
    assert report.imported == {}
    assert any("the home of a bus" in problem.reason for problem in report.problems)
    copy = (await bus.backup(tmp_path / "copy.db")).path
    report = await bus.import_path(copy)
    assert report.refused == 1
    assert "the database of a bus" in report.problems[0].reason
    a = await worker(bus, "a")
    await a.send("a", "note", "the locks are still there")
