"""Send numbered messages one by one; print each once it is acknowledged."""

import asyncio
import sys
from itertools import count
from typing import Literal

import agentbus
from tests.support.processes import say


async def main(path: str, first: str, durability: Literal["disk", "process"] = "disk") -> None:
    async with (
        agentbus.connect(path, durability=durability) as bus,
        bus.agent("sender", type="worker") as sender,
    ):
        await bus.expect("receiver", type="worker")
        for number in count(int(first)):
            await sender.send("receiver", "note", {"number": number}, message_id=f"n-{number}")
            say("sent", number)


asyncio.run(main(*sys.argv[1:]))  # type: ignore[arg-type]
