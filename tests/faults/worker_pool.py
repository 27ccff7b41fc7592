"""Take numbered jobs from a pool; acknowledge and send the result in one commit."""

import asyncio
import sys

import agentbus
from tests.faults.audited import accept_audit
from tests.support.processes import say

LEASE = 600.0
"""Longer than the test: a message comes back only because its holder was found dead."""


async def main(path: str, name: str) -> None:
    say("opening")
    async with (
        agentbus.connect(path, beat_every=1) as bus,
        bus.agent(name, type="worker", pools=["jobs"]) as worker,
    ):
        say("ready")
        async for message in worker.inbox(lease=LEASE):
            say("claimed", *message._lease)
            async with message as unit:
                unit.send(message.sender, "completion_notification", message.payload)
            say("done", *message._lease)


accept_audit()
asyncio.run(main(*sys.argv[1:]))
