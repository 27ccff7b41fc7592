"""An unresponsive server: callers get a named error and continue when it responds again."""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import anyio
import pytest

import agentbus
from agentbus.core.clock import SystemClock
from agentbus.engine.postgres import connection
from agentbus.engine.postgres.connection import Connection, connect, server_queries
from agentbus.engine.postgres.server import Address, parse
from agentbus.errors import OutcomeUnknown, ServerUnreachable
from agentbus.sync.bus import open_bus, open_store
from tests.support.figures import Figure
from tests.support.postgres import Server, brief_retries

pytestmark = pytest.mark.slow


@pytest.fixture
def server() -> Iterator[Server]:
    """One that the test may stop."""
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", directory)
        server = Server()
        yield server
        server.tell(signal.SIGCONT)
        server.remove()


@contextmanager
def unresponsive(server: Server) -> Iterator[None]:
    """Stop the server within the block, and shorten the timeouts, which must not apply to a server that responds."""
    with brief_retries(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection, "LONG", 0.05)
        patch.setattr(connection, "_CONNECT_TIMEOUT", 0.1)
        server.tell(signal.SIGSTOP)
        yield
    server.tell(signal.SIGCONT)


@pytest.mark.fault(22)
async def test_calls_to_an_unresponsive_server_fail_by_name_and_resume_with_it(server: Server, figure: Figure) -> None:
    async with agentbus.connect(server.url, lock_timeout=30, beat_every=3600, clock=SystemClock()) as bus:
        agent = await bus.register("a", type="worker")
        for _ in range(2):
            await agent.send("a", "note", "before")
        with unresponsive(server):
            begun = time.monotonic()
            for call, refusal in (
                (agent.send("a", "note", 1), OutcomeUnknown),
                (agent.send("a", "note", 1, message_id="id"), ServerUnreachable),
                (bus.agents.list(), ServerUnreachable),
            ):
                with anyio.fail_after(30), pytest.raises(refusal):
                    await call
            failed = time.monotonic() - begun
        begun = time.monotonic()
        await agent.send("a", "note", 1, message_id="id")
        back = time.monotonic() - begun
        # The one with the unknown outcome arrived when the server continued, or did not.
        assert (await bus.stats()).messages["queued"] in (3, 4)
        assert back < 20
    figure(f"an unresponsive server: an error after {failed / 3:.1f} s, back after {back * 1000:.0f} ms")


def test_a_command_against_an_unresponsive_server_fails_by_name_too(server: Server) -> None:
    with open_bus(server.url, create=True, lock_timeout=30) as bus:
        bus.stats()
        with unresponsive(server), pytest.raises(ServerUnreachable):
            bus.stats()
        bus.stats()


def test_a_holder_of_the_write_lock_gets_the_error_too(server: Server) -> None:
    with closing(open_store(server.url, create=True, lock_timeout=30)) as store:
        with ExitStack() as stopped, pytest.raises(ServerUnreachable), store.pause_writes():
            stopped.enter_context(unresponsive(server))
        with store.pause_writes():
            pass


async def test_a_slow_response_is_awaited(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    probed = asyncio.Semaphore(0)

    async def probe(address: Address) -> Connection:
        try:
            return await connect(address)
        finally:
            probed.release()

    async with agentbus.connect(server.url, lock_timeout=30) as bus:
        agent = await bus.register("a", type="worker")
        other = await connect(parse(server.url))
        try:
            async with other.transaction():
                await other.execute(server_queries()["server_lock_alone"])
                monkeypatch.setattr(connection, "LONG", 0.05)
                monkeypatch.setattr(connection, "connect", probe)
                sending = asyncio.create_task(agent.send("a", "note", 1))
                with anyio.fail_after(60):
                    for _ in range(3):
                        await probed.acquire()
                assert not sending.done()
                monkeypatch.undo()
            receipt = await sending
        finally:
            await other.close()
        assert receipt.id == 1
        assert (await bus.stats()).messages == {"queued": 1}
