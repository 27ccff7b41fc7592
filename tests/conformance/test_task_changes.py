"""Workflows that have changed since a task of theirs was begun: what no longer fits is named."""

from __future__ import annotations

from typing import Any

import agentbus
from agentbus import Bus, Task
from agentbus.errors import StepFailed
from tests.conformance.at_work import (
    Calls,
    statuses,
    task_of,
    work_off,
)


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
    assert "step 'plan' was done where the workflow now comes to step 'design'" in message
    assert calls.made == []


async def test_a_step_that_the_workflow_ends_without_is_named(bus: Bus) -> None:
    @agentbus.workflow("changing")
    async def shorter(task: Task) -> None:
        await task.step("plan", lambda text: text, "x")
        await task.approval("go")

    _, message = await change(bus, original, shorter)
    assert "step 'build' was done, and the workflow ends without coming to it" in message


async def test_a_step_that_is_asked_for_with_other_arguments_is_named_and_can_be_redone(bus: Bus) -> None:
    calls = Calls()

    @agentbus.workflow("changing")
    async def other(task: Task) -> None:
        await task.step("plan", calls, "y")
        await task.step("build", lambda: 1)

    task, message = await change(bus, original, other)
    assert "step 'plan' was done with other arguments" in message
    assert "random or read from a clock" in message
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


async def test_what_follows_a_failed_step_that_succeeds_now_may_be_another_way(bus: Bus) -> None:
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
