"""Ended tasks: retained, archived, exported and restored unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Unpack

import pytest

import agentbus
from agentbus import Bus, RetentionPolicy, Task
from agentbus.api.tasks.workflow import StartOptions
from agentbus.records import Finding
from tests.api.helpers import soon
from tests.api.retention_helpers import DAY, NOTHING, applied, archived
from tests.api.task_workers import Calls, kinds_of, statuses, step_comes_to, task_of, work_off, working
from tests.conftest import Engine
from tests.support.clock import FakeClock
from tests.support.traces import TRACE, traced

POLICY = RetentionPolicy(
    **{**{name: getattr(NOTHING, name) for name in NOTHING.__struct_fields__}, "tasks": DAY},
)


@agentbus.workflow("part")
async def part(task: Task, name: str) -> str:
    return await task.step("work", lambda: name * 2)


@agentbus.workflow("whole")
async def whole(task: Task) -> str:
    await task.phase("beginning")
    await task.checkpoint("so-far", {"n": 1})
    child = await task.start(part, "x")
    verdict = await task.approval("go", show={"plan": "grüße"})
    return f"{await child} {verdict.reason}"


async def completed(bus: Bus, **options: Unpack[StartOptions]) -> str:
    """A task with something of everything, redone once."""
    task = (await bus.tasks.start(whole, **options)).id
    for _ in range(2):
        await work_off(bus, whole, part)
        await bus.tasks.approve(task, "go", by="ada", reason="fine")
        await work_off(bus, whole, part)
        if _ == 0:
            # The approval was asked for while the sub-task ran: it does not depend on it.
            await bus.tasks.redo(task, "part", note="again")
            await bus.tasks.redo(task, "approval:go")
    return task


@pytest.fixture
async def other(clock: FakeClock, tmp_path: Path) -> AsyncIterator[Bus]:
    """An empty bus."""
    async with agentbus.connect(tmp_path / "other", clock=clock) as bus:
        yield bus


async def test_a_task_that_ended_long_ago_is_archived_and_removed_with_all_its_data(bus: Bus, clock: FakeClock) -> None:
    task = await completed(bus)
    clock.advance(DAY - 1)
    fresh = await completed(bus)
    open_ = (await bus.tasks.start(whole)).id
    clock.advance(2)
    report = await applied(bus, policy=POLICY)
    assert report.removed == {"checkpoint": 1, "task": 3}
    assert sorted(archived(report, "task")) == sorted([task, f"{task}/3", f"{task}/5"])
    assert {one.id for one in (await bus.tasks.list()).items if one.parent is None} == {fresh, open_}
    assert (await bus.checkpoints.list(task, kind="task")).items == []
    assert [event.subject async for event in bus.events(kind="task_deleted")].count(task) == 1


async def test_an_archived_task_is_restored_unchanged(bus: Bus, clock: FakeClock, other: Bus) -> None:
    with traced():
        task = await completed(bus, max_losses=7)
    record, steps = await task_of(bus, task), await bus.tasks.steps(task, history=True)
    assert {record.trace, *(step.trace for step in steps if step.kind == "task")} == {TRACE}
    approvals = await bus.tasks.approvals(task, status=None, history=True)
    clock.advance(2 * DAY)
    report = await applied(bus, policy=POLICY)
    assert report.archive is not None
    for where in (bus, other):
        imported = await where.import_path(report.archive)
        assert (imported.imported["task"], imported.refused) == (3, 0)
        assert await task_of(where, task) == record
        assert await where.tasks.steps(task, history=True) == steps
        assert await where.tasks.approvals(task, status=None, history=True) == approvals
        assert (await where.import_path(report.archive)).imported == {}
    await bus.tasks.redo(task, "approval:go")
    await work_off(bus, whole, part)
    assert (await task_of(bus, task)).status == "waiting"


async def test_a_task_whose_sub_task_is_at_work_again_stays(bus: Bus, clock: FakeClock) -> None:
    task = await completed(bus)
    clock.advance(2 * DAY)
    await bus.tasks.restart(f"{task}/5")
    assert (await applied(bus, policy=POLICY)).removed == {}


async def test_a_session_stays_until_its_tasks_have_ended_and_is_removed_with_them(bus: Bus, clock: FakeClock) -> None:
    policy = RetentionPolicy(
        **{**{name: getattr(NOTHING, name) for name in NOTHING.__struct_fields__}, "sessions": DAY},
    )
    async with bus.session("work", id="s-1"):
        task = (await bus.tasks.start(part, "x", session="s-1")).id
    clock.advance(2 * DAY)
    assert (await applied(bus, policy=policy)).removed == {}
    await work_off(bus, part)
    assert (await applied(bus, policy=policy)).removed == {"task": 1, "session": 1}
    assert await bus.tasks.get(task) is None


async def test_an_export_has_the_tasks_and_open_ones_are_halted_in_the_target(
    bus: Bus, clock: FakeClock, other: Bus, tmp_path: Path
) -> None:
    calls = Calls()

    @agentbus.workflow("two")
    async def two(task: Task) -> str:
        await task.step("first", calls, "first")
        return await task.step("second", calls, "second", "done")

    calls.gate("second")
    done = await completed(bus)
    async with bus.session("work", id="s-1"):
        task = (await bus.tasks.start(two, session="s-1")).id
    async with working(bus, two):
        await soon(calls.begun["second"].wait())
        report = await bus.export(tmp_path / "bus.jsonl.gz")
        session = await bus.export(tmp_path / "session.jsonl.gz", session="s-1")
    assert report.exported["task"] == 4
    assert session.exported["task"] == 1
    assert (await other.import_path(report.path)).refused == 0
    assert await task_of(other, done) == await task_of(bus, done)
    record = await task_of(other, task)
    assert (record.status, record.holder, record.session) == ("halted", None, "s-1")
    assert await statuses(other, task) == {"first": "finished", "second": "interrupted"}
    calls.gates.clear()
    await work_off(other, two)
    await other.tasks.continue_(task)
    await work_off(other, two)
    assert (await task_of(other, task)).result == "done"
    assert calls.made == ["first", "second", "second"]


async def test_an_export_has_what_a_redo_depends_on_and_the_redo_that_waits(
    bus: Bus, clock: FakeClock, other: Bus, tmp_path: Path
) -> None:
    calls = Calls()

    @agentbus.workflow("concurrent")
    async def parallel(task: Task) -> list[str]:
        found = await asyncio.gather(task.step("a", calls, "a", "a"), task.step("b", calls, "b", "b"))
        return [*found, await task.step("c", calls, "c", "c")]

    calls.gate("a")
    task = (await bus.tasks.start(parallel)).id
    async with working(bus, parallel):
        await step_comes_to(bus, clock, task, "b", "finished")
        await bus.tasks.redo(task, "b", note="again", by="ada")
        assert (await task_of(bus, task)).redo == ["b"]
        path = (await bus.export(tmp_path / "bus.jsonl.gz")).path
        assert (await other.import_path(path)).refused == 0
        record = await task_of(other, task)
        assert (record.status, record.redo) == ("halted", [])
        assert await statuses(other, task) == {"a": "interrupted"}
    calls.gates.clear()
    await other.tasks.continue_(task)
    await work_off(other, parallel)
    # What began beside a step does not depend on it, wherever the task is.
    await other.tasks.redo(task, "a")
    assert await statuses(other, task) == {"b": "finished"}


async def test_another_task_of_the_same_id_is_not_touched(
    bus: Bus, clock: FakeClock, other: Bus, tmp_path: Path
) -> None:
    await bus.tasks.start(part, "x", id="t-1")
    path = (await bus.export(tmp_path / "bus.jsonl.gz")).path
    clock.advance(1)
    await other.tasks.start(part, "y", id="t-1")
    report = await other.import_path(path)
    assert "different task t-1" in report.problems[0].reason
    assert (await task_of(other, "t-1")).arguments == ["y"]


# What others see of tasks


async def test_a_sweep_releases_expired_tasks_without_a_worker(engine: Engine, clock: FakeClock) -> None:
    calls = Calls()
    calls.gate("work")

    @agentbus.workflow("stuck")
    async def stuck(task: Task) -> None:
        await task.step("work", calls, "work")

    async with engine.connect() as bus, engine.connect() as other:
        task = (await bus.tasks.start(stuck)).id
        async with working(bus, stuck, lease=60):
            await soon(calls.begun["work"].wait())
            assert (await other.sweep()).counts["tasks_freed"] == 0
            clock.stall(61)
            assert (await other.sweep()).counts["tasks_freed"] == 1
            assert "task_pending" in await kinds_of(other, task)


async def test_the_monitor_reports_failed_tasks_and_open_approvals(bus: Bus, clock: FakeClock) -> None:
    @agentbus.workflow("bad")
    async def bad(task: Task) -> None:
        raise ValueError("no")

    told: list[Finding] = []
    async with bus.monitor(interval=5, on_finding=told.append):
        await clock.settle()
        failed, asking = (await bus.tasks.start(bad)).id, (await bus.tasks.start(whole)).id
        await work_off(bus, bad, whole, part)
        await clock.pass_time(6)
    found = {finding.kind: (finding.subject, finding.facts) for finding in told}
    subject, facts = found["task_failed"]
    assert (subject, facts["error"]) == (f"task:{failed}", "ValueError: no")
    subject, facts = found["approval_requested"]
    assert (subject, facts["approval"]) == (f"task:{asking}", "go")


async def test_an_ended_task_has_no_open_approval(bus: Bus, clock: FakeClock) -> None:
    task = (await bus.tasks.start(whole)).id
    await work_off(bus, whole, part)
    assert len(await bus.tasks.approvals()) == (await bus.tasks.statistics()).open_approvals == 1
    await bus.tasks.stop(task)
    assert await bus.tasks.approvals() == []
    assert (await bus.tasks.statistics()).open_approvals == 0
    await bus.tasks.resume(task)
    assert len(await bus.tasks.approvals()) == 1


async def test_the_recovery_of_a_session_shows_its_open_tasks_and_they_continue(bus: Bus, clock: FakeClock) -> None:
    with pytest.raises(KeyboardInterrupt):
        async with bus.session("work", id="s-1"):
            task = (await bus.tasks.start(part, "x", session="s-1")).id
            await bus.tasks.start(whole, session="s-1", id="w-1")
            raise KeyboardInterrupt
    await work_off(bus, whole)
    plan = await bus.recovery.plan("s-1")
    assert plan.record.tasks == {task: "pending", "w-1": "waiting", "w-1/3": "pending"}
    assert f"tasks that have not ended: {task} pending, w-1 waiting" in str(plan.record)
    await work_off(bus, part)
    assert (await bus.recovery.plan("s-1")).record.tasks == {"w-1": "pending"}


async def test_the_doctor_checks_tasks(bus: Bus, clock: FakeClock) -> None:
    await completed(bus)
    checks = {check.name: check for check in await bus.doctor()}
    for kind in ("tasks", "steps", "approvals"):
        assert checks[f"payloads of {kind}"].status == "ok", checks[f"payloads of {kind}"]


async def test_a_step_that_loses_worker_after_worker_fails(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentbus.api.tasks.step.MAX_INTERRUPTIONS", 3)
    calls = Calls()

    @agentbus.workflow("deadly")
    async def deadly(task: Task) -> None:
        await task.step("work", calls, "work")

    task = (await bus.tasks.start(deadly)).id
    for _ in range(3):
        calls.gate("work")
        async with working(bus, deadly):
            await soon(calls.begun["work"].wait())
    await work_off(bus, deadly)
    record = await task_of(bus, task)
    assert record.status == "failed"
    assert record.error is not None
    assert "3 workers" in record.error.message
    assert calls.made == ["work"] * 3
