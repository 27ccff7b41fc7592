"""Durable tasks: steps are done once and kept, typed, numbered, with what they did on the bus."""

from __future__ import annotations

from typing import Any

import anyio
import msgspec
import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.errors import InvalidInput, Misuse, SessionEnded, TaskExists, TaskTimedOut, UnknownSession, UnknownTask
from agentbus.records import TaskChange
from tests.conformance.at_work import Calls, comes_to, kinds_of, statuses, step_of, task_of, work_off, working
from tests.conformance.helpers import queued, soon
from tests.conftest import Engine
from tests.support.clock import FakeClock


class Plan(msgspec.Struct):
    files: int
    parts: tuple[str, ...] = ()


class Report(msgspec.Struct):
    plan: Plan
    done: bool = True


def make_plan(request: str) -> Plan:
    return Plan(len(request), ("design", "build"))


@agentbus.workflow("feature")
async def feature(task: Task, request: str) -> Report:
    plan = await task.step("plan", make_plan, request)
    return Report(plan)


async def test_a_task_is_done_by_a_worker_and_its_result_is_kept(bus: Bus) -> None:
    started = await bus.tasks.start(feature, "Add login", name="Login", context={"issue": 7})
    assert (started.status, started.name, started.arguments) == ("pending", "Login", ["Add login"])
    await work_off(bus, feature)
    record = await task_of(bus, started.id)
    assert (record.status, record.progress, record.holder, record.error) == ("completed", 100, None, None)
    assert record.result == {"plan": {"files": 9, "parts": ["design", "build"]}, "done": True}
    assert await bus.tasks.result(started.id, as_=Report) == Report(Plan(9, ("design", "build")))
    assert await kinds_of(bus, started.id) == ["task_started", "task_running", "task_completed"]


async def test_whoever_waits_for_a_task_hears_of_its_end_also_from_another_process(engine: Engine) -> None:
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


async def test_the_same_name_again_gets_a_number(bus: Bus) -> None:
    @agentbus.workflow("loop")
    async def loop(task: Task) -> list[int]:
        return [await task.step("count", lambda n: n, n) for n in range(3)]

    task = await bus.tasks.start(loop)
    await work_off(bus, loop)
    assert await statuses(bus, task.id) == {"count": "finished", "count#2": "finished", "count#3": "finished"}
    assert (await task_of(bus, task.id)).result == [0, 1, 2]


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


async def test_what_a_step_does_on_the_bus_is_committed_with_its_result(bus: Bus) -> None:
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


async def test_phases_are_shown_told_and_kept_once(bus: Bus) -> None:
    told: list[TaskChange] = []
    steps: list[tuple[str, str]] = []

    @agentbus.workflow("phased", phases=["planning", "plan_awaiting_approval", "building"])
    async def phased(task: Task) -> None:
        await task.phase("planning")
        await task.step("plan", make_plan, "x")
        await task.phase("plan_awaiting_approval")
        await task.approval("plan")
        await task.phase("building")
        with pytest.raises(InvalidInput):
            await task.phase("dreaming")

    task = await bus.tasks.start(phased)

    async def on_step(change: TaskChange) -> None:
        steps.append((change.name, change.status))

    await work_off(bus, phased, on_phase=told.append, on_step=on_step)
    record = await task_of(bus, task.id)
    assert (record.status, record.phase) == ("waiting", "plan_awaiting_approval")
    await bus.tasks.approve(task.id, by="ada")
    await work_off(bus, phased, on_phase=told.append, on_step=on_step)
    assert (await task_of(bus, task.id)).phase == "building"
    assert [change.name for change in told] == ["planning", "plan_awaiting_approval", "building"]
    assert steps == [("plan", "running"), ("plan", "finished")]
    events = [event.facts async for event in bus.events(kind="task_phase")]
    assert [(one["before"], one["phase"]) for one in events] == [
        (None, "planning"),
        ("planning", "plan_awaiting_approval"),
        ("plan_awaiting_approval", "building"),
    ]


async def test_a_callback_that_fails_holds_nobody_up(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    def fail(change: TaskChange) -> None:
        raise ValueError("no")

    task = await bus.tasks.start(feature, "x")
    await work_off(bus, feature, on_step=fail)
    assert (await task_of(bus, task.id)).status == "completed"
    assert "a callback failed" in caplog.text


async def test_progress_is_the_step_s_or_the_task_s(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    gate = calls.gate("slow")

    @agentbus.workflow("slow")
    async def slow(task: Task) -> None:
        async def work() -> None:
            await task.progress(40, "writing tests")
            await calls("slow")

        await task.progress(10, "beginning")
        found = await bus.tasks.get(task.id)
        assert found is not None
        assert found.note == "beginning"
        await task.step("work", work)

    task = await bus.tasks.start(slow)
    async with working(bus, slow):
        await soon(calls.begun["slow"].wait())
        record = await task_of(bus, task.id)
        assert (record.progress, record.note, record.status) == (10, "writing tests", "running")
        assert (await step_of(bus, task.id, "work")).progress == 40
        gate.set()
        await soon(bus.tasks.wait(task.id))


async def test_a_checkpoint_of_a_task_is_saved_once_and_can_be_read(bus: Bus) -> None:
    found: list[Any] = []

    @agentbus.workflow("saving")
    async def saving(task: Task) -> int:
        assert await task.restore("absent") is None
        number = await task.checkpoint("after_planning", {"plan": 1}, notes="so far")
        await task.approval("go")
        last = await task.restore("after_planning")
        assert last is not None
        found.append(last.snapshot)
        return number

    task = await bus.tasks.start(saving)
    await work_off(bus, saving)
    await bus.tasks.approve(task.id, by="ada")
    await work_off(bus, saving)
    record = await task_of(bus, task.id)
    page = await bus.checkpoints.list(task.id, kind="task")
    assert [(one.id, one.name, one.notes) for one in page.items] == [(record.result, "after_planning", "so far")]
    assert found == [{"plan": 1}]


async def test_workflows_take_typed_arguments(bus: Bus) -> None:
    got: list[Any] = []

    @agentbus.workflow("typed-arguments")
    async def typed(task: Task, plan: Plan, *more: int, deep: bool = False) -> None:
        got.append((plan, more, deep))

    await bus.tasks.start(typed, Plan(3, ("a",)), 1, 2, keywords={"deep": True})
    await work_off(bus, typed)
    assert got == [(Plan(3, ("a",)), (1, 2), True)]
    with pytest.raises(InvalidInput, match="does not take these arguments"):
        await bus.tasks.start(typed)


async def test_only_the_annotations_that_matter_are_looked_up(bus: Bus) -> None:
    class Local(msgspec.Struct):
        n: int

    async def work(task: OnlyForTypeCheckers, n: int) -> int:  # type: ignore[name-defined]  # noqa: F821
        return n

    def hidden() -> Local:
        return Local(1)

    @agentbus.workflow("annotated")
    async def annotated(task: OnlyForTypeCheckers, n: int) -> int:  # type: ignore[name-defined]  # noqa: F821
        with pytest.raises(InvalidInput, match="hidden returns cannot be found"):
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


async def test_tasks_are_listed_and_counted(bus: Bus) -> None:
    for n in range(5):
        await bus.tasks.start(feature, str(n), id=f"f-{n}")
    await bus.tasks.start("other", id="o-1")
    await work_off(bus, feature)
    page = await bus.tasks.list(limit=4)
    assert [task.id for task in page.items] == ["o-1", "f-4", "f-3", "f-2"]
    rest = await bus.tasks.list(limit=4, cursor=page.cursor)
    assert [task.id for task in rest.items] == ["f-1", "f-0"]
    assert rest.cursor is None
    assert [task.id for task in (await bus.tasks.list(status="pending")).items] == ["o-1"]
    found = await bus.tasks.list(status=["pending", "completed"], workflow="feature")
    assert len(found.items) == 5
    statistics = await bus.tasks.statistics()
    assert statistics.tasks == {"completed": 5, "pending": 1}
    assert statistics.workflows == {"feature": {"completed": 5}, "other": {"pending": 1}}
    assert statistics.steps == {"finished": 5}
    assert statistics.oldest_pending is not None
    assert (await bus.tasks.statistics(workflow="other")).steps == {}
    assert await bus.tasks.get("nobody") is None
    with pytest.raises(UnknownTask):
        await bus.tasks.steps("nobody")


async def test_only_workflows_are_worked_with(bus: Bus) -> None:
    with pytest.raises(InvalidInput, match="needs a workflow"):
        await bus.tasks.run_worker()
    with pytest.raises(InvalidInput, match="not a workflow"):
        await bus.tasks.run_worker(make_plan)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="the same name"):
        await bus.tasks.run_worker(feature, feature)
    with pytest.raises(InvalidInput, match="async"):
        agentbus.workflow("sync")(make_plan)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await bus.tasks.start(make_plan)  # type: ignore[arg-type]
