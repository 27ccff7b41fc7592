"""Visiting agents: scripts or models without a process. Each call is a heartbeat; a timeout decides liveness."""

from __future__ import annotations

import os

import pytest

from agentbus import Bus, pool
from agentbus.errors import AgentExists, AgentFenced
from agentbus.operations.agents import DeclareRequest, declare
from agentbus.operations.protocol import Actor
from agentbus.operations.receive import ClaimRequest, claim
from tests.api.helpers import known, stored, take, worker
from tests.api.other_processes import ABSENT_PID, ELSEWHERE, resident, stranger, visitor, visits
from tests.conftest import Engine
from tests.support.clock import FakeClock

MINUTE = 60.0


async def status(bus: Bus, agent: str = "v") -> str:
    return (await known(bus, agent)).status


async def test_a_visiting_agent_runs_without_a_process_and_has_a_timeout_of_half_an_hour(bus: Bus) -> None:
    await visitor(bus, "v")
    record = await known(bus, "v")
    assert (record.kind, record.status, record.process, record.patience) == ("visiting", "running", None, 1800)
    with pytest.raises(AgentExists):
        await visitor(bus, "v")


async def test_a_visiting_agent_stays_running_between_its_calls(bus: Bus, clock: FakeClock) -> None:
    v = await visitor(bus, "v")
    for _ in range(10):
        clock.stall(29 * MINUTE)
        sweep = await bus.sweep(fail_stuck_after=60)
        assert sweep.findings == []
        await visits(bus, v)
    assert await status(bus) == "running"


async def test_after_its_timeout_it_is_suspect_and_later_failed(bus: Bus, clock: FakeClock) -> None:
    v, _ = await visitor(bus, "v"), await visitor(bus, "w")
    clock.stall(10 * MINUTE)
    await visits(bus, Actor("w", 1))
    clock.stall(21 * MINUTE)
    sweep = await bus.sweep()
    assert await status(bus) == "suspect"
    assert sweep.counts["agents_suspected"] == 1
    evidence = sweep.findings[0].facts["evidence"]
    assert (evidence["verdict"], evidence["call_age"], evidence["patience"]) == ("silent", 1860.0, 1800.0)
    clock.stall(3 * MINUTE)
    await bus.sweep()
    assert await status(bus) == "suspect"
    clock.stall(2 * MINUTE)
    await bus.sweep()
    record = await known(bus, "v")
    assert (record.status, record.error) == ("failed", "it was silent for much longer than its patience")
    assert record.evidence is not None
    assert (record.evidence["verdict"], record.evidence["patience"]) == ("silent", 1800.0)
    assert await status(bus, "w") == "running"
    with pytest.raises(AgentFenced):
        await visits(bus, v)


async def test_a_call_clears_the_suspicion(bus: Bus, clock: FakeClock) -> None:
    v = await visitor(bus, "v", patience=60)
    clock.stall(100)
    await bus.sweep()
    assert await status(bus) == "suspect"
    await visits(bus, v)
    record = await known(bus, "v")
    assert (record.status, record.evidence) == ("running", None)
    clock.stall(59)
    await bus.sweep()
    assert await status(bus) == "running"


async def test_every_call_extends_its_leases_and_never_shortens_them(bus: Bus, clock: FakeClock) -> None:
    await bus._engine.write(declare, DeclareRequest(("jobs",), ()))
    v, other = await visitor(bus, "v"), await worker(bus, "other", pools=["jobs"])
    receipt = await other.send(pool("jobs"), "note", "work")
    mailbox = other._mailboxes.pools[0]
    await bus._engine.write(claim, ClaimRequest(v, (), (), (mailbox,), 1, 60_000))
    for lease in (60, 60, 1, 60):
        clock.stall(50)
        await visits(bus, v, lease=lease)
        if lease == 1:
            clock.stall(9)
            await bus.sweep()
            assert (await stored(bus, receipt.message_id)).holder == "v"
            await visits(bus, v)
    clock.stall(61)
    await bus.sweep()
    assert (await take(other)).payload == "work"


async def test_a_call_of_an_earlier_incarnation_does_not_count(bus: Bus, clock: FakeClock) -> None:
    await visitor(bus, "v")
    clock.stall(20 * MINUTE)
    with pytest.raises(AgentFenced):
        await visits(bus, Actor("v", 7))
    clock.stall(11 * MINUTE)
    await bus.sweep()
    assert await status(bus) == "suspect"


async def test_it_fails_by_a_pid_only_if_it_named_one(bus: Bus, clock: FakeClock) -> None:
    """Whatever process called for it is long gone when the monitor looks."""
    await visitor(bus, "v")
    await bus.sweep()
    clock.stall(20 * MINUTE)
    await bus.sweep()
    assert await status(bus) == "running"


async def test_an_agent_that_named_a_pid_fails_with_that_process(bus: Bus) -> None:
    await visitor(bus, "v", process=await stranger(bus, pid=ABSENT_PID, watched=True))
    await visitor(bus, "w", process=await stranger(bus, watched=True))
    await bus.sweep()
    assert (await status(bus), await status(bus, "w")) == ("failed", "running")
    evidence = (await known(bus, "v")).evidence
    assert evidence is not None
    assert (evidence["verdict"], evidence["pid"]) == ("dead", ABSENT_PID)


@pytest.mark.parametrize("host", [None, ELSEWHERE])
async def test_the_process_that_it_named_needs_no_heartbeat(bus: Bus, clock: FakeClock, host: str | None) -> None:
    await visitor(bus, "v", process=await stranger(bus, pid=os.getpid(), host=host, watched=True))
    clock.stall(29 * MINUTE)
    await bus.sweep(fail_stuck_after=60)
    await bus.sweep(fail_stuck_after=60)
    assert await status(bus) == "running"


async def test_silent_with_a_live_process_it_is_only_suspect_unless_requested(bus: Bus, clock: FakeClock) -> None:
    await visitor(bus, "v", process=await stranger(bus, watched=True))
    clock.stall(100 * MINUTE)
    await bus.sweep()
    await bus.sweep()
    assert await status(bus) == "suspect"
    await bus.sweep(fail_stuck_after=60 * MINUTE)
    assert await status(bus) == "failed"


async def test_a_process_on_another_host_is_no_evidence_for_its_agent(bus: Bus, clock: FakeClock) -> None:
    process = await stranger(bus, host=ELSEWHERE, watched=True)
    await visitor(bus, "v", patience=60, process=process)
    clock.stall(61)
    await bus.sweep()
    record = await known(bus, "v")
    assert record.status == "suspect"
    assert record.evidence is not None
    assert "alive" not in record.evidence, "no process observed it"
    clock.stall(301)
    await bus.sweep()
    assert (await known(bus, "v")).status == "failed"


async def test_a_watched_process_that_ends_after_its_agent_leaves_no_event(bus: Bus, clock: FakeClock) -> None:
    await visitor(bus, "v", process=await stranger(bus, pid=ABSENT_PID, watched=True))
    await worker(bus, "v", takeover=True)
    sweep = await bus.sweep()
    assert (sweep.findings, sweep.counts["processes_dead"]) == ([], 0)
    assert await status(bus) == "running"


@pytest.mark.parametrize("seconds", [3600, -3600])
async def test_its_timeout_counts_awake_time(bus: Bus, clock: FakeClock, seconds: float) -> None:
    await visitor(bus, "v")
    clock.jump(seconds)
    assert (await bus.sweep()).findings == []
    clock.sleep_machine(24 * 3600)
    assert (await bus.sweep()).findings == []


async def test_after_a_reboot_its_timeout_starts_again(bus: Bus, engine: Engine) -> None:
    await visitor(bus, "v")
    rebooted = FakeClock(boot="boot-2", awake=500)
    async with engine.connect(clock=rebooted) as after:
        rebooted.stall(29 * MINUTE)
        await after.sweep()
        assert await status(after) == "running"
        rebooted.stall(2 * MINUTE)
        await after.sweep()
        assert await status(after) == "suspect"


async def test_a_resident_that_becomes_a_visitor_gets_a_timeout_and_keeps_its_data(bus: Bus) -> None:
    await resident(bus, "v", await stranger(bus, pid=ABSENT_PID))
    await bus.sweep()
    await visitor(bus, "v")
    assert (await known(bus, "v")).patience == 1800
    await resident(bus, "x", await stranger(bus, pid=ABSENT_PID), patience=77_000)
    await bus.sweep()
    await visitor(bus, "x")
    assert (await known(bus, "x")).patience == 77
