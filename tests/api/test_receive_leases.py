"""At-least-once delivery with leases: messages of a dead holder return, a stale holder is fenced."""

from __future__ import annotations

import asyncio

import pytest

from agentbus import Bus, pool
from agentbus.errors import LeaseLost, OutOfRange
from tests.api.helpers import nothing_for, running, soon, stored, take, worker
from tests.support.cases import each
from tests.support.clock import FakeClock


async def test_a_leased_message_is_not_delivered_to_another_receiver(bus: Bus) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    receipt = await a.send(pool("p"), "note")
    await take(a)
    assert await nothing_for(a, b)
    record = await stored(bus, receipt.message_id)
    assert (record.status, record.holder, record.attempts) == ("leased", "a", 1)


async def test_a_message_whose_lease_ran_out_is_delivered_again(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send(pool("p"), "note", 1)
    first = await take(a, lease=30)
    clock.advance(29.999)
    assert await nothing_for(b)
    clock.advance(0.001)
    again = await take(b)
    assert (again.message_id, again.payload, again.attempts) == (first.message_id, 1, 2)


async def test_a_waiting_receiver_gets_a_message_when_its_lease_runs_out(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send(pool("p"), "note", 1)
    await take(a, lease=30)
    async with running(b.receive()) as waiting:
        await clock.pass_time(29)
        assert not waiting.done()
        await clock.pass_time(1)
        assert (await soon(waiting)) is not None


async def test_a_receiver_that_waited_before_the_lease_started_gets_the_message_too(bus: Bus, clock: FakeClock) -> None:
    """It could not learn of the lease when it looked; the beat is there for it."""
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    async with running(b.receive()) as waiting, running(a.receive(lease=30)) as other:
        await clock.settle()
        await a.send(pool("p"), "note", 1)
        await clock.settle()
        assert waiting.done() != other.done()
        await clock.pass_time(66)
        received = [await soon(waiting), await soon(other)]
    assert [message.payload for message in received if message is not None] == [1, 1]


async def test_an_ordinary_lease_lasts_a_minute(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    await take(a)
    clock.advance(59)
    assert await nothing_for(a)
    clock.advance(1)
    await take(a)


async def test_a_plain_receive_has_one_fixed_lease(bus: Bus, clock: FakeClock) -> None:
    """Nothing renews it, however well the process does."""
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a, lease=30)
    await clock.pass_time(31)
    assert (await take(a)).attempts == 2
    with pytest.raises(LeaseLost):
        await message.ack()


async def test_a_lease_can_be_extended(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a, lease=10)
    clock.advance(9)
    await message.extend(100)
    clock.advance(99)
    assert await nothing_for(a)
    clock.advance(1)
    assert (await take(a)).attempts == 2


async def test_a_lease_can_be_shortened(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    await (await take(a)).extend(1)
    clock.advance(1)
    await take(a)


async def test_a_refused_extension_changes_nothing(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a, lease=10)
    for seconds in (0, -1, float("nan"), float("inf")):
        with pytest.raises(OutOfRange):
            await message.extend(seconds)
    clock.advance(9.9)
    await message.ack()


@each("action", ["ack", "nack", "reject", "extend", "list", "unit", "block", "next", "reply", "unit reply"])
async def test_a_stale_holder_is_fenced(bus: Bus, clock: FakeClock, action: str) -> None:
    a, b = [await worker(bus, id, pools=["p"], takeover=True) for id in "ab"]
    receipt = await a.send(pool("p"), "note", 1)
    stale = await take(a, lease=30)
    clock.advance(30)
    fresh = await take(b)
    with pytest.raises(LeaseLost) as lost:
        match action:
            case "ack":
                await stale.ack()
            case "nack":
                await stale.nack()
            case "reject":
                await stale.reject("no")
            case "extend":
                await stale.extend(60)
            case "list":
                await a.ack([stale])
            case "unit":
                async with a.unit() as unit:
                    unit.ack(stale)
                    unit.send("b", "note", "must not be sent")
            case "block":
                async with stale as unit:
                    unit.send("b", "note", "must not be sent")
            case "next":
                await a.receive_many(5, timeout=0, ack=[stale])
            case "reply":
                await stale.reply("note", "must not be sent")
            case "unit reply":
                async with a.unit() as unit:
                    unit.reply(stale, "note", "must not be sent")
    assert lost.value.code == "lease_lost"
    assert (lost.value.message_id, lost.value.holder) == (receipt.message_id, "b")
    assert (await stored(bus, receipt.message_id)).holder == "b"
    assert await nothing_for(b)
    await fresh.ack()


async def test_a_message_can_be_replied_to_until_it_is_delivered_again(bus: Bus, clock: FakeClock) -> None:
    """After its lease ended, and after it was settled; also by a unit of another message."""
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await b.send("a", "note", 1)
    message = await take(a, lease=30)
    clock.advance(30)
    assert await message.reply("note", "late")
    again = await take(a)
    await again.ack()
    assert await again.reply("note", "settled")
    async with a.unit() as unit:
        unit.reply(again, "note", "once more")
    with pytest.raises(LeaseLost):
        await message.reply("note", "too late")
    assert [(await take(b)).payload for _ in range(3)] == ["late", "settled", "once more"]
    assert await nothing_for(b)


async def test_a_stale_holder_is_fenced_before_the_message_is_redelivered(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1, priority=0)
    await a.send("a", "note", 2, priority=9)
    await a.send("a", "note", 3, priority=9)
    stale = [await take(a, lease=30) for _ in range(3)][2]
    clock.advance(30)
    # This claim takes all leases back, and one of the others.
    assert (await take(a)).payload == 2
    with pytest.raises(LeaseLost) as lost:
        await stale.ack()
    assert lost.value.status == "queued"


async def test_the_same_agent_s_older_lease_is_stale_too(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    stale = await take(a, lease=30)
    clock.advance(30)
    fresh = await take(a)
    with pytest.raises(LeaseLost):
        await stale.ack()
    await fresh.ack()


async def test_a_settled_message_cannot_be_settled_again(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a)
    await message.ack()
    for action in (message.ack(), message.nack(), message.reject("no"), message.extend(9), a.ack([message])):
        with pytest.raises(LeaseLost):
            await action
    with pytest.raises(LeaseLost):
        async with message:
            pytest.fail("the block of a settled message must not run")
    assert (await stored(bus, message.message_id)).status == "acked"


async def test_a_purged_message_is_a_lost_lease(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a)
    await message.ack()
    await bus.messages.purge()
    with pytest.raises(LeaseLost) as lost:
        await message.ack()
    assert lost.value.message_id == message.message_id


async def test_of_two_settlements_at_once_one_counts(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a)
    results = await asyncio.gather(message.ack(), message.reject("no"), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["LeaseLost", "NoneType"]
    status = "acked" if results[0] is None else "dead"
    assert (await stored(bus, message.message_id)).status == status
