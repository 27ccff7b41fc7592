"""What becomes of tasks that have ended: kept for a while, archived, exported, and put back as they were."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import agentbus
from agentbus import Bus, RetentionPolicy, Task
from tests.conformance.at_work import Calls, statuses, task_of, work_off, working
from tests.conformance.helpers import soon
from tests.conformance.test_retention import NOTHING, applied, archived
from tests.support.clock import FakeClock

DAY = 24 * 3600.0
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


async def completed(bus: Bus, **options: object) -> str:
    """A task with something of everything, redone once."""
    task = (await bus.tasks.start(whole, **options)).id  # type: ignore[arg-type]
    for _ in range(2):
        await work_off(bus, whole, part)
        await bus.tasks.approve(task, "go", by="ada", reason="fine")
        await work_off(bus, whole, part)
        if _ == 0:
            await bus.tasks.redo(task, "part", note="again")
    return task


@pytest.fixture
async def other(clock: FakeClock, tmp_path: Path) -> AsyncIterator[Bus]:
    """An empty bus."""
    async with agentbus.connect(tmp_path / "other", clock=clock) as bus:
        yield bus


async def test_a_task_that_ended_long_ago_goes_with_all_it_has_and_is_archived(bus: Bus, clock: FakeClock) -> None:
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


async def test_what_was_archived_comes_back_as_it_was(bus: Bus, clock: FakeClock, other: Bus) -> None:
    task = await completed(bus)
    record, steps = await task_of(bus, task), await bus.tasks.steps(task, history=True)
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


async def test_a_session_stays_until_its_tasks_have_ended_and_goes_with_them(bus: Bus, clock: FakeClock) -> None:
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


async def test_an_export_has_the_tasks_and_those_that_were_open_are_halted_where_they_come_to(
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


async def test_another_task_of_the_same_id_is_not_touched(
    bus: Bus, clock: FakeClock, other: Bus, tmp_path: Path
) -> None:
    await bus.tasks.start(part, "x", id="t-1")
    path = (await bus.export(tmp_path / "bus.jsonl.gz")).path
    clock.advance(1)
    await other.tasks.start(part, "y", id="t-1")
    report = await other.import_path(path)
    assert "there is another task t-1" in report.problems[0].reason
    assert (await task_of(other, "t-1")).arguments == ["y"]
