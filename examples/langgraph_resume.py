"""Kill a LangGraph graph in the middle of a step, and resume it in another process at its last checkpoint.

The graph plans a trip: it looks up flights and hotels in parallel, and then writes a plan. The first process is killed
with SIGKILL while it looks up hotels. The second one resumes the thread: the flights are not looked up again. The graph
remembers what the traveller likes in a store that all threads share.

    python examples/langgraph_resume.py                # on a temporary bus
    python examples/langgraph_resume.py BUS            # a directory, or postgresql://user@host/database
"""

import asyncio
import operator
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

try:
    from langgraph.config import get_store
    from langgraph.graph import START, StateGraph
except ModuleNotFoundError as error:
    raise SystemExit(f"{error}; in the checkout: python -m pip install langgraph '.[langgraph]'") from None

import agentbus
from agentbus.integrations.langgraph import AgentBusSaver, AgentBusStore

CONFIG: Any = {"configurable": {"thread_id": "trip-7"}}
SLOW = "LANGGRAPH_EXAMPLE_SLOW"


class Trip(TypedDict):
    city: str
    found: Annotated[list[str], operator.add]
    plan: str


async def flights(trip: Trip) -> dict[str, Any]:
    print(f"  process {os.getpid()} looks up flights", flush=True)
    return {"found": [f"a flight to {trip['city']}"]}


async def hotels(trip: Trip) -> dict[str, Any]:
    print(f"  process {os.getpid()} looks up hotels", flush=True)
    if SLOW in os.environ:
        await asyncio.sleep(60)  # a slow service: this program kills the process meanwhile
    liked = await get_store().aget(("travellers", "ada"), "hotel")
    return {"found": [f"a hotel with {liked.value['likes']}"]}


async def write(trip: Trip) -> dict[str, Any]:
    print(f"  process {os.getpid()} writes the plan", flush=True)
    return {"plan": " and ".join(trip["found"])}


def build() -> Any:
    builder: Any = StateGraph(Trip)
    builder.add_node("flights", flights)
    builder.add_node("hotels", hotels)
    builder.add_node("write", write)
    builder.add_edge(START, "flights")
    builder.add_edge(START, "hotels")
    builder.add_edge(["flights", "hotels"], "write")
    return builder


async def plan(url: str) -> None:
    """Run the graph, or resume it if its thread has a checkpoint."""
    async with agentbus.connect(url) as bus:
        saver = AgentBusSaver(bus)
        graph = build().compile(checkpointer=saver, store=AgentBusStore(bus))
        started = await saver.aget_tuple(CONFIG) is not None
        trip = await graph.ainvoke(None if started else {"city": "Oslo"}, CONFIG)
        print(f"  plan: {trip['plan']}", flush=True)


def start(url: str, **environment: str) -> "subprocess.Popen[str]":
    words = [sys.executable, __file__, "--plan", url]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})


def wait_for_flights(saver: AgentBusSaver, process: "subprocess.Popen[str]") -> None:
    """Wait until what the first branch found is stored; the other one does not end."""
    while process.poll() is None:
        found = saver.get_tuple(CONFIG)
        if found is not None and any(channel == "found" for _, channel, _ in found.pending_writes or ()):
            return
        time.sleep(0.01)
    sys.exit(f"the process ended with {process.returncode}")


def main(url: str) -> None:
    with agentbus.sync.connect(url) as bus:
        saver, store = AgentBusSaver(bus), AgentBusStore(bus)
        store.put(("travellers", "ada"), "hotel", {"likes": "a view"})
        with start(url, **{SLOW: "1"}) as first:
            wait_for_flights(saver, first)
            first.kill()
            print("".join(sorted(first.stdout or ())), end="")
        print("the process was killed; the thread has the writes of its finished branch")
        with start(url) as second:
            print(second.stdout.read() if second.stdout else "", end="")
        checkpoints = [*saver.list(CONFIG)]
        print(f"{len(checkpoints)} checkpoints; the last one is after step {checkpoints[0].metadata['step']}")
        for history in bus.histories.list("langgraph").items:
            print(f"on the bus: history {history.name!r} of kind {history.kind}, {history.items} items")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--plan"]:
        asyncio.run(plan(sys.argv[2]))
    elif sys.argv[1:]:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(str(Path(directory) / "bus"))
