"""Sessions with failed agents: interrupted with the last of them, degraded with some."""

from __future__ import annotations

from agentbus import Bus
from tests.api.helpers import held, worker
from tests.api.liveness_helpers import status
from tests.api.other_processes import ABSENT_PID, resident, stranger
from tests.conftest import Engine
from tests.support.clock import FakeClock


async def test_a_session_is_interrupted_with_its_last_agent_and_resumes_with_the_next(
    bus: Bus, clock: FakeClock
) -> None:
    async with bus.session("planning", id="s"):
        process = await stranger(bus)
        await resident(bus, "a", process, session="s")
        clock.stall(130)
        await bus.sweep(fail_stuck_after=120)
        assert (await held(bus, "s")).status == "active", "a suspect agent is live"
        sweep = await bus.sweep(fail_stuck_after=120)
        assert (await held(bus, "s")).status == "interrupted"
        assert sweep.counts["sessions_interrupted"] == 1
        assert "session_interrupted" in [finding.kind for finding in sweep.findings]
        again = await worker(bus, "a", session="s")
        assert (await held(bus, "s")).status == "active"
        await again.complete()


async def test_a_session_with_failed_agents_is_reported_degraded_until_that_changes(bus: Bus) -> None:
    async with bus.session("planning", id="s") as session, bus.monitor() as monitor:
        a, _ = await worker(bus, "a", session="s"), await worker(bus, "b", session="s")
        assert not (await held(bus, "s")).degraded
        await a.fail("crashed")
        sweep = await bus.sweep()
        (finding,) = [finding for finding in sweep.findings if finding.kind == "session_degraded"]
        assert (finding.subject, finding.severity) == ("session:s", "warning")
        assert finding.facts == {"failed": 1, "live": 1}
        assert (await session.record()).degraded
        assert [record.degraded for record in (await bus.sessions.list()).items] == [True]
        assert (await held(bus, "s")).status == "active", "shown, and no more"
        again = await worker(bus, "a", session="s")
        assert not (await held(bus, "s")).degraded
        await again.complete()
        assert monitor.sweeps >= 0


async def test_a_session_stays_active_while_an_agent_of_it_is_being_started(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("planning", id="s") as session:
        await session.expect("later", type="worker", within=30)
        await (await worker(bus, "a", session="s")).fail("crashed")
        await bus.sweep()
        assert (await held(bus, "s")).status == "active"
        clock.stall(30)
        await bus.sweep()
        assert (await held(bus, "s")).status == "interrupted"


async def test_a_session_without_running_agents_is_interrupted_by_the_sweep(bus: Bus, engine: Engine) -> None:
    """Its owner is gone, and its agent went to another session: no agent ended that would have caused a check of it."""
    async with engine.connect() as owner:
        block = owner.session("planning", id="s")
        await block.__aenter__()
        await worker(bus, "a", session="s")
    async with bus.session("planning", id="t"):
        await worker(bus, "a", session="t", takeover=True)
        assert (await held(bus, "s")).status == "active"
        sweep = await bus.sweep()
        assert (await held(bus, "s")).status == "interrupted"
        assert sweep.counts["sessions_interrupted"] == 1
        assert (await held(bus, "t")).status == "active"


async def test_a_paused_session_is_not_interrupted_by_the_sweep(bus: Bus) -> None:
    async with bus.session("planning", id="s") as session:
        await resident(bus, "a", await stranger(bus, pid=ABSENT_PID), session="s")
        await session.pause()
        await bus.sweep()
        assert await status(bus, "a") == ["failed"]
        assert (await held(bus, "s")).status == "paused"
