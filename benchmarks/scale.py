"""The benchmark of scale: ``python -m benchmarks.scale``. Where one file and one server end, and a cost model.

On PostgreSQL: client processes with many agents, agents that wait, a large number of messages and of mailboxes, and a
load of minutes with retention and autovacuum. On SQLite: up to 128 writer processes, and large files. Every size is an
option. A full run takes about an hour; ``--only`` selects parts.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks import writers
from benchmarks.command import Options, Size, Suite
from benchmarks.contestants.queues.postgres import POSTGRES
from benchmarks.measure import Results
from benchmarks.progress import Progress
from benchmarks.report import RATE, Check
from benchmarks.run import main
from benchmarks.workloads import clients, costs, kept, vacuum, waiting

CLIENTS, WAITING, KEPT, MAILBOXES, VACUUM = "clients", "waiting", "kept", "mailboxes", "vacuum"
WRITERS, FILE, COSTS = "writers", "file", "costs"
ON_SERVER = frozenset({CLIENTS, WAITING, KEPT, MAILBOXES, VACUUM})
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128)
GIGABYTES = (0.01, 0.1, 1, 2, 5, 10)
SIZES = {
    "seconds": Size(5, 0.3, "seconds of each measurement"),
    "clients": Size(8, 2, "maximum number of client processes"),
    "agents": Size(100, 10, "agents of each client process"),
    "waiting": Size(10_000, 100, "agents that wait"),
    "messages": Size(10_000_000, 2_000, "messages kept"),
    "mailboxes": Size(10_000, 50, "mailboxes with queued messages"),
    "minutes": Size(10, 0.02, "minutes under load with retention and autovacuum"),
    "processes": Size(128, 2, "maximum number of writer processes of one file"),
    "gigabytes": Size(10, 0.01, "largest SQLite file"),
}
MAX_ERROR = 25.0
"""Percent by which the cost model may be wrong about a run it was not fitted to."""
NOTES = (
    "clients: each agent sends to itself, receives and acknowledges 256 bytes of JSON, one message after another. The "
    "latency is that of all three calls. CPU is that of one message.",
    "waiting: every agent has an open receive. Latency: from the call of send in another process until the agent has "
    "the message, one message every 20 ms. The server's memory counts shared pages once.",
    "kept, mailboxes, file: medians of interleaved rounds; a row is one bus, filled in bulk by SQL. Reads return pages "
    "of 100. Finished messages are in one mailbox, or spread evenly.",
    "vacuum: throughput, p99 and sizes by sample, in the order of time. A policy that keeps messages as long as the "
    "interval is applied at each interval. Bloat is the size at the end against that after VACUUM FULL.",
    *writers.NOTES,
    "costs: CPU of the processes and of the server, fitted to seven runs by least squares of the relative errors; the "
    "prediction is of a run that is not among them.",
)


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    missing = POSTGRES[0].missing()
    (part,) = options.chosen
    if part in ON_SERVER and missing is not None:
        raise RuntimeError(missing)
    seconds, rounds = options.sizes["seconds"], options.rounds
    if part == CLIENTS:
        counts = [count for count in COUNTS if count <= options.size("clients")]
        clients.measure(counts, options.size("agents"), seconds, rounds, results, progress)
    elif part == WAITING:
        messages = 10 if options.quick else 500
        waiting.measure(options.size("waiting"), 4 * seconds, messages, results, progress)
    elif part == KEPT:
        kept.kept(directory, options.size("messages"), _calls(options), results, progress)
    elif part == MAILBOXES:
        kept.mailboxes(directory, options.size("mailboxes"), _calls(options), results, progress)
    elif part == VACUUM:
        _vacuum(60 * options.sizes["minutes"], directory, results, progress)
    elif part == WRITERS:
        _writers(options, directory, results, progress)
    elif part == FILE:
        sizes = [size for size in GIGABYTES if size <= options.sizes["gigabytes"] and (size >= 1 or options.quick)]
        kept.files(directory, sizes or [options.sizes["gigabytes"]], _calls(options), results, progress)
    else:
        engines = ["SQLite"] if options.wants("agentbus") else []
        engines += ["PostgreSQL"] if missing is None and options.wants(clients.OURS) else []
        costs.measure(directory, options.size("agents"), 2 * seconds, engines, results, progress)
    return {part: {**options.sizes, "rounds": rounds}}


def _calls(options: Options) -> int:
    """Return the rounds of single calls, which are shorter than those of a load."""
    return options.rounds if options.quick else 3 * options.rounds


def _vacuum(seconds: float, directory: Path, results: Results, progress: Progress) -> None:
    """Apply retention ten times, or as often as it ends. Sample 60 times, but not more than once a second."""
    vacuum.measure(directory, seconds, max(1.0, seconds / 60), seconds / 10, results, progress)


def _writers(options: Options, directory: Path, results: Results, progress: Progress) -> None:
    counts = [count for count in COUNTS if count <= options.size("processes")]
    (ours,) = (one for one in writers.CONTESTANTS if one.key == "agentbus")
    progress.expect(len(counts))
    for count in counts:
        progress.say(writers.counted(count))
        pace = writers.Pace(options.rounds, options.sizes["seconds"])
        for series in writers.measure_count(ours, count, pace, directory, results):
            series.title = writers.counted(count)


def checks(results: Results) -> list[Check]:
    return [
        Check(f"cost model, {one.contestant}: error of the prediction", abs(one.median), " %", most=MAX_ERROR)
        for one in results.of(costs.PREDICTED)
        if one.unit == costs.ERROR
    ]


SUITE = Suite(
    name="scale",
    title="Scale",
    about=__doc__ or "",
    choices=(CLIENTS, WAITING, KEPT, MAILBOXES, VACUUM, WRITERS, FILE, COSTS),
    rate=RATE,
    titles={f"{clients.WORKLOAD}-{count}": f"{writers.counted(count)}" for count in COUNTS}
    | {VACUUM: "with retention"},
    notes=lambda: NOTES,
    measure=measure,
    checks=checks,
    long=frozenset({CLIENTS, WAITING, KEPT, MAILBOXES, VACUUM, WRITERS, FILE, COSTS}),
    sizes=SIZES,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
