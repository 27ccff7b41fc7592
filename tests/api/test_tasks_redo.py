"""Redo of one of several parallel steps: running siblings finish first, and only later steps are repeated."""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio

import agentbus
from agentbus import Bus, Task
from agentbus.api.tasks.workflow import Workflow
from tests.api.helpers import soon
from tests.api.task_workers import (
    Calls,
    comes_to,
    kinds_of,
    statuses,
    step_comes_to,
    step_of,
    task_of,
    work_off,
    working,
)
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


def parallel(calls: Calls) -> Workflow[[], list[str]]:
    """Three branches, started in the order a, b, c; b has a second step; and a last step that needs all of them."""

    @agentbus.workflow("parallel")
    async def workflow(task: Task) -> list[str]:
        async def b() -> str:
            first = await task.step("b", calls, "b", "b")
            return str(await task.step("b-after", calls, "b-after", f"{first}!"))

        found = await asyncio.gather(task.step("a", calls, "a", "a"), b(), task.step("c", calls, "c", "c"))
        return [*found, await task.step("last", calls, "last", "end")]

    return workflow


async def until_made(calls: Calls, clock: FakeClock, name: str, times: int) -> None:
    with anyio.fail_after(60):
        while calls.made.count(name) < times:
            await clock.settle()


async def test_running_siblings_finish_before_a_redo_and_are_not_repeated(engine: Engine, clock: FakeClock) -> None:
    calls = Calls()
    gates = {name: calls.gate(name) for name in ("a", "c")}
    workflow = parallel(calls)
    async with engine.connect() as bus, engine.connect() as people:
        task = (await bus.tasks.start(workflow)).id
        async with working(bus, workflow):
            await until_made(calls, clock, "b-after", 1)
            for name in gates:
                await soon(calls.begun[name].wait())
            record = await people.tasks.redo(task, "b", note="shorter", by="ada")
            assert (record.status, record.redo) == ("running", ["b"])
            await clock.settle()
            assert calls.made.count("b") == 1, "what runs beside it has not finished yet"
            gates["a"].set()
            await clock.settle()
            assert (await task_of(bus, task)).redo == ["b"]
            gates["c"].set()
            await soon(bus.tasks.wait(task))
        record = await task_of(bus, task)
        assert (record.status, record.redo, record.result) == ("completed", [], ["a", "b!", "c", "end"])
        # The one before it and the one after it ran once; it and what followed it ran twice.
        assert {name: calls.made.count(name) for name in ("a", "b", "b-after", "c", "last")} == {
            "a": 1, "b": 2, "b-after": 2, "c": 1, "last": 1,
        }  # fmt: skip
        assert (await step_of(bus, task, "b")).note == "shorter"
        history = [(one.key, one.superseded) for one in await bus.tasks.steps(task, history=True) if one.superseded]
        assert sorted(history) == [("b", 1), ("b-after", 1)]
        trail = [
            (event.kind, event.actor, event.facts.get("step"))
            async for event in bus.events(subject=f"task:{task}")
            if "redo" in event.kind
        ]
        assert trail == [("task_redo_waits", "ada", "b"), ("task_redone", "ada", "b")]


@each(
    ("step", "kept"),
    [
        # c began before b had finished; b-after and last began after that.
        ("b", {"a", "c"}),
        # The first to begin was the last to finish: only last follows it.
        ("a", {"b", "b-after", "c"}),
        ("c", {"a", "b"}),
        ("last", {"a", "b", "b-after", "c"}),
    ],
)
async def test_a_redo_of_a_finished_task_repeats_only_what_followed_the_step(
    bus: Bus, clock: FakeClock, step: str, kept: set[str]
) -> None:
    calls = Calls()
    late = calls.gate("b")
    gate = calls.gate("a")
    workflow = parallel(calls)
    task = (await bus.tasks.start(workflow)).id
    async with working(bus, workflow):
        await step_comes_to(bus, clock, task, "c", "finished")
        late.set()
        await step_comes_to(bus, clock, task, "b-after", "finished")
        gate.set()
        await soon(bus.tasks.wait(task))
    calls.gates.clear()
    await bus.tasks.redo(task, step)
    assert set(await statuses(bus, task)) == kept
    await work_off(bus, workflow)
    assert (await task_of(bus, task)).result == ["a", "b!", "c", "end"]
    assert {name for name, times in Counter(calls.made).items() if times == 1} == kept


async def test_a_redo_that_waits_survives_the_death_of_the_worker(engine: Engine, clock: FakeClock) -> None:
    calls = Calls()
    calls.gate("a")
    workflow = parallel(calls)
    async with engine.connect() as bus, engine.connect() as other:
        task = (await bus.tasks.start(workflow)).id
        async with working(bus, workflow, agent="w-1"):
            await until_made(calls, clock, "b-after", 1)
            await until_made(calls, clock, "c", 1)
            await clock.settle()
            await other.tasks.redo(task, "b", note="again", by="ada")
            assert (await task_of(other, task)).redo == ["b"]
            async with other.agent("w-1", type="worker", takeover=True):
                record = await task_of(other, task)
                assert (record.status, record.redo) == ("pending", [])
                assert await statuses(other, task) == {"a": "interrupted", "c": "finished"}
                calls.gates.clear()
                await work_off(other, workflow)
        assert (await task_of(other, task)).result == ["a", "b!", "c", "end"]
        assert calls.made.count("b") == 2
        assert calls.made.count("c") == 1
        assert (await step_of(other, task, "b")).note == "again"


async def test_no_step_starts_while_a_redo_waits_and_a_concurrent_halt_holds(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    gates = {name: calls.gate(name) for name in ("a", "c")}
    b = calls.gate("b")
    workflow = parallel(calls)
    task = (await bus.tasks.start(workflow)).id
    async with working(bus, workflow):
        for name in ("a", "b", "c"):
            await soon(calls.begun[name].wait())
        await bus.tasks.redo(task, "c")
        b.set()
        await clock.settle()
        assert "b-after" not in calls.made
        await bus.tasks.halt(task, by="ada")
        gates["a"].set()
        # c is void whatever comes of it: nothing waits for it.
        record = await comes_to(bus, clock, task, "halted")
        assert (record.redo, record.halting) == ([], False)
        assert await statuses(bus, task) == {"a": "finished", "b": "finished"}
        calls.gates.clear()
        await bus.tasks.continue_(task)
        await soon(bus.tasks.wait(task))
    assert {name: calls.made.count(name) for name in "abc"} == {"a": 1, "b": 1, "c": 2}


async def test_a_second_redo_that_invalidates_running_steps_takes_effect_at_once(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()

    @agentbus.workflow("staged")
    async def staged(task: Task) -> list[str]:
        await task.step("first", calls, "first")
        return list(await asyncio.gather(*(task.step(name, calls, name, name) for name in ("x", "y"))))

    gate = calls.gate("x")
    task = (await bus.tasks.start(staged)).id
    async with working(bus, staged):
        await soon(calls.begun["x"].wait())
        await until_made(calls, clock, "y", 1)
        await clock.settle()
        assert (await bus.tasks.redo(task, "y", note="n")).redo == ["y"]
        record = await bus.tasks.redo(task, "first")
        assert record.redo == []
        await until_made(calls, clock, "x", 2)
        gate.set()
        await soon(bus.tasks.wait(task))
    assert [calls.made.count(name) for name in ("first", "x", "y")] == [2, 2, 2]
    assert (await kinds_of(bus, task)).count("task_redone") == 2


async def test_a_stop_while_a_redo_waits_keeps_the_redo(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    calls.gate("a")
    workflow = parallel(calls)
    task = (await bus.tasks.start(workflow)).id
    async with working(bus, workflow):
        await until_made(calls, clock, "c", 1)
        await until_made(calls, clock, "b-after", 1)
        await clock.settle()
        await bus.tasks.redo(task, "b")
        record = await bus.tasks.stop(task)
        assert (record.status, record.redo) == ("stopped", [])
    assert await statuses(bus, task) == {"a": "cancelled", "c": "finished"}
    calls.gates.clear()
    await bus.tasks.resume(task)
    await work_off(bus, workflow)
    assert (await task_of(bus, task)).status == "completed"
    assert [calls.made.count(name) for name in ("b", "c")] == [2, 1]


async def test_a_redo_of_an_approval_repeats_the_steps_started_after_the_decision(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()

    @agentbus.workflow("asking")
    async def asking(task: Task) -> None:
        async def ask() -> None:
            await task.approval("go")
            await task.step("after", calls, "after")

        async def parallel() -> None:
            await task.step("one", calls, "one")
            await task.step("two", calls, "two")

        await asyncio.gather(ask(), parallel())

    task = (await bus.tasks.start(asking)).id
    await work_off(bus, asking)
    await bus.tasks.approve(task, by="ada")
    await work_off(bus, asking)
    await bus.tasks.redo(task, "approval:go")
    assert await statuses(bus, task) == {"one": "finished", "two": "finished"}
    await work_off(bus, asking)
    assert (await task_of(bus, task)).waits == ["approval:go"]
    assert calls.made.count("one") == calls.made.count("two") == 1


async def test_a_waiting_redo_is_applied_once_though_two_steps_fail_together(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    gates = [calls.gate(name) for name in ("a", "b-after")]

    async def failing(name: str) -> None:
        await calls(name)
        raise ValueError(name)

    @agentbus.workflow("failing")
    async def workflow(task: Task) -> None:
        async def b() -> None:
            await task.step("b", calls, "b")
            await task.step("b-after", failing, "b-after")

        await asyncio.gather(task.step("a", failing, "a"), b())

    task = (await bus.tasks.start(workflow)).id
    async with working(bus, workflow):
        for name in ("a", "b-after"):
            await soon(calls.begun[name].wait())
        assert (await bus.tasks.redo(task, "b")).redo == ["b"]
        # The redo keeps a and repeats b-after. While another write is under way, both failures join one batch.
        busy = [asyncio.ensure_future(bus.tasks.edit(task, name=f"{number}")) for number in range(3)]
        await asyncio.sleep(0)
        for gate in gates:
            gate.set()
        await soon(asyncio.gather(*busy))
        await comes_to(bus, clock, task, "failed")
    trail = [kind for kind in await kinds_of(bus, task) if "redo" in kind]
    assert trail == ["task_redo_waits", "task_redone"]
    assert {one.superseded for one in await bus.tasks.steps(task, history=True)} == {0, 1}
