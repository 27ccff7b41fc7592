"""The team of the demo, each a process of its own: a coordinator that plans, and workers that do the work. AGENTBUS_URL
names the bus.

Either may be killed at any moment. What a worker does is one commit: the acknowledgement, its result, its checkpoint
and the note that the task was done. It says "done" on its standard output only when that commit has returned.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import anyio

import agentbus
from agentbus import Agent, Session

TASKS = 24
PHASES = ("design", "implement", "test", "review")


def names(suffix: str) -> dict[str, str]:
    """What things are called; with a suffix on a bus that others use too."""
    return {name: f"{name}{suffix}" for name in ("coordinator", "workers", "demo")}


async def coordinate(suffix: str) -> None:
    """Plan, hand out the tasks, hear of each, and let the workers go."""
    called = names(suffix)
    async with (
        agentbus.connect() as bus,
        bus.session("demo", id=called["demo"], expects={called["coordinator"]: "plan"}) as session,
        session.agent(called["coordinator"], type="coordinator") as me,
    ):
        last = await me.restore("progress") if me.restored else None
        heard: list[str] = last.snapshot["heard"] if last else []
        say("ready", last.id if last else 0, len(heard))
        if last is None:
            await plan(me, session, called["workers"])
        tasks = await session.document("plan").latest()
        while len(heard) < len(tasks):
            message = await me.receive()
            if message is None or message.type != "completion_notification":
                # That a worker failed is the monitor's business; its task is already on its way to another.
                if message is not None:
                    await message.ack()
                continue
            async with message as unit:
                heard.append(message.payload["task"])
                unit.checkpoint("progress", {"heard": heard}, keep=2)
                unit.progress(100 * len(heard) // len(tasks))
        await session.progress(100)
        workers = await bus.agents.list(session=session.id, type="worker", status=["running", "suspect"])
        for worker in workers.items:
            await me.send(worker.id, "control", "stop")


async def plan(me: Agent, session: Session, pool: str) -> None:
    """The plan, all its tasks, and the first checkpoint: one commit."""
    tasks = [f"{PHASES[number % len(PHASES)]}-{number // len(PHASES) + 1}" for number in range(TASKS)]
    async with me.unit() as unit:
        unit.document("plan", tasks)
        for task in tasks:
            unit.send(agentbus.pool(pool), "task_assignment", {"task": task})
        unit.checkpoint("progress", {"heard": []}, keep=2)


async def work(suffix: str, name: str, pace: float) -> None:
    """Do one task after the other, until told to stop."""
    called = names(suffix)
    async with (
        agentbus.connect() as bus,
        bus.agent(name, type="worker", session=called["demo"], pools=[called["workers"]]) as me,
    ):
        last = await me.restore("work") if me.restored else None
        done: list[str] = last.snapshot["done"] if last else []
        say("ready", last.id if last else 0, len(done))
        async for message in me.inbox():
            if message.type == "control":
                await message.ack()
                return
            task: str = message.payload["task"]
            async with message as unit:
                await anyio.sleep(pace)
                done.append(task)
                unit.state_of(called["demo"]).increment(task)
                unit.checkpoint("work", {"done": done}, keep=2)
                unit.send(message.sender, "completion_notification", {"task": task})
            say("done", task)


def say(*words: object) -> None:
    """A line for whoever tells the story; it is in the pipe when this returns."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def leave_with_the_narrator() -> None:
    """Nobody is left behind: when the narrator is gone, our standard input ends."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main(role: str, *arguments: Any) -> None:
    leave_with_the_narrator()
    if role == "coordinator":
        anyio.run(coordinate, *arguments)
    else:
        suffix, name, pace = arguments
        anyio.run(work, suffix, name, float(pace))


if __name__ == "__main__":
    main(*sys.argv[1:])
