"""Checks that the adapters of sessions share: kill -9 while a process appends, and the same data elsewhere on a bus."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from agentbus import Bus, connect
from agentbus.api.maintenance.copy import copy_bus
from agentbus.sync.bus import open_store
from tests.support.processes import Worker

WORKER = "tests.integrations.worker_sessions"
KILLS = 2
ACKNOWLEDGED = 6
"""Appends that a process reports before it is killed."""


def append_and_kill(adapter: str, url: str) -> int:
    """Kill processes that append, each while it does; return the number of items that were acknowledged."""
    stored = 0
    for _ in range(KILLS):
        with closing(Worker(WORKER, url, adapter)) as worker:
            for _ in range(ACKNOWLEDGED):
                stored = int(worker.expect("stored"))
            worker.kill()
            stored = max([stored, *(int(line.split()[1]) for line in worker.said() if line.startswith("stored "))])
    return stored


@asynccontextmanager
async def exported(bus: Bus) -> AsyncIterator[Bus]:
    """Export a bus; yield another that has imported the file."""
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        report = await bus.export(Path(directory) / "export.jsonl.gz")
        async with connect(Path(directory) / "other") as other:
            await other.import_path(report.path)
            yield other


@asynccontextmanager
async def copied(url: str) -> AsyncIterator[Bus]:
    """Copy a whole bus, which is closed; yield the copy."""
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        target = f"{directory}/copy"
        await asyncio.to_thread(_copy, url, target)
        async with connect(target) as bus:
            yield bus


def _copy(source: str, target: str) -> None:
    with closing(open_store(source)) as store:
        copy_bus(store, lambda: open_store(target, create=True))
