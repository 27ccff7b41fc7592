"""Growth: what a claim and its acknowledgement cost with few and with many messages queued, and with finished
ones kept. Everything goes through agentbus; only the filling is done behind its back, in bulk."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import agentbus
from agentbus import Agent
from benchmarks.measure import Progress, Results, Series
from benchmarks.workloads import BATCH, PAYLOAD, TEXT

FEW = 1000
BATCHES_IN_A_ROUND = 8
SINGLES_IN_A_ROUND = 100
AGENT = "reader"

_FILL = """
WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < :count)
INSERT INTO messages (id, mailbox, sender, type, payload, checksum, priority, status, attempts, max_attempts, lease,
    holder, created, finished)
SELECT :last + number, :mailbox, :agent, 'note', :payload, :checksum, 5, :status, :attempts, 5, :attempts,
    :holder, :now, :finished
FROM numbers
"""


@dataclass(frozen=True)
class Depth:
    """A mailbox with so many messages waiting, beside so many finished ones."""

    key: str
    title: str
    queued: int
    finished: int


def depths(many: int) -> list[Depth]:
    return [
        Depth("few", f"{FEW:,} queued", FEW, 0),
        Depth("queued", f"{many:,} queued", many, 0),
        Depth("finished", f"{FEW:,} queued, {many:,} finished kept", FEW, many),
    ]


def measure(directory: Path, many: int, rounds: int, results: Results, progress: Progress) -> None:
    """Claim and acknowledge in each database in turn, round after round; what was taken is sent again, untimed."""
    chosen = depths(many)
    many_at_once = [
        results.add(Series("growth", depth.key, f"µs per message, {BATCH} at once", title=depth.title))
        for depth in chosen
    ]
    one_by_one = [
        results.add(Series("growth-single", depth.key, "µs per message, one by one", title=depth.title))
        for depth in chosen
    ]
    asyncio.run(_measure(directory, chosen, rounds, many_at_once, one_by_one, progress))


async def _measure(
    directory: Path,
    chosen: Sequence[Depth],
    rounds: int,
    many_at_once: Sequence[Series],
    one_by_one: Sequence[Series],
    progress: Progress,
) -> None:
    async with AsyncExitStack() as stack:
        agents: list[Agent] = []
        for depth in chosen:
            progress.say(f"growth: filling a mailbox with {depth.title}")
            home = directory / depth.key
            async with agentbus.connect(home) as bus, bus.agent(AGENT, type="worker"):
                pass
            _fill(home / "bus.db", depth)
            bus = await stack.enter_async_context(agentbus.connect(home))
            agents.append(await bus.register(AGENT, type="worker"))
        # The first round warms the caches.
        for number in range(rounds + 1):
            progress.say(f"growth: round {number} of {rounds}")
            for turn in range(len(agents)):
                # Another one begins in each round, so that none always comes after the same.
                place = (number + turn) % len(agents)
                figures = await _many_at_once(agents[place]), await _one_by_one(agents[place])
                if number:
                    many_at_once[place].values.append(figures[0])
                    one_by_one[place].values.append(figures[1])


async def _many_at_once(agent: Agent) -> float:
    begun = time.perf_counter()
    batch = await agent.receive_many(BATCH)
    for _ in range(BATCHES_IN_A_ROUND - 1):
        batch = await agent.receive_many(BATCH, ack=batch)
    await agent.ack(batch)
    taken = time.perf_counter() - begun
    await agent.send_many([(AGENT, "note", PAYLOAD)] * (BATCHES_IN_A_ROUND * BATCH))
    return taken / (BATCHES_IN_A_ROUND * BATCH) * 1e6


async def _one_by_one(agent: Agent) -> float:
    begun = time.perf_counter()
    for _ in range(SINGLES_IN_A_ROUND):
        message = await agent.receive()
        assert message is not None
        await message.ack()
    taken = time.perf_counter() - begun
    await agent.send_many([(AGENT, "note", PAYLOAD)] * SINGLES_IN_A_ROUND)
    return taken / SINGLES_IN_A_ROUND * 1e6


def _fill(database: Path, depth: Depth) -> None:
    """Rows as agentbus would have written them, in seconds. No bus has the database open."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -200000")
        (mailbox,) = connection.execute("SELECT mailbox FROM agents WHERE id = ?", (AGENT,)).fetchone()
        moment = time.time_ns() // 1_000_000
        common = {
            "mailbox": mailbox, "agent": AGENT, "payload": TEXT, "checksum": crc32(TEXT.encode()), "now": moment,
        }  # fmt: skip
        connection.execute("BEGIN IMMEDIATE")
        finished = {"status": "acked", "attempts": 1, "holder": AGENT, "finished": moment}
        queued = {"status": "queued", "attempts": 0, "holder": None, "finished": None}
        if depth.finished:
            connection.execute(_FILL, {**common, **finished, "last": 0, "count": depth.finished})
        connection.execute(_FILL, {**common, **queued, "last": depth.finished, "count": depth.queued})
        connection.execute("UPDATE counters SET value = ? WHERE name = 'message'", (depth.finished + depth.queued,))
        connection.execute("COMMIT")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
