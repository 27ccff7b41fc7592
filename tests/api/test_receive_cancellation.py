"""Cancellation: no message is lost or stays leased, and wake-ups pass to another receiver."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress

import anyio
import pytest

from agentbus import Address, Agent, Bus, Message, pool
from agentbus.errors import LeaseLost
from tests.api.helpers import nothing_for, queued, running, soon, take, take_all, worker
from tests.support.clock import FakeClock

MOMENTS = (*range(30), *range(30, 80, 7))
"""Turns of the event loop before a cancellation: most steps of a claim and an acknowledgement take one each."""


async def _turns(number: int) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_cancelled_claim_releases_its_message_at_once_without_counting(bus: Bus, clock: FakeClock) -> None:
    """Cancelled at every moment: before the claim is written, while it is, and after."""
    a = await worker(bus, "a")
    for turns in range(40):
        receipt = await a.send("a", "note", turns, max_attempts=1)
        task = asyncio.create_task(a.receive())
        await _turns(turns % 20)
        if task.cancel():
            with pytest.raises(asyncio.CancelledError):
                await task
            message = await soon(a.receive())
        else:
            message = await task
        assert message is not None
        assert (message.message_id, message.attempts) == (receipt.message_id, 1)
        await message.ack()


async def test_a_cancelled_claim_of_many_releases_all(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send_many({"to": "a", "type": "note", "payload": n, "max_attempts": 100} for n in range(20))
    for turns in range(12):
        task = asyncio.create_task(a.receive_many(20))
        await _turns(turns)
        task.cancel()
        try:
            held = await task
        except asyncio.CancelledError:
            held = []
        for message in held:
            await message.nack(delay=0)
    seen: list[Message] = []
    while len(seen) < 20:
        seen += await soon(a.receive_many(20))
    assert sorted(message.payload for message in seen) == list(range(20))


async def test_a_cancelled_receive_with_acknowledgements_keeps_or_commits_them(bus: Bus) -> None:
    a = await worker(bus, "a")
    for turns in range(12):
        await a.send("a", "note", turns)
        done = await take_all(a)
        task = asyncio.create_task(a.receive_many(1, ack=done))
        await _turns(turns)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Whichever it was, it is one of the two, and can be found out by trying again.
        with suppress(LeaseLost):
            await a.ack(done)
        assert await nothing_for(a)
    assert (await bus.stats()).messages == {"acked": 12}


async def test_waiting_ends_when_it_is_cancelled(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    with anyio.CancelScope() as scope:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(a.receive)
            await clock.settle()
            scope.cancel()
    assert scope.cancelled_caught
    await a.send("a", "note", 1)
    assert (await take(a)).payload == 1


async def test_a_wake_up_passes_on_when_the_woken_is_cancelled(bus: Bus, clock: FakeClock) -> None:
    """However the cancellation falls, the message reaches the other waiter without time passing."""
    agents = [await worker(bus, name, pools=["p"]) for name in ("a", "b")]
    for turns in range(0, 25, 2):
        tasks = [asyncio.create_task(agent.receive()) for agent in agents]
        await clock.settle()
        await agents[0].send(pool("p"), "note", turns)
        await _turns(turns)
        # The first that waited is the one that is woken.
        tasks[0].cancel()
        try:
            message = await soon(tasks[0])
        except asyncio.CancelledError:
            message = await soon(tasks[1])
        assert message is not None
        assert (message.payload, message.attempts) == (turns, 1)
        await message.ack()
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_no_waiter_sleeps_while_its_mailbox_has_something(bus: Bus, clock: FakeClock) -> None:
    """Receivers that read several mailboxes, sends and cancellations in any order; time stands still, so that only
    wake-ups can bring a message to its receiver."""
    reads = {"a": ["p"], "b": ["q"], "c": ["p", "q"], "d": ["q", "r"], "e": ["p", "q", "r"], "f": ["r"]}
    agents = {name: await worker(bus, name, pools=pools) for name, pools in reads.items()}
    addresses: list[str | Address] = [pool("p"), pool("q"), pool("r"), *agents]
    places: dict[str, list[str | Address]] = {name: [name, *map(pool, reads[name])] for name in reads}
    for seed in range(6):
        chance = random.Random(seed)
        tasks: dict[asyncio.Task[Message | None], Agent] = {}
        for _ in range(40):
            action = chance.random()
            if action < 0.45:
                agent = agents[chance.choice(list(agents))]
                tasks[asyncio.create_task(agent.receive())] = agent
            elif action < 0.9:
                to = chance.choice(addresses)
                sending = asyncio.create_task(agents["a"].send(to, "note"))
                if chance.random() < 0.5:
                    await sending
            elif tasks:
                chance.choice(list(tasks)).cancel()
            await _turns(chance.randrange(4))
        for _ in range(20):
            # One wake-up may hand on to the next, and so on.
            await clock.settle()
            waiting = {agent.id for task, agent in tasks.items() if not task.done()}
            missed = [(name, place) for name in waiting for place in places[name] if await queued(bus, place)]
            if not missed:
                break
        assert missed == [], f"they sleep though there is something for them (seed {seed})"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await clock.settle()
        for agent in agents.values():
            await agent.ack(await take_all(agent))
        for task in tasks:
            if not task.cancelled() and (message := task.result()) is not None:
                await message.ack()


async def test_a_storm_of_cancelled_receivers_loses_nothing(bus: Bus, clock: FakeClock) -> None:
    agents = [await worker(bus, f"w{n}", pools=["p"]) for n in range(8)]
    chance = random.Random(1)
    got: list[int] = []

    async def work(agent: Agent) -> None:
        while True:
            message = await agent.receive()
            assert message is not None
            got.append(message.payload)
            await asyncio.shield(message.ack())

    for round in range(8):
        async with anyio.create_task_group() as tasks:
            for agent in agents:
                tasks.start_soon(work, agent)
            for n in range(10):
                await agents[0].send(pool("p"), "note", 10 * round + n)
                await _turns(chance.randrange(5))
            tasks.cancel_scope.cancel()
    await clock.settle()
    rest = await take_all(agents[0])
    assert sorted({*got, *(message.payload for message in rest)}) == list(range(80))
    assert all(message.attempts == 1 for message in rest)


async def test_a_cancelled_task_leaves_no_lease_behind(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1)

    async def work() -> None:
        async for message in a.inbox():
            async with message:
                await asyncio.Event().wait()

    async with running(work()):
        await clock.settle()
        assert (await bus.stats()).messages == {"leased": 1}
    assert (await take(a)).attempts == 1


async def test_a_block_cancelled_at_any_moment_leaves_no_lease_behind(bus: Bus, clock: FakeClock) -> None:
    """Also while its acknowledgement is on the way: then the message is done, or there again at once."""
    a = await worker(bus, "a")

    async def work() -> None:
        message = await a.receive()
        assert message is not None
        async with message as unit:
            if message.payload % 2:
                unit.send("a", "control", message.payload, message_id=f"result-{message.payload}")

    for n in MOMENTS:
        receipt = await a.send("a", "note", n, max_attempts=1)
        async with running(work()) as task:
            await _turns(n)
            task.cancel()
        await clock.settle()
        assert receipt.message_id is not None
        record = await bus.messages.get(receipt.message_id)
        assert record is not None
        assert record.status in {"acked", "queued"}, f"cancelled after {n} turns: {record.status}"
        result = await bus.messages.get(f"result-{n}")
        assert (result is not None) == (record.status == "acked" and n % 2 == 1), "all of the unit or nothing"
        await a.ack(await take_all(a))


async def test_an_inbox_cancelled_at_any_moment_counts_no_attempt(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")

    async def look() -> None:
        async for message in a.inbox(prefetch=3):
            async with message:
                await asyncio.Event().wait()

    for n in MOMENTS:
        await a.send_many({"to": "a", "type": "note", "payload": k, "max_attempts": 1} for k in range(3))
        async with running(look()) as task:
            await _turns(n)
            task.cancel()
        await clock.settle()
        messages = await take_all(a)
        assert [(message.payload, message.attempts) for message in messages] == [(0, 1), (1, 1), (2, 1)], n
        await a.ack(messages)
