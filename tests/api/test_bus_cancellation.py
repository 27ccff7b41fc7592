"""A bus that is cancelled while it is opened or closed leaves no connection and no thread behind."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import suppress
from typing import Any

import pytest

from agentbus import Bus
from tests.conftest import Engine

MOMENTS = (0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144, 233)
"""Turns of the event loop."""


def cancel_later(task: asyncio.Task[None], turns: int) -> None:
    """Cancel a task as asyncio does on Ctrl-C and in its task groups, after some turns of the loop."""
    if turns:
        asyncio.get_running_loop().call_soon(cancel_later, task, turns - 1)
    else:
        task.cancel()


async def use_and_cancel(bus: Bus, moment: str, turns: int) -> None:
    """Open and close a bus, and cancel that some turns after the engine has begun to open or to close."""
    call = getattr(bus._engine, moment)

    async def cancelled(**options: Any) -> Any:
        cancel_later(user, turns)
        return await call(**options)

    async def use() -> None:
        async with bus:
            pass

    setattr(bus._engine, moment, cancelled)
    user = asyncio.create_task(use())
    with suppress(asyncio.CancelledError):
        await user


@pytest.mark.parametrize("moment", ["open", "close"])
async def test_a_cancelled_bus_leaves_nothing_open(engine: Engine, moment: str) -> None:
    before = set(threading.enumerate())
    for turns in MOMENTS:
        await use_and_cancel(engine.connect(), moment, turns)
    # A connection that was not closed warns when it is collected, and a warning is an error.
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        # Threads of the loop's executor stay.
        if "connection" in thread.name:
            thread.join(30)
            assert not thread.is_alive(), thread
    async with engine.connect() as bus, bus.agent("a", type="worker") as agent:
        assert await agent.receive(timeout=0) is None
