"""A primary that is lost, and a standby that takes its place, on a machine with another clock."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Iterator
from urllib.parse import quote

import pytest

import agentbus
from agentbus.core.clock import Now
from agentbus.engine.postgres.server import ServerClock
from agentbus.errors import AgentBusError, LeaseLost, NotWritable
from tests.support.guarded import run
from tests.support.postgres import Server, Standby

HOUR = 3600 * 1000


class HostClock(ServerClock):
    """The time of the server, as if the clock of its host were off by this many milliseconds."""

    ahead = 0

    def set(self, moment: int) -> Now:
        return super().set(moment + HostClock.ahead)


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Server, Standby]]:
    """A primary, and a standby that every commit waits for."""
    monkeypatch.setattr(HostClock, "ahead", 0)
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        monkeypatch.setenv("XDG_STATE_HOME", directory)
        primary = Server()
        standby = Standby(primary)
        run(primary.url, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")
        yield primary, standby
        primary.remove()
        standby.remove()


def cluster(*servers: Server) -> str:
    """The URL of a bus that is on one of these servers."""
    directories = ",".join(quote(str(server.directory), safe="") for server in servers)
    return f"postgresql://agentbus@/postgres?host={directories}"


@pytest.mark.parametrize("ahead", [HOUR, -HOUR], ids=["ahead", "behind"])
async def test_a_failover_loses_nothing_and_fails_no_agent(servers: tuple[Server, Standby], ahead: int) -> None:
    primary, standby = servers
    with pytest.raises(NotWritable, match="standby"):
        async with agentbus.connect(standby.url):
            pass
    server, *_ = await agentbus.doctor(standby.url)
    assert (server.name, server.status) == ("server", "error")
    assert "standby" in server.text
    # The standby is named first, and is not taken for the primary.
    url = cluster(standby, primary)
    async with (
        agentbus.connect(url, clock=HostClock(), beat_every=0.5) as bus,
        agentbus.connect(url, clock=HostClock(), beat_every=0.5) as other,
        bus.agent("a", type="worker") as a,
        other.agent("b", type="worker") as b,
    ):
        await a.send("b", "note", "held")
        held = await b.receive(timeout=10, lease=600)
        assert held is not None
        acknowledged: set[int] = set()
        begun, failed_over = asyncio.Event(), asyncio.Event()

        async def keep_sending() -> None:
            """With an id of its own each, so that one whose outcome is unknown can be sent again."""
            number = after = 0
            while after < 5:
                try:
                    await a.send("a", "note", number, message_id=f"id-{number}")
                except AgentBusError as error:
                    if not error.transient:
                        raise
                    continue
                acknowledged.add(number)
                number += 1
                after += failed_over.is_set()
                if number == 20:
                    begun.set()

        async def fail_over() -> None:
            await begun.wait()
            await asyncio.to_thread(primary.stop, signal.SIGQUIT)
            HostClock.ahead = ahead
            await asyncio.to_thread(standby.promote)
            failed_over.set()

        async with asyncio.timeout(60):
            await asyncio.gather(keep_sending(), fail_over())
            # The doorbell rings over the new server, too.
            waiting = asyncio.create_task(b.receive(timeout=50))
            await a.send("b", "note", "after")
            found = await waiting
            assert found is not None
            while found.payload != "after":
                # A clock that is ahead ends leases: what was held is delivered again, and the first holder is fenced.
                assert (ahead > 0, found.payload) == (True, "held")
                await found.ack()
                with pytest.raises(LeaseLost):
                    await held.ack()
                found = await b.receive(timeout=50)
                assert found is not None
            for _ in range(3):
                assert [finding for finding in (await bus.sweep()).findings if finding.kind == "agent_failed"] == []
            # A clock that is ahead makes processes look silent, until they beat by the new clock.
            found_running: set[str] = set()
            while found_running != {"a", "b"}:
                agents = (await bus.agents.list()).items
                assert {one.status for one in agents} <= {"running", "suspect"}
                found_running = {one.id for one in agents if one.status == "running"}
                await asyncio.sleep(0.05)
            stored: set[int] = set()
            while len(stored) < len(acknowledged):
                for message in await a.receive_many(100, timeout=10):
                    assert message.payload not in stored
                    stored.add(message.payload)
                    await message.ack()
            assert stored == acknowledged
