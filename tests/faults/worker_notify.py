"""Run a monitor that delivers notifications until killed, by a clock that is ahead."""

import asyncio
import sys

import anyio
import msgspec

import agentbus
from agentbus import Now
from agentbus.core.clock import SystemClock
from tests.support.processes import say


class Ahead(SystemClock):
    """The clocks of this machine, the wall clock ahead by some seconds."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._ahead = round(seconds * 1000)

    def now(self) -> Now:
        now = super().now()
        return msgspec.structs.replace(now, wall=now.wall + self._ahead)


async def watch(path: str, interval: str, ahead: str) -> None:
    async with (
        agentbus.connect(path, beat_every=3600, clock=Ahead(float(ahead))) as bus,
        bus.monitor(interval=float(interval), suspect_after=7200, fail_after=7200),
    ):
        say("ready")
        await anyio.sleep_forever()


if __name__ == "__main__":
    asyncio.run(watch(*sys.argv[1:]))
