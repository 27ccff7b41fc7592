"""Hold a job under a short lease, with a result in its unit, and stall until a line arrives.

The argument selects the stall: ``frozen`` lets the test stop the process, ``blocked`` blocks the loop.
"""

import asyncio
import sys

import agentbus
from agentbus.errors import LeaseLost
from tests.support.processes import listeners, say

LEASE = 0.5
BLOCKED = 2
"""Lease periods for which the watchdog renews the lease of a blocked loop, instead of ten."""


async def main(path: str, how: str) -> None:
    told = None if how == "blocked" else await listeners()
    async with (
        agentbus.connect(path, beat_every=3600, max_blocked=BLOCKED) as bus,
        bus.agent("stalling", type="worker", pools=["jobs"]) as worker,
    ):
        message = await worker.receive(lease=LEASE)
        assert message is not None
        try:
            async with message as unit:
                unit.send("sink", "completion_notification", {"by": "stalling"})
                unit.progress(100)
                say("holding", *message._lease)
                if told is None:
                    sys.stdin.readline()
                else:
                    await told.readline()
        except LeaseLost as lost:
            say("lost", lost.message_id)
        else:
            say("kept")
        # The agent itself is not to blame: it continues.
        await worker.send("sink", "note", {"by": "stalling, afterwards"})


asyncio.run(main(*sys.argv[1:]))
