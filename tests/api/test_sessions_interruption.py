"""Interruption of a session: it is active, no agent is running in it, and an agent failed or its owner died."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agentbus import Agent, Bus, Session
from tests.api.helpers import held, known, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def status(bus: Bus, session: str = "s") -> str:
    return (await held(bus, session)).status


async def member(bus: Bus, id: str) -> Agent:
    return await worker(bus, id, session="s")


@asynccontextmanager
async def abandoned(engine: Engine) -> AsyncIterator[Bus]:
    """A bus that owns the session and is closed, at the end of this block, without having left the session's."""
    async with engine.connect() as owner:
        block = owner.session("planning", id="s")
        await block.__aenter__()
        yield owner


async def test_a_session_whose_only_agent_failed_is_interrupted_with_its_error(bus: Bus, session: Session) -> None:
    a = await member(bus, "a")
    await a.fail("no tests")
    record = await session.record()
    assert (record.status, record.error, record.ended) == ("interrupted", "a failed: no tests", None)
    assert record.process == bus._engine.process


@each("end", ["complete", "stop"])
async def test_a_session_whose_agents_completed_or_stopped_stays_active(bus: Bus, session: Session, end: str) -> None:
    await getattr(await member(bus, "a"), end)()
    assert await status(bus) == "active"


async def test_a_session_is_only_degraded_while_one_of_its_agents_is_live(bus: Bus, session: Session) -> None:
    a, b = await member(bus, "a"), await member(bus, "b")
    await a.fail("crashed")
    assert await status(bus) == "active"
    assert await session.counts() == {"failed": 1, "running": 1}
    await b.complete()
    assert await status(bus) == "interrupted", "none is live, and one failed"
    assert (await session.record()).error == "a failed: crashed", "b did not"


async def test_an_expected_agent_is_not_live(bus: Bus, session: Session) -> None:
    await session.expect("later", type="worker")
    await (await member(bus, "a")).fail("crashed")
    assert await status(bus) == "interrupted"


async def test_an_agent_that_failed_and_came_back_does_not_count_as_failed(bus: Bus, session: Session) -> None:
    b = await member(bus, "b")
    await (await member(bus, "a")).fail("crashed")
    await (await member(bus, "a")).complete()
    await b.complete()
    assert await status(bus) == "active"


async def test_a_paused_session_is_not_interrupted(bus: Bus, session: Session, engine: Engine) -> None:
    a = await member(bus, "a")
    await session.pause()
    await a.fail("crashed")
    assert await status(bus) == "paused"
    await session.continue_()
    assert await status(bus) == "active", "the caller that continued it knew"


async def test_the_sessions_of_other_owners_are_not_interrupted(bus: Bus, session: Session) -> None:
    async with bus.session("planning", id="other"):
        await member(bus, "a")
        await (await worker(bus, "b", session="other")).fail("crashed")
        await (await worker(bus, "c")).fail("crashed")
        assert await status(bus) == "active"
        assert await status(bus, "other") == "interrupted"


async def test_an_ended_session_stays_as_it_ended(bus: Bus, session: Session) -> None:
    a = await member(bus, "a")
    await session.complete()
    await a.fail("late")
    assert await status(bus) == "completed"


async def test_an_interrupted_session_resumes_when_an_agent_returns_to_it(bus: Bus, session: Session) -> None:
    await (await member(bus, "a")).fail("crashed")
    again = await bus.register("a", type="worker")
    assert again.session == "s", "an agent comes back to its session"
    record = await session.record()
    assert (record.status, record.error) == ("active", None)
    await again.complete()
    assert await status(bus) == "active"


async def test_an_agent_that_is_only_expected_does_not_resume_the_session(bus: Bus, session: Session) -> None:
    await (await member(bus, "a")).fail("crashed")
    await session.expect("b", type="worker")
    assert await status(bus) == "interrupted"


async def test_an_unrecovered_failure_interrupts_again_when_the_other_agents_have_ended(
    bus: Bus, session: Session
) -> None:
    a, b = await member(bus, "a"), await member(bus, "b")
    await a.fail("crashed")
    await b.fail("crashed")
    await (await member(bus, "a")).complete()
    assert await status(bus) == "interrupted", "b is still failed"


@pytest.mark.parametrize("how", ["continue", "block"])
async def test_failures_from_before_it_was_continued_do_not_count(bus: Bus, engine: Engine, how: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with bus.session("planning", id="s") as session:
            await (await member(bus, "a")).fail("crashed")
            assert await status(bus) == "interrupted"
            if how == "continue":
                await session.continue_()
                await (await member(bus, "b")).complete()
                assert await status(bus) == "active"
                await (await member(bus, "b")).fail("crashed too")
                assert await status(bus) == "interrupted"
            raise ZeroDivisionError
    with pytest.raises(KeyboardInterrupt):
        async with bus.session("planning", id="t"):
            await (await worker(bus, "a", session="t")).fail("crashed")
            raise KeyboardInterrupt
    async with bus.session("planning", id="t"):
        await (await worker(bus, "b", session="t")).complete()
        assert await status(bus, "t") == "active"


async def test_closing_a_bus_interrupts_the_sessions_it_owns(bus: Bus, engine: Engine) -> None:
    async with abandoned(engine):
        assert await status(bus) == "active"
    record = await held(bus, "s")
    assert (record.status, record.error) == ("interrupted", "the bus was closed")


async def test_closing_a_bus_leaves_paused_and_ended_sessions_alone(bus: Bus, engine: Engine) -> None:
    async with abandoned(engine) as owner:
        await (await owner.sessions.open("s")).pause()
        async with owner.session("planning", id="done"):
            pass
    assert (await status(bus), await status(bus, "done")) == ("paused", "completed")


@each("end", ["complete", "fail", "stop"])
async def test_a_session_without_an_owner_stays_active_while_an_agent_is_running_in_it(
    bus: Bus, engine: Engine, end: str
) -> None:
    async with abandoned(engine):
        a = await member(bus, "a")
    assert await status(bus) == "active", "a is at work in it"
    await (a.fail("crashed") if end == "fail" else getattr(a, end)())
    record = await held(bus, "s")
    assert record.status == "interrupted", "no process is left that could end it"
    assert record.error == (
        "a failed: crashed; its own process is gone too"
        if end == "fail"
        else "its own process is gone, and none of its agents is live any more"
    )


async def test_an_agent_back_in_an_abandoned_session_keeps_it_active_until_the_agent_ends(
    bus: Bus, engine: Engine
) -> None:
    async with abandoned(engine):
        pass
    a = await member(bus, "a")
    assert await status(bus) == "active"
    await a.stop()
    assert await status(bus) == "interrupted"


async def test_an_abandoned_session_that_is_continued_has_no_owner(bus: Bus, engine: Engine) -> None:
    async with abandoned(engine):
        pass
    session = await bus.sessions.open("s")
    await session.continue_()
    assert (await session.record()).process is None
    await (await member(bus, "a")).complete()
    assert await status(bus) == "active"


async def test_an_agent_whose_bus_is_closed_does_not_interrupt_the_session_of_another(
    bus: Bus, session: Session, engine: Engine
) -> None:
    async with engine.connect() as elsewhere:
        await member(elsewhere, "a")
    assert (await known(bus, "a")).status == "stopped"
    assert await status(bus) == "active"


async def test_a_reboot_interrupts_every_active_session_and_nothing_else(bus: Bus, engine: Engine) -> None:
    with pytest.raises(KeyboardInterrupt):
        async with bus.session("planning", id="s") as session, bus.session("planning", id="p") as paused:
            await member(bus, "a")
            await paused.pause()
            async with engine.connect(clock=FakeClock(boot="boot-2", awake=500)) as after:
                record = await held(after, "s")
                assert (record.status, record.error) == ("interrupted", "the machine was restarted")
                assert await status(after, "p") == "paused"
                async with after.session("planning", id="s") as again:
                    assert again.continued
            assert session.id == "s"
            raise KeyboardInterrupt
