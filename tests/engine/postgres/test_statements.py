"""Named SQL on a real server: every query can be prepared, and what runs all the time finds its rows by an index."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

from agentbus.engine.postgres.connection import WRITING, Connection, connect
from agentbus.engine.postgres.server import parse
from agentbus.engine.postgres.statements import statements
from tests.support.cases import each
from tests.support.postgres import Schemas, at_schema
from tests.support.queries import HOT, LOOKS, STEPS

PARTS = [(name, part.sql) for name, parts in statements().items() for part in parts]
KNOWN = {"int8", "int4", "text", "bool", "void", "int8[]", "text[]", "json", "bytea"}

MANY = """
INSERT INTO mailboxes (kind, name, owner, created)
SELECT 'agent', 'a-' || n, 'a-' || n, 0 FROM generate_series(1, 50) n;
INSERT INTO agents (id, name, type, status, mailbox, replies, created, updated)
SELECT 'a-' || n, 'a', 'worker', 'running', n, n, 0, 0 FROM generate_series(1, 50) n;
INSERT INTO messages (
    id, message_id, mailbox, sender, type, payload, checksum, priority, status, max_attempts, holder, lease_until, due,
    expires, correlation, created, finished
)
SELECT n, CASE WHEN n % 3 = 0 THEN 'id-' || n END, 1 + n % 50, 'a', 'note', '1', 0, n % 10,
    CASE n % 20 WHEN 0 THEN 'leased' WHEN 1 THEN 'scheduled' WHEN 2 THEN 'dead' WHEN 3 THEN 'acked' ELSE 'queued' END,
    5, 'a', n, n, CASE WHEN n % 7 = 0 THEN n END, CASE WHEN n % 5 = 0 THEN 'r-' || n END, n,
    CASE WHEN n % 20 IN (2, 3) THEN n END
FROM generate_series(1, 20000) n;
INSERT INTO state (scope, key, version, change, expires, checksum, value, created, updated)
SELECT 's-' || n % 50, 'k-' || n, 1, n, CASE WHEN n % 3 > 0 THEN n END, 0, '1', 0, 0 FROM generate_series(1, 5000) n;
"""


class Server:
    """A connection as the writer has it, for tests that are not asynchronous."""

    def __init__(self, url: str, filled: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._connection: Connection = self._loop.run_until_complete(connect(parse(url), WRITING))
        if filled != "empty":
            self.run(self._connection.execute(MANY))
        if filled.endswith("analyzed"):
            # Not the tables of other schemas, which tests in this process have left.
            tables = self.run(
                self._connection.fetch("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
            )
            self.run(self._connection.execute(f"ANALYZE {', '.join(row[0] for row in tables)}"))

    def run(self, awaitable: Any) -> Any:
        return self._loop.run_until_complete(awaitable)

    def types(self, sql: str) -> tuple[list[str], list[str]]:
        prepared = self.run(self._connection.prepare(sql))
        return (
            [kind.name for kind in prepared.get_parameters()],
            [attribute.type.name for attribute in prepared.get_attributes()],
        )

    def plan(self, sql: str) -> list[str]:
        """The generic plan: what the writer uses, whatever the parameters are."""
        kinds, _ = self.types(sql)
        values = ", ".join("NULL" for _ in kinds)
        typed = f"PREPARE tried ({', '.join(kinds)}) AS {sql}" if kinds else f"PREPARE tried AS {sql}"
        self.run(self._connection.execute(typed))
        try:
            rows = self.run(self._connection.fetch(f"EXPLAIN EXECUTE tried{f'({values})' if kinds else ''}"))
        finally:
            self.run(self._connection.execute("DEALLOCATE tried"))
        return [row[0] for row in rows]

    def close(self) -> None:
        self.run(self._connection.close())
        self._loop.close()


@pytest.fixture(scope="module", params=["empty", "many messages", "many messages, analyzed"])
def server(request: pytest.FixtureRequest, schemas: Schemas) -> Iterator[Server]:
    """The planner's choice must not depend on how much is there, nor on whether ANALYZE was run."""
    name = schemas.take()
    found = Server(at_schema(schemas.url, name), request.param)
    yield found
    found.close()
    schemas.give_back(name)


@each(("name", "sql"), PARTS, ids=[f"{name}-{number}" for number, (name, _) in enumerate(PARTS)])
def test_a_query_can_be_prepared_on_the_real_schema(name: str, sql: str, schemas: Schemas) -> None:
    server = _plain(schemas)
    parameters, columns = server.types(sql)
    assert {*parameters, *columns} <= KNOWN
    assert {int(number) for number in re.findall(r"\$(\d+)", sql)} == set(range(1, len(parameters) + 1))


_opened: dict[int, Server] = {}


def _plain(schemas: Schemas) -> Server:
    if id(schemas) not in _opened:
        _opened[id(schemas)] = Server(at_schema(schemas.url, schemas.take()), "empty")
    return _opened[id(schemas)]


@each("name", sorted({*HOT, *LOOKS, *STEPS} - {"recovery_history", "recovery_beyond"}))
def test_a_hot_query_finds_its_rows_by_an_index(name: str, server: Server) -> None:
    for part in statements()[name]:
        steps = server.plan(part.sql)
        scanned = [step for step in steps if re.search(r"Seq Scan on (messages|agents|state|events|mailboxes)", step)]
        assert scanned == [], "\n".join(steps)


def test_the_most_urgent_message_is_found_without_sorting_the_queue(server: Server) -> None:
    steps = server.plan(statements()["message_ready"][-1].sql)
    limits = [position for position, step in enumerate(steps) if "Limit" in step]
    assert limits
    below = steps[limits[0] :]
    # Under the limit the index gives the order; what was found is sorted above it.
    indexed = next(step for step in below if "Index" in step and " on messages" in step)
    assert not [step for step in below[: below.index(indexed)] if "Sort" in step], "\n".join(steps)


def test_a_plan_that_scans_would_be_noticed(server: Server) -> None:
    assert any("Seq Scan on messages" in step for step in server.plan("SELECT * FROM messages WHERE sender = $1"))


async def test_a_question_that_would_lock_is_refused(url: str) -> None:
    from agentbus.engine.postgres.readers import Readers
    from agentbus.errors import NotWritable
    from agentbus.operations.protocol import Op, Query, Rows

    def locking() -> Op[Rows]:
        return (yield Query("message_held", ([1],)))

    readers = Readers(parse(url), 1.0)
    with pytest.raises(NotWritable):
        await readers.answer(locking)
    await readers.close()
