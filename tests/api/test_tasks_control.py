"""Control: durable before it returns, seen by the worker at once, in every status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.errors import InvalidInput, UnknownStep, UnknownTask, WrongState
from agentbus.operations.tasks import TRANSITIONS
from agentbus.records import TaskRecord
from tests.api.helpers import eventually, soon
from tests.api.task_workers import Calls, comes_to, kinds_of, statuses, step_of, task_of, work_off, working
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock

STATES = ("pending", "running", "waiting", "halted", "completed", "failed", "stopped")


class Stage:
    """A workflow of three steps that can be brought to any state; ``calls`` says what was executed."""

    def __init__(self) -> None:
        self.calls = Calls()
        self.notes: list[str | None] = []
        self.broken = False
        self.asks = False

        @agentbus.workflow("stage")
        async def stage(task: Task) -> list[str]:
            first = await task.step("first", self.calls, "first", "1")

            async def second() -> str:
                self.notes.append(task.note)
                await self.calls("second")
                if self.broken:
                    raise RuntimeError("broken")
                return "2"

            two = await task.step("second", second)
            if self.asks:
                await task.approval("go")
            return [first, two, await task.step("third", self.calls, "third", "3")]

        self.workflow = stage

    async def at(self, bus: Bus, clock: FakeClock, state: str) -> str:
        """A task in this state; a running one is in its second step, and its worker continues."""
        self.broken = state == "failed"
        self.asks = state == "waiting"
        task = (await bus.tasks.start(self.workflow)).id
        if state in {"completed", "failed", "waiting"}:
            await work_off(bus, self.workflow)
        elif state == "halted":
            await bus.tasks.halt(task)
        elif state == "stopped":
            await bus.tasks.stop(task)
        elif state == "running":
            self.calls.gate("second")
        self.broken = False
        self.asks = False
        return task


@pytest.fixture
def stage() -> Stage:
    return Stage()


ACTIONS: dict[str, Callable[[Bus, str], Awaitable[TaskRecord]]] = {
    "halt": lambda bus, task: bus.tasks.halt(task, by="ada"),
    "continue": lambda bus, task: bus.tasks.continue_(task, by="ada"),
    "stop": lambda bus, task: bus.tasks.stop(task, by="ada"),
    "resume": lambda bus, task: bus.tasks.resume(task, by="ada"),
    "redo": lambda bus, task: bus.tasks.redo(task, "first", by="ada"),
    "restart": lambda bus, task: bus.tasks.restart(task, by="ada"),
}


@each("state", STATES)
async def test_every_action_in_every_state_does_what_the_table_says_or_is_a_named_error(
    state: str, bus: Bus, clock: FakeClock
) -> None:
    for action, act in ACTIONS.items():
        stage = Stage()
        task = await stage.at(bus, clock, state)
        if action == "redo" and state in {"pending", "halted", "stopped"}:
            with pytest.raises(UnknownStep):
                await act(bus, task)
            continue
        async with anyio.create_task_group() as group:
            if state == "running":
                group.start_soon(bus.tasks.run_worker, stage.workflow)
                await soon(stage.calls.begun["second"].wait())
            before = await task_of(bus, task)
            allowed = TRANSITIONS[action].get(state)
            if allowed is None or (action, state) == ("continue", "running"):
                with pytest.raises(WrongState) as refusal:
                    await act(bus, task)
                assert refusal.value.fix
                assert await task_of(bus, task) == before
            else:
                assert (await act(bus, task)).status == allowed
            group.cancel_scope.cancel()


async def test_nothing_can_be_done_with_a_task_that_is_not_there(bus: Bus) -> None:
    calls: dict[str, Callable[[Bus, str], Awaitable[Any]]] = {
        **ACTIONS,
        "auto": lambda bus, task: bus.tasks.auto(task, True),
        "edit": lambda bus, task: bus.tasks.edit(task, name="x"),
        "approve": lambda bus, task: bus.tasks.approve(task, by="ada"),
    }
    for call in calls.values():
        with pytest.raises(UnknownTask):
            await call(bus, "nobody")


async def test_a_running_task_is_halted_before_its_next_step_and_continues_from_there(
    engine: Engine, clock: FakeClock, stage: Stage
) -> None:
    async with engine.connect() as bus, engine.connect() as people:
        gate = stage.calls.gate("second")
        task = (await bus.tasks.start(stage.workflow)).id
        async with working(bus, stage.workflow):
            await soon(stage.calls.begun["second"].wait())
            record = await people.tasks.halt(task, by="ada", reason="lunch")
            assert (record.status, record.halting) == ("running", True)
            await clock.settle()
            assert (await task_of(bus, task)).status == "running"
            gate.set()
            record = await comes_to(bus, clock, task, "halted")
            assert record.halting is False
            assert await statuses(bus, task) == {"first": "finished", "second": "finished"}
            await people.tasks.continue_(task, by="ada")
            await soon(bus.tasks.wait(task))
        assert stage.calls.made == ["first", "second", "third"]


async def test_what_was_to_be_halted_can_be_continued_before_it_is(bus: Bus, clock: FakeClock, stage: Stage) -> None:
    gate = stage.calls.gate("second")
    task = (await bus.tasks.start(stage.workflow)).id
    async with working(bus, stage.workflow):
        await soon(stage.calls.begun["second"].wait())
        await bus.tasks.halt(task)
        record = await bus.tasks.continue_(task)
        assert (record.status, record.halting) == ("running", False)
        gate.set()
        await soon(bus.tasks.wait(task))
    assert "task_halted" not in await kinds_of(bus, task)


async def test_a_halt_is_seen_by_the_next_worker_if_the_previous_one_died(
    bus: Bus, clock: FakeClock, stage: Stage
) -> None:
    stage.calls.gate("second")
    task = (await bus.tasks.start(stage.workflow)).id
    async with working(bus, stage.workflow):
        await soon(stage.calls.begun["second"].wait())
        await bus.tasks.halt(task)
    assert (await task_of(bus, task)).status == "halted"
    await work_off(bus, stage.workflow)
    assert stage.calls.made == ["first", "second"]


async def test_a_stop_cancels_the_step_that_runs_and_its_result_is_lost(
    engine: Engine, clock: FakeClock, stage: Stage
) -> None:
    async with engine.connect() as bus, engine.connect() as people:
        ended = asyncio.Event()

        @agentbus.workflow("endless")
        async def endless(task: Task) -> None:
            async def work() -> None:
                stage.calls.made.append("begun")
                try:
                    await asyncio.Event().wait()
                finally:
                    ended.set()

            await task.step("work", work)

        task = (await bus.tasks.start(endless)).id
        async with working(bus, endless) as worker:
            await comes_to(bus, clock, task, "running")
            while not stage.calls.made:
                await clock.settle()
            record = await people.tasks.stop(task, by="ada", reason="enough")
            assert (record.status, record.holder) == ("stopped", None)
            await soon(ended.wait())
            assert await statuses(bus, task) == {"work": "cancelled"}
            await clock.settle()
            assert not worker.done()
            # The worker is free for others.
            other = (await bus.tasks.start(endless)).id
            await comes_to(bus, clock, other, "running")
        assert [event.facts["reason"] async for event in bus.events(kind="task_stopped")] == ["enough"]


async def test_a_stopped_task_can_be_resumed_after_its_last_finished_step(
    bus: Bus, clock: FakeClock, stage: Stage
) -> None:
    stage.calls.gate("second")
    task = (await bus.tasks.start(stage.workflow)).id
    async with working(bus, stage.workflow):
        await soon(stage.calls.begun["second"].wait())
        await bus.tasks.stop(task)
    stage.calls.gates.clear()
    await bus.tasks.resume(task)
    await work_off(bus, stage.workflow)
    record = await task_of(bus, task)
    assert (record.status, record.result) == ("completed", ["1", "2", "3"])
    assert stage.calls.made == ["first", "second", "second", "third"]
    assert (await step_of(bus, task, "second")).attempt == 2


async def test_a_redo_repeats_a_step_and_all_that_follow_with_a_note_and_keeps_the_history(
    bus: Bus, clock: FakeClock, stage: Stage
) -> None:
    task = await stage.at(bus, clock, "completed")
    record = await bus.tasks.redo(task, "second", note="use the new client", by="ada", reason="it was wrong")
    assert (record.status, record.result, record.ended) == ("pending", None, None)
    assert await statuses(bus, task) == {"first": "finished"}
    await work_off(bus, stage.workflow)
    assert stage.calls.made == ["first", "second", "third", "second", "third"]
    assert stage.notes == [None, "use the new client"]
    assert (await step_of(bus, task, "second")).note == "use the new client"
    history = [(one.key, one.superseded) for one in await bus.tasks.steps(task, history=True)]
    assert history == [("first", 0), ("second", 1), ("third", 1), ("second", 0), ("third", 0)]
    (event,) = [event async for event in bus.events(kind="task_redone")]
    assert (event.actor, event.facts["step"], event.facts["note"]) == ("ada", "second", "use the new client")


async def test_a_redo_in_the_middle_of_a_step_takes_the_task_from_its_worker(
    engine: Engine, clock: FakeClock, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine.connect() as bus, engine.connect() as people:
        gate = stage.calls.gate("second")
        task = (await bus.tasks.start(stage.workflow)).id
        async with working(bus, stage.workflow):
            await soon(stage.calls.begun["second"].wait())
            with caplog.at_level(logging.INFO, logger="agentbus"):
                await people.tasks.redo(task, "first")
                while stage.calls.made.count("second") < 2:
                    await clock.settle()
                words = f"task {task} was interrupted for a redo or a restart"
                await eventually(clock, lambda: words in caplog.text)
            gate.set()
            await soon(bus.tasks.wait(task))
        assert [one for one in caplog.records if one.levelno > logging.INFO] == []
        assert stage.calls.made == ["first", "second", "first", "second", "third"]
        steps = [(one.key, one.status) for one in await bus.tasks.steps(task, history=True) if one.superseded]
        assert steps == [("first", "finished"), ("second", "cancelled")]


async def test_a_redo_invalidates_approvals_and_requests_them_again(bus: Bus, clock: FakeClock, stage: Stage) -> None:
    task = await stage.at(bus, clock, "waiting")
    stage.asks = True
    await bus.tasks.approve(task, "go", by="ada")
    await work_off(bus, stage.workflow)
    await bus.tasks.redo(task, "second")
    await work_off(bus, stage.workflow)
    record = await task_of(bus, task)
    assert (record.status, record.waits) == ("waiting", ["approval:go"])
    asked = await bus.tasks.approvals(task, status=None, history=True)
    assert [(one.status, one.superseded) for one in asked] == [("approved", 1), ("open", 0)]
    await bus.tasks.approve(task, "go", by="ada")
    await bus.tasks.redo(task, "approval:go")
    await work_off(bus, stage.workflow)
    assert (await task_of(bus, task)).status == "waiting"
    assert stage.calls.made.count("second") == 2


async def test_a_redo_of_a_step_that_was_not_reached_is_an_error_that_names_it(
    bus: Bus, clock: FakeClock, stage: Stage
) -> None:
    task = await stage.at(bus, clock, "completed")
    with pytest.raises(UnknownStep, match=r"'second#2'.*second"):
        await bus.tasks.redo(task, "second#2")
    with pytest.raises(InvalidInput):
        await bus.tasks.redo(task, "second#x")


async def test_a_task_that_is_redone_is_back_in_the_phase_of_that_step(bus: Bus) -> None:
    @agentbus.workflow("phased")
    async def phased(task: Task) -> None:
        for phase in ("planning", "building", "testing"):
            await task.phase(phase)
            await task.step(f"{phase}-step", Calls(), phase)
        await task.progress(70, "nearly there")

    task = (await bus.tasks.start(phased)).id
    await work_off(bus, phased)
    record = await bus.tasks.redo(task, "building-step")
    assert (record.phase, record.progress, record.note) == ("building", 0, None)
    record = await bus.tasks.redo(task, "phase:planning")
    assert record.phase is None
    await work_off(bus, phased)
    record = await task_of(bus, task)
    assert (record.status, record.phase, record.progress) == ("completed", "testing", 100)


async def test_a_restart_repeats_every_step(bus: Bus, clock: FakeClock, stage: Stage) -> None:
    task = await stage.at(bus, clock, "completed")
    record = await bus.tasks.restart(task, by="ada")
    assert (record.status, record.progress) == ("pending", 0)
    await work_off(bus, stage.workflow)
    assert stage.calls.made == ["first", "second", "third"] * 2
    assert (await task_of(bus, task)).result == ["1", "2", "3"]
    assert len(await bus.tasks.steps(task, history=True)) == 6


async def test_a_task_is_edited_and_its_workflow_finds_what_was_changed(bus: Bus, clock: FakeClock) -> None:
    seen: list[Any] = []

    @agentbus.workflow("told")
    async def told(task: Task) -> None:
        seen.append((task.name, task.context, task.settings))
        await task.approval("go")

    task = (await bus.tasks.start(told, name="One", context={"a": 1}, settings={"model": "large"})).id
    await work_off(bus, told)
    record = await bus.tasks.edit(
        task, name="Two", context={"b": 2}, settings={"model": "small"}, restarts=3, backoff=5, by="ada"
    )
    assert (record.name, record.restarts, record.backoff) == ("Two", 3, 5.0)
    await bus.tasks.approve(task, by="ada")
    await work_off(bus, told)
    assert seen == [("One", {"a": 1}, {"model": "large"}), ("Two", {"b": 2}, {"model": "small"})]
    (event,) = [event async for event in bus.events(kind="task_edited")]
    assert (event.actor, event.facts["changed"]) == ("ada", ["name", "context", "settings", "restarts", "backoff"])
    with pytest.raises(InvalidInput):
        await bus.tasks.edit(task, context=3)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="max_losses"):
        await bus.tasks.edit(task, by="ada")
    assert len([event async for event in bus.events(kind="task_edited")]) == 1


async def test_a_task_that_waits_for_its_time_is_resumed_at_once(bus: Bus, clock: FakeClock, stage: Stage) -> None:
    task = (await bus.tasks.start(stage.workflow, delay=3600)).id
    await bus.tasks.resume(task)
    await work_off(bus, stage.workflow)
    assert (await task_of(bus, task)).status == "completed"


async def test_the_operator_of_a_control_action_is_recorded(bus: Bus, clock: FakeClock, stage: Stage) -> None:
    task = (await bus.tasks.start(stage.workflow)).id
    await bus.tasks.halt(task, by="ada", reason="a")
    await bus.tasks.continue_(task, by="bob", reason="b")
    await bus.tasks.stop(task, by="cy", reason="c")
    trail = [(event.kind, event.actor, event.facts.get("reason")) async for event in bus.events(subject=f"task:{task}")]
    assert trail[1:] == [("task_halted", "ada", "a"), ("task_continued", "bob", "b"), ("task_stopped", "cy", "c")]
