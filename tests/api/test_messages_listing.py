"""``bus.messages`` and ``bus.stats``: list messages of every status."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus import Bus, pool, topic
from agentbus.errors import InvalidName, OutOfRange
from tests.api.helpers import stored, take, take_all, worker
from tests.support.cases import each
from tests.support.clock import START, FakeClock


async def _payloads(bus: Bus, **filters: Any) -> list[Any]:
    return [record.payload for record in (await bus.messages.list(**filters)).items]


async def test_an_unknown_message_is_none(bus: Bus) -> None:
    assert await bus.messages.get("nothing") is None
    assert await bus.messages.get("m-1") is None
    assert await bus.messages.get("m-99999999999999999999999999") is None


async def test_a_message_is_found_by_either_kind_of_id(bus: Bus) -> None:
    a = await worker(bus, "a")
    made = await a.send("a", "note", 1)
    await a.send("a", "note", 2, message_id="mine")
    assert (await stored(bus, made.message_id)).payload == 1
    assert (await stored(bus, "mine")).payload == 2


async def test_messages_are_listed_newest_first_page_by_page(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send_many(("a", "note", n) for n in range(7))
    seen: list[int] = []
    cursor = None
    for _ in range(3):
        page = await bus.messages.list(limit=3, cursor=cursor)
        seen += [record.payload for record in page.items]
        cursor = page.cursor
    assert (seen, cursor) == ([6, 5, 4, 3, 2, 1, 0], None)


async def test_pages_hold_still_while_messages_come(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send_many(("a", "note", n) for n in range(4))
    page = await bus.messages.list(limit=2)
    await a.send("a", "note", "new")
    rest = await bus.messages.list(limit=2, cursor=page.cursor)
    assert [record.payload for record in rest.items] == [1, 0]


async def test_lists_can_be_filtered(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a", pools=["p"], topics=["t"])
    b = await worker(bus, "b")
    await a.send("b", "note", 1, correlation="c-1")
    await b.send("a", "control", 2, session="s-1", priority=9)
    await b.send(pool("p"), "note", 3)
    await b.publish("t", "note", 4)
    await a.send("b", "note", 5, delay=60)
    assert await _payloads(bus, type="control") == [2]
    assert await _payloads(bus, sender="a") == [5, 1]
    assert await _payloads(bus, to="a") == [2]
    assert await _payloads(bus, to="b") == [5, 1]
    assert await _payloads(bus, to=pool("p")) == [3]
    assert await _payloads(bus, to=topic("t")) == [4]
    assert await _payloads(bus, session="s-1") == [2]
    assert await _payloads(bus, correlation="c-1") == [1]
    assert await _payloads(bus, status="scheduled") == [5]
    assert await _payloads(bus, to="b", status="queued") == [1]
    assert await _payloads(bus, to="nobody") == []
    await (await take(a)).ack()
    assert await _payloads(bus, status="acked") == [2]


@pytest.mark.one_engine
async def test_a_status_that_no_message_can_have_is_an_error(bus: Bus) -> None:
    """An empty list would look like an answer."""
    with pytest.raises(OutOfRange):
        await bus.messages.list(status="done")


@pytest.mark.one_engine
@each("limit", [0, -1, 1001, True, 1.5, "10"])
async def test_a_limit_out_of_range_is_refused(bus: Bus, limit: int) -> None:
    with pytest.raises(OutOfRange):
        await bus.messages.list(limit=limit)
    with pytest.raises(OutOfRange):
        await bus.messages.dead(limit=limit)


@pytest.mark.one_engine
@each("cursor", ["x", "-1", "1.5", "", "9" * 30, "٣", 5, b"5"])
async def test_an_invalid_cursor_is_refused(bus: Bus, cursor: Any) -> None:
    for page in (bus.messages.list, bus.messages.dead):
        with pytest.raises(OutOfRange):
            await page(cursor=cursor)


async def test_nothing_is_before_the_first_message(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    assert (await bus.messages.list(cursor="0")).items == []


@pytest.mark.one_engine
@each("sender", [5, "nul\0", "\ud800", b"a", {"a"}])
async def test_an_invalid_sender_is_refused(bus: Bus, sender: Any) -> None:
    with pytest.raises(OutOfRange):
        await bus.messages.list(sender=sender)
    assert (await bus.messages.list(sender="(agentbus)")).items == [], "the bus itself may be asked for"


@pytest.mark.one_engine
@each("message_id", ["", "two words", "x" * 129, "nul\0", None, 5])
async def test_an_invalid_message_id_is_refused(bus: Bus, message_id: str) -> None:
    with pytest.raises(InvalidName):
        await bus.messages.get(message_id)
    with pytest.raises(InvalidName):
        await bus.messages.requeue(message_id)


async def test_a_record_contains_the_whole_history_of_a_message(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note")
    clock.advance(1)
    message = await take(a)
    record = await stored(bus, receipt.message_id)
    assert (record.status, record.holder, record.attempts, record.finished) == ("leased", "a", 1, None)
    clock.advance(1)
    await message.ack()
    record = await stored(bus, receipt.message_id)
    assert (record.status, record.created, record.finished) == ("acked", START, START + 2_000)


async def test_an_empty_bus_has_empty_numbers(bus: Bus) -> None:
    stats = await bus.stats()
    assert (stats.messages, stats.agents, stats.queues, stats.oldest_waiting) == ({}, {}, [], None)
    assert stats.database_bytes > 0
    assert stats.wal_bytes >= 0


async def test_the_numbers_count_by_status(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await (await worker(bus, "b")).complete()
    await bus.expect("c", type="worker")
    await a.send("a", "note", ttl=1)
    clock.advance(2)
    await a.send_many(("a", "note", n) for n in range(5))
    await a.send("a", "note", delay=60)
    first, second, _ = await a.receive_many(3)
    await first.ack()
    await second.reject("no")
    stats = await bus.stats()
    assert stats.messages == {"expired": 1, "acked": 1, "dead": 1, "leased": 1, "queued": 2, "scheduled": 1}
    assert stats.agents == {"running": 1, "completed": 1, "pending": 1}


async def test_the_numbers_show_the_deepest_queues_and_the_oldest_message(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a", pools=["p"], topics=["t"])
    await a.send(pool("p"), "note")
    clock.advance(3)
    await a.send_many(("a", "note", n) for n in range(3))
    await a.publish("t", "note")
    clock.advance(2)
    stats = await bus.stats()
    assert [(queue.recipient, queue.queued, queue.oldest) for queue in stats.queues] == [
        ("a", 3, 2_000),
        ("pool:p", 1, 5_000),
        ("topic:t", 1, 2_000),
    ]
    assert stats.oldest_waiting == 5_000
    assert len((await bus.stats(deepest=1)).queues) == 1
    await a.ack(await take_all(a))
    assert (await bus.stats()).queues == []


@pytest.mark.one_engine
@each("deepest", [0, -1, 1001, True])
async def test_a_number_of_queues_out_of_range_is_refused(bus: Bus, deepest: int) -> None:
    with pytest.raises(OutOfRange):
        await bus.stats(deepest=deepest)
