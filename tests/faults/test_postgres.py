"""A server that restarts, crashes or drops connections around a commit: no acknowledged write is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import anyio
import asyncpg
import pytest

import agentbus
from agentbus import Agent, Bus
from agentbus.errors import AgentBusError, OutcomeUnknown, ServerUnreachable
from tests.support.figures import Figure, Scale
from tests.support.postgres import Server, brief_retries
from tests.support.proxy import proxied, socket_and_schema

pytestmark = pytest.mark.slow

BACK = 5.0
"""Seconds after which all continues, once the server can be reached again."""


@pytest.fixture
def server() -> Iterator[Server]:
    """One that the test may stop."""
    server = Server()
    yield server
    server.remove()


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        monkeypatch.setenv("XDG_STATE_HOME", directory)
        yield


class Load:
    """Senders that try again under the same id until they have a receipt, and receivers that acknowledge."""

    def __init__(self, bus: Bus, agents: list[Agent]) -> None:
        self.bus = bus
        self.agents = agents
        self.sent: set[str] = set()
        self.handled: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.stopped = False

    async def send(self, agent: Agent) -> None:
        number = 0
        while not self.stopped:
            number += 1
            message_id = f"{agent.id}.{number}"
            while not await self._sent(agent, message_id):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            self.sent.add(message_id)
            await asyncio.sleep(0.002)

    async def _sent(self, agent: Agent, message_id: str) -> bool:
        try:
            await agent.send("sink", "note", message_id, message_id=message_id)
        except AgentBusError as error:
            assert error.transient, error  # noqa: PT017
            self.errors[error.code] += 1
            return False
        return True

    async def take(self, sink: Agent) -> None:
        """Until every message is acknowledged after the senders stopped."""
        while True:
            try:
                message = await sink.receive(timeout=0.2, lease=2)
                if message is None:
                    if self.stopped and (await self.bus.stats()).messages.keys() == {"acked"}:
                        return
                    continue
                self.handled[message.payload] += 1
                await message.ack()
            except agentbus.errors.LeaseLost:
                self.errors["lease_lost"] += 1
            except AgentBusError as error:
                assert error.transient, error  # noqa: PT017
                self.errors[error.code] += 1
                await asyncio.sleep(0.02)

    async def more(self, count: int) -> None:
        """Wait until ``count`` more are sent."""
        wanted = len(self.sent) + count
        with anyio.fail_after(60):
            while len(self.sent) < wanted:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def back(self) -> float:
        """Wait until messages are sent and handled again, some of them begun since; return how long that took."""
        begun = time.monotonic()
        wanted, handled = len(self.sent) + len(self.agents), self.handled.total() + 1
        with anyio.fail_after(60):
            while len(self.sent) < wanted or self.handled.total() <= handled:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return time.monotonic() - begun

    async def run(self, trouble: Any) -> None:
        sink, *senders = self.agents
        async with anyio.create_task_group() as tasks:
            for agent in senders:
                tasks.start_soon(self.send, agent)
            tasks.start_soon(self.take, sink)
            await trouble()
            self.stopped = True


async def crew(bus: Bus, other: Bus) -> list[Agent]:
    return [
        await bus.register("sink", type="worker"),
        *[await (bus, other)[number % 2].register(f"s-{number}", type="worker") for number in range(4)],
    ]


async def all_there(load: Load, bus: Bus, times: list[float], figure: Figure, note: str) -> None:
    """Every message that was acknowledged to its sender is there, once, and was handled at least once; and it never
    took long until it continued."""
    counts = (await bus.stats()).messages
    figure(
        f"{note}, back after {max(times) * 1000:.0f} ms at most",
        faults=len(times),
        acknowledged=len(load.sent),
        lost=len(load.sent - set(load.handled)),
        duplicated=sum(counts.values()) - len(load.handled),
    )
    assert len(load.sent) > 20
    assert set(load.handled) >= load.sent
    assert counts == {"acked": sum(counts.values())}
    # With its id, nothing that was sent again became two.
    assert sum(counts.values()) == len(load.handled)
    assert max(times) < BACK


@pytest.mark.fault(22)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["restarted", "crashed"])
async def test_a_server_that_restarts_under_load_loses_nothing(
    server: Server, how: signal.Signals, figure: Figure, scale: Scale
) -> None:
    times: list[float] = []
    async with agentbus.connect(server.url) as bus, agentbus.connect(server.url) as other:
        load = Load(bus, await crew(bus, other))

        async def trouble() -> None:
            for _ in range(scale(1, 10, 100)):
                await load.more(25)
                await asyncio.to_thread(server.restart, how)
                times.append(await load.back())

        with anyio.fail_after(scale(100, 300, 3000)):
            await load.run(trouble)
        await all_there(load, bus, times, figure, "server shut down" if how is signal.SIGINT else "server crashed")


@pytest.mark.fault(22)
async def test_backends_that_are_killed_are_replaced(url: str, figure: Figure, scale: Scale) -> None:
    times: list[float] = []
    async with agentbus.connect(url) as bus, agentbus.connect(url) as other:
        load = Load(bus, await crew(bus, other))

        async def trouble() -> None:
            connection = await asyncpg.connect(url.partition("&schema")[0])
            for _ in range(scale(2, 50, 500)):
                await load.more(10)
                await connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'agentbus'"
                )
                times.append(await load.back())
            await connection.close()

        with anyio.fail_after(scale(60, 300, 3000)):
            await load.run(trouble)
        await all_there(load, bus, times, figure, "all backends killed")


@pytest.mark.fault(22)
@pytest.mark.parametrize("how", ["before", "after"])
async def test_a_connection_cut_at_commit_loses_and_doubles_nothing(
    url: str, how: str, figure: Figure, scale: Scale
) -> None:
    socket, schema = socket_and_schema(url)
    count = scale(12, 100, 1000)
    times: list[float] = []
    async with proxied(socket) as proxy:
        place = f"postgresql://agentbus@127.0.0.1:{proxy.port}/postgres?schema={schema}"
        async with agentbus.connect(place, beat_every=3600) as bus:
            agent = await bus.register("a", type="worker")
            for number in range(count):
                proxy.cut = how
                with pytest.raises(OutcomeUnknown) as found:
                    await agent.send("a", "note", number, message_id=f"id-{number}")
                assert found.value.transient
                begun = time.monotonic()
                receipt = await agent.send("a", "note", number, message_id=f"id-{number}")
                times.append(time.monotonic() - begun)
                assert receipt.duplicate == (how == "after")
            there = (await bus.stats()).messages
            received = [message.payload for message in await agent.receive_many(2 * count, timeout=30)]
            figure(
                f"connection cut {how} COMMIT, back after {max(times) * 1000:.0f} ms at most",
                faults=proxy.cuts,
                acknowledged=count,
                lost=len(set(range(count)) - set(received)),
                duplicated=len(received) - len(set(received)),
            )
            assert proxy.cuts == count
            assert there == {"queued": count}
            assert sorted(received) == list(range(count))
            assert max(times) < BACK


async def test_a_waiting_receiver_is_woken_by_a_commit_whose_connection_was_cut(url: str) -> None:
    """In the same process, which no notification is sent to; long before the next beat, which is an hour away."""
    socket, schema = socket_and_schema(url)
    async with proxied(socket) as proxy:
        place = f"postgresql://agentbus@127.0.0.1:{proxy.port}/postgres?schema={schema}"
        async with agentbus.connect(place, beat_every=3600) as bus:
            a, b = await bus.register("a", type="worker"), await bus.register("b", type="worker")
            waiting = asyncio.create_task(b.receive(timeout=30))
            await asyncio.sleep(0.1)
            proxy.cut = "after"
            with pytest.raises(OutcomeUnknown):
                await a.send("b", "note", 1, message_id="id")
            with anyio.fail_after(60):
                message = await waiting
            assert message is not None
            assert message.payload == 1


@pytest.mark.fault(22)
async def test_a_message_whose_notification_is_lost_is_found_at_once_after_the_connection_is_back(
    url: str, figure: Figure, scale: Scale
) -> None:
    """Long before the next beat, which is an hour away."""
    times: list[float] = []
    async with agentbus.connect(url, beat_every=3600) as bus, agentbus.connect(url, beat_every=3600) as other:
        a, b = await bus.register("a", type="worker"), await other.register("b", type="worker")
        connection = await asyncpg.connect(url.partition("&schema")[0])
        for number in range(scale(3, 20, 200)):
            waiting = asyncio.create_task(a.receive(timeout=30))
            await asyncio.sleep(0.05)
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE 'LISTEN %'"
                " OR query LIKE '%pg_notify%' AND pid <> pg_backend_pid()"
            )
            await b.send("a", "note", number)
            begun = time.monotonic()
            message = await waiting
            assert message is not None
            assert message.payload == number
            times.append(time.monotonic() - begun)
            await message.ack()
        await connection.close()
        counts = (await bus.stats()).messages
    figure(
        f"notification missed, message found after {max(times) * 1000:.0f} ms at most",
        faults=len(times),
        acknowledged=len(times),
        lost=len(times) - counts["acked"],
        duplicated=sum(counts.values()) - len(times),
    )
    assert counts == {"acked": len(times)}
    assert max(times) < BACK


async def test_an_unavailable_server_is_a_named_error_and_nothing_is_written(server: Server) -> None:
    async with agentbus.connect(server.url, lock_timeout=30, beat_every=3600) as bus:
        agent = await bus.register("a", type="worker")
        await asyncio.to_thread(server.stop)
        with brief_retries():
            with pytest.raises((ServerUnreachable, OutcomeUnknown)):
                await agent.send("a", "note", 1)
            with pytest.raises(ServerUnreachable):
                await agent.send("a", "note", 2)
            with pytest.raises(ServerUnreachable):
                await bus.stats()
        await asyncio.to_thread(server.start)
        await agent.send("a", "note", 3)
        message = await agent.receive(timeout=30)
        assert message is not None
        assert message.payload == 3


async def test_closing_a_bus_whose_server_was_stopped_does_not_hang(server: Server) -> None:
    begun = time.monotonic()
    async with agentbus.connect(server.url) as bus:
        await bus.register("a", type="worker")
        await asyncio.to_thread(server.stop)
        begun = time.monotonic()
    assert time.monotonic() - begun < 20


async def test_closing_a_bus_whose_server_is_unresponsive_does_not_hang(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentbus.core.cancellation.SHUTDOWN_TIMEOUT", 0.2)
    monkeypatch.setattr("agentbus.engine.postgres.writer.CLOSE_TIMEOUT", 0.2)
    connection = await asyncpg.connect(server.url)
    async with agentbus.connect(server.url) as bus:
        await bus.register("a", type="worker")
        found = await connection.fetch("SELECT pid FROM pg_stat_activity WHERE application_name = 'agentbus'")
        for (pid,) in found:
            os.kill(pid, signal.SIGSTOP)
        begun = time.monotonic()
    assert time.monotonic() - begun < 10
    for (pid,) in found:
        os.kill(pid, signal.SIGCONT)
    await connection.close()


async def test_a_client_stalled_in_a_transaction_does_not_block_the_others_indefinitely(url: str) -> None:
    from agentbus.engine.postgres.connection import _SETTINGS, connect
    from agentbus.engine.postgres.server import parse

    assert _SETTINGS["idle_in_transaction_session_timeout"] == "15s"
    address = parse(url)
    async with agentbus.connect(url) as bus:
        stuck = await connect(address, {"idle_in_transaction_session_timeout": "200ms"})
        await stuck.execute(
            "BEGIN; SELECT pg_advisory_xact_lock(hashtextextended('agentbus bus ' || current_schema(), 0))"
        )
        with anyio.fail_after(60):
            await bus.declare(agentbus.pool("p"))
        stuck.terminate()
