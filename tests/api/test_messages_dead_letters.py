"""Dead letters: stored with their error, requeued with fresh attempts, or purged."""

from __future__ import annotations

import pytest

from agentbus import Bus, pool
from agentbus.errors import OutOfRange, UnknownMessage, WrongState
from tests.api.helpers import count, nothing_for, running, soon, stored, take, take_all, worker
from tests.support.clock import FakeClock


async def test_a_requeued_letter_starts_its_attempts_again(bus: Bus) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note", {"n": 1}, max_attempts=2)
    assert receipt.message_id is not None
    for _ in range(2):
        await (await take(a)).nack(delay=0, error="bad")
    assert await bus.messages.requeue(receipt.message_id) == 1
    record = await stored(bus, receipt.message_id)
    assert (record.status, record.attempts, record.finished) == ("queued", 0, None)
    assert record.error == "bad", "the earlier error is still shown"
    message = await take(a)
    assert (message.attempts, message.payload) == (1, {"n": 1})
    await message.nack(delay=0, error="worse")
    assert (await take(a)).attempts == 2


async def test_requeueing_wakes_a_waiting_receiver(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note")
    assert receipt.message_id is not None
    await (await take(a)).reject("no")
    async with running(a.receive()) as waiting:
        await clock.settle()
        await bus.messages.requeue(receipt.message_id)
        assert await soon(waiting) is not None


async def test_many_letters_are_requeued_together_or_not_at_all(bus: Bus) -> None:
    a = await worker(bus, "a")
    receipts = await a.send_many(("a", "note", n) for n in range(3))
    ids = [receipt.message_id for receipt in receipts if receipt.message_id is not None]
    for message in (await take_all(a))[:2]:
        await message.reject("no")
    with pytest.raises(WrongState) as wrong:
        await bus.messages.requeue(*ids)
    assert (wrong.value.code, wrong.value.name, wrong.value.status) == ("wrong_state", ids[2], "leased")
    with pytest.raises(UnknownMessage) as unknown:
        await bus.messages.requeue(ids[0], "nothing")
    assert (unknown.value.code, unknown.value.message_id) == ("unknown_message", "nothing")
    assert (await bus.stats()).messages == {"dead": 2, "leased": 1}
    assert await bus.messages.requeue(ids[0], ids[1], ids[0]) == 2
    assert [message.payload for message in await take_all(a)] == [0, 1]


async def test_a_letter_with_an_id_of_its_own_can_be_requeued(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", message_id="job-1")
    await (await take(a)).reject("no")
    assert await bus.messages.requeue("job-1") == 1
    await (await take(a)).ack()
    with pytest.raises(WrongState):
        await bus.messages.requeue("job-1")


async def test_a_requeued_letter_whose_ttl_has_passed_is_delivered(bus: Bus, clock: FakeClock) -> None:
    """A requeued letter is to be tried again, whatever its time to live was."""
    a = await worker(bus, "a")
    await a.send("a", "note", message_id="job-1", ttl=5)
    await (await take(a)).reject("no")
    clock.advance(60)
    await bus.messages.requeue("job-1")
    await take(a)


async def test_a_requeued_letter_of_a_pool_goes_to_the_pool(bus: Bus) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send(pool("p"), "note", message_id="job-1")
    await (await take(a)).reject("not for me")
    await bus.messages.requeue("job-1")
    assert (await take(b)).recipient == "pool:p"


async def test_requeueing_nothing_does_nothing(bus: Bus) -> None:
    assert await bus.messages.requeue() == 0


async def test_dead_letters_are_listed_newest_first_page_by_page(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send_many(("a", "note", n) for n in range(5))
    for message in await take_all(a):
        await message.reject(f"error {message.payload}")
    await a.send("a", "note", "alive")
    page = await bus.messages.dead(limit=3)
    assert [(letter.payload, letter.error) for letter in page.items] == [(n, f"error {n}") for n in (4, 3, 2)]
    rest = await bus.messages.dead(limit=3, cursor=page.cursor)
    assert ([letter.payload for letter in rest.items], rest.cursor) == ([1, 0], None)


async def test_purging_deletes_what_is_finished_and_nothing_else(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    for n in range(5):
        await a.send("a", "note", n, priority=9 - n)
    await (await take(a)).ack()
    await (await take(a)).reject("no")
    await take(a)
    await a.send("a", "note", "later", delay=60)
    assert await bus.messages.purge() == 1
    assert (await bus.stats()).messages == {"dead": 1, "leased": 1, "queued": 2, "scheduled": 1}
    assert await bus.messages.purge(status="dead") == 1, "dead letters go only when they are named"


async def test_purging_deletes_only_the_given_status_and_age(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send_many(("a", "note", n) for n in range(3))
    first, second, third = await take_all(a)
    await first.ack()
    await second.reject("no")
    clock.advance(100)
    await third.ack()
    assert await bus.messages.purge(status="acked", older_than=50) == 1
    assert (await bus.stats()).messages == {"acked": 1, "dead": 1}
    assert await bus.messages.purge(status="expired") == 0
    assert await bus.messages.purge(status="dead") == 1
    assert await bus.messages.purge() == 1
    assert await count(bus) == 0


async def test_purging_takes_any_number(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbus.api.messages._PURGE_STEP", 50)
    a = await worker(bus, "a")
    await a.send_many(("a", "note", n) for n in range(120))
    await a.ack(await a.receive_many(120))
    assert await bus.messages.purge() == 120
    assert await count(bus) == 0


async def test_message_ids_are_not_used_again_after_a_purge(bus: Bus) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note")
    await (await take(a)).ack()
    await bus.messages.purge()
    assert (await a.send("a", "note")).message_id != receipt.message_id


async def test_only_finished_messages_can_be_purged(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    with pytest.raises(OutOfRange):
        await bus.messages.purge(status="queued")  # type: ignore[arg-type]
    for seconds in (-1, float("nan")):
        with pytest.raises(OutOfRange):
            await bus.messages.purge(older_than=seconds)
    assert await count(bus) == 1
    assert not await nothing_for(a)
