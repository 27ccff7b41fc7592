"""Waits of tasks for a time: durable, without a worker, and right when clocks are set."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.errors import InvalidInput, OutOfRange, TaskFailed
from tests.api.task_workers import Calls, comes_to, kinds_of, statuses, task_of, work_off, working
from tests.conftest import Engine
from tests.support.clock import START, FakeClock

DAY = 24 * 3600
calls = Calls()


@pytest.fixture(autouse=True)
def forget() -> None:
    calls.made.clear()
    calls.gates.clear()


@agentbus.workflow("sleeper")
async def sleeper(task: Task, options: dict[str, Any]) -> str:
    await task.step("before", calls, "before")
    await task.sleep(**options)
    await task.step("after", calls, "after")
    return "rested"


@agentbus.workflow("waiter")
async def waiter(task: Task, seconds: float) -> str:
    await task.until(seconds)
    return "there"


async def test_a_task_sleeps_for_days_without_a_worker_and_survives_the_end_of_the_bus(
    engine: Engine, clock: FakeClock
) -> None:
    async with engine.connect() as bus:
        task = await bus.tasks.start(sleeper, {"days": 3})
        await work_off(bus, sleeper)
        record = await task_of(bus, task.id)
        assert (record.status, record.holder, record.due) == ("waiting", None, START + 3 * DAY * 1000)
        assert record.waits == ["sleep:2023-11-17T22:13:20Z"]
        assert await statuses(bus, task.id, "sleep") == {"sleep": "waiting"}
    clock.advance(3 * DAY - 1)
    async with engine.connect() as bus:
        await work_off(bus, sleeper)
        assert (await task_of(bus, task.id)).status == "waiting"
        clock.advance(1)
        await work_off(bus, sleeper)
        record = await task_of(bus, task.id)
        assert (record.status, record.result, record.waits) == ("completed", "rested", [])
        assert calls.made == ["before", "after"]
        assert await statuses(bus, task.id, "sleep") == {"sleep": "finished"}


async def test_a_running_worker_continues_a_task_when_it_is_due(bus: Bus, clock: FakeClock) -> None:
    gate = calls.gate("before")
    async with working(bus, sleeper, waiter, concurrency=2):
        task = await bus.tasks.start(sleeper, {"minutes": 10})
        await asyncio.wait_for(calls.begun["before"].wait(), 20)
        # The worker holds this one while another is released.
        short = await bus.tasks.start(waiter, START / 1000 + 60)
        await comes_to(bus, clock, short.id, "waiting")
        await clock.pass_time(60)
        assert (await comes_to(bus, clock, short.id, "completed")).result == "there"
        gate.set()
        await comes_to(bus, clock, task.id, "waiting")
        await clock.pass_time(600)
        assert (await comes_to(bus, clock, task.id, "completed")).result == "rested"


async def test_sleeping_tasks_hold_no_slot(bus: Bus, clock: FakeClock) -> None:
    tasks = [await bus.tasks.start(sleeper, {"hours": 1}) for _ in range(5)]
    await work_off(bus, sleeper, concurrency=1)
    assert {(await task_of(bus, task.id)).status for task in tasks} == {"waiting"}
    clock.advance(3600)
    await work_off(bus, sleeper, concurrency=1)
    assert {(await task_of(bus, task.id)).status for task in tasks} == {"completed"}


async def test_a_branch_sleeps_while_another_works(bus: Bus, clock: FakeClock) -> None:
    gate = calls.gate("work")

    @agentbus.workflow("both")
    async def both(task: Task) -> list[str]:
        async with asyncio.TaskGroup() as group:
            work = group.create_task(task.step("work", calls, "work", "worked"))
            await task.sleep(30, name="nap")
            await task.step("after", calls, "after")
        return [work.result()]

    async with working(bus, both):
        task = await bus.tasks.start(both)
        await asyncio.wait_for(calls.begun["work"].wait(), 20)
        # Setting the clock back does not prolong a duration, and the task is not released.
        clock.jump(-3600)
        await clock.pass_time(30)
        for _ in range(100):
            await clock.settle()
            if "after" in calls.made:
                break
        assert calls.made == ["work", "after"]
        gate.set()
        assert (await comes_to(bus, clock, task.id, "completed")).result == ["worked"]


async def test_setting_the_clock_back_does_not_prolong_a_sleep(bus: Bus, clock: FakeClock) -> None:
    task = await bus.tasks.start(sleeper, {"hours": 2})
    moment = await bus.tasks.start(waiter, START / 1000 + 7200)
    await work_off(bus, sleeper, waiter)
    clock.advance(3600)
    clock.jump(-DAY)
    await work_off(bus, sleeper, waiter)
    # What is left is an hour; a time of the clock is reached later.
    record = await task_of(bus, task.id)
    assert (record.status, record.waits) == ("waiting", ["sleep:2023-11-14T00:13:20Z"])
    assert "task_pending" in await kinds_of(bus, task.id)
    clock.advance(3600)
    await work_off(bus, sleeper, waiter)
    assert (await task_of(bus, task.id)).status == "completed"
    assert (await task_of(bus, moment.id)).status == "waiting"
    clock.advance(DAY)
    await work_off(bus, sleeper, waiter)
    assert (await task_of(bus, moment.id)).status == "completed"


async def test_a_suspended_machine_counts_towards_a_sleep(bus: Bus, clock: FakeClock) -> None:
    task = await bus.tasks.start(sleeper, {"hours": 2})
    await work_off(bus, sleeper)
    clock.sleep_machine(7200)
    await work_off(bus, sleeper)
    assert (await task_of(bus, task.id)).status == "completed"


async def test_until_takes_aware_times_and_does_not_wait_for_the_past(bus: Bus, clock: FakeClock) -> None:
    moments: list[Any] = [
        datetime.fromtimestamp(START / 1000 + 60, UTC),
        datetime.fromtimestamp(START / 1000 + 60, timezone(timedelta(hours=9))),
        START / 1000 + 60,
        START // 1000 - 5,
    ]

    @agentbus.workflow("moments")
    async def all_moments(task: Task, number: int) -> None:
        await task.until(moments[number])

    tasks = [(await bus.tasks.start(all_moments, number)).id for number in range(len(moments))]
    await work_off(bus, all_moments)
    found = [await task_of(bus, task) for task in tasks]
    assert [(one.status, one.due) for one in found] == [("waiting", START + 60_000)] * 3 + [("completed", None)]
    clock.advance(60)
    await work_off(bus, all_moments)
    assert {(await task_of(bus, task)).status for task in tasks} == {"completed"}


@pytest.mark.parametrize(
    ("wait", "error"),
    [
        (lambda task: task.until(datetime(2026, 1, 1)), InvalidInput),
        (lambda task: task.until("tomorrow"), InvalidInput),
        (lambda task: task.until(True), InvalidInput),
        (lambda task: task.until(1_700_000_000_000), OutOfRange),
        (lambda task: task.until(datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-2)))), OutOfRange),
        (lambda task: task.until(datetime(9999, 12, 31, 23, 59, 59, 600_000, tzinfo=UTC)), OutOfRange),
        (lambda task: task.sleep(-1), OutOfRange),
        (lambda task: task.sleep(days=4000), OutOfRange),
        (lambda task: task.sleep(hours="1"), OutOfRange),
        (lambda task: task.sleep(1, name="no good"), InvalidInput),
        (lambda task: task.signal("x", timeout=-1), OutOfRange),
        (lambda task: task.receive(timeout="soon"), OutOfRange),
    ],
)
async def test_times_that_name_no_moment_are_refused(bus: Bus, wait: Any, error: type[Exception]) -> None:
    seen: list[type] = []

    @agentbus.workflow("wrong")
    async def wrong(task: Task) -> None:
        try:
            await wait(task)
        except InvalidInput as raised:
            seen.append(type(raised))
            raise

    task = await bus.tasks.start(wrong)
    await work_off(bus, wrong)
    (kind,) = seen
    assert issubclass(kind, error)
    with pytest.raises(TaskFailed):
        await bus.tasks.result(task.id)


async def test_a_time_taken_from_the_clock_is_fixed_when_it_is_first_reached(bus: Bus, clock: FakeClock) -> None:
    @agentbus.workflow("soon")
    async def in_an_hour(task: Task) -> None:
        await task.until(clock.now().wall / 1000 + 3600)
        await task.sleep(clock.now().wall % 1000)
        await task.approval("go")

    task = await bus.tasks.start(in_an_hour)
    await work_off(bus, in_an_hour)
    clock.advance(3600.5)
    await work_off(bus, in_an_hour)
    clock.advance(500)
    await work_off(bus, in_an_hour)
    assert (await task_of(bus, task.id)).waits == ["approval:go"]


async def test_control_of_a_sleeping_task(bus: Bus, clock: FakeClock) -> None:
    task = await bus.tasks.start(sleeper, {"hours": 2})
    await work_off(bus, sleeper)
    await bus.tasks.halt(task.id)
    assert (await task_of(bus, task.id)).status == "halted"
    clock.advance(3600)
    await bus.tasks.continue_(task.id)
    await work_off(bus, sleeper)
    # The time counts while it is halted or stopped.
    assert (await task_of(bus, task.id)).due == START + 7200 * 1000
    await bus.tasks.stop(task.id)
    clock.advance(3600)
    await bus.tasks.resume(task.id)
    await work_off(bus, sleeper)
    assert (await task_of(bus, task.id)).status == "completed"
    # A redo sleeps again.
    await bus.tasks.redo(task.id, "sleep:sleep")
    await work_off(bus, sleeper)
    assert (await task_of(bus, task.id)).due == START + 7200 * 1000 + 7200 * 1000
    history = await bus.tasks.steps(task.id, history=True)
    assert [(step.status, step.superseded) for step in history if step.kind == "sleep"] == [
        ("finished", 1), ("waiting", 0),
    ]  # fmt: skip
    clock.advance(7200)
    await work_off(bus, sleeper)
    assert calls.made == ["before", "after", "after"]


async def test_a_wait_that_the_workflow_abandons_is_cancelled(bus: Bus, clock: FakeClock) -> None:
    @agentbus.workflow("leaver")
    async def leaver(task: Task) -> str:
        nap = asyncio.ensure_future(task.sleep(hours=1))
        await asyncio.sleep(0)
        value = await task.signal("go", as_=str)
        nap.cancel()
        return value

    task = (await bus.tasks.start(leaver)).id
    await work_off(bus, leaver)
    await bus.tasks.signal(task, "go", "first")
    await work_off(bus, leaver)
    assert (await task_of(bus, task)).result == "first"
    assert await statuses(bus, task, "sleep") == {"sleep": "cancelled"}
    # Reached again, it starts again.
    clock.advance(60)
    await bus.tasks.redo(task, "signal:go")
    await work_off(bus, leaver)
    record = await task_of(bus, task)
    assert (record.status, record.due) == ("waiting", START + 3660 * 1000)
    await bus.tasks.signal(task, "go", "second")
    await work_off(bus, leaver)
    assert (await task_of(bus, task)).result == "second"


async def test_the_first_of_two_waits_is_the_first_on_replay_too(bus: Bus, clock: FakeClock) -> None:
    @agentbus.workflow("race")
    async def race(task: Task) -> str:
        signal = asyncio.ensure_future(task.signal("go"))
        nap = asyncio.ensure_future(task.sleep(hours=1))
        done, late = await asyncio.wait({signal, nap}, return_when=asyncio.FIRST_COMPLETED)
        for one in late:
            one.cancel()
        await task.approval("end")
        return "signal" if signal in done else "nap"

    task = await bus.tasks.start(race)
    await work_off(bus, race)
    record = await task_of(bus, task.id)
    assert sorted(record.waits) == ["signal:go", "sleep:2023-11-14T23:13:20Z"]
    await bus.tasks.signal(task.id, "go")
    await work_off(bus, race)
    # On replay the sleep is over too, and was not first.
    clock.advance(7200)
    await bus.tasks.approve(task.id, by="ada")
    await work_off(bus, race)
    assert (await task_of(bus, task.id)).result == "signal"
    assert await statuses(bus, task.id, "signal") == {"go": "finished"}


async def test_callbacks_see_a_wait_begin_and_end_once(bus: Bus, clock: FakeClock) -> None:
    changes: list[tuple[str, str]] = []
    task = await bus.tasks.start(sleeper, {"hours": 1})
    for _ in range(2):
        await work_off(bus, sleeper, on_step=lambda change: changes.append((change.kind, change.status)))
        await bus.tasks.halt(task.id)
        await bus.tasks.continue_(task.id)
    clock.advance(3600)
    await work_off(bus, sleeper, on_step=lambda change: changes.append((change.kind, change.status)))
    assert [one for one in changes if one[0] == "sleep"] == [("sleep", "waiting"), ("sleep", "finished")]


@agentbus.workflow("listener")
async def listener(task: Task, kind: str) -> None:
    if kind == "signal":
        await task.signal("go")
    elif kind == "message":
        await task.receive()
    else:
        await task.sleep(60)


@pytest.mark.parametrize("kind", ["signal", "message", "sleep"])
async def test_a_task_does_not_show_a_wait_that_is_over(bus: Bus, clock: FakeClock, kind: str) -> None:
    a = await bus.register("a", type="worker")
    task = (await bus.tasks.start(listener, kind)).id
    await work_off(bus, listener)
    assert len((await task_of(bus, task)).waits) == 1
    if kind == "signal":
        await bus.tasks.signal(task, "go")
    elif kind == "message":
        await a.send(f"task:{task}", "note")
    else:
        clock.advance(60)
        # This worker makes it ready, and has not its workflow.
        await work_off(bus, sleeper)
    record = await task_of(bus, task)
    assert (record.status, record.waits) == ("pending", [])
    assert [one.waits for one in (await bus.tasks.list()).items] == [[]]
