"""The overview names what failed and what waits for a person."""

from __future__ import annotations

import agentbus
from agentbus import Bus, Task
from agentbus.api.overview import MAX_NAMED, CapacityLimits, gather_overview
from agentbus.api.tasks.worker import announce
from tests.api.interrupted_sessions import interrupted
from tests.api.task_workers import work_off
from tests.conftest import Engine
from tests.support.clock import START, FakeClock


@agentbus.workflow("part")
async def part(task: Task, number: int) -> None:
    raise ValueError(number)


@agentbus.workflow("whole")
async def whole(task: Task, count: int) -> None:
    for number in range(count):
        child = await task.start(part, number, name=f"part-{number}")
        try:
            await child
        except agentbus.errors.TaskFailed:
            continue
    raise RuntimeError("none of its parts works")


async def test_a_failed_task_is_named_however_many_of_its_sub_tasks_failed(bus: Bus) -> None:
    await bus.tasks.start(whole, MAX_NAMED + 2, id="whole-1")
    await work_off(bus, whole, part)
    found = await gather_overview(bus, None, CapacityLimits())
    assert [(one.kind, one.name) for one in found.failed] == [("task", "whole-1")]


async def test_a_workflow_without_a_worker_is_named_however_many_newer_tasks_wait(bus: Bus, clock: FakeClock) -> None:
    await bus.tasks.start("forgotten", id="old-1")
    await bus.tasks.start("later", id="later-1", delay=3600)
    await bus.tasks.add("fix", id="item-1")
    clock.advance(60)
    for number in range(MAX_NAMED + 2):
        await bus.tasks.start("part", number, id=f"new-{number}")
    async with bus.agent("w", type="worker") as worker, announce(worker, [part]):
        clock.advance(60)
        await bus.tasks.start("other", id="newest")
        found = (await gather_overview(bus, None, CapacityLimits())).waiting
        assert [(one.kind, one.name, one.since) for one in found] == [
            ("workflow", "forgotten", START), ("workflow", "other", START + 120_000)
        ]  # fmt: skip


async def test_an_interrupted_session_is_named_however_many_newer_ones_are_active(bus: Bus, engine: Engine) -> None:
    await interrupted(engine, "early")
    for number in range(MAX_NAMED):
        await bus.sessions.start("planning", id=f"new-{number}")
    found = await gather_overview(bus, None, CapacityLimits())
    assert [(one.kind, one.name) for one in found.waiting] == [("session", "early")]
    assert len(found.sessions) == MAX_NAMED
