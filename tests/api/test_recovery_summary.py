"""The summary of interrupted work."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus import Bus
from agentbus.operations import recovery
from tests.api.helpers import take, worker
from tests.api.interrupted_sessions import cut_off, interrupted, member, said
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def test_an_empty_bus_has_nothing_to_recover(bus: Bus) -> None:
    summary = await bus.recovery.summary()
    assert (summary.incomplete, summary.by_status, summary.oldest, summary.interrupted) == (0, {}, None, [])
    assert (summary.recoveries, summary.success_rate, summary.mean_time, summary.median_time) == (0, None, None, None)
    assert summary.dead_holders == []
    assert summary.database_bytes > 0


async def test_incomplete_agents_are_counted_by_status_type_and_session(
    bus: Bus, engine: Engine, clock: FakeClock
) -> None:
    async with cut_off(engine) as (owner, session):
        await member(owner, "cut")
        await (await member(owner, "broken")).fail("crashed")
        await (await member(owner, "done")).complete()
        await session.expect("later", type="planner")
    clock.advance(60)
    await worker(bus, "alone")
    async with bus.session("execution", id="over") as over:
        await (await member(bus, "old", "over")).fail("crashed")
        await over.complete()
    await (await worker(bus, "lost")).fail("crashed")
    clock.advance(5)
    summary = await bus.recovery.summary()
    assert summary.by_status == {"stopped": 1, "failed": 1, "pending": 1, "running": 1}
    assert summary.by_type == {"worker": 3, "planner": 1}
    assert summary.by_session == {"s": 3}
    assert (summary.incomplete, summary.oldest, summary.interrupted) == (4, 65_000, ["s"])


async def test_a_summary_of_many_agents_is_as_right_as_one_of_few(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_SMALL", 10)
    async with bus.session("execution", id="s") as session:
        for number in range(30):
            await session.expect(f"a-{number}", type="worker")
            if number in {5, 29}:
                summary = await bus.recovery.summary()
                counts = summary.incomplete, summary.by_status["pending"], summary.by_session["s"]
                assert counts == (number + 1,) * 3


async def test_agents_that_failed_while_work_waits_are_named(bus: Bus) -> None:
    a, b, c, d = [await worker(bus, id) for id in "abcd"]
    await a.send("b", "note", 1)
    await a.send("c", "note", 2, delay=60)
    await take(b)
    for agent in (b, c, d):
        await agent.fail("crashed")
    assert (await bus.recovery.summary()).dead_holders == ["b", "c"]


@each("way", ["complete", "fail", "abandon", "follow_on"])
async def test_agents_of_ended_sessions_are_not_named(
    bus: Bus, engine: Engine, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    caplog.clear()
    async with cut_off(engine, way) as (owner, session):
        a = await member(owner, f"a-{way}", way)
        await a.send(a.id, "note", 1)
        await a.fail("crashed")
        await session.document("d").save(1)
    assert (await bus.recovery.summary()).dead_holders == [a.id]
    plan, session = await bus.recovery.plan(way), await bus.sessions.open(way)
    actions: dict[str, Any] = {
        "complete": session.complete, "fail": lambda: session.fail("no"), "abandon": lambda: plan.abandon("no"),
        "follow_on": lambda: plan.follow_on("next"),
    }  # fmt: skip
    await actions[way]()
    assert (await bus.recovery.summary()).dead_holders == []
    async with engine.connect():
        assert said(caplog) == []


@pytest.mark.one_engine
async def test_a_summary_is_readable_as_text(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    assert str(await bus.recovery.summary()) == (
        "interrupted sessions: none\nfailed while work waits for them: none\n"
        "agents that have not completed: 0\nrecoveries so far: 0"
    )
    await interrupted(engine, "s", "a", "b")
    await interrupted(engine, "t", "c")
    clock.advance(90)
    await (await bus.recovery.plan("t")).complete()
    assert str(await bus.recovery.summary()) == (
        "interrupted sessions: s\nfailed while work waits for them: none\n"
        "agents that have not completed: 2 (2 stopped)\n"
        "recoveries so far: 1, 100% of those known succeeded, after 90 s in the median"
    )


async def test_the_time_to_recovery_and_its_success_come_from_the_audit_log(
    bus: Bus, engine: Engine, clock: FakeClock
) -> None:
    waits = {"resumed": 10, "again": 20, "completed": 60, "abandoned": 110}
    for name in waits:
        await interrupted(engine, name)
    for name, seconds in waits.items():
        start = clock.now().awake
        clock.advance(seconds - (start - 1_000_000) / 1000)
        plan = await bus.recovery.plan(name)
        await (
            plan.abandon("no") if name == "abandoned" else plan.complete() if name == "completed" else plan.resume()
        )  # fmt: skip
    summary = await bus.recovery.summary()
    assert (summary.recoveries, summary.mean_time, summary.median_time) == (4, 50_000, 40_000)
    assert summary.success_rate == 0.5, "two of them go on, which may come to anything"
    a = await member(bus, "a", "again")
    await a.fail("crashed")
    assert (await bus.recovery.summary()).success_rate == pytest.approx(1 / 3), "interrupted again"
    await (await bus.sessions.open("resumed")).complete()
    summary = await bus.recovery.summary()
    assert (summary.recoveries, summary.success_rate) == (4, 0.5)


@each(("number", "how"), [(0, "agent"), (1, "continue"), (2, "block")])
async def test_every_way_to_continue_a_session_counts_as_a_recovery(
    bus: Bus, engine: Engine, number: int, how: str
) -> None:
    await interrupted(engine, how, f"a-{how}")
    if how == "block":
        async with bus.session("execution", id=how):
            pass
    elif how == "agent":
        await worker(bus, f"a-{how}")
    else:
        await (await bus.sessions.open(how)).continue_()
    summary = await bus.recovery.summary()
    assert (summary.recoveries, summary.success_rate) == (number + 1, 1.0 if how == "block" else None)
