"""Takes the most urgent job of the pool and holds it until it is told a word, which becomes its result."""

import asyncio
import sys

import agentbus
from tests.support.processes import ears, say


async def main(path: str, name: str) -> None:
    told = await ears()
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.agent(name, type="worker", pools=["jobs"]) as worker,
    ):
        say("ready")
        message = await worker.receive()
        assert message is not None
        say("holding", message.message_id)
        async with message as unit:
            word = (await told.readline()).decode().strip()
            unit.send(message.sender, "completion_notification", {"number": message.payload["number"], "by": word})


asyncio.run(main(*sys.argv[1:]))
