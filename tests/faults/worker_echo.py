"""Answer every request with its payload and the own name; also take work from the pool ``jobs``."""

import asyncio
import sys

import agentbus
from agentbus import Message, Unit
from tests.support.processes import say


async def main(path: str, name: str) -> None:
    async def answer(message: Message, unit: Unit) -> None:
        unit.reply(message, "coordination_response", {"echo": message.payload, "by": name})

    # An hour between beats: whatever arrives sooner was rung for.
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.agent(name, type="worker", pools=["jobs"]) as worker,
    ):
        say("ready")
        await worker.serve(answer)


asyncio.run(main(*sys.argv[1:]))
