"""Open one bus twice in one process, and repeatedly close the second; both write all the time."""

import asyncio
import sys

import agentbus
from agentbus import Agent
from tests.support.processes import listeners, say


async def send(agent: Agent, name: str) -> None:
    await agent.send("receiver", "note", message_id=name)
    say("sent", name)


async def main(path: str) -> None:
    told = await listeners()
    async with agentbus.connect(path) as lasting, lasting.agent("lasting", type="worker") as one:
        await lasting.expect("receiver", type="worker")
        for turn in range(5):
            async with agentbus.connect(path) as passing, passing.agent(f"passing-{turn}", type="worker") as two:
                # There and back between the two.
                receiving = asyncio.create_task(two.receive(timeout=10))
                await one.send(two.id, "note", turn)
                message = await receiving
                assert message is not None
                async with message as unit:
                    unit.send("lasting", "note", message.payload)
                back = await one.receive(timeout=10)
                assert back is not None
                assert back.payload == turn
                await back.ack()
                await asyncio.gather(
                    *(send(agent, f"{agent.id}-{turn}-{n}") for agent in (one, two) for n in range(10))
                )
            await asyncio.gather(*(send(one, f"after-{turn}-{n}") for n in range(10)))
        say("ready")
        await told.readline()
        await asyncio.gather(*(send(one, f"last-{n}") for n in range(10)))
        say("ready")
        await told.readline()


asyncio.run(main(*sys.argv[1:]))
