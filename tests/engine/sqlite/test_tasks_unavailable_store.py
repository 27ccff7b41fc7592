"""A store that cannot be written for a while is no failure of what a task was at."""

from __future__ import annotations

import fcntl
import logging
from pathlib import Path

import anyio
import pytest

import agentbus
from agentbus import Task
from tests.api.helpers import eventually
from tests.api.task_workers import step_of, task_of, working
from tests.support.clock import FakeClock


@pytest.mark.parametrize("once", [False, True])
async def test_a_result_that_cannot_be_written_yet_is_written_later_and_the_step_does_not_run_again(
    once: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    directory = tmp_path / "bus"
    made: list[int] = []
    async with agentbus.connect(directory, clock=clock, lock_timeout=0.1) as bus:
        with open(directory / "bus.lock") as lock:

            @agentbus.workflow("held-up")
            async def held_up(task: Task) -> int:
                def work() -> int:
                    made.append(task.attempt)
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    return len(made)

                return await task.step("work", work, once=once)

            task = (await bus.tasks.start(held_up)).id
            with caplog.at_level(logging.WARNING, logger="agentbus"):
                async with working(bus, held_up, lease=60):
                    await eventually(clock, lambda: f"{task}: retrying" in caplog.text)
                    fcntl.flock(lock, fcntl.LOCK_UN)
                    with anyio.fail_after(60):
                        while (await task_of(bus, task)).status != "completed":
                            await clock.pass_time(1)
        step = await step_of(bus, task, "work")
        assert (step.status, step.failures, step.result) == ("finished", 0, 1)
        assert made == [1]
