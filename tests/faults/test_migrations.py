"""A migration killed at any statement leaves the old or the new schema; a rebuild also within one, in little memory."""

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import agentbus
from agentbus.engine.sqlite.schema_check import schema_differences
from tests.faults.rows import integrity, rows, value
from tests.support.figures import Figure, Scale
from tests.support.processes import Team

MESSAGES = 20


@pytest.mark.fault(17)
@pytest.mark.parametrize("how", ["fresh", "upgrade"])
async def test_a_migration_killed_before_any_statement_leaves_the_old_schema_or_the_new(
    short: Path, team: Team, figure: Figure, scale: Scale, how: str
) -> None:
    source, folder, every = short / "source", short / "buses", scale(15, 1) if how == "fresh" else 1
    folder.mkdir()
    async with agentbus.connect(source) as bus, bus.agent("a", type="worker") as a:
        await a.send_many([("a", "note", n) for n in range(MESSAGES)])
    (newest,) = (value(source, "PRAGMA user_version"),)
    worker = team.start("worker_migrate", how, folder, source, every)
    ends = [(int(last), int(status)) for _, last, status in map(str.split, worker.finish(100))]
    old = new = 0
    for last, status in ends:
        path = folder / str(last)
        found = value(path, "PRAGMA user_version")
        assert status == (0 if last == ends[-1][0] else -signal.SIGKILL)
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
    assert old >= (60 // every if how == "fresh" else 8)
    # The next process to open it does what was interrupted.
    async with agentbus.connect(folder / str(ends[len(ends) // 2][0] if how == "fresh" else 1)) as bus:
        assert (await bus.stats()).messages == ({} if how == "fresh" else {"queued": MESSAGES})


@pytest.mark.slow
@pytest.mark.fault(17)
async def test_a_rebuild_killed_at_any_moment_leaves_the_old_schema_or_the_new(
    short: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    source, folder, every = short / "source", short / "buses", scale(35, 1)
    folder.mkdir()
    async with agentbus.connect(source) as bus, bus.agent("a", type="worker") as a:
        await a.send_many([("a", "note", "x" * 2000) for _ in range(MESSAGES)])
    _fill(source, scale(250, 500))
    newest, before = value(source, "PRAGMA user_version"), _contents(source)
    worker = team.start("worker_migrate", "rebuild", folder, source, every)
    ends = [line.split()[1:] for line in worker.finish(100)]
    finished = [name for name, status in ends if status == "0"]
    assert len(finished) == 2, "one of each series"
    assert {status for name, status in ends if name not in finished} == {str(-signal.SIGKILL)}
    old = new = 0
    for name, _ in ends:
        path = folder / name
        found = value(path, "PRAGMA user_version")
        assert integrity(path) == "ok"
        assert _contents(path) == before
        text = value(path, "SELECT group_concat(sql) FROM sqlite_schema WHERE type = 'table'")
        assert [word in text for word in ("'timer'", "'group'", "'parked'")] == [found > newest] * 3, name
        assert value(path, "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'rebuilt%'") == 0
        old, new = old + (found == newest), new + (found == newest + 1)
    within = sum(name.startswith("within") for name, _ in ends) - 1
    figure("rebuild", kills=len(ends) - 2, old=old, new=new, between=len(ends) - old - new, within=within)
    assert old + new == len(ends)
    assert old >= 100 // every
    assert within >= 5


@pytest.mark.slow
@pytest.mark.fault(16)
async def test_processes_that_open_a_bus_at_once_rebuild_its_tables_once(
    tmp_path: Path, team: Team, scale: Scale
) -> None:
    path, processes = tmp_path / "bus", scale(8, 20)
    async with agentbus.connect(path) as bus, bus.agent("a", type="worker") as a:
        await a.send_many([("a", "note", n) for n in range(MESSAGES)])
    newest = value(path, "PRAGMA user_version")
    answers = json.loads(team.start("worker_migrate", "crowd", path, processes).expect("answers", 60))
    assert answers == [{"queued": MESSAGES}] * processes
    assert value(path, "PRAGMA user_version") == newest + 1
    # Each run of the migration adds to it.
    assert value(path, "SELECT value FROM counters WHERE name = 'change'") == 1000


@pytest.mark.slow
@pytest.mark.fault(17)
async def test_a_rebuild_of_large_tables_needs_little_memory(
    tmp_path: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    megabytes = scale(16, 1024)
    path = tmp_path / "bus"
    async with agentbus.connect(path):
        pass
    newest = value(path, "PRAGMA user_version")
    with closing(sqlite3.connect(path / "bus.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("INSERT INTO mailboxes (kind, name, created) VALUES ('pool', 'p', 0)")
    _fill(path, megabytes * 2600)
    size = os.stat(path / "bus.db").st_size
    assert size >= megabytes * 2**20
    grew = int(team.start("worker_migrate", "open", path, preloaded=False).expect("grew", scale(60, 600)))
    figure(f"a rebuild of {size / 2**20:,.0f} MiB took {grew / 2**20:.0f} MiB of memory")
    # The page cache, the sorter and what SQLite itself is.
    assert grew < scale(30, 48) * 2**20
    assert value(path, "PRAGMA user_version") == newest + 1
    assert value(path, "SELECT count(*) FROM messages") == megabytes * 2600
    log = path / "bus.db-wal"
    assert not log.exists() or log.stat().st_size < 2**20


def _fill(path: Path, count: int) -> None:
    """Insert ``count`` short messages, each with an id of its own."""
    with closing(sqlite3.connect(path / "bus.db", isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
            " INSERT INTO messages (id, message_id, mailbox, sender, type, checksum, priority, status, max_attempts,"
            " created, payload) SELECT 1000 + i, hex(randomblob(16)), (SELECT min(id) FROM mailboxes), 'a', 'note', 0,"
            " 5, 'queued', 5, 1, '\"' || hex(randomblob(120)) || '\"' FROM n",
            [count],
        )
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _contents(path: Path) -> list[object]:
    """The parts that a rebuild must not change."""
    questions = (
        "SELECT * FROM messages ORDER BY id", "SELECT * FROM mailboxes ORDER BY id", "SELECT * FROM sqlite_sequence",
        "SELECT type, name, tbl_name FROM sqlite_schema ORDER BY type, name",
        "SELECT name, sql FROM sqlite_schema WHERE type <> 'table' ORDER BY name",
    )  # fmt: skip
    return [sorted(rows(path, question), key=repr) for question in questions]


def _is_new(path: Path) -> bool:
    with closing(sqlite3.connect(f"file:{path / 'bus.db'}?mode=ro", uri=True)) as connection:
        return not schema_differences(connection)
