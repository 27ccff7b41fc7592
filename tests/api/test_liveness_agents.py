"""Idle agents of a live process, and agents that were started: suspect and failed ones."""

from __future__ import annotations

import pytest

from agentbus import Bus
from agentbus.errors import AgentFenced
from tests.api.helpers import known, running, take, worker
from tests.api.liveness_helpers import HOUR, status, verdict
from tests.api.other_processes import beats, resident, stranger
from tests.support.clock import FakeClock

# Agents that do nothing in a process that beats


async def test_no_agent_is_suspect_before_its_limit(bus: Bus, clock: FakeClock) -> None:
    for id in "abc":
        await worker(bus, id)
    await clock.pass_time(55)
    assert (await bus.sweep()).counts["agents_suspected"] == 0


async def test_silent_for_longer_exactly_that_one_is_suspect_then_failed_within_two_intervals(
    bus: Bus, clock: FakeClock
) -> None:
    a, b, c = [await worker(bus, id) for id in "abc"]
    async with running(c.receive()):
        for _ in range(30):
            await clock.pass_time(5)
            await b.progress(50)
            sweep = await bus.sweep(suspect_after=60, fail_stuck_after=120)
            age = (clock.now().awake - 1_000_000) / 1000
            if age <= 60:
                assert await status(bus, "a") == ["running"], age
            elif 70 <= age <= 120:
                assert (await status(bus, "a"), await verdict(bus, "a")) == (["suspect"], "stuck"), age
            elif age >= 130:
                assert await status(bus, "a") == ["failed"], age
            assert await status(bus, "b", "c") == ["running", "running"]
            assert all(finding.subject == "agent:a" for finding in sweep.findings)
    evidence = (await known(bus, "a")).evidence
    assert evidence is not None
    assert (evidence["verdict"], evidence["alive"], evidence["process"]) == ("stuck", True, bus._engine.process)
    assert evidence["beat_age"] <= 5
    assert evidence["call_age"] > 120
    with pytest.raises(AgentFenced):
        await a.send("b", "note")


async def test_a_stuck_agent_is_marked_failed_only_on_request(bus: Bus, clock: FakeClock) -> None:
    await worker(bus, "a")
    for _ in range(3):
        await clock.pass_time(200)
        await bus.sweep()
    assert await status(bus, "a") == ["suspect"]


async def test_idle_is_not_dead(bus: Bus, clock: FakeClock) -> None:
    """Waiting for a message, or for the reply to a request, for however long."""
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await bus.expect("c", type="worker")
    async with (
        running(a.receive()) as waiting,
        running(b.request("c", "coordination_request", timeout=HOUR)) as asking,
    ):
        for _ in range(2):
            await clock.pass_time(70)
            await bus.sweep(fail_stuck_after=60)
        assert await status(bus, "a", "b") == ["running", "running"]
        assert not waiting.done()
        assert not asking.done()


async def test_a_long_call_under_busy_is_not_suspect_until_its_time_is_over(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.busy(120)
    await clock.pass_time(170)
    await bus.sweep(fail_stuck_after=60)
    assert await status(bus, "a") == ["running"]
    await clock.pass_time(20)
    await bus.sweep()
    assert await status(bus, "a") == ["suspect"]
    evidence = (await known(bus, "a")).evidence
    assert evidence is not None
    assert evidence["busy_age"] == 70.0


async def test_a_suspect_agent_is_running_with_the_next_heartbeat_after_activity(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await clock.pass_time(80)
    await bus.sweep()
    assert await status(bus, "a") == ["suspect"]
    await a.send("a", "note")
    assert (await take(a)).sender == "a", "it may act all the while"
    await clock.pass_time(5)
    record = await known(bus, "a")
    assert (record.status, record.evidence) == ("running", None)
    assert [event.subject async for event in bus.events(kind="agent_recovered")] == ["a"]


async def test_a_recent_call_counts_more_than_an_older_heartbeat(bus: Bus, clock: FakeClock) -> None:
    """The silence of an agent is known only as of the last heartbeat of its process."""
    process = await stranger(bus)
    a = await resident(bus, "a", process)
    clock.stall(58)
    await beats(bus, process)
    clock.stall(4)
    await bus.sweep()
    assert await status(bus, "a") == ["running"], "it may have called since; the process will say so"
    await beats(bus, process, a)
    await bus.sweep()
    assert await status(bus, "a") == ["running"]


async def test_the_timeout_of_an_agent_decides_when_it_is_suspect(bus: Bus, clock: FakeClock) -> None:
    await worker(bus, "a", patience=200)
    await worker(bus, "b", patience=1)
    await clock.pass_time(100)
    await bus.sweep()
    assert await status(bus, "a", "b") == ["running", "suspect"]
    await clock.pass_time(120)
    await bus.sweep()
    assert await status(bus, "a") == ["suspect"]


# Agents that another process started


async def test_an_agent_that_was_started_and_never_came_has_failed(bus: Bus, clock: FakeClock) -> None:
    boss = await worker(bus, "boss")
    await bus.expect("a", type="worker", within=30, parent="boss")
    assert await status(bus, "a") == ["spawning"]
    await boss.send("a", "note", "early")
    clock.stall(29)
    await bus.sweep()
    assert await status(bus, "a") == ["spawning"]
    clock.stall(1)
    await bus.sweep()
    record = await known(bus, "a")
    assert (record.status, record.error) == ("failed", "expected within 30 s, never registered")
    assert record.evidence == {"verdict": "absent", "call_age": 30.0, "busy_age": 0.0}
    assert (await take(boss)).payload["agent"] == "a"
    late = await worker(bus, "a")
    assert (await take(late)).payload == "early", "better late than never"


async def test_an_agent_that_came_in_time_is_like_any_other(bus: Bus, clock: FakeClock) -> None:
    await bus.expect("a", type="worker", within=30)
    a = await worker(bus, "a")
    assert a.epoch == 1
    async with running(a.receive()):
        await clock.pass_time(130)
        await bus.sweep(fail_stuck_after=60)
        assert await status(bus, "a") == ["running"]
    kinds = [event.kind async for event in bus.events(subject="agent:a")]
    assert kinds == ["agent_expected", "agent_registered"]


async def test_an_expected_agent_without_a_deadline_may_come_whenever_it_likes(bus: Bus, clock: FakeClock) -> None:
    await bus.expect("a", type="worker")
    clock.stall(100 * HOUR)
    await bus.sweep(fail_stuck_after=60)
    assert await status(bus, "a") == ["pending"]


async def test_an_earlier_incarnation_is_fenced_while_the_next_one_starts(bus: Bus) -> None:
    old = await worker(bus, "a")
    await old.fail("crashed")
    await bus.expect("a", type="worker", within=30)
    with pytest.raises(AgentFenced):
        await old.send("a", "note")
    await bus.agents.delete("a")
