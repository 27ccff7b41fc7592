"""Run a workflow that waits for everything there is, in its own process for each input line, which can name the write
before or after which the process dies."""

import asyncio
import json
import os
import signal
import sys
import tempfile
import traceback
from typing import Any

import agentbus
from tests.support.processes import say

NOTES = agentbus.pool("notes")


@agentbus.workflow("waits")
async def waits(task: agentbus.Task) -> list[Any]:
    """Notes each thing that it receives in a message of its own."""

    def note(name: str, value: Any) -> Any:
        task.unit.send(NOTES, "note", {"task": task.id, "name": name, "value": value})
        return value

    found = [await task.step("note", note, "early", await task.signal("early"))]
    message = await task.receive()
    found.append(await task.step("note", note, "message", None if message is None else message.payload))
    await task.sleep(0.001)
    await task.expose("stage", "slept")
    found.append(await task.step("note", note, "late", await task.signal("late", timeout=3600)))
    message = await task.receive(timeout=0.001)
    found.append(await task.step("note", note, "none", None if message is None else message.payload))
    await task.expose("stage", "over")
    return found


def count_writes(bus: agentbus.Bus, kill: list[Any]) -> None:
    """Die before or after the n-th write of this process."""
    engine: Any = bus._engine
    write = engine.write
    made = 0

    async def counted(operation: Any, request: Any, **options: Any) -> Any:
        nonlocal made
        made += 1
        mine = made
        if kill == ["before", mine]:
            os.kill(os.getpid(), signal.SIGKILL)
        result = await write(operation, request, **options)
        if kill == ["after", mine]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    engine.write = counted


async def work(path: str, kill: list[Any]) -> None:
    async with agentbus.connect(path, beat_every=60) as bus:
        if kill:
            count_writes(bus, kill)
        await bus.tasks.run_worker(waits, until_idle=True)


async def warm_up() -> None:
    """Have everything imported that a process needs."""
    with tempfile.TemporaryDirectory(prefix="bus-") as directory:
        async with agentbus.connect(directory) as bus:
            await bus.tasks.start(waits, id="t")
            await bus.tasks.signal("t", "early", 1)
            await bus.tasks.run_worker(waits, until_idle=True)


def main(path: str) -> None:
    asyncio.run(warm_up())
    say("ready")
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            try:
                asyncio.run(work(path, json.loads(line)))
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        say("ended", os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
