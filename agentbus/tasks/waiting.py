"""Waiting for the end of a task, from outside of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentbus.errors import UnknownTask
from agentbus.operations.holding import ENDED, ended_channel
from agentbus.operations.task_reading import get_task
from agentbus.records import TaskRecord

if TYPE_CHECKING:
    from agentbus.bus import Bus


async def ended(bus: Bus, task: str, patience: int | None) -> TaskRecord | None:
    """The record of a task once it has ended; None if it has not within so many milliseconds."""
    engine = bus.engine
    deadline = None if patience is None else engine.clock.now().awake + patience
    # Listen first, then look: what comes in between rings.
    ear = engine.hub.watch((ended_channel(task),))
    try:
        async with bus.listening.to(ENDED):
            while True:
                record = await engine.look(get_task, task)
                if record is None:
                    raise UnknownTask(task=task)
                if record.ended is not None:
                    return record
                left = None if deadline is None else deadline - engine.clock.now().awake
                if left is not None and left <= 0:
                    return None
                await ear.wait(None if left is None else left / 1000)
    finally:
        ear.close()
