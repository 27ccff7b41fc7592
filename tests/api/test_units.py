"""Units: parts that commit together or not at all, and so exactly once."""

from __future__ import annotations

import asyncio

import pytest

import agentbus
from agentbus import Address, Bus
from agentbus.errors import (
    AgentBusError,
    AgentEnded,
    AgentFenced,
    InvalidName,
    InvalidPayload,
    LeaseLost,
    MessageIdConflict,
    Misuse,
    OutOfRange,
    UnknownRecipient,
    UnknownType,
)
from tests.api.helpers import count, known, nothing_for, queued, stored, take, take_all, worker
from tests.support.cases import each
from tests.support.clock import FakeClock


async def test_all_parts_of_a_unit_are_committed_together(bus: Bus) -> None:
    a = await worker(bus, "a", topics=["t"], pools=["p"])
    b = await worker(bus, "b", topics=["t"])
    await b.send("a", "note")
    message = await take(a)
    async with a.unit() as unit:
        unit.ack(message)
        unit.send("b", "note", 1, priority=9)
        unit.send(agentbus.pool("p"), "note", 2)
        unit.publish("t", "note", 3)
        unit.reply(message, "coordination_response", 4)
        unit.progress(60, "more than half")
        assert await nothing_for(a, b), "nothing is written before the end"
    assert [message.payload for message in await take_all(b)] == [1, 3, 4]
    assert [message.payload for message in await take_all(a)] == [2, 3]
    assert (await stored(bus, message.message_id)).status == "acked"
    record = await known(bus, "a")
    assert (record.progress, record.note) == (60, "more than half")


@each("failing", ["recipient", "type", "ended", "topic", "conflict"])
async def test_a_unit_whose_last_part_fails_writes_nothing(bus: Bus, failing: str) -> None:
    a, b = [await worker(bus, id, takeover=True) for id in "ab"]
    await (await worker(bus, "gone")).complete()
    used = f"used-{failing}"
    await a.send("a", "note", 1, message_id=used)
    message = await take(a)
    parts: dict[str, tuple[str | Address, str, type[AgentBusError]]] = {
        "recipient": ("nobody", "note", UnknownRecipient),
        "type": ("b", "no-such-type", UnknownType),
        "ended": ("gone", "note", AgentEnded),
        "topic": (agentbus.topic("none"), "note", UnknownRecipient),
        "conflict": ("b", "note", MessageIdConflict),
    }
    to, kind, expected = parts[failing]
    before = await count(bus)
    with pytest.raises(expected):
        async with a.unit() as unit:
            unit.ack(message)
            unit.send("b", "note", 1)
            unit.progress(50)
            unit.send(to, kind, message_id=used if failing == "conflict" else None)
    assert await count(bus) == before
    assert (await stored(bus, used)).status == "leased"
    assert (await known(bus, "a")).progress == 0
    assert await nothing_for(b)
    await message.ack()


async def test_a_unit_with_a_lost_lease_writes_nothing(bus: Bus, clock: FakeClock) -> None:
    """Exactly once: of two that handled the same message, only one's results count."""
    a = await worker(bus, "a", pools=["p"])
    b = await worker(bus, "b", pools=["p"])
    await a.send(agentbus.pool("p"), "note")
    slow = await take(a, lease=30)
    clock.advance(30)
    fast = await take(b)
    async with b.unit() as unit:
        unit.ack(fast)
        unit.send("a", "note", "from b")
    with pytest.raises(LeaseLost):
        async with a.unit() as unit:
            unit.send("b", "note", "from a")
            unit.ack(slow)
    assert await queued(bus, "a") == ["from b"]
    assert await queued(bus, "b") == []


async def test_of_two_units_at_once_that_settle_one_message_one_counts(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.expect("out", type="worker")
    await a.send("a", "note")
    message = await take(a)

    async def handle(n: int) -> None:
        async with a.unit() as unit:
            unit.ack(message)
            unit.send("out", "note", n)

    results = await asyncio.gather(*(handle(n) for n in range(10)), return_exceptions=True)
    assert sum(result is None for result in results) == 1
    assert sum(isinstance(result, LeaseLost) for result in results) == 9
    assert len(await queued(bus, "out")) == 1


async def test_failed_units_do_not_affect_others_of_their_batch(bus: Bus) -> None:
    a = await worker(bus, "a")

    async def one(n: int) -> None:
        async with a.unit() as unit:
            unit.send("a", "note", n)
            unit.send("a" if n % 3 else "nobody", "note", n)

    results = await asyncio.gather(*(one(n) for n in range(30)), a.send("a", "note", 99), return_exceptions=True)
    assert [isinstance(result, UnknownRecipient) for result in results[:30]] == [n % 3 == 0 for n in range(30)]
    received = [message.payload for message in await take_all(a)]
    assert sorted(received) == sorted([n for n in range(30) if n % 3 for _ in range(2)] + [99])


async def test_an_exception_in_the_block_of_a_unit_writes_nothing(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(ValueError, match="stop"):
        async with a.unit() as unit:
            unit.send("a", "note")
            raise ValueError("stop")
    assert await count(bus) == 0


async def test_a_unit_can_be_committed_before_its_end(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(ValueError, match="stop"):
        async with a.unit() as unit:
            unit.send("a", "note", 1)
            await unit._commit()
            unit.send("a", "note", 2)
            raise ValueError("stop")
    assert [message.payload for message in await take_all(a)] == [1]


@pytest.mark.one_engine
async def test_an_empty_unit_is_fine(bus: Bus) -> None:
    a = await worker(bus, "a")
    async with a.unit():
        pass
    assert await count(bus) == 0


@pytest.mark.one_engine
async def test_a_unit_checks_its_arguments_at_once(bus: Bus) -> None:
    a = await worker(bus, "a")
    async with a.unit() as unit:
        with pytest.raises(InvalidName):
            unit.send("no such name", "note")
        with pytest.raises(InvalidPayload):
            unit.send("a", "note", float("nan"))
        with pytest.raises(OutOfRange):
            unit.send("a", "note", priority=10)
        with pytest.raises(OutOfRange):
            unit.progress(101)
        unit.send("a", "note", "good")
    assert [message.payload for message in await take_all(a)] == ["good"]


async def test_reads_inside_a_unit_do_not_see_its_writes(bus: Bus) -> None:
    a = await worker(bus, "a")
    async with a.unit() as unit:
        unit.send("a", "note", message_id="job-1")
        assert await bus.messages.get("job-1") is None
    assert await bus.messages.get("job-1") is not None


async def test_a_unit_of_an_ended_agent_writes_nothing(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    with pytest.raises(AgentFenced):
        async with a.unit() as unit:
            unit.send("b", "note")
            unit.progress(100)
            await a.complete()
    assert await nothing_for(b)
    assert (await known(bus, "a")).progress == 0


async def test_several_messages_can_be_acknowledged_in_one_unit(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send_many(("a", "note", n) for n in range(3))
    messages = await take_all(a)
    async with a.unit() as unit:
        unit.ack(*messages)
        unit.send("a", "note", "sum")
    assert (await bus.stats()).messages == {"acked": 3, "queued": 1}


async def test_messages_of_a_failed_unit_can_still_be_settled(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a)
    with pytest.raises(UnknownRecipient):
        async with a.unit() as unit:
            unit.ack(message)
            unit.send("nobody", "note")
    async with message as unit:
        unit.send("a", "note", "second try")
    assert await queued(bus, "a") == ["second try"]


@pytest.mark.one_engine
async def test_a_unit_outside_its_block_takes_nothing(bus: Bus) -> None:
    a = await worker(bus, "a")
    unit = a.unit()
    with pytest.raises(Misuse):
        unit.send("a", "note")
    with pytest.raises(Misuse):
        unit.state.set("k", 1)
    async with unit:
        unit.send("a", "note", 1)
    assert (await take(a)).payload == 1
