"""A team in one session: a chair distributes tasks, workers do each in one unit; and the recovery of the team."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import agentbus
from tests.support.processes import listeners, say

WORKERS = ("w0", "w1")


async def chair(path: str) -> None:
    """Hand out tasks without end, and say each once it is sent."""
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.session("execution", id="s") as session,
        session.agent("chair", type="worker") as agent,
    ):
        for worker in WORKERS:
            await session.expect(worker, type="worker")
        say("begun")
        number = 0
        while True:
            await agent.send(WORKERS[number % len(WORKERS)], "task_assignment", number)
            say("sent", number)
            number += 1


async def work(path: str, name: str) -> None:
    """Do tasks without end. What was done is in a checkpoint, in state, and acknowledged, all in one commit."""
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.agent(name, type="worker", session="s") as agent,
    ):
        last = None if agent.restored is None else await agent.restore(id=agent.restored.id)
        done = [] if last is None else list(last.snapshot["done"])
        say("ready", 0 if last is None else last.id, *done)
        async for message in agent.inbox():
            async with message as unit:
                done.append(message.payload)
                unit.state_of("tasks").increment(str(message.payload))
                unit.checkpoint("step", {"done": done})
            say("done", message.payload)


async def resume(path: str) -> None:
    """Make a plan, and resume as soon as it is told."""
    told = await listeners()
    async with agentbus.connect(path, beat_every=3600) as bus:
        plan = await bus.recovery.plan("s")
        say("planned", *(option.action for option in plan.options))
        await told.readline()
        done = await plan.resume()
        say("resumed", int(done.changed), *done.agents)


async def roll(path: str, first: str, second: str) -> None:
    """Go from one composite to the other and back, without end."""
    async with agentbus.connect(path, beat_every=3600) as bus:
        session = await bus.sessions.open("s")
        while True:
            for point in (int(first), int(second)):
                await session.rollback(point)
                say("rolled", point)


ROLES: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
    "chair": chair,
    "work": work,
    "resume": resume,
    "roll": roll,
}

if __name__ == "__main__":
    asyncio.run(ROLES[sys.argv[1]](*sys.argv[2:]))
