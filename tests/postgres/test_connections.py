"""A server with few connections: said by name and soon, and those there are do."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import agentbus
from agentbus.engine.postgres.problems import CROWDED
from agentbus.errors import TooManyConnections
from tests.support.guarded import run
from tests.support.postgres import at_schema, server_url

LIMIT = "ALTER ROLE {} CONNECTION LIMIT {}"


@asynccontextmanager
async def limited(name: str, connections: int) -> AsyncIterator[str]:
    """A bus of a user of its own, which may have this many connections."""
    statements = (f"CREATE ROLE {name} LOGIN", f"CREATE SCHEMA {name} AUTHORIZATION {name}")
    await asyncio.to_thread(run, server_url(), *statements, LIMIT.format(name, connections))
    try:
        yield at_schema(server_url(), name).replace("agentbus@", f"{name}@")
    finally:
        await asyncio.to_thread(run, server_url(), f"DROP SCHEMA {name} CASCADE", f"DROP ROLE {name}")


@pytest.mark.usefixtures("url")
async def test_a_limit_of_connections_is_said_by_name_and_soon(caplog: pytest.LogCaptureFixture) -> None:
    async with limited("few", 2) as place, agentbus.connect(place) as bus, bus.agent("a", type="worker") as agent:
        # One writes and one listens; the next would read.
        begun = time.monotonic()
        with pytest.raises(TooManyConnections, match="few") as found:
            await bus.agents.list()
        # Not lock_timeout, which is 30 s.
        assert time.monotonic() - begun < 15
        assert found.value.transient
        assert "CONNECTION LIMIT" in str(found.value.fix)
        said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert [text for text in said if "too many connections" in text and f"up to {CROWDED:g} s" in text]
        # The connections that it has work as before.
        await agent.send("a", "note", 1)
        await asyncio.to_thread(run, server_url(), LIMIT.format("few", 3))
        assert [one.id for one in (await bus.agents.list()).items] == ["a"]


@pytest.mark.usefixtures("url")
async def test_questions_share_the_connections_that_there_are() -> None:
    async with limited("shared", 3) as place, agentbus.connect(place) as bus:
        answers = await asyncio.gather(*(bus.stats() for _ in range(20)))
        assert len(answers) == 20


@pytest.mark.usefixtures("url")
async def test_a_bus_that_cannot_be_opened_leaves_no_connection_behind() -> None:
    async with limited("one", 1) as place:
        for _ in range(3):
            with pytest.raises(TooManyConnections):
                async with agentbus.connect(place):
                    pass
        await asyncio.to_thread(run, server_url(), LIMIT.format("one", 2))
        async with agentbus.connect(place):
            pass


@pytest.mark.usefixtures("url")
async def test_more_clients_than_connections_all_get_their_turn() -> None:
    """Each is refused by name until others have closed theirs; what is acknowledged is there."""
    refused = 0

    async def client(place: str, number: int) -> None:
        nonlocal refused
        while True:
            try:
                async with agentbus.connect(place) as bus:
                    await bus.declare(agentbus.pool(f"p-{number}"))
                    await asyncio.sleep(0.1)
                    return
            except TooManyConnections:
                refused += 1
                await asyncio.sleep(0.05)

    async with limited("crowded", 8) as place:
        async with agentbus.connect(place), asyncio.timeout(60):
            await asyncio.gather(*(client(place, number) for number in range(6)))
        async with agentbus.connect(place) as bus:
            declared = [event.subject async for event in bus.events(kind="mailbox_declared")]
        assert sorted(declared) == sorted(f"pool:p-{number}" for number in range(6))
    assert refused > 0
