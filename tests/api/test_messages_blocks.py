"""``async with message``: renewed inside, acknowledged at the end, released on an error."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import anyio
import pytest

from agentbus import Bus, pool
from agentbus.errors import AgentFenced, LeaseLost, Misuse, UnknownRecipient
from tests.api.helpers import nothing_for, queued, running, soon, stored, take, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def test_the_end_of_the_block_acknowledges(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a)
    async with message:
        assert (await stored(bus, message.message_id)).status == "leased"
    assert (await stored(bus, message.message_id)).status == "acked"


async def test_the_parts_of_the_unit_are_committed_with_the_acknowledgement(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await a.send("a", "task_assignment")
    message = await take(a)
    async with message as unit:
        unit.send("b", "completion_notification", {"ok": True})
        unit.progress(80, "nearly")
        assert await nothing_for(b), "nothing is written before the end of the block"
    assert (await stored(bus, message.message_id)).status == "acked"
    assert (await take(b)).payload == {"ok": True}


async def test_an_exception_releases_the_message_with_the_error_and_propagates(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await a.send("a", "task_assignment")
    message = await take(a)
    with pytest.raises(ZeroDivisionError, match="by zero"):
        async with message as unit:
            unit.send("b", "note", "must not be sent")
            raise ZeroDivisionError("division by zero")
    record = await stored(bus, message.message_id)
    assert (record.status, record.attempts) == ("scheduled", 1)
    assert record.error == "ZeroDivisionError: division by zero"
    assert record.due is not None
    assert clock.now().wall < record.due
    assert await nothing_for(a, b)
    clock.advance(60)
    assert (await take(a)).attempts == 2


async def test_an_exception_at_the_last_attempt_makes_a_dead_letter(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", max_attempts=1)
    message = await take(a)
    with pytest.raises(ValueError, match="bad"):
        async with message:
            raise ValueError("bad")
    record = await stored(bus, message.message_id)
    assert (record.status, record.error) == ("dead", "ValueError: bad")


@each("text", ["a NUL \0 inside", "a lone \ud800 surrogate", "x" * 300_000])
async def test_an_exception_with_any_text_releases_the_message(bus: Bus, text: str) -> None:
    a = await worker(bus, "a", takeover=True)
    await a.send("a", "note")
    message = await take(a)
    with pytest.raises(ValueError, match=r"^(a|x)"):
        async with message:
            raise ValueError(text)
    record = await stored(bus, message.message_id)
    assert record.status == "scheduled"
    assert record.error is not None
    assert record.error.startswith("ValueError: ")


async def test_cancellation_releases_the_message_at_once_without_counting(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", max_attempts=1)
    message = await take(a)
    with anyio.CancelScope() as scope:
        async with message as unit:
            unit.send("a", "note", "must not be sent")
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    again = await take(a)
    assert (again.message_id, again.attempts) == (message.message_id, 1)
    assert await nothing_for(a)


async def test_a_cancelled_task_releases_its_message_at_once_without_counting(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")

    async def work() -> None:
        async with await take(a):
            await asyncio.Event().wait()

    async with running(work()) as task:
        await clock.settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await take(a)).attempts == 1


async def test_a_message_settled_inside_its_block_stays_as_it_was_settled(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send_many(("a", "note", n) for n in range(3))
    first, second, third = await a.receive_many(3)
    async with first:
        await first.reject("no")
    async with second:
        await second.nack(delay=60)
    with pytest.raises(ValueError, match="later"):
        async with third:
            await third.ack()
            raise ValueError("later")
    statuses = [(await stored(bus, message.message_id)).status for message in (first, second, third)]
    assert statuses == ["dead", "scheduled", "acked"]


async def test_a_unit_is_committed_also_when_its_message_was_settled_inside(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await a.send("a", "note")
    message = await take(a)
    async with message as unit:
        unit.send("b", "note", 1)
        await message.ack()
    assert (await take(b)).payload == 1


async def test_the_lease_is_renewed_inside_the_block(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send(pool("p"), "note")
    message = await take(a, lease=30)
    async with message:
        for _ in range(10):
            await clock.pass_time(29)
            assert await nothing_for(b)
    assert (await stored(bus, message.message_id)).status == "acked"


async def test_many_blocks_are_renewed_at_once(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send_many(("a", "note", n) for n in range(20))

    async def work(lease: float) -> None:
        async with await take(a, lease=lease):
            await clock_has_passed.wait()

    clock_has_passed = asyncio.Event()
    async with anyio.create_task_group() as tasks:
        for n in range(20):
            tasks.start_soon(work, 5 + n)
        await clock.pass_time(60)
        assert await nothing_for(a)
        clock_has_passed.set()
    assert (await bus.stats()).messages == {"acked": 20}


async def test_no_lease_is_renewed_after_its_block(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1, priority=9)
    await a.send("a", "note", 2)
    first, second = await take(a, lease=30), await take(a, lease=30)
    async with first:
        await clock.pass_time(20)
    await clock.pass_time(10)
    assert (await take(a)).message_id == second.message_id


async def test_a_renewal_that_finds_the_lease_lost_cancels_the_block(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send(pool("p"), "note")
    message = await take(a, lease=30)
    reached = False
    with pytest.raises(LeaseLost) as lost:
        async with message as unit:
            unit.send("b", "note", "must not be sent")
            # The process hangs for so long that another takes the message, then continues.
            clock.stall(31)
            fresh = await take(b)
            clock.advance(0)
            await soon(asyncio.Event().wait())
            reached = True
    assert not reached
    assert (lost.value.message_id, lost.value.holder) == (message.message_id, "b")
    assert await queued(bus, "b") == []
    await fresh.ack()


async def test_a_stalled_block_that_ends_before_its_renewal_writes_nothing(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send(pool("p"), "note")
    message = await take(a, lease=30)
    with pytest.raises(LeaseLost):
        async with message as unit:
            unit.send("b", "note", "must not be sent")
            clock.stall(31)
            await take(b)
    assert await queued(bus, "b") == []


async def test_a_stalled_block_continues_if_its_message_was_not_taken(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send(pool("p"), "note")
    message = await take(a, lease=30)
    async with message:
        clock.stall(31)
        clock.advance(0)
        await clock.settle()
        assert await nothing_for(b), "the renewal came first"
    assert (await stored(bus, message.message_id)).status == "acked"


async def test_a_takeover_cancels_the_blocks_of_the_previous_incarnation(
    bus: Bus, engine: Engine, clock: FakeClock
) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a, lease=30)
    async with engine.connect() as elsewhere:
        with pytest.raises((AgentFenced, LeaseLost)):
            async with message as unit:
                unit.send("a", "note", "must not be sent")
                heir = await worker(elsewhere, "a", takeover=True)
                await clock.pass_time(11)
                await soon(asyncio.Event().wait())
        assert (await take(heir)).message_id == message.message_id
        assert await nothing_for(heir)


async def test_a_refused_unit_raises_at_the_end_and_releases_the_message(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await a.send("a", "note")
    message = await take(a, lease=30)
    with pytest.raises(UnknownRecipient):
        async with message as unit:
            unit.send("b", "note", 1)
            unit.send("nobody", "note", 2)
    assert await nothing_for(b)
    record = await stored(bus, message.message_id)
    assert record.status == "scheduled", "as after any other exception of the block"
    assert record.error is not None
    assert "nobody" in record.error


async def test_the_lease_can_be_extended_inside_the_block(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a, lease=5)
    async with message:
        await message.extend(600)
        clock.stall(599)
        assert await nothing_for(a)
    assert (await stored(bus, message.message_id)).status == "acked"


@pytest.mark.one_engine
async def test_a_block_that_is_open_cannot_be_entered_again(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a)
    async with message:
        with pytest.raises(Misuse):
            async with message:
                pytest.fail("this block must not run")
    assert (await stored(bus, message.message_id)).status == "acked"


@pytest.mark.one_engine
async def test_a_generator_closed_in_the_block_releases_the_message(bus: Bus) -> None:
    """Its last step is run by another task than its first."""
    a = await worker(bus, "a")
    receipt = await a.send("a", "note", 7)

    async def payloads() -> AsyncGenerator[object, None]:
        message = await take(a)
        async with message:
            yield message.payload

    generator = payloads()
    assert await anext(generator) == 7
    await asyncio.create_task(generator.aclose())
    record = await stored(bus, receipt.message_id)
    assert (record.status, record.attempts) == ("queued", 0)


@pytest.mark.one_engine
async def test_blocks_may_be_left_in_another_order_than_they_were_entered(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send_many([("a", "note", 1), ("a", "note", 2)])
    first, second = await take(a), await take(a)
    await first.__aenter__()
    await second.__aenter__()
    await first.__aexit__(None, None, None)
    await second.__aexit__(None, None, None)
    assert (await bus.stats()).messages == {"acked": 2}
