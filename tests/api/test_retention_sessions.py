"""Retention of sessions: removed with all their data, and only after they ended."""

from __future__ import annotations

import pytest

from agentbus import Bus, RetentionPolicy
from agentbus.api.maintenance import retention
from agentbus.operations import common
from agentbus.operations import retention as retention_operations
from tests.api.retention_helpers import DAY, applied, ended_session, lines, names
from tests.conftest import Engine
from tests.support.clock import FakeClock


async def test_an_ended_session_is_removed_after_a_month_with_all_its_data(bus: Bus, clock: FakeClock) -> None:
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


async def test_failed_sessions_are_removed_earlier_on_request(bus: Bus, clock: FakeClock) -> None:
    await ended_session(bus, "good")
    await ended_session(bus, "bad", "boom")
    clock.advance(1.1 * DAY)
    assert (await applied(bus)).removed == {}
    report = await applied(bus, policy=RetentionPolicy(failed_sessions=DAY))
    assert report.removed["session"] == 1
    assert [session.id for session in (await bus.sessions.list()).items] == ["good"]


async def test_a_session_that_has_not_ended_is_never_removed(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus:
        async with bus.session("planning", id="s1") as session:
            clock.advance(400 * DAY)
            assert "session" not in (await applied(bus)).removed
            await session.pause()
            clock.advance(400 * DAY)
            assert "session" not in (await applied(bus)).removed
        block = bus.session("planning", id="s2")
        await block.__aenter__()
    clock.advance(400 * DAY)
    async with engine.connect() as bus:
        assert (await bus.retention.apply()).removed["session"] == 1
        assert [(one.id, one.status) for one in (await bus.sessions.list()).items] == [("s2", "interrupted")]


async def test_a_session_stays_as_long_as_an_agent_of_it_is_alive(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("planning", id="s1") as session:
        agent = await bus.register("a", type="worker", session="s1")
        await session.document("d").save(1)
    clock.advance(60 * DAY)
    assert (await applied(bus)).removed == {}
    await agent.complete()
    assert (await applied(bus)).removed == {"session": 1, "agent": 1, "document": 1}


async def test_a_large_session_is_removed_in_portions_and_its_row_last(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_operations, "_AGENTS", 10)
    monkeypatch.setattr(retention, "_MAX_ROWS", 50)
    monkeypatch.setattr(retention, "_MAX_BYTES", 40_000)
    async with bus.session("planning", id="s1") as session:
        for number in range(25):
            await session.expect(f"a{number:03}", type="worker")
        for number in range(3):
            await session.document(f"d{number}").save("x" * 30_000)
    clock.advance(31 * DAY)
    report = await applied(bus)
    assert report.removed == {"document": 3, "agent": 25, "session": 1}
    counts = [event.facts["counts"] async for event in bus.events(kind="retention_applied")]
    assert len(counts) > 4
    assert counts[-1].get("session") == 1


async def test_an_agent_with_much_state_and_many_messages_is_removed_with_its_session_in_steps(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that a commit removes eight rows.
    monkeypatch.setattr(common, "_ROW", 500_000)
    async with bus.session("planning", id="s1") as session:
        for number in range(10):
            await session.state.set(f"k{number}", "x" * 1_000)
        async with session.agent("a", type="worker") as agent:
            for number in range(10):
                await agent.state.set(f"k{number}", "x" * 1_000)
            await agent.send_many([("a", "note", number) for number in range(100)])
    clock.advance(31 * DAY)
    report = await applied(bus)
    assert report.removed == {"agent": 1, "session": 1}
    assert len((await bus.messages.dead(limit=50)).items) == 50
    assert (await bus.stats()).messages == {"dead": 100}
    keys = [line["key"] for line in lines(report) if line["record"] == "state"]
    assert sorted(keys) == sorted([f"k{n}" for n in range(10)] * 2), "in several steps, but archived once"
    assert (await bus.import_archive(report.archive or "")).imported["state"] == 20
    assert await bus.state("a").get("k9") == "x" * 1_000
