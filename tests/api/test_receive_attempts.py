"""Attempts: the number of deliveries, retries with a delay, and dead letters."""

from __future__ import annotations

import statistics
from itertools import pairwise

import pytest

from agentbus import Bus
from agentbus.errors import OutOfRange
from tests.api.helpers import nothing_for, running, soon, stored, take, take_all, worker
from tests.support.cases import each
from tests.support.clock import FakeClock


async def test_attempts_count_deliveries(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    for attempt in (1, 2, 3):
        message = await take(a)
        assert message.attempts == attempt
        await message.nack(delay=0)


async def test_after_the_last_attempt_it_is_a_dead_letter_with_the_last_error(bus: Bus) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note", max_attempts=3)
    for error in ("first", "second", "third"):
        await (await take(a)).nack(delay=0, error=error)
    assert await nothing_for(a)
    record = await stored(bus, receipt.message_id)
    assert (record.status, record.attempts, record.error) == ("dead", 3, "third")
    assert record.finished is not None
    assert [letter.message_id for letter in (await bus.messages.dead()).items] == [receipt.message_id]


async def test_there_are_five_attempts_by_default(bus: Bus) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note")
    assert (await stored(bus, receipt.message_id)).max_attempts == 5


async def test_one_attempt_is_allowed(bus: Bus) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note", max_attempts=1)
    await (await take(a)).nack(delay=0)
    record = await stored(bus, receipt.message_id)
    assert record.status == "dead"
    assert record.error


async def test_leases_that_run_out_make_a_dead_letter_in_the_end(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note", max_attempts=2)
    for _ in range(2):
        await take(a, lease=30)
        clock.advance(30)
    assert await nothing_for(a)
    record = await stored(bus, receipt.message_id)
    assert (record.status, record.attempts) == ("dead", 2)
    assert record.error is not None
    assert "lease" in record.error


async def test_an_error_is_kept_while_the_message_waits_for_its_retry(bus: Bus) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note")
    await (await take(a)).nack(delay=10, error="the model was overloaded")
    record = await stored(bus, receipt.message_id)
    assert (record.status, record.attempts, record.error) == ("scheduled", 1, "the model was overloaded")


async def test_a_message_released_with_a_delay_is_redelivered_after_it(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    await (await take(a)).nack(delay=7)
    clock.advance(6.9)
    assert await nothing_for(a)
    clock.advance(0.1)
    assert (await take(a)).attempts == 2


async def test_a_message_released_without_delay_wakes_a_waiting_receiver(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a)
    async with running(a.receive()) as waiting:
        await clock.settle()
        assert not waiting.done()
        await message.nack(delay=0)
        assert await soon(waiting) is not None


async def test_a_waiting_receiver_gets_a_message_when_its_retry_is_due(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a)
    async with running(a.receive()) as waiting:
        await clock.settle()
        await message.nack(delay=3)
        await clock.pass_time(2.9)
        assert not waiting.done()
        await clock.pass_time(0.1)
        assert await soon(waiting) is not None


async def _delays(bus: Bus, clock: FakeClock, attempt: int, messages: int = 30) -> list[float]:
    """The seconds by which messages are put off that are given back after this attempt."""
    a = await worker(bus, f"a{attempt}")
    await a.send_many({"to": a.id, "type": "note", "max_attempts": 1000} for _ in range(messages))
    for _ in range(attempt - 1):
        for message in await take_all(a):
            await message.nack(delay=0)
    delays = []
    for message in await take_all(a):
        assert message.attempts == attempt
        await message.nack()
        due = (await stored(bus, message.message_id)).due
        assert due is not None
        delays.append((due - clock.now().wall) / 1000)
    return delays


@pytest.mark.one_engine
async def test_without_a_delay_each_retry_waits_about_twice_as_long(bus: Bus, clock: FakeClock) -> None:
    medians = [statistics.median(await _delays(bus, clock, attempt)) for attempt in (1, 2, 3, 4)]
    assert 0.1 <= medians[0] <= 10
    for shorter, longer in pairwise(medians):
        assert 1.5 <= longer / shorter <= 3


@pytest.mark.one_engine
async def test_retries_are_spread_so_that_failures_do_not_come_back_together(bus: Bus, clock: FakeClock) -> None:
    delays = await _delays(bus, clock, 3)
    assert len(set(delays)) > 20
    assert max(delays) > 1.2 * min(delays)


@pytest.mark.one_engine
async def test_the_wait_for_a_retry_has_a_cap(bus: Bus, clock: FakeClock) -> None:
    assert max(await _delays(bus, clock, 40, messages=3)) <= 3600


async def test_a_rejected_message_is_a_dead_letter_at_once(bus: Bus) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note")
    await (await take(a)).reject("the file never existed")
    assert await nothing_for(a)
    record = await stored(bus, receipt.message_id)
    assert (record.status, record.attempts, record.error) == ("dead", 1, "the file never existed")


@pytest.mark.one_engine
@each("delay", [-1, -0.001, float("nan"), float("inf"), True, "5"])
async def test_a_refused_delay_leaves_the_message_with_its_holder(bus: Bus, delay: float) -> None:
    a = await worker(bus, "a", takeover=True)
    receipt = await a.send("a", "note")
    message = await take(a)
    with pytest.raises(OutOfRange):
        await message.nack(delay=delay)
    assert (await stored(bus, receipt.message_id)).status == "leased"
    await message.ack()


@pytest.mark.one_engine
@each("error", ["nul \0", "lone \ud800", "x" * 200_000, 5])
async def test_a_refused_error_text_leaves_the_message_with_its_holder(bus: Bus, error: str) -> None:
    a = await worker(bus, "a", takeover=True)
    receipt = await a.send("a", "note")
    message = await take(a)
    for action in (message.nack(error=error), message.reject(error)):
        with pytest.raises(OutOfRange):
            await action
    assert (await stored(bus, receipt.message_id)).status == "leased"
    await message.ack()
