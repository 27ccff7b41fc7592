"""Sub-tasks: started as steps of their parent, awaited without a worker, controlled with it."""

from __future__ import annotations

import msgspec
import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.errors import TaskFailed
from tests.api.helpers import soon
from tests.api.task_workers import Calls, comes_to, statuses, step_of, task_of, work_off, working
from tests.support.clock import FakeClock


class Part(msgspec.Struct):
    name: str
    size: int


@agentbus.workflow("build")
async def build(task: Task, name: str) -> Part:
    size: int = await task.step("measure", len, name, returns=int)
    if name == "bad":
        raise ValueError("cannot be built")
    if name == "asked":
        await task.approval("go")
    return Part(name, size)


@agentbus.workflow("whole")
async def whole(task: Task, names: list[str]) -> list[Part]:
    children = [await task.start(build, name) for name in names]
    return [await child for child in children]


async def test_a_task_starts_others_and_awaits_them_typed(bus: Bus) -> None:
    task = (await bus.tasks.start(whole, ["a", "bcd"])).id
    await work_off(bus, whole, build)
    record = await task_of(bus, task)
    assert record.result == [{"name": "a", "size": 1}, {"name": "bcd", "size": 3}]
    children = (await bus.tasks.list(parent=task)).items
    assert sorted(child.id for child in children) == [f"{task}/1", f"{task}/2"]
    assert {child.status for child in children} == {"completed"}
    steps = [(step.key, step.kind, step.status, step.child) for step in await bus.tasks.steps(task)]
    assert steps == [("build", "task", "finished", f"{task}/1"), ("build#2", "task", "finished", f"{task}/2")]


async def test_a_waiting_parent_needs_no_worker_and_a_concurrency_of_one_is_enough(bus: Bus) -> None:
    task = (await bus.tasks.start(whole, ["a", "b", "c"])).id
    await work_off(bus, whole)
    record = await task_of(bus, task)
    assert (record.status, record.waits) == ("waiting", [f"task:{task}/1"])
    await work_off(bus, build, concurrency=1)
    assert (await task_of(bus, task)).status == "pending"
    await work_off(bus, whole)
    assert (await task_of(bus, task)).status == "completed"


async def test_a_failed_sub_task_raises_and_resuming_starts_it_again(bus: Bus) -> None:
    caught: list[str] = []

    @agentbus.workflow("careful")
    async def careful(task: Task, name: str) -> None:
        child = await task.start(build, name)
        try:
            await child
        except TaskFailed as error:
            caught.append(str(error.message))
            raise

    task = (await bus.tasks.start(careful, "bad")).id
    await work_off(bus, careful, build)
    record = await task_of(bus, task)
    assert record.status == "failed"
    assert record.error is not None
    assert (record.error.type, record.error.step) == ("TaskFailed", "build")
    assert "cannot be built" in caught[0]
    await bus.tasks.resume(task)
    await work_off(bus, careful, build)
    assert sorted(child.id for child in (await bus.tasks.list(parent=task)).items) == [f"{task}/1", f"{task}/2"]
    assert len(caught) == 2


async def test_the_recorded_outcome_of_a_sub_task_does_not_change(bus: Bus) -> None:
    @agentbus.workflow("asks")
    async def asks(task: Task) -> str:
        child = await task.start(build, "bad")
        try:
            await child
        except TaskFailed:
            await task.approval("without")
            return "without it"
        return "with it"

    task = (await bus.tasks.start(asks)).id
    await work_off(bus, asks, build)
    await bus.tasks.restart(f"{task}/1")
    await work_off(bus, asks, build)
    await bus.tasks.approve(task, by="ada")
    await work_off(bus, asks, build)
    assert (await task_of(bus, task)).result == "without it"


async def test_control_of_a_task_is_control_of_its_sub_tasks(bus: Bus, clock: FakeClock) -> None:
    task = (await bus.tasks.start(whole, ["a"])).id
    await work_off(bus, whole)
    child = f"{task}/1"
    await bus.tasks.halt(task)
    assert [(await task_of(bus, one)).status for one in (task, child)] == ["halted", "halted"]
    await work_off(bus, whole, build)
    await bus.tasks.continue_(task)
    assert [(await task_of(bus, one)).status for one in (task, child)] == ["pending", "pending"]
    await bus.tasks.stop(task)
    assert [(await task_of(bus, one)).status for one in (task, child)] == ["stopped", "stopped"]


async def test_a_task_that_is_to_be_halted_starts_no_sub_task(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    gate = calls.gate("plan")

    @agentbus.workflow("planned")
    async def planned(task: Task) -> Part:
        await task.step("plan", calls, "plan")
        return await (await task.start(build, "a"))

    task = (await bus.tasks.start(planned)).id
    async with working(bus, planned, build):
        await soon(calls.begun["plan"].wait())
        await bus.tasks.halt(task)
        gate.set()
        await comes_to(bus, clock, task, "halted")
        assert (await bus.tasks.list(parent=task)).items == []
        await bus.tasks.continue_(task)
        await comes_to(bus, clock, task, "completed")


async def test_a_sub_task_that_is_stopped_ends_the_waiting_of_its_parent(bus: Bus, clock: FakeClock) -> None:
    task = (await bus.tasks.start(whole, ["a"])).id
    async with working(bus, whole):
        await comes_to(bus, clock, task, "waiting")
        await bus.tasks.stop(f"{task}/1")
        record = await comes_to(bus, clock, task, "failed")
    assert record.error is not None
    assert "stopped" in record.error.message


async def test_a_redo_stops_the_sub_tasks_that_it_invalidates_and_starts_new_ones(bus: Bus) -> None:
    task = (await bus.tasks.start(whole, ["asked", "b"])).id
    await work_off(bus, whole, build)
    await bus.tasks.redo(task, "build")
    assert (await task_of(bus, f"{task}/1")).status == "stopped"
    assert (await task_of(bus, f"{task}/2")).status == "completed"
    await work_off(bus, whole, build)
    assert (await statuses(bus, task, "task")) == {"build": "running", "build#2": "running"}
    assert (await step_of(bus, task, "build")).child == f"{task}/3"
    await bus.tasks.approve(f"{task}/3", by="ada")
    await work_off(bus, whole, build)
    assert (await task_of(bus, task)).status == "completed"


async def test_sub_tasks_inherit_auto_and_the_session(bus: Bus) -> None:
    async with bus.session("work", id="s-1"):
        task = (await bus.tasks.start(whole, ["asked"], session="s-1", auto=True)).id
        await work_off(bus, whole, build)
        child = await task_of(bus, f"{task}/1")
        assert (child.auto, child.session, child.parent) == (True, "s-1", task)
        assert (await task_of(bus, task)).status == "completed"


async def test_switching_auto_on_reaches_sub_tasks_with_open_approvals(bus: Bus) -> None:
    task = (await bus.tasks.start(whole, ["asked"])).id
    await work_off(bus, whole, build)
    assert (await task_of(bus, f"{task}/1")).waits == ["approval:go"]
    await bus.tasks.auto(task, True)
    await work_off(bus, whole, build)
    assert (await task_of(bus, task)).status == "completed"


async def test_a_sub_task_is_started_once_however_often_its_parent_is_interrupted(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()

    @agentbus.workflow("nervous")
    async def nervous(task: Task) -> int:
        child = await task.start(build, "abc", name="part")
        await task.step("gate", calls, "gate")
        return (await task.result(child)).size

    calls.gate("gate")
    task = (await bus.tasks.start(nervous)).id
    for _ in range(3):
        calls.gate("gate")
        async with working(bus, nervous):
            await soon(calls.begun["gate"].wait())
    calls.gates.clear()
    await work_off(bus, nervous, build)
    assert (await task_of(bus, task)).result == 3
    assert len((await bus.tasks.list(parent=task)).items) == 1
    assert (await step_of(bus, task, "part")).kind == "task"


async def test_a_workflow_that_only_others_have_can_be_a_sub_task(bus: Bus) -> None:
    @agentbus.workflow("far")
    async def far(task: Task) -> Part:
        child: agentbus.tasks.task.Child[Part] = await task.start("build", "xy", returns=Part)
        part: Part = await child
        return part

    task = (await bus.tasks.start(far)).id
    await work_off(bus, far, build)
    assert await bus.tasks.result(task, as_=Part) == Part("xy", 2)


async def test_the_result_of_a_stopped_sub_task_raises(bus: Bus) -> None:
    task = (await bus.tasks.start(whole, ["a"])).id
    await work_off(bus, whole)
    with pytest.raises(TaskFailed, match="stopped"):
        await bus.tasks.stop(f"{task}/1")
        await bus.tasks.result(f"{task}/1")
