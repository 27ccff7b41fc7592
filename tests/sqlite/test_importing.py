"""What the tables themselves refuse of an import: only that is left out."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from agentbus import Bus
from tests.conformance.old_ways import agent, write


async def test_a_row_that_the_tables_refuse_does_not_hold_up_the_others(bus: Bus, tmp_path: Path) -> None:
    connection = sqlite3.connect(bus.engine.directory / "bus.db", isolation_level=None)
    connection.execute(
        "CREATE TRIGGER no_bad_agents BEFORE INSERT ON agents WHEN NEW.id = 'bad'"
        " BEGIN SELECT RAISE(ABORT, 'nobody is called that'); END"
    )
    connection.close()
    write(tmp_path / "agent_state.json", [agent("a"), agent("bad"), agent("b")])
    write(tmp_path / "x.json", agent("x"))
    report = await bus.import_path(tmp_path)
    assert report.imported == {"agent": 3}
    assert [(problem.file, problem.line) for problem in report.problems] == [("agent_state.json", 2)]
    assert "nobody is called that" in report.problems[0].reason
    assert await bus.agents.get("bad") is None
