"""Retention: each tier is removed once it is old and unreferenced, is archived first, and only once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentbus import Bus, RetentionPolicy
from agentbus.api.maintenance import retention
from agentbus.errors import OutOfRange
from agentbus.operations import retention as retention_operations
from agentbus.records import RetentionReport
from tests.api.helpers import known, take, worker
from tests.api.retention_helpers import DAY, NOTHING, applied, archived, ended_session, finished, lines
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock

# Messages


async def test_finished_messages_are_removed_after_a_week_and_open_ones_stay(bus: Bus, clock: FakeClock) -> None:
    old = await finished(bus, 3)
    a = await worker(bus, "a")
    open_id = f"m-{(await a.send('a', 'note', 'still here')).id}"
    delayed = f"m-{(await a.send('a', 'note', 'later', delay=100 * DAY)).id}"
    clock.advance(6 * DAY)
    young = await finished(bus, 2)
    assert (await applied(bus)).removed == {}
    clock.advance(1.5 * DAY)
    report = await applied(bus)
    assert report.removed == {"message": 3}
    assert [f"m-{id}" for id in archived(report, "message")] == old
    assert [await bus.messages.get(id) for id in old] == [None] * 3
    assert None not in [await bus.messages.get(id) for id in (*young, open_id, delayed)]


async def test_dead_letters_have_a_time_of_their_own(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1)
    await (await take(a)).reject("bad")
    await a.send("a", "note", 2, ttl=10)
    clock.advance(11)
    assert await a.receive(timeout=0) is None
    policy = RetentionPolicy(messages=DAY, dead_letters=3 * DAY)
    clock.advance(2 * DAY)
    report = await applied(bus, policy=policy)
    assert [(line["status"], line["payload"]) for line in lines(report)] == [("expired", "2")]
    clock.advance(2 * DAY)
    report = await applied(bus, policy=policy)
    assert [(line["status"], line["error"]) for line in lines(report)] == [("dead", "bad")]


async def test_a_dead_letter_that_was_requeued_counts_from_its_second_death(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    id = f"m-{(await a.send('a', 'note', 1)).id}"
    await (await take(a)).reject("bad")
    clock.advance(6 * DAY)
    await bus.messages.requeue(id)
    await (await take(a)).reject("worse")
    clock.advance(2 * DAY)
    assert (await applied(bus)).removed == {}
    clock.advance(6 * DAY)
    assert (await applied(bus)).removed == {"message": 1}


async def test_finished_messages_over_the_limit_are_removed_oldest_first(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    waiting = f"m-{(await a.send('a', 'note', 'first of all')).id}"
    done = await finished(bus, 12)
    await a.send("a", "note", "dead", priority=9)
    await (await take(a)).reject("bad")
    report = await applied(bus, policy=RetentionPolicy(messages_most=5))
    assert [f"m-{id}" for id in archived(report, "message")] == done[:7]
    assert (await bus.stats()).messages == {"acked": 5, "dead": 1, "queued": 1}
    assert await bus.messages.get(waiting) is not None


async def test_more_messages_than_a_page_and_a_portion_are_removed_in_one_run(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_operations, "_PAGE", 20)
    monkeypatch.setattr(retention, "_MAX_ROWS", 10)
    await finished(bus, 50)
    clock.advance(8 * DAY)
    await finished(bus, 3)
    report = await applied(bus)
    assert report.removed == {"message": 50}
    assert len(set(archived(report, "message"))) == 50
    assert (await bus.stats()).messages == {"acked": 3}


async def test_large_messages_are_removed_in_their_own_portions(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_MAX_BYTES", 45_000)
    a = await worker(bus, "a")
    for _ in range(12):
        await a.send("a", "note", "x" * 10_000)
        await (await take(a)).ack()
    clock.advance(8 * DAY)
    report = await applied(bus)
    assert report.removed == {"message": 12}
    runs = [event async for event in bus.events(kind="retention_applied")]
    assert [event.facts["counts"] for event in runs] == [{"message": 4}] * 3


# Events and processes


async def test_events_are_removed_after_three_months(bus: Bus, clock: FakeClock) -> None:
    await bus.define("first")
    clock.advance(50 * DAY)
    await bus.define("second")
    clock.advance(41 * DAY)
    report = await applied(bus)
    assert report.removed == {"event": 1}
    assert [line["subject"] for line in lines(report)] == ["message/first"]
    left = [(event.id, event.kind) async for event in bus.events()]
    assert left == [(2, "type_defined"), (3, "retention_applied")]


async def test_processes_are_removed_once_nothing_refers_to_them(engine: Engine, clock: FakeClock) -> None:
    async with (
        engine.connect() as bus,
        bus.session("planning", id="s1") as session,
        session.agent("a", type="worker") as agent,
    ):
        await agent.checkpoint("n", 1)
    async with engine.connect():
        pass
    clock.advance(8 * DAY)
    async with engine.connect() as bus:
        report = await applied(bus)
        assert report.removed == {"process": 1}, "the one that nothing names"
        clock.advance(25 * DAY)
        report = await applied(bus)
        assert report.removed == {"checkpoint": 1, "agent": 1, "session": 1, "process": 1}
        (line,) = (line for line in lines(report) if line["record"] == "process")
        assert (line["id"], line["status"]) == (1, "ended")


# All of it


async def test_a_policy_of_none_keeps_everything(bus: Bus, clock: FakeClock) -> None:
    await finished(bus, 3)
    await ended_session(bus, "s1", "boom")
    a = await worker(bus, "a")
    await a.state.set("k", 1)
    await a.state.delete("k")
    await a.complete()
    clock.advance(1000 * DAY)
    assert (await applied(bus, policy=NOTHING)).removed == {}
    assert set((await applied(bus)).removed) == {
        "message", "agent", "session", "document", "checkpoint", "event", "tombstone",
    }  # fmt: skip


async def test_events_of_retention_alone_are_no_reason_to_apply_it_again(bus: Bus, clock: FakeClock) -> None:
    """Else each application would archive the event of the one before, and leave one for the next, indefinitely."""
    policy = msgspec.structs.replace(NOTHING, messages=0, events=0)
    await finished(bus, 3)
    assert (await bus.retention.apply(policy=policy)).removed["message"] == 3
    for _ in range(3):
        clock.advance(3600)
        assert await bus.retention.apply(policy=policy) == RetentionReport(False, {}, 0, None, 0)
    await finished(bus, 1)
    clock.advance(3600)
    assert (await bus.retention.apply(policy=policy)).removed["message"] == 1
    assert [event.kind async for event in bus.events()] == ["retention_applied"], "the old ones went with the rest"


async def test_a_bus_without_old_data_loses_nothing(bus: Bus) -> None:
    await finished(bus, 3)
    report = await bus.retention.apply()
    assert report == RetentionReport(False, {}, 0, None, 0)


@pytest.mark.one_engine
async def test_an_archive_is_for_its_owner_only(bus: Bus, clock: FakeClock) -> None:
    await finished(bus, 3)
    clock.advance(8 * DAY)
    report = await applied(bus)
    assert report.archive is not None
    path = Path(report.archive)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_size == report.archive_bytes
    assert list(path.parent.iterdir()) == [path]


async def test_every_removal_is_in_the_audit_log_without_payloads(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", "top secret")
    await (await take(a)).ack()
    clock.advance(8 * DAY)
    report = await applied(bus)
    assert report.archive is not None
    (event,) = [event async for event in bus.events(kind="retention_applied")]
    assert event.facts == {"archive": Path(report.archive).name, "counts": {"message": 1}}
    assert (await known(bus, "a")).status == "running"


@each(
    "wrong",
    [
        {"checkpoints_last": 0}, {"checkpoints_last": None}, {"checkpoints_daily": -1}, {"messages": -1},
        {"messages": "7"}, {"messages": float("nan")}, {"messages_most": -1}, {"messages_most": 1.5},
        {"agents": True}, {"events": 1e300},
    ],
)  # fmt: skip
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(OutOfRange) as refused:
        RetentionPolicy(**wrong)
    assert refused.value.what == next(iter(wrong))


@pytest.mark.one_engine
async def test_the_callback_receives_the_removed_and_the_total_count(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_MAX_ROWS", 5)
    await finished(bus, 12)
    counts: list[tuple[int, int]] = []
    policy = RetentionPolicy(messages=0, agents=None, events=None, processes=None, tombstones=None)
    report = await bus.retention.apply(policy=policy, progress=lambda done, total: counts.append((done, total)))
    assert report.removed == {"message": 12}
    assert counts == [(5, 12), (10, 12), (12, 12)]
    counts.clear()
    await bus.retention.apply(policy=policy, progress=lambda done, total: counts.append((done, total)))
    assert counts == []
