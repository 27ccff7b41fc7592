"""Workers that die or lose their lease: a task that loses too many without progress fails by name."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.api.tasks.workflow import Workflow
from agentbus.errors import InvalidInput, TaskFailed
from agentbus.operations.protocol import Actor
from agentbus.operations.tasks import ClaimTasksRequest, claim_tasks
from tests.api.helpers import soon
from tests.api.other_processes import ABSENT_PID, resident, stranger
from tests.api.task_workers import Calls, comes_to, statuses, step_of, task_of, work_off, working
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


def two(calls: Calls) -> Workflow[[], str]:
    @agentbus.workflow("two")
    async def workflow(task: Task) -> str:
        await task.step("first", calls, "first")
        steps = (task.step("concurrent", calls, "concurrent"), task.step("second", calls, "second", "done"))
        return str((await asyncio.gather(*steps))[1])

    return workflow


async def lose(bus: Bus, clock: FakeClock, workflow: Workflow[..., Any], calls: Calls, *gates: str) -> None:
    """A worker takes what there is, comes to these steps, and hangs for longer than its lease."""
    for gate in gates:
        calls.gate(gate)
    async with working(bus, workflow, lease=30):
        for gate in gates:
            await soon(calls.begun[gate].wait())
        clock.stall(31)
        await bus.tasks.run_worker(other, until_idle=True)


@agentbus.workflow("other")
async def other(task: Task) -> None:
    """For a worker that only looks after the tasks of others."""


async def test_a_task_that_loses_five_workers_in_a_row_fails_and_names_the_step(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    workflow = two(calls)
    task = (await bus.tasks.start(workflow, restarts=3)).id
    for losses in range(1, 5):
        await lose(bus, clock, workflow, calls, "concurrent", "second")
        record = await task_of(bus, task)
        assert (record.status, record.losses, record.max_losses) == ("pending", losses, 5)
    await lose(bus, clock, workflow, calls, "concurrent", "second")
    record = await task_of(bus, task)
    assert (record.status, record.restarted) == ("failed", 0), "a restart would take more workers down"
    assert record.error is not None
    assert (record.error.type, record.error.step, record.error.others) == ("WorkersLost", "concurrent", ["second"])
    assert "5 workers in a row died or lost their lease" in record.error.message
    assert "at step concurrent, second" in record.error.message
    assert calls.made.count("first") == 1
    (event,) = [event async for event in bus.events(kind="task_failed")]
    assert (event.facts["losses"], event.facts["reason"]) == (5, "its lease ran out")
    with pytest.raises(TaskFailed, match="WorkersLost"):
        await bus.tasks.result(task)
    # Resumed, it starts counting at 0, and continues after what is finished.
    calls.gates.clear()
    record = await bus.tasks.resume(task)
    assert (record.status, record.losses, record.error) == ("pending", 0, None)
    assert await statuses(bus, task) == {"first": "finished", "concurrent": "interrupted", "second": "interrupted"}
    await work_off(bus, workflow)
    assert (await task_of(bus, task)).result == "done"
    assert calls.made.count("first") == 1
    assert (await step_of(bus, task, "second")).attempt > 5


async def test_a_finished_step_resets_the_count_of_lost_workers(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()

    @agentbus.workflow("long")
    async def long(task: Task) -> str:
        for number in range(4):
            await task.step(f"s{number}", calls, f"s{number}")
        return "done"

    task = (await bus.tasks.start(long, max_losses=2)).id
    for number in range(4):
        await lose(bus, clock, long, calls, f"s{number}")
        calls.gates.clear()
        assert (await task_of(bus, task)).losses == 1
    await work_off(bus, long)
    record = await task_of(bus, task)
    assert (record.status, record.losses) == ("completed", 0)


@each("how", ["let go", "halted", "reboot"])
async def test_a_worker_that_leaves_in_order_and_a_reboot_do_not_count(
    how: str, engine: Engine, clock: FakeClock
) -> None:
    calls = Calls()
    calls.gate("second")
    workflow = two(calls)
    async with engine.connect() as bus:
        task = (await bus.tasks.start(workflow, max_losses=1)).id
        async with working(bus, workflow, agent="w-1", lease=30):
            await soon(calls.begun["second"].wait())
            if how == "halted":
                await bus.tasks.halt(task)
                clock.stall(31)
                await bus.tasks.run_worker(other, until_idle=True)
            elif how == "reboot":
                reborn = FakeClock(wall=clock.now().wall, awake=1000, boot="boot-2")
                async with engine.connect(clock=reborn) as after:
                    assert (await task_of(after, task)).status == "pending"
        record = await task_of(bus, task)
        assert record.status == ("halted" if how == "halted" else "pending")
        if how != "halted":
            assert record.losses == 0
        else:
            assert (await bus.tasks.continue_(task)).losses == 0


async def claimed_by_the_dead(bus: Bus, workflow: str, lease: int) -> list[str]:
    """A worker, in a process that is not there any more, has claimed a task."""
    process = await stranger(bus, pid=ABSENT_PID, started="77")
    life = await resident(bus, "w-1", process)
    request = ClaimTasksRequest(Actor("w-1", life.epoch), (workflow,), 1, lease)
    return [one.id for one in (await bus._engine.write(claim_tasks, request)).tasks]


@pytest.mark.parametrize("how", ["its process died", "it was taken over"])
async def test_a_worker_whose_process_died_counts(how: str, engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus:
        task = (await bus.tasks.start("two", max_losses=1)).id
        assert await claimed_by_the_dead(bus, "two", 60_000) == [task]
        if how == "its process died":
            async with engine.connect() as after:
                record = await task_of(after, task)
        else:
            async with bus.agent("w-1", type="worker", takeover=True):
                record = await task_of(bus, task)
        assert record.status == "failed"
        assert record.error is not None
        assert "between two steps" in record.error.message


async def test_a_parent_gets_the_error_of_a_sub_task_that_lost_its_workers(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    child = two(calls)

    @agentbus.workflow("parent")
    async def parent(task: Task) -> str:
        try:
            started = await task.start(child, max_losses=1)
            return await started
        except TaskFailed as error:
            return str(error.message)

    task = (await bus.tasks.start(parent)).id
    await work_off(bus, parent)
    await lose(bus, clock, child, calls, "second")
    await work_off(bus, parent)
    result = (await task_of(bus, task)).result
    assert "WorkersLost: 1 worker died or lost its lease while running task" in result


async def test_the_bound_can_be_edited_and_is_checked(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    workflow = two(calls)
    task = (await bus.tasks.start(workflow, max_losses=1)).id
    for bad in (0, 1001, "3"):
        with pytest.raises(InvalidInput):
            await bus.tasks.start(workflow, max_losses=bad)  # type: ignore[call-arg, arg-type]
        with pytest.raises(InvalidInput):
            await bus.tasks.edit(task, max_losses=bad)  # type: ignore[arg-type]
    assert (await bus.tasks.edit(task, max_losses=2)).max_losses == 2
    await lose(bus, clock, workflow, calls, "second")
    assert (await task_of(bus, task)).losses == 1


# Tasks that lost a worker run alone


def named(calls: Calls) -> Workflow[[str], None]:
    @agentbus.workflow("named")
    async def workflow(task: Task, name: str) -> None:
        await task.step("one", calls, f"{name}.1")
        await task.step("two", calls, f"{name}.2")

    return workflow


async def at_work(bus: Bus, clock: FakeClock, *expected: str) -> None:
    """These tasks come to run, and no others run concurrently."""
    with anyio.fail_after(60):
        while not set(expected) <= (found := await _running(bus)):
            assert found <= set(expected)
            await clock.settle()
    await clock.settle()
    assert await _running(bus) == set(expected)


async def _running(bus: Bus) -> set[str]:
    return {task.id for task in (await bus.tasks.list(status="running")).items}


async def test_tasks_that_lost_a_worker_run_alone_and_in_their_turn(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    workflow = named(calls)
    for name in ("a", "b"):
        await bus.tasks.start(workflow, name, id=name)
    # The first loss may be that of a worker which was killed: both are claimed together once more.
    for losses in (1, 2):
        await lose(bus, clock, workflow, calls, "a.1", "b.1")
        assert [(await task_of(bus, name)).losses for name in ("a", "b")] == [losses, losses]
    for name in ("c", "d"):
        await bus.tasks.start(workflow, name, id=name)
    gates = {name: calls.gate(name) for name in ("a.1", "a.2", "b.1", "b.2", "c.1", "d.1")}
    async with working(bus, workflow, concurrency=4, lease=3600):
        await soon(calls.begun["a.1"].wait())
        await clock.pass_time(5)
        await at_work(bus, clock, "a")
        gates["a.1"].set()
        # A step has finished: others may run too, but not the next one that lost a worker, nor those behind it.
        await soon(calls.begun["a.2"].wait())
        assert (await task_of(bus, "a")).losses == 0
        await clock.pass_time(5)
        await at_work(bus, clock, "a")
        gates["a.2"].set()
        await soon(calls.begun["b.1"].wait())
        await clock.pass_time(5)
        await at_work(bus, clock, "b")
        gates["b.1"].set()
        await soon(asyncio.gather(*(calls.begun[name].wait() for name in ("b.2", "c.1", "d.1"))))
        await at_work(bus, clock, "b", "c", "d")
        for gate in gates.values():
            gate.set()
        for name in ("a", "b", "c", "d"):
            assert (await comes_to(bus, clock, name, "completed")).losses == 0


@pytest.mark.parametrize("how", ["it becomes idle", "another worker is idle"])
async def test_a_busy_worker_leaves_a_task_that_lost_one_and_does_not_starve_it(
    how: str, engine: Engine, clock: FakeClock
) -> None:
    calls = Calls()
    workflow = named(calls)
    async with engine.connect() as bus, engine.connect() as second:
        await bus.tasks.start(workflow, "a", id="a")
        await lose(bus, clock, workflow, calls, "a.1")
        gates = {name: calls.gate(name) for name in ("a.1", "b.1", "c.1", "d.1")}
        await claimed_by_the_dead(bus, "named", 10_000)
        await bus.tasks.start(workflow, "b", id="b")
        async with working(bus, workflow, concurrency=4, lease=3600):
            await soon(calls.begun["b.1"].wait())
            await bus.tasks.start(workflow, "c", id="c")
            await soon(calls.begun["c.1"].wait())
            await clock.pass_time(11)
            await bus.tasks.start(workflow, "d", id="d")
            await clock.pass_time(5)
            await at_work(bus, clock, "b", "c")
            assert (await task_of(bus, "a")).losses == 2
            if how == "it becomes idle":
                gates["b.1"].set()
                await comes_to(bus, clock, "b", "completed")
                await at_work(bus, clock, "c")
                gates["c.1"].set()
                await soon(calls.begun["a.1"].wait())
                await at_work(bus, clock, "a")
                gates["a.1"].set()
                await soon(calls.begun["d.1"].wait())
            else:
                async with working(second, workflow, concurrency=4, lease=3600):
                    await soon(calls.begun["a.1"].wait())
                    await clock.pass_time(2)
                    await at_work(bus, clock, "a", "b", "c", "d")
                    holders = {id: (await task_of(bus, id)).holder for id in ("a", "b", "d")}
                    assert holders["d"] == holders["b"] != holders["a"], "only one runs alone"
                    gates["a.1"].set()
                    await comes_to(bus, clock, "a", "completed")
            for gate in gates.values():
                gate.set()
            for name in ("a", "b", "c", "d"):
                assert (await comes_to(bus, clock, name, "completed")).losses == 0


# Clocks that jump


@each("jump", [3600, -3600])
async def test_a_wall_clock_jump_does_not_affect_a_task(jump: float, engine: Engine, clock: FakeClock) -> None:
    calls = Calls()
    gate = calls.gate("second")
    workflow = two(calls)
    async with engine.connect() as bus, engine.connect() as second:
        task = (await bus.tasks.start(workflow, max_losses=1)).id
        async with working(bus, workflow, lease=6), working(second, workflow, lease=6):
            await soon(calls.begun["second"].wait())
            for _ in range(3):
                clock.jump(jump)
                await clock.pass_time(8)
            gate.set()
            record = await comes_to(bus, clock, task, "completed")
        assert (record.losses, calls.made.count("second")) == (0, 1)


@each("jump", [3600, -3600])
@each("backoff", [1.0, 20.0])
async def test_a_retry_comes_though_the_wall_clock_jumps(
    backoff: float, jump: float, bus: Bus, clock: FakeClock
) -> None:
    tries = 0

    @agentbus.workflow("flaky")
    async def flaky(task: Task) -> int:
        def work() -> int:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise ConnectionError("not yet")
            return tries

        return await task.step("work", work, retries=1, backoff=backoff)

    task = (await bus.tasks.start(flaky)).id
    async with working(bus, flaky):
        with anyio.fail_after(60):
            while tries < 1:
                await clock.settle()
        await clock.settle()
        clock.jump(jump)
        await clock.pass_time(backoff + 15)
        record = await task_of(bus, task)
        assert (record.status, tries) == ("completed", 2)
