"""Participants: an interrupted meeting continues with the remaining ones."""

from __future__ import annotations

import asyncio

import pytest

from agentbus import Bus
from agentbus.errors import UnknownParticipant, WrongState
from tests.api.helpers import soon
from tests.conftest import Engine


async def test_a_meeting_lists_finished_and_remaining_participants(bus: Bus) -> None:
    async with bus.session("planning") as session:
        meeting = await session.participants(["c", "a", "b"])
        assert (meeting.name, meeting.session, meeting.members) == ("participants", session.id, ("c", "a", "b"))
        assert (meeting.finished, meeting.remaining, meeting.results) == ((), ("c", "a", "b"), {})
        assert await meeting.finish("a", {"agrees": True})
        assert (meeting.finished, meeting.remaining) == (("a",), ("c", "b"))
        assert await meeting.finish("c")
        assert meeting.results == {"c": None, "a": {"agrees": True}}
        assert "2 of 3" in repr(meeting)


async def test_a_continued_session_resumes_with_the_remaining_participants(bus: Bus, engine: Engine) -> None:
    with pytest.raises(KeyboardInterrupt):
        async with bus.session("planning", id="s") as session:
            meeting = await session.participants(["a", "b", "c"])
            await meeting.finish("b", [1, 2])
            raise KeyboardInterrupt
    async with engine.connect() as later, later.session("planning", id="s") as session:
        meeting = await session.participants(["a", "b", "c"])
        assert session.continued
        assert (meeting.remaining, meeting.results) == (("a", "c"), {"b": [1, 2]})
        for member in meeting.remaining:
            await meeting.finish(member)
        assert (meeting.remaining, meeting.finished) == ((), ("a", "b", "c"))


async def test_finishing_again_changes_nothing_and_reports_it(bus: Bus) -> None:
    async with bus.session("planning") as session:
        first, second = await session.participants(["a"]), await session.participants(["a"])
        assert await first.finish("a", 1) is True
        assert await second.finish("a", 2) is False
        assert await first.finish("a", 3) is False
        assert first.results == second.results == {"a": 1}


async def test_new_members_are_added_at_the_end_and_missing_ones_stay(bus: Bus) -> None:
    async with bus.session("planning") as session:
        first = await session.participants(["b", "a"])
        await first.finish("b", 1)
        again = await session.participants(["d", "b", "c"])
        assert (again.members, again.remaining, again.results) == (("b", "a", "d", "c"), ("a", "d", "c"), {"b": 1})
        assert first.members == ("b", "a"), "what others did shows after a refresh"
        await first.refresh()
        assert first.members == again.members
        assert (await session.participants([])).members == again.members


async def test_meetings_of_other_names_and_sessions_are_others(bus: Bus) -> None:
    async with bus.session("planning") as session, bus.session("planning") as other:
        meeting = await session.participants(["a"])
        await meeting.finish("a", 1)
        assert (await session.participants(["a"], name="retro")).remaining == ("a",)
        assert (await other.participants(["a"])).remaining == ("a",)
        # A name with a slash is one name.
        assert (await session.participants(["c"], name="a/b")).members == ("c",)
        assert (await session.participants(["b/c"], name="a")).members == ("b/c",)


async def test_an_unnamed_participant_cannot_finish(bus: Bus) -> None:
    async with bus.session("planning", id="s") as session:
        meeting = await session.participants(["a"])
        with pytest.raises(UnknownParticipant) as unknown:
            await meeting.finish("b", 1)
        assert (unknown.value.code, unknown.value.member, unknown.value.meeting) == (
            "unknown_participant", "b", "participants",
        )  # fmt: skip
        assert (meeting.members, (await session.participants([])).members) == (("a",), ("a",))


async def test_two_buses_that_finish_members_at_once_lose_none(bus: Bus, engine: Engine) -> None:
    names = [f"m{number}" for number in range(60)]
    async with bus.session("planning", id="s") as session, engine.connect() as elsewhere:
        here = await session.participants(names)
        there = await (await elsewhere.sessions.open("s")).participants(names)
        # The middle third is finished by both.
        firsts = await soon(
            asyncio.gather(
                *(here.finish(name, "here") for name in names[:40]),
                *(there.finish(name, "there") for name in names[20:]),
            )
        )
        assert sum(firsts) == 60
        await here.refresh()
        await there.refresh()
        assert here.remaining == there.remaining == ()
        assert here.results == there.results
        assert {here.results[name] for name in names[:20]} == {"here"}
        assert {here.results[name] for name in names[40:]} == {"there"}


async def test_concurrent_recordings_of_the_same_list_record_it_once(bus: Bus) -> None:
    async with bus.session("planning") as session:
        lists = [[f"m{(start + step) % 10}" for step in range(5)] for start in range(10)]
        await soon(asyncio.gather(*(session.participants(names) for names in lists)))
        members = (await session.participants([])).members
        assert sorted(members) == [f"m{number}" for number in range(10)]


async def test_the_meetings_of_an_ended_session_are_read_only(bus: Bus) -> None:
    async with bus.session("planning", id="s") as session:
        meeting = await session.participants(["a", "b"])
        await meeting.finish("a", 1)
    with pytest.raises(WrongState):
        await meeting.finish("b")
    with pytest.raises(WrongState):
        await session.participants(["a", "c"])
    assert await meeting.finish("a", 2) is False
    opened = await (await bus.sessions.open("s")).participants(["a", "b"])
    assert (opened.results, opened.remaining) == ({"a": 1}, ("b",))


async def test_ten_thousand_take_part(bus: Bus) -> None:
    async with bus.session("planning") as session:
        names = [f"m{number}" for number in range(10_000)]
        meeting = await session.participants(names)
        assert meeting.remaining == tuple(names)


async def test_an_older_answer_does_not_bring_a_finished_member_back(bus: Bus) -> None:
    async with bus.session("planning", id="p") as session:
        first, second = await session.participants(["a", "b"]), await session.participants(["a", "b"])
        _, done, _ = await asyncio.gather(second.refresh(), first.finish("a", 1), first.refresh())
        assert (done, first.remaining, first.results) == (True, ("b",), {"a": 1})
