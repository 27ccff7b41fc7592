"""The inbox: messages in order of arrival. Prefetched messages are reserved, not attempted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Unpack

import pytest

from agentbus import Agent, Bus, Message, pool
from agentbus.api.sending import SendOptions
from agentbus.errors import AgentFenced, OutOfRange
from tests.api.helpers import eventually, nothing_for, running, soon, stored, take, take_all, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock
from tests.support.figures import Figure


async def _fill(agent: Agent, number: int, **options: Unpack[SendOptions]) -> list[str]:
    receipts = await agent.send_many({"to": agent.id, "type": "note", "payload": n, **options} for n in range(number))
    return [receipt.message_id for receipt in receipts if receipt.message_id is not None]


@asynccontextmanager
async def _open(agent: Agent, **options: Any) -> AsyncIterator[AsyncIterator[Message]]:
    """An inbox that is closed at the end of the block, not when it is garbage."""
    inbox: Any = agent.inbox(**options)
    try:
        yield inbox
    finally:
        await inbox.aclose()


@each("prefetch", [1, 3, 100])
async def test_messages_come_one_by_one_in_order(bus: Bus, prefetch: int) -> None:
    a = await worker(bus, f"a{prefetch}")
    await _fill(a, 10)
    seen: list[int] = []
    async for message in a.inbox(prefetch=prefetch):
        async with message:
            assert message.attempts == 1
            seen.append(message.payload)
        if len(seen) == 10:
            break
    assert seen == list(range(10))
    assert set((await bus.stats()).messages) == {"acked"}


@each("prefetch", [1, 5])
async def test_the_inbox_waits_for_what_comes_later(bus: Bus, clock: FakeClock, prefetch: int) -> None:
    a = await worker(bus, f"a{prefetch}")
    seen: asyncio.Queue[int] = asyncio.Queue()

    async def read() -> None:
        async for message in a.inbox(prefetch=prefetch):
            async with message:
                seen.put_nowait(message.payload)

    async with running(read()):
        for n in range(3):
            await clock.settle()
            await a.send(a.id, "note", n)
            assert await soon(seen.get()) == n


async def test_without_prefetch_nothing_is_held_that_is_not_handled(bus: Bus) -> None:
    a = await worker(bus, "a")
    await _fill(a, 3)
    async for message in a.inbox():
        assert (await bus.stats()).messages == {"leased": 1, "queued": 2}
        await message.ack()
        break


async def test_prefetched_messages_are_reserved_but_not_attempted(bus: Bus) -> None:
    a = await worker(bus, "a")
    ids = await _fill(a, 4)
    async with _open(a, prefetch=3) as inbox:
        message = await anext(inbox)
        records = [await stored(bus, id) for id in ids]
        assert [record.status for record in records] == ["leased", "leased", "leased", "queued"]
        assert [record.attempts for record in records] == [1, 0, 0, 0]
        await message.ack()


@each("way", ["break", "raise", "cancel"])
async def test_leaving_the_loop_releases_the_rest_uncounted(bus: Bus, clock: FakeClock, way: str) -> None:
    a = await worker(bus, "a", takeover=True)
    await _fill(a, 5, max_attempts=1)

    async def read() -> None:
        async for message in a.inbox(prefetch=5):
            await message.ack()
            if way == "break":
                break
            if way == "raise":
                raise ZeroDivisionError
            task.cancel()
            await asyncio.Event().wait()

    task = asyncio.create_task(read())
    (ended,) = await asyncio.gather(task, return_exceptions=True)
    assert type(ended) is {"break": type(None), "raise": ZeroDivisionError, "cancel": asyncio.CancelledError}[way]
    await clock.settle()
    messages = await take_all(a)
    assert [(message.payload, message.attempts) for message in messages] == [(1, 1), (2, 1), (3, 1), (4, 1)]


async def test_a_released_message_wakes_other_receivers(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send_many((pool("p"), "note", n) for n in range(3))
    async with _open(a, prefetch=3) as inbox:
        await (await anext(inbox)).ack()
        waiting = asyncio.create_task(b.receive_many(5))
        await clock.settle()
        assert not waiting.done()
    seen = [message.payload for message in await soon(waiting)]
    seen += [message.payload for message in await take_all(b)]
    assert sorted(seen) == [1, 2]


async def test_acknowledging_one_message_starts_the_next(bus: Bus) -> None:
    a = await worker(bus, "a")
    ids = await _fill(a, 3)
    async with _open(a, prefetch=3) as inbox:
        for n in range(3):
            message = await anext(inbox)
            assert (message.payload, message.attempts) == (n, 1)
            assert [(await stored(bus, id)).attempts for id in ids] == [1] * (n + 1) + [0] * (2 - n)
            await message.ack()


@pytest.mark.fault(13)
async def test_a_poison_message_does_not_affect_other_prefetched_messages(
    bus: Bus, engine: Engine, figure: Figure
) -> None:
    """Its handler dies repeatedly; the other prefetched messages lose no attempt by that."""
    sender = await worker(bus, "sender")
    await bus.expect("a", type="worker")
    ids = []
    for n in range(5):
        receipt = await sender.send("a", "note", "poison" if n == 2 else n, max_attempts=3)
        ids.append(receipt.message_id)
    done: list[Any] = []
    for _ in range(3):
        async with engine.connect() as elsewhere:
            a = await worker(elsewhere, "a", takeover=True)
            async for message in a.inbox(prefetch=5):
                if message.payload == "poison":
                    break  # its process dies here: nothing is settled
                await message.ack()
                done.append(message.payload)
                if len(done) == 4:
                    break
    survivor = await worker(bus, "a", takeover=True)
    rest = await take_all(survivor)
    assert all(message.attempts == 1 for message in rest)
    assert sorted([*done, *(message.payload for message in rest)]) == [0, 1, 3, 4]
    record = await stored(bus, ids[2])
    counted = sum(message.attempts - 1 for message in rest)
    figure(deliveries=f"{record.attempts} of {record.max_attempts}", neighbours=4, of_them_counted=counted)
    assert (record.status, record.attempts) == ("dead", 3)


async def test_a_takeover_releases_reserved_messages_without_counting(bus: Bus, engine: Engine) -> None:
    a = await worker(bus, "a")
    await _fill(a, 3, max_attempts=2)
    async with engine.connect() as elsewhere, _open(a, prefetch=3) as inbox:
        await anext(inbox)
        heir = await worker(elsewhere, "a", takeover=True)
        messages = await take_all(heir)
        assert [(message.payload, message.attempts) for message in messages] == [(0, 2), (1, 1), (2, 1)]
        with pytest.raises(AgentFenced):
            await anext(inbox)


async def test_a_reserved_message_whose_lease_expired_is_not_delivered_twice(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send_many((pool("p"), "note", n) for n in range(3))
    async with _open(a, prefetch=3, lease=30) as inbox:
        first = await anext(inbox)
        async with first:
            await clock.pass_time(40)
            taken = await take_all(b)
            assert [(message.payload, message.attempts) for message in taken] == [(1, 1), (2, 1)]
        await a.send("a", "note", "next")
        assert (await soon(anext(inbox))).payload == "next"


async def test_an_exception_in_a_block_leaves_the_loop_and_releases_the_message(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await _fill(a, 2)
    with pytest.raises(ZeroDivisionError):
        async for message in a.inbox():
            async with message:
                raise ZeroDivisionError
    assert (await take(a)).payload == 1
    clock.advance(60)
    again = await take(a)
    assert (again.payload, again.attempts) == (0, 2)


async def test_two_inboxes_of_one_agent_share_what_comes(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    seen: list[list[int]] = [[], []]

    async def read(number: int) -> None:
        async for message in a.inbox(prefetch=2):
            async with message:
                seen[number].append(message.payload)
                await asyncio.sleep(0)

    async with running(read(0)), running(read(1)):
        await clock.settle()
        for n in range(40):
            await a.send("a", "note", n)
        await eventually(clock, lambda: len(seen[0] + seen[1]) == 40)
    assert sorted(seen[0] + seen[1]) == list(range(40))
    assert (await bus.stats()).messages == {"acked": 40}


async def test_an_inbox_of_an_ended_agent_raises(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.complete()
    with pytest.raises(AgentFenced):
        async for _ in a.inbox():
            pytest.fail("there is nothing to hand over")


@pytest.mark.one_engine
@each("prefetch", [0, -1, 1.5, True, "2", 10_001])
async def test_a_prefetch_out_of_range_is_refused_at_once(bus: Bus, prefetch: int) -> None:
    a = await worker(bus, "a", takeover=True)
    await a.send("a", "note")
    with pytest.raises(OutOfRange):
        a.inbox(prefetch=prefetch)
    assert not await nothing_for(a)
