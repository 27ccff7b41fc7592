"""Continued sessions: under the same id, once their owner is dead."""

from __future__ import annotations

import pytest

from agentbus import Bus
from agentbus.errors import SessionDiffers, SessionExists, SessionLost, WrongState
from tests.api.helpers import held
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def test_an_interrupted_session_is_continued_under_its_id(bus: Bus, engine: Engine) -> None:
    with pytest.raises(KeyboardInterrupt):
        async with bus.session("planning", milestone="m", id="s", expects={"a": "x"}, metadata={"n": 1}) as session:
            await session.progress(40)
            raise KeyboardInterrupt
    async with engine.connect() as elsewhere, elsewhere.session("planning", id="s", expects={"b": "y"}) as session:
        assert session.continued
        assert (session.operation, session.milestone) == ("planning", "m")
        record = await session.record()
        assert (record.status, record.progress, record.error) == ("active", 40, None)
        assert record.process == elsewhere._engine.process
        assert (record.expected, record.metadata) == ({"a": "x", "b": "y"}, {"n": 1})
    assert (await held(bus, "s")).status == "completed"


async def test_a_session_whose_owner_disappeared_can_be_continued(bus: Bus, engine: Engine) -> None:
    async with engine.connect() as owner:
        # Never left: the owner disappears.
        blocks = {status: owner.session("planning", id=status) for status in ("active", "paused", "interrupted")}
        for status, block in blocks.items():
            session = await block.__aenter__()
            if status == "paused":
                await session.pause()
    await (await bus.sessions.open("active")).continue_()
    for status in ("active", "paused", "interrupted"):
        assert (await held(bus, status)).status == status
        async with bus.session("planning", id=status) as session:
            assert session.continued
            assert (await session.record()).status == "active"
        assert (await held(bus, status)).status == "completed"


@each("status", ["active", "paused", "interrupted"])
async def test_a_session_whose_owner_is_alive_is_refused_and_the_error_names_its_process(
    bus: Bus, engine: Engine, status: str
) -> None:
    async with engine.connect() as elsewhere, elsewhere.session("planning", id=status) as session:
        if status == "paused":
            await session.pause()
        elif status == "interrupted":
            with pytest.raises(ZeroDivisionError):
                async with session.agent("a", type="worker"):
                    raise ZeroDivisionError
        for other in (bus, elsewhere):
            with pytest.raises(SessionExists) as exists:
                async with other.session("planning", id=status):
                    pytest.fail("this block must not run")
            assert (exists.value.code, exists.value.session, exists.value.status) == ("session_exists", status, status)
            assert isinstance(exists.value.pid, int)
            assert f"bus.sessions.open('{status}')" in (exists.value.fix or "")
        assert (await held(bus, status)).process == elsewhere._engine.process
    assert (await held(bus, status)).status == "completed"


@each("end", ["complete", "fail"])
async def test_an_ended_session_is_not_continued(bus: Bus, end: str) -> None:
    async with bus.session("planning", id=end) as session:
        await (session.complete() if end == "complete" else session.fail("no budget"))
    before = await held(bus, end)
    with pytest.raises(WrongState) as wrong:
        async with bus.session("planning", id=end, metadata={"new": 1}):
            pytest.fail("this block must not run")
    assert (wrong.value.what, wrong.value.name, wrong.value.status) == ("session", end, before.status)
    assert await held(bus, end) == before


async def test_another_operation_or_milestone_under_the_same_id_is_refused(bus: Bus) -> None:
    with pytest.raises(KeyboardInterrupt):
        async with bus.session("planning", milestone="m", id="s"):
            raise KeyboardInterrupt
    before = await held(bus, "s")
    for operation, milestone, differs in (("building", "m", "operation"), ("planning", "n", "milestone")):
        with pytest.raises(SessionDiffers) as refused:
            async with bus.session(operation, milestone=milestone, id="s"):
                pytest.fail("this block must not run")
        assert (refused.value.code, refused.value.differs) == ("session_differs", differs)
    assert await held(bus, "s") == before


async def test_a_session_continued_by_another_process_is_lost_to_its_old_owner(bus: Bus, engine: Engine) -> None:
    # A reboot that the first bus slept through: its process counts as dead, and another continues it.
    after = engine.connect(clock=FakeClock(boot="boot-2", awake=500))
    with pytest.raises(SessionLost) as lost:
        async with bus.session("planning", id="s") as session:
            await after.__aenter__()
            block = after.session("planning", id="s")
            assert (await block.__aenter__()).continued
            for act in (session.pause, session.complete):
                with pytest.raises(SessionLost):
                    await act()
    assert (lost.value.code, lost.value.session) == ("session_lost", "s")
    assert (await held(bus, "s")).status == "active"
    await block.__aexit__(None, None, None)
    assert (await held(bus, "s")).status == "completed"
    await after.__aexit__(None, None, None)


async def test_an_exception_in_the_block_of_a_lost_session_is_what_propagates(bus: Bus, engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError):
        async with bus.session("planning", id="s"):
            async with engine.connect(clock=FakeClock(boot="boot-2", awake=500)) as after:
                with pytest.raises(KeyboardInterrupt):
                    async with after.session("planning", id="s"):
                        raise KeyboardInterrupt
            raise ZeroDivisionError
    assert (await held(bus, "s")).status == "interrupted"
