"""Approvals: requested by tasks and decided by operators, after days if need be; never by agents."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import agentbus
from agentbus import Bus, Task, pool
from agentbus.errors import InvalidInput, NotAnOperator, UnknownApproval, UnknownTask, WrongState
from agentbus.records import Verdict
from tests.api.helpers import eventually, soon, take
from tests.api.task_workers import Calls, comes_to, kinds_of, task_of, work_off, working
from tests.conftest import Engine
from tests.support.clock import START, FakeClock

verdicts: list[Verdict] = []


@agentbus.workflow("asking")
async def asking(task: Task, options: dict[str, Any]) -> bool:
    verdict = await task.approval("plan", show={"files": 3}, **options)
    verdicts.append(verdict)
    return verdict.approved


@pytest.fixture(autouse=True)
def forget() -> None:
    verdicts.clear()


@pytest.mark.parametrize("approved", [True, False])
async def test_an_approval_is_decided_while_no_worker_runs(approved: bool, engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus:
        task = await bus.tasks.start(asking, {})
        await work_off(bus, asking)
    clock.advance(3 * 24 * 3600)
    async with engine.connect() as bus:
        record = await task_of(bus, task.id)
        assert (record.status, record.waits, record.holder) == ("waiting", ["approval:plan"], None)
        (asked,) = await bus.tasks.approvals()
        assert (asked.task, asked.key, asked.status, asked.shown) == (task.id, "plan", "open", {"files": 3})
        decide = bus.tasks.approve if approved else bus.tasks.reject
        decided = await decide(task.id, "plan", by="ada", reason="because")
        assert (decided.status, decided.by) == ("approved" if approved else "rejected", "ada")
        assert await bus.tasks.approvals() == []
        record = await task_of(bus, task.id)
        assert (record.status, record.waits) == ("pending", [])
    async with engine.connect() as bus:
        await work_off(bus, asking)
        assert (await task_of(bus, task.id)).result is approved
        assert verdicts == [Verdict(approved, "ada", "because", START + 3 * 24 * 3600 * 1000)]
        facts = [event async for event in bus.events(kind="approval_decided")]
        assert [(one.actor, one.facts["verdict"], one.facts["reason"]) for one in facts] == [
            ("ada", decided.status, "because")
        ]


async def test_a_running_worker_is_woken_by_a_decision_at_once(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        task = await bus.tasks.start(asking, {})
        async with working(bus, asking):
            await comes_to(bus, clock, task.id, "waiting")
            await other.tasks.approve(task.id, by="ada")
            await soon(bus.tasks.wait(task.id))
    assert verdicts[0].approved


@pytest.mark.one_engine
async def test_a_rejection_is_a_value_to_loop_on(bus: Bus) -> None:
    @agentbus.workflow("looping")
    async def looping(task: Task) -> list[str]:
        plans = [await task.step("plan", lambda feedback: f"plan: {feedback}", "")]
        while not (verdict := await task.approval("plan", show=plans[-1])).approved:
            plans.append(await task.step("plan", lambda feedback: f"plan: {feedback}", verdict.reason))
        return plans

    task = await bus.tasks.start(looping)
    for reason in ("too large", "too small"):
        await work_off(bus, looping)
        await bus.tasks.reject(task.id, "plan", by="ada", reason=reason)
    await work_off(bus, looping)
    await bus.tasks.approve(task.id, "plan", by="bob")
    await work_off(bus, looping)
    assert (await task_of(bus, task.id)).result == ["plan: ", "plan: too large", "plan: too small"]
    asked = await bus.tasks.approvals(task.id, status=None)
    assert [(one.key, one.status, one.by, one.reason) for one in asked] == [
        ("plan", "rejected", "ada", "too large"),
        ("plan#2", "rejected", "ada", "too small"),
        ("plan#3", "approved", "bob", None),
    ]


async def test_agents_cannot_decide(bus: Bus) -> None:
    task = await bus.tasks.start(asking, {})
    await work_off(bus, asking, agent="worker-1")
    await bus.expect("planner-1", type="planner")
    for by in ("planner-1", "worker-1", "planner-1#7"):
        with pytest.raises(NotAnOperator):
            await bus.tasks.approve(task.id, "plan", by=by)
        with pytest.raises(NotAnOperator):
            await bus.tasks.reject(task.id, "plan", by=by)
        with pytest.raises(NotAnOperator):
            await bus.tasks.auto(task.id, True, by=by)
    for missing in ("", None):
        with pytest.raises(InvalidInput):
            await bus.tasks.approve(task.id, "plan", by=missing)  # type: ignore[arg-type]
    assert (await task_of(bus, task.id)).status == "waiting"


async def test_a_decision_is_final_and_an_unknown_approval_cannot_be_decided(bus: Bus) -> None:
    task = await bus.tasks.start(asking, {})
    with pytest.raises(WrongState, match="not waiting for an approval"):
        await bus.tasks.approve(task.id, by="ada")
    await work_off(bus, asking)
    with pytest.raises(UnknownApproval):
        await bus.tasks.approve(task.id, "design", by="ada")
    with pytest.raises(UnknownTask):
        await bus.tasks.approve("nobody", "plan", by="ada")
    await bus.tasks.reject(task.id, "plan", by="ada")
    for decide in (bus.tasks.approve, bus.tasks.reject):
        with pytest.raises(WrongState, match="rejected"):
            await decide(task.id, "plan", by="bob")


async def test_of_two_concurrent_decisions_one_counts(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        task = await bus.tasks.start(asking, {})
        await work_off(bus, asking)
        outcomes: list[str] = []

        async def decide(where: Bus, by: str) -> None:
            try:
                await where.tasks.approve(task.id, "plan", by=by)
            except WrongState:
                outcomes.append("late")
            else:
                outcomes.append(by)

        async with anyio.create_task_group() as group:
            group.start_soon(decide, bus, "ada")
            group.start_soon(decide, other, "bob")
        (asked,) = await bus.tasks.approvals(task.id, status=None)
        assert sorted(outcomes) == sorted(["late", str(asked.by)])


async def test_an_approval_expires_and_the_task_continues_by_itself(bus: Bus, clock: FakeClock) -> None:
    task = await bus.tasks.start(asking, {"expires": 120})
    async with working(bus, asking):
        await comes_to(bus, clock, task.id, "waiting")
        await clock.pass_time(119)
        assert verdicts == []
        await clock.pass_time(1)
        await comes_to(bus, clock, task.id, "completed")
    (verdict,) = verdicts
    assert (verdict.approved, verdict.expired, verdict.by) == (False, True, None)
    with pytest.raises(WrongState, match="expired"):
        await bus.tasks.approve(task.id, "plan", by="ada")


async def test_an_expired_approval_cannot_be_decided_before_a_worker_noticed(bus: Bus, clock: FakeClock) -> None:
    task = await bus.tasks.start(asking, {"expires": 60})
    await work_off(bus, asking)
    clock.advance(60)
    for name in ("plan", None):
        with pytest.raises(WrongState, match="expired"):
            await bus.tasks.approve(task.id, name, by="ada")
    await work_off(bus, asking)
    assert verdicts[0].expired


async def test_a_mailbox_is_notified_in_the_commit_that_requests_the_approval(bus: Bus) -> None:
    async with bus.agent("chief", type="coordinator", pools=["chiefs"]) as chief:

        @agentbus.workflow("notifying")
        async def notifying(task: Task) -> None:
            await task.approval("plan", show={"files": 3}, notify=pool("chiefs"))

        task = await bus.tasks.start(notifying, name="Login")
        await work_off(bus, notifying)
        message = await take(chief)
        assert message.type == "approval_request"
        assert message.payload == {"task": task.id, "name": "Login", "approval": "plan", "show": {"files": 3}}
        (asked,) = await bus.tasks.approvals()
        assert asked.notify == "pool:chiefs"
        await work_off(bus, notifying)
        assert await chief.receive(timeout=0) is None


async def test_no_approval_is_requested_if_the_mailbox_to_notify_is_unknown(bus: Bus) -> None:
    @agentbus.workflow("notifying")
    async def notifying(task: Task) -> None:
        await task.approval("plan", notify="nobody")

    task = await bus.tasks.start(notifying)
    await work_off(bus, notifying)
    record = await task_of(bus, task.id)
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.type == "UnknownRecipient"
    assert await bus.tasks.approvals() == []


async def test_auto_passes_approvals_and_records_it(bus: Bus) -> None:
    task = await bus.tasks.start(asking, {}, auto=True)
    await work_off(bus, asking)
    assert (await task_of(bus, task.id)).result is True
    assert [(one.approved, one.auto, one.by) for one in verdicts] == [(True, True, None)]
    (asked,) = await bus.tasks.approvals(task.id, status=None)
    assert (asked.status, asked.auto, asked.by) == ("approved", True, None)
    facts = [event.facts async for event in bus.events(kind="approval_decided")]
    assert [one["auto"] for one in facts] == [True]


async def test_auto_can_be_switched_on_for_open_approvals_and_off_again(bus: Bus, clock: FakeClock) -> None:
    @agentbus.workflow("thrice")
    async def thrice(task: Task) -> list[bool]:
        return [(await task.approval("go")).auto for _ in range(3)]

    task = await bus.tasks.start(thrice)
    await work_off(bus, thrice)
    await bus.tasks.approve(task.id, by="ada")
    await work_off(bus, thrice)
    record = await bus.tasks.auto(task.id, True, by="ada")
    assert (record.auto, record.status) == (True, "pending")
    await bus.tasks.auto(task.id, False)
    await work_off(bus, thrice)
    assert (await task_of(bus, task.id)).waits == ["approval:go#3"]
    await bus.tasks.auto(task.id, True)
    await work_off(bus, thrice)
    assert (await task_of(bus, task.id)).result == [False, True, True]


async def test_other_branches_continue_while_one_waits(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    gate = calls.gate("slow")

    @agentbus.workflow("branches")
    async def branches(task: Task) -> None:
        async def ask() -> None:
            await task.approval("go")
            await task.step("after", calls, "after")

        async def work() -> None:
            await task.step("slow", calls, "slow")
            await task.step("last", calls, "last")

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            group.start_soon(work)

    task = await bus.tasks.start(branches)
    async with working(bus, branches):
        await soon(calls.begun["slow"].wait())
        await clock.settle()
        assert (await task_of(bus, task.id)).status == "running"
        # Decided while another branch is busy: the task is not released, and continues in place.
        await bus.tasks.approve(task.id, by="ada")
        await eventually(clock, lambda: calls.made == ["slow", "after"])
        gate.set()
        await soon(bus.tasks.wait(task.id))
    assert calls.made == ["slow", "after", "last"]
    assert "task_waiting" not in await kinds_of(bus, task.id)


async def test_a_task_is_released_only_when_every_branch_waits(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    gate = calls.gate("slow")

    @agentbus.workflow("branches")
    async def branches(task: Task) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(task.approval, "one")
            group.start_soon(task.approval, "two")
            group.start_soon(task.step, "slow", calls, "slow")

    task = await bus.tasks.start(branches)
    async with working(bus, branches):
        await soon(calls.begun["slow"].wait())
        await clock.settle()
        assert (await task_of(bus, task.id)).status == "running"
        gate.set()
        record = await comes_to(bus, clock, task.id, "waiting")
        assert record.waits == ["approval:one", "approval:two"]
        await bus.tasks.approve(task.id, "two", by="ada")
        record = await comes_to(bus, clock, task.id, "waiting")
        await clock.settle()
        record = await comes_to(bus, clock, task.id, "waiting")
        assert record.waits == ["approval:one"]
        await bus.tasks.approve(task.id, "one", by="ada")
        await soon(bus.tasks.wait(task.id))
    assert calls.made == ["slow"]
