"""The benchmark of event loops: ``python -m benchmarks.loops``. agentbus on asyncio's own loop and on uvloop."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.command import Options, Suite
from benchmarks.contestants.about import missing_packages, package
from benchmarks.contestants.queues.base import Contestant
from benchmarks.contestants.queues.bus import DISK, PROCESS
from benchmarks.contestants.queues.postgres import POSTGRES
from benchmarks.measure import Case, Results, Series, in_new_directory, interleave
from benchmarks.progress import Progress
from benchmarks.report import RATE, Check
from benchmarks.run import main
from benchmarks.workloads.lifecycles import MANY, ONE, Workload

CPU = "µs of CPU a message"
UVLOOP = "-uvloop"
BUSES: tuple[Contestant, ...] = (DISK, PROCESS, POSTGRES[0])
NOTES = (
    "Both loops take turns in short slices, each on a new bus. CPU is that of the process, which other load on the "
    "machine changes less than the rate; a ratio is the median of the ratios of the rounds.",
)


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    if (missing := missing_packages(["uvloop"])) is not None:
        raise RuntimeError(missing)
    loops: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "": asyncio.new_event_loop, UVLOOP: package("uvloop").new_event_loop,
    }  # fmt: skip
    seconds, slices = (0.1, 1) if options.quick else (0.5, 4)
    cases: list[Case] = []
    costs: dict[str, Series] = {}
    for workload in (one for one in (ONE, MANY) if one.key in options.chosen):
        for bus in (one for one in BUSES if options.wants(one.key) and one.missing() is None):
            for suffix, loop in loops.items():
                key, title = bus.key + suffix, bus.title + (", uvloop" if suffix else "")
                rate, cost = (
                    Series(workload.key, key, unit, title=title, durability=bus.durability) for unit in (RATE, CPU)
                )
                costs[workload.key + key] = cost
                cost.title = f"{title}, {workload.title}"
                run = partial(_rate, bus, workload, loop, seconds, cost)
                cases.append(Case(results.add(rate), partial(in_new_directory, directory, run)))
    for cost in costs.values():
        results.add(cost)
    interleave(cases, options.rounds, slices, progress)
    return {"seconds": seconds, "slices": slices}


def _rate(
    bus: Contestant,
    workload: Workload,
    loop: Callable[[], asyncio.AbstractEventLoop],
    seconds: float,
    cost: Series,
    directory: Path,
) -> float:
    """Return the lifecycles per second, and add the CPU of one to ``cost``: a value for each slice."""

    async def work() -> float:
        async with bus.open(directory, workload.boxes) as boxes:
            cpu, started = time.process_time(), time.perf_counter()
            rate = await workload.run(boxes, seconds)
            cost.values.append((time.process_time() - cpu) / (rate * (time.perf_counter() - started)) * 1e6)
            return rate

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work())


def checks(results: Results) -> list[Check]:
    """Return the ratios of the two loops."""
    found: list[Check] = []
    for workload in (ONE, MANY):
        for bus in BUSES:
            for unit in (RATE, CPU):
                ratio = results.ratio(workload.key, bus.key + UVLOOP, bus.key, unit)
                if ratio is not None:
                    found.append(Check(f"{bus.title}, {workload.title}: {unit}, uvloop against asyncio", ratio, "x"))
    return found


SUITE = Suite(
    name="loops",
    title="Event loops",
    about=__doc__ or "",
    choices=(ONE.key, MANY.key),
    rate=RATE,
    titles={ONE.key: ONE.title, MANY.key: MANY.title},
    notes=lambda: NOTES,
    measure=measure,
    checks=checks,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
