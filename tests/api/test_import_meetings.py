"""A meeting imported from ``current_session.json`` continues with the remaining participants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentbus import Bus
from agentbus.errors import InvalidInput, UnknownParticipant, WrongState
from tests.api.helpers import held, known
from tests.api.legacy_files import agent, session, write

ID = "session-20240115"
REMAINING = ["risk-assessor", "planner-1", "writer"]


def interrupted(folder: Path, **fields: Any) -> None:
    """A session of last year: two of five have finished, one of them is still listed as active."""
    meeting = {**session()["current_meeting"], **fields.pop("meeting", {})}
    active = ["planner-1", "risk-assessor", "scope-analyzer", "writer"]
    write(folder / "current_session.json", session(current_meeting=meeting, active_agents=active, **fields))


@pytest.mark.one_engine
async def test_all_active_agents_take_part(bus: Bus, tmp_path: Path) -> None:
    interrupted(tmp_path)
    assert (await bus.import_path(tmp_path)).imported["participant"] == 5
    opened = await bus.sessions.open(ID)
    (meeting,) = await opened.meetings()
    assert meeting.name == "planning"
    assert [member.name for member in meeting.members] == ["scope-analyzer", "estimation-agent", *REMAINING]
    assert meeting.remaining == REMAINING
    assert (await bus.import_path(tmp_path)).imported == {}


async def test_a_resumption_expects_exactly_the_remaining_members_and_names_them(bus: Bus, tmp_path: Path) -> None:
    interrupted(tmp_path)
    write(tmp_path / "scope.json", agent("scope-analyzer", status="running"))
    report = await bus.import_path(tmp_path)
    (changed,) = [problem.reason for problem in report.problems if problem.taken]
    assert ("scope-analyzer" in changed, "'running'" in changed) == (True, True)
    assert (await known(bus, "scope-analyzer")).status == "completed"
    plan = await bus.recovery.plan(ID)
    assert plan.record.remaining == {"planning": REMAINING}
    (resume,) = (option for option in plan.options if option.action == "resume")
    assert "planning continues with risk-assessor, planner-1, writer" in resume.does
    done = await plan.resume()
    assert done.agents == sorted(REMAINING)
    assert done.remaining == {"planning": REMAINING}


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("meeting", "name", "remaining"),
    [
        ({"team": None}, "meeting", REMAINING),
        ({"team": ["writer", "editor"]}, "meeting", ["risk-assessor", "writer", "editor", "planner-1"]),
        ({"current_agent": None}, "planning", ["planner-1", "risk-assessor", "writer"]),
        ({"current_agent": {"agent_id": "lead"}}, "planning", ["lead", "planner-1", "risk-assessor", "writer"]),
        ({"agents_completed": []}, "planning", ["risk-assessor", "planner-1", "scope-analyzer", "writer"]),
    ],
)
async def test_the_participants_and_the_name_of_a_meeting_are_imported(
    bus: Bus, tmp_path: Path, meeting: dict[str, Any], name: str, remaining: list[str]
) -> None:
    interrupted(tmp_path, meeting=meeting)
    await bus.import_path(tmp_path)
    assert (await (await bus.recovery.plan(ID)).resume()).remaining == {name: remaining}
    agents = [await known(bus, member) for member in remaining]
    assert {(record.status, record.session) for record in agents} == {("spawning", ID)}


@pytest.mark.one_engine
async def test_active_agents_with_a_status_of_their_own(bus: Bus, tmp_path: Path) -> None:
    active = {"a": {"status": "done"}, "b": {"status": "running"}}
    write(tmp_path / "current_session.json", session(active_agents=active))
    await bus.import_path(tmp_path)
    plan = await bus.recovery.plan(ID)
    assert plan.record.remaining == {"planning": ["risk-assessor", "b"]}
    assert (await plan.resume()).agents == ["b", "risk-assessor"]


NAMES = {"active_agents": ["a", "b", "c"], "agents_completed": ["a"], "current_agent": "b", "team": "planning"}
RECORDS = {
    "active_agents": [{"id": "a", "type": "planner"}, {"id": "b", "type": "planner"}, {"agent_id": "c"}],
    "agents_completed": [{"id": "a"}],
    "current_agent": {"id": "b"},
    "team": "planning",
}


@pytest.mark.one_engine
@pytest.mark.parametrize("named", [NAMES, RECORDS], ids=["names", "records"])
@pytest.mark.parametrize("place", ["meeting", "session", "both", "session without an id"])
async def test_the_meeting_and_the_session_are_read_alike(
    bus: Bus, tmp_path: Path, named: dict[str, Any], place: str
) -> None:
    document: dict[str, Any] = {"session_id": ID, "status": "active", "last_update": "2024-01-15T12:00:00Z"}
    if place == "meeting":
        document["current_meeting"] = named
    elif place == "both":
        active = {key: value for key, value in named.items() if key in {"active_agents", "current_agent"}}
        document |= {"current_meeting": {key: named[key] for key in named.keys() - active}, **active}
    else:
        document |= named
    if place == "session without an id":
        del document["session_id"]
    write(tmp_path / "current_session.json", document)
    report = await bus.import_path(tmp_path)
    assert (report.imported["participant"], report.imported["agent"], report.problems) == (3, 3, [])
    (cut,) = await bus.sessions.cut_off()
    id = cut.session
    agents = [await known(bus, name) for name in "abc"]
    assert [(agent.status, agent.error, agent.session) for agent in agents] == [
        ("completed", None, id), ("failed", "imported", id), ("failed", "imported", id),
    ]  # fmt: skip
    (meeting,) = await (await bus.sessions.open(id)).meetings()
    assert (meeting.name, [member.name for member in meeting.members]) == ("planning", ["a", "b", "c"])
    done = await (await bus.recovery.plan(id)).resume()
    assert (done.agents, done.remaining) == (["b", "c"], {"planning": ["b", "c"]})
    assert (await bus.import_path(tmp_path)).imported == {}


@pytest.mark.one_engine
async def test_the_order_is_completed_current_team_active_from_either_file(bus: Bus, tmp_path: Path) -> None:
    inner = {"active_agents": ["g"], "team": ["e"], "current_agent": "c", "agents_completed": ["a"]}
    outer = {"active_agents": ["h", "a"], "team": ["f"], "current_agent": "d", "agents_completed": {"b": {"n": 1}}}
    write(tmp_path / "current_session.json", {"session_id": ID, "current_meeting": inner, "status": "active", **outer})
    await bus.import_path(tmp_path)
    (meeting,) = await (await bus.sessions.open(ID)).meetings()
    assert [member.name for member in meeting.members] == list("abcdefgh")
    assert meeting.remaining == list("cdefgh")
    assert (await known(bus, "b")).status == "completed"


@pytest.mark.one_engine
async def test_a_file_without_a_status_does_not_hide_a_member(bus: Bus, tmp_path: Path) -> None:
    """Neither a file of its own nor a list of agents: its session says that it was at work."""
    write(tmp_path / "current_session.json", session())
    write(tmp_path / "risk.json", {"agent_id": "risk-assessor", "agent_type": "assessor"})
    write(tmp_path / "agent_state.json", ["planner-1", "other"])
    await bus.import_path(tmp_path)
    assert (await known(bus, "risk-assessor")).type == "assessor"
    assert (await known(bus, "other")).status == "pending"
    assert (await (await bus.recovery.plan(ID)).resume()).agents == ["planner-1", "risk-assessor"]


@pytest.mark.one_engine
async def test_a_member_without_a_name_is_reported(bus: Bus, tmp_path: Path) -> None:
    write(tmp_path / "current_session.json", session(active_agents=["a", {"type": "planner"}], current_meeting=None))
    report = await bus.import_path(tmp_path)
    assert [problem.reason for problem in report.problems] == ["invalid participant {'type': 'planner'}"]
    assert (await (await bus.recovery.plan(ID)).resume()).remaining == {"meeting": ["a"]}


@pytest.mark.one_engine
async def test_a_session_of_last_year_is_inactive_since_then(bus: Bus, tmp_path: Path) -> None:
    """Also if all files were written just now, by a copy or a clone."""
    interrupted(tmp_path, start_time="2020-01-15T10:00:00Z", last_update="2020-01-15T12:00:00Z")
    write(tmp_path / "last_planning_output.json", {"phases": 3})
    write(tmp_path / "writer.json", {"agent_id": "writer", "agent_type": "writer", "status": "running"})
    await bus.import_path(tmp_path)
    (cut,) = await bus.sessions.cut_off()
    record = await held(bus, ID)
    assert cut.inactive == bus._engine.clock.now().wall - record.updated
    assert cut.inactive > 365 * 86_400_000


async def test_a_member_finishes_without_the_meeting_being_named(bus: Bus) -> None:
    async with bus.session("planning", id="s") as opened:
        first = await opened.participants(["a", "b"], name="first")
        done = await opened.finish_member("a", {"agrees": True})
        assert (done.meeting, done.changed, done.remaining) == ("first", True, ["b"])
        again = await opened.finish_member("a", 7)
        assert (again.changed, again.remaining) == (False, ["b"])
        await first.refresh()
        assert first.results == {"a": {"agrees": True}}
        await opened.participants(["a", "b"], name="second")
        assert (await opened.finish_member("a")).meeting == "second", "the only one that it has not finished"
        with pytest.raises(InvalidInput, match="first, second"):
            await opened.finish_member("b")
        assert (await opened.finish_member("b", meeting="second")).remaining == []
        with pytest.raises(UnknownParticipant):
            await opened.finish_member("nobody")
        with pytest.raises(UnknownParticipant):
            await opened.finish_member("a", meeting="third")
        meetings = {meeting.name: meeting for meeting in await opened.meetings()}
        assert {name: meeting.remaining for name, meeting in meetings.items()} == {"first": ["b"], "second": []}
        assert [member.result for member in meetings["first"].members] == [{"agrees": True}, None]
    with pytest.raises(WrongState):
        await opened.finish_member("b")


async def test_a_resumed_session_names_the_remaining_participants_of_its_meetings(bus: Bus) -> None:
    with pytest.raises(KeyboardInterrupt):
        async with bus.session("planning", id="s") as opened:
            meeting = await opened.participants(["a", "b"])
            await meeting.finish("a")
            raise KeyboardInterrupt
    plan = await bus.recovery.plan("s")
    assert plan.record.remaining == {"participants": ["b"]}
    assert (await plan.resume()).remaining == {"participants": ["b"]}
