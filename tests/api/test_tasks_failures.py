"""Failures: attempts, timeouts, validation, restarts, and damaged steps."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.errors import StepFailed, TaskFailed
from tests.api.helpers import soon
from tests.api.task_workers import Calls, comes_to, kinds_of, step_comes_to, step_of, task_of, work_off, working
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def test_a_step_that_raises_is_retried_with_exponential_backoff(bus: Bus, clock: FakeClock) -> None:
    made: list[int] = []

    @agentbus.workflow("flaky")
    async def flaky(task: Task) -> str:
        def work() -> str:
            made.append(task.attempt)
            if task.attempt < 4:
                raise ValueError(f"no {task.attempt}")
            return "done"

        return await task.step("work", work, retries=3, backoff=1)

    task = await bus.tasks.start(flaky)
    async with working(bus, flaky):
        for attempts, seconds in ((1, 1), (2, 2), (3, 4)):
            step = await step_comes_to(bus, clock, task.id, "work", "retrying", attempts)
            assert step.failures == attempts
            assert step.error is not None
            assert (step.error.type, step.error.message) == ("ValueError", f"no {attempts}")
            assert any("in work" in place for place in step.error.traceback)
            await clock.pass_time(seconds - 0.1)
            assert len(made) == attempts
            await clock.pass_time(0.1)
        await comes_to(bus, clock, task.id, "completed")
    step = await step_of(bus, task.id, "work")
    assert (step.status, step.attempt, step.failures, step.result) == ("finished", 4, 3, "done")


async def test_attempts_are_durable_across_workers(engine: Engine, clock: FakeClock) -> None:
    made: list[int] = []

    @agentbus.workflow("flaky")
    async def flaky(task: Task) -> None:
        def work() -> None:
            made.append(task.attempt)
            raise ValueError("no")

        await task.step("work", work, retries=2, backoff=60)

    async with engine.connect() as bus:
        task = await bus.tasks.start(flaky)
        await work_off(bus, flaky)
        record = await task_of(bus, task.id)
        assert (record.status, record.waits) == ("pending", ["retry:work"])
        await work_off(bus, flaky)
        assert made == [1]
    clock.advance(60)
    async with engine.connect() as bus:
        await work_off(bus, flaky)
        assert made == [1, 2]
        clock.advance(120)
        await work_off(bus, flaky)
        assert made == [1, 2, 3]
        assert (await task_of(bus, task.id)).status == "failed"


@pytest.mark.one_engine
async def test_a_step_that_takes_too_long_is_cancelled_and_fails(bus: Bus, clock: FakeClock) -> None:
    begun = asyncio.Event()
    ended: list[str] = []

    @agentbus.workflow("slow")
    async def slow(task: Task) -> str:
        async def work() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("cancelled")

        try:
            await task.step("work", work, timeout=30)
        except StepFailed as error:
            return f"{error.type}: {error.message}"
        return "?"

    task = await bus.tasks.start(slow)
    async with working(bus, slow):
        await soon(begun.wait())
        await clock.pass_time(29)
        assert ended == []
        await clock.pass_time(1)
        record = await comes_to(bus, clock, task.id, "completed")
    assert ended == ["cancelled"]
    assert record.result.startswith("TimeoutError: ")
    assert "30 s" in record.result


@pytest.mark.one_engine
@each("how", ["says no", "raises"])
async def test_an_invalid_result_is_a_failure_and_the_details_of_a_valid_one_are_stored(
    how: str, bus: Bus, clock: FakeClock
) -> None:
    results = iter(["bad", "good"])

    def validate(result: str) -> Any:
        if result == "bad" and how == "raises":
            raise ValueError("it is bad")
        return False if result == "bad" else {"score": 1}

    @agentbus.workflow("checked")
    async def checked(task: Task) -> str:
        return await task.step("work", lambda: next(results), retries=1, backoff=0, validate=validate)

    task = await bus.tasks.start(checked)
    await work_off(bus, checked)
    step = await step_of(bus, task.id, "work")
    assert (step.status, step.result, step.validation, step.failures) == ("finished", "good", {"score": 1}, 1)


@pytest.mark.one_engine
@each("value", [float("nan"), {1: 2}, object(), "x" * 2_000_000], ids=["nan", "keys", "object", "large"])
async def test_a_result_that_the_bus_does_not_take_fails_the_step(value: Any, bus: Bus) -> None:
    @agentbus.workflow("odd")
    async def odd(task: Task) -> None:
        await task.step("work", lambda: value)

    task = await bus.tasks.start(odd)
    await work_off(bus, odd)
    error = (await step_of(bus, task.id, "work")).error
    assert error is not None
    assert error.type in {"InvalidPayload", "PayloadTooLarge"}


@pytest.mark.one_engine
async def test_a_result_that_is_not_what_the_step_says_fails_it(bus: Bus) -> None:
    def liar() -> int:
        return "text"  # type: ignore[return-value]

    @agentbus.workflow("liar")
    async def lying(task: Task) -> None:
        await task.step("work", liar)

    task = await bus.tasks.start(lying)
    await work_off(bus, lying)
    error = (await step_of(bus, task.id, "work")).error
    assert error is not None
    assert error.type == "PayloadMismatch"


async def test_a_workflow_finds_the_same_failure_whenever_it_comes_back(bus: Bus) -> None:
    seen: list[tuple[str, str]] = []

    @agentbus.workflow("caught")
    async def caught(task: Task) -> None:
        def work() -> None:
            raise KeyError("lost")

        try:
            await task.step("work", work)
        except StepFailed as error:
            seen.append((error.type, error.message))
        await task.approval("go")

    task = await bus.tasks.start(caught)
    await work_off(bus, caught)
    await bus.tasks.approve(task.id, by="ada")
    await work_off(bus, caught)
    assert seen == [("KeyError", "'lost'")] * 2
    assert (await task_of(bus, task.id)).status == "completed"


async def test_a_failed_task_has_its_reason_and_resuming_repeats_only_the_failed_step(bus: Bus) -> None:
    calls = Calls()
    broken = True

    @agentbus.workflow("broken")
    async def workflow(task: Task) -> str:
        await task.step("first", calls, "first")

        async def second() -> str:
            await calls("second")
            if broken:
                raise RuntimeError("the disk is full")
            return "fine"

        return await task.step("second", second)

    task = await bus.tasks.start(workflow)
    await work_off(bus, workflow)
    record = await task_of(bus, task.id)
    assert record.status == "failed"
    assert record.error is not None
    assert (record.error.type, record.error.step) == ("StepFailed", "second")
    assert "bus.tasks" not in record.error.message, "its reader may be at a terminal"
    assert "the disk is full" in record.error.message
    assert [one.id for one in await bus.tasks.resumable()] == [task.id]
    with pytest.raises(TaskFailed, match="disk is full"):
        await bus.tasks.result(task.id)
    broken = False
    await bus.tasks.resume(task.id, by="ada")
    await work_off(bus, workflow)
    assert (await task_of(bus, task.id)).result == "fine"
    assert calls.made == ["first", "second", "second"]
    history = [(one.key, one.status, one.superseded) for one in await bus.tasks.steps(task.id, history=True)]
    assert history == [("first", "finished", 0), ("second", "failed", 1), ("second", "finished", 0)]
    assert await bus.tasks.resumable() == []


async def test_a_task_is_restarted_by_itself_as_often_as_its_policy_says(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()

    @agentbus.workflow("policy")
    async def policy(task: Task) -> None:
        await task.step("first", calls, "first")
        await calls("between")
        raise RuntimeError("never")

    task = await bus.tasks.start(policy, restarts=2, backoff=10)
    await work_off(bus, policy)
    record = await task_of(bus, task.id)
    assert (record.status, record.restarted) == ("pending", 1)
    assert record.error is not None
    await work_off(bus, policy)
    assert calls.made == ["first", "between"]
    clock.advance(10)
    await work_off(bus, policy)
    assert (await task_of(bus, task.id)).restarted == 2
    clock.advance(19)
    await work_off(bus, policy)
    assert calls.made.count("between") == 2
    clock.advance(1)
    await work_off(bus, policy)
    record = await task_of(bus, task.id)
    assert (record.status, record.restarted) == ("failed", 2)
    assert calls.made == ["first", "between", "between", "between"]
    assert (await kinds_of(bus, task.id)).count("task_pending") == 2


@pytest.mark.one_engine
async def test_of_several_simultaneous_failures_the_first_is_reported(bus: Bus) -> None:
    @agentbus.workflow("group")
    async def group(task: Task) -> None:
        async def work(name: str) -> None:
            raise ValueError(name)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: task.step("a", work, "a"))
            tasks.start_soon(lambda: task.step("b", work, "b"))

    task = await bus.tasks.start(group)
    await work_off(bus, group)
    record = await task_of(bus, task.id)
    assert record.error is not None
    assert (record.error.type, record.error.step) == ("StepFailed", "a")


async def test_damaged_steps_are_noticed(bus: Bus) -> None:
    @agentbus.workflow("nothing")
    async def nothing(task: Task, n: int) -> None:
        await task.step("work", lambda: n)

    # By its name, while no worker announces what it takes.
    task = await bus.tasks.start("nothing", "text")
    await work_off(bus, nothing)
    record = await task_of(bus, task.id)
    assert record.error is not None
    assert record.error.type == "WrongArguments"
    await soon(bus.tasks.stop(task.id)) if record.status == "pending" else None
