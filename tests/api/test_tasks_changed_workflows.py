"""Workflows that changed after a task started: mismatches are named."""

from __future__ import annotations

from typing import Any

import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.errors import StepFailed
from tests.api.task_workers import Calls, statuses, task_of, work_off

pytestmark = pytest.mark.one_engine  # a workflow is compared with its recorded steps


async def change(bus: Bus, *workflows: Any) -> tuple[str, str]:
    """Run a task until it waits, then by another version of its workflow: the step that it names, and why."""
    task = await bus.tasks.start(workflows[0])
    await work_off(bus, workflows[0])
    await bus.tasks.approve(task.id, by="ada")
    await work_off(bus, workflows[1])
    record = await task_of(bus, task.id)
    assert record.status == "failed", record
    assert record.error is not None
    assert record.error.type == "WorkflowChanged"
    return task.id, record.error.message


@agentbus.workflow("changing")
async def original(task: Task) -> None:
    await task.step("plan", lambda text: text, "x")
    await task.step("build", lambda: 1)
    await task.approval("go")


async def test_a_step_that_was_renamed_is_named_before_anything_is_executed(bus: Bus) -> None:
    calls = Calls()

    @agentbus.workflow("changing")
    async def renamed(task: Task) -> None:
        await task.step("design", calls, "design")
        await task.approval("go")

    _, message = await change(bus, original, renamed)
    assert ("step 'plan'" in message, "step 'design'" in message) == (True, True)
    assert calls.made == []


async def test_a_step_that_the_workflow_ends_without_is_named(bus: Bus) -> None:
    @agentbus.workflow("changing")
    async def shorter(task: Task) -> None:
        await task.step("plan", lambda text: text, "x")
        await task.approval("go")

    _, message = await change(bus, original, shorter)
    assert "step 'build'" in message


async def test_a_step_that_is_asked_for_with_other_arguments_is_named_and_can_be_redone(bus: Bus) -> None:
    calls = Calls()

    @agentbus.workflow("changing")
    async def other(task: Task) -> None:
        await task.step("plan", calls, "y")
        await task.step("build", lambda: 1)

    task, message = await change(bus, original, other)
    assert ("step 'plan'" in message, "arguments" in message) == (True, True)
    await bus.tasks.redo(task, "plan")
    await work_off(bus, other)
    assert (await task_of(bus, task)).status == "completed"
    assert calls.made == ["y"]


async def test_a_changed_workflow_is_not_restarted_by_itself(bus: Bus) -> None:
    @agentbus.workflow("changing")
    async def empty(task: Task) -> None:
        return

    task = await bus.tasks.start(original, restarts=5)
    await work_off(bus, original)
    await bus.tasks.approve(task.id, by="ada")
    await work_off(bus, empty)
    record = await task_of(bus, task.id)
    assert (record.status, record.restarted) == ("failed", 0)


async def test_steps_may_be_added_after_those_that_are_done(bus: Bus) -> None:
    @agentbus.workflow("changing")
    async def longer(task: Task) -> None:
        await task.step("plan", lambda text: text, "x")
        await task.step("build", lambda: 1)
        await task.approval("go")
        await task.step("test", lambda: 2)

    task = await bus.tasks.start(original)
    await work_off(bus, original)
    await bus.tasks.approve(task.id, by="ada")
    await work_off(bus, longer)
    assert (await task_of(bus, task.id)).status == "completed"
    assert await statuses(bus, task.id) == dict.fromkeys(("plan", "build", "test"), "finished")


async def test_the_steps_after_a_failed_step_that_now_succeeds_may_differ(bus: Bus) -> None:
    broken = True

    @agentbus.workflow("ways")
    async def ways(task: Task) -> str:
        def work() -> str:
            if broken:
                raise ValueError("no")
            return "first way"

        try:
            return await task.step("work", work)
        except StepFailed as error:
            await task.step("other", lambda: 1)
            raise RuntimeError("nothing helps") from error

    task = await bus.tasks.start(ways)
    await work_off(bus, ways)
    assert (await task_of(bus, task.id)).status == "failed"
    broken = False
    await bus.tasks.resume(task.id)
    await work_off(bus, ways)
    record = await task_of(bus, task.id)
    assert (record.status, record.result) == ("completed", "first way")
