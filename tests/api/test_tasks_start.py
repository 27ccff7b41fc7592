"""Starting a task: arguments, id and session; and the order in which workers take tasks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.errors import InvalidInput, SessionEnded, TaskExists, UnknownSession, WrongArguments
from tests.api.helpers import soon
from tests.api.task_workers import Calls, comes_to, task_of, work_off, working
from tests.api.workflows import Plan, feature, make_plan
from tests.support.clock import FakeClock


@pytest.mark.one_engine
async def test_workflows_take_typed_arguments(bus: Bus) -> None:
    got: list[Any] = []

    @agentbus.workflow("typed-arguments")
    async def typed(task: Task, plan: Plan, *more: int, deep: bool = False) -> None:
        got.append((plan, more, deep))

    await bus.tasks.start(typed, Plan(3, ("a",)), 1, 2, keywords={"deep": True})
    await work_off(bus, typed)
    assert got == [(Plan(3, ("a",)), (1, 2), True)]
    with pytest.raises(WrongArguments):
        await bus.tasks.start(typed)  # type: ignore[call-arg, arg-type]


@pytest.mark.one_engine
async def test_only_the_annotations_that_matter_are_looked_up(bus: Bus) -> None:
    class Local(msgspec.Struct):
        n: int

    async def work(task: OnlyForTypeCheckers, n: int) -> int:  # type: ignore[name-defined]  # noqa: F821
        return n

    def hidden() -> Local:
        return Local(1)

    @agentbus.workflow("annotated")
    async def annotated(task: OnlyForTypeCheckers, n: int) -> int:  # type: ignore[name-defined]  # noqa: F821
        with pytest.raises(InvalidInput, match="hidden"):
            await task.step("hidden", hidden)
        await task.step("local", hidden, returns=Local)
        return await task.step("work", work, None, n)  # type: ignore[no-any-return]

    task = await bus.tasks.start(annotated, 3)
    await work_off(bus, annotated)
    assert (await task_of(bus, task.id)).result == 3


async def test_the_same_id_is_the_same_task_and_another_content_is_an_error(bus: Bus) -> None:
    first = await bus.tasks.start(feature, "x", id="f-1")
    assert await bus.tasks.start(feature, "x", id="f-1") == first
    with pytest.raises(TaskExists, match="arguments"):
        await bus.tasks.start(feature, "y", id="f-1")
    with pytest.raises(TaskExists, match="workflow"):
        await bus.tasks.start("other", "x", id="f-1")
    assert (await bus.tasks.statistics()).tasks == {"pending": 1}


async def test_a_task_belongs_to_an_open_session(bus: Bus) -> None:
    async with bus.session("planning", id="s-1"):
        task = await bus.tasks.start(feature, "x", session="s-1")
        assert task.session == "s-1"
        assert [one.id for one in (await bus.tasks.list(session="s-1")).items] == [task.id]
    with pytest.raises(SessionEnded):
        await bus.tasks.start(feature, "x", session="s-1")
    with pytest.raises(UnknownSession):
        await bus.tasks.start(feature, "x", session="s-2")


async def test_the_oldest_is_taken_first_and_no_more_than_wanted_at_once(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    gates = {name: calls.gate(name) for name in "abc"}

    @agentbus.workflow("one")
    async def one(task: Task, name: str) -> None:
        await task.step("work", calls, name)

    tasks = [await bus.tasks.start(one, name) for name in "abc"]
    async with working(bus, one, concurrency=2):
        await soon(calls.begun["b"].wait())
        await clock.settle()
        assert calls.made == ["a", "b"]
        gates["a"].set()
        await soon(calls.begun["c"].wait())
        for gate in gates.values():
            gate.set()
        for task in tasks:
            await soon(bus.tasks.wait(task.id))


async def test_a_delayed_task_is_not_taken_before_its_time(bus: Bus, clock: FakeClock) -> None:
    task = await bus.tasks.start(feature, "x", delay=60)
    async with working(bus, feature):
        await clock.pass_time(59)
        assert (await task_of(bus, task.id)).status == "pending"
        await clock.pass_time(1)
        await comes_to(bus, clock, task.id, "completed")


@pytest.mark.one_engine
async def test_only_workflows_are_worked_with(bus: Bus) -> None:
    with pytest.raises(InvalidInput, match="run_worker"):
        await bus.tasks.run_worker()
    with pytest.raises(InvalidInput, match="not a workflow"):
        await bus.tasks.run_worker(make_plan)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="the same name"):
        await bus.tasks.run_worker(feature, feature)
    with pytest.raises(InvalidInput, match="async"):
        agentbus.workflow("sync")(make_plan)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await bus.tasks.start(make_plan)  # type: ignore[call-arg, arg-type]
    with pytest.raises(InvalidInput, match="first argument"):
        agentbus.workflow("empty")(_no_task)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="from bind"):
        await bus.tasks.start(feature.bind("x"), "y")  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="until_idle must be True or False"):
        await bus.tasks.run_worker(feature, until_idle=1)  # type: ignore[arg-type]
    assert (await bus.tasks.list()).items == []


@pytest.mark.one_engine
async def test_a_step_that_cannot_be_called_fails_its_task(bus: Bus) -> None:
    @agentbus.workflow("calling")
    async def calling(task: Task, what: str) -> None:
        if what == "step":
            await task.step("plan", 7)  # type: ignore[call-overload]
        else:
            await task.options(validate=7).step("plan", str)  # type: ignore[arg-type]

    for what in ("step", "validate"):
        await bus.tasks.start(calling, what, id=what)
    await bus.tasks.run_worker(calling, until_idle=True)
    for what in ("step", "validate"):
        record = await bus.tasks.get(what)
        assert record is not None
        assert record.error is not None
        assert (record.status, record.error.type) == ("failed", "InvalidInput")
        assert "not callable" in record.error.message


async def _no_task() -> None: ...
