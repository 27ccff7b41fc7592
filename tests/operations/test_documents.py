"""Documents and meetings without a database: fencing, versions, errors."""

from __future__ import annotations

from typing import Any

from agentbus.errors import AgentFenced, SessionEnded, UnknownParticipant, UnknownSession
from agentbus.operations.agents import ProgressRequest, progress
from agentbus.operations.documents import (
    EnrolRequest,
    FinishRequest,
    Member,
    Saved,
    SaveRequest,
    enrol,
    finish_member,
    save_document,
)
from agentbus.operations.protocol import Actor, Part, UnitRequest, unit
from tests.operations.script import ALIVE, NOW, A, Answer, B, play

ACTIVE: Answer = ("session_status", [("active",)])
ENDED: Answer = ("session_status", [("failed",)])
SUM = "0" * 64


def saves(name: str = "x", actor: Actor | None = None, keep: int = 10, session: str = "s") -> SaveRequest:
    return SaveRequest(session, name, "1", SUM, None if actor is None else actor.agent, keep, actor)


def stored(id: int, version: int) -> Answer:
    return "document_insert", [(id, version)]


def test_a_document_gets_the_next_version() -> None:
    played = play(save_document.run([saves(), saves("y")], NOW), ACTIVE, stored(5, 1), ACTIVE, stored(6, 10))
    assert played.outcomes == [Saved(5, 1, NOW.wall), Saved(6, 10, NOW.wall)]
    assert played.written("document_insert")[0] == ("s", "x", SUM, None, NOW.wall, "1")
    assert played.written("document_trim") == [], "ten are kept"


def test_what_is_too_many_is_removed_up_to_the_oldest_that_is_kept() -> None:
    played = play(save_document.run([saves(), saves(keep=1)], NOW), ACTIVE, stored(5, 11), ACTIVE, stored(6, 12))
    assert played.written("document_trim") == [("s", "x", 1), ("s", "x", 11)]


def test_nothing_is_saved_in_a_session_that_has_ended_or_is_not_there() -> None:
    played = play(
        save_document.run([saves(session="done"), saves(session="none"), saves()], NOW),
        ENDED, ("session_status", []), ACTIVE, stored(5, 1),
    )  # fmt: skip
    assert [type(outcome) for outcome in played.outcomes] == [SessionEnded, UnknownSession, Saved]
    assert len(played.written("document_insert")) == 1


def test_an_agent_that_saves_is_fenced_and_its_neighbours_are_not() -> None:
    requests = [saves(actor=Actor("a", 7)), saves(actor=B), saves()]
    played = play(save_document.run(requests, NOW), ALIVE, ACTIVE, stored(5, 1), ACTIVE, stored(6, 2))
    assert [type(outcome) for outcome in played.outcomes] == [AgentFenced, Saved, Saved]
    assert [values[3] for values in played.written("document_insert")] == ["b", None]


def test_a_caller_that_is_not_an_agent_is_not_looked_up() -> None:
    played = play(save_document.run([saves()], NOW), ACTIVE, stored(5, 1))
    assert [name for name, _ in played.asked] == ["session_status"]


def test_a_document_weighs_what_it_holds_and_a_unit_with_one_is_durable() -> None:
    part = Part(save_document, SaveRequest("s", "x", "x" * 500, SUM, "a", 10, A))
    request = UnitRequest((Part(progress, ProgressRequest(A, 5)), part))
    assert (request.data_size, request.durable) == (500, True)


def test_documents_of_units_that_wait_together_are_each_answered() -> None:
    requests = [
        UnitRequest((Part(save_document, saves(name, actor)),)) for name, actor in (("x", A), ("y", B), ("x", B))
    ]
    played = play(
        unit.run(requests, NOW), ALIVE, *(answer for number in (1, 2, 3) for answer in (ACTIVE, stored(number, number)))
    )
    assert played.outcomes == [[Saved(number, number, NOW.wall)] for number in (1, 2, 3)]


def enrols(*members: str) -> EnrolRequest:
    return EnrolRequest("s", "meeting", members)


def listed(*rows: tuple[str, int | None, str | None, int | None]) -> Answer:
    return "participant_list", rows


def test_the_first_list_is_recorded_in_its_order() -> None:
    played = play(enrol.run([enrols("b", "a")], NOW), listed(), ACTIVE)
    assert played.written("participant_insert") == [
        ("s", "meeting", "b", 0, NOW.wall), ("s", "meeting", "a", 1, NOW.wall),
    ]  # fmt: skip
    assert played.outcomes == [[Member("b", None, None, None), Member("a", None, None, None)]]


def test_only_new_members_are_appended() -> None:
    played = play(enrol.run([enrols("c", "a")], NOW), listed(("a", 5, "1", 7), ("b", None, None, None)), ACTIVE)
    assert played.written("participant_insert") == [("s", "meeting", "c", 2, NOW.wall)]
    assert played.outcomes == [
        [Member("a", 5, "1", 7), Member("b", None, None, None), Member("c", None, None, None)]
    ]  # fmt: skip


def test_looking_needs_no_open_session_but_adding_does() -> None:
    played = play(enrol.run([enrols("a"), enrols("b")], NOW), listed(("a", 5, "1", 7)), listed(), ENDED)
    assert played.outcomes[0] == [Member("a", 5, "1", 7)]
    assert isinstance(played.outcomes[1], SessionEnded)
    assert played.written("participant_insert") == []


def finishes(member: str = "a") -> FinishRequest:
    return FinishRequest("s", "meeting", member, ("[2]", 9))


def got(*row: Any) -> Answer:
    return "participant_get", [row] if row else []


def test_of_two_finishes_of_a_member_the_first_counts() -> None:
    played = play(
        finish_member.run([finishes(), finishes(), finishes("b"), finishes("c")], NOW),
        got("a", None, None, None), ACTIVE, got("a", 5, "1", 7), got(), got("c", None, None, None), ENDED,
    )  # fmt: skip
    assert played.outcomes[0] == (True, Member("a", NOW.wall, "[2]", 9), "meeting")
    assert played.outcomes[1] == (False, Member("a", 5, "1", 7), "meeting")
    assert [type(outcome) for outcome in played.outcomes[2:]] == [UnknownParticipant, SessionEnded]
    assert played.written("participant_finish") == [(NOW.wall, "[2]", 9, "s", "meeting", "a")]
    assert finishes().data_size == 3
