"""Take the most urgent job of the pool and hold it until a line arrives, which becomes its result."""

import asyncio
import sys

import agentbus
from tests.support.processes import listeners, say


async def main(path: str, name: str) -> None:
    told = await listeners()
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
