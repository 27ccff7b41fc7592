"""Ten agents in one process: each takes items from the shared list and finishes them, the first when a line arrives."""

import asyncio
import sys

import agentbus
from tests.support.processes import listeners, say

AGENTS = 10
LEASE = 600.0
"""Longer than the test: an item comes back only because its holder was found dead."""


async def work(agent: agentbus.Agent, finishing: asyncio.Event) -> None:
    while item := await agent.items.take(timeout=None, lease=LEASE):
        if not finishing.is_set():
            say("holding", item.id)
            await finishing.wait()
        await item.finish(item.input)


async def main(place: str, name: str) -> None:
    told = await listeners()
    async with agentbus.connect(place, beat_every=0.3) as bus, asyncio.TaskGroup() as group:
        agents = [await bus.register(f"{name}-{number}", type="worker") for number in range(AGENTS)]
        say("ready")
        finishing = asyncio.Event()
        for agent in agents:
            group.create_task(work(agent, finishing))
        await told.readline()
        finishing.set()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
