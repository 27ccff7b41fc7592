"""Two processes on one bus. The first sends, and its disk is slow: it syncs each commit long after that is visible. The
second receives, reads and answers meanwhile. Both print what returned.

``unguarded``: the second does not check whether what it read is on the disk.
"""

import asyncio
import subprocess
import sys
import time

import agentbus
from agentbus.engine.sqlite import lock, wal, writer
from tests.support.processes import say

LOG_PAGES = 200
"""Instead of 1,000: the log is checkpointed and restarted often."""
SLOW = 0.02
"""Seconds that the first process waits before each sync."""


async def send(path: str, count: int) -> None:
    sync = wal._sync

    def slow(file: int) -> None:
        time.sleep(SLOW)
        sync(file)

    wal._sync = slow
    writer._MAX_INLINE_ROWS = -1
    async with agentbus.connect(path, beat_every=3600) as bus, bus.agent("first", type="worker") as first:
        second = subprocess.Popen([sys.executable, "-m", "tests.faults.worker_early", *sys.argv[1:], "second"])
        assert await first.receive(timeout=60) is not None, "the second is not ready"
        for number in range(count):
            name = f"s-{number}"
            await first.send("second", "note", "x" * 500, message_id=name)
            say("sent", name)
        await asyncio.to_thread(second.wait)


async def answer(path: str, count: int) -> None:
    async with agentbus.connect(path, beat_every=3600) as bus, bus.agent("second", type="worker") as second:
        await second.send("first", "note", "ready", message_id="ready")
        for number in range(count):
            message = await second.receive(timeout=30)
            assert message is not None
            say("received", message.message_id)
            for record in (await bus.messages.list(limit=3)).items:
                say("read", record.message_id)
            async with message as unit:
                unit.send("first", "note", "answer", message_id=f"a-{number}")
            say("answered", f"a-{number}")


def nothing(counters: lock.CommitCounters) -> int:
    return 0


async def main(path: str, count: str, guard: str, who: str = "first") -> None:
    wal.CHECKPOINT_PAGES = LOG_PAGES
    if who == "first":
        await send(path, int(count))
        return
    if guard == "unguarded":
        lock.CommitCounters.unsynced = nothing  # type: ignore[assignment, method-assign]
    await answer(path, int(count))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
