"""Quotas keep a runaway agent from starving the others, and report it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from agentbus import Bus, Now, pool, topic
from agentbus.errors import AgentBusError, BusFull, InvalidInput, OutOfRange, QueueFull, SendingTooFast
from agentbus.operations.protocol import Op, Query, operation
from agentbus.records import QuotaPolicy
from tests.api.helpers import count, running, soon, take, take_all, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def outcomes(*calls: Any) -> list[type]:
    return [type(found) for found in await asyncio.gather(*calls, return_exceptions=True)]


async def test_there_are_none_until_they_are_set_and_they_belong_to_the_bus(bus: Bus, engine: Engine) -> None:
    assert await bus.quotas.policy() == QuotaPolicy()
    assert await bus.quotas.change(depth=10, rate=2.5) == QuotaPolicy(depth=10, rate=2.5)
    assert await bus.quotas.change(size=10**9) == QuotaPolicy(depth=10, rate=2.5, size=10**9)
    assert await bus.quotas.change(rate=None) == QuotaPolicy(depth=10, size=10**9)
    async with engine.connect() as other:
        assert await other.quotas.policy() == QuotaPolicy(depth=10, size=10**9)
    (last, *_) = [event async for event in bus.events(kind="quotas_changed")][::-1]
    assert last.facts == {"before": {"rate": 2.5}, "after": {"rate": None}}


@pytest.mark.one_engine
@each(
    "changes",
    [{"depth": 0}, {"depth": 1.5}, {"depth": True}, {"rate": 0}, {"rate": -1}, {"rate": "fast"}, {"rate": float("nan")},
     {"rate": True}, {"size": 0}, {"size": "1 GB"}],
)  # fmt: skip
async def test_an_invalid_quota_is_refused(bus: Bus, changes: dict[str, Any]) -> None:
    with pytest.raises(OutOfRange):
        await bus.quotas.change(**changes)
    assert await bus.quotas.policy() == QuotaPolicy()


@pytest.mark.one_engine
async def test_a_misspelt_quota_is_named(bus: Bus) -> None:
    with pytest.raises(InvalidInput, match="did you mean depth"):
        await bus.quotas.change(dept=5)  # type: ignore[call-arg]


async def test_a_full_mailbox_refuses_messages(bus: Bus) -> None:
    await bus.quotas.change(depth=3)
    a, b = await worker(bus, "a"), await worker(bus, "b")
    for number in range(3):
        await a.send("b", "note", number, delay=60 if number == 2 else None)
    with pytest.raises(QueueFull) as refused:
        await a.send("b", "note", 3)
    assert refused.value.facts == {"kind": "agent", "name": "b", "address": "b", "waiting": 3, "most": 3}
    assert refused.value.transient
    assert "depth" in str(refused.value.fix)
    await b.send("a", "note", "another mailbox has room")
    await (await take(b)).ack()
    await a.send("b", "note", 3)
    assert await count(bus) == 5


async def test_the_callers_of_one_commit_share_the_room_that_is_left(bus: Bus) -> None:
    await bus.quotas.change(depth=5)
    a = await worker(bus, "a")
    found = await outcomes(*(a.send("a", "note", n) for n in range(8)))
    assert found.count(QueueFull) == 3
    assert await count(bus) == 5


async def test_a_list_is_sent_as_a_whole_or_not_at_all(bus: Bus) -> None:
    await bus.quotas.change(depth=5)
    a = await worker(bus, "a", pools=["jobs"])
    with pytest.raises(QueueFull):
        await a.send_many([(pool("jobs"), "note", n) for n in range(6)])
    assert await count(bus) == 0
    await a.send_many([(pool("jobs"), "note", n) for n in range(5)])
    with pytest.raises(QueueFull) as refused:
        await a.send(pool("jobs"), "note")
    assert (refused.value.kind, refused.value.name) == ("pool", "jobs")


async def test_the_error_of_a_full_topic_names_the_subscriber(bus: Bus) -> None:
    await bus.quotas.change(depth=2)
    a = await worker(bus, "a")
    await worker(bus, "slow", topics=["news"])
    for number in range(2):
        await a.publish("news", "note", number)
    with pytest.raises(QueueFull) as refused:
        await a.send(topic("news"), "note", 2)
    assert (refused.value.kind, refused.value.name) == ("topic", "news")


async def test_a_repetition_is_not_refused_and_a_refusal_can_be_repeated(bus: Bus) -> None:
    await bus.quotas.change(depth=1, rate=0.1)
    a = await worker(bus, "a")
    await a.send("a", "note", 1, message_id="one")
    assert (await a.send("a", "note", 1, message_id="one")).duplicate
    with pytest.raises(QueueFull):
        await a.send("a", "note", 2, message_id="two")
    await bus.quotas.change(depth=None, rate=None)
    assert not (await a.send("a", "note", 2, message_id="two")).duplicate


async def test_replies_always_queue(bus: Bus) -> None:
    await bus.quotas.change(depth=1)
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await b.send("a", "note", "fills the mailbox of a")
    async with running(a.request("b", "coordination_request", timeout=30)) as asking:
        question = await b.receive(timeout=10)
        assert question is not None
        await question.reply("coordination_response", "yes")
        assert (await soon(asking)).payload == "yes"


async def test_no_agent_sends_faster_than_its_rate(bus: Bus, clock: FakeClock) -> None:
    await bus.quotas.change(rate=2)
    a, b = await worker(bus, "a"), await worker(bus, "b")
    found = await outcomes(*(a.send("b", "note", n) for n in range(25)))
    assert found.count(SendingTooFast) == 5, "those of ten seconds may come at once"
    with pytest.raises(SendingTooFast) as refused:
        await a.send("b", "note")
    assert refused.value.facts == {"agent": "a", "rate": 2, "wait": 0.5}
    await b.send("a", "note", "another one is not concerned")
    clock.advance(0.5)
    await a.send("b", "note")
    with pytest.raises(SendingTooFast):
        await a.send("b", "note")
    clock.advance(3600)
    found = await outcomes(*(a.send("b", "note", n) for n in range(25)))
    assert found.count(SendingTooFast) == 5, "nothing is saved up beyond that"


async def test_a_long_list_may_go_and_is_then_waited_for(bus: Bus, clock: FakeClock) -> None:
    await bus.quotas.change(rate=1)
    a = await worker(bus, "a")
    await a.send_many([("a", "note", n) for n in range(100)])
    with pytest.raises(SendingTooFast) as refused:
        await a.send("a", "note")
    assert refused.value.wait == 91
    clock.advance(refused.value.wait)
    await a.send("a", "note")


async def test_a_clock_that_was_set_back_blocks_no_sender(bus: Bus, clock: FakeClock) -> None:
    await bus.quotas.change(rate=100)
    a = await worker(bus, "a")
    await a.send("a", "note")
    clock.jump(-24 * 3600)
    await a.send("a", "note")


async def test_a_bus_over_its_size_quota_refuses_only_messages(bus: Bus) -> None:
    a = await worker(bus, "a")
    for number in range(20):
        await a.send("a", "note", {"n": number, "text": "x" * 10_000})
    await bus.quotas.change(size=100_000)
    with pytest.raises(BusFull) as refused:
        await a.send("a", "note")
    assert refused.value.size >= refused.value.most == 100_000
    await a.state.set("phase", 1)
    await a.checkpoint("step", {"n": 1})
    for message in await take_all(a):
        await message.ack()
    await bus.messages.purge(older_than=0)
    await bus.quotas.change(size=100_000_000)
    await a.send("a", "note")


async def test_a_unit_over_a_quota_leaves_nothing(bus: Bus) -> None:
    await bus.quotas.change(depth=1)
    a, _ = await worker(bus, "a"), await worker(bus, "b")
    await a.send("a", "note", "job")
    message = await take(a)
    with pytest.raises(QueueFull):
        async with message as unit:
            unit.state.set("done", True)
            unit.send("b", "note", 1)
            unit.send("b", "note", 2)
    assert await a.state.get("done") is None
    assert await count(bus) == 1


async def test_unreadable_quotas_are_reported_and_can_be_set_again(bus: Bus) -> None:
    @operation(durable=True)
    def spoil(requests: Sequence[None], now: Now) -> Op[list[AgentBusError | None]]:
        yield Query("meta_set", ("quotas", "[1]"))
        return [None] * len(requests)

    a = await worker(bus, "a")
    await bus._engine.write(spoil, None)
    with pytest.raises(AgentBusError, match="quotas"):
        await a.send("a", "note")
    await bus.quotas.change(depth=1)
    await a.send("a", "note")
