"""Batches: lists are sent, received and acknowledged in one commit, all or nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentbus
from agentbus import Bus
from agentbus.errors import (
    AgentBusError,
    AgentEnded,
    InvalidInput,
    InvalidName,
    InvalidPayload,
    LeaseLost,
    OutOfRange,
    PayloadTooLarge,
    UnknownRecipient,
    UnknownType,
)
from tests.api.helpers import count, nothing_for, running, soon, stored, take, take_all, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def test_many_messages_are_sent_in_one_call(bus: Bus) -> None:
    a, b = await worker(bus, "a", topics=["t"], pools=["p"]), await worker(bus, "b", topics=["t"])
    receipts = await a.send_many(
        [
            ("a", "note"),
            ("a", "note", 1),
            ["b", "note", 2],
            {"to": "b", "type": "note", "payload": 3, "priority": 9, "message_id": "mine"},
            {"to": agentbus.topic("t"), "type": "note", "payload": 4},
            {"to": agentbus.pool("p"), "type": "note", "payload": 5, "delay": 60},
        ]
    )
    assert [receipt.delivered for receipt in receipts] == [1, 1, 1, 1, 2, 1]
    assert receipts[3].message_id == "mine"
    assert [message.payload for message in await take_all(a)] == [None, 1, 4]
    assert [message.payload for message in await take_all(b)] == [3, 2, 4]
    assert await count(bus) == 7


@pytest.mark.one_engine
async def test_a_generator_will_do(bus: Bus) -> None:
    a = await worker(bus, "a")
    assert len(await a.send_many(("a", "note", n) for n in range(500))) == 500
    assert await count(bus) == 500


@pytest.mark.one_engine
async def test_sending_nothing_does_nothing(bus: Bus) -> None:
    a = await worker(bus, "a")
    assert await a.send_many([]) == []


@each(
    ("bad", "expected"),
    [
        (("nobody", "note", 1), UnknownRecipient),
        (("a", "no-such-type", 1), UnknownType),
        (("gone", "note", 1), AgentEnded),
        (("no such name", "note", 1), InvalidName),
        (("a", "note", float("nan")), InvalidPayload),
        (("a", "note", "x" * 2_000_000), PayloadTooLarge),
        ({"to": "a", "type": "note", "priority": 10}, OutOfRange),
        ({"to": "a", "type": "note", "message_id": "m-5"}, InvalidName),
        ({"to": "a"}, InvalidInput),
        ({"to": "a", "type": "note", "prioritee": 9}, InvalidInput),
        (("a",), InvalidInput),
        ((), InvalidInput),
        (("a", "note", 1, 9), InvalidInput),
        ("ab", InvalidInput),
        (None, InvalidInput),
    ],
)
async def test_one_bad_message_of_many_sends_none_and_is_named(
    bus: Bus, bad: Any, expected: type[AgentBusError]
) -> None:
    a = await worker(bus, "a", takeover=True)
    await (await worker(bus, "gone")).complete()
    before = await count(bus)
    with pytest.raises(expected) as refused:
        await a.send_many([("a", "note", 0), ("a", "note", 1), bad, ("a", "note", 3)])
    assert refused.value.item == 2
    assert await count(bus) == before
    await a.send("a", "note")


@pytest.mark.one_engine
async def test_more_than_can_be_sent_at_once_are_refused(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(OutOfRange):
        await a.send_many(("a", "note") for _ in range(10_001))
    assert await count(bus) == 0


async def test_many_messages_are_received_at_once(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send_many(("a", "note", n) for n in range(5))
    assert [message.payload for message in await a.receive_many(3)] == [0, 1, 2]
    assert [message.payload for message in await a.receive_many(3)] == [3, 4]
    assert await a.receive_many(3, timeout=0) == []


async def test_receiving_many_waits_for_the_first(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    async with running(a.receive_many(10)) as waiting:
        await clock.settle()
        await a.send_many(("a", "note", n) for n in range(3))
        assert [message.payload for message in await soon(waiting)] == [0, 1, 2]


async def test_receiving_many_ends_with_its_timeout(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    async with running(a.receive_many(10, timeout=5)) as waiting:
        await clock.pass_time(4.9)
        assert not waiting.done()
        await clock.pass_time(0.1)
        assert await soon(waiting) == []


async def test_receiving_ends_with_its_timeout(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    async with running(a.receive(timeout=5)) as waiting:
        await clock.pass_time(4.9)
        assert not waiting.done()
        await clock.pass_time(0.1)
        assert await soon(waiting) is None
    await a.send("a", "note")
    assert not await nothing_for(a)


async def test_previous_messages_are_acknowledged_with_the_next_claim(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send_many(("a", "note", n) for n in range(5))
    batch = await a.receive_many(2)
    seen: list[int] = []
    while batch:
        seen += [message.payload for message in batch]
        batch = await a.receive_many(2, ack=batch, timeout=0)
    assert seen == [0, 1, 2, 3, 4]
    assert (await bus.stats()).messages == {"acked": 5}


async def test_previous_messages_are_acknowledged_though_nothing_is_there(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    batch = await a.receive_many(2)
    async with running(a.receive_many(2, ack=batch)):
        await clock.settle()
        assert (await bus.stats()).messages == {"acked": 1}
    for message in batch:
        with pytest.raises(LeaseLost):
            await message.ack()


async def test_a_lost_lease_among_the_previous_acknowledges_none_and_claims_nothing(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send_many((agentbus.pool("p"), "note", n) for n in range(2))
    first = await take(a, lease=30)
    second = await take(a, lease=300)
    clock.advance(30)
    await take(b)
    await a.send("a", "note", "next")
    with pytest.raises(LeaseLost) as lost:
        await a.receive_many(5, ack=[second, first])
    assert lost.value.message_id == first.message_id
    assert (await stored(bus, second.message_id)).status == "leased"
    assert (await take(a)).payload == "next"
    await second.ack()


async def test_acknowledging_a_list_is_all_or_none(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send_many((agentbus.pool("p"), "note", n) for n in range(3))
    first = await take(a, lease=30)
    rest = await a.receive_many(2, lease=300)
    clock.advance(30)
    await take(b)
    with pytest.raises(LeaseLost) as lost:
        await a.ack([*rest, first])
    assert lost.value.message_id == first.message_id
    assert [(await stored(bus, message.message_id)).status for message in rest] == ["leased"] * 2
    await a.ack(rest)
    assert [(await stored(bus, message.message_id)).status for message in rest] == ["acked"] * 2


@pytest.mark.one_engine
async def test_acknowledging_nothing_does_nothing(bus: Bus) -> None:
    await (await worker(bus, "a")).ack([])


async def test_batches_of_many_senders_and_receivers_meet(bus: Bus, engine: Engine) -> None:
    async with engine.connect() as elsewhere:
        a, b = await worker(bus, "a", pools=["p"]), await worker(elsewhere, "b", pools=["p"])
        batches = [
            agent.send_many([(agentbus.pool("p"), "note", [agent.id, k, n]) for n in range(20)])
            for agent in (a, b)
            for k in range(5)
        ]
        await asyncio.gather(*batches)
        seen: list[Any] = []
        while len(seen) < 200:
            for agent in (a, b):
                messages = await soon(agent.receive_many(16, timeout=0))
                seen += [tuple(message.payload) for message in messages]
                await agent.ack(messages)
        assert len(set(seen)) == 200
    assert (await bus.stats()).messages == {"acked": 200}


@pytest.mark.one_engine
@each("most", [0, -1, True, 1.5, "3", 10_001])
async def test_a_number_out_of_range_is_refused(bus: Bus, most: int) -> None:
    a = await worker(bus, "a", takeover=True)
    await a.send("a", "note")
    with pytest.raises(OutOfRange):
        await a.receive_many(most, timeout=0)
    assert not await nothing_for(a)
