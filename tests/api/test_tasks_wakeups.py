"""Lost notifications: a worker sees control actions on its tasks within a second."""

from __future__ import annotations

import asyncio

import agentbus
from agentbus import Bus, Task
from tests.api.helpers import eventually, soon
from tests.api.task_workers import Calls, comes_to, step_comes_to, task_of, working
from tests.conftest import Engine
from tests.support.clock import FakeClock


async def test_control_is_seen_within_a_second_without_a_notification(engine: Engine, clock: FakeClock) -> None:
    gone: list[str] = []
    begun = asyncio.Event()

    @agentbus.workflow("long")
    async def long(task: Task) -> None:
        async def work() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                gone.append("work")

        await task.step("work", work)

    async with engine.connect() as bus:
        task = await bus.tasks.start(long)
        async with working(bus, long):
            await soon(begun.wait())
            await clock.settle()
            # No process knows the listeners any more.
            assert await engine.tamper("DELETE FROM listeners")
            async with engine.connect() as other:
                await other.tasks.stop(task.id)
                await clock.pass_time(0.5)
                assert gone == [], "a doorbell rang"
                await clock.pass_time(0.5)
                await eventually(clock, lambda: bool(gone))
        assert (await task_of(bus, task.id)).status == "stopped"


async def test_the_event_a_branch_waits_for_is_seen_within_a_second_too(engine: Engine, clock: FakeClock) -> None:
    calls = Calls()
    gate = calls.gate("work")

    @agentbus.workflow("both")
    async def both(task: Task) -> bool:
        async with asyncio.TaskGroup() as group:
            group.create_task(task.step("work", calls, "work"))
            verdict = await task.approval("plan")
            await task.step("after", calls, "after")
        return verdict.approved

    async with engine.connect() as bus:
        task = await bus.tasks.start(both)
        async with working(bus, both):
            await soon(calls.begun["work"].wait())
            await _is_asked(bus, clock, task.id)
            assert await engine.tamper("DELETE FROM listeners")
            async with engine.connect() as other:
                await other.tasks.approve(task.id, by="ada")
                await clock.pass_time(1)
                await step_comes_to(bus, clock, task.id, "after", "finished")
            gate.set()
            assert (await comes_to(bus, clock, task.id, "completed")).result is True


async def _is_asked(bus: Bus, clock: FakeClock, task: str) -> None:
    for _ in range(100):
        await clock.settle()
        if await bus.tasks.approvals(task):
            return
    raise AssertionError("no person is asked")
