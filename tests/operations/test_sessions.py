"""Sessions without a database: start, continuation, changes of status and end, and the events."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.core.codec import decode
from agentbus.errors import SessionDiffers, SessionEnded, SessionExists, SessionLost, UnknownSession, WrongState
from agentbus.operations.agent_status import interrupt, resume
from agentbus.operations.agents import EndRequest, RegisterRequest, finish, register
from agentbus.operations.processes import LeaveRequest, leave
from agentbus.operations.protocol import Row
from agentbus.operations.rows import Profile
from agentbus.operations.sessions import (
    ChangeRequest,
    SessionFilter,
    SessionProgressRequest,
    StartedSession,
    StartSessionRequest,
    advance_session,
    change_session,
    list_sessions,
    start_session,
)
from tests.operations.script import ALIVE, NOW, A, Answer, Played, ended, errors, play, standing

ME = 3


def stands(
    status: str = "active",
    owner: str | None = "live",
    process: int | None = 8,
    milestone: str | None = "m",
    expected: str = "{}",
) -> Answer:
    place: Row = (None,) * 6 if owner is None else (process, owner, "host", 41, "77", "/bell")
    return "session_owner", [("planning", milestone, status, expected, *place)]


ABSENT: Answer = ("session_owner", [])


def events_of(played: Played[Any]) -> list[tuple[str, str | None, dict[str, Any]]]:
    assert all(event[2:4] == ("session", "s") for event in played.written("event_insert"))
    return [(event[1], event[4], decode(event[5])) for event in played.written("event_insert")]


def begins(answer: Answer, **options: Any) -> Played[Any]:
    return play(
        start_session.run([StartSessionRequest("s", options.pop("operation", "planning"), ME, **options)], NOW), answer
    )


def changes(answer: Answer, status: str, **options: Any) -> Played[Any]:
    return play(change_session.run([ChangeRequest("s", status, **options)], NOW), answer)


def test_a_new_session_is_owned_by_its_process_and_records_an_event() -> None:
    played = begins(ABSENT, milestone="m", expected={"a": "x"}, metadata='{"n":1}')
    assert played.outcomes == [StartedSession("s", "planning", "m", False)]
    assert played.written("session_insert") == [
        ("s", "planning", "m", ME, '{"a":"x"}', '{"n":1}', NOW.wall, NOW.wall)
    ]  # fmt: skip
    assert events_of(played) == [
        ("session_started", None, {"operation": "planning", "milestone": "m", "process": ME})
    ]  # fmt: skip


@pytest.mark.parametrize("status", ["active", "paused", "interrupted"])
@pytest.mark.parametrize("owner", ["dead", "ended", None])
def test_a_session_whose_owner_is_gone_continues_in_this_process(status: str, owner: str | None) -> None:
    played = begins(stands(status, owner, expected='{"a":"x","b":"y"}'), expected={"b": "z"})
    assert played.outcomes == [StartedSession("s", "planning", "m", True)]
    assert played.written("session_continue") == [(ME, None, '{"a":"x","b":"z"}', None, NOW.wall, "s")]
    assert events_of(played) == [("session_continued", None, {"before": status, "process": ME})]


@pytest.mark.parametrize("status", ["active", "paused", "interrupted"])
def test_a_session_whose_owner_lives_is_refused_and_the_error_says_where(status: str) -> None:
    played = begins(stands(status))
    (error,) = errors(played.outcomes)
    assert isinstance(error, SessionExists)
    assert (error.status, error.pid) == (status, 41)
    assert error.process == {"process": 8, "host": "host", "pid": 41, "started": "77", "bell": "/bell"}
    assert played.statements == []


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_an_ended_session_is_refused(status: str) -> None:
    played = begins(stands(status, None))
    assert isinstance(played.outcomes[0], WrongState)
    assert played.statements == []


@pytest.mark.parametrize(("operation", "milestone"), [("building", None), ("planning", "n"), ("building", "m")])
def test_another_operation_or_milestone_is_refused(operation: str, milestone: str | None) -> None:
    played = begins(stands("interrupted", None), operation=operation, milestone=milestone)
    assert isinstance(played.outcomes[0], SessionDiffers)
    assert played.statements == []


def test_a_milestone_that_was_left_open_may_be_given_later() -> None:
    played = begins(stands("interrupted", None, milestone=None), milestone="n")
    assert played.outcomes == [StartedSession("s", "planning", "n", True)]
    assert played.written("session_continue")[0][1] == "n"


def test_of_two_concurrent_starts_of_a_session_the_second_is_refused() -> None:
    request = StartSessionRequest("s", "planning", ME)
    played = play(start_session.run([request, request], NOW), ABSENT, stands())
    assert isinstance(played.outcomes[0], StartedSession)
    assert isinstance(played.outcomes[1], SessionExists)
    assert len(played.written("session_insert")) == 1


ALLOWED = {
    "active": {"paused", "interrupted"},
    "paused": {"active"},
    "interrupted": {"active", "paused"},
    "completed": {"active", "paused", "interrupted"},
    "failed": {"active", "paused", "interrupted"},
}
EVERY = ["active", "paused", "interrupted", "completed", "failed"]


@pytest.mark.parametrize("before", EVERY)
@pytest.mark.parametrize("after", EVERY)
def test_a_status_is_reached_only_from_where_it_may_be(before: str, after: str) -> None:
    played = changes(stands(before), after, reason="why")
    if before not in ALLOWED[after]:
        assert isinstance(played.outcomes[0], WrongState)
        assert played.outcomes[0].status == before
        assert played.statements == []
        return
    assert played.outcomes == [None]
    ((status, error, updated, ended, process, session),) = played.written("session_change")
    assert (status, updated, process, session) == (after, NOW.wall, 8, "s")
    assert error == ("why" if after in {"failed", "interrupted"} else None)
    assert ended == (NOW.wall if after in {"completed", "failed"} else None)
    kind = "session_continued" if after == "active" else f"session_{after}"
    word = "error" if after == "failed" else "reason"
    assert events_of(played) == [(kind, None, {"before": before, word: "why"})]


def test_an_unknown_session_cannot_change() -> None:
    assert isinstance(changes(ABSENT, "paused").outcomes[0], UnknownSession)


@pytest.mark.parametrize("owner", [None, "live", "dead"])
def test_a_process_changes_as_its_owner_only_what_it_owns(owner: str | None) -> None:
    played = changes(stands(owner=owner), "completed", owner=ME)
    (error,) = errors(played.outcomes)
    assert isinstance(error, SessionLost)
    assert error.holder == ("no process" if owner is None else "process 41")
    assert played.statements == []
    assert changes(stands(owner="live", process=ME), "completed", owner=ME).outcomes == [None]


def test_an_owner_that_leaves_an_interrupted_session_owns_it_no_more() -> None:
    played = changes(stands(process=ME), "interrupted", owner=ME, leaving=True)
    assert played.written("session_change")[0][4] is None
    played = changes(stands("interrupted", process=ME), "interrupted", owner=ME, leaving=True)
    assert played.outcomes == [None]
    assert (played.wrote, played.written("session_disown")) == (["session_disown"], [("s",)])


def test_an_owner_that_leaves_a_session_that_ended_otherwise_gets_an_error() -> None:
    played = changes(stands("failed", process=ME), "completed", owner=ME, leaving=True)
    assert isinstance(played.outcomes[0], WrongState)


@pytest.mark.parametrize(("owner", "kept"), [("live", 8), ("dead", None), ("ended", None), (None, None)])
def test_what_is_continued_is_not_interrupted_again_by_an_owner_that_is_gone(
    owner: str | None, kept: int | None
) -> None:
    assert changes(stands("interrupted", owner), "active").written("session_change")[0][4] == kept


def test_progress_needs_one_statement_while_the_session_is_open() -> None:
    requests = [SessionProgressRequest(session, 40) for session in ("s", "done", "none")]
    played = play(
        advance_session.run(requests, NOW),
        ("session_progress", [("s",)]),
        ("session_progress", []), ("session_status", [("completed",)]),
        ("session_progress", []), ("session_status", []),
    )  # fmt: skip
    assert played.outcomes[0] is None
    assert [type(outcome) for outcome in played.outcomes[1:]] == [SessionEnded, UnknownSession]
    assert played.wrote == ["session_progress"], "no event"


def test_a_page_ends_with_a_cursor_where_there_is_more() -> None:
    row: Row = ("s", "planning", None, "active", 0, None, "{}", "{}", 7, 7, None, None, 0)
    page = play(list_sessions(SessionFilter(limit=1), NOW), ("session_list", [row, row])).outcomes
    assert (len(page.items), page.cursor) == (1, "7.s")
    assert play(list_sessions(SessionFilter(limit=2), NOW), ("session_list", [row, row])).outcomes.cursor is None


# Interruption


@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ((8, "dead", None, None, 0, 0), "its own process died"),
        ((8, "dead", "a", "why", 0, 0), "its own process died"),
        ((7, "live", "a", "why", 0, 0), "a failed: why"),
        ((None, None, "a", None, 0, 0), "a failed: no reason was given"),
        ((7, "live", "a", "why", 2, 0), "a and 2 more failed: why"),
        ((7, "dead", "a", "why", 0, 0), "a failed: why; its own process is gone too"),
        ((7, "ended", None, None, 0, 0), "its own process is gone, and none of its agents is live any more"),
        ((None, None, None, None, 0, 1), "it was resumed, and no agent registered in time"),
    ],
)
def test_an_interruption_records_an_event_with_the_true_reason(cause: Row, reason: str) -> None:
    answers: list[Answer] = [("session_interrupt", [("s",)]), ("session_causes", [("s", *cause)])]
    played = play(interrupt(["a"], [8], "its process died", NOW), *answers)
    assert played.written("session_interrupt") == [(NOW.wall, ["a"], [8], [], NOW.awake)]
    assert played.written("session_reason") == [(reason, "s")]
    assert events_of(played) == [("session_interrupted", None, {"before": "active", "reason": reason})]


def test_no_interruption_records_no_event() -> None:
    played = play(interrupt(["a"], [], "why", NOW), ("session_interrupt", []))
    assert (played.wrote, played.asked) == (["session_interrupt"], [])


def test_an_agent_that_continues_a_session_is_the_actor_of_the_event() -> None:
    played = play(resume("s", "a", NOW), ("session_resume", [("s",)]))
    assert events_of(played) == [("session_continued", "a", {"before": "interrupted"})]
    assert play(resume("s", "a", NOW), ("session_resume", [])).written("event_insert") == []


@pytest.mark.parametrize("status", ["completed", "failed", "stopped"])
def test_the_end_of_an_agent_checks_its_session_and_records_a_failure(status: str) -> None:
    played = play(
        finish.run([EndRequest(A, status, "why" if status == "failed" else None)], NOW),
        ALIVE, ("agent_statuses", [standing("a")]), ("message_held_by", []),
        ("agent_parents" if status == "failed" else "subscription_delete", []),
    )  # fmt: skip
    ((_, agents, processes, sessions, _),) = played.written("session_interrupt")
    assert (agents, processes, sessions) == (["a"], [], [])
    assert played.written("session_trouble") == ([(["a"],)] if status == "failed" else [])
    # It must have ended before it is asked whether anyone is live.
    assert played.wrote.index("agent_end") < played.wrote.index("session_interrupt")


def test_a_process_that_leaves_interrupts_what_it_owns_after_it_counts_as_gone() -> None:
    played = play(
        leave.run([LeaveRequest((8,), True, "its process died")], NOW),
        ("process_end", [ended(8)]), ("agent_of_processes", []), ("session_interrupt", [("s",)]),
        ("session_causes", [("s", 8, "dead", None, None, 0, 0)]), ("counter_take", [(1,)]),
    )  # fmt: skip
    assert played.written("session_interrupt") == [(NOW.wall, [], [8], [], NOW.awake)]
    assert played.wrote.index("process_end") < played.wrote.index("session_interrupt")
    assert ("session_interrupted", "s") in [(event[1], event[3]) for event in played.written("event_insert")]


@pytest.mark.parametrize("process", [ME, None])
def test_only_a_live_agent_continues_its_session(process: int | None) -> None:
    played = play(
        register.run([RegisterRequest("a", "worker", process, Profile(), session="s")], NOW),
        ("type_known", [("worker",)]), ("session_status", [("interrupted",)]), ("agent_status", []),
        ("agent_status", []), ("mailbox_find", [(10,)]), ("mailbox_find", [(11,)]),
        ("agent_incarnation", [(1, 10, 11, "s")]), ("agent_mailboxes", []),
        *([("counter_take", [(1,)])] if process else []),
    )  # fmt: skip
    assert played.written("session_resume") == ([(NOW.wall, "s")] if process else [])
