"""Actions on interrupted sessions, and the state that a returning agent finds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentbus import Bus, errors
from agentbus.errors import AgentFenced, WrongState
from agentbus.records import Recovered
from tests.api.helpers import held, known, queued, take, worker
from tests.api.interrupted_sessions import actions, cut_off, interrupted, kinds, member, trail
from tests.conftest import Engine

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


async def test_the_previous_incarnation_stays_fenced(bus: Bus) -> None:
    async with bus.session("execution", id="s") as session:
        old = await member(bus, "a")
        await old.fail("declared dead")
        await (await bus.recovery.plan("s")).resume()
        with pytest.raises(AgentFenced, match="awaiting re-registration"):
            await old.state.set("k", 1)
        assert (await session.record()).process == bus._engine.process, "its owner is still in the block"


async def test_a_second_resumption_changes_nothing_and_reports_it(bus: Bus, engine: Engine) -> None:
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


# What an incarnation resumes from


async def test_only_an_incarnation_after_an_incomplete_one_is_restored(bus: Bus) -> None:
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
    assert after.restored == again.restored, "joining a pool starts no incarnation"
    await after.stop()
    await bus.expect("a", type="worker")
    assert (await worker(bus, "a")).restored == again.restored, "it was announced that it comes back"


async def test_an_agent_that_is_only_expected_has_nothing_to_restore(bus: Bus) -> None:
    await bus.expect("a", type="worker")
    await bus.checkpoints.save("a", "given", 1)
    assert (await worker(bus, "a")).restored is None


async def test_an_agent_expected_again_after_it_completed_starts_from_scratch(bus: Bus) -> None:
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


async def test_every_action_is_in_the_audit_log(bus: Bus, engine: Engine) -> None:
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
