"""Send to all agents as fast as possible; obey ``pause``, and print the outcome on ``stop``."""

import asyncio
import sys
from collections import Counter

import agentbus
from agentbus.errors import QuotaExceeded
from tests.support.processes import listeners, say

TASKS = 8


async def main(path: str) -> None:
    told = await listeners()
    stopping = asyncio.Event()
    going = asyncio.Event()
    going.set()
    outcomes: Counter[str] = Counter()

    async def obey() -> None:
        while (order := await told.readline()) not in {b"", b"stop\n"}:
            (going.clear if order == b"pause\n" else going.set)()
        stopping.set()
        going.set()

    async def run(agent: agentbus.Agent) -> None:
        while not stopping.is_set():
            await going.wait()
            try:
                await agent.send(agentbus.pool("jobs"), "note", {"text": "more" * 50})
                outcomes["sent"] += 1
            except QuotaExceeded as error:
                if not outcomes[error.code]:
                    say("refused")
                outcomes[error.code] += 1

    async with agentbus.connect(path) as bus, bus.agent("runaway", type="worker") as agent:
        say("running")
        await asyncio.gather(obey(), *(run(agent) for _ in range(TASKS)))
    for code, times in outcomes.items():
        say("outcome", code, times)


asyncio.run(main(*sys.argv[1:]))
