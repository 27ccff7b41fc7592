"""Many agents in one process, each waiting for one message; print each message, and end after the last."""

import asyncio
import sys

import agentbus
from agentbus import Bus
from tests.support.processes import say


async def one(bus: Bus, number: int) -> None:
    agent = await bus.register(f"agent-{number}", type="worker")
    say("waiting", number)
    message = await agent.receive()
    assert message is not None
    await message.ack()
    say("got", number, message.payload)


async def main(path: str, count: str) -> None:
    async with agentbus.connect(path, beat_every=3600) as bus:
        await asyncio.gather(*(one(bus, number) for number in range(int(count))))


asyncio.run(main(*sys.argv[1:]))
