"""Evidence that ``agentbus run`` reports of its command, with a supervisor of the test's own."""

from __future__ import annotations

import signal

import anyio

from agentbus import Bus, pool
from agentbus.cli.run.agent import Ended
from tests.cli.fake_commands import Pretender, going, looked, resident
from tests.support.clock import FakeClock


async def test_a_command_that_stands_still_is_not_vouched_for(bus: Bus) -> None:
    pretender = Pretender()
    run = resident(bus, pretender)
    async with going(run, pretender) as ended:
        # By hand, not by a key: then we go on, and say nothing in its favour.
        pretender.report(stopped=signal.SIGSTOP)
        await looked(lambda: run.agent._waiting == 0)
        pretender.report(continued=1)
        await looked(lambda: run.agent._waiting == 1)
        pretender.report(exited=3)
    (end,) = ended
    assert isinstance(end, Ended)
    assert (end.status, end.code, run.agent._waiting) == ("failed", 3, 0)
    record = await bus.agents.get("a")
    assert record is not None
    assert record.error == "exit code 3: bye"


async def visited(bus: Bus, since: int) -> None:
    """Wait until the run has visited the bus for its command since then. Visits come after real time."""
    with anyio.fail_after(60):
        while (record := await bus.agents.get("a")) is None or (record.last_call or 0) < since:  # noqa: ASYNC110
            await anyio.sleep(0.005)


async def test_what_the_command_holds_stays_its_own_while_it_runs(bus: Bus, clock: FakeClock) -> None:
    """However long it thinks between two calls."""
    pretender = Pretender()
    run = resident(bus, pretender, lease=0.1)
    async with bus.agent("other", type="worker", pools=["p"]) as other, going(run, pretender):
        await other.send(pool("p"), "note", 1)
        message = await run.agent.receive(timeout=0, lease=0.1)
        assert message is not None
        for _ in range(5):
            clock.advance(0.09)
            await visited(bus, clock.now().awake)
            assert await other.receive(timeout=0) is None
        pretender.report(stopped=signal.SIGSTOP)
        await looked(lambda: run.agent._waiting == 0)
        again = None
        with anyio.fail_after(60):
            while again is None:
                # A visit that began before may have extended the lease.
                clock.advance(0.2)
                again = await other.receive(timeout=0)
        await again.ack()
        pretender.report(exited=0)
