"""Archives: data removed by retention is restored once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import agentbus
from agentbus import Bus, RetentionPolicy
from tests.api.helpers import held, known, stored, take, worker
from tests.api.retention_helpers import DAY, full
from tests.conftest import Engine
from tests.support.clock import FakeClock


async def everything(bus: Bus) -> list[Any]:
    session = await bus.sessions.open("s1")
    return [
        await held(bus, "s1"),
        await known(bus, "a"),
        await stored(bus, "mine"),
        await stored(bus, "m-2"),
        await bus.state("a").get("k"),
        await bus.state("session:s1").get("key"),
        await bus.checkpoints.latest("a"),
        await session.document("plan").history(),
        (await session.participants(["x", "y"])).results,
        [event async for event in bus.events(limit=2)],
    ]


async def test_everything_is_restored_unchanged_and_only_once(bus: Bus, clock: FakeClock) -> None:
    archive = await full(bus, clock)
    assert await bus.sessions.get("s1") is None
    report = await bus.import_archive(archive)
    assert report.imported == {
        "session": 1, "message": 2, "checkpoint": 1, "document": 2, "agent": 1, "state": 2, "participant": 2,
        "event": 5,
    }  # fmt: skip
    assert (report.present, report.refused, report.problems) == (0, 0, [])
    session, agent, mine, dead, state, key, checkpoint, history, results, trail = await everything(bus)
    assert (session.status, session.milestone, session.metadata) == ("completed", "ms-1", {"a": [1]})
    assert (agent.status, agent.session, agent.capabilities, agent.epoch) == ("completed", "s1", ["python"], 1)
    assert (mine.status, mine.payload, mine.correlation) == ("acked", {"text": "grüße\r\n\u2028"}, "c-1")
    assert (dead.status, dead.error, dead.attempts) == ("dead", "bad", 1)
    assert (state, key) == ({"v": 2}, [1])
    assert (checkpoint.snapshot, checkpoint.notes) == ({"step": 1}, "half")
    assert [(record.version, record.value, record.author) for record in history] == [
        (2, {"v": 2}, None),
        (1, {"v": 1}, "a"),
    ]
    assert results == {"x": {"agrees": True}}
    assert [event.kind for event in trail] == ["session_started", "agent_registered"]
    again = await bus.import_archive(str(archive))
    assert (again.imported, again.present, again.refused) == ({}, 16, 0)
    assert await everything(bus) == [session, agent, mine, dead, state, key, checkpoint, history, results, trail]
    (event,) = [event async for event in bus.events(kind="archive_imported")]
    assert event.facts["counts"] == report.imported


async def test_an_archive_can_be_read_into_another_bus(
    engine: Engine, bus: Bus, clock: FakeClock, tmp_path: Path
) -> None:
    archive = await full(bus, clock)
    async with agentbus.connect(tmp_path / "other", clock=clock) as other:
        report = await other.import_archive(archive)
        assert sum(report.imported.values()) == 16
        assert report.refused == 0
        assert (await stored(other, "mine")).recipient == "a"
        # What is new gets numbers of its own.
        b = await worker(other, "b")
        receipt = await b.send("b", "note", 1)
        assert receipt.id == 3


async def test_rows_of_another_bus_with_the_same_number_are_unchanged(
    bus: Bus, clock: FakeClock, tmp_path: Path
) -> None:
    archive = await full(bus, clock)
    async with agentbus.connect(tmp_path / "other", clock=clock) as other:
        b = await worker(other, "b")
        await b.send("b", "note", "mine is number one")
        await b.checkpoint("n", "my own")
        report = await other.import_archive(archive)
        assert report.refused == 3, "a message, a checkpoint and an event"
        assert all("different" in problem.reason for problem in report.problems)
        assert (await take(b)).payload == "mine is number one"
        checkpoint = await other.checkpoints.get(1)
        assert checkpoint is not None
        assert checkpoint.snapshot == "my own"
        assert (await held(other, "s1")).status == "completed"


async def test_live_data_is_never_overwritten(bus: Bus, clock: FakeClock) -> None:
    archive = await full(bus, clock)
    again = await worker(bus, "a")
    assert again.epoch == 2
    assert await again.state.set("k", "new") == 3
    report = await bus.import_archive(archive)
    assert report.imported == {
        "session": 1, "message": 2, "checkpoint": 1, "document": 2, "state": 1, "participant": 2, "event": 5,
    }  # fmt: skip
    assert (await known(bus, "a")).status == "running"
    assert await again.state.get("k") == "new"
    await again.progress(50)


async def test_data_of_an_earlier_session_is_not_restored_into_a_later_one_of_the_same_name(
    bus: Bus, clock: FakeClock
) -> None:
    async with bus.session("planning", id="s1") as session:
        for number in range(3):
            await session.document("plan").save({"old": number})
        await session.document("other").save("old")
        await session.state.set("k", "old")
        await (await session.participants(["x"])).finish("x", "old")
        await session.checkpoint("half", "old")
        await session.checkpoint_all("half")
    clock.advance(100 * DAY)
    archive = (await bus.retention.apply()).archive
    assert archive is not None
    async with bus.session("execution", id="s1") as session:
        await session.document("plan").save({"new": 1})
        meeting = await session.participants(["n"])
        report = await bus.import_archive(archive)
        assert set(report.imported) <= {"event", "process"}
        assert report.refused == 9, "the session, 4 documents, an entry, a participant, 2 checkpoints"
        assert await session.document("plan").latest() == {"new": 1}
        assert [document.name for document in await session.documents()] == ["plan"]
        assert await session.state.get("k") is None
        assert await session.restore("half") is None
        assert (await bus.checkpoints.list(kind="composite")).items == []
        await meeting.refresh()
        assert (meeting.remaining, meeting.finished) == (("n",), ())


async def test_state_of_an_earlier_incarnation_is_not_restored_to_a_live_agent(bus: Bus, clock: FakeClock) -> None:
    archive = await full(bus, clock)
    again = await worker(bus, "a")
    report = await bus.import_archive(archive)
    assert [problem.reason for problem in report.problems if "agent a" in problem.reason]
    assert (await again.state.list()).items == []
    await again.complete()
    assert (await bus.import_archive(archive)).imported == {"state": 1}, "it has ended: this is its state"


async def test_versions_of_state_never_repeat_after_an_import(bus: Bus, clock: FakeClock) -> None:
    """A holder of ``if_version`` from before must not win."""
    archives = []
    policy = RetentionPolicy(agents=0, tombstones=0)
    for life in range(3):
        a = await worker(bus, "a")
        await a.state.set("k", life)
        await a.complete()
        clock.advance(10)
        archives.append((await bus.retention.apply(policy=policy)).archive)
    await bus.import_archive(archives[0] or "")
    entry = await bus.state("a").entry("k")
    assert entry is not None
    assert (entry.value, entry.version) == (0, 4)
    assert await bus.state("a").set("k", "new") == 5


async def test_a_restored_agent_reuses_no_epoch_of_an_earlier_incarnation(bus: Bus, clock: FakeClock) -> None:
    first = await worker(bus, "a")
    await first.complete()
    clock.advance(8 * DAY)
    older = await bus.retention.apply()
    second = await worker(bus, "a")
    await second.complete()
    clock.advance(8 * DAY)
    await bus.retention.apply()
    assert older.archive is not None
    assert (await bus.import_archive(older.archive)).imported["agent"] == 1
    third = await worker(bus, "a")
    assert [agent.epoch for agent in (first, second, third)] == [1, 2, 3]


async def test_state_is_restored_even_after_its_tombstone_was_removed(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.state.set("k", 1)
    await a.state.set("k", 2)
    await a.complete()
    clock.advance(8 * DAY)
    report = await bus.retention.apply()
    clock.advance(31 * DAY)
    assert (await bus.retention.apply()).removed["tombstone"] == 1
    assert report.archive is not None
    assert (await bus.import_archive(report.archive)).imported["state"] == 1
    entry = await bus.state("a").entry("k")
    assert entry is not None
    assert (entry.value, entry.version) == (2, 2)
    assert await bus.state("a").set("k", 3) == 3


async def test_imported_data_is_removed_by_the_next_retention(bus: Bus, clock: FakeClock) -> None:
    archive = await full(bus, clock)
    await bus.import_archive(archive)
    report = await bus.retention.apply()
    assert report.removed == {
        "checkpoint": 1, "message": 2, "document": 2, "agent": 1, "session": 1, "event": 5,
    }  # fmt: skip
    assert report.archive != str(archive)


async def test_watchers_receive_restored_state(bus: Bus, clock: FakeClock) -> None:
    archive = await full(bus, clock)
    last = (await bus.state("b").set("k", 1), await bus.state("b").entry("k"))[1]
    assert last is not None
    await bus.import_archive(archive)
    async for entry in bus.state("a").watch(after=last.change):
        assert (entry.key, entry.value) == ("k", {"v": 2})
        break
