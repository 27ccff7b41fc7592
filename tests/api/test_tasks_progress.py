"""The visible progress of a task: phases, percentages, checkpoints and lists."""

from __future__ import annotations

from typing import Any

import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.errors import InvalidInput, UnknownTask
from agentbus.records import TaskChange
from tests.api.helpers import soon
from tests.api.task_workers import Calls, step_of, task_of, work_off, working
from tests.api.workflows import feature, make_plan
from tests.support.clock import FakeClock


async def test_phases_are_shown_reported_and_stored_once(bus: Bus) -> None:
    reported: list[TaskChange] = []
    steps: list[tuple[str, str]] = []

    @agentbus.workflow("phased", phases=["planning", "plan_awaiting_approval", "building"])
    async def phased(task: Task) -> None:
        await task.phase("planning")
        await task.step("plan", make_plan, "x")
        await task.phase("plan_awaiting_approval")
        await task.approval("plan")
        await task.phase("building")
        with pytest.raises(InvalidInput):
            await task.phase("dreaming")

    task = await bus.tasks.start(phased)

    async def on_step(change: TaskChange) -> None:
        steps.append((change.name, change.status))

    became: list[TaskChange] = []
    await work_off(bus, phased, on_phase=reported.append, on_step=on_step, on_task=became.append)
    record = await task_of(bus, task.id)
    assert (record.status, record.phase) == ("waiting", "plan_awaiting_approval")
    await bus.tasks.approve(task.id, by="ada")
    await work_off(bus, phased, on_phase=reported.append, on_step=on_step, on_task=became.append)
    assert [(one.kind, one.name, one.status) for one in became] == [
        ("workflow", "phased", "waiting"), ("workflow", "phased", "completed"),
    ]  # fmt: skip
    assert (await task_of(bus, task.id)).phase == "building"
    assert [change.name for change in reported] == ["planning", "plan_awaiting_approval", "building"]
    assert steps == [("plan", "running"), ("plan", "finished")]
    events = [event.facts async for event in bus.events(kind="task_phase")]
    assert [(one["before"], one["phase"]) for one in events] == [
        (None, "planning"),
        ("planning", "plan_awaiting_approval"),
        ("plan_awaiting_approval", "building"),
    ]


@pytest.mark.one_engine
async def test_a_failing_callback_delays_nothing(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    def fail(change: TaskChange) -> None:
        raise ValueError("no")

    task = await bus.tasks.start(feature, "x")
    await work_off(bus, feature, on_step=fail)
    assert (await task_of(bus, task.id)).status == "completed"
    assert "callback failed" in caplog.text


async def test_progress_is_the_step_s_or_the_task_s(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    gate = calls.gate("slow")

    @agentbus.workflow("slow")
    async def slow(task: Task) -> None:
        async def work() -> None:
            await task.progress(40, "writing tests")
            await calls("slow")

        await task.progress(10, "beginning")
        found = await bus.tasks.get(task.id)
        assert found is not None
        assert found.note == "beginning"
        await task.step("work", work)

    task = await bus.tasks.start(slow)
    async with working(bus, slow):
        await soon(calls.begun["slow"].wait())
        record = await task_of(bus, task.id)
        assert (record.progress, record.note, record.status) == (10, "writing tests", "running")
        assert (await step_of(bus, task.id, "work")).progress == 40
        gate.set()
        await soon(bus.tasks.wait(task.id))


async def test_a_checkpoint_of_a_task_is_saved_once_and_can_be_read(bus: Bus) -> None:
    found: list[Any] = []

    @agentbus.workflow("saving")
    async def saving(task: Task) -> int:
        assert await task.restore("absent") is None
        number = await task.checkpoint("after_planning", {"plan": 1}, notes="so far")
        await task.approval("go")
        last = await task.restore("after_planning")
        assert last is not None
        found.append(last.snapshot)
        return number

    task = await bus.tasks.start(saving)
    await work_off(bus, saving)
    await bus.tasks.approve(task.id, by="ada")
    await work_off(bus, saving)
    record = await task_of(bus, task.id)
    page = await bus.checkpoints.list(task.id, kind="task")
    assert [(one.id, one.name, one.notes) for one in page.items] == [(record.result, "after_planning", "so far")]
    assert found == [{"plan": 1}]


async def test_tasks_are_listed_and_counted(bus: Bus) -> None:
    for n in range(5):
        await bus.tasks.start(feature, str(n), id=f"f-{n}")
    await bus.tasks.start("other", id="o-1")
    await work_off(bus, feature)
    page = await bus.tasks.list(limit=4)
    assert [task.id for task in page.items] == ["o-1", "f-4", "f-3", "f-2"]
    rest = await bus.tasks.list(limit=4, cursor=page.cursor)
    assert [task.id for task in rest.items] == ["f-1", "f-0"]
    assert rest.cursor is None
    assert [task.id for task in (await bus.tasks.list(status="pending")).items] == ["o-1"]
    found = await bus.tasks.list(status=["pending", "completed"], workflow="feature")
    assert len(found.items) == 5
    statistics = await bus.tasks.statistics()
    assert statistics.tasks == {"completed": 5, "pending": 1}
    assert statistics.workflows == {"feature": {"completed": 5}, "other": {"pending": 1}}
    assert statistics.steps == {"finished": 5}
    assert statistics.oldest_pending is not None
    assert (await bus.tasks.statistics(workflow="other")).steps == {}
    assert await bus.tasks.get("nobody") is None
    with pytest.raises(UnknownTask):
        await bus.tasks.steps("nobody")
