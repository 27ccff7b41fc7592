"""``serve``: the loop that handles messages, records failures and continues."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from agentbus import Bus, Message, Unit, pool
from agentbus.errors import AgentFenced, LeaseLost, OutOfRange
from tests.api.helpers import eventually, nothing_for, queued, running, soon, stored, take, take_all, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def test_serve_handles_what_comes_and_acknowledges_it(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await bus.expect("out", type="worker")

    async def handle(message: Message, unit: Unit) -> None:
        if message.payload % 2:
            unit.send("out", "note", message.payload)

    async with running(a.serve(handle)):
        for n in range(6):
            await a.send("a", "note", n)
            await clock.settle()
    assert (await bus.stats()).messages == {"acked": 6, "queued": 3}
    assert sorted(await queued(bus, "out")) == [1, 3, 5]


@pytest.mark.one_engine
async def test_an_exception_of_a_handler_is_recorded_and_the_loop_continues(
    bus: Bus, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    a = await worker(bus, "a")
    seen: list[Any] = []

    async def handle(message: Message, unit: Unit) -> None:
        seen.append((message.payload, message.attempts))
        if message.payload == "bad":
            unit.send("a", "note", "must not be sent")
            raise ValueError("cannot read it")

    receipt = await a.send("a", "note", "bad", priority=9)
    await a.send("a", "note", "good")
    with caplog.at_level(logging.ERROR, logger="agentbus"):
        async with running(a.serve(handle)):
            await clock.settle()
            assert seen == [("bad", 1), ("good", 1)]
            record = await stored(bus, receipt.message_id)
            assert (record.status, record.error) == ("scheduled", "ValueError: cannot read it")
            await clock.pass_time(2)
    assert seen[2] == ("bad", 2)
    assert any("cannot read it" in str(entry.exc_info) for entry in caplog.records)


async def test_a_message_that_always_fails_becomes_a_dead_letter(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    attempts: list[int] = []

    async def handle(message: Message, unit: Unit) -> None:
        attempts.append(message.attempts)
        raise ValueError("never")

    receipt = await a.send("a", "note", max_attempts=3)
    async with running(a.serve(handle)):
        await clock.pass_time(60)
    assert attempts == [1, 2, 3]
    assert (await stored(bus, receipt.message_id)).status == "dead"


@pytest.mark.one_engine
async def test_concurrency_bounds_the_messages_handled_at_a_time(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    now, most, handled = 0, 0, 0
    resume = asyncio.Event()

    async def handle(message: Message, unit: Unit) -> None:
        nonlocal now, most, handled
        now += 1
        most = max(most, now)
        await resume.wait()
        now -= 1
        handled += 1

    await a.send_many(("a", "note", n) for n in range(10))
    async with running(a.serve(handle, concurrency=4)):
        await clock.settle()
        assert (now, most) == (4, 4)
        assert (await bus.stats()).messages == {"leased": 4, "queued": 6}
        resume.set()
        await eventually(clock, lambda: handled == 10)
    assert most == 4
    assert (await bus.stats()).messages == {"acked": 10}


async def test_an_acknowledgement_does_not_wait_for_the_next_message(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")

    async def handle(message: Message, unit: Unit) -> None:
        pass

    async with running(a.serve(handle)):
        receipt = await a.send("a", "note")
        await clock.settle()
        assert (await stored(bus, receipt.message_id)).status == "acked"


async def test_cancelling_serve_releases_the_messages_being_handled(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send_many({"to": "a", "type": "note", "payload": n, "max_attempts": 1} for n in range(3))

    async def handle(message: Message, unit: Unit) -> None:
        await asyncio.Event().wait()

    async with running(a.serve(handle, concurrency=2)):
        await clock.settle()
        assert (await bus.stats()).messages == {"leased": 2, "queued": 1}
    await clock.settle()
    assert [(message.payload, message.attempts) for message in await take_all(a)] == [(0, 1), (1, 1), (2, 1)]


async def test_cancelling_serve_at_any_moment_loses_nothing_and_repeats_nothing_done(
    bus: Bus, clock: FakeClock
) -> None:
    a = await worker(bus, "a")
    handled: list[int] = []

    async def handle(message: Message, unit: Unit) -> None:
        handled.append(message.payload)

    await a.send_many({"to": "a", "type": "note", "payload": n, "max_attempts": 1} for n in range(60))
    for turns in (*range(30), *range(30, 60, 6)):
        async with running(a.serve(handle)):
            for _ in range(turns):
                await asyncio.sleep(0)
        await clock.settle()
        assert "leased" not in (await bus.stats()).messages
    rest = [message.payload for message in await take_all(a)]
    assert sorted(handled + rest) == list(range(60))


async def test_leases_are_renewed_while_a_handler_works(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send(pool("p"), "note")
    resume = asyncio.Event()

    async def handle(message: Message, unit: Unit) -> None:
        await resume.wait()

    async with running(a.serve(handle, lease=10)):
        await clock.pass_time(100)
        assert await nothing_for(b)
        resume.set()
        await clock.settle()
    assert (await bus.stats()).messages == {"acked": 1}


async def test_a_handler_whose_lease_is_lost_is_cancelled_and_the_loop_continues(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send(pool("p"), "note", "slow")
    ended: list[str] = []

    async def handle(message: Message, unit: Unit) -> None:
        if message.payload == "slow":
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("slow")
        else:
            ended.append("next")

    async with running(a.serve(handle, lease=10)):
        await clock.settle()
        clock.stall(11)
        fresh = await take(b)
        clock.advance(0)
        await clock.settle()
        assert ended == ["slow"]
        await a.send("a", "note", "next")
        await clock.settle()
        assert ended == ["slow", "next"]
    await fresh.ack()


async def test_an_acknowledgement_that_comes_too_late_does_not_end_the_loop(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send(pool("p"), "note", "slow")
    seen: list[str] = []

    async def handle(message: Message, unit: Unit) -> None:
        seen.append(message.payload)
        if message.payload == "slow":
            clock.stall(11)
            await take(b)

    async with running(a.serve(handle, lease=10)):
        await clock.settle()
        await a.send("a", "note", "next")
        await clock.settle()
    assert seen == ["slow", "next"]


async def test_a_fenced_agent_s_serve_raises_it(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    """Not in a group: the caller wants to write `except AgentFenced`."""
    a = await worker(bus, "a")

    async def handle(message: Message, unit: Unit) -> None:
        pass

    async with engine.connect() as elsewhere:
        serving = asyncio.create_task(a.serve(handle, concurrency=2))
        await clock.settle()
        heir = await worker(elsewhere, "a", takeover=True)
        await heir.send("a", "note")
        await clock.pass_time(11)
        with pytest.raises(AgentFenced):
            await soon(serving)
        assert not await nothing_for(heir)


@pytest.mark.one_engine
async def test_a_handler_may_settle_its_message_itself(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    seen: list[int] = []

    async def handle(message: Message, unit: Unit) -> None:
        seen.append(message.payload)
        if message.payload == 0:
            await message.reject("no")
        elif message.payload == 1:
            await message.nack(delay=600)
        else:
            await message.ack()

    await a.send_many(("a", "note", n) for n in range(3))
    async with running(a.serve(handle)):
        await eventually(clock, lambda: len(seen) == 3)
    assert (await bus.stats()).messages == {"dead": 1, "scheduled": 1, "acked": 1}


@pytest.mark.one_engine
async def test_a_handler_that_loses_a_message_of_its_own_is_recorded_like_any_other(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")

    async def handle(message: Message, unit: Unit) -> None:
        raise LeaseLost(message_id="m-999", status="acked", holder="nobody")

    receipt = await a.send("a", "note")
    async with running(a.serve(handle)) as serving:
        await clock.settle()
        assert not serving.done()
        assert (await stored(bus, receipt.message_id)).status == "scheduled"


@pytest.mark.one_engine
@each("concurrency", [0, -1, 1.5, True, 10_001])
async def test_a_concurrency_out_of_range_is_refused(bus: Bus, concurrency: int) -> None:
    a = await worker(bus, "a", takeover=True)

    async def handle(message: Message, unit: Unit) -> None:
        pass

    with pytest.raises(OutOfRange):
        await soon(a.serve(handle, concurrency=concurrency))


@pytest.mark.one_engine
@each("concurrency", [1, 4])
async def test_a_cancellation_that_is_not_ours_fails_the_handler_and_not_the_loop(
    bus: Bus, clock: FakeClock, concurrency: int
) -> None:
    """The handler awaited something else that was cancelled: an attempt, as any other failure."""
    a = await worker(bus, "a", takeover=True)
    seen: list[Any] = []

    async def handle(message: Message, unit: Unit) -> None:
        if message.payload == "poison":
            other = asyncio.create_task(asyncio.Event().wait())
            other.cancel()
            await other
        seen.append(message.payload)

    async with running(a.serve(handle, concurrency=concurrency)) as serving:
        receipt = await a.send("a", "note", "poison", max_attempts=2)
        await clock.settle()
        clock.advance(400)
        await clock.settle()
        await a.send("a", "note", "after")
        await eventually(clock, lambda: "after" in seen)
        assert not serving.done()
    record = await stored(bus, receipt.message_id)
    assert (record.status, record.attempts) == ("dead", 2)
    assert record.error is not None
    assert "CancelledError" in record.error


@pytest.mark.one_engine
async def test_another_agent_that_is_fenced_does_not_end_the_loop(bus: Bus, clock: FakeClock) -> None:
    a, other = await worker(bus, "a"), await worker(bus, "other")
    await other.stop()
    seen: list[Any] = []

    async def handle(message: Message, unit: Unit) -> None:
        seen.append(message.payload)
        if message.payload == 1:
            await other.send("a", "note", "never")

    async with running(a.serve(handle)) as serving:
        await a.send("a", "note", 1)
        await a.send("a", "note", 2)
        await eventually(clock, lambda: seen == [1, 2])
        assert not serving.done()
