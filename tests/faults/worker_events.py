"""Follow the audit log from its start, or expect agents that extend it."""

import asyncio
import sys

import agentbus
from tests.support.processes import say


async def main(path: str, role: str, count: str) -> None:
    async with agentbus.connect(path, beat_every=3600) as bus:
        say("ready")
        if role == "follow":
            async for event in bus.events(follow=True, limit=int(count)):
                say("event", event.id, event.subject)
        else:
            for number in range(int(count)):
                await bus.expect(f"{role}-{number}", type="worker")
                say("announced", number)


asyncio.run(main(*sys.argv[1:]))
