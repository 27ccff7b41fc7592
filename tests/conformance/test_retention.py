"""Retention: each tier goes when it is old enough and nothing refers to it, is archived first, and never goes twice."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agentbus import Bus, RetentionPolicy
from agentbus.errors import OutOfRange
from agentbus.records import RetentionReport
from tests.conformance.helpers import known, take, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock

DAY = 24 * 3600.0
NOTHING = RetentionPolicy(
    checkpoints_last=1_000_000, checkpoints_daily=None, messages=None, dead_letters=None, messages_most=None,
    agents=None, sessions=None, failed_sessions=None, events=None, processes=None, tombstones=None,
)  # fmt: skip


def lines(report: RetentionReport) -> list[dict[str, Any]]:
    """Every line of the archive of a run, the headers left out."""
    assert report.archive is not None
    with gzip.open(report.archive, "rt", encoding="utf-8") as file:
        return [line for line in map(json.loads, file) if line["record"] != "archive"]


def archived(report: RetentionReport, kind: str) -> list[Any]:
    return [line.get("id", line.get("key")) for line in lines(report) if line["record"] == kind]


async def applied(bus: Bus, **options: Any) -> RetentionReport:
    """Apply the policy; a trial before must have said the same, and another run after finds nothing."""
    trial = await bus.retention.apply(dry_run=True, **options)
    assert trial.dry_run
    assert trial.archive is None
    report = await bus.retention.apply(**options)
    assert (report.removed, report.kept) == (trial.removed, 0)
    assert (await bus.retention.apply(**options)).removed == {}
    return report


async def names(bus: Bus) -> list[str]:
    return [agent.id for agent in (await bus.agents.list()).items]


async def finished(bus: Bus, count: int) -> list[str]:
    """Messages that were acknowledged now."""
    agent = await worker(bus, f"w{os.urandom(4).hex()}")
    ids = [f"m-{(await agent.send(agent.id, 'note', n)).id}" for n in range(count)]
    await agent.ack(await agent.receive_many(count, timeout=0))
    return ids


# Messages


async def test_finished_messages_go_after_a_week_and_open_ones_stay(bus: Bus, clock: FakeClock) -> None:
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


async def test_too_many_finished_messages_go_however_young_the_oldest_first(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    waiting = f"m-{(await a.send('a', 'note', 'first of all')).id}"
    done = await finished(bus, 12)
    await a.send("a", "note", "dead", priority=9)
    await (await take(a)).reject("bad")
    report = await applied(bus, policy=RetentionPolicy(messages_most=5))
    assert [f"m-{id}" for id in archived(report, "message")] == done[:7]
    assert (await bus.stats()).messages == {"acked": 5, "dead": 1, "queued": 1}
    assert await bus.messages.get(waiting) is not None


async def test_more_messages_than_a_page_and_a_portion_go_in_one_run(bus: Bus, clock: FakeClock) -> None:
    for _ in range(5):
        await finished(bus, 500)
    clock.advance(8 * DAY)
    await finished(bus, 3)
    report = await applied(bus)
    assert report.removed == {"message": 2500}
    assert len(set(archived(report, "message"))) == 2500
    assert (await bus.stats()).messages == {"acked": 3}


async def test_large_messages_go_in_portions_of_their_own(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    for _ in range(12):
        await a.send("a", "note", "x" * 1_000_000)
        await (await take(a)).ack()
    clock.advance(8 * DAY)
    report = await applied(bus)
    assert report.removed == {"message": 12}
    runs = [event async for event in bus.events(kind="retention_applied")]
    assert [event.facts["counts"] for event in runs] == [{"message": 4}] * 3


# Agents


async def test_ended_agents_go_after_a_week_with_their_state(bus: Bus, clock: FakeClock) -> None:
    for name, end in (("done", "complete"), ("broken", "fail"), ("halted", "stop"), ("alive", None)):
        agent = await worker(bus, name)
        await agent.state.set("k", name)
        if end is not None:
            await getattr(agent, end)(*(("oops",) if end == "fail" else ()))
    await bus.expect("pending", type="worker")
    clock.advance(6.9 * DAY)
    assert (await applied(bus)).removed == {}
    clock.advance(0.2 * DAY)
    report = await applied(bus)
    assert report.removed == {"agent": 3}
    assert await names(bus) == ["alive", "pending"]
    assert sorted(archived(report, "agent")) == ["broken", "done", "halted"]
    assert [line["value"] for line in lines(report) if line["record"] == "state"] == ['"broken"', '"done"', '"halted"']
    assert [await bus.state(name).get("k") for name in ("done", "broken", "halted")] == [None] * 3
    assert await bus.state("alive").get("k") == "alive"


async def test_an_agent_of_a_session_that_goes_on_stays(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("planning", id="s1") as session:
        async with session.agent("a", type="worker"):
            pass
        clock.advance(20 * DAY)
        assert (await applied(bus, policy=RetentionPolicy(events=None))).removed == {}
    assert (await applied(bus)).removed == {"agent": 1}


async def test_an_agent_with_a_checkpoint_stays(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    saved = await a.checkpoint("n", 1)
    await a.complete()
    clock.advance(80 * DAY)
    assert (await applied(bus)).removed == {}
    await bus.checkpoints.delete(saved.id)
    assert (await applied(bus)).removed == {"agent": 1}


@pytest.mark.parametrize("composite", [True, False])
async def test_an_agent_whose_session_has_a_checkpoint_stays_with_it(
    bus: Bus, clock: FakeClock, composite: bool
) -> None:
    async with bus.session("planning", id="s1") as session:
        async with session.agent("a", type="worker"):
            pass
        if composite:
            await session.checkpoint_all("all")
        else:
            await session.checkpoint("all", {"agents": ["a"]})
    clock.advance(10 * DAY)
    assert (await applied(bus)).removed == {}


@pytest.mark.parametrize("how", ["queued", "scheduled", "sent"])
async def test_an_agent_stays_while_an_open_message_refers_to_it(bus: Bus, clock: FakeClock, how: str) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    if how == "sent":
        await a.send("b", "note", "from a")
    else:
        await b.send("a", "note", "to a", delay=100 * DAY if how == "scheduled" else 0)
    await a.complete()
    clock.advance(30 * DAY)
    assert (await applied(bus)).removed == {}
    if how == "sent":
        await (await take(b)).ack()
    else:
        again = await worker(bus, "a")
        clock.advance(71 * DAY)
        await (await take(again)).ack()
        await again.complete()
    clock.advance(8 * DAY)
    assert "a" in archived(await applied(bus), "agent")


async def test_an_agent_that_came_back_under_its_id_stays_fenced_after_it_was_removed(
    bus: Bus, clock: FakeClock
) -> None:
    first = await worker(bus, "a")
    second = await worker(bus, "a", takeover=True)
    await second.complete()
    clock.advance(8 * DAY)
    assert (await applied(bus)).removed == {"agent": 1}
    third = await worker(bus, "a")
    assert (first.epoch, second.epoch, third.epoch) == (1, 2, 3), "no epoch is given out twice"
    assert (await worker(bus, "new")).epoch == 1


async def test_versions_of_state_go_on_after_an_agent_and_its_tombstones_are_gone(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    for value in range(5):
        await a.state.set("k", value)
    await a.complete()
    clock.advance(8 * DAY)
    assert (await applied(bus)).removed == {"agent": 1}
    clock.advance(31 * DAY)
    report = await applied(bus)
    assert report.removed["tombstone"] == 1
    assert [line["version"] for line in lines(report) if line["record"] == "state"] == [5]
    assert await bus.state("a").set("k", "new") == 6
    assert await bus.state("a").set("other", "new") == 6, "the highest version of the scope counts for all its keys"
    assert await bus.state("b").set("k", "new") == 1


async def test_a_tombstone_that_came_to_life_again_stays(bus: Bus, clock: FakeClock) -> None:
    state = bus.state("builds")
    await state.set("gone", 1)
    await state.set("back", 1)
    await state.set("expired", 1, ttl=5)
    await state.set("kept", 1)
    await state.delete("gone")
    await state.delete("back")
    await clock.pass_time(10)
    clock.advance(29 * DAY)
    assert await state.set("back", 2) == 2
    clock.advance(2 * DAY)
    report = await applied(bus)
    assert sorted(archived(report, "state")) == ["expired", "gone"]
    assert [entry.key for entry in (await state.list()).items] == ["back", "kept"]
    assert await state.set("gone", 3, if_version=0) == 2


# Sessions


async def ended_session(bus: Bus, id: str, error: str | None = None) -> None:
    try:
        async with bus.session("planning", id=id, milestone="ms-1", metadata={"why": "test"}) as session:
            async with session.agent(f"{id}-agent", type="worker") as agent:
                await agent.state.set("k", 1)
                await agent.checkpoint("n", {"step": 1})
                await agent.send(agent.id, "note", "never read")
            await session.expect(f"{id}-never-came", type="worker")
            await session.document("plan").save({"v": 1})
            await session.document("plan").save({"v": 2})
            await bus.checkpoints.save(id, "half", 1, kind="session")
            await session.checkpoint_all("half")
            await bus.state(f"session:{id}").set("key", [1])
            await (await session.participants(["x", "y"])).finish("x", {"agrees": True})
            if error is not None:
                raise ZeroDivisionError(error)
    except ZeroDivisionError:
        pass


async def test_an_ended_session_goes_after_a_month_with_all_that_is_its_own(bus: Bus, clock: FakeClock) -> None:
    await ended_session(bus, "s1")
    async with bus.session("planning", id="s2"):
        clock.advance(29 * DAY)
        assert (await applied(bus)).removed == {}
        clock.advance(2 * DAY)
        report = await applied(bus)
    assert report.removed == {"session": 1, "agent": 2, "document": 2, "checkpoint": 3}
    kinds = [line["record"] for line in lines(report)]
    assert {kind: kinds.count(kind) for kind in sorted(set(kinds))} == {
        "agent": 2, "checkpoint": 3, "document": 2, "participant": 2, "session": 1, "state": 2,
    }  # fmt: skip
    assert [session.id for session in (await bus.sessions.list()).items] == ["s2"]
    assert await names(bus) == []
    assert (await bus.checkpoints.list()).items == []
    assert (await bus.checkpoints.list(kind="composite")).items == []
    assert (await bus.state("session:s2").list()).items == []
    (letter,) = (await bus.messages.dead()).items
    assert letter.error == "its recipient was deleted", (
        "what still waited for its agents is not lost, but a dead letter"
    )
    gone = [event async for event in bus.events(kind="session_deleted")]
    assert [event.subject for event in gone] == ["s1"]


async def test_failed_sessions_go_earlier_when_asked(bus: Bus, clock: FakeClock) -> None:
    await ended_session(bus, "good")
    await ended_session(bus, "bad", "boom")
    clock.advance(1.1 * DAY)
    assert (await applied(bus)).removed == {}
    report = await applied(bus, policy=RetentionPolicy(failed_sessions=DAY))
    assert report.removed["session"] == 1
    assert [session.id for session in (await bus.sessions.list()).items] == ["good"]


@pytest.mark.parametrize("how", ["interrupted", "paused", "active"])
async def test_a_session_that_has_not_ended_stays_for_ever(engine: Engine, clock: FakeClock, how: str) -> None:
    async with engine.connect() as bus:
        async with bus.session("planning", id="s1") as session:
            if how == "active":
                clock.advance(400 * DAY)
                assert "session" not in (await applied(bus)).removed
            elif how == "paused":
                await session.pause()
                clock.advance(400 * DAY)
                assert "session" not in (await applied(bus)).removed
        if how == "interrupted":
            block = bus.session("planning", id="s2")
            await block.__aenter__()
    clock.advance(400 * DAY)
    if how == "interrupted":
        async with engine.connect() as bus:
            assert (await bus.retention.apply()).removed["session"] == 1
            assert [(one.id, one.status) for one in (await bus.sessions.list()).items] == [("s2", "interrupted")]


async def test_a_session_stays_as_long_as_an_agent_of_it_lives(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("planning", id="s1") as session:
        agent = await bus.register("a", type="worker", session="s1")
        await session.document("d").save(1)
    clock.advance(60 * DAY)
    assert (await applied(bus)).removed == {}
    await agent.complete()
    assert (await applied(bus)).removed == {"session": 1, "agent": 1, "document": 1}


async def test_a_large_session_goes_in_portions_and_is_the_last_to_go(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("planning", id="s1") as session:
        for number in range(250):
            await session.expect(f"a{number:03}", type="worker")
        for number in range(3):
            await session.document(f"d{number}").save("x" * 3_000_000)
    clock.advance(31 * DAY)
    report = await applied(bus)
    assert report.removed == {"document": 3, "agent": 250, "session": 1}
    counts = [event.facts["counts"] async for event in bus.events(kind="retention_applied")]
    assert len(counts) > 4
    assert counts[-1].get("session") == 1


async def test_an_agent_with_much_state_and_many_letters_goes_with_its_session_in_steps(
    bus: Bus, clock: FakeClock
) -> None:
    async with bus.session("planning", id="s1") as session:
        for number in range(10):
            await session.state.set(f"k{number}", "x" * 1_000_000)
        async with session.agent("a", type="worker") as agent:
            for number in range(10):
                await agent.state.set(f"k{number}", "x" * 1_000_000)
            await agent.send_many([("a", "note", number) for number in range(2000)])
    clock.advance(31 * DAY)
    report = await applied(bus)
    assert report.removed == {"agent": 1, "session": 1}
    assert len((await bus.messages.dead(limit=1000)).items) == 1000
    assert (await bus.stats()).messages == {"dead": 2000}
    keys = [line["key"] for line in lines(report) if line["record"] == "state"]
    assert sorted(keys) == sorted([f"k{n}" for n in range(10)] * 2), "in several steps, but archived once"
    assert (await bus.import_archive(report.archive or "")).imported["state"] == 20
    assert await bus.state("a").get("k9") == "x" * 1_000_000


# Events and processes


async def test_events_go_after_three_months(bus: Bus, clock: FakeClock) -> None:
    await bus.define("first")
    clock.advance(50 * DAY)
    await bus.define("second")
    clock.advance(41 * DAY)
    report = await applied(bus)
    assert report.removed == {"event": 1}
    assert [line["subject"] for line in lines(report)] == ["message/first"]
    left = [(event.id, event.kind) async for event in bus.events()]
    assert left == [(2, "type_defined"), (3, "retention_applied")]


async def test_processes_go_once_nothing_names_them(engine: Engine, clock: FakeClock) -> None:
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
    """Else each application would archive the event of the one before, and leave one for the next, for ever."""
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


async def test_nothing_goes_from_a_bus_where_nothing_is_old(bus: Bus) -> None:
    await finished(bus, 3)
    report = await bus.retention.apply()
    assert report == RetentionReport(False, {}, 0, None, 0)


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


async def test_every_removal_is_in_the_trail_without_payloads(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", "top secret")
    await (await take(a)).ack()
    clock.advance(8 * DAY)
    report = await applied(bus)
    assert report.archive is not None
    (event,) = [event async for event in bus.events(kind="retention_applied")]
    assert event.facts == {"archive": Path(report.archive).name, "counts": {"message": 1}}
    assert (await known(bus, "a")).status == "running"


@pytest.mark.parametrize(
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


async def test_whoever_wants_to_know_is_told_how_many_are_gone_and_of_how_many(bus: Bus, clock: FakeClock) -> None:
    await finished(bus, 1200)
    told: list[tuple[int, int]] = []
    policy = RetentionPolicy(messages=0, agents=None, events=None, processes=None, tombstones=None)
    report = await bus.retention.apply(policy=policy, progress=lambda done, total: told.append((done, total)))
    assert report.removed == {"message": 1200}
    assert told == [(500, 1200), (1000, 1200), (1200, 1200)]
    told.clear()
    await bus.retention.apply(policy=policy, progress=lambda done, total: told.append((done, total)))
    assert told == []
