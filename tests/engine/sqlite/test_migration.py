"""A bus that an older agentbus made is brought up to date when it is opened, with all that is in it."""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import agentbus
from agentbus import Task
from agentbus.engine.sqlite import connection, migration, schema_check
from agentbus.engine.sqlite.paths import Home
from agentbus.operations.notifications import open_notifiers
from tests.api.task_workers import work_off
from tests.support.old_histories import check_histories
from tests.support.old_operators import CASES, OLD_OPERATORS, check_renamed
from tests.support.old_receipts import OWN_TYPE, check_receipts
from tests.support.old_tasks import NUMBERED, OLD_TASKS, STEPS, check_old_tasks, check_waits


def contents(path: Path, tables: list[str]) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(path)) as database:
        return {table: database.execute(f"SELECT * FROM {table} ORDER BY 1, 2").fetchall() for table in tables}


FIRST = "13916e8c88ea13461ebeb6e03bf0e536110e9e628f9c8399cd0f750f3c9c8975"
OLD_TABLES = (
    "agents", "sessions", "messages", "mailboxes", "state", "checkpoints", "documents", "participants", "events",
)  # fmt: skip


def old_bus(directory: Path, schema: str) -> Path:
    """A bus of version 1 with something in each table."""
    directory.mkdir(mode=0o700)
    path = directory / "bus.db"
    with closing(sqlite3.connect(path)) as database:
        database.executescript(f"PRAGMA journal_mode = WAL; BEGIN; {schema}; PRAGMA user_version = 1; COMMIT;")
        database.executescript("""
            INSERT INTO processes (host, boot, pid, started, status, beat, created, ended)
            VALUES ('h', 'b', 41, '1', 'ended', 1, 1, 2);
            INSERT INTO sessions (id, operation, status, created, updated, ended)
            VALUES ('s-1', 'planning', 'completed', 1, 2, 2), ('s-2', 'planning', 'interrupted', 1, 2, NULL);
            INSERT INTO mailboxes (kind, name, owner, created) VALUES ('agent', 'a', 'a', 1), ('replies', 'a', 'a', 1);
            INSERT INTO agents (id, name, type, status, session, mailbox, replies, created, updated, ended)
            VALUES ('a', 'a', 'worker', 'failed', 's-2', 1, 2, 1, 2, 2);
            INSERT INTO messages (id, mailbox, sender, type, checksum, priority, status, max_attempts, created, payload)
            VALUES (1, 1, 'a', 'note', 2212294583, 5, 'queued', 5, 1, '1');
            UPDATE counters SET value = 1 WHERE name = 'message';
            INSERT INTO state (scope, key, version, change, checksum, created, updated, value)
            VALUES ('a', 'k', 1, 1, 2212294583, 1, 1, '1');
            UPDATE counters SET value = 1 WHERE name = 'change';
            INSERT INTO documents (session, name, version, checksum, created, value)
            VALUES ('s-1', 'plan', 1, '6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b', 1, '1');
            INSERT INTO participants (session, meeting, member, position, created) VALUES ('s-1', 'm', 'x', 0, 1);
            INSERT INTO checkpoints (owner_kind, owner, name, created, checksum, size, snapshot)
            VALUES ('agent', 'a', 'c', 1, '6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b', 1, '1');
            INSERT INTO events (at, kind, subject_kind, subject) VALUES (1, 'agent_failed', 'agent', 'a');
        """)
        database.commit()
    path.chmod(0o600)
    return path


@agentbus.workflow("after")
async def after(task: Task) -> int:
    return await task.step("work", lambda: 7)


async def test_a_bus_of_the_first_version_is_upgraded_with_all_that_is_in_it(tmp_path: Path) -> None:
    path = old_bus(tmp_path / "bus", connection.migrations()[1])
    before = contents(path, list(OLD_TABLES))
    async with agentbus.connect(tmp_path / "bus") as bus:
        kept = contents(path, [table for table in OLD_TABLES if table != "events"])
        # Headers and the last delivery came later.
        before["messages"] = [(*row, None, None) for row in before["messages"]]
        assert kept == {table: rows for table, rows in before.items() if table != "events"}
        task = await bus.tasks.start(after, session="s-2")
        await work_off(bus, after)
        record = await bus.tasks.get(task.id)
        assert record is not None
        assert record.result == 7
        assert [check for check in await bus.doctor() if check.status == "error"] == []
        assert (await bus.state("a").get("k")) == 1
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (max(connection.migrations()),)
        assert schema_check.missing_objects(database) == []
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []


async def test_a_bus_with_tasks_of_the_second_version_is_upgraded_with_all_of_them(tmp_path: Path) -> None:
    steps = connection.migrations()
    path = old_bus(tmp_path / "bus", steps[1])
    with sqlite3.connect(path) as database:
        database.executescript(f"BEGIN; {steps[2]}; PRAGMA user_version = 2; {OLD_TASKS} COMMIT;")
    async with agentbus.connect(tmp_path / "bus") as bus:
        await check_old_tasks(bus)
    with sqlite3.connect(path) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (max(steps),)
        assert schema_check.schema_differences(database) == []


async def test_a_bus_with_messages_of_the_fourth_version_takes_headers(tmp_path: Path) -> None:
    steps = connection.migrations()
    path = old_bus(tmp_path / "bus", steps[1])
    with closing(sqlite3.connect(path)) as database:
        for version in (2, 3, 4):
            database.executescript(f"BEGIN; {steps[version]}; PRAGMA user_version = {version}; COMMIT;")
    async with agentbus.connect(tmp_path / "bus") as bus:
        agent = await bus.register("a", type="worker")
        await agent.send("a", "note", 2, headers={"k": "v"})
        messages = await agent.receive_many(2, timeout=5)
        assert [(message.payload, message.headers) for message in messages] == [(1, {}), (2, {"k": "v"})]
        assert [check for check in await bus.doctor() if check.status == "error"] == []
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (max(steps),)
        assert schema_check.schema_differences(database) == []


async def test_a_bus_with_tasks_of_the_fifth_version_takes_waits(tmp_path: Path) -> None:
    steps = connection.migrations()
    path = old_bus(tmp_path / "bus", steps[1])
    with closing(sqlite3.connect(path)) as database:
        for version in (2, 3, 4, 5):
            database.executescript(f"BEGIN; {steps[version]}; PRAGMA user_version = {version}; COMMIT;")
        database.executescript(f"BEGIN; {OLD_TASKS} {NUMBERED}; COMMIT;")
        before = database.execute(STEPS).fetchall()
        boxes = database.execute("SELECT * FROM mailboxes ORDER BY id").fetchall()
    async with agentbus.connect(tmp_path / "bus") as bus:
        with closing(sqlite3.connect(path)) as database:
            assert database.execute(STEPS).fetchall() == before
            assert database.execute("SELECT * FROM mailboxes ORDER BY id").fetchall() == boxes
        await check_old_tasks(bus)
        await check_waits(bus)
    with closing(sqlite3.connect(path)) as database:
        assert schema_check.schema_differences(database) == []
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []


async def test_a_bus_with_messages_of_the_eighth_version_records_deliveries_and_receipts(tmp_path: Path) -> None:
    steps = connection.migrations()
    path = old_bus(tmp_path / "bus", steps[1])
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        migration.run(database, Home(tmp_path / "bus"), 1, {number: steps[number] for number in range(1, 9)})
        database.execute(OWN_TYPE)
    async with agentbus.connect(tmp_path / "bus") as bus:
        (before,) = (await bus.messages.list()).items
        assert before.leased_at is None
        agent = await bus.register("a", type="worker")
        message = await agent.receive(timeout=5)
        assert message is not None
        after = await bus.messages.get(before.message_id)
        assert after is not None
        assert after.leased_at is not None
        assert (await bus.tokens.create("read", operator="ada")).token in list(await bus.tokens.list())
        # Version 11 rebuilds the messages: one without a due time is held.
        await bus.quotas.change(thread=1)
        assert [(await agent.send("a", "note", correlation="t")).held for _ in range(2)] == [False, True]
        await check_receipts(bus, before.message_id)
        await check_histories(bus)
        # What happened before the upgrade is not notified.
        await bus._engine.write(open_notifiers, ("ada/ops",))
        (notifier,) = await bus.notifications.list()
        assert (notifier.status, notifier.delivered) == ("idle", 0)
    with closing(sqlite3.connect(path)) as database:
        assert schema_check.schema_differences(database) == []


@pytest.mark.parametrize(("taken", "prefix"), CASES, ids=["free", "taken"])
async def test_agents_of_the_fifth_version_give_the_names_of_people_back(
    tmp_path: Path, taken: str, prefix: str
) -> None:
    steps = connection.migrations()
    directory = tmp_path / "bus"
    directory.mkdir(mode=0o700)
    with closing(sqlite3.connect(directory / "bus.db")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        for version in range(1, 6):
            database.executescript(f"BEGIN; {steps[version]}; PRAGMA user_version = {version}; COMMIT;")
        database.executescript(f"PRAGMA foreign_keys = ON; BEGIN; {OLD_OPERATORS} {taken} COMMIT;")
    (directory / "bus.db").chmod(0o600)
    async with agentbus.connect(directory) as bus:
        await check_renamed(bus, prefix)
    with closing(sqlite3.connect(directory / "bus.db")) as database:
        assert schema_check.schema_differences(database) == []
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []
        assert database.execute("SELECT value FROM counters WHERE name = ?", [f"sent/{prefix}ada"]).fetchall() == [(7,)]


def test_the_first_version_stays_as_it_was_made_everywhere() -> None:
    """A change of released tables belongs to the newest migration; an older bus would never get it."""
    first = Path(__file__).parents[3] / "schemas" / "sqlite" / "0001_initial.sql"
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(first.read_text(encoding="utf-8"))
        # The statements as SQLite stores them, without the comments between them.
        rows = [
            *database.execute("SELECT type, name, sql FROM sqlite_schema ORDER BY rowid"),
            *database.execute("SELECT * FROM vocabulary"),
            *database.execute("SELECT * FROM counters"),
        ]
    assert hashlib.sha256(repr(rows).encode()).hexdigest() == FIRST
