"""Own a session and hold a meeting in it, participant by participant on command; or join it to finish some."""

import asyncio
import sys

import agentbus
from tests.support.processes import listeners, say

MEMBERS = [f"m{number}" for number in range(12)]


async def own(path: str) -> None:
    """Finish one member for each line that is told; ``end`` leaves the block."""
    told = await listeners()
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.session("meeting", id="s", expects={"chair": "minutes"}) as session,
        session.agent("chair", type="worker") as chair,
    ):
        meeting = await session.participants(MEMBERS)
        say("begun", int(session.continued), *meeting.remaining)
        while (await told.readline()).strip() == b"next":
            member = meeting.remaining[0]
            async with chair.unit() as unit:
                unit.document("minutes", {"last": member})
            await meeting.finish(member, {"by": "owner"})
            say("finished", member)


async def join(path: str, name: str, *members: str) -> None:
    """Finish these members one after the other, as soon as a line is told."""
    told = await listeners()
    async with agentbus.connect(path, beat_every=3600) as bus:
        session = await bus.sessions.open("s")
        meeting = await session.participants([])
        say("ready")
        await told.readline()
        for member in members:
            await meeting.finish(member, {"by": name})
        say("done")


if __name__ == "__main__":
    asyncio.run(own(*sys.argv[2:]) if sys.argv[1] == "own" else join(*sys.argv[2:]))
