"""Workers: a task is leased like a message and its holder fenced like an agent; another worker resumes it."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from functools import partial

import anyio
import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.errors import AgentBusError, AgentFenced, InvalidInput, NotAnOperator, StepFailed, UnknownStep, WrongState
from tests.api.helpers import eventually, known, soon
from tests.api.task_workers import Calls, comes_to, kinds_of, statuses, step_of, task_of, work_off, working
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


def three(calls: Calls) -> agentbus.tasks.workflow.Workflow[[], str]:
    @agentbus.workflow("three")
    async def workflow(task: Task) -> str:
        return "".join([await task.step(name, calls, name, name) for name in "abc"])

    return workflow


async def test_a_cancelled_worker_releases_its_tasks_at_once(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    calls.gate("b")
    workflow = three(calls)
    task = (await bus.tasks.start(workflow)).id
    async with working(bus, workflow, agent="w-1"):
        await soon(calls.begun["b"].wait())
        assert (await task_of(bus, task)).holder == "w-1"
    assert (await task_of(bus, task)).status == "pending"
    assert await statuses(bus, task) == {"a": "finished", "b": "interrupted"}
    assert (await known(bus, "w-1")).status == "stopped"
    assert [one.id for one in await bus.tasks.resumable()] == [task]
    calls.gates.clear()
    await work_off(bus, workflow)
    assert calls.made == ["a", "b", "b", "c"]
    assert (await task_of(bus, task)).result == "abc"
    assert (await step_of(bus, task, "b")).attempt == 2


async def test_a_worker_is_an_agent_and_its_tasks_are_freed_in_the_commit_that_fails_it(
    engine: Engine, clock: FakeClock
) -> None:
    calls = Calls()
    gate = calls.gate("b")
    workflow = three(calls)
    async with engine.connect() as bus, engine.connect() as other:
        task = (await bus.tasks.start(workflow)).id
        async with working(bus, workflow, agent="w-1") as worker:
            await soon(calls.begun["b"].wait())
            record = await known(bus, "w-1")
            assert (record.type, record.status) == ("worker", "running")
            async with other.agent("w-1", type="worker", takeover=True):
                record_of_task = await task_of(other, task)
                assert (record_of_task.status, record_of_task.holder) == ("pending", None)
                gate.set()
                with pytest.raises(AgentFenced):
                    await soon(worker)
        assert await statuses(other, task) == {"a": "finished", "b": "interrupted"}
        (event,) = [event async for event in other.events(kind="task_pending")]
        assert (event.facts["holder"], event.facts["reason"]) == ("w-1", "it was taken over")
        await work_off(other, workflow)
        assert (await task_of(other, task)).result == "abc"
        assert calls.made == ["a", "b", "b", "c"]


async def test_a_task_whose_lease_expired_moves_to_another_worker_and_the_first_is_fenced(
    engine: Engine, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    gate = calls.gate("b")
    workflow = three(calls)
    async with engine.connect() as bus, engine.connect() as other:
        task = (await bus.tasks.start(workflow)).id
        async with working(bus, workflow, lease=60, agent="slow") as worker:
            await soon(calls.begun["b"].wait())
            clock.stall(61)
            second = Calls()
            await work_off(other, three(second), agent="quick")
            assert second.made == ["b", "c"]
            before = await other.tasks.steps(task)
            with caplog.at_level(logging.WARNING, logger="agentbus"):
                gate.set()
                await eventually(clock, lambda: "is not held by slow" in caplog.text)
            assert await other.tasks.steps(task) == before
            assert (await task_of(other, task)).result == "abc"
            assert calls.made == ["a", "b"]
            assert f"task {task!r} is not held by slow under lease 1" in caplog.text
            # It continues with other tasks.
            assert not worker.done()
            again = (await bus.tasks.start(workflow)).id
            await soon(bus.tasks.wait(again))


async def test_leases_are_renewed_for_as_long_as_a_step_takes(engine: Engine, clock: FakeClock) -> None:
    calls = Calls()
    gate = calls.gate("b")
    workflow = three(calls)
    async with engine.connect() as bus, engine.connect() as other:
        task = (await bus.tasks.start(workflow)).id
        async with working(bus, workflow, lease=10), working(other, workflow, lease=10):
            await soon(calls.begun["b"].wait())
            await clock.pass_time(30)
            gate.set()
            await soon(bus.tasks.wait(task))
    assert calls.made == ["a", "b", "c"]


async def test_a_worker_at_a_long_step_is_not_suspect(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    gate = calls.gate("b")
    workflow = three(calls)
    task = (await bus.tasks.start(workflow)).id
    async with bus.monitor(interval=10, suspect_after=15, fail_after=30), working(bus, workflow, agent="w-1"):
        await soon(calls.begun["b"].wait())
        await clock.pass_time(60)
        assert (await known(bus, "w-1")).status == "running"
        gate.set()
        await soon(bus.tasks.wait(task))


async def test_tasks_running_at_a_reboot_are_resumed(engine: Engine, clock: FakeClock) -> None:
    calls = Calls()
    calls.gate("b")
    workflow = three(calls)
    async with engine.connect() as bus:
        task = (await bus.tasks.start(workflow)).id
        async with working(bus, workflow, lease=100_000):
            await soon(calls.begun["b"].wait())
            reborn = FakeClock(wall=clock.now().wall, awake=1000, boot="boot-2")
            async with engine.connect(clock=reborn) as other:
                record = await task_of(other, task)
                assert (record.status, record.holder) == ("pending", None)


async def test_two_workers_that_race_for_one_task_run_it_once(engine: Engine) -> None:
    async with engine.connect() as one, engine.connect() as other:
        for _ in range(5):
            calls = Calls()
            workflow = three(calls)
            task = (await one.tasks.start(workflow)).id
            async with anyio.create_task_group() as group:
                group.start_soon(work_off, one, workflow)
                group.start_soon(work_off, other, workflow)
            assert calls.made == ["a", "b", "c"]
            assert (await kinds_of(one, task)).count("task_running") == 1


async def test_many_tasks_on_four_workers_are_each_done_once(engine: Engine) -> None:
    made: Counter[int] = Counter()

    @agentbus.workflow("many")
    async def many(task: Task, n: int) -> int:
        def work() -> int:
            made[n] += 1
            return n

        return await task.step("work", work)

    async with engine.connect() as one, engine.connect() as other:
        async with anyio.create_task_group() as group:
            for n in range(60):
                group.start_soon(one.tasks.start, many, n)
        async with anyio.create_task_group() as group:
            for bus in (one, other, one, other):
                group.start_soon(partial(work_off, bus, many, concurrency=4))
        assert (await one.tasks.statistics()).tasks == {"completed": 60}
    assert len(made) == 60
    assert set(made.values()) == {1}


async def test_an_idle_worker_takes_tasks_started_by_others(engine: Engine, clock: FakeClock) -> None:
    calls = Calls()
    workflow = three(calls)
    async with engine.connect() as bus, engine.connect() as other, working(bus, workflow):
        await clock.settle()
        task = (await other.tasks.start(workflow)).id
        await soon(other.tasks.wait(task))


async def test_a_worker_leaves_other_workflows_alone(bus: Bus) -> None:
    workflow = three(Calls())
    await bus.tasks.start("other", id="o-1")
    await bus.tasks.start(workflow)
    await work_off(bus, workflow)
    assert (await task_of(bus, "o-1")).status == "pending"


async def test_a_given_agent_can_work(bus: Bus) -> None:
    workflow = three(Calls())
    task = (await bus.tasks.start(workflow)).id
    async with bus.agent("builder", type="executor") as builder:
        await work_off(bus, workflow, agent=builder)
        assert not builder.ended
    events = [event.actor async for event in bus.events(kind="task_completed")]
    assert events == ["builder"]
    assert (await task_of(bus, task)).status == "completed"


@pytest.mark.one_engine
async def test_a_workflow_that_swallows_its_cancellation_is_still_released(bus: Bus, clock: FakeClock) -> None:
    tries = 0

    @agentbus.workflow("stubborn")
    async def stubborn(task: Task) -> str:
        nonlocal tries
        tries += 1
        try:
            await task.approval("go")
        except asyncio.CancelledError:
            raise RuntimeError("I will not go") from None
        return "went"

    task = (await bus.tasks.start(stubborn)).id
    await work_off(bus, stubborn)
    assert (await task_of(bus, task)).status == "waiting"
    await bus.tasks.approve(task, by="ada")
    await work_off(bus, stubborn)
    assert ((await task_of(bus, task)).result, tries) == ("went", 2)


# Steps that must run only once


async def interrupted_once(bus: Bus, calls: Calls) -> tuple[str, agentbus.tasks.workflow.Workflow[[], str]]:
    """A task whose worker went away in the middle of a step that must run only once."""

    @agentbus.workflow("paying")
    async def paying(task: Task) -> str:
        await task.step("before", calls, "before")
        try:
            paid: str = await task.step("charge", calls, "charge", "paid", once=True, retries=5)
        except StepFailed as error:
            return f"failed: {error.message}"
        return paid

    calls.gate("charge")
    task = (await bus.tasks.start(paying)).id
    async with working(bus, paying):
        await soon(calls.begun["charge"].wait())
    calls.gates.clear()
    assert (await step_of(bus, task, "charge")).status == "unknown"
    return task, paying


@each(
    ("settling", "result", "made"),
    [
        ({"result": "was paid"}, "was paid", 1),
        ({"error": "the bank says no"}, "failed: the bank says no", 1),
        ({"redo": True}, "paid", 2),
        ({"step": "step:charge", "result": "was paid"}, "was paid", 1),
    ],
)
async def test_an_operator_settles_the_outcome_of_a_once_step(
    settling: dict[str, object], result: str, made: int, bus: Bus, clock: FakeClock
) -> None:
    calls = Calls()
    task, paying = await interrupted_once(bus, calls)
    await work_off(bus, paying)
    record = await task_of(bus, task)
    assert (record.status, record.waits) == ("waiting", ["step:charge"])
    assert calls.made.count("charge") == 1
    await bus.tasks.settle(task, **{"step": "charge", "by": "ada", **settling})  # type: ignore[arg-type]
    await work_off(bus, paying)
    assert (await task_of(bus, task)).result == result
    assert calls.made.count("charge") == made
    (event,) = [event async for event in bus.events(kind="step_settled", subject=f"task:{task}")]
    assert event.actor == "ada"


@pytest.mark.parametrize("how", ["it left", "it was taken over"])
async def test_an_operator_is_asked_for_the_outcome_at_once_without_a_worker(
    how: str, engine: Engine, clock: FakeClock
) -> None:
    calls = Calls()
    calls.gate("charge")
    gate = calls.gate("concurrent")

    @agentbus.workflow("paying")
    async def paying(task: Task) -> list[str]:
        async def parallel() -> str:
            await task.step("concurrent", calls, "concurrent")
            return str(await task.step("after", calls, "after", "done"))

        charge = task.step("charge", calls, "charge", "paid", once=True)
        return list(await asyncio.gather(charge, parallel()))

    async with engine.connect() as bus:
        task = (await bus.tasks.start(paying)).id
        async with working(bus, paying, agent="w-1", lease=60) as worker:
            for name in ("charge", "concurrent"):
                await soon(calls.begun[name].wait())
            if how == "it was taken over":
                async with engine.connect() as other, other.agent("w-1", type="worker", takeover=True):
                    assert (await task_of(other, task)).waits == ["step:charge"]
                with pytest.raises(AgentFenced):
                    await soon(worker)
        record = await task_of(bus, task)
        assert (record.status, record.waits) == ("pending", ["step:charge"])
        # A worker that starts continues with all that does not need the person.
        gate.set()
        await work_off(bus, paying)
        assert await statuses(bus, task) == {"charge": "unknown", "concurrent": "finished", "after": "finished"}
        assert (await task_of(bus, task)).waits == ["step:charge"]
        await bus.tasks.settle(task, "charge", by="ada", result="paid")
        await work_off(bus, paying)
        assert (await task_of(bus, task)).result == ["paid", "done"]


async def test_only_an_operator_settles_and_only_unknown_outcomes(bus: Bus, clock: FakeClock) -> None:
    task, _ = await interrupted_once(bus, Calls())
    await bus.expect("planner-1", type="planner")
    refused: list[tuple[type[AgentBusError], dict[str, object]]] = [
        (NotAnOperator, {"step": "charge", "by": "planner-1", "redo": True}),
        (UnknownStep, {"step": "other", "by": "ada", "redo": True}),
        (WrongState, {"step": "before", "by": "ada", "redo": True}),
        (InvalidInput, {"step": "charge", "by": "ada"}),
        (InvalidInput, {"step": "charge", "by": "ada", "redo": True, "error": "x"}),
    ]
    for error, arguments in refused:
        with pytest.raises(error):
            await bus.tasks.settle(task, **arguments)  # type: ignore[arg-type]


async def test_a_stop_during_a_once_step_leaves_its_outcome_unknown(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()

    @agentbus.workflow("paying")
    async def paying(task: Task) -> None:
        await task.step("charge", calls, "charge", once=True)

    calls.gate("charge")
    task = (await bus.tasks.start(paying)).id
    async with working(bus, paying):
        await soon(calls.begun["charge"].wait())
        await bus.tasks.stop(task)
        await clock.settle()
    assert await statuses(bus, task) == {"charge": "unknown"}
    await bus.tasks.resume(task)
    await work_off(bus, paying)
    assert (await task_of(bus, task)).waits == ["step:charge"]


async def test_a_once_step_that_raises_has_failed_and_times_out_only_once(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    calls.gate("charge")

    @agentbus.workflow("late")
    async def late(task: Task) -> None:
        await task.step("charge", calls, "charge", once=True, timeout=5, retries=3)

    task = (await bus.tasks.start(late, restarts=3, backoff=1)).id
    async with working(bus, late):
        await soon(calls.begun["charge"].wait())
        await clock.pass_time(5)
        await comes_to(bus, clock, task, "failed")
        await clock.pass_time(60)
    assert calls.made == ["charge"]
