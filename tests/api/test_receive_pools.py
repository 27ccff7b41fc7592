"""Pools: each message goes to exactly one member, and idle members are woken for it."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from agentbus import Agent, Bus, pool
from agentbus.errors import InvalidName, UnknownRecipient
from tests.api.helpers import count, eventually, nothing_for, running, soon, stored, take, take_all, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock


async def test_each_message_goes_to_exactly_one_member(bus: Bus) -> None:
    members = [await worker(bus, f"w{n}", pools=["p"]) for n in range(5)]
    for n in range(10):
        await members[0].send(pool("p"), "note", n)
    received = [(await take(members[n % 5])).payload for n in range(10)]
    assert sorted(received) == list(range(10))
    assert await nothing_for(*members)


async def test_many_members_at_once_share_the_work_without_overlap(bus: Bus, clock: FakeClock) -> None:
    members = [await worker(bus, f"w{n}", pools=["p"]) for n in range(20)]
    seen: list[int] = []

    async def work(agent: Agent) -> None:
        async for message in agent.inbox():
            async with message:
                seen.append(message.payload)

    async with anyio.create_task_group() as tasks:
        for agent in members:
            tasks.start_soon(work, agent)
        await clock.settle()
        await asyncio.gather(*(members[0].send(pool("p"), "note", n) for n in range(100)))
        await eventually(clock, lambda: len(seen) == 100)
        tasks.cancel_scope.cancel()
    assert sorted(seen) == list(range(100))
    assert (await bus.stats()).messages == {"acked": 100}


async def test_members_on_two_buses_share_the_work_without_overlap(bus: Bus, engine: Engine) -> None:
    async with engine.connect() as elsewhere:
        members = [await worker(place, f"w{n}-{k}", pools=["p"]) for k, place in enumerate((bus, elsewhere))
                   for n in range(4)]  # fmt: skip
        await members[0].send_many((pool("p"), "note", n) for n in range(80))
        seen: list[int] = []

        async def drain(agent: Agent) -> None:
            while (message := await agent.receive(timeout=0)) is not None:
                async with message:
                    seen.append(message.payload)

        await soon(asyncio.gather(*(drain(agent) for agent in members)))
    assert sorted(seen) == list(range(80))
    assert (await bus.stats()).messages == {"acked": 80}


async def test_every_idle_member_is_woken_when_there_is_work_for_all(bus: Bus, clock: FakeClock) -> None:
    members = [await worker(bus, f"w{n}", pools=["p"]) for n in range(10)]
    tasks = [asyncio.create_task(agent.receive()) for agent in members]
    await clock.settle()
    await members[0].send_many((pool("p"), "note", n) for n in range(10))
    messages = await soon(asyncio.gather(*tasks))
    assert sorted(message.payload for message in messages if message is not None) == list(range(10))


async def test_members_on_two_buses_are_both_woken(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as elsewhere:
        a, b = await worker(bus, "a", pools=["p"]), await worker(elsewhere, "b", pools=["p"])
        tasks = [asyncio.create_task(agent.receive()) for agent in (a, b)]
        await clock.settle()
        await a.send_many((pool("p"), "note", n) for n in range(2))
        messages = await soon(asyncio.gather(*tasks))
    assert sorted(message.payload for message in messages if message is not None) == [0, 1]


async def test_work_for_a_pool_that_was_declared_waits_for_its_first_member(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.declare(pool("p"))
    await a.send(pool("p"), "note", 1)
    assert await nothing_for(a)
    assert (await take(await worker(bus, "b", pools=["p"]))).recipient == "pool:p"


async def test_a_pool_exists_once_anyone_joined_it(bus: Bus) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b")
    await a.complete()
    await b.send(pool("p"), "note", 1)
    assert (await take(await worker(bus, "c", pools=["p"]))).payload == 1


async def test_an_unknown_pool_is_an_error_that_names_near_ones(bus: Bus) -> None:
    a = await worker(bus, "a", pools=["executors"])
    with pytest.raises(UnknownRecipient) as unknown:
        await a.send(pool("executers"), "note")
    assert (unknown.value.code, unknown.value.kind, unknown.value.name) == ("unknown_recipient", "pool", "executers")
    assert "executors" in str(unknown.value)
    assert await count(bus) == 0


async def test_a_pool_and_an_agent_may_have_the_same_name(bus: Bus) -> None:
    a, b = await worker(bus, "same"), await worker(bus, "b", pools=["same"])
    await a.send("same", "note", "for the agent")
    await a.send(pool("same"), "note", "for the pool")
    assert (await take(a)).payload == "for the agent"
    assert (await take(b)).payload == "for the pool"


async def test_an_agent_can_join_and_leave(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.declare(pool("p"), pool("q"))
    await a.send(pool("p"), "note", 1)
    assert await nothing_for(a)
    await a.join("p", "q")
    assert (await take(a)).payload == 1
    await a.leave("p")
    await a.send(pool("p"), "note", 2)
    await a.send(pool("q"), "note", 3)
    assert [message.payload for message in await take_all(a)] == [3]


async def test_an_agent_that_joins_while_waiting_gets_messages_of_the_pool(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    async with running(a.receive()) as waiting:
        await clock.settle()
        await a.join("p")
        await b.send(pool("p"), "note", 1)
        message = await soon(waiting)
    assert message is not None
    assert message.payload == 1


async def test_a_member_that_left_while_waiting_gets_no_more_messages_of_the_pool(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b")
    async with running(a.receive()) as waiting:
        await clock.settle()
        await a.leave("p")
        await b.send(pool("p"), "note", "not for a")
        await clock.settle()
        assert not waiting.done()
        await b.join("p")
        assert (await take(b)).payload == "not for a"
        await b.send("a", "note", "for a")
        message = await soon(waiting)
    assert message is not None
    assert message.payload == "for a"


async def test_messages_taken_before_leaving_can_be_finished(bus: Bus) -> None:
    a = await worker(bus, "a", pools=["p"])
    receipt = await a.send(pool("p"), "note")
    message = await take(a)
    await a.leave("p")
    assert message.recipient == "pool:p"
    await message.ack()
    assert (await stored(bus, receipt.message_id)).status == "acked"


async def test_messages_taken_before_leaving_return_to_the_pool_when_the_agent_fails(bus: Bus) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send(pool("p"), "note", 1)
    await take(a)
    await a.leave("p")
    await a.fail("crashed")
    assert (await take(b)).payload == 1


async def test_the_messages_of_an_ended_member_are_delivered_to_the_others(bus: Bus) -> None:
    for end in ("complete", "fail", "stop"):
        a, b = await worker(bus, f"a-{end}", pools=[end]), await worker(bus, f"b-{end}", pools=[end])
        await b.send(pool(end), "note", end)
        await take(a)
        await (a.fail("crashed") if end == "fail" else a.complete() if end == "complete" else a.stop())
        message = await take(b)
        assert (message.payload, message.attempts) == (end, 2)


async def test_leaving_a_pool_twice_or_joining_twice_is_harmless(bus: Bus) -> None:
    a = await worker(bus, "a", pools=["p", "p"])
    await a.join("p")
    await a.send(pool("p"), "note", 1)
    assert len(await take_all(a)) == 1
    await a.leave("p")
    await a.leave("p", "never-joined")
    await a.send(pool("p"), "note", 2)
    assert await nothing_for(a)


async def test_an_address_may_be_written_as_it_is_printed(bus: Bus) -> None:
    a = await worker(bus, "a", pools=[pool("p")], topics=["t"])
    await a.send("pool:p", "note", 1)
    await a.send("topic:t", "note", 2)
    messages = await take_all(a)
    assert [(message.recipient, message.payload) for message in messages] == [("pool:p", 1), ("topic:t", 2)]
    assert [record.payload for record in (await bus.messages.list(to="pool:p")).items] == [1]


@pytest.mark.parametrize("id", ["pool:p", "topic:t"])
async def test_an_agent_cannot_be_named_like_a_pool_or_a_topic(bus: Bus, id: str) -> None:
    for attempt in (bus.register(id, type="worker"), bus.expect(id, type="worker")):
        with pytest.raises(InvalidName, match="for addresses"):
            await attempt
