"""Workflows for the tests of the command line: imported by them, and by the workers that they start."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import agentbus


async def make_plan(request: str, feedback: str | None = None) -> dict[str, Any]:
    return {"request": request, "feedback": feedback}


async def build(part: str) -> str:
    # Long enough for what runs beside it to have begun.
    await asyncio.sleep(0.03)
    return f"{part} built"


async def write(task: agentbus.Task) -> str:
    return f"written: {task.note}"


@agentbus.workflow("poison")
async def poison(task: agentbus.Task) -> str:
    """Ends its worker's process, each time in another way, until it is let be."""
    await task.step("before", lambda: None)
    return await task.step("swallow", swallow, task)


async def swallow(task: agentbus.Task) -> str:
    if Path("antidote").exists():
        return "well"
    match task.attempt % 3:
        case 1:
            os.kill(os.getpid(), signal.SIGKILL)
        case 2:
            os._exit(7)
        case _:
            os.kill(os.getpid(), signal.SIGSEGV)
    return "dead"


@agentbus.workflow("docs")
async def docs(task: agentbus.Task) -> str:
    return await task.step("write", write, task)


@agentbus.workflow("feature", phases=["planning", "building"])
async def feature(task: agentbus.Task, request: str) -> dict[str, Any]:
    """Asks for a plan until it is approved, then builds both parts of it at once."""
    await task.phase("planning")
    plan = await task.step("plan", make_plan, request)
    while not (verdict := await task.approval("plan", show=plan)).approved:
        plan = await task.step("plan", make_plan, request, verdict.reason)
    await task.phase("building")
    await asyncio.gather(task.step("front", build, "front"), task.step("back", build, "back"))
    written = await (await task.start(docs))
    return {"plan": plan, "docs": written}


async def stay(name: str) -> str:
    """Says that it has begun, and ends when it is let."""
    Path(f"{name}.begun").touch()
    while not Path(f"{name}.go").exists():  # noqa: ASYNC110 - another process lets it
        await asyncio.sleep(0.01)
    return name


@agentbus.workflow("order")
async def order(task: agentbus.Task, name: str) -> str:
    """A step that may be repeated, then one that must not."""
    await task.step("pack", stay, f"{name}-pack")
    return await task.step("charge", stay, f"{name}-charge", once=True)


def refuse() -> None:
    raise ValueError("no such file")


@agentbus.workflow("broken")
async def broken(task: agentbus.Task) -> None:
    await task.step("read", refuse)


def no_workflow() -> None:
    """Only to be found where a workflow is looked for."""
