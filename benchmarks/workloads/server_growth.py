"""Growth on PostgreSQL: the cost of a claim and its acknowledgement with few and with many queued and finished
messages. The tables are filled in bulk by plain SQL."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from zlib import crc32

import agentbus
from benchmarks.contestants.about import package
from benchmarks.contestants.queues.postgres import new_schema_url
from benchmarks.payload import TEXT
from benchmarks.progress import Progress
from benchmarks.workloads.growth import AGENT, FEW, Depth, Reader

FILL = """
INSERT INTO messages (id, mailbox, sender, type, payload, checksum, priority, status, attempts, max_attempts, lease,
    holder, created, finished)
SELECT $1 + number, $2 + number % $10, $3, 'note', $4, $5, 5, $6, 0, 5, 0, $3, $7, $8
FROM generate_series(1, $9) AS number
"""
BOXES = """
INSERT INTO mailboxes (kind, name, owner, created)
SELECT 'agent', 'other-' || number, 'other-' || number, 0 FROM generate_series(1, $1) AS number RETURNING id
"""
ROWS_AT_ONCE = 1_000_000


async def open_readers(
    directory: Path, chosen: Sequence[Depth], stack: AsyncExitStack, progress: Progress
) -> list[Reader]:
    """Fill a schema for each depth and return its reader."""
    readers: list[Reader] = []
    for depth in chosen:
        progress.say(f"growth on a server: filling {depth.title}")
        url = new_schema_url(f"{directory.name}_{depth.key}")
        bus = await stack.enter_async_context(agentbus.connect(url))
        readers.append(Reader(bus, await bus.register(AGENT, type="worker")))
        await _fill(url, depth, progress)
    return readers


async def _fill(url: str, depth: Depth, progress: Progress) -> None:
    dsn, _, schema = url.partition("&schema=")
    connection = await package("asyncpg").connect(dsn, server_settings={"search_path": schema})
    own = await connection.fetchval("SELECT mailbox FROM agents WHERE id = $1", AGENT)
    # Identities that one statement generates are consecutive while no other session inserts.
    elsewhere = min((row[0] for row in await connection.fetch(BOXES, depth.boxes - 1)), default=own)
    moment = time.time_ns() // 1_000_000
    common = (AGENT, TEXT, crc32(TEXT.encode()))
    last = 0
    for count, status, finished in ((depth.finished, "acked", moment), (depth.queued, "queued", None)):
        # Of many mailboxes, the one of the reader has few messages.
        ours = min(count, FEW) if depth.boxes > 1 else count
        for share, first, boxes in ((count - ours, elsewhere, max(1, depth.boxes - 1)), (ours, own, 1)):
            for start in range(0, share, ROWS_AT_ONCE):
                rows = min(ROWS_AT_ONCE, share - start)
                await connection.execute(
                    FILL, last, first, *common, status, moment, finished, rows, boxes, timeout=600
                )  # fmt: skip
                last += rows
                if share > ROWS_AT_ONCE:
                    progress.note(f"filled with {last:,} messages")
    await connection.execute("SELECT setval('message_ids', $1)", last)
    await connection.execute("VACUUM ANALYZE messages", timeout=3600)
    await connection.close()
