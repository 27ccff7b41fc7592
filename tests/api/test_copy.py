"""Copies of a whole bus between all engines have the same rows and the same identity."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agentbus import Bus
from agentbus.api.agents import registration
from agentbus.core import process_info
from agentbus.errors import LeaseLost
from agentbus.operations.agents import register
from agentbus.operations.copy import TABLES
from agentbus.operations.processes import EnterRequest, enter
from agentbus.records import ImportReport
from tests.api.copy_helpers import Places, asking, crossed, fill, planned, record_of, shown, views
from tests.api.helpers import take, worker
from tests.api.task_workers import task_of, work_off


def test_a_copy_has_every_row_and_all_views_of_the_source(places: Places) -> None:
    fill(places)
    before = views(places, places.source)
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
    after = views(places, places.target)
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


@crossed
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


@crossed
def test_the_timeout_of_visiting_agents_starts_again(places: Places) -> None:
    with places.visited(places.source) as bus:
        bus.register("a", type="worker", patience=60)
    places.clock.advance(3600)
    places.copy()

    async def sweep(bus: Bus) -> None:
        assert (await bus.sweep(suspect_after=10)).counts["agents_suspected"] == 0
        places.clock.advance(61)
        assert (await bus.sweep(suspect_after=10)).counts["agents_suspected"] == 1

    places.on(places.target, sweep)


@crossed
def test_numbers_continue_after_those_of_the_source(places: Places) -> None:
    """Also where the last rows were removed: an id is never used again."""

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
            "process": bus._engine.process,
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


@crossed
def test_the_copy_is_the_same_bus_and_continues_its_tasks(places: Places, tmp_path: Path) -> None:
    """The copy already has every row of an archive of the source, and a task that waits for an approval gets it."""
    planned.clear()
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

    async def decide(bus: Bus) -> None:
        await bus.tasks.approve("asking-1", "go", by="ada")
        await work_off(bus, asking)
        assert await bus.tasks.result("asking-1", timeout=0) is True
        later = await bus.tasks.start(asking)
        await work_off(bus, asking)
        assert (await task_of(bus, later.id)).status == "waiting"

    places.on(places.target, decide)
    assert planned == ["once", "once"], "of the first, the step was done and kept"


@crossed
def test_processes_that_died_on_the_source_are_dead_in_the_copy(places: Places) -> None:
    with places.visited(places.source) as bus:
        # No other process noticed that it died.
        process = bus.write(enter, EnterRequest(process_info.host_key(), 2**22 + 1, "then", None)).process
        bus.write(register, registration(10_000, "resident", "worker", process, {}))
    places.copy()
    record = record_of(places, "resident")
    assert (record.status, record.error) == ("failed", "the bus was copied")


@crossed
def test_a_large_row_is_copied_in_a_page_of_its_own(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has a limited number of characters, or one row."""
    monkeypatch.setattr("agentbus.api.maintenance.copy.CHARACTERS", 10_000)
    with places.visited(places.source) as bus:
        agent = bus.register("a", type="worker")
        for size in (10, 50_000, 10, 10, 4_000, 4_000, 4_000):
            agent.send("a", "note", "x" * size)
    steps: list[str] = []
    places.copy(lambda done, total, what: steps.append(what))
    # The last step of a table finds no more rows.
    assert steps.count("messages") - 1 == 4
