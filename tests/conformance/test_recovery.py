"""Recovery of interrupted sessions: what a plan says, what its actions do, and what an agent that comes back finds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from agentbus import Bus, RecoveryPlan, errors
from agentbus.errors import AgentFenced, PlanOutdated, UnknownSession, WrongState
from agentbus.records import Recovered, RecoveryOption
from tests.conformance.cut_off import cut_off, interrupted, kinds, member, trail
from tests.conformance.helpers import held, known, queued, take, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock


def actions(plan: RecoveryPlan) -> list[str]:
    return [option.action for option in plan.options]


# What a plan says


async def test_a_plan_tells_of_each_agent_how_far_it_came_and_what_waits_for_it(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine) as (owner, _):
        a, b = await member(owner, "a", topics=["plans"]), await member(owner, "b")
        await a.checkpoint("first", 1)
        last = await a.checkpoint("second", {"step": 2}, notes="nearly")
        await a.progress(40, "writing")
        await b.send_many([("a", "note", 1), {"to": "a", "type": "note", "delay": 60}])
        await a.publish("plans", "note", 3)
        await b.fail("no more memory")
    outsider = await worker(bus, "outsider")
    await outsider.send("b", "note", 4)
    plan = await bus.recovery.plan("s")
    first, second = plan.agents
    assert (first.id, first.type, first.status, first.progress, first.note) == ("a", "worker", "stopped", 40, "writing")
    assert first.checkpoint is not None
    assert (first.checkpoint.id, first.checkpoint.name, first.checkpoint.notes) == (last.id, "second", "nearly")
    assert (first.waiting, first.held, first.tasks) == (2, 0, []), "its subscription ended with its life"
    assert (second.id, second.status, second.error, second.checkpoint) == ("b", "failed", "no more memory", None)
    assert second.waiting == 1
    assert (plan.session.status, plan.record.at_work, plan.record.owned) == ("interrupted", [], False)


async def test_messages_in_the_subscriptions_of_a_failed_agent_wait_for_it_too(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine) as (owner, _):
        a = await member(owner, "a", topics=["plans"])
        await a.publish("plans", "note", 1)
        await a.publish("plans", "note", 2)
        await take(a)
        assert (await owner.recovery.plan("s")).agents[0].held == 1
        await a.fail("crashed")
        assert (await owner.recovery.plan("s")).agents[0].waiting == 2


async def test_a_plan_tells_which_expected_documents_are_there(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine, expects={"x": "scope", "y": "risks"}) as (_, session):
        await session.document("risks").save(["time"])
        await session.document("extra").save(1)
    plan = await bus.recovery.plan("s")
    assert (plan.present, plan.missing) == ({"y": "risks"}, {"x": "scope"})
    assert [document.name for document in plan.record.documents] == ["extra", "risks"]


@pytest.mark.parametrize(
    ("operation", "saved", "expected"),
    [
        ("planning", ["scope"], ["complete", "follow_on", "resume", "abandon"]),
        ("milestone-planning", ["scope"], ["complete", "follow_on", "resume", "abandon"]),
        ("planning", ["other"], ["resume", "follow_on", "abandon"]),
        ("planning", [], ["resume", "abandon"]),
        ("execution", ["scope"], ["resume", "complete", "follow_on", "abandon"]),
        ("explanation", ["scope"], ["resume", "complete", "follow_on", "abandon"]),
        ("execution", [], ["resume", "abandon"]),
    ],
)
async def test_a_plan_that_is_there_offers_completion_first_and_everything_else_resumption(
    bus: Bus, engine: Engine, operation: str, saved: list[str], expected: list[str]
) -> None:
    async with cut_off(engine, operation=operation, expects={"x": "scope"}) as (_, session):
        for name in saved:
            await session.document(name).save(1)
    assert actions(await bus.recovery.plan("s")) == expected


async def test_a_planning_session_of_which_nothing_is_expected_is_resumed_first(bus: Bus, engine: Engine) -> None:
    await interrupted(engine, operation="planning")
    assert actions(await bus.recovery.plan("s")) == ["resume", "complete", "abandon"]


async def test_options_say_what_they_would_do(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine, expects={"x": "scope"}) as (owner, session):
        await member(owner, "a")
        await session.document("scope").save(1)
        point = await session.checkpoint_all("half")
    plan = await bus.recovery.plan("s")
    assert plan.options == [
        RecoveryOption(
            "resume", "goes on with it and expects a again; each goes on with its state, checkpoint and mailbox"
        ),
        RecoveryOption(
            "rollback",
            f"restores documents, state and participants as of checkpoint {point.id} 'half', then goes on with it and"
            " expects a again",
            point.id,
        ),
        RecoveryOption("complete", "ends it as completed: every expected document is there"),
        RecoveryOption("follow_on", "starts a new session with a copy of scope, and ends this one as completed"),
        RecoveryOption("abandon", "ends it as failed, with your reason"),
    ]  # fmt: skip
    assert [summary.id for summary in plan.checkpoints] == [point.id]
    assert "resume, rollback" in repr(plan)


async def test_nothing_is_offered_while_somebody_is_at_work(bus: Bus, engine: Engine) -> None:
    async with bus.session("execution", id="s"):
        plan = await bus.recovery.plan("s")
        assert (actions(plan), plan.record.owned) == ([], True)
        assert "nothing to do" in repr(plan)
    await interrupted(engine, "t")
    await member(bus, "b", "t")
    plan = await bus.recovery.plan("t")
    assert (actions(plan), plan.record.at_work) == ([], ["b"])


async def test_an_active_session_that_nobody_is_in_can_be_ended(bus: Bus, engine: Engine) -> None:
    await interrupted(engine)
    await (await bus.recovery.plan("s")).resume()
    plan = await bus.recovery.plan("s")
    assert actions(plan) == ["complete", "abandon"]
    await plan.abandon("nobody came")
    assert (await known(bus, "a")).status == "stopped", "nobody waits for it any more"


# Resuming


async def test_after_a_resumption_an_agent_continues_with_its_state_checkpoint_and_mailbox(
    bus: Bus, engine: Engine
) -> None:
    async with cut_off(engine) as (owner, _):
        a, b = await member(owner, "a"), await member(owner, "b")
        await a.state.set("phase", "design")
        checkpoint = await a.checkpoint("half", {"step": 3})
        await b.send("a", "note", "work")
        await take(a)  # in its hands when it is cut off
    done = await (await bus.recovery.plan("s")).resume()
    assert done == Recovered("resume", "s", True, ["a", "b"])
    assert (await held(bus, "s")).status == "active"
    assert [(await known(bus, agent)).status for agent in ("a", "b")] == ["spawning", "spawning"]
    back = await bus.register("a", type="worker")
    assert (back.session, back.epoch) == ("s", 2)
    assert back.restored is not None
    assert (back.restored.id, back.restored.name) == (checkpoint.id, "half")
    assert await back.state.get("phase") == "design"
    last = await back.restore()
    assert last is not None
    assert last.snapshot == {"step": 3}
    assert (await take(back)).payload == "work"
    assert (await bus.register("b", type="worker")).restored is None, "it had no checkpoint"


async def test_a_message_sent_to_an_agent_that_is_expected_again_waits_for_it(bus: Bus, engine: Engine) -> None:
    await interrupted(engine)
    sender = await worker(bus, "sender")
    with pytest.raises(errors.AgentEnded):
        await sender.send("a", "note", 1)
    await (await bus.recovery.plan("s")).resume()
    await sender.send("a", "note", 2)
    assert await queued(bus, "a") == [2]


async def test_completed_agents_are_not_expected_again(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine) as (owner, _):
        await (await member(owner, "done")).complete()
        await (await member(owner, "broken")).fail("crashed")
        await member(owner, "cut")
    assert (await (await bus.recovery.plan("s")).resume()).agents == ["broken", "cut"]
    assert (await known(bus, "done")).status == "completed"


async def test_the_life_before_stays_fenced(bus: Bus) -> None:
    async with bus.session("execution", id="s") as session:
        old = await member(bus, "a")
        await old.fail("declared dead")
        await (await bus.recovery.plan("s")).resume()
        with pytest.raises(AgentFenced, match="expected to begin a new one"):
            await old.state.set("k", 1)
        assert (await session.record()).process == bus.engine.process, "its owner is still in the block"


async def test_a_second_resumption_does_nothing_and_says_so(bus: Bus, engine: Engine) -> None:
    await interrupted(engine)
    first, second = await bus.recovery.plan("s"), await bus.recovery.plan("s")
    assert (await first.resume()).changed
    before = await trail(bus)
    nothing = Recovered("resume", "s", False, [])
    assert [await first.resume(), await second.resume()] == [nothing, nothing]
    assert await (await bus.recovery.plan("s")).resume() == nothing
    assert await trail(bus) == before


async def test_of_many_that_resume_at_once_one_does(bus: Bus, engine: Engine) -> None:
    await interrupted(engine, "s", "a", "b")
    async with engine.connect() as other:
        plans = [await one.recovery.plan("s") for one in (bus, other) for _ in range(8)]
        done = await asyncio.gather(*(plan.resume() for plan in plans))
    assert sum(one.changed for one in done) == 1
    assert (await kinds(bus)).count("recovered") == 1


async def test_a_paused_session_can_be_resumed(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine) as (_, session):
        await session.pause("lunch")
    assert (await (await bus.recovery.plan("s")).resume()).changed
    record = await held(bus, "s")
    assert (record.status, record.process) == ("active", None)


async def test_a_resumed_session_is_interrupted_again_only_by_what_happens_afterwards(bus: Bus, engine: Engine) -> None:
    await interrupted(engine, "s", "a", "b")
    await (await bus.recovery.plan("s")).resume()
    await (await bus.register("a", type="worker")).complete()
    assert (await held(bus, "s")).status == "active"
    await (await bus.register("b", type="worker")).fail("crashed again")
    assert (await held(bus, "s")).status == "interrupted"


# What a life goes on from


async def test_only_a_life_after_one_that_did_not_complete_is_restored(bus: Bus) -> None:
    a = await worker(bus, "a")
    assert a.restored is None
    await a.checkpoint("n", 1)
    await a.complete()
    assert (await worker(bus, "a")).restored is None
    again = await worker(bus, "a", takeover=True)
    assert again.restored is not None
    await again.fail("crashed")
    after = await worker(bus, "a")
    assert after.restored == again.restored
    await after.join("pool")
    assert after.restored == again.restored, "joining a pool begins no life"
    await after.stop()
    await bus.expect("a", type="worker")
    assert (await worker(bus, "a")).restored == again.restored, "it was announced that it comes back"


async def test_an_agent_that_is_only_announced_has_nothing_to_go_on_from(bus: Bus) -> None:
    await bus.expect("a", type="worker")
    await bus.checkpoints.save("a", "given", 1)
    assert (await worker(bus, "a")).restored is None


async def test_one_that_was_announced_again_after_it_completed_begins_anew(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.checkpoint("n", 1)
    await a.complete()
    await bus.expect("a", type="worker")
    assert (await worker(bus, "a")).restored is None


# Ending


async def test_completing_ends_the_session_and_stops_waiting_for_its_agents(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine, operation="planning", expects={"x": "scope"}) as (owner, session):
        await member(owner, "a")
        await session.expect("later", type="worker")
        await session.document("scope").save(1)
    done = await (await bus.recovery.plan("s")).complete()
    assert done == Recovered("complete", "s", True, ["later"])
    record = await held(bus, "s")
    assert (record.status, record.error) == ("completed", None)
    assert (await known(bus, "later")).status == "stopped"
    assert await kinds(bus) == ["started", "interrupted", "completed", "recovered"]


async def test_completing_without_what_is_expected_is_refused(bus: Bus, engine: Engine) -> None:
    await interrupted(engine, expects={"x": "scope"})
    plan = await bus.recovery.plan("s")
    with pytest.raises(WrongState, match="scope is missing"):
        await plan.complete()
    assert await kinds(bus) == ["started", "interrupted"]


async def test_abandoning_fails_the_session_with_the_reason(bus: Bus, engine: Engine) -> None:
    await interrupted(engine)
    await (await bus.recovery.plan("s")).abandon("the milestone was dropped")
    record = await held(bus, "s")
    assert (record.status, record.error) == ("failed", "the milestone was dropped")
    assert (await known(bus, "a")).status == "stopped"


async def test_every_action_is_in_the_trail(bus: Bus, engine: Engine) -> None:
    for name in ("resume", "complete", "abandon", "follow_on", "rollback"):
        async with cut_off(engine, name) as (owner, session):
            await member(owner, f"a-{name}", name)
            await session.document("d").save(1)
            point = await session.checkpoint_all("p")
        plan = await bus.recovery.plan(name)
        arguments: dict[str, tuple[Any, ...]] = {"abandon": ("why",), "follow_on": ("next",), "rollback": (point.id,)}
        done = await getattr(plan, name)(*arguments.get(name, ()))
        (event,) = [event for event in await trail(bus, name) if event.kind == "session_recovered"]
        agents = [f"a-{name}"] if name in {"resume", "rollback"} else []
        more: dict[str, dict[str, Any]] = {
            "abandon": {"reason": "why"},
            "follow_on": {"follow_on": done.follow_on},
            "rollback": {"checkpoint": point.id},
        }
        assert event.facts == {"action": name, "before": "interrupted", "agents": agents, **more.get(name, {})}


# A follow-on


async def test_a_follow_on_has_copies_of_the_documents_and_says_where_they_came_from(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine, operation="planning", milestone="ms-1", expects={"x": "plan"}) as (_, session):
        await session.document("plan").save({"phases": 1})
        await session.document("plan").save({"phases": 2}, author="planner")
        await session.document("risks").save(["time"])
    plan = await bus.recovery.plan("s")
    done = await plan.follow_on("execution", expects={"e": "results"}, metadata={"mine": 1})
    assert done.follow_on == "s-execution"
    assert (await held(bus, "s")).status == "completed"
    record = await held(bus, done.follow_on)
    assert (record.operation, record.milestone, record.status, record.process) == ("execution", "ms-1", "active", None)
    assert record.metadata == {
        "mine": 1,
        "follows": {"session": "s", "operation": "planning", "documents": {"plan": 2, "risks": 1}},
    }
    async with bus.session("execution", id=done.follow_on) as session:
        assert session.continued
        assert await session.missing() == {"e": "results"}
        copy = await session.document("plan").record()
        assert copy is not None
        assert (copy.value, copy.version, copy.author) == ({"phases": 2}, 1, "planner")
        await session.document("plan").save({"phases": 3})
    origin = await bus.sessions.open("s")
    assert await origin.document("plan").latest() == {"phases": 2}


async def test_a_follow_on_of_a_session_that_is_not_done_leaves_it_interrupted(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine, expects={"x": "plan"}) as (_, session):
        await session.document("draft").save(1)
    done = await (await bus.recovery.plan("s")).follow_on("execution", id="next", milestone="ms-2")
    assert (done.follow_on, (await held(bus, "next")).milestone) == ("next", "ms-2")
    assert (await held(bus, "s")).status == "interrupted"


async def test_a_completed_session_offers_a_follow_on_and_nothing_else(bus: Bus) -> None:
    async with bus.session("planning", id="s") as session:
        await session.document("plan").save(1)
    plan = await bus.recovery.plan("s")
    assert actions(plan) == ["follow_on"]
    await plan.follow_on("execution", id="next")
    assert (await held(bus, "s")).status == "completed"
    assert await (await bus.sessions.open("next")).document("plan").latest() == 1


# Bad input


async def test_an_unknown_session_has_no_plan(bus: Bus) -> None:
    with pytest.raises(UnknownSession):
        await bus.recovery.plan("nothing")
    with pytest.raises(errors.InvalidName):
        await bus.recovery.plan("no name")


@pytest.mark.parametrize("ended", ["completed", "failed"])
async def test_an_ended_session_cannot_be_recovered(bus: Bus, ended: str) -> None:
    async with bus.session("execution", id="s") as session:
        point = await session.checkpoint_all("p")
        await (session.complete() if ended == "completed" else session.fail("no"))
    plan = await bus.recovery.plan("s")
    before = await trail(bus)
    for action in (plan.resume(), plan.complete(), plan.abandon("x"), plan.rollback(point.id), plan.follow_on("o")):
        with pytest.raises(WrongState):
            await action
    assert await trail(bus) == before
    assert (await held(bus, "s")).status == ended


async def test_a_session_that_somebody_is_at_work_in_cannot_be_ended(bus: Bus, engine: Engine) -> None:
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


async def test_one_that_was_stopped_on_purpose_is_not_expected_again(bus: Bus, engine: Engine) -> None:
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


async def test_every_refusal_says_what_to_do(bus: Bus, engine: Engine) -> None:
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


@pytest.mark.parametrize("change", ["agent", "document", "progress", "ended", "abandoned", "expected"])
async def test_a_plan_that_is_out_of_date_does_nothing(bus: Bus, engine: Engine, clock: FakeClock, change: str) -> None:
    await interrupted(engine)
    plan, other = await bus.recovery.plan("s"), await bus.recovery.plan("s")
    session = await bus.sessions.open("s")
    clock.advance(0.001)
    if change == "agent":
        await (await worker(bus, "a")).fail("crashed")
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
    before = await held(bus, "s"), await trail(bus), (await bus.agents.list()).items
    for action in (plan.resume(), plan.complete(), plan.abandon("second"), plan.follow_on("o", id="next")):
        with pytest.raises(PlanOutdated) as outdated:
            await action
        assert outdated.value.session == "s"
    assert (await held(bus, "s"), await trail(bus), (await bus.agents.list()).items) == before
    assert await bus.sessions.get("next") is None


async def test_of_different_recoveries_at_once_one_is_done_and_the_others_hear_of_it(bus: Bus, engine: Engine) -> None:
    await interrupted(engine)
    plans = [await bus.recovery.plan("s") for _ in range(3)]
    outcomes = await asyncio.gather(
        plans[0].abandon("x"), plans[1].complete(), plans[2].resume(), return_exceptions=True
    )
    done = [outcome for outcome in outcomes if isinstance(outcome, Recovered)]
    assert len(done) == 1
    assert [type(outcome) for outcome in outcomes if outcome not in done] == [PlanOutdated, PlanOutdated]
    assert (await kinds(bus)).count("recovered") == 1


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
