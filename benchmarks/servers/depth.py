"""Growth on a server: what a claim and its acknowledgement cost with few and with many messages queued, and with
finished ones kept. Everything goes through agentbus; only the filling is done behind its back, in bulk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from zlib import crc32

import asyncpg

import agentbus
from agentbus import Agent
from benchmarks import growth
from benchmarks.growth import AGENT, Depth
from benchmarks.measure import Progress, Results, Series
from benchmarks.servers.contestants import fresh_url
from benchmarks.workloads import BATCH, TEXT

FILL = """
INSERT INTO messages (id, mailbox, sender, type, payload, checksum, priority, status, attempts, max_attempts, lease,
    holder, created, finished)
SELECT $1 + number, $2, $3, 'note', $4, $5, 5, $6, 0, 5, 0, $3, $7, $8 FROM generate_series(1, $9) AS number
"""


def measure(many: int, rounds: int, results: Results, progress: Progress) -> None:
    """Claim and acknowledge in each bus in turn, round after round; what was taken is sent again, untimed."""
    chosen = growth.depths(many)
    many_at_once = [
        results.add(Series("growth", depth.key, f"µs per message, {BATCH} at once", title=depth.title))
        for depth in chosen
    ]
    one_by_one = [
        results.add(Series("growth-single", depth.key, "µs per message, one by one", title=depth.title))
        for depth in chosen
    ]
    asyncio.run(_measure(chosen, rounds, many_at_once, one_by_one, progress))


async def _measure(
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
            url = fresh_url()
            bus = await stack.enter_async_context(agentbus.connect(url))
            agents.append(await bus.register(AGENT, type="worker"))
            await _fill(url, depth)
        for number in range(rounds + 1):
            progress.say(f"growth: round {number} of {rounds}")
            for turn in range(len(agents)):
                place = (number + turn) % len(agents)
                figures = await growth._many_at_once(agents[place]), await growth._one_by_one(agents[place])
                if number:
                    many_at_once[place].values.append(figures[0])
                    one_by_one[place].values.append(figures[1])


async def _fill(url: str, depth: Depth) -> None:
    dsn, _, schema = url.partition("&schema=")
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    mailbox = await connection.fetchval("SELECT mailbox FROM agents WHERE id = $1", AGENT)
    moment = time.time_ns() // 1_000_000
    common = (mailbox, AGENT, TEXT, crc32(TEXT.encode()))
    if depth.finished:
        await connection.execute(FILL, 0, *common, "acked", moment, moment, depth.finished, timeout=600)
    await connection.execute(FILL, depth.finished, *common, "queued", moment, None, depth.queued, timeout=600)
    await connection.execute("SELECT setval('message_ids', $1)", depth.finished + depth.queued)
    await connection.execute("VACUUM ANALYZE messages", timeout=600)
    await connection.close()
