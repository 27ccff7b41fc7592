"""Migration of the tables of a bus: every step in its order, once, by the first process that opens it; all or none."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

import pytest

import agentbus
from agentbus.engine.postgres import connection as connections
from agentbus.engine.postgres import health
from agentbus.engine.postgres.server import parse
from agentbus.errors import SchemaTooNew, StoreError
from agentbus.sync.bus import open_bus
from tests.conftest import PostgresStore
from tests.support.clock import FakeClock
from tests.support.guarded import run
from tests.support.old_histories import check_histories
from tests.support.old_operators import CASES, OLD_OPERATORS, check_renamed
from tests.support.old_receipts import OWN_TYPE, check_receipts
from tests.support.old_tasks import NUMBERED, OLD_TASKS, STEPS, check_old_tasks, check_waits
from tests.support.postgres import Schemas, at_schema, server_url
from tests.support.widening import POSTGRES, widen

Later = Callable[..., None]
KNOWN = connections.migrations()
NEWEST = max(KNOWN)
JOINING = 10

# Each needs what the one before it made. The second is of several statements, one of which has a semicolon inside.
SECOND = """
CREATE TABLE chapters (number bigint NOT NULL PRIMARY KEY, title text COLLATE "C" NOT NULL);
CREATE FUNCTION chapters_grow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.title := NEW.title || '; more';
    RETURN NEW;
END
$$;
CREATE TRIGGER chapters_grow BEFORE INSERT ON chapters FOR EACH ROW EXECUTE FUNCTION chapters_grow();
"""
THIRD = "ALTER TABLE chapters ADD COLUMN pages bigint NOT NULL DEFAULT 7; INSERT INTO chapters VALUES (1, 'one');"
BROKEN = "INSERT INTO chapters VALUES (2, 'two'); INSERT INTO nothing VALUES (1);"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch, schemas: Schemas) -> Later:
    """From now on agentbus has these steps as well. The server is there."""

    def add(*steps: str) -> None:
        known = {**KNOWN, **dict(enumerate(steps, NEWEST + 1))}
        monkeypatch.setattr(connections, "migrations", lambda: known)

    return add


def steps(url: str) -> list[int]:
    """Return the number of migrations that the bus has beyond those of the package."""
    found = [row[0] for row in _rows(url, "SELECT version FROM {schema}.migrations ORDER BY version")]
    assert found[:NEWEST] == sorted(KNOWN)
    return [version - NEWEST for version in found[NEWEST:]]


def chapters(url: str) -> list[tuple[object, ...]]:
    return [tuple(row) for row in _rows(url, "SELECT number, title, pages FROM {schema}.chapters ORDER BY number")]


def _rows(url: str, sql: str) -> list[tuple[Any, ...]]:
    address = parse(url)
    (rows,) = run(address.dsn, sql.format(schema=address.identifier))
    return list(rows)


def place(name: str) -> str:
    """Return the URL of a schema that only the calling test uses, absent from the server."""
    name = f"migration_{name}_{os.getpid()}"
    run(server_url(), f"DROP SCHEMA IF EXISTS {name} CASCADE")
    return at_schema(server_url(), name)


async def test_a_bus_of_an_older_agentbus_is_brought_up_to_date(later: Later) -> None:
    url = await asyncio.to_thread(place, "older")
    async with agentbus.connect(url) as bus:
        await bus.declare(agentbus.pool("p"))
    assert await asyncio.to_thread(steps, url) == []
    later(SECOND, THIRD)
    async with agentbus.connect(url) as bus:
        agent = await bus.register("a", type="worker")
        await agent.send(agentbus.pool("p"), "note", 1)
    assert await asyncio.to_thread(steps, url) == [1, 2]
    assert await asyncio.to_thread(chapters, url) == [(1, "one; more", 7)]
    later()
    with pytest.raises(SchemaTooNew):
        async with agentbus.connect(url):
            pass


async def test_a_new_bus_goes_through_every_step(later: Later) -> None:
    url = await asyncio.to_thread(place, "newest")
    later(SECOND, THIRD)
    async with agentbus.connect(url):
        pass
    assert await asyncio.to_thread(steps, url) == [1, 2]
    assert await asyncio.to_thread(chapters, url) == [(1, "one; more", 7)]


@pytest.mark.parametrize("made", [True, False], ids=["older", "new"])
async def test_of_many_who_come_at_once_one_does_it(later: Later, made: bool) -> None:
    url = await asyncio.to_thread(place, "crowded")
    if made:
        async with agentbus.connect(url):
            pass
    later(SECOND, THIRD)

    async def come() -> None:
        async with agentbus.connect(url) as bus:
            await bus.stats()

    await asyncio.gather(*(come() for _ in range(8)))
    assert await asyncio.to_thread(steps, url) == [1, 2]
    assert await asyncio.to_thread(chapters, url) == [(1, "one; more", 7)]


async def test_those_who_have_it_open_work_on(later: Later) -> None:
    url = await asyncio.to_thread(place, "running")
    async with agentbus.connect(url) as old:
        agent = await old.register("a", type="worker")
        await agent.send("a", "note", 1)
        later(SECOND, "ALTER TABLE messages ADD COLUMN mood text; ALTER TABLE agents ADD COLUMN mood text;")
        async with agentbus.connect(url) as new:
            await (await new.register("b", type="worker")).send("a", "note", 2)
        assert [message.payload for message in await agent.receive_many(2, timeout=5)] == [1, 2]
        await agent.send("a", "note", 3)
        assert (await old.agents.get("b")) is not None


async def test_a_step_that_fails_changes_nothing(later: Later) -> None:
    url = await asyncio.to_thread(place, "broken")
    async with agentbus.connect(url):
        pass
    later(SECOND, THIRD, BROKEN)
    with pytest.raises(StoreError, match="nothing"):
        async with agentbus.connect(url):
            pass
    assert await asyncio.to_thread(steps, url) == []
    later(SECOND, THIRD)
    async with agentbus.connect(url):
        pass
    assert await asyncio.to_thread(chapters, url) == [(1, "one; more", 7)]


def test_a_command_brings_it_up_to_date_too(later: Later) -> None:
    url = place("commanded")
    open_bus(url, create=True).close()
    later(SECOND)
    with open_bus(url) as bus:
        assert bus.stats().messages == {}
    assert steps(url) == [1]


def test_the_files_are_numbered_without_a_gap() -> None:
    assert sorted(connections.migrations()) == list(range(1, len(connections.migrations()) + 1))


async def test_a_bus_of_the_first_version_comes_to_this_one(schemas: Schemas) -> None:
    url = await asyncio.to_thread(place, "first")
    queries = connections.server_queries()
    connection = await connections.connect(parse(url))
    for script in (
        queries["server_schema"].format(schema=parse(url).identifier), queries["server_migrations"], KNOWN[1],
        "INSERT INTO migrations (version) VALUES (1)",
        "INSERT INTO mailboxes (kind, name, created) VALUES ('pool', 'old', 0)",
    ):  # fmt: skip
        await connection.execute(script)
    await connection.close()
    async with agentbus.connect(url) as bus:
        agent = await bus.register("a", type="worker", pools=["old"])
        await agent.send(agentbus.pool("old"), "note", 1)
        message = await agent.receive(timeout=5)
        assert message is not None
        assert [check.name for check in await bus.doctor() if check.status == "error"] == []
    assert await asyncio.to_thread(steps, url) == []


async def test_a_bus_with_tasks_of_the_third_version_comes_to_this_one(schemas: Schemas) -> None:
    url = await asyncio.to_thread(place, "third")
    queries = connections.server_queries()
    connection = await connections.connect(parse(url))
    for script in (
        queries["server_schema"].format(schema=parse(url).identifier), queries["server_migrations"],
        KNOWN[1], KNOWN[2], KNOWN[3], "INSERT INTO migrations (version) VALUES (1), (2), (3)", OLD_TASKS,
    ):  # fmt: skip
        await connection.execute(script)
    await connection.close()
    async with agentbus.connect(url) as bus:
        await check_old_tasks(bus)
    assert await asyncio.to_thread(steps, url) == []


async def test_a_bus_with_messages_of_the_fourth_version_takes_headers(schemas: Schemas) -> None:
    url = await asyncio.to_thread(place, "fourth")
    queries = connections.server_queries()
    connection = await connections.connect(parse(url))
    for script in (
        queries["server_schema"].format(schema=parse(url).identifier), queries["server_migrations"],
        KNOWN[1], KNOWN[2], KNOWN[3], KNOWN[4], "INSERT INTO migrations (version) VALUES (1), (2), (3), (4)",
        "INSERT INTO mailboxes (kind, name, created) VALUES ('pool', 'old', 0)",
        "INSERT INTO messages (id, mailbox, sender, type, checksum, priority, status, max_attempts, created, payload)"
        " SELECT nextval('message_ids'), id, 'b', 'note', 2212294583, 5, 'queued', 5, 1, '1' FROM mailboxes",
        OWN_TYPE,
    ):  # fmt: skip
        await connection.execute(script)
    await connection.close()
    async with agentbus.connect(url) as bus:
        agent = await bus.register("a", type="worker", pools=["old"])
        await agent.send(agentbus.pool("old"), "note", 2, headers={"k": "v"})
        messages = await agent.receive_many(2, timeout=5)
        assert [(message.payload, message.headers) for message in messages] == [(1, {}), (2, {"k": "v"})]
        # Version 9 records deliveries.
        assert all(one.leased_at is not None for one in (await bus.messages.list()).items)
        await check_receipts(bus, messages[0].message_id)
        await check_histories(bus)
        assert [check.name for check in await bus.doctor() if check.status == "error"] == []
    assert await asyncio.to_thread(steps, url) == []


async def test_a_bus_with_tasks_of_the_fifth_version_takes_waits(schemas: Schemas) -> None:
    url = await asyncio.to_thread(place, "fifth")
    queries = connections.server_queries()
    connection = await connections.connect(parse(url))
    for script in (
        queries["server_schema"].format(schema=parse(url).identifier), queries["server_migrations"],
        *(KNOWN[version] for version in range(1, 6)),
        "INSERT INTO migrations (version) VALUES (1), (2), (3), (4), (5)", OLD_TASKS, NUMBERED,
        "INSERT INTO mailboxes (kind, name, created) VALUES ('pool', 'old', 0)",
    ):  # fmt: skip
        await connection.execute(script)
    before = await connection.fetch(STEPS)
    async with agentbus.connect(url) as bus:
        assert await connection.fetch(STEPS) == before
        await connection.close()
        await check_old_tasks(bus)
        await check_waits(bus)
    assert await asyncio.to_thread(steps, url) == []


@pytest.mark.parametrize(("taken", "prefix"), CASES, ids=["free", "taken"])
async def test_agents_of_the_fifth_version_give_the_names_of_people_back(
    schemas: Schemas, taken: str, prefix: str
) -> None:
    url = await asyncio.to_thread(place, f"fifth_{prefix[-1:].encode().hex()}")
    queries = connections.server_queries()
    connection = await connections.connect(parse(url))
    for script in (
        queries["server_schema"].format(schema=parse(url).identifier), queries["server_migrations"],
        *(KNOWN[version] for version in range(1, 6)),
        "INSERT INTO migrations (version) VALUES (1), (2), (3), (4), (5)", OLD_OPERATORS,
        "SELECT setval('message_ids', 4)", taken,
    ):  # fmt: skip
        await connection.execute(script)
    await connection.close()
    async with agentbus.connect(url) as bus:
        await check_renamed(bus, prefix)
    assert await asyncio.to_thread(steps, url) == []


async def test_a_bus_that_others_write_to_is_brought_up_to_date(later: Later) -> None:
    """An agent that joins writes to mailboxes, then to agents; the step locks both, in the opposite order."""
    for turn in range(2):
        url = await asyncio.to_thread(place, f"written_{turn}")
        later()
        async with agentbus.connect(url, beat_every=3600) as bus:
            joining = [asyncio.create_task(_join(bus, f"{number}")) for number in range(3)]
            await asyncio.sleep(0.05)
            later(
                "LOCK TABLE agents IN SHARE ROW EXCLUSIVE MODE; SELECT pg_sleep(0.02);"
                "LOCK TABLE mailboxes IN SHARE ROW EXCLUSIVE MODE;"
            )
            async with agentbus.connect(url, beat_every=3600):
                pass
            await asyncio.gather(*joining)
            assert (await bus.stats()).agents == {"running": 3 * JOINING}
        assert await asyncio.to_thread(steps, url) == [1]


async def _join(bus: agentbus.Bus, name: str) -> None:
    for number in range(JOINING):
        await bus.register(f"{name}-{number}", type="worker")


async def test_closed_lists_are_widened_on_a_bus_with_data(
    later: Later, monkeypatch: pytest.MonkeyPatch, clock: FakeClock
) -> None:
    """No table has to be rebuilt for that: a constraint is replaced by a wider one."""
    store = PostgresStore(await asyncio.to_thread(place, "widened"), clock)

    def add() -> pytest.MonkeyPatch:
        later(POSTGRES)
        monkeypatch.setattr(health, "migrations", connections.migrations)
        return monkeypatch

    await widen(store.connect, store.tamper, add)
    assert await asyncio.to_thread(steps, store.url) == [1]


async def test_of_many_who_come_at_once_one_widens_the_lists(later: Later) -> None:
    url = await asyncio.to_thread(place, "widened_once")
    async with agentbus.connect(url):
        pass
    later(POSTGRES)

    async def come() -> None:
        async with agentbus.connect(url) as bus:
            await bus.stats()

    await asyncio.gather(*(come() for _ in range(8)))
    assert await asyncio.to_thread(_rows, url, "SELECT value FROM {schema}.counters WHERE name = 'change'") == [(1000,)]
