"""Workflows whose branches run side by side: steps that are left behind, given up, or fail together."""

from __future__ import annotations

import asyncio

import agentbus
from agentbus import Bus, Task
from tests.conformance.at_work import Calls, comes_to, statuses, step_of, task_of, work_off
from tests.support.clock import FakeClock


async def test_a_workflow_that_ends_while_a_step_runs_has_failed_and_the_step_is_named(
    bus: Bus, clock: FakeClock
) -> None:
    calls = Calls()
    calls.gate("behind")
    left: list[asyncio.Task[None]] = []

    @agentbus.workflow("hasty")
    async def hasty(task: Task) -> str:
        left.append(asyncio.create_task(task.step("behind", calls, "behind")))
        await calls.begun["behind"].wait()
        return "done"

    task = await bus.tasks.start(hasty, restarts=3)
    await work_off(bus, hasty)
    record = await comes_to(bus, clock, task.id, "failed")
    assert record.error is not None
    assert (record.error.type, record.error.step) == ("StepAbandoned", "behind")
    assert "'behind'" in record.error.message
    assert record.restarted == 0, "it would be the same each time"
    assert await statuses(bus, task.id) == {"behind": "interrupted"}
    await asyncio.wait(left)
    assert left[0].cancelled(), "it does not go on beside the next run"


async def test_a_step_that_the_workflow_gives_up_is_cancelled_when_it_ends(bus: Bus) -> None:
    calls = Calls()
    for name in ("slow", "charge"):
        calls.gate(name)

    @agentbus.workflow("race")
    async def race(task: Task) -> str:
        others = [
            asyncio.create_task(task.step("slow", calls, "slow")),
            asyncio.create_task(task.step("charge", calls, "charge", once=True)),
        ]
        for name in ("slow", "charge"):
            await calls.begun[name].wait()
        for other in others:
            other.cancel()
        return "done"

    task = await bus.tasks.start(race)
    await work_off(bus, race)
    record = await task_of(bus, task.id)
    assert (record.status, record.result) == ("completed", "done")
    assert await statuses(bus, task.id) == {"slow": "cancelled", "charge": "unknown"}
    assert (await step_of(bus, task.id, "slow")).finished is not None
