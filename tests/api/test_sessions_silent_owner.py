"""Open sessions without activity."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus import Bus, errors
from tests.api.helpers import known, running
from tests.api.interrupted_sessions import interrupted, member
from tests.api.other_processes import ELSEWHERE, resident, stranger
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock


async def stale(bus: Bus, minutes: float = 10) -> list[str]:
    return [session.id for session in await bus.sessions.stale(minutes)]


async def test_open_sessions_in_which_nothing_happens_are_stale(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    await interrupted(engine, "first")
    clock.advance(60)
    await interrupted(engine, "second", "b")
    async with bus.session("execution", id="mine"), bus.session("execution", id="paused") as paused:
        await paused.pause()
        async with bus.session("execution", id="over"):
            pass
        clock.advance(600)
        assert await stale(bus, 12) == []
        assert await stale(bus, 10.5) == ["first"]
        assert await stale(bus) == ["first", "mine", "paused", "second"]
        assert await stale(bus, 0) == ["first", "mine", "paused", "second"]


@each("sign", ["progress", "document", "state", "participant", "checkpoint", "all", "agent", "busy"])
async def test_any_activity_in_a_session_resets_its_silence(bus: Bus, clock: FakeClock, sign: str) -> None:
    async with bus.session("execution", id=sign) as session:
        a = await member(bus, f"a-{sign}", sign)
        meeting = await session.participants(["m"])
        clock.stall(1200)
        assert await stale(bus) == [sign]
        match sign:
            case "progress":
                await session.progress(5)
            case "document":
                await session.document("d").save(1)
            case "state":
                await session.state.set("k", 1)
            case "participant":
                await meeting.finish("m")
            case "checkpoint":
                await session.checkpoint("c", 1)
            case "all":
                await session.checkpoint_all("c")
            case "agent":
                await a.progress(5)
            case "busy":
                await a.busy(3600)
                clock.stall(1200)
        assert await stale(bus) == []


async def test_suspicion_of_an_agent_does_not_count_as_its_activity(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("execution", id="s"):
        await resident(bus, "a", await stranger(bus, host=ELSEWHERE), session="s")
        await member(bus, "b")
        clock.stall(1200)
        for statuses in (["suspect", "running"], ["failed", "running"]):
            await bus.sweep()
            assert [(await known(bus, agent)).status for agent in "ab"] == statuses
            assert await stale(bus) == ["s"]
            clock.stall(10)


async def test_an_agent_that_waits_for_a_message_is_no_silence(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("execution", id="s"):
        a = await member(bus, "a")
        async with running(a.receive()):
            await clock.pass_time(90)
            assert await stale(bus, 1) == []
        await clock.pass_time(90)
        assert await stale(bus, 1) == ["s"]


async def test_a_machine_that_sleeps_makes_no_silence(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("execution", id="s"):
        a = await member(bus, "a")
        await clock.pass_time(1)
        clock.sleep_machine(8 * 3600)
        assert await stale(bus) == []
        await a.send("a", "note", 1)
        await clock.pass_time(30)
        assert await stale(bus, 1) == []
        await clock.pass_time(70)
        assert await stale(bus, 1) == ["s"], "no activity while the machine was awake"


@pytest.mark.one_engine
@each("bad", [-1, "ten", None, True, float("nan")])
async def test_minutes_must_be_a_number(bus: Bus, bad: Any) -> None:
    with pytest.raises(errors.OutOfRange) as refused:
        await bus.sessions.stale(bad)
    assert (refused.value.what, refused.value.value) == ("minutes", bad)


async def test_pages_of_open_sessions_are_the_same_as_of_all(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    for number in range(7):
        clock.advance(0.001 * (number % 2))
        async with bus.session("a" if number % 2 else "b", id=f"over-{number}"):
            pass
        await interrupted(engine, f"s-{number}", operation="a" if number % 3 else "b", milestone="m")
    cursor, found = None, list[str]()
    while True:
        page = await bus.sessions.list(status="interrupted", limit=2, cursor=cursor)
        found += [session.id for session in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    every = (await bus.sessions.list()).items
    assert found == [session.id for session in every if session.status == "interrupted"]
    some = await bus.sessions.list(status=["interrupted", "active"], operation="b", milestone="m")
    assert [one.id for one in some.items] == ["s-6", "s-3", "s-0"]
