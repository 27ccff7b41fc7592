"""The benchmark of LangGraph's checkpointers: ``python -m benchmarks.langgraph``. Tables in Markdown on stdout.

Ours against AsyncSqliteSaver, and on PostgreSQL against AsyncPostgresSaver, in one run. ``make bench`` leaves it out;
``make bench BENCH_ARGS="--only langgraph"`` runs it.
"""

from __future__ import annotations

import asyncio
import operator
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Annotated, Any, TypedDict

from benchmarks.command import Options, Suite
from benchmarks.contestants.checkpointers import CONTESTANTS, Contestant, installed, unavailable
from benchmarks.measure import Case, Results, Series, in_new_directory, interleave
from benchmarks.progress import Progress
from benchmarks.report import Check, against
from benchmarks.run import main

RATE = "checkpoints/s"
THREADS = 32
CHECKPOINTS, STEPS, ONE, READ, GRAPH = "checkpoints", "steps", "one", "read", "graph"
TITLES = {
    CHECKPOINTS: f"{THREADS} threads",
    STEPS: f"{THREADS} threads, with writes",
    ONE: "one thread, with writes",
    READ: f"{THREADS} threads, latest read",
    GRAPH: f"{THREADS} running graphs",
}
MESSAGES = [{"role": "user", "content": "x" * 180, "id": str(number)} for number in range(10)]
"""A conversation: about 2.2 KiB."""
NOTES = (
    "Threads of LangGraph, which are conversations, as concurrent tasks of one event loop. A checkpoint has ten "
    "messages, 2.2 KiB. With writes: a task's writes to two channels, then the checkpoint, as in a step of a "
    "graph. Read: the latest of a thread with its writes. Medians, and the range, of interleaved rounds, each on a new "
    "database.",
    "A running graph repeats a node that does nothing; most of its time is that of LangGraph itself.",
    *([] if installed("langgraph.graph") else ["Graphs were left out: langgraph is not installed."]),
)

Work = Callable[[Any, str, float], Awaitable[int]]
"""Use a saver for a thread of LangGraph until a moment; return the number of checkpoints."""


def checkpoint(number: int) -> dict[str, Any]:
    return {
        "v": 4,
        "id": f"1f0a7e6e-{number:012}",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": {"messages": MESSAGES, "step": number},
        "channel_versions": {"messages": f"{number:032}.5", "step": f"{number:032}.5"},
        "versions_seen": {"__input__": {}, "agent": {"step": f"{number:032}.4"}},
        "updated_channels": ["messages", "step"],
    }


async def put(saver: Any, thread: str, end: float, *, writes: bool) -> int:
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    for number in count():
        if time.perf_counter() >= end:
            return number
        if writes and number:
            await saver.aput_writes(config, [("messages", MESSAGES[0]), ("step", number)], f"task-{number}", "~agent")
        value = checkpoint(number)
        metadata = {"source": "loop", "step": number, "parents": {}}
        config = await saver.aput(config, value, metadata, value["channel_versions"])
    raise AssertionError


async def read(saver: Any, thread: str, end: float) -> int:
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    for number in count():
        if time.perf_counter() >= end:
            return number
        found = await saver.aget_tuple(config)
        assert found is not None
        assert len(found.pending_writes) == 2
    raise AssertionError


class State(TypedDict):
    log: Annotated[list[int], operator.add]


async def run_graph(saver: Any, thread: str, end: float) -> int:
    graphs = import_module("langgraph.graph")
    builder = graphs.StateGraph(State)
    builder.add_node("step", lambda state: {"log": [1]})
    builder.add_edge(graphs.START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if time.perf_counter() < end else graphs.END)
    graph = builder.compile(checkpointer=saver)
    found = await graph.ainvoke({"log": []}, {"configurable": {"thread_id": thread}, "recursion_limit": 1_000_000})
    return len(found["log"])


WORK: dict[str, tuple[Work, int]] = {
    CHECKPOINTS: (partial(put, writes=False), THREADS),
    STEPS: (partial(put, writes=True), THREADS),
    ONE: (partial(put, writes=True), 1),
    READ: (read, THREADS),
    GRAPH: (run_graph, THREADS),
}


def measure(options: Options, directory: Path, results: Results, progress: Progress) -> dict[str, Any]:
    seconds, slices = (0.3, 1) if options.quick else (0.5, 4)
    if GRAPH in options.chosen and installed("langgraph.graph"):
        # Importing it takes longer than a round.
        import_module("langgraph.graph")
    cases: list[Case] = []
    for workload in (one for one in WORK if one in options.chosen):
        if workload == GRAPH and not installed("langgraph.graph"):
            continue
        for about in (one for one in CONTESTANTS if options.wants(one.key) and one.missing() is None):
            series = Series(workload, about.key, RATE, title=about.title, durability=about.durability)
            run = partial(in_new_directory, directory, partial(_rate, about, workload, seconds))
            cases.append(Case(results.add(series), run))
    interleave(cases, options.rounds, slices, progress)
    return {"seconds": seconds, "slices": slices, "threads": THREADS}


def checks(results: Results) -> list[Check]:
    """Return the targets whose sides were both measured in this run."""
    found: list[Check] = []
    if results.find(CHECKPOINTS, "sqlite-saver"):
        title = f"{THREADS} threads, checkpoints against AsyncSqliteSaver"
        found += against(results, title, CHECKPOINTS, "agentbus", "sqlite-saver", least=5)
    if results.find(CHECKPOINTS, "postgres-saver"):
        title = f"{THREADS} threads, checkpoints against AsyncPostgresSaver on the same server"
        found += against(results, title, CHECKPOINTS, "agentbus-postgres", "postgres-saver", least=1)
    return found


def _rate(contestant: Contestant, workload: str, seconds: float, directory: Path) -> float:
    work, threads = WORK[workload]

    async def measured() -> float:
        async with contestant.open(directory) as saver:
            names = [f"thread-{number}" for number in range(threads)]
            if workload == READ:
                await asyncio.gather(*[_fill(saver, name) for name in names])
            started = time.perf_counter()
            done = await asyncio.gather(*[work(saver, name, started + seconds) for name in names])
            return sum(done) / (time.perf_counter() - started)

    return asyncio.run(measured())


async def _fill(saver: Any, thread: str) -> None:
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    for number in range(10):
        config = await saver.aput(config, checkpoint(number), {"step": number}, {"messages": "1", "step": "1"})
        await saver.aput_writes(config, [("messages", MESSAGES[0]), ("step", number)], f"task-{number}")


SUITE = Suite(
    name="langgraph",
    title="Checkpointers of LangGraph",
    about=__doc__ or "",
    choices=[*WORK],
    rate=RATE,
    titles=TITLES,
    notes=lambda: [*NOTES, *unavailable()],
    measure=measure,
    checks=checks,
    long=frozenset(WORK),
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
