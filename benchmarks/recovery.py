"""The recovery benchmark: ``python -m benchmarks.recovery``. Tables in Markdown on stdout, progress on stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.command import Options, Suite
from benchmarks.contestants.registries.base import Contestant, Population
from benchmarks.contestants.registries.bus import BUS
from benchmarks.contestants.registries.files import FAST_FILES, FILES
from benchmarks.measure import Results
from benchmarks.progress import Progress
from benchmarks.report import Check, against
from benchmarks.run import main
from benchmarks.workloads import registry, sweep
from benchmarks.workloads.registry import RATE, Workload

SIZES = (100, 1_000, 10_000)
CONTESTANTS: tuple[Contestant, ...] = (BUS, FILES, FAST_FILES)
NOTES = (
    "Agents in sessions of ten. One session in ten is open, and half of those were interrupted; the others are "
    "history, unless all sessions are open. Every answer is verified.",
    "A summary counts incomplete agents by status, type and session, and interrupted sessions, with the oldest agent "
    "and the size. That of the bus also has dead lease holders and the time to recovery, from the audit log.",
    "The bus reads only what was interrupted, files are all read: the more history, the larger the ratio.",
    "The files are in the page cache. One that is opened by its name is read about as fast as the bus answers.",
    sweep.NOTE,
)


WORKLOADS = (
    *(Workload(f"summary-{size}", f"summary, {size:,} agents", "summary", Population(size)) for size in SIZES),
    Workload("summary-1000-open", "summary, 1,000 agents, all sessions open", "summary", Population(1_000, 1)),
    *(
        Workload(f"interrupted-{size}", f"interrupted sessions, {size:,} agents", "interrupted", Population(size))
        for size in SIZES
    ),
)


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    seconds = 0.02 if options.quick else 0.4
    registry.measure(WORKLOADS, CONTESTANTS, seconds, options, directory, results, progress)
    return {"seconds": seconds, **sweep.measure(options, directory, results, progress)}


def checks(results: Results) -> list[Check]:
    """Return the targets whose sides were both measured in this run."""
    found: list[Check] = []
    for workload in WORKLOADS:
        if workload.key in {"summary-1000", "interrupted-1000"}:
            name = f"{workload.title}: against a JSON file for each"
            found += against(results, name, workload.key, "agentbus", "files", least=50)
    return found + sweep.checks(results)


SUITE = Suite(
    name="recovery",
    title="Recovery",
    about=__doc__ or "",
    choices=[*(workload.key for workload in WORKLOADS), *sweep.CHOICES],
    part_of=registry.population_of,
    rate=RATE,
    titles={workload.key: workload.title for workload in WORKLOADS},
    notes=lambda: NOTES,
    measure=measure,
    checks=checks,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
