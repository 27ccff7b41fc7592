"""Durable tasks: steps run once and are stored, typed, numbered, with their effects on the bus."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.errors import Misuse, TaskTimedOut, UnknownTask
from tests.api.helpers import queued, soon
from tests.api.task_workers import Calls, kinds_of, statuses, step_of, task_of, work_off, working
from tests.api.workflows import Plan, Report, feature
from tests.conftest import Engine
from tests.support.clock import FakeClock


async def test_a_task_is_done_by_a_worker_and_its_result_is_kept(bus: Bus) -> None:
    started = await bus.tasks.start(feature, "Add login", name="Login", context={"issue": 7})
    assert (started.status, started.name, started.arguments) == ("pending", "Login", ["Add login"])
    await work_off(bus, feature)
    record = await task_of(bus, started.id)
    assert (record.status, record.progress, record.holder, record.error) == ("completed", 100, None, None)
    assert record.result == {"plan": {"files": 9, "parts": ["design", "build"]}, "done": True}
    assert await bus.tasks.result(started.id, as_=Report) == Report(Plan(9, ("design", "build")))
    assert await kinds_of(bus, started.id) == ["task_started", "task_running", "task_completed"]


async def test_waiting_for_a_task_ends_with_it_also_in_another_process(engine: Engine) -> None:
    async with engine.connect() as one, engine.connect() as other:
        task = await one.tasks.start(feature, "x")
        assert await one.tasks.wait(task.id, timeout=0) is None
        async with working(other, feature):
            record = await soon(one.tasks.wait(task.id))
        assert record is not None
        assert record.status == "completed"
        with pytest.raises(UnknownTask):
            await one.tasks.wait("nobody")
        with pytest.raises(TaskTimedOut):
            await one.tasks.result((await one.tasks.start(feature, "y")).id, timeout=0)


async def test_a_step_gives_the_same_now_and_when_it_is_read_again(bus: Bus, clock: FakeClock) -> None:
    seen: list[Any] = []

    def pair() -> tuple[int, Plan]:
        return 1, Plan(3)

    def untyped():  # type: ignore[no-untyped-def]
        return (1, 2), {"a": Plan(1)}

    @agentbus.workflow("typed")
    async def typed(task: Task) -> None:
        first = [
            await task.step("pair", pair),
            await task.step("untyped", untyped),
            await task.step("returns", untyped, returns=tuple[tuple[int, int], dict[str, Plan]]),
        ]
        seen.append(first)
        await task.approval("go")

    task = await bus.tasks.start(typed)
    await work_off(bus, typed)
    await bus.tasks.approve(task.id, by="ada")
    await work_off(bus, typed)
    assert len(seen) == 2
    assert seen[0] == seen[1] == [(1, Plan(3)), [[1, 2], {"a": {"files": 1, "parts": []}}], ((1, 2), {"a": Plan(1)})]


async def test_a_finished_step_is_never_executed_again(bus: Bus) -> None:
    calls = Calls()

    @agentbus.workflow("two")
    async def two(task: Task) -> int:
        a: int = await task.step("a", calls, "a", 1)
        await task.approval("go")
        b: int = await task.step("b", calls, "b", 2)
        return a + b

    task = await bus.tasks.start(two)
    await work_off(bus, two)
    assert calls.made == ["a"]
    await bus.tasks.approve(task.id, by="ada")
    await work_off(bus, two)
    assert calls.made == ["a", "b"]
    assert (await task_of(bus, task.id)).result == 3


@pytest.mark.one_engine
async def test_the_same_name_again_gets_a_number(bus: Bus) -> None:
    @agentbus.workflow("loop")
    async def loop(task: Task) -> list[int]:
        return [await task.step("count", lambda n: n, n) for n in range(3)]

    task = await bus.tasks.start(loop)
    await work_off(bus, loop)
    assert await statuses(bus, task.id) == {"count": "finished", "count#2": "finished", "count#3": "finished"}
    assert (await task_of(bus, task.id)).result == [0, 1, 2]


@pytest.mark.one_engine
async def test_steps_run_in_parallel_in_a_task_group(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    gates = [calls.gate(name) for name in "abc"]

    @agentbus.workflow("parallel")
    async def parallel(task: Task) -> list[str]:
        done: dict[str, str] = {}

        async def one(name: str) -> None:
            done[name] = await task.step(name, calls, name, name.upper())

        async with anyio.create_task_group() as group:
            for name in "abc":
                group.start_soon(one, name)
        return [done[name] for name in "abc"]

    task = await bus.tasks.start(parallel)
    async with working(bus, parallel):
        for name in "abc":
            await soon(calls.begun[name].wait())
        assert await statuses(bus, task.id) == dict.fromkeys("abc", "running")
        for gate in gates:
            gate.set()
        record = await soon(bus.tasks.wait(task.id))
    assert record is not None
    assert record.result == ["A", "B", "C"]


async def test_the_unit_of_a_step_is_committed_with_its_result(bus: Bus) -> None:
    await bus.expect("reviewer", type="reviewer")

    @agentbus.workflow("unit")
    async def unit(task: Task) -> None:
        async def work(fail: bool) -> str:
            task.unit.send("reviewer", "note", {"fail": fail})
            task.unit.state_of("builds").increment("count")
            if fail:
                raise ValueError("no")
            return "done"

        await task.step("good", work, False)
        await task.step("bad", work, True)

    task = await bus.tasks.start(unit)
    await work_off(bus, unit)
    assert (await task_of(bus, task.id)).status == "failed"
    assert await queued(bus, "reviewer") == [{"fail": False}]
    assert await bus.state("builds").get("count") == 1


async def test_a_unit_that_the_bus_refuses_fails_the_step(bus: Bus) -> None:
    @agentbus.workflow("lost")
    async def lost(task: Task) -> None:
        async def work() -> None:
            task.unit.send("nobody", "note", 1)

        await task.step("send", work)

    task = await bus.tasks.start(lost)
    await work_off(bus, lost)
    step = await step_of(bus, task.id, "send")
    assert step.status == "failed"
    assert step.error is not None
    assert step.error.type == "UnknownRecipient"


@pytest.mark.one_engine
async def test_a_unit_outside_of_a_step_is_misuse(bus: Bus) -> None:
    @agentbus.workflow("outside")
    async def outside(task: Task) -> None:
        with pytest.raises(Misuse):
            _ = task.unit
        with pytest.raises(Misuse):
            _ = task.note

    task = await bus.tasks.start(outside)
    await work_off(bus, outside)
    assert (await task_of(bus, task.id)).status == "completed"
