"""A later version of the tables: the closed lists of steps, mailboxes and messages take one more word.

It is injected, not shipped. That of SQLite is made of the tables of today, whatever they are, so that it stays true.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing

import pytest

import agentbus
from agentbus.engine.sqlite import connection as sqlite
from agentbus.engine.sqlite import health, restore, schema_check
from agentbus.engine.sqlite.migration import build
from agentbus.errors import SchemaTooNew
from tests.api.task_workers import work_off

TABLES = ("steps", "mailboxes", "messages")
_LISTS = {
    "steps": ("OR kind = 'expose')", "OR kind = 'expose' OR kind = 'timer')"),
    "mailboxes": ("'subscription', 'task')", "'subscription', 'task', 'group')"),
    "messages": (
        "status = 'dead' OR status = 'expired'),",
        "status = 'dead' OR status = 'expired' OR status = 'parked'),",
    ),
}
POSTGRES = """
ALTER TABLE steps DROP CONSTRAINT steps_kind_check,
    ADD CONSTRAINT steps_kind_check CHECK (kind IN (
        'step', 'phase', 'task', 'checkpoint', 'sleep', 'until', 'signal', 'receive', 'expose', 'timer'
    ));
ALTER TABLE mailboxes DROP CONSTRAINT mailboxes_kind_check,
    ADD CONSTRAINT mailboxes_kind_check
    CHECK (kind IN ('agent', 'replies', 'pool', 'topic', 'subscription', 'task', 'group'));
ALTER TABLE messages DROP CONSTRAINT messages_status_check,
    ADD CONSTRAINT messages_status_check
    CHECK (status IN ('queued', 'leased', 'acked', 'scheduled', 'dead', 'expired', 'parked'));
UPDATE counters SET value = value + 1000 WHERE name = 'change';
"""
NEW_WORDS = (
    "UPDATE steps SET kind = '{}' WHERE name = 'work'",
    "UPDATE mailboxes SET kind = '{}', owner = 'a' WHERE kind = 'pool'",
    "UPDATE messages SET status = '{}' WHERE status = 'queued'",
)
"""Each uses a word that its list may not have."""


def for_sqlite() -> str:
    """Return the migration of SQLite."""
    created = tables()
    for table, (old, new) in _LISTS.items():
        assert created[table].count(old) == 1
        created[table] = created[table].replace(old, new)
    count = "UPDATE counters SET value = value + 1000 WHERE name = 'change'"
    script = ";\n".join([*created.values(), count])
    return f"-- rebuilds: {', '.join(TABLES)}\n{script};"


def tables() -> dict[str, str]:
    """Return the statements that create the tables as they are, for a rebuild."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        build(database, [step for _, step in sorted(sqlite.migrations().items())])
        found = dict(database.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").fetchall())
    return {table: rebuilt(table, found[table]) for table in TABLES}


def rebuilt(table: str, sql: str) -> str:
    for begin in (f"CREATE TABLE {table} (", f'CREATE TABLE "{table}" ('):
        if sql.startswith(begin):
            return f"CREATE TABLE rebuilt_{table} ({sql.removeprefix(begin)}"
    raise AssertionError(sql)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], pytest.MonkeyPatch]]:
    """From now on agentbus has this migration of SQLite too; undoing what is returned takes it away again."""
    known = sqlite.migrations()

    def add(script: str) -> pytest.MonkeyPatch:
        steps = {**known, max(known) + 1: script}
        schema_check._created.cache_clear()
        for module in (sqlite, restore, health, schema_check):
            monkeypatch.setattr(module, "migrations", lambda: steps)
        return monkeypatch

    yield add
    schema_check._created.cache_clear()


@agentbus.workflow("widened")
async def widened(task: agentbus.Task) -> int:
    return await task.step("work", lambda: 7)


async def fill(bus: agentbus.Bus) -> None:
    """Something in each of the tables."""
    await bus.declare(agentbus.pool("jobs"))
    async with bus.agent("a", type="worker") as a:
        await a.send("a", "note", 1, message_id="first")
        await a.send(agentbus.pool("jobs"), "note", {"text": "x" * 5000})
    await bus.tasks.start(widened)
    await work_off(bus, widened)


async def widen(
    connect: Callable[[], agentbus.Bus],
    tamper: Callable[[str], Awaitable[bool]],
    add: Callable[[], pytest.MonkeyPatch],
) -> None:
    """Widen the lists of a bus with data, while a process of the older version has it open."""
    async with connect() as bus:
        await fill(bus)
    for statement in NEW_WORDS:
        assert not await tamper(statement.format("timer" if "steps" in statement else "parked")), statement
    async with connect() as old:
        before = (await old.messages.list()).items, (await old.tasks.list()).items
        added = add()
        async with connect() as new:
            assert ((await new.messages.list()).items, (await new.tasks.list()).items) == before
            assert [check for check in await new.doctor() if check.status == "error"] == []
            b = await new.register("b", type="worker")
            await b.send("b", "note", "of the new")
        # What was open before continues to work with the tables that it knows.
        agent = await old.register("c", type="worker")
        await agent.send("c", "note", "of the old")
        assert (await old.messages.get("first")) is not None
        added.undo()
        with pytest.raises(SchemaTooNew):
            async with connect():
                pytest.fail("this block must not run")
    for statement, word in zip(NEW_WORDS, ("timer", "group", "parked"), strict=True):
        assert not await tamper(statement.format("unheard-of")), statement
        assert await tamper(statement.format(word)), statement
