"""Run a monitor until killed; or an agent that resumes from its checkpoint and then holds a job."""

import asyncio
import sys

import anyio

import agentbus
from tests.support.processes import listeners, say


async def watch(path: str, interval: str) -> None:
    async with (
        agentbus.connect(path, beat_every=3600) as bus,
        bus.monitor(interval=float(interval), suspect_after=7200, fail_after=7200),
    ):
        say("ready")
        await anyio.sleep_forever()


async def work(path: str, name: str, step: str, beat_every: str) -> None:
    told = await listeners()
    async with (
        agentbus.connect(path, beat_every=float(beat_every)) as bus,
        bus.agent(name, type="worker", session="s", pools=["jobs"]) as agent,
    ):
        last = await agent.restore("steps")
        done = [*(last.snapshot if last else []), step]
        await agent.checkpoint("steps", done)
        say("done", *done)
        message = await agent.receive()
        assert message is not None
        say("holding", message.message_id)
        async with message:
            await told.readline()


if __name__ == "__main__":
    asyncio.run(watch(*sys.argv[2:]) if sys.argv[1] == "watch" else work(*sys.argv[2:]))
