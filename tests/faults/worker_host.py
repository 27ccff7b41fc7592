"""A process on another host: it has its own host key, works on a pool, and holds its messages."""

import asyncio
import sys

import agentbus
from agentbus.core import process_info
from tests.support.processes import listeners, say


async def main(url: str, host: str, name: str) -> None:
    process_info.host_key = lambda: host
    told = await listeners()
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
