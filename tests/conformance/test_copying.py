"""A whole bus is copied to another place, from each engine to each: the same rows, the same bus, and nothing twice."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from shlex import quote
from typing import Any, TypeVar

import msgspec
import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.blocking import BlockingBus, open_bus, open_store
from agentbus.engine import presence
from agentbus.errors import (
    CopyDiffers,
    CopyOvertaken,
    CopyUnfinished,
    LeaseLost,
    NoBus,
    NotAtRest,
    NotEmpty,
    SameBus,
)
from agentbus.operations.agents import register
from agentbus.operations.copying import TABLES
from agentbus.operations.policy import read_policy
from agentbus.operations.processes import EnterRequest, enter
from agentbus.records import AgentRecord, CopyReport, ImportReport
from agentbus.registry import registration
from agentbus.services.copying import copy_bus
from tests.conformance.at_work import task_of, work_off
from tests.conformance.helpers import take, worker
from tests.conformance.story import Story
from tests.support.clock import FakeClock
from tests.support.postgres import Schemas, at_schema

ENGINES = ("sqlite", "postgres")
PAIRS = [(one, other) for one in ENGINES for other in ENGINES]
T = TypeVar("T")


class Places:
    """Where a bus is, and where it shall go. Nothing here runs in an event loop but for the length of a call."""

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


@pytest.fixture(params=PAIRS, ids="-to-".join)
def places(request: pytest.FixtureRequest, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Places]:
    taken: list[str] = []
    # Not tmp_path: a short path leaves room for the doorbells beside the database.
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        monkeypatch.setenv("XDG_STATE_HOME", f"{directory}/state")

        def place(engine: str) -> str:
            if engine == "sqlite":
                taken.append("")
                return f"{directory}/bus-{len(taken)}"
            schemas: Schemas = request.getfixturevalue("schemas")
            taken.append(schemas.take())
            return at_schema(schemas.url, taken[-1])

        source, target = request.param
        nowhere = f"{directory}/nowhere"
        if target == "postgres":
            nowhere = at_schema(request.getfixturevalue("schemas").url, f"nowhere_{os.getpid()}")
        yield Places(place(source), place(target), clock, lambda: place(target), nowhere)
        for name in filter(None, taken):
            request.getfixturevalue("schemas").give_back(name)


planned: list[str] = []


@agentbus.workflow("asking")
async def asking(task: Task) -> bool:
    await task.step("plan", lambda: planned.append("once"))
    return (await task.approval("go", show={"files": 3})).approved


def fill(places: Places) -> None:
    """Something in every table, and gaps where something was removed; nobody has the bus open then."""

    async def live(bus: Bus) -> None:
        await Story(bus).tell()
        await bus.state("old").set("k", 1)
        await bus.state("old").delete("k")
        places.clock.advance(1)
        await bus.retention.apply(policy=agentbus.RetentionPolicy(tombstones=0))
        await bus.retention.change(messages=3600)
        async with bus.session("meeting", id="m") as session:
            await (await session.participants(["x", "y"])).finish("x", {"done": True})
            await session.document("plan").save({"v": 1})
            await session.document("plan").save({"v": 2})
        await bus.tasks.start(asking, id="asking-1")
        await work_off(bus, asking)

    places.on(places.source, live)
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
        bus.do(visitor.state.set("here", {"deep": [1, None, "x"]}, ttl=3600))
        bus.do(visitor.state.set("gone", 1))
        bus.do(visitor.state.delete("gone"))
        visitor.checkpoint("half", {"step": 1}, notes="so far")


def told(places: Places, url: str) -> dict[str, Any]:
    """What the bus shows of itself, but for who has it open and that it was copied."""
    with places.visited(url) as bus:
        checkpoints = bus.do(bus.checkpoints.list("visitor", limit=1000)).items
        plan = bus.do(bus.sessions.open("m")).document("plan")
        return {
            "agents": bus.do(bus.agents.list(limit=1000)).items,
            "messages": bus.do(bus.messages.list(limit=1000)).items,
            "sessions": bus.do(bus.sessions.list(limit=1000)).items,
            "types": bus.types(),
            "checkpoints": [bus.do(bus.checkpoints.get(one.id)) for one in checkpoints],
            "state": [bus.do(bus.state(scope).entry(key)) for scope, key in (("visitor", "here"), ("session:s", "k"))],
            "documents": [bus.do(plan.record(version)) for version in (1, 2)],
            "events": [event for event in bus.events() if event.kind != "bus_copied"],
            "policy": bus.read(read_policy, None),
        }


def shown(url: str) -> str:
    """What people call a place where a bus is."""
    with closing(open_store(url, create=True)) as store:
        return store.shown


def record_of(places: Places, agent: str) -> AgentRecord:
    """An agent that must be in the copy."""
    with places.visited(places.target) as bus:
        record = bus.do(bus.agents.get(agent))
    assert record is not None
    return record


def test_a_copy_has_every_row_of_every_table(places: Places) -> None:
    fill(places)
    heard: list[tuple[int, int, str]] = []
    report = places.copy(lambda done, total, what: heard.append((done, total, what)))
    assert (report.source, report.target) == (shown(places.source), shown(places.target))
    assert not report.resumed
    assert [table.name for table in report.tables] == list(TABLES)
    assert [table.name for table in report.tables if not table.rows] == [], "the test has to fill it"
    assert report.rows == sum(table.rows for table in report.tables)
    assert [done for done, _, _ in heard] == sorted(done for done, _, _ in heard)
    (total,) = {total for _, total, _ in heard}
    assert heard[-1][0] == total


def test_what_people_see_is_the_same(places: Places) -> None:
    fill(places)
    before = told(places, places.source)
    places.copy()
    after = told(places, places.target)
    leased = [record.message_id for record in before["messages"] if record.status == "leased"]
    assert leased
    before["messages"] = [
        msgspec.structs.replace(record, status="queued", holder=None, error="visitor: the bus was copied")
        if record.message_id in leased
        else record
        for record in before["messages"]
    ]
    for name in before:
        assert after[name] == before[name], name


def test_a_lease_does_not_outlive_the_copy(places: Places) -> None:
    with places.visited(places.source) as bus:
        agent = bus.register("a", type="worker")
        agent.send("a", "note", 1)
        (old,) = agent.receive_many(1)
    places.copy()
    with places.visited(places.target) as bus:
        record = bus.do(bus.messages.get(old.message_id))
        assert record is not None
        assert (record.status, record.attempts) == ("queued", 1), "as after a restart of the machine"
        agent = bus.agent("a")
        (new,) = agent.receive_many(1)
        assert new.lease != old.lease
        with pytest.raises(LeaseLost):
            agent.ack(str(old.lease))
        agent.ack(str(new.lease))


def test_visiting_agents_are_given_their_patience_anew(places: Places) -> None:
    with places.visited(places.source) as bus:
        bus.register("a", type="worker", patience=60)
    places.clock.advance(3600)
    places.copy()

    async def sweep(bus: Bus) -> None:
        assert (await bus.sweep(suspect_after=10)).counts["agents_suspected"] == 0
        places.clock.advance(61)
        assert (await bus.sweep(suspect_after=10)).counts["agents_suspected"] == 1

    places.on(places.target, sweep)


def test_numbers_go_on_from_where_they_were(places: Places) -> None:
    """Also where the last ones were removed: an id means one thing for ever."""

    async def use(bus: Bus) -> dict[str, int]:
        agent = await worker(bus, "a")
        for number in range(3):
            receipt = await agent.send("a", "note", number)
            await (await take(agent)).ack()
        await agent.state.set("k", 1)
        last = [await agent.checkpoint("c", number) for number in range(3)][-1]
        await bus.checkpoints.delete(last.id)
        await bus.messages.purge()
        entry = await agent.state.entry("k")
        assert entry is not None
        return {
            "process": bus.engine.process,
            "message": int(str(receipt.message_id).removeprefix("m-")),
            "checkpoint": last.id,
            "change": entry.change,
            "version": entry.version,
            "event": [event.id async for event in bus.events()][-1],
        }

    before = places.on(places.source, use)
    places.copy()
    after = places.on(places.target, use)
    assert {name: after[name] > before[name] for name in before} == dict.fromkeys(before, True)
    assert (after["message"], after["checkpoint"]) == (before["message"] + 3, before["checkpoint"] + 3)


def test_the_copy_is_the_same_bus(places: Places, tmp_path: Path) -> None:
    """An archive of the one comes home to the other, which has all of it."""
    fill(places)

    async def export(bus: Bus) -> None:
        await bus.export(tmp_path / "bus.jsonl.gz")

    async def bring_back(bus: Bus) -> ImportReport:
        return await bus.import_path(tmp_path / "bus.jsonl.gz")

    places.on(places.source, export)
    places.copy()
    report = places.on(places.target, bring_back)
    assert (report.imported, report.refused) == ({}, 0)
    assert report.present


def test_processes_that_died_on_the_source_are_dead_in_the_copy(places: Places) -> None:
    with places.visited(places.source) as bus:
        # Nobody was there to see it die.
        process = bus.write(enter, EnterRequest(presence.host_key(), 2**22 + 1, "then", None)).process
        options: dict[str, Any] = {"session": None, "pools": (), "topics": (), "takeover": False}
        bus.write(register, registration(10_000, "resident", "worker", process, {}, **options))
    places.copy()
    record = record_of(places, "resident")
    assert (record.status, record.error) == ("failed", "the bus was copied")


def test_a_task_that_waits_for_a_person_goes_on_in_the_copy(places: Places) -> None:
    planned.clear()
    fill(places)
    places.copy()

    async def decide(bus: Bus) -> None:
        await bus.tasks.approve("asking-1", "go", by="ada")
        await work_off(bus, asking)
        assert await bus.tasks.result("asking-1", timeout=0) is True
        later = await bus.tasks.start(asking)
        await work_off(bus, asking)
        assert (await task_of(bus, later.id)).status == "waiting"

    places.on(places.target, decide)
    assert planned == ["once", "once"], "of the first, the step was done and kept"


class Cut(Exception):
    """Whoever copies is gone."""


def cut_after(calls: int) -> Callable[[int, int, str], None]:
    left = [calls]

    def progress(done: int, total: int, what: str) -> None:
        left[0] -= 1
        if not left[0]:
            raise Cut

    return progress


def test_a_copy_that_is_cut_off_anywhere_goes_on(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbus.services.copying.ROWS", 5)
    fill(places)
    cuts = 0
    while True:
        try:
            # Each time a little further, also in the closing comparison.
            report = places.copy(cut_after(10 + 15 * cuts))
            break
        except Cut:
            cuts += 1
            assert cuts < 100
    assert cuts > 3
    assert report.resumed
    straight = places.copy(target=places.more())
    assert (report.tables, report.rows) == (straight.tables, straight.rows)


def test_a_copy_that_is_not_finished_is_opened_by_nobody(places: Places) -> None:
    fill(places)
    with pytest.raises(Cut):
        places.copy(cut_after(9))
    command = f"agentbus copy {quote(shown(places.source))} {quote(shown(places.target))}"

    async def nothing(bus: Bus) -> None:
        """It is opened, and closed again."""

    with pytest.raises(CopyUnfinished) as refused:
        places.on(places.target, nothing)
    assert (refused.value.path, refused.value.source) == (shown(places.target), shown(places.source))
    assert refused.value.fix == f"finish it: {command}"
    with pytest.raises(CopyUnfinished):
        places.visited(places.target)
    # It is no source either.
    with closing(open_store(places.target)) as store, pytest.raises(CopyUnfinished):
        copy_bus(store, lambda: open_store(places.nowhere, create=True))
    checks = asyncio.run(agentbus.doctor(places.target, clock=places.clock))
    found = [(check.status, check.fix) for check in checks if check.name == "copy"]
    assert found == [("error", f"finish it: {command}")]
    places.copy()
    assert record_of(places, "visitor").status == "running"
    checks = asyncio.run(agentbus.doctor(places.target, clock=places.clock))
    assert "copy" not in {check.name for check in checks}


def test_a_target_that_is_part_of_another_copy_is_refused(places: Places) -> None:
    fill(places)
    with pytest.raises(Cut):
        places.copy(cut_after(3))
    another = places.more()
    places.visited(another).close()
    with closing(open_store(another)) as other, pytest.raises(NotEmpty, match="copy of another bus"):
        copy_bus(other, lambda: open_store(places.target))
    assert places.copy().resumed


@pytest.mark.parametrize("what", ["agents", "state", "vocabulary"])
def test_a_target_that_is_not_empty_is_refused(places: Places, what: str) -> None:
    with places.visited(places.source) as bus:
        bus.register("a", type="worker")
    with places.visited(places.target) as bus:
        if what == "agents":
            bus.register("mine", type="worker")
        elif what == "state":
            bus.do(bus.state("mine").set("k", 1))
        else:
            bus.define("mine")
    with pytest.raises(NotEmpty, match=rf"{what} \(1\)"):
        places.copy()
    with places.visited(places.target) as bus:
        assert bus.do(bus.agents.get("a")) is None
        assert (bus.do(bus.agents.get("mine")) is not None) == (what == "agents")


def test_an_empty_bus_is_copied_into_one_that_was_only_made(places: Places) -> None:
    places.visited(places.source).close()
    places.visited(places.target).close()
    assert not places.copy().resumed
    with places.visited(places.target) as bus:
        assert bus.stats().agents == {}


def test_a_bus_cannot_be_copied_onto_itself_or_again(places: Places) -> None:
    with places.visited(places.source) as bus:
        bus.register("a", type="worker")
    with pytest.raises(SameBus):
        places.copy(target=places.source)
    places.copy()
    with pytest.raises(SameBus):
        places.copy()
    for url in (places.source, places.target):
        with places.visited(url) as bus:
            assert bus.stats().agents == {"running": 1}


def test_there_must_be_a_source(places: Places) -> None:
    with pytest.raises(NoBus):
        open_store(places.nowhere)


def test_a_source_that_somebody_has_open_is_refused(places: Places) -> None:
    async def try_it(bus: Bus) -> None:
        await worker(bus, "busy-1")
        with pytest.raises(NotAtRest, match=rf"process {os.getpid()} \(busy-1\)"):
            await asyncio.to_thread(places.copy, target=places.nowhere)

    places.on(places.source, try_it)
    # Nothing was made where it should go.
    with pytest.raises(NoBus):
        open_store(places.nowhere)
    places.copy()


def test_a_process_on_another_host_counts_until_it_is_silent(places: Places) -> None:
    with places.visited(places.source) as bus:
        bus.write(enter, EnterRequest("elsewhere/pid", 7, "then", None))
    with pytest.raises(NotAtRest, match="process 7 on elsewhere/pid"):
        places.copy()
    places.clock.advance(61)
    places.copy()


@pytest.mark.parametrize(("change", "table"), [("send", "messages"), ("state", "state"), ("ack", "messages")])
def test_a_source_that_changes_meanwhile_is_noticed(places: Places, change: str, table: str) -> None:
    fill(places)
    changed: list[str] = []

    def progress(done: int, total: int, what: str) -> None:
        if what == "events" and not changed:
            changed.append(what)
            with places.visited(places.source) as bus:
                agent = bus.agent("visitor")
                if change == "send":
                    agent.send("visitor", "note", "late")
                elif change == "state":
                    bus.do(agent.state.set("here", "late"))
                else:
                    agent.ack(*(held.message_id for held in agent.in_hand()))

    with pytest.raises(CopyDiffers, match=f"of {table} "):
        places.copy(progress)
    with pytest.raises(CopyUnfinished):
        places.visited(places.target)


def test_of_two_copies_at_once_one_gives_way(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbus.services.copying.ROWS", 3)
    fill(places)
    others: list[CopyReport] = []

    def progress(done: int, total: int, what: str) -> None:
        if what == "messages" and not others:
            others.append(places.copy())

    with pytest.raises(CopyOvertaken):
        places.copy(progress)
    assert others[0].resumed
    assert record_of(places, "visitor").status == "running"


def test_a_large_row_goes_alone(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many rows there are, a batch is not longer than some text, or one row."""
    monkeypatch.setattr("agentbus.services.copying.CHARACTERS", 10_000)
    with places.visited(places.source) as bus:
        agent = bus.register("a", type="worker")
        for size in (10, 50_000, 10, 10, 4_000, 4_000, 4_000):
            agent.send("a", "note", "x" * size)
    steps: list[str] = []
    places.copy(lambda done, total, what: steps.append(what))
    # The last step of a table finds nothing any more.
    assert steps.count("messages") - 1 == 4
