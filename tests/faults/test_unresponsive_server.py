"""An unresponsive server: callers get a named error and continue when it responds again."""

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
from agentbus.core.clock import SystemClock
from agentbus.engine.postgres import connection
from agentbus.engine.postgres.connection import connect, server_queries
from agentbus.engine.postgres.server import parse
from agentbus.errors import OutcomeUnknown, ServerUnreachable
from agentbus.sync.bus import open_bus, open_store
from tests.support.figures import Figure
from tests.support.postgres import Server

pytestmark = pytest.mark.slow


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """One that the test may stop; it counts as gone after a second instead of twenty."""
    monkeypatch.setattr(connection, "LONG", 0.3)
    monkeypatch.setattr(connection, "_CONNECT_TIMEOUT", 0.7)
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        monkeypatch.setenv("XDG_STATE_HOME", directory)
        server = Server()
        yield server
        server.tell(signal.SIGCONT)
        server.remove()


@pytest.mark.fault(22)
async def test_calls_to_an_unresponsive_server_fail_by_name_and_resume_with_it(server: Server, figure: Figure) -> None:
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
            with anyio.fail_after(30), pytest.raises(refusal):
                await call
        told = time.monotonic() - begun
        server.tell(signal.SIGCONT)
        begun = time.monotonic()
        await agent.send("a", "note", 1, message_id="id")
        back = time.monotonic() - begun
        # The one with the unknown outcome arrived when the server continued, or did not.
        assert (await bus.stats()).messages["queued"] in (3, 4)
        assert back < 5
    figure(f"a server that stands still: told after {told / 3:.1f} s, back after {back * 1000:.0f} ms")


def test_a_command_against_an_unresponsive_server_fails_by_name_too(server: Server) -> None:
    with open_bus(server.url, create=True, lock_timeout=0.5) as bus:
        bus.stats()
        server.tell(signal.SIGSTOP)
        with pytest.raises(ServerUnreachable):
            bus.stats()
        server.tell(signal.SIGCONT)
        bus.stats()


def test_a_holder_of_the_write_lock_gets_the_error_too(server: Server) -> None:
    with closing(open_store(server.url, create=True, lock_timeout=0.5)) as store:
        with pytest.raises(ServerUnreachable), store.pause_writes():
            server.tell(signal.SIGSTOP)
        server.tell(signal.SIGCONT)
        with store.pause_writes():
            pass


async def test_a_slow_response_is_awaited(server: Server) -> None:
    async with agentbus.connect(server.url, lock_timeout=30) as bus:
        agent = await bus.register("a", type="worker")
        other = await connect(parse(server.url))
        try:
            async with other.transaction():
                await other.execute(server_queries()["server_lock_alone"])
                sending = asyncio.create_task(agent.send("a", "note", 1))
                done, _ = await asyncio.wait([sending], timeout=1.5)
                assert not done
            receipt = await sending
        finally:
            await other.close()
        assert receipt.id == 1
        assert (await bus.stats()).messages == {"queued": 1}
