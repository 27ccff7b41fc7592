"""Send numbered jobs to a pool, a bounded number at a time, and take the results; print acknowledged ones.

On ``stop`` it sends no more, and ends when every job has its result.
"""

import asyncio
import sys

import agentbus
from agentbus import Agent
from tests.faults.audited import accept_audit
from tests.support.processes import listeners, say

WINDOW = 60


async def send(driver: Agent, number: int) -> None:
    await driver.send(
        agentbus.pool("jobs"), "task_assignment", {"number": number}, message_id=f"job-{number}", max_attempts=100
    )
    say("sent", number)


async def main(path: str) -> None:
    told = await listeners()
    stopping = asyncio.create_task(told.readline())
    async with (
        agentbus.connect(path, beat_every=1) as bus,
        bus.agent("driver", type="coordinator") as driver,
    ):
        await bus.declare(agentbus.pool("jobs"))
        say("ready")
        await driver.receive(timeout=0)
        sent = 0
        under_way: set[int] = set()
        while under_way or not stopping.done():
            if not stopping.done():
                numbers = range(sent, sent + WINDOW - len(under_way))
                sent = max(sent, numbers.stop)
                under_way.update(numbers)
                await asyncio.gather(*(send(driver, number) for number in numbers))
            results = await driver.receive_many(WINDOW, timeout=0.5)
            for result in results:
                say("result", result.payload["number"])
                under_way.discard(result.payload["number"])
            await driver.ack(results)
        say("drained", sent)


accept_audit()
asyncio.run(main(*sys.argv[1:]))
