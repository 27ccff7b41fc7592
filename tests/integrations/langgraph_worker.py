"""A process that runs graphs: ``python -m tests.integrations.langgraph_worker KIND URL …``."""

from __future__ import annotations

import asyncio
import operator
import sys
import threading
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph

import agentbus
from agentbus.integrations.langgraph import AgentBusSaver, AgentBusStore
from tests.support.processes import say

GRAPHS = 8
STEPS = 10


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def node(name: str, blocked: str) -> Callable[[State], dict[str, Any]]:
    def work(state: State) -> dict[str, Any]:
        if name == blocked:
            say("blocked", name)
            threading.Event().wait()
        say("ran", name)
        return {"log": [name]}

    return work


def branches(url: str, blocked: str) -> None:
    """Run or resume a graph with two branches; the node ``blocked`` never ends."""
    builder: Any = StateGraph(State)
    for name in ("left", "right", "join", "last"):
        builder.add_node(name, node(name, blocked))
    builder.add_edge(START, "left")
    builder.add_edge(START, "right")
    builder.add_edge(["left", "right"], "join")
    builder.add_edge("join", "last")
    builder.add_edge("last", END)
    with AgentBusSaver(url) as saver:
        graph = builder.compile(checkpointer=saver)
        config = {"configurable": {"thread_id": "t"}}
        started = saver.get_tuple(config) is not None
        found = graph.invoke(None if started else {"log": ["in"]}, config, durability="sync")
    say("result", *found["log"])


def counter(steps: int, told: bool = False) -> Any:
    """Return a graph that repeats one node, each time that it is ``told`` to."""

    def step(state: State) -> dict[str, Any]:
        if told:
            sys.stdin.readline()
        say("ran", len(state["log"]))
        return {"log": [str(len(state["log"]))]}

    builder: Any = StateGraph(State)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if len(state["log"]) < steps else END)
    return builder


def count(url: str, steps: str) -> None:
    """Run or resume a graph that repeats one node, a step for each line that it is told."""
    with AgentBusSaver(url) as saver:
        graph = counter(int(steps), told=True).compile(checkpointer=saver)
        config = {"configurable": {"thread_id": "t"}, "recursion_limit": 1000}
        started = saver.get_tuple(config) is not None
        found = graph.invoke(None if started else {"log": []}, config, durability="sync")
    say("result", *found["log"])


def crowd(url: str, name: str) -> None:
    """Run graphs concurrently, some on threads that other processes use too; then tell how many ended."""

    async def run() -> None:
        async with agentbus.connect(url) as bus:
            store = AgentBusStore(bus)
            graph = counter(STEPS).compile(checkpointer=AgentBusSaver(bus), store=store)
            say("ready")
            await asyncio.to_thread(sys.stdin.readline)

            async def one(thread: str) -> int:
                config = {"configurable": {"thread_id": thread}, "recursion_limit": 1000}
                found = await graph.ainvoke({"log": []}, config)
                await store.aput(("graphs", name), thread, {"steps": len(found["log"])})
                return len(found["log"])

            threads = [f"{name}-{number}" for number in range(GRAPHS)] + ["shared-1", "shared-2"]
            ended = await asyncio.gather(*map(one, threads))
            assert all(steps >= STEPS for steps in ended)
            say("ended", len(ended))

    asyncio.run(run())


if __name__ == "__main__":
    {"branches": branches, "count": count, "crowd": crowd}[sys.argv[1]](*sys.argv[2:])
