"""Refused composite checkpoints and rollbacks, and rollbacks with concurrent writers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agentbus import Bus, Session, errors
from agentbus.errors import ForeignCheckpoint, SnapshotTooLarge, UnknownCheckpoint, WrongState
from agentbus.records import Rollback
from tests.api.helpers import worker
from tests.api.interrupted_sessions import cut_off, member, trail
from tests.api.snapshot_helpers import everything, points
from tests.conftest import Engine
from tests.support.cases import each


async def test_a_rollback_to_a_checkpoint_of_another_owner_is_refused(bus: Bus, session: Session) -> None:
    a = await member(bus, "a")
    async with bus.session("execution", id="other") as other:
        foreign = await other.checkpoint_all("p")
        plain = await other.checkpoint("p", 1)
        of_agent = await a.checkpoint("p", 1)
        own = await session.checkpoint("p", 1)
        await session.document("d").save(1)
        before = await everything(bus, session, "a"), await trail(bus), await points(bus)
        for id in (foreign.id, plain.id, of_agent.id):
            with pytest.raises(ForeignCheckpoint, match="not to session 's'"):
                await session.rollback(id)
        with pytest.raises(WrongState, match="checkpoint_all"):
            await session.rollback(own.id)
        with pytest.raises(UnknownCheckpoint):
            await session.rollback(999)
        for bad in (0, -1, "1", None, True):
            with pytest.raises(errors.OutOfRange):
                await session.rollback(bad)  # type: ignore[arg-type]
        assert (await everything(bus, session, "a"), await trail(bus), await points(bus)) == before


async def test_a_plan_refuses_another_sessions_checkpoint_and_can_still_be_used(bus: Bus, engine: Engine) -> None:
    async with cut_off(engine, "other") as (_, other):
        foreign = await other.checkpoint_all("p")
    async with cut_off(engine) as (_, session):
        point = await session.checkpoint_all("p")
    plan = await bus.recovery.plan("s")
    with pytest.raises(ForeignCheckpoint):
        await plan.rollback(foreign.id)
    assert (await plan.rollback(point.id)).changed


async def test_an_agent_whose_id_is_that_of_the_session_does_not_share_its_checkpoints(
    bus: Bus, session: Session
) -> None:
    namesake = await worker(bus, "s")
    checkpoint = await namesake.checkpoint("p", 1)
    with pytest.raises(ForeignCheckpoint):
        await session.rollback(checkpoint.id)


async def test_an_ended_or_unknown_session_has_no_composites(bus: Bus, session: Session) -> None:
    point = await session.checkpoint_all("p")
    await session.complete()
    with pytest.raises(WrongState):
        await session.checkpoint_all("p")
    with pytest.raises(WrongState):
        await session.rollback(point.id)
    assert await points(bus) == ["p"]


async def test_a_composite_that_is_too_large_is_refused_as_a_whole(engine: Engine) -> None:
    async with engine.connect(max_snapshot=5000) as bus, bus.session("execution", id="s") as session:
        await session.document("d").save("x" * 1000)
        point = await session.checkpoint_all("small")
        await session.state.set("large", "x" * 6000)
        with pytest.raises(SnapshotTooLarge):
            await session.checkpoint_all("large")
        with pytest.raises(SnapshotTooLarge):
            # What is there could not be saved, and would be lost.
            await session.rollback(point.id)
        assert await session.state.get("large") is not None
        assert await points(bus) == ["small"]


@pytest.mark.one_engine
@each(
    "call",
    [
        lambda session: session.checkpoint_all("no name"),
        lambda session: session.checkpoint_all("n", notes=1),
        lambda session: session.checkpoint_all("n", keep=0),
        lambda session: session.before("no name").__aenter__(),
    ],
)
async def test_bad_arguments_are_refused(bus: Bus, session: Session, call: Any) -> None:
    with pytest.raises(errors.InvalidInput):
        await call(session)
    with pytest.raises(errors.InvalidInput):
        session.checkpoint_every(0)
    with pytest.raises(errors.InvalidInput):
        session.checkpoint_every(1, keep=0)
    assert await points(bus) == []


async def test_rollbacks_and_writers_at_once_leave_one_moment_or_the_other(bus: Bus, session: Session) -> None:
    a = await member(bus, "a")

    async def both(number: int) -> None:
        async with a.unit() as unit:
            unit.state.set("n", number)
            unit.document("n", number)

    await both(0)
    point = await session.checkpoint_all("p")

    async def write() -> None:
        for number in range(1, 30):
            await both(number)

    async def back() -> list[Rollback]:
        return [await session.rollback(point.id) for _ in range(10)]

    rollbacks, _ = await asyncio.gather(back(), write())
    assert await a.state.get("n") == await session.document("n").latest()
    for done in rollbacks:
        saved = await bus.checkpoints.get(done.saved)
        assert saved is not None
        assert saved.snapshot["state"][0]["value"] == saved.snapshot["documents"][0]["value"]
        assert bool(done.documents) == bool(done.state)
