"""A large bus: the time of the common calls among few and among many messages, on both engines."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from benchmarks.measure import Results, Series
from benchmarks.payload import PAYLOAD
from benchmarks.progress import Progress
from benchmarks.workloads import growth, server_growth
from benchmarks.workloads.growth import AGENT, FEW, Depth, Reader, Step
from benchmarks.workloads.lifecycles import BATCH

KEPT, MAILBOXES, FILE = "kept", "mailboxes", "file"
SENDS = 20
READ_TIMEOUT = 300.0
SLOW = 5.0
"""Seconds after which a read is not repeated in every round."""
PAGE = 100
ROW_BYTES = 345
"""Bytes of a finished message of 256 bytes in a file, with its indexes."""
SEND, CLAIM, CLAIM_MANY = "ms, send", "ms, claim + ack", f"µs, claim + ack, {BATCH} at once"
READS: dict[str, Callable[[Reader], Awaitable[object]]] = {
    "ms, newest 100": lambda reader: reader.bus.messages.list(limit=PAGE),
    "ms, queued of one agent": lambda reader: reader.bus.messages.list(to=AGENT, status="queued", limit=PAGE),
    "ms, one message": lambda reader: reader.bus.messages.get("needle"),
    "ms, dead letters": lambda reader: reader.bus.messages.dead(limit=PAGE),
    "ms, deepest queues": lambda reader: reader.bus.messages.deepest(),
    "ms, counts": lambda reader: reader.bus.stats(),
}
"""Lists and counts."""


async def _send(reader: Reader) -> float:
    started = time.perf_counter()
    for _ in range(SENDS):
        await reader.agent.send(AGENT, "note", PAYLOAD)
    taken = time.perf_counter() - started
    # As many as before: the claims of the next rounds are to find the same depth.
    await reader.agent.ack(await reader.agent.receive_many(SENDS))
    return taken / SENDS * 1000


async def _claim(reader: Reader) -> float:
    return await growth.one_by_one(reader) / 1000


class _Read:
    """A read in milliseconds. A slow one is called twice, for the warm-up and a figure, to bound the time of a run."""

    def __init__(self, call: Callable[[Reader], Awaitable[object]]) -> None:
        self._call = call
        self._slow: Counter[int] = Counter()

    async def __call__(self, reader: Reader) -> float | None:
        if self._slow[key := id(reader)] > 1:
            return None
        # Sent once: a repeated message_id is not sent again.
        await reader.agent.send(AGENT, "note", PAYLOAD, message_id="needle")
        started = time.perf_counter()
        async with asyncio.timeout(READ_TIMEOUT):
            await self._call(reader)
        taken = time.perf_counter() - started
        self._slow[key] += taken > SLOW
        return taken * 1000


def steps(workload: str) -> list[Step]:
    return [
        Step(workload, SEND, _send),
        Step(workload, CLAIM, _claim),
        Step(workload, CLAIM_MANY, growth.many_at_once),
        *(Step(workload, unit, _Read(call)) for unit, call in READS.items()),
    ]


def kept(directory: Path, messages: int, rounds: int, results: Results, progress: Progress) -> None:
    """Measure a server that keeps finished messages, against one that keeps none."""
    depths = [
        Depth("few", f"PostgreSQL: {FEW:,} queued", FEW),
        Depth("kept", f"PostgreSQL: {FEW:,} queued, {messages:,} finished kept", FEW, messages),
        Depth("backlog", f"PostgreSQL: {messages // 10:,} queued", max(FEW, messages // 10)),
    ]
    _on_server(directory, depths, steps(KEPT), rounds, results, progress)


def mailboxes(directory: Path, boxes: int, rounds: int, results: Results, progress: Progress) -> None:
    """Measure a server whose queued messages are spread over many mailboxes, ten in each."""
    depths = [
        Depth("few", f"PostgreSQL: {FEW:,} queued in 1 mailbox", FEW),
        Depth("boxes", f"PostgreSQL: {10 * boxes:,} queued in {boxes:,} mailboxes", 10 * boxes, boxes=boxes),
    ]
    _on_server(directory, depths, steps(MAILBOXES), rounds, results, progress)


def _on_server(
    directory: Path, depths: Sequence[Depth], of: Sequence[Step], rounds: int, results: Results, progress: Progress
) -> None:
    home = directory / of[0].workload
    asyncio.run(growth.in_turn(home, depths, rounds, server_growth.open_readers, results, progress, of))


def files(directory: Path, gigabytes: Sequence[float], rounds: int, results: Results, progress: Progress) -> None:
    """Measure SQLite files of several sizes, filled with finished messages."""
    for size in gigabytes:
        depth = Depth(f"{size:g}", f"SQLite: {size:g} GB", FEW, int(size * 1e9 / ROW_BYTES))
        home = directory / f"{FILE}-{size:g}"
        # The reference is measured with each size: the disk is not the same an hour later.
        reference = Depth(f"few-{size:g}", f"SQLite: a new file, measured with {size:g} GB", FEW)
        asyncio.run(
            growth.in_turn(home, [reference, depth], rounds, growth.open_readers, results, progress, steps(FILE))
        )
        actual = (home / depth.key / "bus.db").stat().st_size / 1e9
        results.add(Series("file-size", depth.key, "GB", [actual], title=f"{depth.title}: size of the file"))
        shutil.rmtree(home)
