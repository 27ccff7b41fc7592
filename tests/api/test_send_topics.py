"""Topics: each subscriber gets a copy; a subscription ends with its agent, but not with its failure."""

from __future__ import annotations

import pytest

from agentbus import Bus, topic
from agentbus.errors import AgentEnded, UnknownRecipient
from tests.api.helpers import count, nothing_for, running, soon, stored, take, take_all, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def test_each_subscriber_gets_a_copy(bus: Bus) -> None:
    a = await worker(bus, "a")
    readers = [await worker(bus, f"r{n}", topics=["plans"]) for n in range(3)]
    receipt = await a.publish("plans", "note", {"plan": 3}, priority=8)
    assert receipt.delivered == 3
    for reader in readers:
        message = await take(reader)
        assert (message.sender, message.recipient, message.payload) == ("a", "topic:plans", {"plan": 3})
        assert message.priority == 8
        await message.ack()
    assert await nothing_for(a, *readers)


async def test_sending_to_a_topic_is_publishing(bus: Bus) -> None:
    a = await worker(bus, "a", topics=["plans"])
    assert (await a.send(topic("plans"), "note", 1)).delivered == 1
    assert (await take(a)).payload == 1


async def test_copies_are_settled_one_by_one(bus: Bus) -> None:
    a, b = await worker(bus, "a", topics=["t"]), await worker(bus, "b", topics=["t"])
    await a.publish("t", "note", 1)
    await (await take(a)).ack()
    await (await take(b)).reject("not for me")
    assert (await bus.stats()).messages == {"acked": 1, "dead": 1}


async def test_publishing_without_a_subscriber_delivers_nothing(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.declare(topic("plans"))
    receipt = await a.publish("plans", "note")
    assert receipt.delivered == 0
    assert await count(bus) == 0


async def test_an_unknown_topic_is_an_error_that_names_near_ones(bus: Bus) -> None:
    a = await worker(bus, "a", topics=["plans"])
    with pytest.raises(UnknownRecipient) as unknown:
        await a.publish("plan", "note")
    assert (unknown.value.kind, unknown.value.name) == ("topic", "plan")
    assert "plans" in str(unknown.value)
    assert await count(bus) == 0


async def test_a_subscriber_gets_only_what_is_published_from_then_on(bus: Bus) -> None:
    a = await worker(bus, "a", topics=["t"])
    await a.publish("t", "note", 1)
    late = await worker(bus, "late")
    await late.subscribe("t")
    await a.publish("t", "note", 2)
    assert [message.payload for message in await take_all(late)] == [2]
    assert [message.payload for message in await take_all(a)] == [1, 2]


async def test_subscribing_twice_does_not_double_the_copies(bus: Bus) -> None:
    a = await worker(bus, "a", topics=["t"])
    await a.subscribe("t", "t")
    assert (await a.publish("t", "note")).delivered == 1


async def test_an_unsubscribed_agent_gets_no_more_copies(bus: Bus) -> None:
    a = await worker(bus, "a", topics=["t"])
    receipt = await a.publish("t", "note")
    await a.unsubscribe("t")
    assert (await a.publish("t", "note")).delivered == 0
    assert await nothing_for(a)
    assert (await stored(bus, receipt.message_id)).status == "expired", "what waited for it expires"


async def test_a_subscriber_that_waits_is_woken(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as elsewhere:
        a, b = await worker(bus, "a", topics=["t"]), await worker(elsewhere, "b", topics=["t"])
        async with running(a.receive()) as here, running(b.receive()) as there:
            await clock.settle()
            await a.publish("t", "note", 1)
            for waiting in (here, there):
                message = await soon(waiting)
                assert message is not None
                assert message.payload == 1


async def test_an_agent_that_subscribes_while_waiting_is_woken_for_the_topic(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    async with running(a.receive()) as waiting:
        await clock.settle()
        await a.subscribe("t")
        await b.publish("t", "note", 1)
        assert await soon(waiting) is not None


@each("end", ["complete", "stop"])
async def test_a_subscription_ends_when_its_agent_completes_or_stops(bus: Bus, end: str) -> None:
    a, b = await worker(bus, "a", topics=["t"], takeover=True), await worker(bus, "b", takeover=True)
    waiting = await b.publish("t", "note", 1)
    await getattr(a, end)()
    assert (await stored(bus, waiting.message_id)).status == "expired"
    assert (await b.publish("t", "note", 2)).delivered == 0
    assert await nothing_for(await worker(bus, "a")), "a new incarnation does not inherit it"


async def test_a_subscription_stays_when_its_agent_fails(bus: Bus) -> None:
    a, b = await worker(bus, "a", topics=["t"]), await worker(bus, "b")
    await b.publish("t", "note", 1)
    await a.fail("crashed")
    assert (await b.publish("t", "note", 2)).delivered == 1
    again = await worker(bus, "a")
    assert [message.payload for message in await take_all(again)] == [1, 2]
    assert (await b.publish("t", "note", 3)).delivered == 1
    assert (await take(again)).payload == 3


async def test_a_publication_can_be_delayed_and_expire(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a", topics=["t"])
    await a.publish("t", "note", "later", delay=10)
    await a.publish("t", "note", "short", ttl=5)
    clock.advance(10)
    assert [message.payload for message in await take_all(a)] == ["later"]


async def test_the_copies_are_listed_under_their_topic(bus: Bus) -> None:
    a = await worker(bus, "a", topics=["t"])
    await worker(bus, "b", topics=["t"])
    await a.publish("t", "note", 1, message_id="news")
    page = await bus.messages.list(to=topic("t"))
    assert [record.recipient for record in page.items] == ["topic:t", "topic:t"]
    assert {record.message_id for record in page.items} == {"news"}


async def test_a_copy_released_after_its_subscription_ended_expires(bus: Bus) -> None:
    a = await worker(bus, "a", topics=["t"])
    await a.publish("t", "note", 1)
    message = await take(a)
    await a.unsubscribe("t")
    await message.nack(delay=0)
    assert (await stored(bus, message.message_id)).status == "expired"
    await a.subscribe("t")
    assert await nothing_for(a)


async def test_a_dead_copy_of_an_ended_subscription_cannot_be_requeued(bus: Bus) -> None:
    a = await worker(bus, "a", topics=["t"])
    await a.publish("t", "note", 1)
    message = await take(a)
    await message.reject("no")
    await a.unsubscribe("t")
    with pytest.raises(AgentEnded):
        await bus.messages.requeue(message.message_id)
