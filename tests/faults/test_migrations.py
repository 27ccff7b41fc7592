"""A migration that is killed before any of its statements leaves the old schema or the new one."""

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import agentbus
from agentbus.engine.sqlite.shape import differences
from tests.faults.rows import integrity, rows, value
from tests.support.figures import Figure
from tests.support.processes import Team

MESSAGES = 20


@pytest.mark.fault(17)
@pytest.mark.parametrize("how", ["fresh", "upgrade"])
async def test_a_migration_killed_before_any_statement_leaves_the_old_schema_or_the_new(
    short: Path, team: Team, figure: Figure, how: str
) -> None:
    source, folder = short / "source", short / "buses"
    folder.mkdir()
    async with agentbus.connect(source) as bus, bus.agent("a", type="worker") as a:
        await a.send_many([("a", "note", n) for n in range(MESSAGES)])
    (newest,) = (value(source, "PRAGMA user_version"),)
    worker = team.start("worker_migrate", how, folder, source)
    ends = [list(map(int, line.split()[1:])) for line in worker.finish(100)]
    old = new = 0
    for last, status in ends:
        path = folder / str(last)
        found = value(path, "PRAGMA user_version")
        assert status == (0 if last == len(ends) else -signal.SIGKILL)
        if how == "fresh":
            assert found == 0 or _is_new(path)
            assert found or rows(path, "SELECT name FROM sqlite_schema") == []
        else:
            columns = {name for (name,) in rows(path, "SELECT name FROM pragma_table_info('agents')")}
            tables = {name for (name,) in rows(path, "SELECT name FROM sqlite_schema")}
            priorities = {priority for (priority,) in rows(path, "SELECT priority FROM messages")}
            traces = ("mood" in columns, "moods" in tables, "messages_dead" not in tables, priorities == {4})
            assert set(traces) == {found == newest + 1}, f"killed before statement {last}: {found}, {traces}"
            assert value(path, "SELECT count(*) FROM messages") == MESSAGES
        assert integrity(path) == "ok"
        new += found == (newest if how == "fresh" else newest + 1)
        old += found == (0 if how == "fresh" else newest)
    figure(how, kills=len(ends) - 1, old=old, new=new, between=len(ends) - old - new)
    assert old + new == len(ends)
    assert old >= (60 if how == "fresh" else 8)
    # Whoever comes next does what was cut off.
    async with agentbus.connect(folder / ("30" if how == "fresh" else "1")) as bus:
        assert (await bus.stats()).messages == ({} if how == "fresh" else {"queued": MESSAGES})


def _is_new(path: Path) -> bool:
    with closing(sqlite3.connect(f"file:{path / 'bus.db'}?mode=ro", uri=True)) as connection:
        return not differences(connection)
