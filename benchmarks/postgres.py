"""The queue benchmark on PostgreSQL: ``python -m benchmarks.postgres``, or ``benchmarks.queue --engine postgres``."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import queue
from benchmarks.command import Options, Suite
from benchmarks.contestants.queues.postgres import POSTGRES
from benchmarks.measure import Results
from benchmarks.progress import Progress
from benchmarks.report import Check, against
from benchmarks.run import main
from benchmarks.workloads import growth, server_growth
from benchmarks.workloads.lifecycles import TASKS

OURS = "agentbus-postgres"
OTHERS = {"asyncpg": "asyncpg with SKIP LOCKED", "procrastinate": "procrastinate"}
WORKLOADS = tuple(one for one in queue.SUITE.choices if one not in {queue.GROWTH, queue.BEATS})
NOTES = (
    "All run on one server with fsync, each in its own table or schema.",
    "asyncpg has the same tables and a connection for each task: one statement, and one transaction, for each step. "
    "The sending process notifies after its insert; the receiver listens.",
    "procrastinate runs one worker with as many jobs at once as there are tasks, woken by notifications; a job's "
    "function returns when it is acknowledged.",
)


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    among = [one.key for one in POSTGRES if options.wants(one.key)]
    chosen = [one for one in options.chosen if one in WORKLOADS]
    settings = queue.measure(replace(options, chosen=chosen, among=among), directory, results, progress)
    if queue.GROWTH in options.chosen and OURS in among and POSTGRES[0].missing() is None:
        many, rounds = (100_000, 10) if options.quick else (1_000_000, 30)
        depths = [depth for depth in growth.depths(many) if depth.boxes == 1]
        asyncio.run(growth.in_turn(directory, depths, rounds, server_growth.open_readers, results, progress))
    return settings


def checks(results: Results) -> list[Check]:
    """Return the targets whose sides were both measured in this run."""
    found = against(
        results, "one at a time, against asyncpg with SKIP LOCKED", "one", OURS, "asyncpg", least=0.8, aim=1.1
    )
    for other, title in OTHERS.items():
        found += against(results, f"{TASKS} tasks, against {title}", "tasks", OURS, other, least=3)
        found += against(results, f"idle p50, against {title}", queue.IDLE, OURS, other, queue.P50, most=1)
    return found + growth.checks(results)


SUITE = Suite(
    name="postgres",
    title="Messages on a server",
    about=__doc__ or "",
    choices=[*WORKLOADS, queue.GROWTH],
    rate=queue.SUITE.rate,
    titles=queue.SUITE.titles,
    notes=lambda: NOTES,
    measure=measure,
    checks=checks,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
