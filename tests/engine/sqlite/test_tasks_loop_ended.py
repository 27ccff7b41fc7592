"""User code that ends the event loop, and with it a worker that can still release its tasks.

A server is not asked for anything any more at that point: there the task is lost when its lease runs out.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any, cast

import pytest

import agentbus
from agentbus import Task
from tests.api.task_workers import task_of


def exits(*_: object) -> None:
    sys.exit(3)


@pytest.mark.parametrize("how", ["awaited", "concurrent", "workflow", "signal", "cancelled", "caller"])
def test_code_that_ends_the_event_loop_counts_as_a_lost_worker(how: str, tmp_path: Path) -> None:
    uncounted = {"cancelled", "caller"}

    async def child() -> None:
        if how == "signal":
            signal.raise_signal(signal.SIGUSR1)
        sys.exit(2)

    async def step() -> None:
        started = asyncio.create_task(child())
        await (asyncio.Event().wait() if how == "concurrent" else started)

    @agentbus.workflow("poison")
    async def poison(task: Task) -> None:
        await (step() if how == "workflow" else task.step("exits", step))

    @agentbus.workflow("long")
    async def long(task: Task) -> None:
        async def waits() -> None:
            if how == "cancelled":
                asyncio.get_running_loop().call_soon(workers[-1].cancel)
            begun[-1].set()
            await asyncio.Event().wait()

        await task.step("waits", waits)

    workflow = long if how in uncounted else poison
    begun: list[asyncio.Event] = []
    workers: list[asyncio.Task[Any]] = []

    async def work() -> None:
        workers.append(cast("asyncio.Task[Any]", asyncio.current_task()))
        async with agentbus.connect(tmp_path) as bus:
            if await bus.tasks.get("t-1") is None:
                await bus.tasks.start(workflow, id="t-1", max_losses=2)
            await bus.tasks.run_worker(workflow)

    async def main() -> None:
        if how != "caller":
            await work()
        else:
            task = asyncio.create_task(work())
            await begun[-1].wait()
            sys.exit(f"{task} is left behind")

    async def look() -> tuple[str, int, str | None]:
        async with agentbus.connect(tmp_path) as bus:
            record = await task_of(bus, "t-1")
            return record.status, record.losses, None if record.error is None else record.error.type

    before = signal.signal(signal.SIGUSR1, exits)
    try:
        for losses in (1, 2):
            begun.append(asyncio.Event())
            with pytest.raises(asyncio.CancelledError if how == "cancelled" else SystemExit):
                asyncio.run(main())
            counted = (("pending", 1, None), ("failed", 2, "WorkersLost"))[losses - 1]
            assert asyncio.run(look()) == (("pending", 0, None) if how in {*uncounted, "signal"} else counted)
    finally:
        signal.signal(signal.SIGUSR1, before)
