"""The measurements of this process's writes, through the public API."""

from __future__ import annotations

import asyncio
import os

from agentbus import Bus
from agentbus.core.measurements import writes


async def test_writes_are_measured_per_batch(bus: Bus) -> None:
    worker = await bus.register("worker", type="executor")
    before = (writes.batch_calls.count, writes.batch_calls.sum, writes.synced_commit.count, writes.lock_wait.count)
    await asyncio.gather(*(worker.send("worker", "note", number) for number in range(20)))
    batches = writes.batch_calls.count - before[0]
    assert writes.batch_calls.sum - before[1] >= 20
    assert 1 <= batches < 20
    assert writes.synced_commit.count - before[2] >= 1
    assert writes.lock_wait.count - before[3] >= 1
    assert writes.batch_calls.count == writes.synced_commit.count + writes.commit.count
    assert writes.synced_commit.sum > 0


def test_a_forked_child_counts_from_zero() -> None:
    writes.batch_calls.observe(1)
    child = os.fork()
    if child == 0:
        os._exit(writes.batch_calls.count)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
