"""Signals: sent to a task before or after it waits for them, received in order, each once."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.errors import (
    InvalidName,
    InvalidPayload,
    PayloadMismatch,
    SignalIdConflict,
    SignalTimedOut,
    TaskEnded,
    UnknownTask,
)
from agentbus.operations.task_lookups import unreceived_signals
from tests.api.task_workers import Calls, comes_to, kinds_of, statuses, task_of, work_off, working
from tests.conftest import Engine
from tests.support.clock import START, FakeClock

calls = Calls()


class Payment(msgspec.Struct):
    amount: int


@pytest.fixture(autouse=True)
def forget() -> None:
    calls.made.clear()
    calls.gates.clear()


@agentbus.workflow("order")
async def order(task: Task, count: int) -> list[int]:
    found = []
    for _ in range(count):
        payment = await task.signal("payment", as_=Payment)
        found.append(await task.step("book", calls, f"book {payment.amount}", payment.amount))
    return found


@agentbus.workflow("hurried")
async def hurried(task: Task) -> str:
    return str(await task.signal("go", timeout=60))


async def unreceived(bus: Bus, task: str) -> list[tuple[str, str | None]]:
    return [(one.name, one.sender) for one in await bus._engine.read(unreceived_signals, (task, 10))]


async def test_signals_sent_before_and_after_the_wait_arrive_in_order(engine: Engine) -> None:
    async with engine.connect() as bus:
        task = (await bus.tasks.start(order, 3)).id
        await bus.tasks.signal(task, "payment", {"amount": 1})
        receipt = await bus.tasks.signal(task, "payment", Payment(2), by="ada")
        assert (receipt.task, receipt.name, receipt.duplicate) == (task, "payment", False)
        await bus.tasks.signal(task, "other", None)
        assert await unreceived(bus, task) == [("payment", None), ("payment", "ada"), ("other", None)]
        await work_off(bus, order)
        assert await unreceived(bus, task) == [("other", None)]
        record = await task_of(bus, task)
        assert (record.status, record.waits, record.due) == ("waiting", ["signal:payment"], None)
        assert await statuses(bus, task, "signal") == {
            "payment": "finished", "payment#2": "finished", "payment#3": "waiting",
        }  # fmt: skip
    # Sent while no worker runs.
    async with engine.connect() as bus:
        await bus.tasks.signal(task, "payment", {"amount": 3})
        assert (await task_of(bus, task)).status == "pending"
        await work_off(bus, order)
        assert (await task_of(bus, task)).result == [1, 2, 3]
        assert calls.made == ["book 1", "book 2", "book 3"]
        facts = [(event.actor, event.facts["signal"]) async for event in bus.events(kind="task_signalled")]
        assert facts == [(None, "payment"), ("ada", "payment"), (None, "other"), (None, "payment")]


async def test_a_signal_wakes_a_running_worker_at_once(bus: Bus, clock: FakeClock) -> None:
    async with working(bus, order):
        task = (await bus.tasks.start(order, 1)).id
        await comes_to(bus, clock, task, "waiting")
        await bus.tasks.signal(task, "payment", {"amount": 7})
        assert (await comes_to(bus, clock, task, "completed")).result == [7]


async def test_a_signal_reaches_a_branch_while_another_works(bus: Bus, clock: FakeClock) -> None:
    gate = calls.gate("work")

    @agentbus.workflow("branches")
    async def branches(task: Task) -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(task.step("work", calls, "work"))
            value: int = await task.signal("go", as_=int)
            await task.step("after", calls, "after")
        return value

    async with working(bus, branches):
        task = (await bus.tasks.start(branches)).id
        await asyncio.wait_for(calls.begun["work"].wait(), 20)
        await clock.settle()
        await bus.tasks.signal(task, "go", 5)
        for _ in range(100):
            await clock.settle()
            if "after" in calls.made:
                break
        assert calls.made == ["work", "after"]
        gate.set()
        assert (await comes_to(bus, clock, task, "completed")).result == 5


async def test_a_signal_that_a_task_does_not_wait_for_leaves_it_asleep(bus: Bus, clock: FakeClock) -> None:
    task = (await bus.tasks.start(order, 1)).id
    await work_off(bus, order)
    await bus.tasks.signal(task, "other", 1)
    assert (await task_of(bus, task)).status == "waiting"
    assert (await kinds_of(bus, task)).count("task_pending") == 0


async def test_a_repeated_send_is_one_signal(bus: Bus) -> None:
    task = (await bus.tasks.start(order, 1)).id
    first = await bus.tasks.signal(task, "payment", {"amount": 1}, signal_id="pay-1")
    again = await bus.tasks.signal(task, "payment", {"amount": 1}, signal_id="pay-1")
    assert (first.signal_id, first.duplicate, again.signal_id, again.duplicate) == ("pay-1", False, "pay-1", True)
    for name, value, differs in (("payment", {"amount": 2}, "value"), ("other", {"amount": 1}, "name")):
        with pytest.raises(SignalIdConflict) as conflict:
            await bus.tasks.signal(task, name, value, signal_id="pay-1")
        assert conflict.value.facts["differs"] == differs
    other = (await bus.tasks.start(order, 1)).id
    assert not (await bus.tasks.signal(other, "payment", {"amount": 9}, signal_id="pay-1")).duplicate
    await work_off(bus, order)
    assert calls.made == ["book 1", "book 9"]
    # A retry after the task has ended is still the same signal.
    assert (await bus.tasks.signal(task, "payment", {"amount": 1}, signal_id="pay-1")).duplicate


async def test_signals_to_unknown_and_ended_tasks_are_refused(bus: Bus) -> None:
    with pytest.raises(UnknownTask):
        await bus.tasks.signal("nobody", "payment", 1)
    task = (await bus.tasks.start(order, 0)).id
    with pytest.raises(InvalidName):
        await bus.tasks.signal(task, "no good", 1)
    with pytest.raises(InvalidPayload):
        await bus.tasks.signal(task, "payment", float("nan"))
    await work_off(bus, order)
    with pytest.raises(TaskEnded) as ended:
        await bus.tasks.signal(task, "payment", 1)
    assert ended.value.facts["status"] == "completed"
    waiting = (await bus.tasks.start(order, 1)).id
    await bus.tasks.stop(waiting)
    with pytest.raises(TaskEnded):
        await bus.tasks.signal(waiting, "payment", 1)
    # A halted task receives it later.
    await bus.tasks.resume(waiting)
    await bus.tasks.halt(waiting)
    await bus.tasks.signal(waiting, "payment", {"amount": 4})
    await bus.tasks.continue_(waiting)
    await work_off(bus, order)
    assert (await task_of(bus, waiting)).result == [4]


async def test_a_signal_that_does_not_come_times_out_and_a_resume_waits_again(bus: Bus, clock: FakeClock) -> None:
    task = (await bus.tasks.start(hurried)).id
    await work_off(bus, hurried)
    record = await task_of(bus, task)
    assert (record.status, record.waits, record.due) == ("waiting", ["signal:go"], START + 60_000)
    clock.advance(60)
    await work_off(bus, hurried)
    record = await task_of(bus, task)
    assert record.error is not None
    assert (record.status, record.error.type, record.error.step) == ("failed", "SignalTimedOut", "go")
    await bus.tasks.resume(task)
    await work_off(bus, hurried)
    assert (await task_of(bus, task)).due == START + 120_000
    await bus.tasks.signal(task, "go", "now")
    await work_off(bus, hurried)
    assert (await task_of(bus, task)).result == "now"


async def test_a_timeout_is_raised_on_every_replay(bus: Bus, clock: FakeClock) -> None:
    seen: list[str] = []

    @agentbus.workflow("patient")
    async def patient(task: Task) -> str:
        try:
            await task.signal("go", timeout=0)
        except SignalTimedOut as error:
            seen.append(error.code)
        await task.approval("end")
        return str(await task.signal("go"))

    task = (await bus.tasks.start(patient)).id
    await work_off(bus, patient)
    await bus.tasks.signal(task, "go", "late")
    await bus.tasks.approve(task, by="ada")
    await work_off(bus, patient)
    assert (await task_of(bus, task)).result == "late"
    assert seen == ["signal_timed_out"] * 2


async def test_a_value_of_another_type_is_received_and_raised(bus: Bus) -> None:
    seen: list[str] = []

    @agentbus.workflow("typed")
    async def typed(task: Task) -> int:
        while True:
            try:
                return (await task.signal("payment", as_=Payment)).amount
            except PayloadMismatch as error:
                seen.append(error.code)

    task = (await bus.tasks.start(typed)).id
    await bus.tasks.signal(task, "payment", {"amount": "many"})
    await bus.tasks.signal(task, "payment", {"amount": 3})
    await work_off(bus, typed)
    assert (await task_of(bus, task)).result == 3
    assert len(seen) == 1


async def test_a_redo_or_restart_receives_the_same_signals_unless_it_names_one(bus: Bus) -> None:
    @agentbus.workflow("planned")
    async def planned(task: Task) -> list[int]:
        await task.step("plan", calls, "plan")
        first = await task.signal("n", as_=int)
        return [first, await task.signal("n", as_=int)]

    task = (await bus.tasks.start(planned)).id
    for number in (1, 2):
        await bus.tasks.signal(task, "n", number)
    await work_off(bus, planned)
    assert (await task_of(bus, task)).result == [1, 2]
    for again in ("redo", "restart"):
        await (bus.tasks.redo(task, "plan") if again == "redo" else bus.tasks.restart(task))
        await work_off(bus, planned)
        assert (await task_of(bus, task)).result == [1, 2]
    # The second one is not wanted: it waits for another.
    await bus.tasks.redo(task, "signal:n#2")
    await work_off(bus, planned)
    assert (await task_of(bus, task)).waits == ["signal:n"]
    await bus.tasks.signal(task, "n", 3)
    await work_off(bus, planned)
    assert (await task_of(bus, task)).result == [1, 3]
