"""Unusual workflows and operator actions: the rules hold, or a named error explains why."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import anyio
import pytest

import agentbus
from agentbus import Agent, Bus, Task
from agentbus.errors import OutcomeUnknown
from agentbus.operations.task_steps import finish_step
from tests.api.helpers import eventually, soon
from tests.api.task_workers import Calls, comes_to, kinds_of, statuses, step_of, task_of, work_off, working
from tests.support.cases import each
from tests.support.clock import FakeClock

# What a workflow or a step does


@pytest.mark.one_engine
@each("where", ["workflow", "step"])
async def test_a_foreign_cancellation_is_a_failure_not_a_loop(where: str, bus: Bus) -> None:
    """Code that awaits something which was cancelled gets CancelledError, though the task was not cancelled."""
    runs = 0

    async def stray() -> None:
        nonlocal runs
        runs += 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    @agentbus.workflow("flow")
    async def flow(task: Task) -> None:
        await (stray() if where == "workflow" else task.step("stray", stray))

    await bus.tasks.start(flow, id=where)
    await work_off(bus, flow)
    assert (await task_of(bus, where)).status == "failed"
    assert runs == 1


@pytest.mark.one_engine
@each("kind", [GeneratorExit, BaseException])
@each("where", ["workflow", "step"])
async def test_a_base_exception_ends_the_task_or_the_worker_and_keeps_finished_steps(
    where: str, kind: type[BaseException], bus: Bus
) -> None:
    calls = Calls()

    async def leave() -> None:
        raise kind

    name = f"{where}-{kind.__name__}"

    @agentbus.workflow(name)
    async def flow(task: Task) -> None:
        await task.step("one", calls, "one")
        await (leave() if where == "workflow" else task.step("leave", leave))

    await bus.tasks.start(flow, id=name)
    try:
        with anyio.fail_after(60):
            await bus.tasks.run_worker(flow, until_idle=True)
    except (kind, BaseExceptionGroup):
        pass
    assert (await task_of(bus, name)).status in {"failed", "pending"}
    assert calls.made == ["one"]


@pytest.mark.one_engine
async def test_a_step_inside_of_a_step_is_misuse(bus: Bus) -> None:
    """When the outer one has finished, the inner one would not be reached again."""

    @agentbus.workflow("flow")
    async def flow(task: Task) -> None:
        async def outer() -> None:
            await task.step("inner", len, "abc")

        await task.step("outer", outer)

    await bus.tasks.start(flow, id="t")
    await work_off(bus, flow)
    record = await task_of(bus, "t")
    assert record.status == "failed"
    assert record.error is not None
    assert "inside" in record.error.message
    assert list(await statuses(bus, "t")) == ["outer"]


@pytest.mark.one_engine
@each(
    "argument",
    [2**70, {(1, 2): 3}, "\ud800", object(), float("nan"), {1, "a"}, [[]] * 3, b"\xff", lambda: None],
    ids=["big", "tuple keys", "surrogate", "object", "nan", "mixed set", "lists", "bytes", "function"],
)
async def test_a_step_takes_whatever_its_function_takes(argument: Any, bus: Bus) -> None:
    taken: list[Any] = []

    @agentbus.workflow("flow")
    async def flow(task: Task) -> str:
        await task.step("take", taken.append, argument, returns=type(None))
        await task.approval("go")
        return "done"

    task = (await bus.tasks.start(flow)).id
    await work_off(bus, flow)
    assert (await task_of(bus, task)).error is None
    await bus.tasks.approve(task, by="ada")
    await work_off(bus, flow)
    assert (await task_of(bus, task)).result == "done"
    assert len(taken) == 1


@pytest.mark.one_engine
async def test_a_workflow_that_answers_cancellation_with_a_result_does_not_end_without_its_approval(
    bus: Bus, clock: FakeClock
) -> None:
    @agentbus.workflow("flow")
    async def flow(task: Task) -> str:
        try:
            await task.approval("go")
        except BaseException:
            return "without asking"
        return "asked"

    await bus.tasks.start(flow, id="t")
    await work_off(bus, flow)
    record = await task_of(bus, "t")
    assert (record.status, record.waits) == ("waiting", ["approval:go"])
    await bus.tasks.approve("t", by="ada")
    await work_off(bus, flow)
    assert (await task_of(bus, "t")).result == "asked"


@pytest.mark.one_engine
async def test_one_of_several_branches_fails_while_another_waits_for_an_approval(bus: Bus, clock: FakeClock) -> None:
    broken = [True]

    async def fragile() -> str:
        if broken[0]:
            raise ValueError("broken")
        return "mended"

    @agentbus.workflow("flow")
    async def flow(task: Task) -> list[Any]:
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(task.approval("go"))
            made = group.create_task(task.step("fragile", fragile))
        return [asked.result().approved, made.result()]

    await bus.tasks.start(flow, id="t")
    await work_off(bus, flow)
    record = await task_of(bus, "t")
    assert record.status == "failed"
    assert record.error is not None
    assert (record.error.type, record.error.step) == ("StepFailed", "fragile") or record.error.step == "fragile"
    broken[0] = False
    await bus.tasks.approve("t", "go", by="ada")
    await bus.tasks.resume("t")
    await work_off(bus, flow)
    assert (await task_of(bus, "t")).result == [True, "mended"]


async def test_auto_passes_the_open_approvals_of_a_stopped_task_and_its_sub_tasks(bus: Bus) -> None:
    @agentbus.workflow("asks")
    async def asks(task: Task) -> bool:
        return (await task.approval("go")).auto

    @agentbus.workflow("flow")
    async def flow(task: Task) -> list[bool]:
        child = await task.start(asks)
        return [(await task.approval("go")).auto, await child]

    await bus.tasks.start(flow, id="t")
    await work_off(bus, flow, asks)
    await bus.tasks.stop("t")
    await bus.tasks.auto("t", True)
    await bus.tasks.resume("t")
    await work_off(bus, flow, asks)
    assert (await task_of(bus, "t")).result == [True, True]


# Sub-tasks


@agentbus.workflow("child")
async def child(task: Task) -> str:
    await task.step("first", _calls, "first")
    await task.step("second", _calls, "second")
    await task.step("third", _calls, "third")
    return "made"


@agentbus.workflow("parent")
async def parent(task: Task) -> str:
    return await (await task.start(child))


_calls = Calls()


@pytest.fixture
def calls() -> Calls:
    _calls.__init__()  # type: ignore[misc]
    return _calls


@pytest.mark.parametrize("how", ["halt", "stop"])
async def test_a_resumed_parent_continues_with_its_sub_tasks(
    how: str, bus: Bus, clock: FakeClock, calls: Calls
) -> None:
    """A sub-task that stopped with its parent resumes with it, after its last finished step."""
    calls.gate("second")
    await bus.tasks.start(parent, id="p")
    async with working(bus, parent, child):
        await soon(calls.begun["second"].wait())
        await getattr(bus.tasks, how)("p")
        calls.gates.pop("second").set()
        await comes_to(bus, clock, "p/1", "halted" if how == "halt" else "stopped")
        await bus.tasks.resume("p")
        with anyio.fail_after(60):
            assert await bus.tasks.result("p") == "made"
    assert calls.made == ["first", "second", *(["second"] if how == "stop" else []), "third"]


async def test_the_ids_of_sub_tasks_never_collide(bus: Bus) -> None:
    """Long ids of parents, and ids that a caller chose, do not meet those of sub-tasks."""
    calls = Calls()

    @agentbus.workflow("leaf")
    async def leaf(task: Task) -> str:
        await task.step("one", calls, task.id)
        return "leaf"

    @agentbus.workflow("root")
    async def root(task: Task) -> str:
        return await (await task.start(leaf))

    long = "x" * 120
    await bus.tasks.start(leaf, id="p/1")
    for id in ("p", f"{long}-a", f"{long}-b"):
        await bus.tasks.start(root, id=id)
    await work_off(bus, leaf, root)
    for id in ("p", f"{long}-a", f"{long}-b"):
        assert (await task_of(bus, id)).status == "completed", (await task_of(bus, id)).error
    assert len(calls.made) == 4


async def test_sub_tasks_of_sub_tasks_may_be_deep(bus: Bus) -> None:
    @agentbus.workflow("deep")
    async def deep(task: Task, depth: int) -> int:
        return 0 if depth == 0 else 1 + await (await task.start(deep, depth - 1))

    await bus.tasks.start(deep, 70, id="t")
    with anyio.fail_after(60):
        await bus.tasks.run_worker(deep, until_idle=True)
    record = await task_of(bus, "t")
    assert record.error is None
    assert record.result == 70


async def test_waiting_for_a_sub_task_ends_when_a_redo_of_its_parent_stops_it(
    bus: Bus, clock: FakeClock, calls: Calls
) -> None:
    calls.gate("second")
    await bus.tasks.start(parent, id="p")
    async with working(bus, parent, child):
        await soon(calls.begun["second"].wait())
        (first,) = (await bus.tasks.list(parent="p")).items
        waiting = asyncio.create_task(bus.tasks.wait(first.id))
        await clock.settle()
        calls.gates.pop("second")
        await bus.tasks.redo("p", "child")
        record = await soon(waiting)
        assert record is not None
        assert record.status == "stopped"
        with anyio.fail_after(60):
            assert await bus.tasks.result("p") == "made"


# Workers


async def test_a_task_reclaimed_by_its_worker_before_its_release_is_kept_and_can_be_stopped(
    bus: Bus, clock: FakeClock
) -> None:
    """A step that takes its time to be cancelled; meanwhile the same worker has the task again."""
    leaving, left, second = asyncio.Event(), asyncio.Event(), asyncio.Event()
    attempts = itertools.count(1)
    cancelled: list[int] = []

    @agentbus.workflow("flow")
    async def flow(task: Task) -> None:
        async def slow() -> None:
            # The worker may claim the task again before it cancels the first attempt.
            attempt = next(attempts)
            try:
                if attempt == 2:
                    second.set()
                await asyncio.Event().wait()
            finally:
                cancelled.append(attempt)
                if attempt == 1:
                    with anyio.CancelScope(shield=True):
                        leaving.set()
                        await left.wait()

        await task.step("slow", slow)

    await bus.tasks.start(flow, id="t")
    async with working(bus, flow, lease=10):
        await comes_to(bus, clock, "t", "running")
        await clock.settle()
        await bus.tasks.redo("t", "slow")
        try:
            await soon(leaving.wait())
            await soon(second.wait())
        finally:
            left.set()
        await clock.settle()
        await clock.pass_time(30)
        record = await task_of(bus, "t")
        assert (record.status, (await step_of(bus, "t", "slow")).attempt) == ("running", 1), "its lease was renewed"
        await bus.tasks.stop("t")
        await eventually(clock, lambda: cancelled == [1, 2])


async def test_every_change_of_a_task_is_an_event(bus: Bus, clock: FakeClock) -> None:
    """The current status follows from the sequence of events."""

    @agentbus.workflow("flow")
    async def flow(task: Task) -> bool:
        return (await task.approval("go", expires=60)).approved

    await bus.tasks.start(flow, id="t")
    async with working(bus, flow):
        await comes_to(bus, clock, "t", "waiting")
        await clock.pass_time(61)
        await comes_to(bus, clock, "t", "completed")
    states = [kind.removeprefix("task_") for kind in await kinds_of(bus, "t") if kind.startswith("task_")]
    assert states == ["started", "running", "waiting", "pending", "running", "completed"]


async def test_a_note_reaches_a_step_that_was_named_with_its_kind(bus: Bus) -> None:
    notes: list[str | None] = []

    @agentbus.workflow("flow")
    async def flow(task: Task) -> None:
        await task.step("plan", lambda: notes.append(task.note))

    await bus.tasks.start(flow, id="t")
    await work_off(bus, flow)
    await bus.tasks.redo("t", "step:plan", note="again")
    await work_off(bus, flow)
    assert notes == [None, "again"]


@pytest.mark.one_engine
@pytest.mark.parametrize("committed", [True, False])
async def test_a_result_with_an_unknown_commit_outcome_is_looked_up(
    committed: bool, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an I/O error at the commit, or a lost connection: the task continues from what is recorded."""
    calls = Calls()
    cut = [finish_step]
    write = Agent._write

    @agentbus.workflow("flow")
    async def flow(task: Task) -> str:
        await task.step("one", calls, "one")
        return "done"

    async def lossy(agent: Agent, operation: Any, request: Any, **options: Any) -> Any:
        if operation not in cut:
            return await write(agent, operation, request, **options)
        cut.clear()
        if committed:
            await write(agent, operation, request, **options)
        raise OutcomeUnknown(path="bus", reason="the connection was lost")

    monkeypatch.setattr(Agent, "_write", lossy)
    await bus.tasks.start(flow, id="t")
    await work_off(bus, flow)
    assert (await task_of(bus, "t")).result == "done"
    assert calls.made == ["one"] * (1 if committed else 2)
