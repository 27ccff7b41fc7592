"""Composite checkpoints at intervals and before major steps."""

from __future__ import annotations

import pytest

from agentbus import Bus, Session
from tests.api.interrupted_sessions import member
from tests.api.snapshot_helpers import points
from tests.conftest import Engine
from tests.support.clock import FakeClock


async def test_composites_are_saved_at_every_interval_if_something_changed(
    bus: Bus, session: Session, clock: FakeClock
) -> None:
    a = await member(bus, "a")
    async with session.checkpoint_every(30, keep=3):
        await clock.pass_time(29)
        assert await points(bus) == []
        await clock.pass_time(1)
        assert await points(bus) == ["auto"]
        await a.send("a", "note", "what waits is not what it has come to")
        await clock.pass_time(30)
        assert len(await points(bus)) == 1, "nothing changed"
        await a.state.set("k", 1)
        await clock.pass_time(30)
        assert len(await points(bus)) == 2
        await session.document("d").save(1)
    assert len(await points(bus)) == 3, "once more at the end"


@pytest.mark.one_engine
async def test_after_an_exception_nothing_more_is_saved(bus: Bus, session: Session) -> None:
    with pytest.raises(ZeroDivisionError):
        async with session.checkpoint_every(30):
            raise ZeroDivisionError
    assert await points(bus) == []


@pytest.mark.one_engine
async def test_saving_ends_with_the_session(
    bus: Bus, session: Session, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with session.checkpoint_every(30):
        await session.complete()
        await clock.pass_time(90)
    assert [record.getMessage() for record in caplog.records if "stopped saving" in record.getMessage()] != []
    assert await points(bus) == []


@pytest.mark.one_engine
async def test_a_failure_to_save_is_logged_and_tried_again(
    engine: Engine, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        engine.connect(max_snapshot=2000) as bus,
        bus.session("execution", id="s") as session,
        session.checkpoint_every(30),
    ):
        await session.state.set("large", "x" * 3000)
        await clock.pass_time(30)
        assert "checkpoint 'auto' failed" in caplog.text
        await session.state.delete("large")
        await clock.pass_time(30)
        assert await points(bus) == ["auto"]


async def test_a_composite_is_saved_before_a_major_step(bus: Bus, session: Session) -> None:
    async with session.before("deploy") as point:
        assert (point.name, await points(bus)) == ("before-deploy", ["before-deploy"])
        await session.state.set("deployed", True)
    assert await session.state.get("deployed")
    with pytest.raises(ZeroDivisionError):
        async with session.before("deploy"):
            await session.state.set("deployed", "twice")
            raise ZeroDivisionError
    assert await session.state.get("deployed") == "twice", "it is only rolled back if asked for"


async def test_a_failed_major_step_is_rolled_back_on_request(bus: Bus, session: Session) -> None:
    with pytest.raises(ZeroDivisionError):
        async with session.before("deploy", rollback=True):
            await session.state.set("deployed", True)
            raise ZeroDivisionError
    assert await session.state.get("deployed") is None
    with pytest.raises(KeyError):
        async with session.before("deploy", rollback=True):
            await session.complete()
            raise KeyError  # the exception of the block matters more than a rollback that cannot be done
