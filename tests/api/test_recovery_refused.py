"""Refused recoveries: of missing, ended, running or changed sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentbus import Bus, errors
from agentbus.errors import PlanOutdated, UnknownSession, WrongState
from agentbus.records import Recovered
from tests.api.helpers import held, known, worker
from tests.api.interrupted_sessions import actions, cut_off, interrupted, kinds, member, trail
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def test_an_unknown_session_has_no_plan(bus: Bus) -> None:
    with pytest.raises(UnknownSession):
        await bus.recovery.plan("nothing")
    with pytest.raises(errors.InvalidName):
        await bus.recovery.plan("no name")


@each("ended", ["completed", "failed"])
async def test_an_ended_session_cannot_be_recovered(bus: Bus, ended: str) -> None:
    async with bus.session("execution", id=ended) as session:
        point = await session.checkpoint_all("p")
        await (session.complete() if ended == "completed" else session.fail("no"))
    plan = await bus.recovery.plan(ended)
    before = await trail(bus, ended)
    for action in (plan.resume(), plan.complete(), plan.abandon("x"), plan.rollback(point.id), plan.follow_on("o")):
        with pytest.raises(WrongState):
            await action
    assert await trail(bus, ended) == before
    assert (await held(bus, ended)).status == ended


async def test_a_session_with_a_running_agent_cannot_be_ended(bus: Bus, engine: Engine) -> None:
    async with bus.session("execution", id="s"):
        with pytest.raises(WrongState, match="a live process is in its block"):
            await (await bus.recovery.plan("s")).abandon("x")
        await member(bus, "a")
        with pytest.raises(WrongState, match="a of it is at work"):
            await (await bus.recovery.plan("s")).complete()


async def test_an_interrupted_session_whose_owner_is_in_its_block_is_not_ended_under_it(bus: Bus) -> None:
    async with bus.session("execution", id="s") as session:
        await session.document("d").save(1)
        point = await session.checkpoint_all("p")
        await (await member(bus, "a")).fail("crashed")
        assert (await session.record()).status == "interrupted"
        plan = await bus.recovery.plan("s")
        assert actions(plan) == ["resume"]
        for action in (plan.complete, lambda: plan.abandon("x"), lambda: plan.rollback(point.id)):
            with pytest.raises(WrongState, match="a live process is in its block"):
                await action()


async def test_an_agent_stopped_on_purpose_is_not_expected_again(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine) as (owner, _):
        await (await member(owner, "meant")).stop("no longer needed")
        await (await member(owner, "broken")).fail("crashed")
        await member(owner, "cut")
        with pytest.raises(KeyboardInterrupt):
            async with owner.agent("pressed", type="worker", session="s"):
                raise KeyboardInterrupt
    plan = await bus.recovery.plan("s")
    assert [agent.id for agent in plan.agents if not agent.cut_off] == ["meant"]
    assert "expects broken, cut, pressed again" in plan.options[0].does
    assert (await plan.resume()).agents == ["broken", "cut", "pressed"]
    assert [(await known(bus, agent)).error for agent in ("meant", "broken")] == ["no longer needed", None]


@pytest.mark.one_engine
async def test_every_refusal_has_a_fix(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine, "missing", expects={"x": "scope"}) as (_, session):
        own = await session.checkpoint("own", 1)
    async with bus.session("execution", id="ended"):
        pass
    async with bus.session("execution", id="owned") as owned:
        await owned.document("d").save(1)
        await interrupted(engine, "working", "w")
        await member(bus, "w", "working")
        attempts = {
            name: await bus.recovery.plan(name) for name in ("missing", "ended", "owned", "working")
        }  # fmt: skip
        calls: list[Callable[[], Any]] = [
            attempts["missing"].complete,
            lambda: attempts["missing"].follow_on("o"),
            lambda: attempts["missing"].rollback(own.id),
            lambda: attempts["ended"].abandon("x"),
            lambda: attempts["ended"].follow_on("o"),
            attempts["ended"].resume,
            lambda: attempts["owned"].abandon("x"),
            attempts["working"].complete,
        ]
        for call in calls:
            with pytest.raises(WrongState) as refused:
                await call()
            assert refused.value.fix, str(refused.value)
            assert "?" not in refused.value.fix


@each("change", ["agent", "document", "progress", "ended", "abandoned", "expected"])
async def test_a_plan_that_is_out_of_date_does_nothing(bus: Bus, engine: Engine, clock: FakeClock, change: str) -> None:
    id = f"s-{change}"
    await interrupted(engine, id, f"a-{change}")
    plan, other = await bus.recovery.plan(id), await bus.recovery.plan(id)
    session = await bus.sessions.open(id)
    clock.advance(0.001)
    if change == "agent":
        await (await worker(bus, f"a-{change}")).fail("crashed")
    elif change == "document":
        await session.document("d").save(1)
    elif change == "progress":
        await session.progress(50)
    elif change == "ended":
        await session.complete()
    elif change == "abandoned":
        await other.abandon("first")
    else:
        await session.expect("b", type="worker")
    before = await held(bus, id), await trail(bus, id), (await bus.agents.list()).items
    for action in (plan.resume(), plan.complete(), plan.abandon("second"), plan.follow_on("o", id="next")):
        with pytest.raises(PlanOutdated) as outdated:
            await action
        assert outdated.value.session == id
    assert (await held(bus, id), await trail(bus, id), (await bus.agents.list()).items) == before
    assert await bus.sessions.get("next") is None


async def test_of_different_concurrent_recoveries_one_succeeds_and_the_others_are_refused(
    bus: Bus, engine: Engine
) -> None:
    await interrupted(engine)
    plans = [await bus.recovery.plan("s") for _ in range(3)]
    outcomes = await asyncio.gather(
        plans[0].abandon("x"), plans[1].complete(), plans[2].resume(), return_exceptions=True
    )
    done = [outcome for outcome in outcomes if isinstance(outcome, Recovered)]
    assert len(done) == 1
    assert [type(outcome) for outcome in outcomes if outcome not in done] == [PlanOutdated, PlanOutdated]
    assert (await kinds(bus)).count("recovered") == 1


@pytest.mark.one_engine
async def test_bad_arguments_are_refused_before_anything_is_written(bus: Bus, engine: Engine) -> None:
    await interrupted(engine)
    async with cut_off(engine, "t") as (_, session):
        await session.document("d").save(1)
    plan = await bus.recovery.plan("t")
    for action, expected in [
        (plan.abandon(""), errors.OutOfRange),
        (plan.abandon(None), errors.OutOfRange),  # type: ignore[arg-type]
        (plan.follow_on("no name"), errors.InvalidName),
        (plan.follow_on("o", id=""), errors.InvalidName),
        (plan.follow_on("o", milestone="no name"), errors.InvalidName),
        (plan.follow_on("o", expects=["x"]), errors.InvalidInput),  # type: ignore[arg-type]
        (plan.follow_on("o", metadata=[1]), errors.InvalidInput),  # type: ignore[arg-type]
        (plan.follow_on("o", metadata={"x": float("nan")}), errors.InvalidPayload),
        (plan.follow_on("o", id="s"), errors.SessionIdTaken),
        (plan.resume(within=0), errors.OutOfRange),
        (plan.resume(within="soon"), errors.OutOfRange),  # type: ignore[arg-type]
        (plan.rollback(1, within=-1), errors.OutOfRange),
        (plan.rollback(), errors.InvalidInput),
    ]:
        with pytest.raises(expected):
            await action
    assert await kinds(bus, "t") == ["started", "interrupted"]
    assert (await plan.resume()).changed
