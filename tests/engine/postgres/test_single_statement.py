"""A message that is sent, claimed or acknowledged alone takes one statement, which still sees whatever another process
has changed before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import anyio
import asyncpg
import msgspec
import pytest

import agentbus
from agentbus import Agent, Bus, pool
from agentbus.core.clock import SystemClock
from agentbus.engine.postgres import notify
from agentbus.engine.postgres.connection import connect, server_queries
from agentbus.engine.postgres.server import parse
from agentbus.errors import (
    AgentBusError,
    AgentEnded,
    AgentFenced,
    FormatRefused,
    InvalidPayload,
    LeaseLost,
    LockTimeout,
    OutcomeUnknown,
    QueueFull,
    UnknownRecipient,
    VersionConflict,
)
from tests.support.clock import FakeClock, quiet
from tests.support.examples import examples
from tests.support.proxy import proxied, socket_and_schema

Statements = list[str]
LOCK_TIMEOUT = "lock timeout"
TIMES = 10 if examples.full else 4


@contextmanager
def overheard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Statements]:
    """The first words of all that goes to the server, and the lock timeouts that come back."""
    heard: Statements = []
    with monkeypatch.context() as patch:
        for name in ("fetch", "execute"):
            own = getattr(asyncpg.Connection, name)

            async def listening(self: Any, sql: str, *values: Any, own: Any = own, **options: Any) -> Any:
                heard.append(sql.split(maxsplit=1)[0])
                try:
                    return await own(self, sql, *values, **options)
                except asyncpg.LockNotAvailableError:
                    heard.append(LOCK_TIMEOUT)
                    raise

            patch.setattr(asyncpg.Connection, name, listening)
        yield heard


async def warm(agent: Agent, to: Any) -> None:
    """A process that has sent before caches what it looked up."""
    await agent.send(to, "note", "before")
    await agent.send(to, "note", "before")


async def test_a_message_alone_takes_one_statement_and_a_bell(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "RESTED", 3600)
    bus, other = (agentbus.connect(url, clock=SystemClock(), beat_every=3600) for _ in range(2))
    async with bus, other:
        await _sends_quickly(bus, other, monkeypatch)


async def test_an_idle_process_is_woken_before_the_commit_too(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notify, "RESTED", -1)
    bus, other = (agentbus.connect(url, clock=SystemClock(), beat_every=3600) for _ in range(2))
    async with bus, other:
        sender = await bus.register("sender", type="worker")
        receiver = await other.register("receiver", type="worker")
        await warm(sender, "receiver")
        await receiver.receive_many(2, timeout=5)
        rung = 0
        for number in range(20 if examples.full else 6):
            waiting = asyncio.create_task(receiver.receive(timeout=30))
            await asyncio.sleep(0.01)
            with overheard(monkeypatch) as heard:
                await sender.send("receiver", "note", number)
                with anyio.fail_after(60):
                    message = await waiting
            assert message is not None
            assert message.payload == number
            assert heard.count("INSERT") == 1
            # The bell's before the commit and after it; and what the receiver asks.
            rung += heard.count("SELECT") >= 2
            await message.ack()
        # Not each time: on a busy machine, the receiver may not wait yet when the message is sent.
        assert rung


async def _sends_quickly(bus: Bus, other: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    sender = await bus.register("sender", type="worker")
    receiver = await other.register("receiver", type="worker", pools=["jobs"])
    for to in ("receiver", pool("jobs")):
        await warm(sender, to)
        with overheard(monkeypatch) as heard:
            receipt = await sender.send(to, "note", "quick")
            # The bell, which the sender does not wait for.
            with anyio.fail_after(30):
                while len(heard) < 2:  # noqa: ASYNC110
                    await asyncio.sleep(0)
        assert heard == ["INSERT", "SELECT"]
        got = [await receiver.receive(timeout=5) for _ in range(3)]
        assert [message.payload for message in got if message] == ["before", "before", "quick"]
        assert got[2] is not None
        assert (got[2].id, got[2].message_id) == (receipt.id, receipt.message_id)
        for message in got:
            assert message is not None
            await message.ack()


async def test_a_claim_and_an_acknowledgement_alone_take_one_statement_each(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agentbus.connect(url, clock=SystemClock(), beat_every=3600) as bus:
        agent = await bus.register("a", type="worker", pools=["jobs"])
        await agent.send(pool("jobs"), "note", "later", priority=1)
        for number in range(3):
            await agent.send("a", "note", number)
            with overheard(monkeypatch) as heard:
                message = await agent.receive(timeout=5)
                assert message is not None
                await message.ack()
            assert message.payload == number
        # Besides what the bell asks.
        assert [word for word in heard if word != "SELECT"] == ["WITH", "UPDATE"]
        with overheard(monkeypatch) as heard:
            last = await agent.receive(timeout=5)
            assert await agent.receive(timeout=0) is None
        assert last is not None
        assert (last.payload, last.attempts) == ("later", 1)
        assert [word for word in heard if word != "SELECT"] == ["WITH", "WITH"], "an empty mailbox needs no transaction"
        record = await bus.messages.get(last.message_id)
        assert record is not None
        assert (record.status, record.holder, record.attempts) == ("leased", "a", 1)


async def test_after_a_change_elsewhere_a_claim_looks_up_and_tries_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agentbus.connect(url, clock=SystemClock(), beat_every=3600) as bus:
        agent = await bus.register("a", type="worker")
        other = await bus.register("b", type="worker")
        await warm(agent, "a")
        first = await agent.receive(timeout=5)
        assert first is not None
        await other.complete()
        with overheard(monkeypatch) as heard:
            assert await agent.receive(timeout=5) is not None
        assert heard.count("WITH") == 3, "the statement, the lookup, and the statement again"
        assert "BEGIN;" not in heard


async def test_after_a_claim_that_is_not_flushed_the_next_message_is_again(url: str) -> None:
    async with agentbus.connect(url, clock=SystemClock(), beat_every=3600) as bus:
        agent = await bus.register("a", type="worker")
        await warm(agent, "a")
        writer: Any = bus._engine
        connection = writer._writer._runner._connection
        for _ in range(2):
            message = await agent.receive(timeout=5)
            assert message is not None
            await message.ack()
            assert await connection.fetchval("SHOW synchronous_commit") == "on"


async def test_a_claim_alone_maintains_its_mailbox_first(url: str) -> None:
    clock = FakeClock()
    bus = agentbus.connect(url, beat_every=3600, clock=clock)
    clock.attach(bus)
    async with bus:
        agent = await bus.register("a", type="worker")
        await warm(agent, "a")
        for message in await agent.receive_many(2, timeout=5):
            await message.ack()
        await agent.send("a", "note", "expires", ttl=5)
        await agent.send("a", "note", "urgent", delay=5, priority=9)
        await agent.send("a", "note", "leased", max_attempts=2)
        # Of the same priority as the first, but that one is older.
        first = await agent.receive(timeout=5)
        assert first is not None
        assert first.payload == "expires"
        await first.nack(delay=0)
        clock.advance(6)
        got = [await agent.receive(timeout=5) for _ in range(2)]
        assert [message.payload for message in got if message] == ["urgent", "leased"]
        assert await agent.receive(timeout=0) is None
        assert (await bus.stats()).messages == {"acked": 2, "expired": 1, "leased": 2}


async def test_one_that_was_taken_over_claims_and_acknowledges_nothing(buses: list[Bus]) -> None:
    ours, other = buses[:2]
    agent = await ours.register("a", type="worker")
    await warm(agent, "a")
    message = await agent.receive(timeout=5)
    assert message is not None
    await message.ack()
    held = await agent.receive(timeout=5)
    assert held is not None
    await agent.send("a", "note", "third")
    await other.register("a", type="worker", takeover=True)
    with pytest.raises(AgentFenced):
        await held.ack()
    with pytest.raises(AgentFenced):
        await agent.receive(timeout=0)
    assert (await other.stats()).messages == {"acked": 1, "queued": 2}


async def test_a_lease_that_went_to_another_is_not_acknowledged(url: str) -> None:
    clock = FakeClock()
    ours, other = (agentbus.connect(url, beat_every=3600, clock=clock) for _ in range(2))
    clock.attach(ours)
    async with ours, other:
        first = await ours.register("first", type="worker", pools=["jobs"])
        second = await other.register("second", type="worker", pools=["jobs"])
        await warm(first, pool("jobs"))
        done = await first.receive(timeout=5)
        assert done is not None
        await done.ack()
        stale = await first.receive(timeout=5, lease=1)
        assert stale is not None
        clock.advance(2)
        held = await second.receive(timeout=5)
        assert held is not None
        assert held.id == stale.id
        with pytest.raises(LeaseLost) as lost:
            await stale.ack()
        assert lost.value.facts["holder"] == "second"
        await held.ack()
        with pytest.raises(LeaseLost):
            await held.ack()


async def end(bus: Bus, receiver: Agent) -> None:
    await receiver.complete()


async def take_over(bus: Bus, _: Agent) -> None:
    await bus.register("sender", type="worker", takeover=True)


async def limit(bus: Bus, _: Agent) -> None:
    await bus.quotas.change(depth=2)


async def restrict(bus: Bus, _: Agent) -> None:
    await bus.define("plan", schema={"type": "integer"})


Change = Callable[[Bus, Agent], Awaitable[None]]
CHANGES: tuple[tuple[Change, type[AgentBusError]], ...] = (
    (end, AgentEnded),
    (take_over, AgentFenced),
    (limit, QueueFull),
    (restrict, InvalidPayload),
)


@pytest.mark.parametrize(("change", "refusal"), CHANGES)
async def test_what_another_process_has_changed_is_seen_by_the_next_send(
    buses: list[Bus], change: Change, refusal: type[AgentBusError]
) -> None:
    ours, other = buses[:2]
    await ours.define("plan")
    sender = await ours.register("sender", type="worker")
    receiver = await other.register("receiver", type="worker")
    for _ in range(2):
        await sender.send("receiver", "plan", "before")
    await change(other, receiver)
    with pytest.raises(refusal):
        await sender.send("receiver", "plan", "after")
    assert (await other.stats()).messages == {"queued": 2}


async def test_a_recipient_that_was_deleted_and_came_back_gets_its_own(buses: list[Bus]) -> None:
    ours, other = buses[:2]
    sender = await ours.register("sender", type="worker")
    for life in range(3):
        receiver = await other.register("receiver", type="worker")
        await warm(sender, "receiver")
        await sender.send("receiver", "note", life)
        got = await receiver.receive_many(3, timeout=5)
        assert [message.payload for message in got] == ["before", "before", life]
        for message in got:
            await message.ack()
        await receiver.complete()
        await other.agents.delete("receiver")
        with pytest.raises(UnknownRecipient):
            await sender.send("receiver", "note", "to no agent")


async def test_no_send_that_begins_after_its_recipient_ended_comes_through(buses: list[Bus]) -> None:
    senders = [await bus.register(f"sender-{number}", type="worker") for number, bus in enumerate(buses[1:])]
    for life in range(20 if examples.full else 8):
        name = f"receiver-{life}"
        receiver = await buses[0].register(name, type="worker")
        over = False
        for sender in senders:
            await warm(sender, name)

        async def keep_sending(sender: Agent, name: str = name) -> int:
            late = 0
            with suppress(AgentEnded):
                while True:
                    began_late = over  # noqa: B023 - as it is now
                    await sender.send(name, "note", None)
                    late += began_late
            return late

        sending = [asyncio.create_task(keep_sending(sender)) for sender in senders]
        await asyncio.sleep(0.01)
        await receiver.complete()
        over = True
        assert await asyncio.gather(*sending) == [0] * len(senders)


async def test_a_hundred_that_change_at_once_change_the_directory_once(url: str) -> None:
    connection = await connect(parse(url))
    try:
        async with agentbus.connect(url) as bus:
            for number in range(100):
                await bus.expect(f"a-{number}", type="worker")
            before = await connection.fetchval("SELECT value FROM counters WHERE name = 'directory'")
            await connection.execute("UPDATE agents SET status = 'spawning'")
            assert await connection.fetchval("SELECT value FROM counters WHERE name = 'directory'") == before + 1
    finally:
        await connection.close()


async def test_a_refusal_of_the_tables_is_told_as_ever(buses: list[Bus], url: str) -> None:
    sender = await buses[0].register("sender", type="worker")
    await warm(sender, "sender")
    connection = await connect(parse(url))
    await connection.execute("ALTER TABLE messages ADD CONSTRAINT no_more CHECK (priority <> 9) NOT VALID")
    try:
        with pytest.raises(FormatRefused):
            await sender.send("sender", "note", None, priority=9)
        await sender.send("sender", "note", None)
        assert (await buses[0].stats()).messages == {"queued": 3}
    finally:
        # The next test gets this schema too.
        await connection.execute("ALTER TABLE messages DROP CONSTRAINT no_more")
        await connection.close()


async def test_an_exclusive_transaction_is_awaited_no_longer_than_the_lock_timeout(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with agentbus.connect(url, lock_timeout=0.5, beat_every=3600) as bus:
        sender = await bus.register("sender", type="worker")
        await warm(sender, "sender")
        connection = await connect(parse(url))
        try:
            async with connection.transaction():
                await connection.execute(server_queries()["server_lock_alone"])
                with overheard(monkeypatch) as heard, pytest.raises(LockTimeout):
                    await sender.send("sender", "note", None)
                assert heard.count(LOCK_TIMEOUT) == 1, "it was waited for twice"
        finally:
            await connection.close()
        await sender.send("sender", "note", None)
        assert (await bus.stats()).messages == {"queued": 3}


class Plan(msgspec.Struct):
    number: int


async def test_what_a_unit_saw_that_was_undone_is_not_remembered(url: str) -> None:
    """It has changed the directory itself before it asked, and the change is gone with it."""
    async with (
        agentbus.connect(url, beat_every=3600, clock=SystemClock()) as ours,
        agentbus.connect(url, beat_every=3600, clock=SystemClock()) as other,
    ):
        sender = await ours.register("sender", type="worker")
        receiver, _ = [await other.register(name, type="worker") for name in ("receiver", "third")]
        await sender.send("receiver", "note", 1)
        with pytest.raises(VersionConflict):
            async with sender.unit() as unit:
                unit.send("receiver", Plan(1))
                unit.state.set("k", 1, if_version=5)
        await receiver.complete()
        await sender.send("third", "note", 2)
        with pytest.raises(AgentEnded):
            await sender.send("receiver", "note", 3)


async def test_the_cache_is_dropped_for_another_server(url: str) -> None:
    """As after a failure of the first, whose last changes the second does not know, but others."""
    async with agentbus.connect(url, beat_every=3600) as ours, agentbus.connect(url, beat_every=3600) as other:
        sender = await ours.register("sender", type="worker")
        receiver = await other.register("receiver", type="worker")
        await warm(sender, "receiver")
        connection = await connect(parse(url))
        try:
            count = "SELECT value FROM counters WHERE name = 'directory'"
            before = await connection.fetchval(count)
            await receiver.complete()
            await connection.execute("UPDATE counters SET value = $1 WHERE name = 'directory'", before)
            # All of them: which one sends is not to be seen while the last notification is on its way.
            found = "SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND application_name = $1"
            pids = [row["pid"] for row in await connection.fetch(found, "agentbus")]
            await connection.fetch("SELECT pg_terminate_backend(pid) FROM unnest($1::int[]) AS pid", pids)
            left = "SELECT count(*) FROM pg_stat_activity WHERE pid = ANY($1::int[])"
            with anyio.fail_after(60):
                while await connection.fetchval(left, pids):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            # The client reads the end of its connection.
            await asyncio.sleep(0.1)
            with pytest.raises(AgentEnded):
                await sender.send("receiver", "note", 3)
        finally:
            await connection.close()


async def test_the_time_of_a_message_that_had_to_wait_is_when_it_had_its_turn(url: str) -> None:
    clock = FakeClock()
    bus = agentbus.connect(url, beat_every=3600, clock=clock)
    clock.attach(bus)
    async with bus:
        agent = await bus.register("a", type="worker")
        await warm(agent, "a")
        connection = await connect(parse(url))
        try:
            async with connection.transaction():
                await connection.execute(server_queries()["server_lock_alone"])
                sending = asyncio.create_task(agent.send("a", "note", "short", ttl=2))
                with anyio.fail_after(60):
                    while not await connection.fetchval("SELECT count(*) FROM pg_locks WHERE NOT granted"):  # noqa: ASYNC110
                        await asyncio.sleep(0.005)
                clock.advance(3)
            assert (await sending).id is not None
        finally:
            await connection.close()
        got = await agent.receive_many(3, timeout=5)
        assert [message.payload for message in got] == ["before", "before", "short"]


@pytest.mark.parametrize("how", ["unsent", "unheard", "late"])
async def test_a_message_whose_connection_is_lost_arrives_once_and_wakes_the_receiver(url: str, how: str) -> None:
    socket, schema = socket_and_schema(url)
    # Clocks that need no server: otherwise, once in a second, a transaction would set them.
    async with agentbus.connect(url, beat_every=3600, clock=SystemClock()) as other:
        receiver = await other.register("receiver", type="worker")
        async with proxied(socket) as proxy:
            place = f"postgresql://agentbus@127.0.0.1:{proxy.port}/postgres?schema={schema}"
            async with agentbus.connect(place, beat_every=3600, clock=SystemClock()) as bus:
                sender = await bus.register("sender", type="worker")
                for number in range(TIMES):
                    await warm(sender, "receiver")
                    for before in await receiver.receive_many(2, timeout=5):
                        await before.ack()
                    waiting = asyncio.create_task(receiver.receive(timeout=30))
                    await asyncio.sleep(0.02)
                    proxy.cut = how
                    receipt = await sender.send("receiver", "note", number)
                    with anyio.fail_after(60):
                        message = await waiting
                    assert message is not None
                    assert (message.payload, message.id) == (number, receipt.id)
                    await message.ack()
            assert proxy.cuts == TIMES
        assert len(proxy.answers) == (0 if how == "unsent" else TIMES)
        if how == "late":
            assert all(b"INSERT 0 0" in answer for answer in proxy.answers), "one was carried out after all"
        assert (await other.stats()).messages == {"acked": 3 * TIMES}


@pytest.mark.parametrize("how", ["unsent", "unheard", "late"])
@pytest.mark.parametrize("call", ["claim", "ack"])
async def test_a_claim_or_acknowledgement_whose_connection_is_lost_is_done_once(url: str, call: str, how: str) -> None:
    socket, schema = socket_and_schema(url)
    async with proxied(socket) as proxy:
        place = f"postgresql://agentbus@127.0.0.1:{proxy.port}/postgres?schema={schema}"
        async with agentbus.connect(place, beat_every=3600, clock=SystemClock()) as bus:
            agent = await bus.register("a", type="worker")
            for number in range(TIMES):
                await warm(agent, "a")
                for before in [await agent.receive(timeout=5) for _ in range(2)]:
                    assert before is not None
                    await before.ack()
                await agent.send("a", "note", number, max_attempts=1)
                # The bell has been rung.
                await quiet(bus._engine)
                proxy.cut = how if call == "claim" else None
                message = await agent.receive(timeout=5)
                assert message is not None
                assert (message.payload, message.attempts) == (number, 1)
                proxy.cut = how if call == "ack" else None
                await message.ack()
            assert proxy.cuts == TIMES
            assert (await bus.stats()).messages == {"acked": 3 * TIMES}
    assert len(proxy.answers) == (0 if how == "unsent" else TIMES)
    if how == "late":
        tags = (b"SELECT 0", b"UPDATE 0")
        assert all(any(tag in answer for tag in tags) for answer in proxy.answers), "one was carried out after all"


@pytest.mark.parametrize("call", ["claim", "ack"])
async def test_a_claim_or_acknowledgement_cut_without_a_way_back_is_an_unknown_outcome(url: str, call: str) -> None:
    socket, schema = socket_and_schema(url)
    async with proxied(socket) as proxy:
        place = f"postgresql://agentbus@127.0.0.1:{proxy.port}/postgres?schema={schema}"
        async with agentbus.connect(place, beat_every=3600, lock_timeout=0.5, clock=SystemClock()) as bus:
            agent = await bus.register("a", type="worker")
            await warm(agent, "a")
            message = await agent.receive(timeout=5)
            assert message is not None
            if call == "claim":
                await message.ack()
            # The connection of the bell is not to be the one that is cut.
            await quiet(bus._engine)
            proxy.cut, proxy.refuses = "unheard", True
            with pytest.raises(OutcomeUnknown):
                await (agent.receive(timeout=5) if call == "claim" else message.ack())
            proxy.refuses = False
            assert (await bus.stats()).messages == {"acked": 1, "leased" if call == "claim" else "queued": 1}


async def test_a_cut_without_a_way_back_is_an_unknown_outcome(url: str) -> None:
    socket, schema = socket_and_schema(url)
    async with agentbus.connect(url, clock=SystemClock()) as other:
        async with proxied(socket) as proxy:
            place = f"postgresql://agentbus@127.0.0.1:{proxy.port}/postgres?schema={schema}"
            async with agentbus.connect(place, beat_every=3600, lock_timeout=0.5, clock=SystemClock()) as bus:
                sender = await bus.register("sender", type="worker")
                await warm(sender, "sender")
                proxy.cut = "unheard"
                proxy.refuses = True
                with pytest.raises(OutcomeUnknown):
                    await sender.send("sender", "note", None)
                proxy.refuses = False
                await sender.send("sender", "note", None)
        assert (await other.stats()).messages == {"queued": 4}


async def test_what_was_removed_before_it_could_be_looked_for_is_an_unknown_outcome(url: str) -> None:
    socket, schema = socket_and_schema(url)
    async with agentbus.connect(url, beat_every=3600, clock=SystemClock()) as other, proxied(socket) as proxy:
        receiver = await other.register("receiver", type="worker")
        place = f"postgresql://agentbus@127.0.0.1:{proxy.port}/postgres?schema={schema}"
        async with agentbus.connect(place, beat_every=3600, clock=SystemClock()) as bus:
            sender = await bus.register("sender", type="worker")
            await warm(sender, "receiver")
            proxy.cut, proxy.refuses = "unheard", True
            sending = asyncio.create_task(sender.send("receiver", "note", "lost sight of"))
            for message in await receiver.receive_many(3, timeout=5):
                await message.ack()
            with anyio.fail_after(60):
                while (await other.stats()).messages != {"acked": 3}:
                    for message in await receiver.receive_many(1, timeout=1):
                        await message.ack()
            assert await other.messages.purge() == 3
            proxy.refuses = False
            with pytest.raises(OutcomeUnknown):
                await sending
        assert (await other.stats()).messages == {}


async def test_a_connection_whose_prepared_statements_are_forgotten_is_replaced(url: str) -> None:
    async with agentbus.connect(url, beat_every=3600, clock=SystemClock()) as bus:
        agent = await bus.register("a", type="worker")
        await warm(agent, "a")
        await agent.receive_many(2, timeout=5)
        engine: Any = bus._engine
        for _ in range(2):
            await engine._writer._runner._connection.execute("DEALLOCATE ALL")
            await agent.send("a", "note", "after")
            await engine._writer._runner._connection.execute("DEALLOCATE ALL")
            message = await agent.receive(timeout=5)
            assert message is not None
            await message.ack()
