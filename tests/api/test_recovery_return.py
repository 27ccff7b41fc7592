"""Agents that return to a session: their checkpoint, their deadline, and sessions without returning agents."""

from __future__ import annotations

import pytest

from agentbus import Bus
from agentbus.errors import SessionIdTaken
from agentbus.records import EventRecord
from tests.api.helpers import held, known, running, worker
from tests.api.interrupted_sessions import cut_off, interrupted, kinds, member
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if " left session " in record.getMessage()]


async def last_event(bus: Bus, agent: str) -> EventRecord:
    return [event async for event in bus.events(subject=f"agent:{agent}")][-1]


# From what


async def test_an_agent_resumes_from_a_checkpoint_of_its_session_only(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine, "one") as (owner, _):
        one = await (await member(owner, "a", "one")).checkpoint("step", {"n": 4})
    async with cut_off(engine, "two") as (owner, _):
        a = await member(owner, "a", "two")
        assert a.restored is None, "what it did for another session was not done for this one"
        two = await a.checkpoint("step", {"n": 1})
    back = await member(bus, "a", "two")
    assert back.restored is not None
    assert back.restored.id == two.id
    await back.fail("crashed")
    elsewhere = await member(bus, "a", "one")
    assert elsewhere.restored is not None
    assert elsewhere.restored.id == one.id
    found = await elsewhere.restore(id=elsewhere.restored.id)
    assert found is not None
    assert found.snapshot == {"n": 4}


async def test_outside_of_sessions_it_resumes_from_checkpoints_saved_outside(bus: Bus) -> None:
    alone = await worker(bus, "a")
    outside = await alone.checkpoint("n", 1)
    await alone.fail("crashed")
    async with bus.session("execution", id="s") as session:
        a = await member(bus, "a")
        assert a.restored is None
        await a.checkpoint("n", 2)
        await a.fail("crashed")
        await session.complete()
    again = await worker(bus, "a")
    assert again.session is None, "its session has ended"
    assert again.restored is not None
    assert again.restored.id == outside.id


@each("within", [None, 30])
async def test_an_agent_expected_after_it_completed_starts_from_scratch_even_if_late(
    bus: Bus, clock: FakeClock, within: float | None
) -> None:
    id = f"a-{within}"
    a = await worker(bus, id)
    await a.checkpoint("n", 1)
    await a.complete()
    await bus.expect(id, type="worker", within=within)
    clock.stall(60)
    await bus.sweep()
    assert (await known(bus, id)).status == ("pending" if within is None else "failed")
    assert (await worker(bus, id)).restored is None, "its last incarnation that started completed"


async def test_an_interrupted_agent_that_returns_late_still_resumes_from_its_checkpoint(
    bus: Bus, engine: Engine, clock: FakeClock
) -> None:
    async with cut_off(engine) as (owner, _):
        checkpoint = await (await member(owner, "a")).checkpoint("n", 1)
    await (await bus.recovery.plan("s")).resume(within=30)
    clock.stall(60)
    await bus.sweep()
    late = await worker(bus, "a")
    assert late.restored is not None
    assert (late.session, late.restored.id) == ("s", checkpoint.id)


async def test_a_plan_names_the_checkpoint_that_its_agent_would_resume_from(bus: Bus, engine: Engine) -> None:
    alone = await worker(bus, "a")
    await alone.checkpoint("before", 1)
    await alone.complete()
    async with cut_off(engine) as (owner, _):
        a = await member(owner, "a")
        assert (await owner.recovery.plan("s")).agents[0].checkpoint is None
        mine = await a.checkpoint("mine", 2)
    checkpoint = (await bus.recovery.plan("s")).agents[0].checkpoint
    assert checkpoint is not None
    assert checkpoint.id == mine.id


# Leaving a session for another


@pytest.mark.parametrize("how", ["register", "expect"])
async def test_an_agent_that_leaves_an_interrupted_session_is_reported(
    bus: Bus, engine: Engine, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    await interrupted(engine, "one")
    async with bus.session("execution", id="two") as two:
        if how == "register":
            await member(bus, "a", "two")
        else:
            await two.expect("a", type="worker")
        assert warned(caplog) == ["a left session one, which is interrupted and no longer has this agent"]
        assert (await last_event(bus, "a")).facts["left"] == "one"
    assert (await bus.recovery.plan("one")).agents == []


async def test_an_agent_that_leaves_a_resumed_session_is_reported_too(
    bus: Bus, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    await interrupted(engine, "one")
    await (await bus.recovery.plan("one")).resume()
    async with bus.session("execution", id="two"):
        await member(bus, "a", "two")
    assert warned(caplog) == ["a left session one, which is active and no longer has this agent"]


async def test_an_agent_that_completed_stays_or_left_an_ended_session_is_not_reported(
    bus: Bus, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    async with cut_off(engine, "one") as (owner, _):
        await (await member(owner, "done", "one")).complete()
        await member(owner, "stays", "one")
    await interrupted(engine, "over", "late")
    await (await bus.recovery.plan("over")).abandon("no")
    async with bus.session("execution", id="two"):
        for agent in ("done", "late", "new"):
            await member(bus, agent, "two")
            assert "left" not in (await last_event(bus, agent)).facts
    await worker(bus, "stays")
    assert warned(caplog) == []


# Until when


async def test_a_resumed_session_without_returning_agents_is_interrupted_again(
    bus: Bus, engine: Engine, clock: FakeClock
) -> None:
    await interrupted(engine, "s", "a", "b")
    await (await bus.recovery.plan("s")).resume()
    clock.stall(299)
    await bus.sweep()
    assert (await held(bus, "s")).status == "active"
    clock.stall(1)
    sweep = await bus.sweep()
    assert [(await known(bus, agent)).status for agent in "ab"] == ["failed", "failed"]
    assert (await known(bus, "a")).error == "expected within 300 s, never registered"
    record = await held(bus, "s")
    assert (record.status, record.error) == (
        "interrupted", "a and 1 more failed: expected within 300 s, never registered",
    )  # fmt: skip
    assert "session_interrupted" in [finding.kind for finding in sweep.findings]
    assert (await bus.recovery.summary()).interrupted == ["s"]
    plan = await bus.recovery.plan("s")
    assert plan.options[0].action == "resume"
    assert (await plan.resume()).agents == ["a", "b"]


async def test_agents_that_return_in_time_resume_and_only_the_others_fail(
    bus: Bus, engine: Engine, clock: FakeClock
) -> None:
    await interrupted(engine, "s", "a", "b")
    await (await bus.recovery.plan("s")).resume(within=10)
    a = await worker(bus, "a")
    async with running(a.receive()):
        await clock.pass_time(30)
        await bus.sweep()
        assert [(await known(bus, agent)).status for agent in "ab"] == ["running", "failed"]
        record = await held(bus, "s")
        assert (record.status, record.degraded) == ("active", True)


async def test_a_rollback_has_a_deadline_too(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    async with cut_off(engine) as (owner, session):
        await member(owner, "a")
        point = await session.checkpoint_all("p")
    await (await bus.recovery.plan("s")).rollback(point.id, within=20)
    clock.stall(20)
    await bus.sweep()
    assert (await known(bus, "a")).error == "expected within 20 s, never registered"
    assert (await held(bus, "s")).status == "interrupted"


async def test_without_a_deadline_agents_are_awaited_indefinitely(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    await interrupted(engine, "s", "a")
    async with cut_off(engine, "empty"):
        pass
    for name in ("s", "empty"):
        await (await bus.recovery.plan(name)).resume(within=None)
    clock.stall(100_000)
    await bus.sweep()
    assert (await known(bus, "a")).status == "pending"
    assert [(await held(bus, name)).status for name in ("s", "empty")] == ["active", "active"]


async def test_a_resumed_session_without_any_agents_is_interrupted_again_too(
    bus: Bus, engine: Engine, clock: FakeClock
) -> None:
    async with cut_off(engine):
        pass
    await (await bus.recovery.plan("s")).resume(within=60)
    clock.stall(59)
    await bus.sweep()
    assert (await held(bus, "s")).status == "active"
    clock.stall(1)
    await bus.sweep()
    record = await held(bus, "s")
    assert (record.status, record.error) == ("interrupted", "it was resumed, and no agent registered in time")


@pytest.mark.parametrize("how", ["block", "agent", "pause"])
async def test_an_agent_that_joins_in_time_keeps_the_session_active(
    bus: Bus, engine: Engine, clock: FakeClock, how: str
) -> None:
    async with cut_off(engine):
        pass
    await (await bus.recovery.plan("s")).resume(within=60)
    if how == "block":
        async with bus.session("execution", id="s") as session:
            clock.stall(100)
            await bus.sweep()
            assert (await session.record()).status == "active"
        return
    if how == "agent":
        await (await member(bus, "a")).complete()
    else:
        session = await bus.sessions.open("s")
        await session.pause()
        await session.continue_()
    clock.stall(100)
    await bus.sweep()
    assert (await held(bus, "s")).status == "active"


async def test_the_owner_that_resumes_its_own_session_has_no_deadline(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("execution", id="s"):
        a = await member(bus, "a")
        await a.fail("crashed")
        await bus.agents.delete("a")
        await (await bus.recovery.plan("s")).resume(within=10)
        clock.stall(100)
        await bus.sweep()
        assert (await held(bus, "s")).status == "active", "it is in its block"


@pytest.mark.parametrize("agents", [("a",), ()])
async def test_an_expired_resumption_is_detected_when_the_bus_is_opened(
    bus: Bus, engine: Engine, clock: FakeClock, caplog: pytest.LogCaptureFixture, agents: tuple[str, ...]
) -> None:
    async with cut_off(engine) as (owner, _):
        for agent in agents:
            await member(owner, agent)
    await (await bus.recovery.plan("s")).resume(within=10)
    clock.stall(9)
    async with engine.connect():
        assert (await held(bus, "s")).status == "active"
    clock.stall(1)
    caplog.clear()
    async with engine.connect():
        assert (await held(bus, "s")).status == "interrupted"
        assert any(record.getMessage().startswith("interrupted: s") for record in caplog.records)


@pytest.mark.parametrize("agents", [("a",), ()])
async def test_a_reboot_ends_the_wait_for_returning_agents(bus: Bus, engine: Engine, agents: tuple[str, ...]) -> None:
    async with cut_off(engine) as (owner, _):
        for agent in agents:
            await member(owner, agent)
    await (await bus.recovery.plan("s")).resume()
    async with engine.connect(clock=FakeClock(boot="boot-2", awake=500)) as after:
        record = await held(after, "s")
        assert record.status == "interrupted"
        assert record.error == (
            "a failed: expected, never registered" if agents else "it was resumed, and no agent registered in time"
        )


# No agent is expected in a session that has ended


@each("way", ["block", "exception", "complete", "fail", "plan", "abandon", "follow_on"])
async def test_a_session_that_ends_stops_those_that_were_only_expected(bus: Bus, engine: Engine, way: str) -> None:
    by_plan = way in {"plan", "abandon", "follow_on"}
    expected = [f"{way}-pending", f"{way}-spawning"]
    async with cut_off(engine, way) if by_plan else bus.session("execution", id=way) as opened:
        session = opened[1] if isinstance(opened, tuple) else opened
        await session.document("d").save(1)
        await session.expect(expected[0], type="worker")
        await session.expect(expected[1], type="worker", within=30)
        await bus.expect(f"{way}-elsewhere", type="worker")
        live = None if by_plan else await member(bus, f"{way}-live", way)
        if way == "complete":
            await session.complete()
        elif way in {"fail", "exception"}:
            await session.fail("no")
    if by_plan:
        plan = await bus.recovery.plan(way)
        done = await (
            plan.complete() if way == "plan" else plan.abandon("no") if way == "abandon" else plan.follow_on("next")
        )
        assert done.agents == expected
    status = (await held(bus, way)).status
    assert status in {"completed", "failed"}
    for agent in expected:
        record = await known(bus, agent)
        assert (record.status, record.error) == ("stopped", f"its session {status}")
        assert (await last_event(bus, agent)).kind == "agent_stopped"
    (ending,) = [event async for event in bus.events(subject=f"session:{way}", kind=f"session_{status}")]
    assert ending.facts["stopped"] == expected
    assert (await known(bus, f"{way}-elsewhere")).status == "pending"
    if live is not None:
        assert (await known(bus, live.id)).status == "running", "it is at work, and ends by itself"
    assert (await bus.recovery.summary()).by_session.get(way, 0) == (0 if live is None else 1)


# Starting another from it


async def test_the_error_of_a_second_follow_on_names_the_first(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine, operation="planning") as (_, session):
        await session.document("plan").save(1)
    plan = await bus.recovery.plan("s")
    assert plan.follow_ons == []
    assert (await plan.follow_on("execution")).follow_on == "s-execution"
    again = await bus.recovery.plan("s")
    assert again.follow_ons == ["s-execution"]
    assert again.options[0].does == "starts another session (there is s-execution) with a copy of plan"
    with pytest.raises(SessionIdTaken) as taken:
        await again.follow_on("execution")
    assert (taken.value.session, taken.value.operation, taken.value.status) == ("s-execution", "execution", "active")
    assert len((await bus.sessions.list()).items) == 2
    assert (await again.follow_on("execution", id="other")).follow_on == "other"
    assert (await bus.recovery.plan("s")).follow_ons == ["other", "s-execution"]
    assert await kinds(bus, "s") == ["started", "interrupted", "completed", "recovered", "recovered"]


@pytest.mark.one_engine
async def test_the_name_of_a_follow_on_fits_however_long_it_would_be(bus: Bus) -> None:
    long, other = "s" * 128, "s" * 127 + "t"
    names = set[str | None]()
    for id in (long, other):
        async with bus.session("planning", id=id) as session:
            await session.document("plan").save(1)
        for operation in ("o" * 128, "execution"):
            names.add((await (await bus.recovery.plan(id)).follow_on(operation)).follow_on)
    assert len(names) == 4


# What people read


@pytest.mark.one_engine
async def test_a_plan_is_readable_as_text(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine, expects={"x": "scope", "y": "risks"}) as (owner, session):
        a = await member(owner, "a")
        await session.document("risks").save(1)
        checkpoint = await a.checkpoint("half", 1)
        await a.send("a", "note", 1)
        await a.progress(40)
        await a.fail("no more memory")
    assert str(await bus.recovery.plan("s")) == (
        "session s (execution, 0 %) is interrupted: a failed: no more memory\n"
        f"  a (worker) failed at 40 %; no more memory; checkpoint {checkpoint.id} 'half'; 1 message unfinished\n"
        "there: risks of y\n"
        "missing: scope of x\n"
        "resume: continues it and expects a again; each continues with its state, checkpoint and mailbox\n"
        "follow_on: starts a new session with a copy of risks\n"
        "abandon: ends it as failed, with your reason"
    )
    async with bus.session("execution", id="t"):
        assert str(await bus.recovery.plan("t")).endswith("is active\nnothing to do: it is in use")
