"""Tasks on a bus that cannot be written for a while: what was done is not done again, and nothing fails for it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import agentbus
from tests.faults.rows import lock_held


async def test_a_step_that_is_done_while_the_bus_is_locked_is_kept_as_soon_as_it_can_be(tmp_path: Path) -> None:
    path = tmp_path / "bus"
    executed: list[int] = []
    inside, leave = asyncio.Event(), asyncio.Event()

    async def work() -> str:
        executed.append(1)
        inside.set()
        await leave.wait()
        return "done"

    @agentbus.workflow("flow")
    async def flow(task: agentbus.Task) -> str:
        return await task.step("work", work)

    async with agentbus.connect(path, lock_timeout=0.2) as bus:
        worker = asyncio.create_task(bus.tasks.run_worker(flow))
        await bus.tasks.start(flow, id="t")
        await inside.wait()
        with lock_held(path):
            leave.set()
            # Longer than a write waits for the lock.
            await asyncio.sleep(0.7)
        assert await bus.tasks.result("t", timeout=20) == "done"
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
    assert executed == [1]
