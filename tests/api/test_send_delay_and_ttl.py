"""Delay and time to live: a message is visible from its due time to its expiry, without a monitor."""

from __future__ import annotations

from agentbus import Bus, pool
from tests.api.helpers import nothing_for, running, soon, stored, take, worker
from tests.support.clock import START, FakeClock


async def test_a_delayed_message_is_not_there_before_its_time(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note", 1, delay=10)
    assert (await stored(bus, receipt.message_id)).status == "scheduled"
    clock.advance(9.999)
    assert await nothing_for(a)
    clock.advance(0.001)
    assert (await take(a)).payload == 1


async def test_a_waiting_receiver_gets_a_delayed_message_when_it_is_due(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    async with running(b.receive()) as waiting:
        await clock.settle()
        await a.send("b", "note", 1, delay=2)
        await clock.pass_time(1.9)
        assert not waiting.done()
        await clock.pass_time(0.1)
        message = await soon(waiting)
    assert message is not None
    assert clock.now().wall == START + 2_000


async def test_a_receiver_that_comes_later_waits_for_a_delayed_message(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a", pools=["p"])
    await a.send(pool("p"), "note", 1, delay=3)
    async with running(a.receive()) as waiting:
        await clock.pass_time(3)
        assert await soon(waiting) is not None


async def test_a_delay_of_nothing_is_no_delay(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", delay=0)
    await take(a)


async def test_an_expired_message_is_not_received(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note", ttl=5)
    clock.advance(5)
    assert await nothing_for(a)
    record = await stored(bus, receipt.message_id)
    assert (record.status, record.attempts, record.expires) == ("expired", 0, START + 5_000)
    assert record.finished is not None


async def test_a_message_is_there_until_it_expires(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", ttl=5)
    clock.advance(4.999)
    await take(a)


async def test_an_expired_message_does_not_hide_the_one_behind_it(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", "old", ttl=5, priority=9)
    await a.send("a", "note", "good")
    clock.advance(6)
    assert (await take(a)).payload == "good"
    assert await nothing_for(a)


async def test_time_to_live_counts_from_when_a_delayed_message_is_due(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", "taken", delay=10, ttl=5)
    await a.send("a", "note", "missed", delay=10, ttl=5)
    clock.advance(14.9)
    assert (await take(a)).payload == "taken"
    clock.advance(0.2)
    assert await nothing_for(a)


async def test_a_message_that_is_taken_in_time_may_be_finished_later(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note", ttl=5)
    message = await take(a)
    clock.advance(10)
    await message.ack()
    assert (await stored(bus, receipt.message_id)).status == "acked"


async def test_a_message_released_after_its_ttl_expires(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note", ttl=5)
    message = await take(a)
    clock.advance(10)
    await message.nack(delay=0)
    assert await nothing_for(a)
    assert (await stored(bus, receipt.message_id)).status == "expired"


async def test_a_message_whose_lease_ran_out_after_its_time_expires(bus: Bus, clock: FakeClock) -> None:
    """Also in the very claim that takes the lease back."""
    a = await worker(bus, "a")
    receipt = await a.send("a", "note", ttl=5)
    await take(a, lease=10)
    clock.advance(10)
    assert await nothing_for(a)
    assert (await stored(bus, receipt.message_id)).status == "expired"


async def test_a_message_that_waits_for_its_retry_expires_too(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note", ttl=5)
    await (await take(a)).nack(delay=3)
    clock.advance(3)
    await (await take(a)).nack(delay=3)
    clock.advance(3)
    assert await nothing_for(a)
    assert (await stored(bus, receipt.message_id)).status == "expired"


async def test_a_delayed_message_of_a_pool_needs_no_claim_of_another_member(bus: Bus, clock: FakeClock) -> None:
    """Every waiter of the pool knows when it is due, also the one that is not woken by the sending."""
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    async with running(a.receive()) as first, running(b.receive()) as second:
        await clock.settle()
        await a.send(pool("p"), "note", 1, delay=1)
        await a.send(pool("p"), "note", 2, delay=1)
        await clock.pass_time(1)
        received = {message.payload for message in (await soon(first), await soon(second)) if message is not None}
    assert received == {1, 2}
