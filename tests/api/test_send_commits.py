"""Returned means committed, raised means not written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import anyio
import pytest

import agentbus
from agentbus import Agent, Bus, Message, Unit
from agentbus.errors import AgentFenced, BusClosed, UnknownRecipient
from tests.api.helpers import count, known, nothing_for, running, soon, stored, take, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import START, FakeClock


async def test_a_sent_message_is_there_after_reopening(engine: Engine) -> None:
    async with engine.connect() as bus:
        sender = await worker(bus, "a")
        await bus.expect("b", type="worker")
        receipt = await sender.send("b", "note", {"text": "Grüße 🚌", "n": [1, 2.5, None, True]}, priority=7)

    async with engine.connect() as bus:
        receiver = await worker(bus, "b")
        message = await take(receiver)
        assert message.message_id == receipt.message_id
        assert message.payload == {"text": "Grüße 🚌", "n": [1, 2.5, None, True]}


async def test_another_open_bus_sees_a_returned_write_at_once(bus: Bus, engine: Engine) -> None:
    async with engine.connect() as other:
        a = await worker(bus, "a")
        receipt = await a.send("a", "note", 1)
        assert (await stored(other, receipt.message_id)).payload == 1
        await a.progress(40, "half way")
        assert (await known(other, "a")).progress == 40


async def test_an_acknowledged_message_stays_acknowledged_after_reopening(engine: Engine) -> None:
    async with engine.connect() as bus:
        a = await worker(bus, "a")
        receipt = await a.send("a", "note")
        await (await take(a)).ack()

    async with engine.connect() as bus:
        assert (await stored(bus, receipt.message_id)).status == "acked"
        assert await nothing_for(await worker(bus, "a"))


async def test_a_refused_send_writes_nothing(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(UnknownRecipient):
        await a.send("nobody", "note")
    assert await count(bus) == 0


async def test_process_durability_keeps_every_other_guarantee(engine: Engine) -> None:
    async with engine.connect(durability="process") as bus:
        a = await worker(bus, "a")
        receipt = await a.send("a", "note", 1)

    async with engine.connect() as bus:
        assert (await stored(bus, receipt.message_id)).payload == 1


async def test_a_message_has_all_that_its_receiver_needs(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    receipt = await a.send("b", "task_assignment", {"n": 1}, priority=8, correlation="c-1", session="s-1")
    message = await take(b)
    assert (message.id, message.message_id) == (receipt.id, receipt.message_id)
    assert (message.sender, message.recipient, message.type) == ("a", "b", "task_assignment")
    assert (message.payload, message.priority, message.attempts) == ({"n": 1}, 8, 1)
    assert (message.session, message.correlation, message.created) == ("s-1", "c-1", START)


async def test_the_stored_record_has_every_field_of_the_message(bus: Bus) -> None:
    a = await worker(bus, "a")
    receipt = await a.send(
        "a", "note", [1], priority=3, delay=2, ttl=10, max_attempts=4, correlation="c", session="s", message_id="mine"
    )
    assert receipt.message_id == "mine"
    record = await stored(bus, "mine")
    assert (record.sender, record.recipient, record.type, record.payload) == ("a", "a", "note", [1])
    assert (record.priority, record.status, record.attempts, record.max_attempts) == (3, "scheduled", 0, 4)
    assert (record.session, record.correlation, record.holder, record.error) == ("s", "c", None, None)
    assert (record.due, record.expires) == (START + 2_000, START + 12_000)
    assert (record.created, record.finished) == (START, None)


async def test_receipts_are_in_the_order_of_sending(bus: Bus) -> None:
    a = await worker(bus, "a")
    receipts = [await a.send("a", "note", n) for n in range(5)]
    ids = [receipt.id for receipt in receipts if receipt.id is not None]
    assert ids == sorted(set(ids))
    assert all(receipt.delivered == 1 and not receipt.duplicate for receipt in receipts)


async def test_many_tasks_sending_at_once_all_get_their_own_receipt(bus: Bus) -> None:
    a = await worker(bus, "a")
    receipts = await asyncio.gather(*(a.send("a", "note", n) for n in range(200)))
    assert len({receipt.message_id for receipt in receipts}) == 200
    for n in (0, 99, 199):
        assert (await stored(bus, receipts[n].message_id)).payload == n


async def test_a_cancelled_send_is_sent_once_when_it_is_called_again(bus: Bus) -> None:
    a = await worker(bus, "a")
    for turns in range(12):
        async with running(a.send("a", "note", turns, message_id=f"try-{turns}")) as task:
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
        await a.send("a", "note", turns, message_id=f"try-{turns}")
    assert sorted(record.payload for record in (await bus.messages.list()).items) == list(range(12))


async def test_an_exception_leaves_the_bus_as_it_is(engine: Engine) -> None:
    """Not wrapped in a group: the caller must catch what was raised."""
    with pytest.raises(ZeroDivisionError):
        async with engine.connect():
            raise ZeroDivisionError


async def test_cancelling_around_a_bus_closes_it(engine: Engine) -> None:
    async with engine.connect() as outer:
        with anyio.CancelScope() as scope:
            async with engine.connect() as bus:
                await worker(bus, "a")
                scope.cancel()
                await anyio.sleep_forever()
        assert scope.cancelled_caught
        assert (await known(outer, "a")).status == "stopped"


async def test_closing_the_bus_stops_the_agents_it_still_has(engine: Engine) -> None:
    async with engine.connect() as bus:
        await worker(bus, "a")
    async with engine.connect() as bus:
        assert (await known(bus, "a")).status == "stopped"


async def test_closing_the_bus_frees_what_its_agents_held(engine: Engine) -> None:
    async with engine.connect() as outer:
        await outer.declare(agentbus.pool("p"))
        b = await worker(outer, "b", pools=["p"])
        async with engine.connect() as bus:
            a = await worker(bus, "a", pools=["p"])
            await a.send(agentbus.pool("p"), "note", 1)
            await take(a)
            assert await nothing_for(b)
        assert (await take(b)).payload == 1


async def _first(agent: Agent) -> None:
    async for _ in agent.inbox(prefetch=3):
        pytest.fail("there is nothing to receive")


async def _ignore(message: Message, unit: Unit) -> None:
    pytest.fail("there is nothing to handle")


@each("way", ["receive", "receive_many", "inbox", "serve", "request"])
async def test_a_waiting_receiver_is_woken_when_the_bus_closes(engine: Engine, clock: FakeClock, way: str) -> None:
    ways: dict[str, Callable[[Agent], Coroutine[Any, Any, object]]] = {
        "receive": lambda a: a.receive(),
        "receive_many": lambda a: a.receive_many(5),
        "inbox": _first,
        "serve": lambda a: a.serve(_ignore, concurrency=3),
        "request": lambda a: a.request("b", "coordination_request", timeout=60),
    }
    async with engine.connect() as bus:
        a = await worker(bus, "a")
        await bus.expect("b", type="worker")
        waiting = asyncio.create_task(ways[way](a))
        await clock.settle()
        assert not waiting.done()
    with pytest.raises((BusClosed, AgentFenced)):
        await soon(waiting)


async def test_closing_the_bus_under_a_handler_releases_its_message(engine: Engine, clock: FakeClock) -> None:
    resume = asyncio.Event()

    async def handle(agent: Agent) -> None:
        async with await take(agent) as unit:
            unit.send("a", "note", "must not be sent")
            await resume.wait()

    async with engine.connect() as bus:
        a = await worker(bus, "a")
        await a.send("a", "note", "unfinished")
        working = asyncio.create_task(handle(a))
        await clock.settle()
    resume.set()
    with pytest.raises((BusClosed, AgentFenced)):
        await soon(working)
    async with engine.connect() as bus:
        again = await take(await worker(bus, "a"))
        assert again.payload == "unfinished"
        assert await count(bus) == 1


async def test_many_buses_open_at_once(engine: Engine) -> None:
    async with AsyncExitStack() as stack:
        buses = await asyncio.gather(*(stack.enter_async_context(engine.connect()) for _ in range(8)))
        agents = await asyncio.gather(*(worker(bus, f"w{n}") for n, bus in enumerate(buses)))
        await asyncio.gather(*(agent.send("w0", "note", agent.id) for agent in agents))
        assert len(await agents[0].receive_many(20)) == 8
