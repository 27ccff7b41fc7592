"""Visiting agents with an event loop: each call is a heartbeat, messages are settled by name."""

from __future__ import annotations

import asyncio

import pytest

from agentbus import Bus
from agentbus.errors import AgentFenced, AlreadySettled, LeaseLost, UnknownAgent
from agentbus.operations.rows import Delivery
from agentbus.sync.bus import open_bus
from tests.api.helpers import known, running, soon, stored
from tests.conftest import Engine
from tests.support.clock import FakeClock


async def test_a_visitor_receives_and_settles_by_name(bus: Bus) -> None:
    a = await bus.register_visitor("a", type="worker", pools=["p"])
    await a.send("pool:p", "note", {"n": 1}, message_id="x")
    await a.send("a", "note", 2, message_id="y", priority=9)
    first, second = await a.receive(10)
    assert [(one.message_id, one.lease, one.attempts) for one in (first, second)] == [("y", "y#1", 1), ("x", "x#1", 1)]
    assert sorted(str(one.lease) for one in await a.in_hand()) == ["x#1", "y#1"]
    assert await a.ack("y#1") == []
    assert await a.ack("y#1") == ["y#1"]
    await a.nack("x#1", delay=0, error="later")
    with pytest.raises(AlreadySettled):
        await a.nack("x#1")
    (again,) = await a.receive()
    assert (again.lease, again.attempts) == ("x#2", 2)
    await a.reject("x", error="broken")
    assert (await stored(bus, "x")).status == "dead"


async def test_each_call_is_a_heartbeat_that_extends_leases(bus: Bus, clock: FakeClock) -> None:
    a = await bus.register_visitor("a", type="worker")
    await a.send("a", "note", 1, message_id="x")
    await a.receive()
    for _ in range(4):
        clock.advance(500)
        # A new object for each call, as for each request.
        await (await bus.visitor("a", epoch=a.epoch)).progress(10)
    assert (await stored(bus, "x")).status == "leased"
    record = await known(bus, "a")
    assert (record.kind, record.last_call) == ("visiting", bus._engine.clock.now().awake)


async def test_a_visitor_waits_for_messages_of_other_processes(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a = await bus.register_visitor("a", type="worker")
        b = await other.register("b", type="worker")
        async with running(a.receive(timeout=30)) as waiting:
            while not bus._engine.waiters.channels:  # noqa: ASYNC110 - other tasks of the loop do it
                await asyncio.sleep(0)
            await b.send("a", "note", 1)
            (found,) = await soon(waiting)
        assert (found.sender, found.payload) == ("b", 1)


async def test_a_request_gets_its_reply(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a, b = await bus.register_visitor("a", type="worker"), await other.register_visitor("b", type="worker")
        async with running(a.request("b", "note", {"q": 1}, timeout=30)) as asking:
            (question,) = await soon(b.receive(timeout=30))
            assert question.wants_reply
            await b.reply(str(question.lease), "note", {"answer": 2})
            reply = await soon(asking)
        assert (reply.sender, reply.payload, reply.lease) == ("b", {"answer": 2}, None)
        assert (await stored(other, question.message_id)).status == "acked"


async def test_messages_of_a_cancelled_or_abandoned_caller_are_released(bus: Bus) -> None:
    a = await bus.register_visitor("a", type="worker")
    await a.send("a", "note", 1, message_id="x")
    visitor = await bus.visitor("a")
    await visitor.receive()
    visitor.abandon()
    (again,) = await soon(_received(bus))
    assert (again.attempts, again.lease) == (1, "x#2")


async def _received(bus: Bus) -> list[Delivery]:
    while not (found := await (await bus.visitor("a")).receive()):  # noqa: ASYNC110 - released in the background
        await asyncio.sleep(0)
    return found


async def test_a_visitor_reads_the_mailboxes_of_its_new_membership(bus: Bus) -> None:
    a = await bus.register_visitor("a", type="worker")
    assert await a.receive() == []
    await a.change_membership(pools=["p"])
    await a.send("pool:p", "note", 1)
    assert [one.payload for one in await a.receive()] == [1]
    await a.change_membership(pools=["p"], leave=True)
    await a.send("pool:p", "note", 2)
    assert await a.receive() == []


@pytest.mark.one_engine
async def test_a_damaged_message_is_a_dead_letter_and_the_next_is_received(
    bus: Bus, engine: Engine, clock: FakeClock
) -> None:
    a = await bus.register_visitor("a", type="worker")
    for name in ("x", "y", "z"):
        await a.send("a", "note", name, message_id=name)
    assert await engine.tamper("UPDATE messages SET checksum = checksum + 1 WHERE message_id IN ('x', 'y')")
    assert [one.payload for one in await a.receive()] == ["z"]
    await a.heartbeat()
    assert (await stored(bus, "x")).status == "dead"
    await bus.messages.requeue("x", "y")
    with open_bus(engine.url, clock=clock) as blocking:
        assert blocking.agent("a").receive_many(10) == []
    assert (await stored(bus, "y")).status == "dead"


async def test_an_old_incarnation_is_fenced(bus: Bus) -> None:
    old = await bus.register_visitor("a", type="worker")
    await old.send("a", "note", 1, message_id="x")
    await old.receive()
    new = await bus.register_visitor("a", type="worker", takeover=True)
    assert new.epoch == old.epoch + 1
    with pytest.raises(AgentFenced):
        await (await bus.visitor("a", epoch=old.epoch)).progress(50)
    with pytest.raises((AgentFenced, LeaseLost)):
        await old.ack("x#1")
    with pytest.raises(UnknownAgent):
        await bus.visitor("missing")


async def test_state_checkpoints_and_documents_have_their_author(bus: Bus) -> None:
    session = await bus.sessions.start("planning", id="s")
    assert not session.continued
    assert (await bus.sessions.start("planning", id="s")).continued
    a = await bus.register_visitor("a", type="worker")
    await a.join("s")
    await a.state().set("k", 1)
    entry = await bus.state("a").entry("k")
    assert entry is not None
    assert entry.author == "a"
    assert (await a.checkpoint("half", {"step": 3})).owner == "a"
    await a.document("plan", {"phases": 3})
    found = await session.document("plan").record()
    assert found is not None
    assert found.author == "a"
    registration = await a.change_membership(pools=["p"], topics=["t"])
    assert (sorted(registration.pools), sorted(registration.subscriptions)) == (["p"], ["t"])
    registration = await a.change_membership(pools=["p"], leave=True)
    assert registration.pools == {}
    await a.complete()
    assert (await known(bus, "a")).status == "completed"
