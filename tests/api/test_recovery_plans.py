"""The plan of an interrupted session: progress of its agents, and available actions."""

from __future__ import annotations

import pytest

from agentbus import Bus
from agentbus.records import RecoveryOption
from tests.api.helpers import known, take, worker
from tests.api.interrupted_sessions import actions, cut_off, interrupted, member
from tests.conftest import Engine
from tests.support.cases import each


async def test_a_plan_reports_the_progress_and_waiting_messages_of_each_agent(bus: Bus, engine: Engine) -> None:
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


async def test_a_plan_reports_which_expected_documents_exist(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine, expects={"x": "scope", "y": "risks"}) as (_, session):
        await session.document("risks").save(["time"])
        await session.document("extra").save(1)
    plan = await bus.recovery.plan("s")
    assert (plan.present, plan.missing) == ({"y": "risks"}, {"x": "scope"})
    assert [document.name for document in plan.record.documents] == ["extra", "risks"]


@each(
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
    id = "-".join([operation, *saved])
    async with cut_off(engine, id, operation=operation, expects={"x": "scope"}) as (_, session):
        for name in saved:
            await session.document(name).save(1)
    assert actions(await bus.recovery.plan(id)) == expected


async def test_a_planning_session_of_which_nothing_is_expected_is_resumed_first(bus: Bus, engine: Engine) -> None:
    await interrupted(engine, operation="planning")
    assert actions(await bus.recovery.plan("s")) == ["resume", "complete", "abandon"]


@pytest.mark.one_engine
async def test_options_describe_their_effect(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine, expects={"x": "scope"}) as (owner, session):
        await member(owner, "a")
        await session.document("scope").save(1)
        point = await session.checkpoint_all("half")
    plan = await bus.recovery.plan("s")
    assert plan.options == [
        RecoveryOption(
            "resume", "continues it and expects a again; each continues with its state, checkpoint and mailbox"
        ),
        RecoveryOption(
            "rollback",
            f"restores documents, state and participants as of checkpoint {point.id} 'half', then continues it and"
            " expects a again",
            point.id,
        ),
        RecoveryOption("complete", "ends it as completed: every expected document is there"),
        RecoveryOption("follow_on", "starts a new session with a copy of scope, and ends this one as completed"),
        RecoveryOption("abandon", "ends it as failed, with your reason"),
    ]  # fmt: skip
    assert [summary.id for summary in plan.checkpoints] == [point.id]
    assert "resume, rollback" in repr(plan)


async def test_no_action_is_offered_while_an_agent_is_running(bus: Bus, engine: Engine) -> None:
    async with bus.session("execution", id="s"):
        plan = await bus.recovery.plan("s")
        assert (actions(plan), plan.record.owned) == ([], True)
        assert "nothing to do" in repr(plan)
    await interrupted(engine, "t")
    await member(bus, "b", "t")
    plan = await bus.recovery.plan("t")
    assert (actions(plan), plan.record.at_work) == ([], ["b"])


async def test_an_active_session_without_agents_can_be_ended(bus: Bus, engine: Engine) -> None:
    await interrupted(engine)
    await (await bus.recovery.plan("s")).resume()
    plan = await bus.recovery.plan("s")
    assert actions(plan) == ["complete", "abandon"]
    await plan.abandon("no agent came")
    assert (await known(bus, "a")).status == "stopped", "it is no longer expected"
