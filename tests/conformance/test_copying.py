"""A whole bus is copied to another place, from each engine to each: the same rows, the same bus, and nothing twice."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import agentbus
from agentbus import Bus
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
from agentbus.records import CopyReport
from agentbus.registry import registration
from agentbus.services.copying import copy_bus
from tests.conformance.helpers import take, worker
from tests.conformance.story import Story
from tests.support.clock import FakeClock

PAIRS = [("sqlite", "sqlite")]


class Places:
    """Where a bus is, and where it shall go."""

    def __init__(self, source: str, target: str, clock: FakeClock) -> None:
        self.source = source
        self.target = target
        self.clock = clock

    @asynccontextmanager
    async def opened(self, url: str) -> AsyncIterator[Bus]:
        bus = agentbus.connect(url, clock=self.clock)
        self.clock.attach(bus)
        async with bus:
            yield bus

    def visited(self, url: str) -> BlockingBus:
        return open_bus(url, create=True, clock=self.clock)

    def copy(self, progress: Callable[[int, int, str], object] | None = None, target: str | None = None) -> CopyReport:
        url = target or self.target
        with closing(open_store(self.source, clock=self.clock)) as source:
            return copy_bus(source, lambda: open_store(url, create=True, clock=self.clock), progress)


@pytest.fixture(params=PAIRS, ids="-to-".join)
def places(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Places]:
    # Not tmp_path: a short path leaves room for the doorbells beside the database.
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        yield Places(f"{directory}/source", f"{directory}/target", clock)


async def fill(places: Places) -> None:
    """Something in every table, and gaps where something was removed; nobody has the bus open then."""
    async with places.opened(places.source) as bus:
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


async def test_a_copy_has_every_row_of_every_table(places: Places) -> None:
    await fill(places)
    told_of: list[tuple[int, int, str]] = []
    report = places.copy(lambda done, total, what: told_of.append((done, total, what)))
    assert (report.source, report.target, report.resumed) == (places.source, places.target, False)
    assert [table.name for table in report.tables] == list(TABLES)
    assert [table.name for table in report.tables if not table.rows] == [], "the test has to fill it"
    assert report.rows == sum(table.rows for table in report.tables)
    assert [done for done, _, _ in told_of] == sorted(done for done, _, _ in told_of)
    (total,) = {total for _, total, _ in told_of}
    assert told_of[-1][0] == total


async def test_what_people_see_is_the_same(places: Places) -> None:
    await fill(places)
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


async def test_a_lease_does_not_outlive_the_copy(places: Places) -> None:
    with places.visited(places.source) as bus:
        agent = bus.register("a", type="worker")
        agent.send("a", "note", 1)
        (old,) = agent.receive_many(1)
    places.copy()
    async with places.opened(places.target) as copy:
        record = await copy.messages.get(old.message_id)
        assert record is not None
        assert (record.status, record.attempts) == ("queued", 1), "as after a restart of the machine"
    with places.visited(places.target) as bus:
        agent = bus.agent("a")
        (new,) = agent.receive_many(1)
        assert new.lease != old.lease
        with pytest.raises(LeaseLost):
            agent.ack(str(old.lease))
        agent.ack(str(new.lease))


async def test_visiting_agents_are_given_their_patience_anew(places: Places) -> None:
    with places.visited(places.source) as bus:
        bus.register("a", type="worker", patience=60)
    places.clock.advance(3600)
    places.copy()
    async with places.opened(places.target) as copy:
        assert (await copy.sweep(suspect_after=10)).counts["agents_suspected"] == 0
        places.clock.advance(61)
        assert (await copy.sweep(suspect_after=10)).counts["agents_suspected"] == 1


async def test_numbers_go_on_from_where_they_were(places: Places) -> None:
    """Also where the last ones were removed: an id means one thing for ever."""
    async with places.opened(places.source) as bus:
        agent = await worker(bus, "a")
        for number in range(3):
            await agent.send("a", "note", number)
            await (await take(agent)).ack()
        await agent.state.set("k", 1)
        last = [await agent.checkpoint("c", number) for number in range(3)][-1]
        await bus.checkpoints.prune("a", "c", keep=1)
        await bus.checkpoints.delete(last.id)
        await bus.messages.purge()
        entry = await agent.state.entry("k")
        event = [event.id async for event in bus.events()][-1]
        process = bus.engine.process
    places.copy()
    async with places.opened(places.target) as copy:
        assert copy.engine.process > process
        agent = await worker(copy, "a")
        receipt = await agent.send("a", "note", 4)
        assert receipt.message_id == "m-4"
        assert (await agent.checkpoint("c", 4)).id == last.id + 1
        await agent.state.set("k", 2)
        later = await agent.state.entry("k")
        assert entry is not None
        assert later is not None
        assert (later.version, later.change > entry.change) == (2, True)
        ids = [event.id async for event in copy.events()]
        assert ids == sorted(set(ids))
        assert ids[-1] > event


async def test_the_copy_is_the_same_bus(places: Places, tmp_path: Path) -> None:
    """An archive of the one comes home to the other; a bus of its own would refuse lines that name its own rows."""
    await fill(places)
    async with places.opened(places.source) as bus:
        await bus.export(tmp_path / "bus.jsonl.gz")
    places.copy()
    async with places.opened(places.target) as copy:
        report = await copy.import_path(tmp_path / "bus.jsonl.gz")
    assert (report.imported, report.refused) == ({}, 0)
    assert report.present


async def test_processes_that_died_on_the_source_are_dead_in_the_copy(places: Places) -> None:
    with places.visited(places.source) as bus:
        # Nobody was there to see it die.
        bus.write(enter, EnterRequest(presence.host_key(), 2**22 + 1, "then", None))
        process = bus.write(enter, EnterRequest(presence.host_key(), 2**22 + 1, "then", None)).process
        request = registration(
            10_000, "resident", "worker", process, {}, session=None, pools=(), topics=(), takeover=False
        )  # fmt: skip
        bus.write(register, request)
    places.copy()
    async with places.opened(places.target) as copy:
        record = await copy.agents.get("resident")
        assert record is not None
        assert (record.status, record.error) == ("failed", "the bus was copied")


class Cut(Exception):
    """Whoever copies is gone."""


def cut_after(calls: int) -> Callable[[int, int, str], None]:
    left = [calls]

    def progress(done: int, total: int, what: str) -> None:
        left[0] -= 1
        if not left[0]:
            raise Cut

    return progress


async def test_a_copy_that_is_cut_off_anywhere_goes_on(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbus.services.copying.ROWS", 3)
    await fill(places)
    cuts = 0
    while True:
        try:
            # Each time a little further, also in the closing comparison.
            report = places.copy(cut_after(25 + 20 * cuts))
            break
        except Cut:
            cuts += 1
            assert cuts < 100
    assert cuts > 3
    assert report.resumed
    other = places.copy(target=f"{places.target}-straight")
    assert report.tables == other.tables
    assert report.rows == other.rows


async def test_a_copy_that_is_not_finished_is_opened_by_nobody(places: Places) -> None:
    await fill(places)
    with pytest.raises(Cut):
        places.copy(cut_after(9))
    command = f"agentbus copy {places.source} {places.target}"
    with pytest.raises(CopyUnfinished, match=command) as refused:
        async with places.opened(places.target):
            pass
    assert refused.value.source == places.source
    with pytest.raises(CopyUnfinished, match=command):
        places.visited(places.target)
    # It is no source either.
    with closing(open_store(places.target)) as store, pytest.raises(CopyUnfinished):
        copy_bus(store, lambda: open_store(f"{places.target}-2", create=True))
    found = [check for check in await agentbus.doctor(places.target, clock=places.clock) if check.name == "copy"]
    assert [(check.status, check.fix) for check in found] == [("error", f"finish it: {command}")]
    places.copy()
    async with places.opened(places.target) as copy:
        assert await copy.agents.get("visitor") is not None
        assert "copy" not in {check.name for check in await copy.doctor()}


async def test_a_target_that_is_part_of_another_copy_is_refused(places: Places) -> None:
    await fill(places)
    with pytest.raises(Cut):
        places.copy(cut_after(3))
    with places.visited(f"{places.source}-2") as bus:
        bus.register("a", type="worker")
    with closing(open_store(f"{places.source}-2")) as other, pytest.raises(NotEmpty, match="copy of another bus"):
        copy_bus(other, lambda: open_store(places.target))
    assert places.copy().resumed


@pytest.mark.parametrize("what", ["agents", "state", "types"])
async def test_a_target_that_is_not_empty_is_refused(places: Places, what: str) -> None:
    with places.visited(places.source) as bus:
        bus.register("a", type="worker")
    with places.visited(places.target) as bus:
        if what == "agents":
            bus.register("mine", type="worker")
        elif what == "state":
            bus.do(bus.state("mine").set("k", 1))
        else:
            bus.define("mine")
    with pytest.raises(NotEmpty):
        places.copy()
    with places.visited(places.target) as bus:
        assert bus.do(bus.agents.get("a")) is None
        if what == "agents":
            assert bus.do(bus.agents.get("mine")) is not None


async def test_an_empty_bus_is_copied_too_and_into_one_that_was_made(places: Places) -> None:
    places.visited(places.source).close()
    places.visited(places.target).close()
    assert not places.copy().resumed
    async with places.opened(places.target) as copy:
        assert (await copy.stats()).agents == {}


async def test_a_bus_cannot_be_copied_onto_itself_or_again(places: Places) -> None:
    with places.visited(places.source) as bus:
        bus.register("a", type="worker")
    with pytest.raises(SameBus):
        places.copy(target=places.source)
    places.copy()
    with pytest.raises(SameBus):
        places.copy()
    async with places.opened(places.source) as again:
        assert (await again.stats()).agents == {"running": 1}


async def test_there_must_be_a_source(places: Places) -> None:
    with pytest.raises(NoBus):
        places.copy()
    with pytest.raises(NoBus):
        open_store(places.target)


async def test_a_source_that_somebody_has_open_is_refused(places: Places) -> None:
    async with places.opened(places.source) as bus:
        await worker(bus, "busy-1")
        with pytest.raises(NotAtRest, match=rf"process {os.getpid()} \(busy-1\)"):
            places.copy()
        with pytest.raises(NoBus):
            open_store(places.target)
    places.copy()


async def test_a_process_on_another_host_counts_until_it_is_silent(places: Places) -> None:
    with places.visited(places.source) as bus:
        bus.write(enter, EnterRequest("elsewhere/pid", 7, "then", None))
    with pytest.raises(NotAtRest, match="process 7 on elsewhere/pid"):
        places.copy()
    places.clock.advance(61)
    places.copy()


@pytest.mark.parametrize(("change", "table"), [("send", "messages"), ("state", "state"), ("ack", "messages")])
async def test_a_source_that_changes_meanwhile_is_noticed(places: Places, change: str, table: str) -> None:
    await fill(places)
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


async def test_of_two_copies_at_once_one_gives_way(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbus.services.copying.ROWS", 3)
    await fill(places)
    others: list[CopyReport] = []

    def progress(done: int, total: int, what: str) -> None:
        if what == "messages" and not others:
            others.append(places.copy())

    with pytest.raises(CopyOvertaken):
        places.copy(progress)
    assert others[0].resumed
    async with places.opened(places.target) as copy:
        assert await copy.agents.get("visitor") is not None
