"""Open a small bus repeatedly with sends, units, state, checkpoints and WAL checkpoints; print returned calls."""

import asyncio
import sys
from typing import Literal

import agentbus
from agentbus import Agent
from agentbus.engine.sqlite import wal
from tests.support.processes import say

LIVES = 3
TASKS = 4
LOG_PAGES = 60
"""Instead of 1,000: the log is checkpointed and restarted often."""


async def send(agent: Agent, life: int, task: int, rounds: int) -> None:
    for n in range(rounds):
        name = f"{life}.{task}.{n}"
        await agent.send("clerk", "note", {"text": "x" * (37 * n % 900)}, message_id=name)
        say("sent", name)
        async with agent.unit() as unit:
            unit.send("clerk", "note", n, message_id=f"{name}.first")
            unit.send("clerk", "note", n, message_id=f"{name}.second")
            unit.state.increment("units")
        say("unit", name)
        if n % 4 == task:
            await agent.checkpoint("step", {"at": name, "text": "y" * 3000})
            say("saved", name)


async def receive(agent: Agent, times: int) -> None:
    for _ in range(times):
        await agent.ack(await agent.receive_many(3, timeout=0))
        await agent.progress(50)


async def main(path: str, durability: Literal["disk", "process"], rounds: str) -> None:
    wal.CHECKPOINT_PAGES = LOG_PAGES
    for life in range(LIVES):
        async with (
            agentbus.connect(path, durability=durability, beat_every=3600) as bus,
            bus.agent("clerk", type="worker") as clerk,
        ):
            sends = (send(clerk, life, task, int(rounds)) for task in range(TASKS))
            await asyncio.gather(*sends, receive(clerk, 2 * int(rounds)))


asyncio.run(main(*sys.argv[1:]))  # type: ignore[arg-type]
