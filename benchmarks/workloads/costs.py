"""Runs for the cost model: processes with agents that work and agents that wait, and the CPU of all of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

import agentbus
from benchmarks.contestants import servers
from benchmarks.contestants.queues.postgres import SERVER, new_schema_url
from benchmarks.cost_model import TERMS, Costs, Load, Observation, fit
from benchmarks.measure import Results, Series
from benchmarks.progress import Progress
from benchmarks.workloads.clients import open_boxes
from benchmarks.workloads.fleet import Meet, fleet
from benchmarks.workloads.lifecycles import timed

WORKLOAD, PREDICTED = "costs", "prediction"
NAMES = {
    "message": "a message, sent, received and acknowledged", "heartbeat": "a heartbeat of a process",
    "agent": "an agent in a heartbeat",
}  # fmt: skip
PREDICTION, MEASUREMENT, ERROR = "CPU s, predicted", "CPU s, measured", "% error"


@dataclass(frozen=True)
class Shape:
    """Processes, the agents of each that work and that wait, and the interval of heartbeats."""

    processes: int
    working: int
    waiting: int
    interval: float

    @property
    def title(self) -> str:
        agents = f"{self.working} working and {self.waiting} waiting agents"
        return f"{self.processes} × {agents}, a heartbeat every {self.interval:g} s"


def fitted(agents: int) -> list[Shape]:
    """Return the runs that the model is fitted to: idle processes, agents that wait, agents that work, and both."""
    return [
        Shape(1, 0, 0, 0.1), Shape(4, 0, 0, 0.1), Shape(1, 0, 10 * agents, 0.5), Shape(2, 0, 5 * agents, 0.25),
        Shape(1, agents, 0, 5), Shape(2, agents // 2, 0, 5), Shape(1, agents // 2, 2 * agents, 1),
    ]  # fmt: skip


def unseen(agents: int) -> Shape:
    """Return the run that the model is checked against."""
    return Shape(2, agents, 4 * agents, 0.5)


def measure(
    directory: Path, agents: int, seconds: float, engines: list[str], results: Results, progress: Progress
) -> None:
    makers: dict[str, Callable[[int], str]] = {
        "SQLite": lambda number: str(directory / f"costs-{number}"),
        "PostgreSQL": lambda number: new_schema_url(f"costs_{number}"),
    }
    shapes = fitted(agents)
    progress.expect(len(engines) * (len(shapes) + 1))
    for engine in engines:
        observe = partial(_observe, engine, makers[engine], seconds, progress)
        costs = fit([observe(number, shape) for number, shape in enumerate(shapes)])
        _report(engine, costs, observe(len(shapes), unseen(agents)), results)


def _report(engine: str, costs: Costs, observed: Observation, results: Results) -> None:
    for term, cost in zip(TERMS, costs.each(), strict=True):
        title = f"{engine}: {NAMES[term]}"
        results.add(Series(WORKLOAD, f"{engine} {term}", "µs of CPU", [cost * 1e6], title=title))
    figures = {
        PREDICTION: costs.predict(observed.load), MEASUREMENT: observed.cpu, ERROR: costs.error(observed) * 100,
    }  # fmt: skip
    for unit, value in figures.items():
        results.add(Series(PREDICTED, engine, unit, [value], title=f"{engine}: {observed.title}"))


def _observe(
    engine: str, url: Callable[[int], str], seconds: float, progress: Progress, number: int, shape: Shape
) -> Observation:
    progress.say(f"{engine}: {shape.title}")
    with fleet(_run, shape.processes, url(number), shape, seconds, seconds=seconds) as processes:
        processes.meet()
        before = servers.cpu(SERVER)
        processes.meet()
        of_server = servers.cpu(SERVER) - before
        shares: list[tuple[int, float]] = processes.answers()
    heartbeats = shape.processes * seconds / shape.interval
    load = Load(sum(done for done, _ in shares), heartbeats, heartbeats * (shape.working + shape.waiting))
    own = of_server if engine == "PostgreSQL" else 0.0
    return Observation(shape.title, load, own + sum(cpu for _, cpu in shares))


async def _run(number: int, meet: Meet, url: str, shape: Shape, seconds: float) -> tuple[int, float]:
    """Return the number of messages and the CPU seconds of this process."""
    async with agentbus.connect(url, beat_every=shape.interval) as bus:
        working = await open_boxes(bus, f"working-{number}", shape.working)
        waiting = await open_boxes(bus, f"waiting-{number}", shape.waiting)
        async with anyio.create_task_group() as tasks:
            for box in waiting:
                tasks.start_soon(box.receive)
            # The first heartbeat and the first messages cost more than the later ones.
            await timed(working, time.perf_counter() + seconds / 4)
            await anyio.sleep(min(1.0, 2 * shape.interval))
            await meet()
            cpu, end = time.process_time(), time.perf_counter() + seconds
            done = len(await timed(working, end))
            await anyio.sleep(max(0.0, end - time.perf_counter()))
            cpu = time.process_time() - cpu
            await meet()
            tasks.cancel_scope.cancel()
    return done, cpu
