"""Deletion of agents without a database: permission, owned data, and bounded steps."""

from __future__ import annotations

import pytest

from agentbus.core.codec import decode
from agentbus.errors import UnknownAgent, WrongState
from agentbus.operations.agent_deletion import Deleted, DeleteRequest, Rest, delete
from agentbus.operations.common import LIVE, Budget
from agentbus.operations.protocol import Row
from tests.operations.script import NOW, Answer, held, play

NOWHERE = (None, None, None, None, None, None)
NO_CHECKPOINTS: Answer = ("checkpoint_oldest", [])
NO_LETTERS: Answer = ("message_waiting_for", [])
HUGE = Budget().left


def waiting(*rows: Row) -> Answer:
    return "message_waiting_for", [(10, *row) for row in rows]


@pytest.mark.parametrize("status", ["pending", "completed", "failed", "stopped"])
def test_an_ended_agent_is_deleted_and_its_messages_are_dead_letters(status: str) -> None:
    answers: list[Answer] = [
        ("agent_status", [("a", status, *NOWHERE)]),
        NO_CHECKPOINTS,
        waiting(held(1, status="queued", holder=None), held(2, status="scheduled", holder=None)),
        ("agent_delete", [("a",)]),
    ]
    played = play(delete.run([DeleteRequest("a")], NOW), *answers)
    assert played.outcomes == [Deleted(["a"])]
    assert played.ids("message_dead_letter") == [1, 2]
    assert {reason for reason, _, _ in played.written("message_dead_letter")} == {"its recipient was deleted"}
    assert [event[1] for event in played.written("event_insert")] == ["message_dead", "message_dead", "agent_deleted"]
    # Its mailbox is looked at while the agent still says which it is.
    names = [name for name, _ in played.statements]
    assert names.index("message_dead_letter") < names.index("agent_delete")


def test_a_requester_waiting_for_a_deleted_agent_is_notified() -> None:
    answers: list[Answer] = [
        ("agent_status", [("a", "failed", *NOWHERE)]),
        NO_CHECKPOINTS,
        waiting(held(1, status="queued", correlation="r-1", reply_to=77)),
        ("counter_take", [(5,)]),
        ("agent_delete", [("a",)]),
    ]
    played = play(delete.run([DeleteRequest("a")], NOW), *answers)
    assert [values[2] for values in played.written("message_insert")] == [77]


@pytest.mark.parametrize("rest", [None, Rest("a", 7)], ids=["the first step", "another"])
@pytest.mark.parametrize("status", sorted(LIVE))
def test_a_live_agent_cannot_be_deleted(status: str, rest: Rest | None) -> None:
    request = DeleteRequest("a", None, rest)
    played = play(delete.run([request], NOW), ("agent_status", [("a", status, *NOWHERE)]))
    (error,) = played.outcomes
    assert isinstance(error, WrongState)
    assert (error.what, error.name, error.status) == ("agent", "a", status)
    assert played.statements == []


def test_an_unknown_agent_cannot_be_deleted_but_its_neighbours_can() -> None:
    answers: list[Answer] = [
        ("agent_status", []),
        ("agent_status", [("b", "stopped", *NOWHERE)]),
        NO_CHECKPOINTS,
        NO_LETTERS,
        ("agent_delete", [("b",)]),
    ]
    played = play(delete.run([DeleteRequest("a"), DeleteRequest("b")], NOW), *answers)
    assert isinstance(played.outcomes[0], UnknownAgent)
    assert played.outcomes[1] == Deleted(["b"])


def test_clearing_deletes_all_that_finished_before_a_time_and_names_them() -> None:
    answers: list[Answer] = [
        ("agent_finished_before", [("a",), ("b",)]),
        NO_CHECKPOINTS,
        NO_LETTERS,
        ("checkpoint_oldest", [(4, 10), (5, 10)]),
        NO_LETTERS,
        ("agent_delete", [("a",), ("b",)]),
    ]
    played = play(delete.run([DeleteRequest(None, 900_000)], NOW), *answers)
    assert played.outcomes == [Deleted(["a", "b"])]
    assert played.parameters("agent_finished_before") == (900_000, 20)
    assert played.written("agent_delete") == [(["a", "b"],)]
    assert played.written("checkpoint_remove") == [(4,), (5,)]
    assert [decode(event[5]) for event in played.written("event_insert")] == [{"checkpoints": 0}, {"checkpoints": 2}]


def test_as_many_as_one_commit_takes_may_be_followed_by_more() -> None:
    agents = [(f"a{n:02}",) for n in range(20)]
    answers: list[Answer] = [("agent_finished_before", agents), *[NO_CHECKPOINTS, NO_LETTERS] * 20]
    played = play(delete.run([DeleteRequest(None, 900_000)], NOW), *answers, ("agent_delete", agents))
    assert played.outcomes == [Deleted([agent for (agent,) in agents], more=True)]


def test_an_agent_that_has_too_much_keeps_the_rest_and_the_one_before_it_goes() -> None:
    answers: list[Answer] = [
        ("agent_finished_before", [("a",), ("b",), ("c",)]),
        NO_CHECKPOINTS,
        NO_LETTERS,
        ("checkpoint_oldest", [(4, 10), (5, HUGE), (6, 1)]),
        ("agent_delete", [("a",)]),
    ]
    played = play(delete.run([DeleteRequest(None, 900_000, Rest("b", 7))], NOW), *answers)
    assert played.outcomes == [Deleted(["a"], True, Rest("b", 7))]
    assert played.written("checkpoint_remove") == [(4,), (5,)]
    assert [(event[1], event[3], decode(event[5])) for event in played.written("event_insert")] == [
        ("checkpoints_pruned", "b", {"count": 2, "name": None, "keep": 0}),
        ("agent_deleted", "a", {"checkpoints": 0}),
    ]


def test_the_rest_of_its_state_is_looked_for_where_the_last_step_ended() -> None:
    answers: list[Answer] = [
        ("agent_status", [("a", "failed", *NOWHERE)]),
        NO_CHECKPOINTS,
        ("state_lengths", [("a", "k", 9, HUGE), ("a", "l", 10, 1)]),
        ("counter_take", [(20,)]),
    ]
    played = play(delete.run([DeleteRequest("a", None, Rest("a", 7))], NOW), *answers)
    assert played.parameters("state_lengths")[:2] == ("a", 7)
    assert played.outcomes == [Deleted([], True, Rest("a", 9))]
    assert [row[2:] for row in played.written("state_erase")] == [("a", "k")]
    assert played.written("event_insert") == []


def test_an_agent_stays_until_all_its_messages_are_dead_letters() -> None:
    letters = [(size, *held(id, status="queued")) for id, size in ((1, 10), (2, HUGE), (3, 10))]
    answers: list[Answer] = [
        ("agent_status", [("a", "failed", *NOWHERE)]),
        NO_CHECKPOINTS,
        ("message_waiting_for", letters),
    ]
    played = play(delete.run([DeleteRequest("a")], NOW), *answers)
    assert played.outcomes == [Deleted([], True, Rest("a", 0))]
    assert played.ids("message_dead_letter") == [1, 2]


def test_a_batch_is_bounded_by_what_its_deletions_may_remove() -> None:
    assert DeleteRequest("a").data_size == HUGE
