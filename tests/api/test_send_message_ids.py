"""A message_id names one message: the same content is sent once, other content is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import agentbus
from agentbus import Bus, OutgoingMessage, Receipt
from agentbus.errors import InvalidName, MessageIdConflict
from tests.api.helpers import count, nothing_for, stored, take, take_all, worker
from tests.conftest import Engine
from tests.support.cases import each


async def test_the_same_id_with_the_same_content_gives_the_first_receipt_again(bus: Bus) -> None:
    a = await worker(bus, "a")
    first = await a.send("a", "note", {"n": 1}, message_id="job-1")
    again = await a.send("a", "note", {"n": 1}, message_id="job-1")
    assert (first.duplicate, again.duplicate) == (False, True)
    assert (again.id, again.message_id, again.delivered) == (first.id, "job-1", 1)
    assert await count(bus) == 1


@each(
    ("differs", "other"),
    [
        ("recipient", {"to": "b"}),
        ("recipient", {"to": agentbus.pool("a")}),
        ("recipient", {"to": agentbus.topic("a")}),
        ("type", {"type": "control"}),
        ("payload", {"payload": {"n": 2}}),
        ("payload", {"payload": None}),
        ("correlation", {"correlation": "c-2"}),
        ("correlation", {"correlation": None}),
    ],
)
async def test_the_same_id_with_other_content_is_refused(bus: Bus, differs: str, other: dict[str, Any]) -> None:
    a = await worker(bus, "a", pools=["a"], topics=["a"], takeover=True)
    await worker(bus, "b", takeover=True)
    content: dict[str, Any] = {"to": "a", "type": "note", "payload": {"n": 1}, "correlation": "c-1"}
    await a.send(**content, message_id="job-1")
    with pytest.raises(MessageIdConflict) as refused:
        await a.send(**{**content, **other}, message_id="job-1")
    assert refused.value.code == "message_id_conflict"
    assert (refused.value.message_id, refused.value.differs) == ("job-1", differs)
    assert await count(bus) == 1


async def test_attributes_outside_the_content_may_differ(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    first = await a.send("a", "note", 1, message_id="job-1")
    again = await b.send("a", "note", 1, message_id="job-1", priority=9, delay=5, ttl=50, max_attempts=1, session="s")
    assert (again.id, again.duplicate) == (first.id, True)
    assert (await stored(bus, "job-1")).priority == 5


@pytest.mark.one_engine
async def test_equal_payloads_are_the_same_content(bus: Bus) -> None:
    a = await worker(bus, "a")
    payloads: list[Any] = [{"a": 1, "b": [True, None]}, [1.5, "ü"], (1, 2), "x", None]
    for number, payload in enumerate(payloads):
        assert not (await a.send("a", "note", payload, message_id=f"job-{number}")).duplicate
        assert (await a.send("a", "note", payload, message_id=f"job-{number}")).duplicate, payload


@pytest.mark.one_engine
async def test_the_order_of_keys_does_not_make_another_content(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", {"x": 1, "y": {"p": 1, "q": 2}}, message_id="job-1")
    assert (await a.send("a", "note", {"y": {"q": 2, "p": 1}, "x": 1}, message_id="job-1")).duplicate


async def test_many_tasks_with_the_same_id_at_once_send_one_message(bus: Bus) -> None:
    a = await worker(bus, "a")
    receipts = await asyncio.gather(*(a.send("a", "note", 1, message_id="job-1") for _ in range(20)))
    assert len({receipt.id for receipt in receipts}) == 1
    assert sum(not receipt.duplicate for receipt in receipts) == 1
    assert await count(bus) == 1


async def test_of_many_tasks_with_one_id_and_other_content_one_wins(bus: Bus) -> None:
    a = await worker(bus, "a")
    # Concurrent sends with ids of their own must not be affected by the conflict.
    sends = [a.send("a", "note", n, message_id="job-1" if n % 2 else f"own-{n}") for n in range(40)]
    results = await asyncio.gather(*sends, return_exceptions=True)
    winners = [result for n, result in enumerate(results) if n % 2 and isinstance(result, Receipt)]
    assert len(winners) == 1
    assert all(isinstance(result, Receipt) for result in results[::2])
    refused = [result for result in results if isinstance(result, BaseException)]
    assert all(isinstance(result, MessageIdConflict) for result in refused)
    assert len(refused) == 19
    assert await count(bus) == 21


async def test_the_same_id_from_two_buses_at_once_sends_one_message(bus: Bus, engine: Engine) -> None:
    async with engine.connect() as other:
        a, b = await worker(bus, "a"), await worker(other, "b")
        sends = [agent.send("a", "note", 1, message_id=f"job-{n}") for n in range(20) for agent in (a, b)]
        receipts = await asyncio.gather(*sends)
    assert len({receipt.id for receipt in receipts}) == 20
    assert await count(bus) == 20


async def test_an_id_is_remembered_after_the_message_is_done(bus: Bus) -> None:
    a = await worker(bus, "a")
    first = await a.send("a", "note", 1, message_id="job-1")
    await (await take(a)).ack()
    again = await a.send("a", "note", 1, message_id="job-1")
    assert (again.id, again.duplicate) == (first.id, True)
    assert await nothing_for(a)


async def test_an_id_is_remembered_after_its_recipient_ended(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await a.send("b", "note", 1, message_id="job-1")
    await b.complete()
    assert (await a.send("b", "note", 1, message_id="job-1")).duplicate


async def test_an_id_is_forgotten_once_its_message_is_purged(bus: Bus) -> None:
    a = await worker(bus, "a")
    first = await a.send("a", "note", 1, message_id="job-1")
    await (await take(a)).ack()
    assert await bus.messages.purge() == 1
    again = await a.send("a", "note", 2, message_id="job-1")
    assert not again.duplicate
    assert again.id != first.id


async def test_an_id_is_remembered_after_reopening(engine: Engine) -> None:
    for expected in (False, True):
        async with engine.connect() as bus:
            a = await worker(bus, "a")
            assert (await a.send("a", "note", 1, message_id="job-1")).duplicate is expected


async def test_a_publication_with_an_id_reaches_each_subscriber_once(bus: Bus) -> None:
    a, b = await worker(bus, "a", topics=["t"]), await worker(bus, "b", topics=["t"])
    first = await a.publish("t", "note", 1, message_id="news-1")
    again = await a.publish("t", "note", 1, message_id="news-1")
    assert (first.delivered, again.delivered, again.duplicate) == (2, 2, True)
    for agent in (a, b):
        (message,) = await take_all(agent)
        assert message.message_id == "news-1"


async def test_a_publication_called_again_does_not_reach_a_later_subscriber(bus: Bus) -> None:
    a = await worker(bus, "a", topics=["t"])
    await a.publish("t", "note", 1, message_id="news-1")
    late = await worker(bus, "late", topics=["t"])
    assert (await a.publish("t", "note", 1, message_id="news-1")).duplicate
    assert await nothing_for(late)


async def test_a_publication_with_a_used_id_and_other_content_is_refused(bus: Bus) -> None:
    a = await worker(bus, "a", topics=["t", "u"])
    await a.publish("t", "note", 1, message_id="news-1")
    for topic, payload in (("t", 2), ("u", 1)):
        with pytest.raises(MessageIdConflict):
            await a.publish(topic, "note", payload, message_id="news-1")
    assert await count(bus) == 1


async def test_a_whole_list_can_be_sent_again(bus: Bus) -> None:
    a = await worker(bus, "a")
    jobs: list[OutgoingMessage] = [
        {"to": "a", "type": "note", "payload": n, "message_id": f"job-{n}"} for n in range(5)
    ]
    first = await a.send_many(jobs)
    again = await a.send_many([*jobs, {"to": "a", "type": "note", "payload": 5, "message_id": "job-5"}])
    assert [receipt.id for receipt in again[:5]] == [receipt.id for receipt in first]
    assert [receipt.duplicate for receipt in again] == [True] * 5 + [False]
    assert await count(bus) == 6


async def test_a_unit_can_be_committed_again(bus: Bus) -> None:
    a = await worker(bus, "a")
    for _ in range(2):
        async with a.unit() as unit:
            unit.send("a", "note", 1, message_id="job-1")
            unit.send("a", "note", 2, message_id="job-2")
    assert await count(bus) == 2


@pytest.mark.one_engine
async def test_the_form_of_the_bus_s_own_ids_is_not_for_callers(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(InvalidName):
        await a.send("a", "note", message_id="m-1")
    assert await count(bus) == 0
