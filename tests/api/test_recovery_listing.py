"""Listing interrupted work: sessions with agent counts, incomplete agents, clearing."""

from __future__ import annotations

import pytest

from agentbus import Bus
from agentbus.errors import AgentFenced, InvalidName, OutOfRange, UnknownAgent
from agentbus.operations import agent_deletion
from tests.api.helpers import held, known, stored, take, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock

MINUTE = 60


async def test_interrupted_and_degraded_sessions_are_listed_with_their_agents(engine: Engine, clock: FakeClock) -> None:
    # A beat in between would say that its agents were there a moment ago.
    async with (
        engine.connect(beat_every=24 * 3600) as bus,
        bus.session("planning", id="p", milestone="ms") as cut,
        bus.session("execution", id="e") as degraded,
    ):
        async with bus.session("idle", id="i") as healthy:
            await worker(bus, "well", session="i")
            one, two = await worker(bus, "e1", session="e"), await worker(bus, "e2", session="e")
            await (await worker(bus, "p1", session="p")).fail("crashed")
            await one.fail("crashed too")
            clock.advance(10 * MINUTE)
            await two.progress(10)
            clock.advance(5 * MINUTE)
            found = {one.session: one for one in await bus.sessions.cut_off()}
            assert set(found) == {"p", "e"}
            p, e = found["p"], found["e"]
            assert (p.milestone, p.operation, p.status, p.agents, p.active, p.failed) == (
                "ms", "planning", "interrupted", 1, 0, 1
            )  # fmt: skip
            assert (p.inactive, p.error) == (15 * MINUTE * 1000, "p1 failed: crashed")
            assert (e.milestone, e.status, e.agents, e.active, e.failed) == (None, "degraded", 2, 1, 1)
            assert e.inactive == 5 * MINUTE * 1000
            healthy.ended = True
        cut.ended = degraded.ended = True


async def test_sleep_makes_no_session_inactive_and_a_clock_set_back_makes_no_age_negative(
    bus: Bus, clock: FakeClock
) -> None:
    async with bus.session("planning", id="s") as session:
        await (await worker(bus, "a", session="s")).fail("crashed")
        await session.continue_()
        live = await worker(bus, "b", session="s")
        await (await worker(bus, "c", session="s")).fail("crashed")
        await live.progress(1)
        clock.sleep_machine(3600)
        (found,) = await bus.sessions.cut_off()
        assert (found.status, found.inactive < 1000) == ("degraded", True)
        clock.jump(-2 * 3600)
        (found,) = await bus.sessions.cut_off()
        assert found.inactive == 0
        session.ended = True


async def test_incomplete_agents_are_those_that_have_not_ended_or_failed_in_an_open_session(bus: Bus) -> None:
    async with bus.session("planning", id="s") as session, bus.session("other", id="o") as over:
        await worker(bus, "alone")
        await session.expect("expected", type="worker")
        await (await worker(bus, "done", session="s")).complete()
        await (await worker(bus, "failed", session="s")).fail("crashed")
        await (await worker(bus, "gone", session="o")).fail("crashed")
        await (await worker(bus, "free")).fail("crashed")
        await (await worker(bus, "stopped", session="s")).stop()
        await over.fail("given up")
        page = await bus.recovery.agents()
        assert [agent.id for agent in page.items] == ["alone", "expected", "failed", "stopped"]
        assert (await bus.recovery.summary()).incomplete == 4
        first = await bus.recovery.agents(limit=3)
        rest = await bus.recovery.agents(cursor=first.cursor)
        assert [agent.id for agent in first.items + rest.items] == [agent.id for agent in page.items]
        assert rest.cursor is None
        session.ended = True


async def test_clearing_stops_only_interrupted_agents(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("planning", id="s") as session:
        at_work = await worker(bus, "at-work", session="s")
        await session.expect("expected", type="worker")
        await (await worker(bus, "failed", session="s")).fail("crashed")
        await (await worker(bus, "free")).fail("crashed")
        await at_work.send("failed", "note", 1, message_id="waits")
        assert await bus.recovery.clear() == ["failed"]
        statuses = {agent.id: agent.status for agent in (await bus.agents.list()).items}
        assert statuses == {"at-work": "running", "expected": "pending", "failed": "stopped", "free": "failed"}
        assert (await known(bus, "failed")).error == "cleared; it was failed: crashed"
        assert (await stored(bus, "waits")).status == "queued", "nothing is deleted"
        assert (await held(bus, "s")).degraded is False
        assert await bus.recovery.clear() == [], "twice is once"
        events = [event async for event in bus.events(kind="agent_stopped")]
        assert [(event.subject, event.facts["error"]) for event in events] == [
            ("failed", "cleared; it was failed: crashed")
        ]
        session.ended = True


async def test_a_suspect_agent_that_is_cleared_releases_its_leases(bus: Bus, clock: FakeClock) -> None:
    stuck, other = await worker(bus, "stuck", pools=["p"]), await worker(bus, "other", pools=["p"])
    await other.send("pool:p", "note", 1, message_id="m")
    await take(stuck, lease=3600)
    await clock.pass_time(2 * MINUTE)
    await other.progress(1)
    await clock.pass_time(10)
    await bus.sweep()
    assert (await known(bus, "stuck")).status == "suspect"
    assert await bus.recovery.clear() == ["stuck"]
    assert (await stored(bus, "m")).status == "queued"
    assert (await take(other)).message_id == "m"
    with pytest.raises(AgentFenced):
        await stuck.progress(2)


async def test_a_named_agent_is_cleared_in_any_status(bus: Bus) -> None:
    agent = await worker(bus, "a")
    assert await bus.recovery.clear("a") == ["a"]
    assert (await known(bus, "a")).error == "cleared; it was running"
    with pytest.raises(AgentFenced):
        await agent.progress(1)
    assert await bus.recovery.clear("a") == [], "it has ended"
    await (await worker(bus, "a")).complete()
    assert await bus.recovery.clear("a") == []
    assert (await known(bus, "a")).status == "completed"


async def test_more_agents_than_one_batch_are_all_cleared(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_deletion, "_STEP", 5)
    async with bus.session("planning", id="s") as session:
        for number in range(12):
            await (await worker(bus, f"a-{number:03}", session="s")).fail("crashed")
        assert len(await bus.recovery.clear()) == 12
        session.ended = True


@pytest.mark.one_engine
async def test_bad_input_is_refused(bus: Bus) -> None:
    with pytest.raises(UnknownAgent):
        await bus.recovery.clear("nobody")
    with pytest.raises(InvalidName):
        await bus.recovery.clear("no name")
    with pytest.raises(InvalidName):
        await bus.recovery.agents(cursor="no name")
    with pytest.raises(OutOfRange):
        await bus.recovery.agents(limit=0)
    assert await bus.recovery.clear() == []
