"""One of many concurrent processes on one bus: ``open`` it for the first time, or ``write`` for some seconds."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import agentbus
from tests.support.processes import crowd, say


async def opening(path: str, number: int, gate: Callable[[], None]) -> dict[str, Any]:
    gate()
    begun = time.monotonic()
    async with agentbus.connect(path) as bus:
        opened = time.monotonic() - begun
        await bus.declare(agentbus.pool("jobs"))
        async with bus.agent(f"agent-{number}", type="worker") as agent:
            receipt = await agent.send(agentbus.pool("jobs"), "note", number)
    return {"id": receipt.id, "opened": opened, "took": time.monotonic() - begun}


async def writing(path: str, seconds: float, number: int, gate: Callable[[], None]) -> dict[str, Any]:
    log = Path(path) / "bus.db-wal"
    count = largest = 0
    longest = 0.0
    async with (
        agentbus.connect(path) as bus,
        bus.agent(f"agent-{number}", type="worker") as agent,
    ):
        gate()
        end = time.monotonic() + seconds
        while (before := time.monotonic()) < end:
            await agent.send(agentbus.pool("jobs"), "note", {"text": "x" * 200})
            longest = max(longest, time.monotonic() - before)
            count += 1
            if count % 20 == 0:
                largest = max(largest, os.stat(log).st_size)
    return {"count": count, "longest": longest, "wal": largest}


def main(what: str, path: str, count: str, seconds: str = "0") -> None:
    if what == "open":
        answers = crowd(int(count), lambda number, gate: asyncio.run(opening(path, number, gate)))
    else:
        task = partial(writing, path, float(seconds))
        answers = crowd(int(count), lambda number, gate: asyncio.run(task(number, gate)))
    say("answers", json.dumps(answers))


main(*sys.argv[1:])
