"""The state benchmark: ``python -m benchmarks.state``. Tables in Markdown on stdout, progress on stderr."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.command import Options, Suite
from benchmarks.contestants.stores.base import Contestant
from benchmarks.contestants.stores.bus import DISK, PROCESS
from benchmarks.contestants.stores.cache import DISKCACHE
from benchmarks.contestants.stores.files import FILES
from benchmarks.contestants.stores.plain import MINIMAL_HOPS, PLAIN
from benchmarks.contestants.stores.raw import RAW
from benchmarks.measure import Case, Results, Series, in_new_directory, interleave
from benchmarks.payload import SIZE
from benchmarks.progress import Progress
from benchmarks.report import Check, against
from benchmarks.run import main
from benchmarks.workloads import checkpoints
from benchmarks.workloads.lifecycles import TASKS
from benchmarks.workloads.state import KEYS, WORKLOADS, run

RATE = "operations/s"
CONTESTANTS: tuple[Contestant, ...] = (DISK, PROCESS, PLAIN, MINIMAL_HOPS, FILES, DISKCACHE, RAW)
NOTES = (
    f"{KEYS:,} entries of {SIZE} bytes of JSON; a compare-and-set uses the version of the previous one. Medians, and "
    "the range, of interleaved rounds, each on a new store.",
    "aiosqlite has the same tables, WAL and synchronous=FULL, and one connection for all tasks. Plainly: execute + "
    "fetchone in a block that closes the cursor; execute + commit, an asyncio.Lock around both. Fewest hops: cursors "
    "are not closed, which pins the log; no lock, so tasks share commits and failures by chance.",
    f"A get by one of {TASKS} tasks has no floor: aiosqlite's hops overlap there, and raw sqlite3 itself is only "
    "about ten times as fast.",
    f"JSON files and diskcache are called directly by one task, in threads by {TASKS}.",
    "raw sqlite3 runs our statements on our tables, without JSON, checks, lock file or wake-ups.",
)


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    seconds, slices = (0.05, 1) if options.quick else (0.3, 1)
    cases = [
        Case(
            results.add(Series(workload.key, about.key, RATE, title=about.title, durability=about.durability)),
            partial(in_new_directory, directory, partial(run, about, workload, seconds)),
        )
        for workload in WORKLOADS
        if workload.key in options.chosen
        for about in CONTESTANTS
        if options.wants(about.key) and about.missing() is None and (workload.tasks == 1 or about is not RAW)
    ]
    interleave(cases, options.rounds, slices, progress)
    if checkpoints.KEY in options.chosen:
        rounds, largest = (2, 1_000_000) if options.quick else (10, 10_000_000)
        checkpoints.measure(directory, rounds, largest, results, progress)
    return {"seconds": seconds, "slices": slices}


def checks(results: Results) -> list[Check]:
    """Return the targets of which agentbus was measured in this run."""
    ours, plainly = "agentbus", "against aiosqlite used plainly"
    found = against(results, f"get, one task: {plainly}", "get", ours, "aiosqlite", least=10)
    if results.find("get", ours) is not None:
        behind = results.ratio("get", "raw", ours)
        found.append(Check("get, one task: a direct SELECT of sqlite3 against us", behind, "x", most=5))
    return found + against(results, f"set, {TASKS} tasks: {plainly}", "set-tasks", ours, "aiosqlite", least=15, aim=20)


def _notes() -> list[str]:
    missing = [f"{one.title}: left out, {reason}." for one in CONTESTANTS if (reason := one.missing()) is not None]
    return [*NOTES, *missing]


SUITE = Suite(
    name="state",
    title="State and checkpoints",
    about=__doc__ or "",
    choices=[*(workload.key for workload in WORKLOADS), checkpoints.KEY],
    rate=RATE,
    titles={workload.key: workload.title for workload in WORKLOADS},
    notes=_notes,
    measure=measure,
    checks=checks,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
