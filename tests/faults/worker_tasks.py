"""Run a workflow of six steps, in its own process for each input line, which can name the point of death.

Every execution of a step leaves a line in a file and, with its result, a message on the bus; both carry a token of its
own, and so does the result.
"""

import asyncio
import json
import os
import secrets
import signal
import sys
import tempfile
import threading
import time
import traceback
from typing import Any, ClassVar

import agentbus
from tests.support.processes import say

STEPS = 6
IDLE = 0.3
JOBS = agentbus.pool("done")


def die_in(seconds: float) -> None:
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGKILL)).start()


class Orders:
    """Instructions for one process: where to die, the duration of a step, how long it holds a task."""

    given: ClassVar["Orders"]

    def __init__(self, path: str, file: str, given: dict[str, Any]) -> None:
        self.path = path
        self.kill: list[Any] = given.get("kill", [])
        self.after: float | None = given.get("after")
        self.begun = False
        self.pause: float = given.get("pause", 0.0)
        self.hold: str | None = given.get("hold")
        """A file that every step waits for."""
        self.lease: float = given.get("lease", 60.0)
        self.name: str | None = given.get("name")
        self.concurrency: int = given.get("concurrency", 8)
        self.until_idle: bool = given.get("until_idle", True)
        self.file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, *words: object) -> None:
        """A line that outlives the process."""
        os.write(self.file, (" ".join(map(str, words)) + "\n").encode())

    def die_at(self, point: str, number: int) -> None:
        if self.kill == [point, number]:
            os.kill(os.getpid(), signal.SIGKILL)

    def die_soon_at(self, number: int) -> None:
        """A moment later, while the result is being committed, or just before, or just after."""
        if self.kill[:2] == ["finishing", number]:
            die_in(self.kill[2])


@agentbus.workflow("six")
async def six(task: agentbus.Task, base: int = 0, asks: bool = False) -> int:
    """Adds up the numbers of its steps; after the third it may ask a person."""
    orders = Orders.given
    total = base
    for number in range(1, STEPS + 1):
        made = await task.step(f"s{number}", add, task, number, total)
        total = made["total"]
        orders.note("boundary", task.id, number)
        orders.die_at("boundary", number)
        if orders.kill[:2] == ["finishing", number]:
            await asyncio.Event().wait()  # It does not get any further.
        if asks and number == 3:
            await task.approval("go", show=total)
    return total


async def add(task: agentbus.Task, number: int, total: int) -> dict[str, Any]:
    orders = Orders.given
    token = secrets.token_hex(8)
    orders.note("begun", task.id, f"s{number}", task.attempt, token)
    if orders.after is not None and not orders.begun:
        orders.begun = True
        die_in(orders.after)
    orders.die_at("inside", number)
    task.unit.send(JOBS, "completion_notification", {"task": task.id, "step": f"s{number}", "token": token})
    if orders.pause or orders.hold is not None:
        say("inside", task.id, number)
        await asyncio.sleep(orders.pause)
    while orders.hold is not None and not os.path.exists(orders.hold):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    orders.die_soon_at(number)
    orders.note("returned", task.id, f"s{number}", token)
    return {"total": total + number, "token": token}


async def work(orders: Orders) -> None:
    async with agentbus.connect(orders.path, beat_every=1) as bus:
        if orders.after is not None:
            # A while after the first step has begun, or if there is nothing to do.
            die_in(orders.after + IDLE)
        await bus.tasks.run_worker(
            six,
            agent=orders.name,
            lease=orders.lease,
            concurrency=orders.concurrency,
            until_idle=orders.until_idle,
        )


def child(path: str, file: str, given: dict[str, Any]) -> None:
    """Never returns."""
    orders = Orders.given = Orders(path, file, given)
    asyncio.run(work(orders))
    os._exit(0)


async def warm_up() -> None:
    """Have everything imported that a process needs, so that not each one does it again."""
    with tempfile.TemporaryDirectory(prefix="bus-") as directory:
        async with agentbus.connect(directory) as bus:
            await bus.tasks.run_worker(six, until_idle=True)


def main(path: str, file: str) -> None:
    asyncio.run(warm_up())
    say("ready")
    for line in sys.stdin:
        begun = time.monotonic()
        pid = os.fork()
        if pid == 0:
            try:
                child(path, file, json.loads(line))
            finally:
                traceback.print_exc()
                os._exit(1)
        say("pid", pid)
        _, status = os.waitpid(pid, 0)
        say("ended", os.waitstatus_to_exitcode(status), f"{time.monotonic() - begun:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
