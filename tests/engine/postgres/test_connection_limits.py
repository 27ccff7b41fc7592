"""A server with few connections: said by name and soon, and those there are do."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

import agentbus
from agentbus.core import cancellation
from agentbus.engine.postgres.connection import Admission, connect, server_queries, terminate
from agentbus.engine.postgres.errors import CROWDED
from agentbus.engine.postgres.server import parse
from agentbus.errors import TooManyConnections
from tests.support.guarded import run
from tests.support.postgres import at_schema, server_url

CUT_OFF = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{}'"
LIMIT = "ALTER ROLE {} CONNECTION LIMIT {}"


@asynccontextmanager
async def limited(name: str, connections: int) -> AsyncIterator[str]:
    """Yield the URL of a bus of a user of its own, which may have this many connections."""
    # Unique on the server: other modules and other processes of the same run may use the plain name.
    name = f"{name}_{os.getpid()}"
    statements = (f"CREATE ROLE {name} LOGIN", f"CREATE SCHEMA {name} AUTHORIZATION {name}")
    await asyncio.to_thread(run, server_url(), *statements, LIMIT.format(name, connections))
    try:
        yield at_schema(server_url(), name).replace("agentbus@", f"{name}@")
    finally:
        await asyncio.to_thread(run, server_url(), f"DROP SCHEMA {name} CASCADE", f"DROP ROLE {name}")


def role(place: str) -> str:
    """Return the user of a bus made by ``limited``, which is the owner of the schema of the same name."""
    return parse(place).schema


@pytest.mark.usefixtures("url")
async def test_a_limit_of_connections_is_said_by_name_and_soon(caplog: pytest.LogCaptureFixture) -> None:
    async with limited("few", 2) as place, agentbus.connect(place) as bus, bus.agent("a", type="worker") as agent:
        with pytest.raises(TooManyConnections, match="few"):
            async with agentbus.connect(place):
                pass
        # A bus that has lost its connections, and is refused others.
        await asyncio.to_thread(run, server_url(), LIMIT.format(role(place), 0), CUT_OFF.format(role(place)))
        # The first call may find the connection in the middle of its end, and report that; the second finds none.
        for _ in range(2):
            begun = time.monotonic()
            with pytest.raises(TooManyConnections, match="few") as found:
                await agent.send("a", "note", 1)
            # Not lock_timeout, which is 30 s.
            assert time.monotonic() - begun < 15
            assert found.value.transient
            assert "CONNECTION LIMIT" in str(found.value.fix)
        said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert [text for text in said if "too many connections" in text and f"up to {CROWDED:g} s" in text]
        # The only one that there is goes to what writes, and reads too, whichever was first.
        await asyncio.to_thread(run, server_url(), LIMIT.format(role(place), 1))
        await _patiently(lambda: agent.send("a", "note", 2))
        assert [one.id for one in (await bus.agents.list()).items] == ["a"]


@pytest.mark.usefixtures("url")
async def test_open_buses_finish_while_every_further_connection_is_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A bus needs no connection beyond the two that it opened with; those that are refused have their turn later."""
    refused = asyncio.Event()

    async def work(bus: agentbus.Bus, name: str) -> None:
        async with bus.agent(name, type="worker") as agent:
            await agent.send(name, "note", name)
            message = await agent.receive(timeout=60)
            assert message is not None
            await message.ack()
            await agent.state.set("seen", message.payload)
            # More at once than there are connections.
            assert await asyncio.gather(*(agent.state.get("seen") for _ in range(5))) == [name] * 5
            record = await bus.agents.get(name)
            assert record is not None
            assert record.status == "running"

    async def early(held: AsyncExitStack, bus: agentbus.Bus, name: str) -> None:
        async with held:
            await work(bus, name)
            # Keep the connections until another client has found none.
            await refused.wait()

    async def late(place: str, name: str) -> None:
        while True:
            try:
                async with agentbus.connect(place) as bus:
                    return await work(bus, name)
            except TooManyConnections:
                refused.set()
                await asyncio.sleep(0.1)

    async with limited("packed", 0) as place, asyncio.timeout(120), asyncio.TaskGroup() as group:
        buses: list[tuple[AsyncExitStack, agentbus.Bus]] = []
        for number in range(6):
            await asyncio.to_thread(run, server_url(), LIMIT.format(role(place), 2 * (number + 1)))
            held = AsyncExitStack()
            buses.append((held, await held.enter_async_context(agentbus.connect(place))))
        with pytest.raises(TooManyConnections):
            async with agentbus.connect(place):
                pass
        waiting = [group.create_task(late(place, f"late-{number}")) for number in range(6)]
        await asyncio.gather(*(early(*bus, f"early-{number}") for number, bus in enumerate(buses)))
        await asyncio.gather(*waiting)
        async with agentbus.connect(place) as bus:
            statuses = {agent.id: agent.status for agent in (await bus.agents.list(limit=100)).items}
    assert statuses == {f"{kind}-{number}": "completed" for kind in ("early", "late") for number in range(6)}
    assert not [record for record in caplog.records if "lock" in record.getMessage()]


@pytest.mark.usefixtures("url")
async def test_agents_end_with_their_bus_although_its_last_words_have_to_wait(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancellation, "SHUTDOWN_TIMEOUT", 0.05)
    holder = await connect(parse(url))
    async with agentbus.connect(url) as bus:
        agent = await bus.register("a", type="worker")
        await holder.execute(server_queries()["server_block_writers"])
        last = asyncio.create_task(agent.send("a", "note", 1))
        asyncio.get_running_loop().call_later(0.5, terminate, holder)
        # The message is on its way to the server; what follows must wait for it.
        await asyncio.sleep(0)
    await asyncio.gather(last, return_exceptions=True)
    async with agentbus.connect(url) as bus, bus.agent("a", type="worker"):
        pass


async def _patiently(call: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await call()
                return
            except TooManyConnections:
                await asyncio.sleep(0.1)


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
        await asyncio.to_thread(run, server_url(), LIMIT.format(role(place), 2))
        async with agentbus.connect(place):
            pass


async def test_a_refusal_of_long_ago_holds_no_opening_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line, address = Admission(), parse(url)
    with pytest.raises(TooManyConnections):
        async with line.turn(address, 1):
            raise TooManyConnections(path=address.shown, reason="too many connections")
    loop = asyncio.get_running_loop()
    now = loop.time
    monkeypatch.setattr(loop, "time", lambda: now() + 60)
    # The second would wait for the first, and be refused with the old error.
    async with line.turn(address, 1), line.turn(address, 1):
        pass


@pytest.mark.usefixtures("url")
async def test_more_clients_than_connections_all_get_their_turn() -> None:
    """Each is refused by name until others have closed theirs; what is acknowledged is there."""
    refused = asyncio.Event()

    async def client(place: str, number: int) -> None:
        while True:
            try:
                async with agentbus.connect(place) as bus:
                    await bus.declare(agentbus.pool(f"p-{number}"))
                    # Keep the connections until another client has found none.
                    await refused.wait()
                    return
            except TooManyConnections:
                refused.set()
                await asyncio.sleep(0.05)

    async with limited("crowded", 8) as place:
        async with agentbus.connect(place), asyncio.timeout(60):
            await asyncio.gather(*(client(place, number) for number in range(6)))
        async with agentbus.connect(place) as bus:
            declared = [event.subject async for event in bus.events(kind="mailbox_declared")]
        assert sorted(declared) == sorted(f"pool:p-{number}" for number in range(6))
