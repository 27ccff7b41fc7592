"""A process on another machine: it has a host key of its own, works on a pool, and holds what it takes."""

import asyncio
import sys

import agentbus
from agentbus.engine import presence
from tests.support.processes import ears, say


async def main(url: str, host: str, name: str) -> None:
    presence.host_key = lambda: host
    told = await ears()
    async with (
        agentbus.connect(url, beat_every=0.2) as bus,
        bus.agent(name, type="worker", pools=["jobs"]) as worker,
    ):
        say("ready")
        message = await worker.receive()
        assert message is not None
        say("holding", message.payload)
        await told.readline()


asyncio.run(main(*sys.argv[1:]))
