"""Ten agents in one process that take items from the shared list and finish them; or hang, until they are killed."""

import asyncio
import sys

import agentbus
from tests.support.processes import say

AGENTS = 10
LEASE = 600.0
"""Longer than the test: an item comes back only because its holder was found dead."""


async def work(agent: agentbus.Agent, hang: bool) -> None:
    while item := await agent.items.take(timeout=None, lease=LEASE):
        if hang:
            say("hangs", item.lease)
            await asyncio.Event().wait()
        await item.finish(item.input)


async def main(place: str, name: str, *hang: str) -> None:
    async with agentbus.connect(place, beat_every=0.3) as bus, asyncio.TaskGroup() as group:
        agents = [await bus.register(f"{name}-{number}", type="worker") for number in range(AGENTS)]
        say("ready")
        for agent in agents:
            group.create_task(work(agent, bool(hang)))


asyncio.run(main(*sys.argv[1:]))
