"""Retention of agents: removed with their state once nothing refers to them; they stay fenced."""

from __future__ import annotations

import pytest

from agentbus import Bus, RetentionPolicy
from tests.api.helpers import take, worker
from tests.api.retention_helpers import DAY, applied, archived, lines, names
from tests.support.cases import each
from tests.support.clock import FakeClock


async def test_ended_agents_are_removed_after_a_week_with_their_state(bus: Bus, clock: FakeClock) -> None:
    for name, end in (("done", "complete"), ("broken", "fail"), ("halted", "stop"), ("alive", None)):
        agent = await worker(bus, name)
        await agent.state.set("k", name)
        if end is not None:
            await getattr(agent, end)(*(("oops",) if end == "fail" else ()))
    await bus.expect("pending", type="worker")
    clock.advance(6.9 * DAY)
    assert (await applied(bus)).removed == {}
    clock.advance(0.2 * DAY)
    report = await applied(bus)
    assert report.removed == {"agent": 3}
    assert await names(bus) == ["alive", "pending"]
    assert sorted(archived(report, "agent")) == ["broken", "done", "halted"]
    assert [line["value"] for line in lines(report) if line["record"] == "state"] == ['"broken"', '"done"', '"halted"']
    assert [await bus.state(name).get("k") for name in ("done", "broken", "halted")] == [None] * 3
    assert await bus.state("alive").get("k") == "alive"


async def test_an_agent_of_an_active_session_stays(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("planning", id="s1") as session:
        async with session.agent("a", type="worker"):
            pass
        clock.advance(20 * DAY)
        assert (await applied(bus, policy=RetentionPolicy(events=None))).removed == {}
    assert (await applied(bus)).removed == {"agent": 1}


async def test_an_agent_with_a_checkpoint_stays(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    saved = await a.checkpoint("n", 1)
    await a.complete()
    clock.advance(80 * DAY)
    assert (await applied(bus)).removed == {}
    await bus.checkpoints.delete(saved.id)
    assert (await applied(bus)).removed == {"agent": 1}


@each("composite", [True, False])
async def test_an_agent_whose_session_has_a_checkpoint_stays_with_it(
    bus: Bus, clock: FakeClock, composite: bool
) -> None:
    async with bus.session("planning", id=f"s-{composite}") as session:
        async with session.agent(f"a-{composite}", type="worker"):
            pass
        if composite:
            await session.checkpoint_all("all")
        else:
            await session.checkpoint("all", {"agents": [f"a-{composite}"]})
    clock.advance(10 * DAY)
    assert (await applied(bus)).removed == {}


@pytest.mark.parametrize("how", ["queued", "scheduled", "sent"])
async def test_an_agent_stays_while_an_open_message_refers_to_it(bus: Bus, clock: FakeClock, how: str) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    if how == "sent":
        await a.send("b", "note", "from a")
    else:
        await b.send("a", "note", "to a", delay=100 * DAY if how == "scheduled" else 0)
    await a.complete()
    clock.advance(30 * DAY)
    assert (await applied(bus)).removed == {}
    if how == "sent":
        await (await take(b)).ack()
    else:
        again = await worker(bus, "a")
        clock.advance(71 * DAY)
        await (await take(again)).ack()
        await again.complete()
    clock.advance(8 * DAY)
    assert "a" in archived(await applied(bus), "agent")


async def test_earlier_incarnations_stay_fenced_after_a_removed_agent_returns(bus: Bus, clock: FakeClock) -> None:
    first = await worker(bus, "a")
    second = await worker(bus, "a", takeover=True)
    await second.complete()
    clock.advance(8 * DAY)
    assert (await applied(bus)).removed == {"agent": 1}
    third = await worker(bus, "a")
    assert (first.epoch, second.epoch, third.epoch) == (1, 2, 3), "no epoch is given out twice"
    assert (await worker(bus, "new")).epoch == 1


async def test_state_versions_continue_after_an_agent_and_its_tombstones_are_removed(
    bus: Bus, clock: FakeClock
) -> None:
    a = await worker(bus, "a")
    for value in range(5):
        await a.state.set("k", value)
    await a.complete()
    clock.advance(8 * DAY)
    assert (await applied(bus)).removed == {"agent": 1}
    clock.advance(31 * DAY)
    report = await applied(bus)
    assert report.removed["tombstone"] == 1
    assert [line["version"] for line in lines(report) if line["record"] == "state"] == [5]
    assert await bus.state("a").set("k", "new") == 6
    assert await bus.state("a").set("other", "new") == 6, "the highest version of the scope counts for all its keys"
    assert await bus.state("b").set("k", "new") == 1


async def test_a_tombstone_that_was_set_again_stays(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("builds")
    await state.set("gone", 1)
    await state.set("back", 1)
    await state.set("expired", 1, ttl=5)
    await state.set("kept", 1)
    await state.delete("gone")
    await state.delete("back")
    await clock.pass_time(10)
    clock.advance(29 * DAY)
    assert await state.set("back", 2) == 2
    clock.advance(2 * DAY)
    report = await applied(bus)
    assert sorted(archived(report, "state")) == ["expired", "gone"]
    assert [entry.key for entry in (await state.list()).items] == ["back", "kept"]
    assert await state.set("gone", 3, if_version=0) == 2
