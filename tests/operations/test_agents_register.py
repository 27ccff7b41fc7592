"""Registration: a new incarnation, an announcement, a takeover; and the errors."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.core.codec import decode
from agentbus.errors import AgentExists, UnknownSession, UnknownType, WrongState
from agentbus.operations.agent_identity import Registration
from agentbus.operations.agents import RegisterRequest, register
from agentbus.operations.common import LIVE
from agentbus.operations.protocol import Row, mailbox_channel
from agentbus.operations.rows import Profile
from tests.operations.script import ENDED, NOW, Answer, Played, errors, held, play

KNOWN: Answer = ("type_known", [("worker", None)])
PROCESS = 3


def request(process: int | None = PROCESS, **options: Any) -> RegisterRequest:
    return RegisterRequest("a", "worker", process, options.pop("profile", Profile()), **options)


def status(
    status: str | None, process: tuple[Any, ...] = (8, "host", 41, "77", "/bell"), session: str | None = None
) -> list[Answer]:
    """Answer with the status of the agent before. It is read before the checks and before writing."""
    rows: list[Row] = [] if status is None else [("a", status, session, *process)]
    return [("agent_status", rows), ("agent_status", rows)]


def registered(epoch: int = 1, mailboxes: tuple[Row, ...] = ()) -> list[Answer]:
    """Return the answers for a registered agent: its mailboxes are 10 and 11."""
    return [
        ("mailbox_find", [(10,)]),
        ("mailbox_find", [(11,)]),
        ("agent_incarnation", [(epoch, 10, 11, "s-1")]),
        ("agent_mailboxes", mailboxes),
    ]


TOPOLOGY: Answer = ("counter_take", [(1,)])


def events_of(played: Played[Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(event[1], decode(event[5])) for event in played.written("event_insert")]


def row(played: Played[Any]) -> Row:
    (values,) = played.written("agent_register")
    return values


def test_a_new_agent_gets_an_epoch_and_two_mailboxes() -> None:
    played = play(register.run([request()], NOW), KNOWN, *status(None), *registered(), TOPOLOGY)
    assert played.outcomes == [Registration("a", 1, 10, 11, "s-1", {}, {})]
    assert played.written("mailbox_ensure") == [("agent", "a", "a", NOW.wall), ("replies", "a", "a", NOW.wall)]
    assert row(played)[:6] == ("a", "worker", "resident", None, PROCESS, "running")
    # Created and started now; awake; its mailboxes; the next epoch.
    assert row(played)[6:12] == (NOW.wall, NOW.wall, NOW.awake, 10, 11, 1)
    assert events_of(played) == [("agent_registered", {"epoch": 1, "type": "worker", "before": None})]


def test_the_declared_profile_is_written_and_the_rest_is_null() -> None:
    profile = Profile("Ada", capabilities=("python", "sql"), load=30)
    played = play(register.run([request(profile=profile)], NOW), KNOWN, *status(None), *registered(), TOPOLOGY)
    assert row(played)[12:14] == (None, None), "no deadline, no default patience"
    given = dict(zip(Profile.__struct_fields__, row(played)[14:], strict=True))
    declared = {"name": "Ada", "capabilities": '["python","sql"]', "load": 30}
    assert given == {**dict.fromkeys(Profile.__struct_fields__), **declared}


def test_its_process_listens_to_every_mailbox_it_reads() -> None:
    boxes: tuple[Row, ...] = (("pool", "p", 30), ("subscription", "t", 31))
    played = play(register.run([request()], NOW), KNOWN, *status(None), *registered(mailboxes=boxes), TOPOLOGY)
    assert played.outcomes == [Registration("a", 1, 10, 11, "s-1", {"p": 30}, {"t": 31})]
    assert sorted(played.written("listener_insert")) == [(mailbox_channel(box), PROCESS) for box in (10, 11, 30, 31)]
    assert played.written("counter_take") == [("topology", 1)]


def test_pools_and_topics_are_made_and_joined() -> None:
    played = play(
        register.run([request(pools=("p",), topics=("t",))], NOW),
        KNOWN, *status(None), *registered()[:2],
        ("mailbox_find", [(30,)]), ("mailbox_find", [(40,)]), ("mailbox_find", [(31,)]),
        *registered()[2:], TOPOLOGY,
    )  # fmt: skip
    assert ("pool", "p", "", NOW.wall) in played.written("mailbox_ensure")
    assert ("topic", "t", "", NOW.wall) in played.written("mailbox_ensure")
    assert ("subscription", "t", "a", NOW.wall) in played.written("mailbox_ensure")
    assert played.written("pool_join") == [(30, "a", NOW.wall)]
    assert played.written("subscription_insert") == [(40, "a", 31, NOW.wall)]


@pytest.mark.parametrize("before", [*ENDED, "pending"])
def test_an_ended_or_expected_id_starts_a_new_incarnation(before: str) -> None:
    played = play(register.run([request()], NOW), KNOWN, *status(before), *registered(epoch=2), TOPOLOGY)
    assert played.outcomes == [Registration("a", 2, 10, 11, "s-1", {}, {})]
    assert events_of(played) == [("agent_registered", {"epoch": 2, "type": "worker", "before": before})]


@pytest.mark.parametrize("before", sorted(LIVE))
def test_an_id_that_is_alive_is_refused_and_the_error_says_where(before: str) -> None:
    played = play(register.run([request()], NOW), KNOWN, status(before)[0])
    (error,) = played.outcomes
    assert isinstance(error, AgentExists)
    assert (error.agent, error.status, error.pid) == ("a", before, 41)
    assert error.process == {"process": 8, "host": "host", "pid": 41, "started": "77", "bell": "/bell"}
    assert played.statements == []


def test_a_visiting_agent_has_no_process_to_name() -> None:
    place = (None, None, None, None, None)
    played = play(register.run([request()], NOW), KNOWN, status("running", place)[0])
    (error,) = played.outcomes
    assert isinstance(error, AgentExists)
    assert error.process is None
    assert error.pid is None


def test_a_takeover_releases_what_the_old_incarnation_held() -> None:
    rows = [held(1, attempts=1), held(2, attempts=5, max_attempts=5)]
    played = play(
        register.run([request(takeover=True)], NOW),
        KNOWN, *status("running"), ("message_held_by", rows), ("agent_incarnation", [(1, 10, 11, "s-1")]),
        *registered(epoch=2), TOPOLOGY,
    )  # fmt: skip
    assert played.outcomes == [Registration("a", 2, 10, 11, "s-1", {}, {})]
    assert played.ids("message_release") == [1]
    assert played.ids("message_dead_letter") == [2]
    assert mailbox_channel(10) in played.woken
    assert ("agent_taken_over", {"epoch": 2, "type": "worker", "before": "running"}) in events_of(played)


def test_a_takeover_wakes_receivers_of_the_old_incarnation() -> None:
    answers = [
        KNOWN,
        *status("running"),
        ("message_held_by", []),
        ("agent_incarnation", [(1, 10, 11, "s-1")]),
        *registered(epoch=2),
    ]
    played = play(register.run([request(takeover=True)], NOW), *answers, TOPOLOGY)
    assert mailbox_channel(10) in played.woken


def test_a_takeover_of_an_unknown_id_is_a_registration() -> None:
    played = play(register.run([request(takeover=True)], NOW), KNOWN, *status(None), *registered(), TOPOLOGY)
    assert [kind for kind, _ in events_of(played)] == ["agent_registered"]


def test_an_expected_agent_is_pending_and_no_process_listens_for_it() -> None:
    played = play(register.run([request(None)], NOW), KNOWN, *status(None), *registered(epoch=0))
    assert played.outcomes == [Registration("a", 0, 10, 11, "s-1", {}, {})]
    assert row(played)[4:6] == (None, "pending")
    # Not started, and no incarnation yet.
    assert row(played)[7] is None
    assert row(played)[11] == 0
    assert played.written("listener_insert") == []
    assert [kind for kind, _ in events_of(played)] == ["agent_expected"]


@pytest.mark.parametrize("before", sorted(LIVE))
def test_expecting_one_that_is_here_already_changes_nothing(before: str) -> None:
    played = play(register.run([request(None)], NOW), KNOWN, *status(before), *registered(epoch=4)[2:])
    assert played.outcomes == [Registration("a", 4, 10, 11, "s-1", {}, {})]
    assert played.statements == []


def test_an_unknown_type_is_refused() -> None:
    played = play(register.run([request()], NOW), ("type_known", []))
    (error,) = played.outcomes
    assert isinstance(error, UnknownType)
    assert (error.kind, error.name) == ("agent", "worker")
    assert played.statements == []


@pytest.mark.parametrize(("stands", "kept"), [("active", "old"), ("interrupted", "old"), ("completed", None)])
def test_a_new_incarnation_stays_in_the_open_session_of_the_last_one(stands: str, kept: str | None) -> None:
    answers = [KNOWN, *status("failed", session="old"), ("session_status", [(stands,)]), *registered(epoch=2), TOPOLOGY]
    played = play(register.run([request()], NOW), *answers)
    assert row(played)[3] == kept


def test_a_new_incarnation_may_join_another_session() -> None:
    answers = [KNOWN, ("session_status", [("active",)]), *status("failed", session="old")]
    for stands, left in (("interrupted", {"left": "old"}), ("completed", {})):
        old: Answer = ("session_status", [(stands,)])
        played = play(register.run([request(session="new")], NOW), *answers, old, *registered(epoch=2), TOPOLOGY)
        assert row(played)[3] == "new"
        assert events_of(played) == [
            ("agent_registered", {"epoch": 2, "type": "worker", "before": "failed", **left})
        ]  # fmt: skip


def test_an_unknown_session_is_refused() -> None:
    played = play(register.run([request(session="s-1")], NOW), KNOWN, ("session_status", []))
    assert isinstance(played.outcomes[0], UnknownSession)
    assert played.statements == []


@pytest.mark.parametrize("ended", ["completed", "failed"])
def test_a_session_that_has_ended_cannot_be_joined(ended: str) -> None:
    played = play(register.run([request(session="s-1")], NOW), KNOWN, ("session_status", [(ended,)]))
    (error,) = played.outcomes
    assert isinstance(error, WrongState)
    assert (error.what, error.name, error.status) == ("session", "s-1", ended)


@pytest.mark.parametrize("open", ["active", "paused", "interrupted"])
def test_an_open_session_may_be_joined(open: str) -> None:
    answers = [KNOWN, ("session_status", [(open,)]), *status(None), *registered(), TOPOLOGY]
    played = play(register.run([request(session="s-1")], NOW), *answers)
    assert errors(played.outcomes) == []
    assert row(played)[3] == "s-1"


def test_a_refused_registration_leaves_its_neighbours_alone() -> None:
    requests = [request(), request(session="gone"), request()]
    answers = [
        KNOWN, *status(None), *registered(), TOPOLOGY,
        KNOWN, ("session_status", []),
        KNOWN, status("running", (PROCESS, "host", 1, "", None))[0],
    ]  # fmt: skip
    played = play(register.run(requests, NOW), *answers)
    first, second, third = played.outcomes
    assert first == Registration("a", 1, 10, 11, "s-1", {}, {})
    assert isinstance(second, UnknownSession)
    # The first of the batch is alive by then.
    assert isinstance(third, AgentExists)
