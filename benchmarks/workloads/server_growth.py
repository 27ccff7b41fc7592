"""Growth on PostgreSQL: the cost of a claim and its acknowledgement with few and with many queued and finished
messages. The tables are filled in bulk by plain SQL."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from zlib import crc32

import agentbus
from agentbus import Agent
from benchmarks.contestants.about import package
from benchmarks.contestants.queues.postgres import schema_url
from benchmarks.payload import TEXT
from benchmarks.progress import Progress
from benchmarks.workloads.growth import AGENT, Depth

FILL = """
INSERT INTO messages (id, mailbox, sender, type, payload, checksum, priority, status, attempts, max_attempts, lease,
    holder, created, finished)
SELECT $1 + number, $2, $3, 'note', $4, $5, 5, $6, 0, 5, 0, $3, $7, $8 FROM generate_series(1, $9) AS number
"""


async def open_readers(
    directory: Path, chosen: Sequence[Depth], stack: AsyncExitStack, progress: Progress
) -> list[Agent]:
    """Fill a schema for each depth and return its reader."""
    agents: list[Agent] = []
    for depth in chosen:
        progress.say(f"growth on a server: filling {depth.title}")
        url = schema_url(directory / f"growth_{depth.key}")
        bus = await stack.enter_async_context(agentbus.connect(url))
        agents.append(await bus.register(AGENT, type="worker"))
        await _fill(url, depth)
    return agents


async def _fill(url: str, depth: Depth) -> None:
    dsn, _, schema = url.partition("&schema=")
    connection = await package("asyncpg").connect(dsn, server_settings={"search_path": schema})
    mailbox = await connection.fetchval("SELECT mailbox FROM agents WHERE id = $1", AGENT)
    moment = time.time_ns() // 1_000_000
    common = (mailbox, AGENT, TEXT, crc32(TEXT.encode()))
    if depth.finished:
        await connection.execute(FILL, 0, *common, "acked", moment, moment, depth.finished, timeout=600)
    await connection.execute(FILL, depth.finished, *common, "queued", moment, None, depth.queued, timeout=600)
    await connection.execute("SELECT setval('message_ids', $1)", depth.finished + depth.queued)
    await connection.execute("VACUUM ANALYZE messages", timeout=600)
    await connection.close()
