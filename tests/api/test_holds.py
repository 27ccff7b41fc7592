"""The loop guard: agents that answer each other without progress are stopped, and a person decides."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentbus import Agent, Bus, topic
from agentbus.errors import NotAnOperator, NothingHeld, OutOfRange, RequestDied, RequestTimedOut
from agentbus.records import HoldRecord, QuotaPolicy
from tests.api.helpers import running, soon, take_all, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def exchange(first: Agent, second: Agent, most: int) -> list[Any]:
    """Let two agents answer each other until one has no mail, at most this often. Return the receipts."""
    receipts = [await first.send(second.id, "note", 0)]
    reader, other = second, first
    for number in range(1, most):
        message = await reader.receive(timeout=0)
        if message is None:
            break
        async with message:
            receipts.append(await message.reply("note", number))
        reader, other = other, reader
    return receipts


async def held(bus: Bus) -> list[tuple[str, int]]:
    return [(one.thread, one.held) for one in (await bus.holds.list()).items]


async def test_two_agents_that_answer_each_other_are_stopped_at_the_bound(bus: Bus) -> None:
    await bus.quotas.change(thread=10)
    a, b = await worker(bus, "a"), await worker(bus, "b")
    receipts = await exchange(a, b, 1000)
    assert [receipt.held for receipt in receipts] == [False] * 10 + [True]
    last = receipts[-1]
    assert last.delivered == 1
    assert last.hold_reason is not None
    assert "agentbus holds release m-1" in last.hold_reason
    record = await bus.messages.get(last.message_id)
    assert record is not None
    assert (record.status, record.due, record.held, record.hold_reason) == ("scheduled", None, True, last.hold_reason)
    (hold,) = (await bus.holds.list()).items
    assert hold == HoldRecord("m-1", 1, 11, ["a", "b"], last.message_id, last.message_id, record.created)
    (event,) = [event async for event in bus.events(kind="thread_held")]
    assert (event.subject, event.facts) == ("m-1", {"messages": 10, "agents": ["a", "b"]})
    (check,) = [check for check in await bus.doctor() if check.name == "holds"]
    assert check.status == "warning"
    assert check.fix is not None
    assert "agentbus holds" in check.fix


async def test_a_released_thread_continues_with_a_new_bound(bus: Bus, clock: FakeClock) -> None:
    await bus.quotas.change(thread=4)
    a, b = await worker(bus, "a"), await worker(bus, "b")
    receipts = await exchange(a, b, 50)
    assert len(receipts) == 5
    waiting = asyncio.create_task(b.receive(timeout=60))
    await clock.settle()
    with pytest.raises(NotAnOperator):
        await bus.holds.release("m-1", by="a")
    assert await bus.holds.release("m-1", by="ada") == 1
    message = await soon(waiting)
    assert message is not None
    assert message.message_id == receipts[-1].message_id
    again = [await message.reply("note", number) for number in range(5)]
    assert [receipt.held for receipt in again] == [False, False, True, True, True]
    assert await held(bus) == [("m-1", 3)]
    assert await bus.holds.release("m-1", by="ada") == 3
    assert await held(bus) == []
    (first, second) = [event async for event in bus.events(kind="thread_released")]
    assert [(one.actor, one.subject, one.facts) for one in (first, second)] == [
        ("ada", "m-1", {"count": 1}),
        ("ada", "m-1", {"count": 3}),
    ]
    with pytest.raises(NothingHeld):
        await bus.holds.release("m-1", by="ada")


async def test_a_discarded_message_is_not_delivered_and_its_thread_stays_held(bus: Bus, clock: FakeClock) -> None:
    await bus.quotas.change(thread=2)
    a, b = await worker(bus, "a"), await worker(bus, "b")
    for number in range(4):
        await a.send("b", "note", number, correlation="t")
    question = asyncio.create_task(a.request("b", "note", "?", timeout=60, correlation="t"))
    await clock.settle()
    assert await held(bus) == [("t", 3)]
    assert await bus.holds.discard("t", by="ada", reason="enough") == 3
    with pytest.raises(RequestDied, match="discarded by ada: enough"):
        await soon(question)
    assert [message.payload for message in await take_all(b)] == [0, 1]
    expired = (await bus.messages.list(status="expired")).items
    assert {message.error for message in expired} == {"discarded by ada: enough"}
    assert (await b.send("a", "note", "more", correlation="t")).held
    (event,) = [event async for event in bus.events(kind="thread_discarded")]
    assert (event.actor, event.facts) == ("ada", {"count": 3, "reason": "enough"})


async def test_progress_and_people_start_the_count_again(bus: Bus, clock: FakeClock) -> None:
    await bus.quotas.change(thread=3)
    a, b = await worker(bus, "a"), await worker(bus, "b")

    async def sent(count: int) -> list[bool]:
        return [(await a.send("b", "note", 0, correlation="t")).held for _ in range(count)]

    assert await sent(1) == [False]
    await b.send("a", "note", 0, correlation="t")
    clock.advance(1)
    await b.progress(50, "half of it")
    assert await sent(4) == [False] * 4, "one before, one by b; the third exceeds the bound and starts again"
    clock.advance(1)
    await b.checkpoint("done", {"n": 1})
    assert await sent(3) == [False] * 3
    assert await sent(1) == [True]
    await b.progress(60)
    assert await sent(1) == [True], "a thread that is held waits for a person"
    await bus.messages.send("a", "note", "go on", by="ada", correlation="t")
    assert await sent(4) == [False] * 3 + [True]
    assert await held(bus) == [("t", 3)], "what was held waits for a decision"
    for _ in range(3):
        await a.send("b", "note", 0, correlation="u")
    clock.advance(1)
    late = await worker(bus, "c")
    assert (await late.send("b", "note", 0, correlation="u")).held, "to register is no progress"


async def test_an_agent_that_is_suspected_recovers_or_fails_makes_no_progress(bus: Bus, clock: FakeClock) -> None:
    await bus.quotas.change(thread=3)
    a = await worker(bus, "a")
    b = await bus.register_visitor("b", type="worker", patience=60)
    for thread in ("suspected", "recovered", "failed"):
        await b.send("a", "note", 0, correlation=thread)
    clock.advance(61)
    assert (await bus.sweep()).counts["agents_suspected"] == 1

    async def sent(thread: str) -> list[bool]:
        return [(await a.send("b", "note", 0, correlation=thread)).held for _ in range(3)]

    assert await sent("suspected") == [False, False, True]
    clock.advance(1)
    await b.heartbeat()
    assert await sent("recovered") == [False, False, True]
    clock.advance(1)
    await b.fail("it crashed")
    assert await sent("failed") == [False, False, True]


async def test_messages_of_no_thread_to_people_and_first_replies_are_not_counted(bus: Bus) -> None:
    await bus.quotas.change(thread=1)
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await bus.messages.send("a", "note", by="ada")
    await a.send_many([{"to": "b", "type": "note", "payload": n} for n in range(3)])
    replies = [await message.reply("note", "done") for message in await take_all(b)]
    people = [await a.send("operator:ada", "note", n, correlation="t") for n in range(3)]
    serving = asyncio.create_task(b.receive(timeout=60))
    question = asyncio.create_task(a.request("b", "note", "?", timeout=60))
    message = await soon(serving)
    assert message is not None
    replies.append(await message.reply("note", "!"))
    assert (await soon(question)).payload == "!"
    assert not any(receipt.held for receipt in replies + people)
    assert await held(bus) == []


async def timed_out(clock: FakeClock, agent: Agent) -> RequestTimedOut:
    """Return the error of a request in the thread t that has no reply in time."""
    async with running(agent.request("b", "note", timeout=1, correlation="t", ttl=3600)) as question:
        await clock.pass_time(2)
        with pytest.raises(RequestTimedOut) as late:
            await soon(question)
    return late.value


async def test_every_way_to_send_is_counted_and_one_call_counts_once(bus: Bus, clock: FakeClock) -> None:
    await bus.quotas.change(thread=4)
    a, b = await worker(bus, "a", topics=["plans"]), await worker(bus, "b", topics=["plans"])
    many = await a.send_many([{"to": "b", "type": "note", "correlation": "t"}] * 9)
    assert not any(receipt.held for receipt in many)
    assert not (await a.publish("plans", "note", correlation="t")).held
    async with a.unit() as unit:
        unit.send("b", "note", "unit", correlation="t")
        unit.send("b", "note", "unit", correlation="t")
    assert (await timed_out(clock, a)).fix is None
    async with a.unit() as unit:
        unit.send("b", "note", "unit", correlation="t")
        unit.send("b", "note", "other")
    published = await b.send(topic("plans"), "note", correlation="t", message_id="p", delay=3600)
    assert (published.held, published.delivered) == (True, 2)
    assert await b.send(topic("plans"), "note", correlation="t", message_id="p") == type(published)(
        published.id, "p", 2, True, True, published.hold_reason
    )
    assert "holds the request" in str((await timed_out(clock, a)).fix)
    assert await held(bus) == [("t", 4)], "one of the unit, two copies, and the request"
    await bus.holds.release("t", by="ada")
    copies = [one for one in (await bus.messages.list(status="scheduled")).items if one.message_id == "p"]
    assert [one.due is None for one in copies] == [False, False], "with their delay"


async def test_a_reply_that_is_held_is_named_when_its_request_times_out(bus: Bus, clock: FakeClock) -> None:
    await bus.quotas.change(thread=1)
    a, b = await worker(bus, "a"), await worker(bus, "b")
    question = asyncio.create_task(a.request("b", "note", "?", timeout=30, correlation="t"))
    message = await soon(b.receive(timeout=60))
    assert message is not None
    assert (await message.reply("note", "!")).held
    await clock.pass_time(29)
    await clock.pass_time(2)
    with pytest.raises(RequestTimedOut) as late:
        await soon(question)
    assert late.value.facts["held"] == "reply"
    assert "agentbus holds release t" in str(late.value.shell_fix)


async def test_the_bound_is_exact_under_concurrency(bus: Bus, engine: Engine) -> None:
    await bus.quotas.change(thread=7)
    async with engine.connect() as other:
        agents = [await worker(one, f"{name}-{n}") for n in range(5) for name, one in (("a", bus), ("b", other))]

        async def chat(agent: Agent, thread: str) -> int:
            receipts = [await agent.send("a-0", "note", n, correlation=thread) for n in range(3)]
            return sum(not receipt.held for receipt in receipts)

        names = [f"t-{n}" for n in range(50)]
        delivered = await asyncio.gather(*(chat(agent, name) for name in names for agent in agents))
    for place, name in enumerate(names):
        assert sum(delivered[place * 10 : place * 10 + 10]) == 7, name
    assert await held(bus) == [(name, 23) for name in sorted(names)]


async def test_holds_end_with_their_messages(bus: Bus, clock: FakeClock) -> None:
    await bus.quotas.change(thread=1)
    a, b = await worker(bus, "a"), await worker(bus, "b")
    for ttl in (None, None, 5):
        await a.send("b", "note", correlation="t", ttl=ttl)
    assert await held(bus) == [("t", 2)]
    clock.advance(10)
    await bus.sweep()
    assert await held(bus) == [("t", 1)]
    await b.complete()
    await bus.agents.delete("b")
    assert await held(bus) == []
    assert {message.status for message in (await bus.messages.list()).items} == {"expired", "dead"}
    await bus.retention.apply()
    clock.advance(8 * 24 * 3600)
    await bus.retention.apply()
    c = await worker(bus, "c")
    assert not (await c.send("c", "note", correlation="t")).held, "a thread is forgotten after a week"


@pytest.mark.one_engine
@each("bound", [-1, 1.5, True, "many"])
async def test_an_invalid_bound_is_refused(bus: Bus, bound: Any) -> None:
    with pytest.raises(OutOfRange):
        await bus.quotas.change(thread=bound)
    assert await bus.quotas.policy() == QuotaPolicy(thread=100)


@pytest.mark.one_engine
@each("bound", [0, None])
async def test_the_guard_can_be_switched_off(bus: Bus, bound: int | None) -> None:
    await bus.quotas.change(thread=bound)
    a = await worker(bus, f"a-{bound}")
    receipts = await asyncio.gather(*(a.send(a.id, "note", n, correlation="t") for n in range(120)))
    assert not any(receipt.held for receipt in receipts)
