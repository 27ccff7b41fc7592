"""A bus with rows in every table, and targets to copy it to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Any, TypeVar

import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.api.maintenance.copy import copy_bus
from agentbus.operations.retention import read_policy
from agentbus.records import AgentRecord, CopyReport
from agentbus.sync.bus import BlockingBus, open_bus, open_store
from tests.api.event_story import Story
from tests.api.task_workers import work_off
from tests.support.clock import FakeClock
from tests.support.traces import traced

ENGINES = ("sqlite", "postgres")
PAIRS = [(one, other) for one in ENGINES for other in ENGINES]
crossed = pytest.mark.parametrize(
    "places", [("sqlite", "postgres"), ("postgres", "sqlite")], ids="-to-".join, indirect=True
)
"""Each engine once as the source and once as the target, for properties of one of the two."""
T = TypeVar("T")


class Places:
    """The location of a bus and of its copy. An event loop runs only for the length of a call."""

    def __init__(self, source: str, target: str, clock: FakeClock, more: Callable[[], str], nowhere: str) -> None:
        self.source = source
        self.target = target
        self.clock = clock
        self.more = more
        """Another place of the kind of the target, with nothing in it."""
        self.nowhere = nowhere
        """A place of that kind where no bus is."""

    def on(self, url: str, work: Callable[[Bus], Awaitable[T]]) -> T:
        """Open a bus and do something there."""

        async def working() -> T:
            bus = agentbus.connect(url, clock=self.clock)
            self.clock.attach(bus)
            async with bus:
                return await work(bus)

        return asyncio.run(working())

    def visited(self, url: str) -> BlockingBus:
        return open_bus(url, create=True, clock=self.clock)

    def copy(self, progress: Callable[[int, int, str], object] | None = None, target: str | None = None) -> CopyReport:
        url = target or self.target
        with closing(open_store(self.source, clock=self.clock)) as source:
            return copy_bus(source, lambda: open_store(url, create=True, clock=self.clock), progress)


planned: list[str] = []


@agentbus.workflow("asking")
async def asking(task: Task) -> bool:
    await task.step("plan", lambda: planned.append("once"))
    await task.signal("begin")
    return (await task.approval("go", show={"files": 3})).approved


def fill(places: Places) -> None:
    """Write rows into every table, delete some, and close the bus."""

    async def live(bus: Bus) -> None:
        await Story(bus).tell()
        await bus.state("old").set("k", 1)
        await bus.state("old").delete("k")
        places.clock.advance(1)
        await bus.retention.apply(policy=agentbus.RetentionPolicy(tombstones=0))
        await bus.retention.change(messages=3600)
        await bus.quotas.change(thread=1)
        async with bus.session("meeting", id="m") as session:
            await (await session.participants(["x", "y"])).finish("x", {"done": True})
            await session.document("plan").save({"v": 1})
            await session.document("plan").save({"v": 2})
        await bus.tasks.start(asking, id="asking-1")
        await bus.tasks.signal("asking-1", "begin", {"by": "ä"}, signal_id="b-1", by="ada")
        await bus.tasks.add("review", {"n": 1}, id="review-1", priority=7)
        await bus.tasks.add("merge", id="merge-1", after=["review-1", "asking-1"], on_failed_dependency="cancel")
        await work_off(bus, asking)
        puts = [
            agentbus.HistoryPut(body=bytes(range(256)), part="ä", key="k", meta={"n": 1}),
            agentbus.HistoryPut(body=b""),
        ]
        await bus.histories.write("langgraph", "thread 1", puts, meta={"user": "ada"})
        await bus.histories.write("langgraph", "thread 1", [puts[1]], delete=[("", f"{2:020}")])
        await bus.histories.write("openai", "gone")
        await bus.histories.delete("openai", "gone")

    async def live_traced(bus: Bus) -> None:
        with traced():
            await live(bus)

    places.on(places.source, live_traced)
    with places.visited(places.source) as bus:
        visitor = bus.register("visitor", type="worker", pools=["p"], topics=["t"], metadata={"x": [1]}, prompt="go")
        visitor.send(agentbus.topic("t"), "note", {"to": "all"})
        for payload in ("held", "dead", "done", {"text": "ä\u0000\U0001f600\u2028", "number": 0.1, "big": 2**60}):
            visitor.send("visitor", "note", payload)
        visitor.send("visitor", "note", "later", delay=600, ttl=900)
        held, dead, done = visitor.receive_many(4)[1:4]
        assert (held.payload, dead.payload, done.payload) == ("held", "dead", "done")
        visitor.reject(dead.message_id, error="no")
        visitor.ack(done.message_id)
        visitor.seen(done.message_id, held.message_id, channel="hook", client="ä")
        visitor.seen(held.message_id, channel="mcp")
        assert [visitor.send("visitor", "note", n, correlation="loop").held for n in range(3)] == [False, True, True]
        bus.do(visitor.state.set("here", {"deep": [1, None, "x"]}, ttl=3600))
        bus.do(visitor.state.set("gone", 1))
        bus.do(visitor.state.delete("gone"))
        visitor.checkpoint("half", {"step": 1}, notes="so far")


def views(places: Places, url: str) -> dict[str, Any]:
    """Return every view of the bus, except its processes and the event of the copy."""
    with places.visited(url) as bus:
        checkpoints = bus.do(bus.checkpoints.list("visitor", limit=1000)).items
        plan = bus.do(bus.sessions.open("m")).document("plan")
        return {
            "agents": bus.do(bus.agents.list(limit=1000)).items,
            "messages": (messages := bus.do(bus.messages.list(limit=1000)).items),
            "receipts": [bus.do(bus.messages.receipts(one.message_id)) for one in messages],
            "sessions": bus.do(bus.sessions.list(limit=1000)).items,
            "types": bus.types(),
            "checkpoints": [bus.do(bus.checkpoints.get(one.id)) for one in checkpoints],
            "state": [bus.do(bus.state(scope).entry(key)) for scope, key in (("visitor", "here"), ("session:s", "k"))],
            "documents": [bus.do(plan.record(version)) for version in (1, 2)],
            "steps": bus.do(bus.tasks.steps("asking-1")),
            "events": [event for event in bus.events() if event.kind != "bus_copied"],
            "tasks": bus.do(bus.tasks.list(limit=1000)).items,
            "policy": bus.read(read_policy, None),
            "holds": bus.do(bus.holds.list()).items,
            "histories": bus.do(bus.histories.list()).items,
            "items": bus.do(bus.histories.items("langgraph")),
        }


def shown(url: str) -> str:
    """Return the location of a bus as it is shown."""
    with closing(open_store(url, create=True)) as store:
        return store.shown


def record_of(places: Places, agent: str) -> AgentRecord:
    """Return an agent that must be in the copy."""
    with places.visited(places.target) as bus:
        record = bus.do(bus.agents.get(agent))
    assert record is not None
    return record


class Cut(Exception):
    """The copy was interrupted."""


def cut_after(calls: int) -> Callable[[int, int, str], None]:
    left = [calls]

    def progress(done: int, total: int, what: str) -> None:
        left[0] -= 1
        if not left[0]:
            raise Cut

    return progress
