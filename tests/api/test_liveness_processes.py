"""Liveness is evidence, not a timer: dead and silent processes under any clock change."""

from __future__ import annotations

import pytest

from agentbus import Bus, pool
from agentbus.errors import AgentFenced, LeaseLost
from agentbus.operations.liveness import CheckLiveness, Rules, mark_failed, suspect
from agentbus.operations.sessions import StartSessionRequest, start_session
from tests.api.helpers import held, known, running, soon, stored, take, take_all, worker
from tests.api.liveness_helpers import HOUR, status, verdict
from tests.api.other_processes import ABSENT_PID, ELSEWHERE, beats, resident, stranger
from tests.conftest import Engine
from tests.support.clock import FakeClock

# Processes that died


async def test_a_dead_process_fails_its_agents_in_one_sweep_and_the_evidence_is_kept(bus: Bus) -> None:
    process = await stranger(bus, pid=ABSENT_PID, started="77")
    await resident(bus, "a", process)
    await worker(bus, "b")
    sweep = await bus.sweep()
    assert await status(bus, "a", "b") == ["failed", "running"]
    record = await known(bus, "a")
    assert record.error == "its process died"
    assert record.evidence == {
        "verdict": "dead", "process": process, "pid": ABSENT_PID, "alive": False, "beat_age": 0.0, "call_age": 0.0,
        "progress": 0,
    }  # fmt: skip
    assert (sweep.counts["agents_failed"], sweep.counts["processes_dead"]) == (1, 1)
    found = {finding.kind: finding for finding in sweep.findings}
    assert found["agent_failed"].subject == "agent:a"
    assert found["agent_failed"].text == "a failed: its process died"
    assert found["agent_failed"].facts["evidence"] == record.evidence
    assert found["process_dead"].subject == f"process:{process}"


async def test_failing_an_agent_releases_its_leases_fences_it_and_notifies_its_parent(bus: Bus, engine: Engine) -> None:
    """The agent is alive in truth, in a bus of its own; what speaks against it is written by hand."""
    boss = await worker(bus, "boss")
    async with engine.connect() as other:
        a = await worker(other, "a", pools=["jobs"], parent="boss")
        b = await worker(bus, "b", pools=["jobs"])
        await b.send(pool("jobs"), "note", "work")
        message = await take(a)
        request = CheckLiveness(Rules(60_000, 300_000), gone=(other._engine.process,))
        convicted = await bus._engine.write(mark_failed, request)
        assert (convicted.processes, convicted.agents) == ([other._engine.process], ["a"])
        again = await take(b)
        assert (again.payload, again.attempts) == ("work", 2)
        for call in (message.ack(), a.send("b", "note"), a.receive(timeout=0), a.progress(5), a.complete()):
            with pytest.raises((AgentFenced, LeaseLost)):
                await call
        report = await take(boss)
        assert report.payload == {"agent": "a", "status": "failed", "error": "its process died"}
        (event,) = [event async for event in bus.events(kind="agent_failed")]
        assert event.facts["evidence"]["verdict"] == "dead"
        second = await bus._engine.write(mark_failed, request)
        assert (second.processes, second.agents, second.sessions) == ([], [], []), "what was judged is left alone"
        assert await take_all(boss) == []


async def test_a_reused_pid_is_no_evidence_of_a_live_process(bus: Bus) -> None:
    await resident(bus, "a", await stranger(bus, started="1"))
    await resident(bus, "b", await stranger(bus))
    await bus.sweep()
    assert await status(bus, "a", "b") == ["failed", "running"]


async def test_a_pid_of_another_namespace_says_nothing(bus: Bus, clock: FakeClock) -> None:
    process = await stranger(bus, pid=ABSENT_PID, host=ELSEWHERE)
    a = await resident(bus, "a", process)
    await bus.sweep()
    clock.stall(59)
    await bus.sweep()
    assert await status(bus, "a") == ["running"], "it cannot be seen from here, and beats often enough"
    await beats(bus, process, a)
    clock.stall(59)
    await bus.sweep()
    assert await status(bus, "a") == ["running"]


async def test_a_process_that_cannot_be_seen_is_suspect_when_silent_and_dead_when_silent_for_long(
    bus: Bus, clock: FakeClock
) -> None:
    process = await stranger(bus, pid=ABSENT_PID, host=ELSEWHERE)
    await resident(bus, "a", process)
    clock.stall(61)
    await bus.sweep()
    assert (await status(bus, "a"), await verdict(bus, "a")) == (["suspect"], "unreachable")
    evidence = (await known(bus, "a")).evidence
    assert evidence is not None
    assert "alive" not in evidence, "no process could check"
    clock.stall(238)
    await bus.sweep()
    assert await status(bus, "a") == ["suspect"]
    clock.stall(2)
    await bus.sweep()
    record = await known(bus, "a")
    assert record.status == "failed"
    assert "cannot be seen from here, was silent for longer than 300 s" in (record.error or "")


async def test_after_a_pause_of_all_processes_none_fails_before_it_could_send_a_heartbeat(
    bus: Bus, clock: FakeClock
) -> None:
    """As when a whole container is frozen, the monitor with it: its first sweep finds all beats an hour old."""
    process = await stranger(bus, pid=ABSENT_PID, host=ELSEWHERE)
    a = await resident(bus, "a", process)
    clock.stall(HOUR)
    await bus.sweep(fail_stuck_after=100)
    assert await status(bus, "a") == ["suspect"]
    await beats(bus, process, a)
    await bus.sweep(fail_stuck_after=100)
    assert await status(bus, "a") == ["running"]


async def test_a_remote_process_without_agents_is_dead_only_after_two_missed_heartbeats(
    bus: Bus, clock: FakeClock
) -> None:
    """After a standstill of everybody, the judge included, or a jump of the clock, it must have the time to beat."""
    process = await stranger(bus, host=ELSEWHERE)
    await bus._engine.write(start_session, StartSessionRequest("s", "planning", process))
    clock.stall(HOUR)
    sweep = await bus.sweep()
    assert (sweep.counts["processes_dead"], (await held(bus, "s")).status) == (0, "active")
    await beats(bus, process)
    clock.stall(HOUR)
    assert (await bus.sweep()).counts["processes_dead"] == 0, "it had beaten since"
    assert (await bus.sweep()).counts["processes_dead"] == 0, "sweeps may follow each other closely"
    clock.stall(10)
    sweep = await bus.sweep()
    assert (sweep.counts["processes_dead"], (await held(bus, "s")).status) == (1, "interrupted")
    assert (await held(bus, "s")).error == (
        "its own process, which cannot be seen from here, was silent for longer than 300 s"
    )
    await beats(bus, process)
    record = await held(bus, "s")
    assert (record.status, record.error, record.process) == ("active", None, process), "its owner is there after all"


async def test_a_process_with_a_longer_heartbeat_interval_gets_more_time(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("planning", id="s"):
        for host in (ELSEWHERE, None):
            process = await stranger(bus, host=host, every=600)
            await resident(bus, f"a-{process}", process)
        clock.stall(1200)
        for _ in range(3):
            assert (await bus.sweep(fail_stuck_after=300)).findings == []
        clock.stall(1)
        assert (await bus.sweep()).counts["agents_suspected"] == 2


async def test_a_process_marked_dead_is_live_after_a_heartbeat_but_its_agents_stay_failed(
    bus: Bus, engine: Engine, clock: FakeClock
) -> None:
    async with engine.connect() as other:
        a = await worker(other, "a")
        await bus._engine.write(mark_failed, CheckLiveness(Rules(60_000, 300_000), gone=(other._engine.process,)))
        await clock.pass_time(6)
        assert await status(bus, "a") == ["failed"]
        with pytest.raises(AgentFenced):
            await a.send("a", "note")
        assert [event.subject async for event in bus.events(kind="process_back")] == [str(other._engine.process)]
        b = await worker(other, "b")
        clock.stall(100)
        await bus._engine.write(suspect, CheckLiveness(Rules(60_000, 300_000), stalled=(other._engine.process,)))
        assert await status(bus, "b") == ["suspect"], "its agents are checked again"
        await b.send("b", "note")


# Processes that are there, and silent


async def test_agents_of_a_live_process_without_heartbeats_are_only_suspect(bus: Bus, clock: FakeClock) -> None:
    process = await stranger(bus)
    await resident(bus, "a", process)
    await resident(bus, "b", process)
    await worker(bus, "c")
    clock.stall(59)
    await bus.sweep()
    assert await status(bus, "a", "b") == ["running", "running"]
    clock.stall(2)
    sweep = await bus.sweep()
    assert await status(bus, "a", "b", "c") == ["suspect", "suspect", "running"]
    assert sweep.counts["agents_suspected"] == 2
    evidence = (await known(bus, "a")).evidence
    assert evidence is not None
    assert (evidence["verdict"], evidence["alive"], evidence["beat_age"]) == ("stalled", True, 61.0)
    clock.stall(10 * HOUR)
    await bus.sweep()
    await bus.sweep()
    assert await status(bus, "a", "b") == ["suspect", "suspect"]


async def test_agents_without_heartbeats_are_marked_failed_on_request(bus: Bus, clock: FakeClock) -> None:
    process = await stranger(bus)
    await resident(bus, "a", process)
    clock.stall(130)
    await bus.sweep(fail_stuck_after=120)
    assert await status(bus, "a") == ["suspect"]
    await bus.sweep(fail_stuck_after=120)
    record = await known(bus, "a")
    assert (record.status, record.error) == ("failed", "its process is there, but was silent for longer than 120 s")
    await resident(bus, "b", process)
    assert await status(bus, "b") == ["running"], "the process itself is not dead"


async def test_a_process_that_continues_clears_the_suspicion_of_all_its_agents(bus: Bus, clock: FakeClock) -> None:
    process = await stranger(bus)
    await resident(bus, "a", process)
    clock.stall(130)
    await bus.sweep(fail_stuck_after=120)
    await beats(bus, process)
    record = await known(bus, "a")
    assert (record.status, record.evidence) == ("running", None)
    sweep = await bus.sweep(fail_stuck_after=120)
    assert await status(bus, "a") == ["running"], "while its process stood still it could not call"
    assert sweep.counts["agents_suspected"] == 0
    assert [event.facts["evidence"]["verdict"] async for event in bus.events(kind="agent_recovered")] == ["stalled"]


async def test_a_process_with_a_heartbeat_after_it_was_checked_is_unchanged(bus: Bus, clock: FakeClock) -> None:
    """Evidence is gathered outside the transaction; what may have changed is looked at again inside."""
    process, unseen = await stranger(bus), await stranger(bus, host=ELSEWHERE)
    await resident(bus, "a", process)
    await resident(bus, "b", unseen)
    clock.stall(HOUR)
    request = CheckLiveness(Rules(60_000, 300_000, 300_000), stalled=(process,), unseen=(unseen,))
    await bus._engine.write(suspect, request)
    assert await status(bus, "a", "b") == ["suspect", "suspect"]
    await beats(bus, process)
    await beats(bus, unseen)
    await bus._engine.write(mark_failed, request)
    await bus._engine.write(suspect, request)
    assert await status(bus, "a", "b") == ["running", "running"]


async def test_a_blocking_call_under_busy_needs_no_heartbeat(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as other:
        a, _ = await worker(other, "a"), await worker(other, "b")
        await a.busy(600)
        clock.stall(400)
        await bus.sweep(fail_stuck_after=120)
        await bus.sweep(fail_stuck_after=120)
        assert await status(bus, "a", "b") == ["running", "failed"]
        clock.stall(201)
        await bus.sweep()
        assert await status(bus, "a") == ["suspect"]


# Clocks


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
async def test_a_wall_clock_jump_fails_no_agent(bus: Bus, clock: FakeClock, seconds: float) -> None:
    a, process = await worker(bus, "a"), await stranger(bus)
    await resident(bus, "b", process)
    await resident(bus, "c", await stranger(bus, host=ELSEWHERE))
    clock.jump(seconds)
    sweep = await bus.sweep(fail_stuck_after=60)
    assert await status(bus, "a", "b", "c") == ["running"] * 3
    assert sweep.findings == []
    clock.jump(-seconds)
    assert (await bus.sweep(fail_stuck_after=60)).findings == []
    await a.send("a", "note")


async def test_a_machine_that_slept_for_an_hour_fails_no_agent(bus: Bus, clock: FakeClock) -> None:
    await worker(bus, "a")
    await resident(bus, "b", await stranger(bus))
    await resident(bus, "c", await stranger(bus, host=ELSEWHERE))
    clock.sleep_machine(HOUR)
    for _ in range(3):
        sweep = await bus.sweep(fail_stuck_after=60)
        assert sweep.findings == []
        await clock.pass_time(10)
    assert await status(bus, "a", "b", "c") == ["running"] * 3


async def test_a_reboot_fails_all_agents_at_once_and_is_recorded(bus: Bus, engine: Engine) -> None:
    await worker(bus, "a")
    await bus.expect("never", type="worker", within=3600)
    async with engine.connect(clock=FakeClock(boot="boot-2", awake=500)) as after:
        record = await known(after, "a")
        assert (record.status, record.error) == ("failed", "the machine was restarted")
        assert record.evidence is not None
        assert record.evidence["verdict"] == "rebooted"
        assert "call_age" not in record.evidence, "awake time has started again"
        await worker(after, "b")
        await after.sweep()
        assert await status(after, "b", "never") == ["running", "failed"], "who started it is gone too"
        assert (await known(after, "never")).error == "expected, never registered"


# A waiting receiver hears of it


async def test_a_receiver_is_woken_when_its_agent_is_marked_failed(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as other:
        a = await worker(other, "a")
        receipt = await a.send("a", "note", delay=5000)
        async with running(a.receive()) as waiting:
            await clock.settle()
            await bus._engine.write(mark_failed, CheckLiveness(Rules(60_000, 300_000), gone=(other._engine.process,)))
            # Its process is not rung any more, but beats, and learns that it counted as dead.
            await clock.pass_time(5)
            with pytest.raises(AgentFenced):
                await soon(waiting)
        assert (await stored(bus, receipt.message_id)).status == "scheduled"
