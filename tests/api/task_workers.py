"""Workers and tasks for the tests of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio

from agentbus import Bus
from agentbus.api.tasks.workflow import Workflow
from agentbus.records import StepRecord, TaskRecord
from tests.api.helpers import running
from tests.support.clock import FakeClock


@asynccontextmanager
async def working(bus: Bus, *workflows: Workflow[..., Any], **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """A worker for the length of a block."""
    async with running(bus.tasks.run_worker(*workflows, **options)) as worker:
        yield worker


async def work_off(bus: Bus, *workflows: Workflow[..., Any], **options: Any) -> None:
    """Work until there is nothing to do."""
    with anyio.fail_after(60):
        await bus.tasks.run_worker(*workflows, until_idle=True, **options)


async def comes_to(bus: Bus, clock: FakeClock, task: str, status: str) -> TaskRecord:
    """The record of a task once it has this status, without time passing on the bus's clock."""
    with anyio.fail_after(60):
        while True:
            record = await task_of(bus, task)
            if record.status == status:
                return record
            await clock.settle()


async def task_of(bus: Bus, task: str) -> TaskRecord:
    """The record of a task that must exist."""
    record = await bus.tasks.get(task)
    assert record is not None, f"{task} is not there"
    return record


async def step_of(bus: Bus, task: str, key: str) -> StepRecord:
    """The step of a task that must have come to it, and that counts."""
    return next(step for step in await bus.tasks.steps(task) if step.key == key)


async def step_comes_to(bus: Bus, clock: FakeClock, task: str, key: str, status: str, attempt: int = 1) -> StepRecord:
    """A step once it has this status in this attempt, without time passing on the bus's clock."""
    with anyio.fail_after(60):
        while True:
            for step in await bus.tasks.steps(task):
                if (step.key, step.status, step.attempt) == (key, status, attempt):
                    return step
            await clock.settle()


async def statuses(bus: Bus, task: str, kind: str = "step") -> dict[str, str]:
    """The steps of a task that count, by their keys."""
    return {step.key: step.status for step in await bus.tasks.steps(task) if step.kind == kind}


async def kinds_of(bus: Bus, task: str) -> list[str]:
    """Return the kinds of the events of a task, in order."""
    return [event.kind async for event in bus.events(subject=f"task:{task}")]


class Calls:
    """Counts what was executed, and stops where it is told to."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.begun: dict[str, asyncio.Event] = {}

    def gate(self, name: str) -> asyncio.Event:
        """The step of this name waits here until it is opened; ``begun`` says that it has come to it."""
        self.begun[name] = asyncio.Event()
        self.gates[name] = asyncio.Event()
        return self.gates[name]

    async def __call__(self, name: str, result: Any = None) -> Any:
        self.made.append(name)
        if name in self.gates:
            self.begun[name].set()
            await self.gates[name].wait()
        return result
