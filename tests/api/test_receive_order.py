"""Highest priority first, then oldest, across all mailboxes of a receiver."""

from __future__ import annotations

import random

import pytest

import agentbus
from agentbus import Address, Bus, Priority
from tests.api.helpers import take, take_all, worker
from tests.support.clock import FakeClock


async def test_the_most_urgent_comes_first(bus: Bus) -> None:
    a = await worker(bus, "a")
    for priority in (Priority.LOW, 9, Priority.NORMAL, 0, Priority.HIGH):
        await a.send("a", "note", int(priority), priority=priority)
    assert [(await take(a)).payload for _ in range(5)] == [9, 7, 5, 2, 0]


async def test_of_equal_priority_the_oldest_comes_first(bus: Bus) -> None:
    a = await worker(bus, "a")
    for n in range(20):
        await a.send("a", "note", n)
    assert [(await take(a)).payload for _ in range(20)] == list(range(20))


async def test_a_message_without_a_priority_is_normal(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    assert (await take(a)).priority == Priority.NORMAL


async def test_order_holds_across_own_mailbox_pools_and_subscriptions(bus: Bus) -> None:
    sender = await worker(bus, "sender")
    a = await worker(bus, "a", pools=["p", "q"], topics=["t"])
    places: list[str | Address] = [agentbus.pool("p"), "a", agentbus.topic("t"), agentbus.pool("q")]
    chance = random.Random(7)
    sent: list[tuple[int, int]] = []
    for n in range(60):
        priority = chance.randrange(10)
        await sender.send(chance.choice(places), "note", [priority, n], priority=priority)
        sent.append((-priority, n))
    expected = [[-priority, n] for priority, n in sorted(sent)]
    first = [(await take(a)).payload for _ in range(20)]
    rest = [message.payload for message in await take_all(a)]
    assert first + rest == expected


async def test_a_list_is_received_in_order(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send_many({"to": "a", "type": "note", "payload": n, "priority": n % 4} for n in range(12))
    received = [(message.priority, message.payload) for message in await a.receive_many(12)]
    assert received == sorted(received, key=lambda item: (-item[0], item[1]))


async def test_sends_of_one_list_keep_their_order(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send_many(("a", "note", n) for n in range(10))
    assert [message.payload for message in await take_all(a)] == list(range(10))


async def test_a_released_message_keeps_its_position(bus: Bus) -> None:
    a = await worker(bus, "a")
    for n in range(3):
        await a.send("a", "note", n)
    await (await take(a)).nack(delay=0)
    assert [message.payload for message in await take_all(a)] == [0, 1, 2]


async def test_a_delayed_message_has_the_age_of_its_sending(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", "early", delay=10)
    await a.send("a", "note", "late")
    clock.advance(10)
    assert [message.payload for message in await take_all(a)] == ["early", "late"]


async def test_delayed_urgent_messages_do_not_hold_back_what_is_ready(bus: Bus) -> None:
    a = await worker(bus, "a")
    for n in range(50):
        await a.send("a", "note", n, priority=9, delay=60)
    await a.send("a", "note", "ready", priority=0)
    assert (await take(a)).payload == "ready"


@pytest.mark.parametrize("prefetch", [1, 4])
async def test_an_urgent_newcomer_waits_no_longer_than_the_prefetch(bus: Bus, prefetch: int) -> None:
    a = await worker(bus, "a")
    for n in range(10):
        await a.send("a", "note", n)
    seen: list[object] = []
    async for message in a.inbox(prefetch=prefetch):
        async with message:
            seen.append(message.payload)
            if len(seen) == 1:
                await a.send("a", "note", "urgent", priority=9)
        if message.payload == "urgent":
            break
    assert seen == [*range(prefetch), "urgent"]
