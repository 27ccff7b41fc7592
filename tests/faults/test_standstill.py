"""A server that stands still without a word: whoever waits for it hears of that, and goes on when it does."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing

import anyio
import pytest

import agentbus
from agentbus.blocking import open_bus, open_store
from agentbus.clock import SystemClock
from agentbus.engine.postgres import connection, standstill
from agentbus.engine.postgres.address import parse
from agentbus.engine.postgres.connection import connect, server_queries
from agentbus.errors import OutcomeUnknown, ServerUnreachable
from tests.support.figures import Figure
from tests.support.postgres import Server

pytestmark = pytest.mark.slow


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """One that the test may stop; it counts as gone after a second instead of twenty."""
    monkeypatch.setattr(standstill, "LONG", 0.3)
    monkeypatch.setattr(connection, "_PATIENCE", 0.7)
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        monkeypatch.setenv("XDG_STATE_HOME", directory)
        server = Server()
        yield server
        server.tell(signal.SIGCONT)
        server.remove()


@pytest.mark.fault(22)
async def test_whoever_asks_a_server_that_stands_still_is_told_and_goes_on_when_it_does(
    server: Server, figure: Figure
) -> None:
    async with agentbus.connect(server.url, lock_timeout=0.5, beat_every=3600, clock=SystemClock()) as bus:
        agent = await bus.register("a", type="worker")
        for _ in range(2):
            await agent.send("a", "note", "before")
        server.tell(signal.SIGSTOP)
        begun = time.monotonic()
        for call, refusal in (
            (agent.send("a", "note", 1), OutcomeUnknown),
            (agent.send("a", "note", 1, message_id="id"), ServerUnreachable),
            (bus.agents.list(), ServerUnreachable),
        ):
            with anyio.fail_after(10), pytest.raises(refusal):
                await call
        told = time.monotonic() - begun
        server.tell(signal.SIGCONT)
        begun = time.monotonic()
        await agent.send("a", "note", 1, message_id="id")
        back = time.monotonic() - begun
        # The one of which nobody knew arrived when the server went on, or did not.
        assert (await bus.stats()).messages["queued"] in (3, 4)
        assert back < 5
    figure(f"a server that stands still: told after {told / 3:.1f} s, back after {back * 1000:.0f} ms")


def test_the_command_line_is_told_too(server: Server) -> None:
    with open_bus(server.url, create=True, lock_timeout=0.5) as bus:
        bus.stats()
        server.tell(signal.SIGSTOP)
        with pytest.raises(ServerUnreachable):
            bus.stats()
        server.tell(signal.SIGCONT)
        bus.stats()


def test_so_is_whoever_keeps_others_from_writing(server: Server) -> None:
    with closing(open_store(server.url, create=True, lock_timeout=0.5)) as store:
        with pytest.raises(ServerUnreachable), store.still():
            server.tell(signal.SIGSTOP)
        server.tell(signal.SIGCONT)
        with store.still():
            pass


async def test_an_answer_that_merely_takes_long_is_waited_for(server: Server) -> None:
    async with agentbus.connect(server.url, lock_timeout=30) as bus:
        agent = await bus.register("a", type="worker")
        other = await connect(parse(server.url))
        try:
            async with other.transaction():
                await other.execute(server_queries()["server_lock_alone"])
                sending = asyncio.create_task(agent.send("a", "note", 1))
                done, _ = await asyncio.wait([sending], timeout=2.5)
                assert not done
            receipt = await sending
        finally:
            await other.close()
        assert receipt.id == 1
        assert (await bus.stats()).messages == {"queued": 1}
