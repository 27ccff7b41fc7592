"""Values that a task exposes: the last one is read while it runs or waits, and after it has ended."""

from __future__ import annotations

import pytest

import agentbus
from agentbus import Task
from agentbus.errors import InvalidPayload, Misuse, NotExposed, PayloadMismatch, UnknownTask
from tests.api.task_workers import Calls, statuses, task_of, work_off
from tests.conftest import Engine

calls = Calls()


@agentbus.workflow("staged")
async def staged(task: Task) -> None:
    await task.expose("stage", "plan")
    await task.expose("open", 3)
    await task.step("plan", calls, "plan")
    await task.expose("stage", {"phase": "review"})
    await task.approval("go")
    await task.expose("stage", "done")


async def test_the_last_value_is_read_at_any_time(engine: Engine) -> None:
    async with engine.connect() as bus:
        task = (await bus.tasks.start(staged)).id
        assert await bus.tasks.query(task) == {}
        await work_off(bus, staged)
    async with engine.connect() as bus:
        assert (await task_of(bus, task)).status == "waiting"
        assert await bus.tasks.query(task, "stage") == {"phase": "review"}
        assert await bus.tasks.query(task, "stage", as_=dict[str, str]) == {"phase": "review"}
        assert await bus.tasks.query(task) == {"stage": {"phase": "review"}, "open": 3}
        await bus.tasks.approve(task, by="ada")
        # A replay sets no earlier value again.
        await work_off(bus, staged)
        assert (await task_of(bus, task)).status == "completed"
        assert await bus.tasks.query(task) == {"stage": "done", "open": 3}
        assert set(await statuses(bus, task, "expose")) == {"stage", "open", "stage#2", "stage#3"}
        # What a redo invalidates is not read any more.
        await bus.tasks.redo(task, "plan")
        assert await bus.tasks.query(task) == {"stage": "plan", "open": 3}


async def test_what_is_not_exposed_is_an_error(engine: Engine) -> None:
    async with engine.connect() as bus:
        task = (await bus.tasks.start(staged)).id
        with pytest.raises(UnknownTask):
            await bus.tasks.query("nobody", "stage")
        await work_off(bus, staged)
        with pytest.raises(NotExposed) as missing:
            await bus.tasks.query(task, "stages")
        assert missing.value.facts["near"] == ["open", "stage"]
        with pytest.raises(PayloadMismatch):
            await bus.tasks.query(task, "open", as_=str)


async def test_waits_and_values_belong_to_the_workflow_not_to_a_step(engine: Engine) -> None:
    refused: list[str] = []

    @agentbus.workflow("inside")
    async def inside(task: Task) -> None:
        async def work() -> None:
            for call in (task.sleep(1), task.until(1), task.signal("x"), task.receive(), task.expose("x", 1)):
                with pytest.raises(Misuse):
                    await call
                refused.append("refused")

        await task.step("work", work)
        with pytest.raises(InvalidPayload):
            await task.expose("x", float("nan"))

    async with engine.connect() as bus:
        task = (await bus.tasks.start(inside)).id
        await work_off(bus, inside)
        assert (await task_of(bus, task)).status == "completed"
        assert len(refused) == 5
