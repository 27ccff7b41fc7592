"""Formats hold on a server too, for every writer."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

import agentbus
from agentbus.engine.postgres.server import parse
from agentbus.errors import FormatRefused


@pytest.fixture
async def raw(url: str) -> AsyncIterator[Any]:
    async with agentbus.connect(url) as bus, bus.agent("a", type="worker"):
        connection = await asyncpg.connect(parse(url).dsn, server_settings={"search_path": parse(url).schema})
        yield connection
        await connection.close()


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO vocabulary (kind, name, created) VALUES ('message', 'two words', 0)",
        "INSERT INTO vocabulary (kind, name, created) VALUES ('thing', 'x', 0)",
        "DELETE FROM vocabulary",
        "TRUNCATE vocabulary CASCADE",
        "UPDATE vocabulary SET name = 'x' WHERE name = 'note'",
        "UPDATE agents SET type = 'nothing'",
        "UPDATE agents SET status = 'tired'",
        "UPDATE agents SET status = 'failed'",
        "UPDATE agents SET metadata = '[]'",
        "UPDATE agents SET metadata = '{'",
        "UPDATE agents SET mailbox = 999",
        "UPDATE agents SET progress = 101",
        "UPDATE agents SET id = 'new' || chr(10)",
        "INSERT INTO state (scope, key, version, change, checksum, value, created, updated)"
        " VALUES ('s', 'k', 1, 1, 0, '{', 0, 0)",
        "INSERT INTO state (scope, key, version, change, checksum, value, created, updated)"
        " VALUES ('s', '', 1, 1, 0, '1', 0, 0)",
        "INSERT INTO state (scope, key, version, change, checksum, value, created, updated)"
        " VALUES ('s', repeat('k', 257), 1, 1, 0, '1', 0, 0)",
        "INSERT INTO messages (id, mailbox, sender, type, payload, checksum, priority, status, max_attempts, created)"
        " VALUES (1, 1, 'a', 'unknown', '1', 0, 5, 'queued', 5, 0)",
        "INSERT INTO messages (id, mailbox, sender, type, payload, checksum, priority, status, max_attempts, created)"
        " VALUES (1, 1, 'a', 'note', 'x', 0, 5, 'queued', 5, 0)",
        "INSERT INTO messages (id, mailbox, sender, type, payload, checksum, priority, status, max_attempts, created)"
        " VALUES (1, 99, 'a', 'note', '1', 0, 5, 'queued', 5, 0)",
    ],
)
async def test_formats_hold_against_someone_writing_with_psql(raw: Any, statement: str) -> None:
    with pytest.raises((asyncpg.IntegrityConstraintViolationError, asyncpg.DataError)):
        await raw.execute(statement)


async def test_what_a_constraint_refuses_is_a_named_error(url: str) -> None:
    from agentbus.operations.protocol import ExecuteMany, operation

    @operation(durable=True)
    def break_a_rule(requests: Any, now: Any) -> Any:
        yield ExecuteMany("listener_insert", [("", 1)])
        return [None] * len(requests)

    async with agentbus.connect(url) as bus:
        with pytest.raises(FormatRefused):
            await bus._engine.write(break_a_rule, None)
