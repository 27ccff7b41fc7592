"""Graphs of LangGraph itself on a bus: killed and resumed, in two processes, and compared with its saver in memory."""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Iterator
from typing import Annotated, Any, TypedDict

import pytest

import agentbus
from tests.conftest import Engine
from tests.examples.test_examples import run as run_example
from tests.support.processes import Worker, eventually

graphs = pytest.importorskip("langgraph.graph", reason="langgraph is not installed: run make integrations")

from langgraph.channels.delta import DeltaChannel  # noqa: E402
from langgraph.checkpoint.memory import InMemorySaver  # noqa: E402
from langgraph.config import get_store  # noqa: E402
from langgraph.types import Command, Send, interrupt  # noqa: E402

from agentbus.integrations.langgraph import AgentBusSaver, AgentBusStore  # noqa: E402
from tests.integrations.langgraph_worker import GRAPHS, STEPS  # noqa: E402

START, END = graphs.START, graphs.END
T: Any = {"configurable": {"thread_id": "t"}}


class Workers:
    def __init__(self) -> None:
        self.started: list[Worker] = []

    def start(self, *arguments: object) -> Worker:
        worker = Worker("tests.integrations.langgraph_worker", *arguments)
        self.started.append(worker)
        return worker


@pytest.fixture
def workers() -> Iterator[Workers]:
    found = Workers()
    yield found
    for worker in found.started:
        worker.close()


def ran(worker: Worker) -> list[str]:
    return [line.removeprefix("ran ") for line in worker.said() if line.startswith("ran ")]


def test_a_killed_graph_resumes_at_its_last_checkpoint_and_repeats_no_finished_task(
    engine: Engine, workers: Workers
) -> None:
    first = workers.start("branches", engine.url, "right")
    first.expect("blocked")
    saver: Any
    with AgentBusSaver(engine.url) as saver:
        # The other branch has ended: its writes are stored, but there is no checkpoint after it.
        eventually(lambda: ("log", ["left"]) in [w[1:] for w in saver.get_tuple(T).pending_writes], "writes of a task")
        first.kill()
        assert ran(first) in (["left"], [])  # its line may have been read before that of the blocked one
        assert saver.get_tuple(T).checkpoint["channel_values"]["log"] == ["in"]
    second = workers.start("branches", engine.url, "last")
    assert [second.line() for _ in range(3)] == ["ran right", "ran join", "blocked last"]
    second.kill()
    third = workers.start("branches", engine.url, "-")
    assert [third.line() for _ in range(2)] == ["ran last", "result in left right join last"]
    third.finish()


@pytest.mark.one_engine
def test_a_graph_that_is_killed_at_random_steps_loses_none(engine: Engine, workers: Workers) -> None:
    rng = random.Random(22)
    steps, kills = 60, 4
    done: list[int] = []
    for _ in range(kills):
        worker = workers.start("count", engine.url, steps)
        told = rng.randint(2, 10)
        for _ in range(told):
            worker.tell("go")
        # Killed in its last step, or when that is stored.
        done += [int(worker.expect("ran")) for _ in range(told - 1)]
        worker.kill()
        done += map(int, ran(worker))
    last = workers.start("count", engine.url, steps)
    last.tell("go\n" * steps)
    assert last.expect("result").split() == [str(number) for number in range(steps)]
    last.finish()
    # What a kill interrupts is repeated; everything else is done once, in its order.
    assert done == sorted(done)
    assert len(done) - len(set(done)) <= kills


def test_two_processes_run_one_graph_and_no_database_is_locked(engine: Engine, workers: Workers) -> None:
    both = [workers.start("crowd", engine.url, name) for name in ("a", "b")]
    for worker in both:
        worker.expect("ready")
    for worker in both:
        worker.tell("go")
    for worker in both:
        assert worker.expect("ended") == str(GRAPHS + 2)
        worker.finish()
        assert "locked" not in worker.errors()
    with AgentBusSaver(engine.url) as saver, AgentBusStore(engine.url) as store:
        for name in "ab":
            for number in range(GRAPHS):
                # The input, and each step, has one.
                assert len([*saver.list({"configurable": {"thread_id": f"{name}-{number}"}})]) == STEPS + 2
        assert len([*saver.list({"configurable": {"thread_id": "shared-1"}})]) >= STEPS + 2
        assert len(store.search(("graphs",), limit=100)) == 2 * (GRAPHS + 2)


class Inner(TypedDict):
    notes: Annotated[list[str], operator.add]


class Outer(TypedDict):
    notes: Annotated[list[str], operator.add]
    deltas: Annotated[list[str], DeltaChannel(lambda state, writes: [*state, *writes], list, snapshot_frequency=3)]


def build() -> Any:
    """Return a graph with parallel tasks, a subgraph that asks a person, a delta channel and a loop."""

    def ask(state: Inner) -> dict[str, Any]:
        return {"notes": [f"answer {interrupt('which?')}"]}

    inner: Any = graphs.StateGraph(Inner)
    inner.add_node("prepare", lambda state: {"notes": ["prepared"]})
    inner.add_node("ask", ask)
    inner.add_edge(START, "prepare")
    inner.add_edge("prepare", "ask")
    outer: Any = graphs.StateGraph(Outer)
    outer.add_node("plan", lambda state: {"notes": ["plan"], "deltas": ["plan"]})
    outer.add_node("part", lambda part: {"notes": [f"part {part['n']}"], "deltas": [f"d{part['n']}"]})
    outer.add_node("sub", inner.compile())
    outer.add_node("again", lambda state: {"deltas": [f"again {len(state['deltas'])}"]})
    outer.add_edge(START, "plan")
    outer.add_conditional_edges("plan", lambda state: [Send("part", {"n": n}) for n in range(3)], ["part"])
    outer.add_edge("part", "sub")
    outer.add_edge("sub", "again")
    outer.add_conditional_edges("again", lambda state: "again" if len(state["deltas"]) < 9 else END)
    return outer


async def story(saver: Any) -> list[Any]:
    """Run a graph with everything that a checkpointer is used for, and return all that can be seen of it."""
    graph = build().compile(checkpointer=saver)
    facts: list[Any] = [_plain(await graph.ainvoke({"notes": ["in"]}, T))]
    state = await graph.aget_state(T, subgraphs=True)
    (task,) = state.tasks
    facts += [state.next, state.values, task.state.values, task.state.next, [one.value for one in state.interrupts]]
    facts.append(_plain(await graph.ainvoke(Command(resume="blue"), T)))
    seen = [one async for one in graph.aget_state_history(T)]
    facts.append([(one.values, one.next, one.metadata["step"], one.metadata["source"]) for one in seen])
    facts.append([one.parent_config is None for one in seen])
    # Time travel: the run after the plan again, which forks the thread.
    planned = next(one for one in seen if one.next == ("part",) * 3)
    facts.append(_plain(await graph.ainvoke(None, planned.config)))
    await graph.aupdate_state(T, {"notes": ["edited"], "deltas": ["edited"]}, as_node="plan")
    facts.append((await graph.aget_state(T)).values)
    facts.append(len([one async for one in graph.aget_state_history(T, filter={"source": "update"})]))
    facts.append(len([one async for one in graph.aget_state_history(T, before=planned.config, limit=2)]))
    return facts


def _plain(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if name != "__interrupt__"}


async def test_a_graph_sees_the_same_as_with_the_saver_in_memory(bus: agentbus.Bus) -> None:
    saver = AgentBusSaver(bus)
    expected = await story(InMemorySaver())
    assert await story(saver) == expected
    # A delta channel is rebuilt after pruning, and in a copy.
    graph = build().compile(checkpointer=saver)
    before = (await graph.aget_state(T)).values
    await saver.acopy_thread("t", "u")
    await saver.aprune(["t"])
    assert (await graph.aget_state(T)).values == before
    assert (await graph.aget_state({"configurable": {"thread_id": "u"}})).values == before


@pytest.mark.one_engine
async def test_nodes_use_the_store_of_the_bus(bus: agentbus.Bus) -> None:
    class State(TypedDict):
        user: str
        colour: str

    async def remember(state: State) -> dict[str, Any]:
        await get_store().aput(("users", state["user"]), "colour", {"is": state["colour"]})
        return {}

    async def recall(state: State) -> dict[str, Any]:
        (found,) = await get_store().asearch(("users", state["user"]))
        return {"colour": f"{found.value['is']} again"}

    builder: Any = graphs.StateGraph(State)
    builder.add_sequence([("remember", remember), ("recall", recall)])
    builder.add_edge(START, "remember")
    graph = builder.compile(checkpointer=AgentBusSaver(bus), store=AgentBusStore(bus))
    found = await graph.ainvoke({"user": "7", "colour": "green"}, T)
    assert found == {"user": "7", "colour": "green again"}


def test_the_example_kills_a_graph_and_resumes_it(engine: Engine) -> None:
    lines = run_example("langgraph_resume.py", engine.url)
    pids = [re.fullmatch(r"  process (\d+) (.*)", line) for line in lines]
    work = [(found[1], found[2]) for found in pids if found]
    first, second = work[0][0], work[-1][0]
    assert work == [
        (first, "looks up flights"),
        (first, "looks up hotels"),
        (second, "looks up hotels"),
        (second, "writes the plan"),
    ]
    assert first != second
    assert lines[-3:] == [
        "  plan: a flight to Oslo and a hotel with a view",
        "4 checkpoints; the last one is after step 2",
        "on the bus: history 'trip-7' of kind langgraph, 12 items",
    ]
