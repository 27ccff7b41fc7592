"""The registry benchmark: ``python -m benchmarks.registry``. Tables in Markdown on stdout, progress on stderr."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.command import Options, Suite
from benchmarks.contestants.registries.base import Contestant, Population
from benchmarks.contestants.registries.bus import READ_BUS
from benchmarks.contestants.registries.files import FAST_MAIL_FILES, MAIL_FILES, NAMED_FILES
from benchmarks.measure import Results
from benchmarks.progress import Progress
from benchmarks.run import main
from benchmarks.workloads import registry
from benchmarks.workloads.registry import RATE, Workload

SIZES = (100, 1_000, 10_000)
CONTESTANTS: tuple[Contestant, ...] = (READ_BUS, MAIL_FILES, FAST_MAIL_FILES, NAMED_FILES)
QUESTIONS = {"lookup": "one agent", "check": "any message for me", "query": "running executors"}
WORKLOADS = tuple(
    Workload(f"{question}-{size}", f"{title}, {size:,}", question, Population(size))
    for question, title in QUESTIONS.items()
    for size in SIZES
)
NOTES = (
    "Each of the agents has a message waiting; the agent that asks has none. Every answer is verified.",
    "Files: the caller scans the directory and parses every file; or it opens the right file by its name, and looks "
    "into its own directory of messages. All files are in the page cache.",
    "A file that is opened by its name is read about as fast as the bus answers; files cannot answer questions "
    "across agents.",
)


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    seconds = 0.02 if options.quick else 0.2
    registry.measure(WORKLOADS, CONTESTANTS, seconds, options, directory, results, progress)
    return {"seconds": seconds}


SUITE = Suite(
    name="registry",
    title="The registry",
    about=__doc__ or "",
    choices=[workload.key for workload in WORKLOADS],
    part_of=registry.population_of,
    rate=RATE,
    titles={workload.key: workload.title for workload in WORKLOADS},
    notes=lambda: NOTES,
    measure=measure,
    checks=lambda _: [],
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
