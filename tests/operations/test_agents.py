"""The registry besides registering and ending: progress, busy, updates, membership, declaration."""

from __future__ import annotations

from agentbus.errors import AgentFenced, UnknownAgent
from agentbus.operations.agent_identity import Registration
from agentbus.operations.agents import (
    BusyRequest,
    DeclareRequest,
    MembershipRequest,
    ProgressRequest,
    UpdateRequest,
    busy,
    change_membership,
    declare,
    progress,
    update,
)
from agentbus.operations.protocol import Actor, mailbox_channel
from agentbus.operations.rows import Profile
from tests.operations.script import ALIVE, NOW, A, Answer, B, play

FENCED = Actor("a", 7)
NOWHERE = (None, None, None, None, None, None)
LIFE: tuple[Answer, ...] = (
    ("agent_incarnation", [(1, 10, 11, "s-1")]),
    ("agent_mailboxes", []),
    ("counter_take", [(1,)]),
)


def test_progress_is_noted_for_all_that_may_act() -> None:
    requests = [ProgressRequest(A, 40, "writing"), ProgressRequest(FENCED, 50), ProgressRequest(B, 100)]
    played = play(progress.run(requests, NOW), ALIVE)
    assert played.outcomes[0] is None
    assert isinstance(played.outcomes[1], AgentFenced)
    assert played.outcomes[2] is None
    assert played.written("agent_progress") == [
        (40, "writing", NOW.wall, NOW.awake, "a"),
        (100, None, NOW.wall, NOW.awake, "b"),
    ]


def test_busy_lasts_in_awake_time_and_nothing_takes_it_back() -> None:
    requests = [BusyRequest(A, 60_000), BusyRequest(FENCED, 1), BusyRequest(B, 0)]
    played = play(busy.run(requests, NOW), ALIVE)
    assert isinstance(played.outcomes[1], AgentFenced)
    assert played.written("agent_busy") == [
        (NOW.awake + 60_000, NOW.awake, NOW.wall, "a"),
        (None, NOW.awake, NOW.wall, "b"),
    ]


def test_an_update_changes_what_is_given_and_leaves_the_rest() -> None:
    requests = [UpdateRequest("a", Profile(load=80, capabilities=())), UpdateRequest("nobody", Profile())]
    played = play(update.run(requests, NOW), ("agent_update", [("a",)]), ("agent_update", []))
    assert played.outcomes[0] is None
    assert isinstance(played.outcomes[1], UnknownAgent)
    wall, id, *profile = played.written("agent_update")[0]
    assert (wall, id) == (NOW.wall, "a")
    given = dict(zip(Profile.__struct_fields__, profile, strict=True))
    assert given == {**dict.fromkeys(Profile.__struct_fields__), "capabilities": "[]", "load": 80}


def test_joining_makes_the_mailboxes_and_listens_to_them() -> None:
    answers: list[Answer] = [
        ALIVE,
        ("mailbox_find", [(30,)]), ("mailbox_find", [(40,)]), ("mailbox_find", [(31,)]),
        ("agent_incarnation", [(1, 10, 11, "s-1")]),
        ("agent_mailboxes", [("pool", "p", 30), ("subscription", "t", 31)]),
        ("counter_take", [(1,)]),
    ]  # fmt: skip
    played = play(change_membership.run([MembershipRequest(A, 3, ("p",), ("t",))], NOW), *answers)
    assert played.outcomes == [Registration("a", 1, 10, 11, "s-1", {"p": 30}, {"t": 31})]
    assert played.written("pool_join") == [(30, "a", NOW.wall)]
    assert played.written("subscription_insert") == [(40, "a", 31, NOW.wall)]
    assert {(mailbox_channel(30), 3), (mailbox_channel(31), 3)} <= set(played.written("listener_insert"))


def test_leaving_a_pool_leaves_its_messages_to_the_others() -> None:
    played = play(change_membership.run([MembershipRequest(A, 3, ("p",), leave=True)], NOW), ALIVE, *LIFE)
    assert played.outcomes == [Registration("a", 1, 10, 11, "s-1", {}, {})]
    assert played.written("pool_leave") == [("p", "a")]
    assert played.written("message_expire_all") == []


def test_what_waits_in_a_subscription_expires_when_it_ends() -> None:
    answers: list[Answer] = [ALIVE, ("subscription_end", [(31,)]), *LIFE]
    played = play(change_membership.run([MembershipRequest(A, 3, topics=("t",), leave=True)], NOW), *answers)
    ((at, _, boxes),) = played.written("message_expire_all")
    assert (at, boxes) == (NOW.wall, [31])


def test_ending_a_subscription_that_is_not_there_is_no_error() -> None:
    answers: list[Answer] = [ALIVE, ("subscription_end", []), *LIFE]
    played = play(change_membership.run([MembershipRequest(A, 3, topics=("t",), leave=True)], NOW), *answers)
    assert played.outcomes == [Registration("a", 1, 10, 11, "s-1", {}, {})]
    assert played.written("message_expire_all") == []


def test_a_fenced_agent_changes_no_membership() -> None:
    requests = [MembershipRequest(FENCED, 3, ("p",)), MembershipRequest(B, 3, ("p",), leave=True)]
    played = play(change_membership.run(requests, NOW), ALIVE, *LIFE)
    assert isinstance(played.outcomes[0], AgentFenced)
    assert played.written("pool_join") == []
    assert played.written("pool_leave") == [("p", "b")]


def test_declaring_creates_mailboxes_without_readers() -> None:
    found: list[Answer] = [("mailbox_find", rows) for id in (30, 31, 40) for rows in ([], [(id,)])]
    requests = [DeclareRequest(("p", "q", "p"), ()), DeclareRequest((), ("t",))]
    played = play(declare.run(requests, NOW), *found)
    assert played.outcomes == [None, None]
    assert played.written("mailbox_ensure") == [
        ("pool", "p", "", NOW.wall), ("pool", "q", "", NOW.wall), ("topic", "t", "", NOW.wall),
    ]  # fmt: skip
    assert played.written("pool_join") == []
    assert [event[1:4] for event in played.written("event_insert")] == [
        ("mailbox_declared", "mailbox", "pool:p"),
        ("mailbox_declared", "mailbox", "pool:q"),
        ("mailbox_declared", "mailbox", "topic:t"),
    ]


def test_declaring_what_exists_writes_nothing() -> None:
    played = play(declare.run([DeclareRequest(("p",), ())], NOW), ("mailbox_find", [(30,)]))
    assert played.outcomes == [None]
    assert played.statements == []
