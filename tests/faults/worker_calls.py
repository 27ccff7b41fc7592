"""Send numbered messages concurrently, over several incarnations; print the outcome of each.

``killed`` is for a process that is killed: it prints the acknowledged sends. ``failing`` is for one whose system calls
fail: it prints each result, compares it with the store, and retries under the same id until the message is sent.
"""

import asyncio
import sys
from contextlib import suppress

import agentbus
from agentbus import Agent, Bus
from agentbus.engine.sqlite import wal, writer
from agentbus.errors import AgentBusError, OutcomeUnknown
from tests.support.processes import say

AT_ONCE = 4


async def killed(bus: Bus, agent: Agent, first: int, count: int) -> None:
    async def send(number: int) -> None:
        await agent.send("sender", "note", {"number": number, "text": "x" * 1500}, message_id=f"n-{number}")
        say("sent", number)

    for start in range(first, first + count, AT_ONCE):
        await asyncio.gather(*(send(number) for number in range(start, start + AT_ONCE)))


async def failing(bus: Bus, agent: Agent, first: int, count: int) -> None:
    async def attempt(number: int) -> str:
        try:
            await agent.send("sender", "note", {"number": number, "text": "x" * 1500}, message_id=f"n-{number}")
        except OutcomeUnknown:
            return "unknown"
        except AgentBusError as error:
            return error.code
        return "sent"

    for start in range(first, first + count, AT_ONCE):
        left = list(range(start, start + AT_ONCE))
        while left:
            outcomes = dict(zip(left, await asyncio.gather(*map(attempt, left)), strict=True))
            for number, outcome in outcomes.items():
                # Reading needs no call that is made to fail.
                there = await bus.messages.get(f"n-{number}") is not None
                say("told", number, outcome, "there" if there else "absent")
            left = [number for number, outcome in outcomes.items() if outcome != "sent"]
            # Commits that are not synced: the next one that is relies on them all the same.
            with suppress(AgentBusError):
                await agent.ack(await agent.receive_many(2, timeout=0))
                await agent.progress(start % 100)


async def main(how: str, path: str, first: str, count: str, pages: str = "20", where: str = "anywhere") -> None:
    # Instead of a thousand: the log is moved into the database again and again.
    wal.CHECKPOINT_PAGES = int(pages)
    if where == "thread":
        # Also by commits that need not last: else few of these are left to the thread, and only there it is done.
        writer._MAX_INLINE_ROWS = -1
    async with agentbus.connect(path, beat_every=3600) as bus:
        say("open")
        # A new life each time, without a block: ending in order is not the question here.
        agent = await bus.register("sender", type="worker", takeover=True)
        await (killed if how == "killed" else failing)(bus, agent, int(first), int(count))
    say("closed")


asyncio.run(main(*sys.argv[1:]))
