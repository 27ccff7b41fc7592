"""Waiting tasks, their signals, mail and values survive archives, exports, copies and the doctor."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Unpack

import pytest

import agentbus
from agentbus import Bus, RetentionPolicy, Task
from agentbus.api.tasks.workflow import StartOptions
from tests.api.copy_helpers import Places, crossed
from tests.api.retention_helpers import DAY, NOTHING, applied
from tests.api.task_workers import task_of, work_off
from tests.conftest import Engine
from tests.support.clock import FakeClock

POLICY = RetentionPolicy(
    **{**{name: getattr(NOTHING, name) for name in NOTHING.__struct_fields__}, "tasks": DAY},
)


@agentbus.workflow("patient")
async def patient(task: Task) -> list[object]:
    first = await task.signal("first")
    message = await task.receive()
    assert message is not None
    await task.expose("so-far", [first, message.payload])
    await task.sleep(hours=2)
    return [first, message.payload, await task.signal("second")]


async def asleep(bus: Bus, **options: Unpack[StartOptions]) -> str:
    """A task that has received something, sleeps, and has more to receive."""
    options.setdefault("id", "patient-1")
    task = (await bus.tasks.start(patient, **options)).id
    sender = await bus.register("sender", type="worker")
    await sender.send(f"task:{task}", "note", {"text": "grüße"})
    await bus.tasks.signal(task, "first", 1, signal_id="f-1", by="ada")
    await bus.tasks.signal(task, "second", [2])
    await work_off(bus, patient)
    assert (await task_of(bus, task)).status == "waiting"
    await sender.send(f"task:{task}", "note", "more")
    await sender.complete()
    return task


@pytest.fixture
async def other(clock: FakeClock, tmp_path: Path) -> AsyncIterator[Bus]:
    """An empty bus."""
    async with agentbus.connect(tmp_path / "other", clock=clock) as bus:
        yield bus


async def test_an_exported_waiting_task_continues_in_the_target(
    bus: Bus, clock: FakeClock, other: Bus, tmp_path: Path
) -> None:
    task = await asleep(bus)
    steps = await bus.tasks.steps(task)
    report = await bus.export(tmp_path / "bus.jsonl.gz")
    assert (await other.import_path(report.path)).refused == 0
    assert await other.tasks.steps(task) == steps
    assert await other.tasks.query(task) == {"so-far": [1, {"text": "grüße"}]}
    assert (await other.tasks.signal(task, "first", 1, signal_id="f-1")).duplicate
    await other.tasks.continue_(task)
    await work_off(other, patient)
    assert (await task_of(other, task)).due == (await task_of(bus, task)).due
    clock.advance(7200)
    await work_off(other, patient)
    assert (await task_of(other, task)).result == [1, {"text": "grüße"}, [2]]
    # What was received can be received again, also here.
    await other.tasks.restart(task)
    await work_off(other, patient)
    assert await other.tasks.query(task, "so-far") == [1, {"text": "grüße"}]
    unread = (await other.messages.list(to=f"task:{task}", status="queued")).items
    assert [message.payload for message in unread] == ["more"]


async def test_an_archived_task_is_restored_with_its_signals_and_values(bus: Bus, clock: FakeClock, other: Bus) -> None:
    task = await asleep(bus)
    clock.advance(7200)
    await work_off(bus, patient)
    record, steps = await task_of(bus, task), await bus.tasks.steps(task)
    clock.advance(2 * DAY)
    report = await applied(bus, policy=POLICY)
    assert report.removed == {"task": 1}
    assert await bus.tasks.get(task) is None
    assert [one.error for one in (await bus.messages.dead()).items] == ["its recipient was deleted"]
    assert report.archive is not None
    for where in (bus, other):
        assert (await where.import_path(report.archive)).refused == 0
        assert await task_of(where, task) == record
        assert await where.tasks.steps(task) == steps
        assert await where.tasks.query(task) == {"so-far": [1, {"text": "grüße"}]}
        assert (await where.tasks.signal(task, "first", 1, signal_id="f-1")).duplicate


async def test_a_restart_queues_no_message_of_another_recipient(bus: Bus, clock: FakeClock, other: Bus) -> None:
    """The message that a restored task received may have the number of another one here."""
    task = await asleep(bus)
    await bus.tasks.stop(task)
    clock.advance(2 * DAY)
    report = await applied(bus, policy=POLICY)
    assert report.archive is not None
    a = await other.register("a", type="worker")
    await a.send("a", "note", "not for the task")
    message = await a.receive(timeout=0)
    assert message is not None
    await message.ack()
    assert (await other.import_path(report.archive)).refused == 0
    await other.tasks.restart(task)
    assert (await other.stats()).messages == {"acked": 1}


@crossed
def test_a_copy_continues_where_the_source_waits(places: Places) -> None:
    async def wait(bus: Bus) -> None:
        await asleep(bus)

    async def continue_(bus: Bus) -> None:
        assert (await task_of(bus, "patient-1")).waits[0].startswith("sleep:")
        places.clock.advance(7200)
        await work_off(bus, patient)
        assert (await task_of(bus, "patient-1")).result == [1, {"text": "grüße"}, [2]]
        # Numbers continue after those of the source.
        await bus.tasks.restart("patient-1")
        await bus.tasks.signal("patient-1", "second", 3)
        await work_off(bus, patient)
        assert await bus.tasks.query("patient-1", "so-far") == [1, {"text": "grüße"}]

    places.on(places.source, wait)
    places.copy()
    places.on(places.target, continue_)


async def test_the_doctor_finds_a_damaged_signal(engine: Engine) -> None:
    async with engine.connect() as bus:
        await asleep(bus)
        checks = {check.name: check for check in await bus.doctor()}
        assert checks["payloads of signals"].status == "ok"
        assert await engine.tamper("UPDATE signals SET value = '7' WHERE name = 'second'")
        checks = {check.name: check for check in await bus.doctor()}
        assert checks["payloads of signals"].status == "error"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE steps SET status = 'waiting', finished = NULL, result = NULL, checksum = NULL WHERE kind = 'expose'",
        "UPDATE steps SET due = NULL WHERE kind = 'sleep'",
        "UPDATE steps SET message = 1 WHERE kind = 'signal'",
        "UPDATE mailboxes SET owner = 'x' WHERE kind = 'task'",
        "UPDATE signals SET value = 'no json'",
        "UPDATE signals SET name = 'no good'",
    ],
)
async def test_the_tables_refuse_what_is_no_wait(engine: Engine, statement: str) -> None:
    async with engine.connect() as bus:
        await asleep(bus)
    assert not await engine.tamper(statement)
