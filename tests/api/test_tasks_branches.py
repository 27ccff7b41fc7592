"""Workflows with concurrent branches: steps that are abandoned, cancelled, or fail together."""

from __future__ import annotations

import asyncio

import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.api.tasks.workflow import Workflow
from agentbus.errors import StepFailed
from tests.api.helpers import soon
from tests.api.task_workers import Calls, comes_to, statuses, step_of, task_of, work_off, working
from tests.support.cases import each
from tests.support.clock import FakeClock

pytestmark = pytest.mark.one_engine  # how the code of a workflow ends


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
    assert left[0].cancelled(), "it does not continue concurrently with the next run"


async def test_branches_of_a_workflow_end_with_a_cancelled_worker(bus: Bus) -> None:
    calls = Calls()
    calls.gate("concurrent")
    left: list[asyncio.Task[None]] = []

    @agentbus.workflow("branching")
    async def branching(task: Task) -> None:
        left.append(asyncio.create_task(task.step("concurrent", calls, "concurrent")))
        await asyncio.Event().wait()

    await bus.tasks.start(branching)
    async with working(bus, branching):
        await soon(calls.begun["concurrent"].wait())
    await soon(asyncio.wait(left))
    assert left[0].cancelled()


async def test_an_abandoned_step_is_cancelled_when_the_workflow_ends(bus: Bus) -> None:
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


def _together(how: str, calls: Calls, outage: list[bool]) -> Workflow[[], list[str]]:
    """Three steps side by side, which all fail during an outage."""

    @agentbus.workflow("together")
    async def together(task: Task) -> list[str]:
        async def build(name: str) -> str:
            await calls(name)
            await both.wait()
            if outage:
                raise ConnectionError(name)
            return name

        both = asyncio.Barrier(3)
        if how == "gather":
            return list(await asyncio.gather(*(task.step(name, build, name) for name in "abc")))
        if how == "ExceptionGroup":
            steps = (task.step(name, build, name) for name in "abc")
            found = await asyncio.gather(*steps, return_exceptions=True)
            if errors := [one for one in found if isinstance(one, Exception)]:
                raise ExceptionGroup("all of them", errors)
            return [str(one) for one in found]
        async with asyncio.TaskGroup() as group:
            branches = [group.create_task(task.step(name, build, name)) for name in "abc"]
        return [branch.result() for branch in branches]

    return together


@each("how", ["gather", "TaskGroup", "ExceptionGroup"])
async def test_steps_that_failed_together_are_retried_together_by_one_resume(how: str, bus: Bus) -> None:
    calls, outage = Calls(), [True]
    together = _together(how, calls, outage)
    task = await bus.tasks.start(together)
    await work_off(bus, together)
    record = await task_of(bus, task.id)
    assert record.status == "failed"
    assert record.error is not None
    failed = {key for key, status in (await statuses(bus, task.id)).items() if status == "failed"}
    assert {record.error.step, *record.error.others} == failed
    # What fails while the workflow is cancelled may or may not be recorded.
    assert failed == set("abc") or how != "ExceptionGroup"
    outage.clear()
    await bus.tasks.resume(task.id)
    await work_off(bus, together)
    record = await task_of(bus, task.id)
    assert (record.status, record.result, record.error) == ("completed", ["a", "b", "c"], None)
    assert sorted(calls.made) == sorted("abcabc")


@each("how", ["gather", "TaskGroup", "ExceptionGroup"])
async def test_steps_that_failed_together_need_one_restart(how: str, bus: Bus, clock: FakeClock) -> None:
    calls, outage = Calls(), [True]
    together = _together(how, calls, outage)
    task = await bus.tasks.start(together, restarts=1, backoff=60)
    await work_off(bus, together)
    assert (await task_of(bus, task.id)).restarted == 1
    outage.clear()
    clock.advance(60)
    await work_off(bus, together)
    assert (await task_of(bus, task.id)).result == ["a", "b", "c"]


async def test_a_failure_that_the_workflow_handled_is_not_retried(bus: Bus) -> None:
    calls, outage = Calls(), [True]

    @agentbus.workflow("fallback")
    async def fallback(task: Task) -> str:
        async def build(name: str) -> str:
            await calls(name)
            if outage:
                raise ConnectionError(name)
            return name

        try:
            return await task.step("first", build, "first")
        except StepFailed:
            return await task.step("second", build, "second")

    task = await bus.tasks.start(fallback)
    await work_off(bus, fallback)
    record = await task_of(bus, task.id)
    assert record.error is not None
    assert (record.error.step, record.error.others) == ("second", [])
    outage.clear()
    await bus.tasks.resume(task.id)
    await work_off(bus, fallback)
    assert (await task_of(bus, task.id)).result == "second"
    assert calls.made == ["first", "second", "second"]


async def test_a_once_step_that_timed_out_is_not_retried_with_another_step(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    calls.gate("charge")
    gate = calls.gate("build")

    @agentbus.workflow("mixed")
    async def mixed(task: Task) -> None:
        async def build() -> None:
            await calls("build")
            raise ConnectionError("no")

        await asyncio.gather(
            task.step("charge", calls, "charge", once=True, timeout=10),
            task.step("build", build),
            return_exceptions=True,
        )
        raise StepFailed(task=task.id, step="build", failures=1, type="ConnectionError", message="no")

    task = await bus.tasks.start(mixed)
    async with working(bus, mixed):
        await soon(calls.begun["charge"].wait())
        await soon(calls.begun["build"].wait())
        await clock.pass_time(10)
        gate.set()
        record = await comes_to(bus, clock, task.id, "failed")
    assert record.error is not None
    assert (record.error.step, record.error.others) == ("build", [])
    assert await statuses(bus, task.id) == {"charge": "failed", "build": "failed"}
