"""Write a history until killed: each write adds two items, replaces one, moves one, and counts in the metadata."""

import asyncio
import sys

import agentbus
from agentbus import HistoryPut
from tests.support.processes import say


async def main(url: str) -> None:
    async with agentbus.connect(url) as bus:
        history = await bus.histories.find("k", "h")
        number = 0 if history is None else history.meta["n"]
        while True:
            number += 1
            puts = [
                HistoryPut(key=f"{number}-a", body=b"a" * 3000, part="p"),
                HistoryPut(body=f"{number}".encode()),
                HistoryPut(key="last", body=f"{number}".encode()),
                HistoryPut(key=f"{number}-moved", body=b"", part="m"),
            ]
            await bus.histories.write("k", "h", puts, delete=[("m", f"{number - 1}-moved")], meta={"n": number})
            say("wrote", number)


asyncio.run(main(sys.argv[1]))
