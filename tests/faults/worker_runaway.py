"""Sends to everybody as fast as it can and never waits, whatever it is told; says what it came to when told to stop."""

import asyncio
import sys
from collections import Counter

import agentbus
from agentbus.errors import QuotaExceeded
from tests.support.processes import ears, say

TASKS = 8


async def main(path: str) -> None:
    told = await ears()
    stopping = asyncio.create_task(told.readline())
    outcomes: Counter[str] = Counter()

    async def run(agent: agentbus.Agent) -> None:
        while not stopping.done():
            try:
                await agent.send(agentbus.pool("jobs"), "note", {"text": "more" * 50})
                outcomes["sent"] += 1
            except QuotaExceeded as error:
                if not outcomes[error.code]:
                    say("refused")
                outcomes[error.code] += 1

    async with agentbus.connect(path) as bus, bus.agent("runaway", type="worker") as agent:
        say("running")
        await asyncio.gather(*(run(agent) for _ in range(TASKS)))
    for code, times in outcomes.items():
        say("outcome", code, times)


asyncio.run(main(*sys.argv[1:]))
