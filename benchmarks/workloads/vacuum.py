"""A server under continuous load with retention and autovacuum: throughput, latency and the size of its tables over
time."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

import agentbus
from agentbus import Bus, RetentionPolicy
from benchmarks.contestants.about import package
from benchmarks.contestants.queues.postgres import new_schema_url
from benchmarks.measure import Results, Series
from benchmarks.progress import Progress
from benchmarks.report import RATE
from benchmarks.workloads.clients import DURABILITY, OURS, P99, TITLE, open_boxes
from benchmarks.workloads.fleet import Meet, fleet
from benchmarks.workloads.lifecycles import timed
from benchmarks.workloads.processes import p99

WORKLOAD = "vacuum"
PROCESSES, AGENTS = 2, 50
TABLE, INDEXES, DEAD = "MB, table of messages", "MB, its indexes", "dead rows"
SIZES = """
SELECT pg_table_size('messages') / 1048576.0, pg_indexes_size('messages') / 1048576.0,
    coalesce(n_dead_tup, 0)::float8, coalesce(autovacuum_count, 0)::float8
FROM pg_stat_user_tables WHERE relid = 'messages'::regclass
"""


@dataclass
class Observed:
    """Measurements of the caller under load."""

    sizes: list[tuple[float, ...]] = field(default_factory=list)
    applied: list[float] = field(default_factory=list)
    """Seconds of each application of the retention policy."""
    removed: int = 0


def measure(directory: Path, seconds: float, sample: float, every: float, results: Results, progress: Progress) -> None:
    """Run for ``seconds``, in samples; every ``every`` seconds apply a policy that keeps messages that long."""
    url = new_schema_url("vacuum")
    samples = max(1, int(seconds / sample))
    progress.expect(samples)
    # Archives of a bus on a server are in the user's directory of state.
    before, os.environ["XDG_STATE_HOME"] = os.environ.get("XDG_STATE_HOME"), str(directory)
    try:
        with fleet(_work, PROCESSES, url, samples, sample, seconds=seconds) as clients:
            clients.meet()
            observed = asyncio.run(_observe(url, samples, sample, every, progress))
            clients.meet()
            shares: list[list[list[float]]] = clients.answers()
        sizes, compact = asyncio.run(_compact(url))
    finally:
        if before is None:
            del os.environ["XDG_STATE_HOME"]
        else:
            os.environ["XDG_STATE_HOME"] = before
    taken = [[one * 1000 for share in of_sample for one in share] for of_sample in zip(*shares, strict=True)]
    title = f"{PROCESSES} × {AGENTS} agents for {seconds:,.0f} s, messages kept for {every:,.0f} s"
    for unit, values in {
        RATE: [len(one) / sample for one in taken],
        P99: [p99(one) for one in taken if one],
        **{unit: [one[at] for one in observed.sizes] for at, unit in enumerate((TABLE, INDEXES, DEAD))},
    }.items():
        shown = TITLE if unit == RATE else title
        results.add(Series(WORKLOAD, OURS, unit, values, title=shown, durability=DURABILITY))
    for name, unit, value in (
        ("messages that retention archived and deleted", "rows", float(observed.removed)),
        ("one application of the policy", "s", max(observed.applied, default=0.0)),
        ("runs of autovacuum", "times", observed.sizes[-1][3] if observed.sizes else 0.0),
        ("table, against its size after VACUUM FULL", "x", sizes[0] / compact[0]),
        ("indexes, against their size after VACUUM FULL", "x", sizes[1] / compact[1]),
        ("throughput of the last quarter, against the first", "x", _last_against_first([len(one) for one in taken])),
    ):
        results.add(Series(f"{WORKLOAD}: {name}", OURS, unit, [value], title=f"after {seconds:,.0f} s: {name}"))


async def _work(number: int, meet: Meet, url: str, samples: int, sample: float) -> list[list[float]]:
    """Return the seconds of each lifecycle, by sample."""
    async with agentbus.connect(url) as bus:
        boxes = await open_boxes(bus, f"client-{number}", AGENTS)
        await meet()
        started = time.perf_counter()
        found = [await timed(boxes, started + (at + 1) * sample) for at in range(samples)]
        await meet()
        return found


async def _observe(url: str, samples: int, sample: float, every: float, progress: Progress) -> Observed:
    observed = Observed()
    async with agentbus.connect(url) as bus, _connection(url) as connection:
        started, due = time.perf_counter(), every
        for number in range(1, samples + 1):
            progress.say(f"sample {number} of {samples}")
            while (now := time.perf_counter() - started) < number * sample:
                if now >= due:
                    due += every
                    await _apply(bus, every, observed)
                await anyio.sleep(min(0.2, sample / 5))
            observed.sizes.append(tuple(map(float, await connection.fetchrow(SIZES))))
    return observed


async def _apply(bus: Bus, keep: float, observed: Observed) -> None:
    started = time.perf_counter()
    report = await bus.retention.apply(policy=RetentionPolicy(messages=keep, messages_most=None))
    observed.applied.append(time.perf_counter() - started)
    observed.removed += report.removed.get("message", 0)


async def _compact(url: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the sizes before and after the table is written again without gaps."""
    async with _connection(url) as connection:
        before = await connection.fetchrow(SIZES)
        await connection.execute("VACUUM FULL messages", timeout=600)
        return tuple(map(float, before)), tuple(map(float, await connection.fetchrow(SIZES)))


@asynccontextmanager
async def _connection(url: str) -> AsyncIterator[Any]:
    dsn, _, schema = url.partition("&schema=")
    connection = await package("asyncpg").connect(dsn, server_settings={"search_path": schema})
    try:
        yield connection
    finally:
        await connection.close()


def _last_against_first(counts: list[int]) -> float:
    quarter = max(1, len(counts) // 4)
    return sum(counts[-quarter:]) / max(1, sum(counts[:quarter]))
