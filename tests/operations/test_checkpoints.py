"""Checkpoints without a database: fencing, order of writes, pruning."""

from __future__ import annotations

import pytest

from agentbus.core.codec import decode
from agentbus.core.validation import MAX_ID
from agentbus.errors import AgentFenced, UnknownAgent, UnknownCheckpoint, UnknownSession, WrongState
from agentbus.operations.checkpoints import (
    HistoryFilter,
    Owner,
    Pruned,
    PruneRequest,
    Saved,
    SaveRequest,
    delete_checkpoint,
    delete_checkpoints_of,
    latest_checkpoint,
    list_checkpoints,
    prune_checkpoints,
    save_checkpoint,
)
from agentbus.operations.common import Budget
from agentbus.operations.protocol import Actor
from agentbus.records import CheckpointSummary
from tests.operations.script import ALIVE, NOW, A, Answer, B, play

FENCED = Actor("a", 7)
CHECKSUM = "0" * 64
NOWHERE = (None, None, None, None, None)


def request(
    actor: Actor | None = A,
    kind: str = "agent",
    owner: str = "a",
    name: str = "n",
    session: str | None = "s-1",
    keep: int | None = None,
) -> SaveRequest:
    return SaveRequest(actor, Owner(kind, owner), name, "{}", CHECKSUM, 2, session=session, keep=keep)


def inserted(*ids: int) -> list[Answer]:
    return [("checkpoint_insert", [(id,)]) for id in ids]


def test_checkpoints_of_many_agents_are_fenced_with_one_question() -> None:
    requests = [request(A), request(FENCED), request(B, owner="b", session=None)]
    played = play(save_checkpoint.run(requests, NOW), ALIVE, *inserted(5, 6))
    assert played.outcomes[0] == Saved(5, "s-1", NOW.wall)
    assert isinstance(played.outcomes[1], AgentFenced)
    assert played.outcomes[2] == Saved(6, None, NOW.wall)
    assert [name for name, _ in played.asked] == ["agent_statuses"]
    assert played.written("checkpoint_insert") == [
        ("agent", "a", "n", "s-1", NOW.wall, CHECKSUM, 2, 0, "", "[]", "{}"),
        ("agent", "b", "n", None, NOW.wall, CHECKSUM, 2, 0, "", "[]", "{}"),
    ]


def test_saving_writes_no_event_and_wakes_no_listener() -> None:
    played = play(save_checkpoint.run([request(keep=3)], NOW), ALIVE, *inserted(5), ("checkpoint_surplus", [(1, 9)]))
    assert played.wrote == ["checkpoint_insert", "checkpoint_remove"]
    assert played.woken == []


def test_with_keep_the_older_ones_of_the_same_name_go() -> None:
    played = play(save_checkpoint.run([request(keep=3)], NOW), ALIVE, *inserted(5), ("checkpoint_surplus", []))
    assert played.parameters("checkpoint_surplus") == ("agent", "a", "n", 3, 100)
    assert played.wrote == ["checkpoint_insert"]


def test_with_keep_they_become_fewer_however_large_they_are() -> None:
    surplus: Answer = ("checkpoint_surplus", [(id, Budget().left) for id in (1, 2, 3)])
    played = play(save_checkpoint.run([request(keep=3)], NOW), ALIVE, *inserted(5), surplus)
    assert played.written("checkpoint_remove") == [(1,), (2,)]


def test_what_others_save_for_an_agent_has_its_session() -> None:
    answers: list[Answer] = [("agent_status", [("c", "failed", "s-2", *NOWHERE)]), *inserted(5)]
    played = play(save_checkpoint.run([request(None, owner="c", session=None)], NOW), *answers)
    assert played.outcomes == [Saved(5, "s-2", NOW.wall)]


def test_an_unknown_owner_cannot_have_a_checkpoint() -> None:
    answers: list[Answer] = [("agent_status", []), ("session_status", [])]
    requests = [request(None, owner="c"), request(None, "session", "s-9")]
    played = play(save_checkpoint.run(requests, NOW), *answers)
    assert [type(outcome) for outcome in played.outcomes] == [UnknownAgent, UnknownSession]
    assert played.statements == []


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_a_session_that_has_ended_takes_none(status: str) -> None:
    answers: list[Answer] = [("session_status", [(status,)])]
    played = play(save_checkpoint.run([request(None, "session", "s-9")], NOW), *answers)
    (error,) = played.outcomes
    assert isinstance(error, WrongState)
    assert (error.what, error.name, error.status) == ("session", "s-9", status)
    assert played.statements == []


@pytest.mark.parametrize("status", ["active", "paused", "interrupted"])
def test_an_open_session_is_the_session_of_its_checkpoints(status: str) -> None:
    answers: list[Answer] = [ALIVE, ("session_status", [(status,)]), *inserted(5)]
    played = play(save_checkpoint.run([request(A, "session", "s-9")], NOW), *answers)
    assert played.outcomes == [Saved(5, "s-9", NOW.wall)]


def test_a_batch_is_bounded_by_the_bytes_of_all_that_is_kept() -> None:
    whole = SaveRequest(A, Owner("agent", "a"), "n", "{}", CHECKSUM, 2, notes="four", files="[{},{}]")
    assert whole.data_size == 2 + 4 + 7


def test_deleting_a_checkpoint_records_an_event() -> None:
    answers: list[Answer] = [("checkpoint_delete", [("agent", "a", "n")]), ("checkpoint_delete", [])]
    played = play(delete_checkpoint.run([5, 6], NOW), *answers)
    assert played.outcomes[0] is None
    assert isinstance(played.outcomes[1], UnknownCheckpoint)
    ((at, kind, subject_kind, subject, actor, facts),) = played.written("event_insert")
    assert (at, kind, subject_kind, subject, actor) == (NOW.wall, "checkpoint_deleted", "checkpoint", "5", None)
    assert decode(facts) == {"owner_kind": "agent", "owner": "a", "name": "n"}


def test_pruning_goes_through_all_names_but_never_over_its_budget() -> None:
    answers: list[Answer] = [
        ("checkpoint_surplus", [(1, 10), (2, 10)]),
        ("checkpoint_surplus", [(3, Budget().left), (4, 1)]),
    ]
    wanted = PruneRequest(Owner("agent", "a"), ("m", "n", "o"), keep=1)
    played = play(prune_checkpoints.run([wanted], NOW), *answers)
    assert played.outcomes == [Pruned(3, ("n", "o"))]
    assert [parameters for _, parameters in played.asked] == [("agent", "a", "m", 1, 100), ("agent", "a", "n", 1, 100)]
    assert played.written("checkpoint_remove") == [(1,), (2,), (3,)]
    ((_, kind, subject_kind, subject, _, facts),) = played.written("event_insert")
    assert (kind, subject_kind, subject) == ("checkpoints_pruned", "agent", "a")
    assert decode(facts) == {"count": 3, "name": None, "keep": 1}
    assert wanted.data_size == Budget().left


def test_pruning_nothing_records_no_event() -> None:
    wanted = PruneRequest(Owner("session", "s"), ("n",), keep=0, name="n")
    played = play(prune_checkpoints.run([wanted], NOW), ("checkpoint_surplus", []))
    assert played.outcomes == [Pruned(0)]
    assert played.written("event_insert") == []


def test_forgetting_continues_until_all_are_deleted_and_counts_them() -> None:
    answers: list[Answer] = [
        ("checkpoint_oldest", [(id, 10) for id in range(100)]),
        ("checkpoint_oldest", [(100, 10), (101, 10)]),
    ]
    played = play(delete_checkpoints_of(Owner("agent", "a"), Budget()), *answers)
    assert played.outcomes == 102
    assert played.written("checkpoint_remove") == [(id,) for id in range(102)]


def test_forgetting_ends_with_the_budget() -> None:
    budget = Budget(2000)
    played = play(
        delete_checkpoints_of(Owner("agent", "a"), budget), ("checkpoint_oldest", [(1, 10), (2, 10), (3, 10)])
    )
    assert played.outcomes == 2
    assert budget.spent
    assert play(delete_checkpoints_of(Owner("agent", "a"), budget)).outcomes == 0


def test_the_latest_is_that_of_one_name_or_of_all() -> None:
    row = (5, "agent", "a", "n", "", None, 1, CHECKSUM, "[]", "{}")
    one = play(latest_checkpoint((Owner("agent", "a"), "n"), NOW), ("checkpoint_latest_named", [row]))
    assert one.outcomes is not None
    assert one.outcomes.id == 5
    assert play(latest_checkpoint((Owner("agent", "a"), None), NOW), ("checkpoint_latest", [])).outcomes is None


def test_a_page_says_where_the_next_one_begins() -> None:
    rows = [(id, "agent", "a", "n", "", None, 1, 2, 0) for id in (9, 8, 7)]
    page = play(list_checkpoints(HistoryFilter(limit=2), NOW), ("checkpoint_list", rows))
    assert page.parameters("checkpoint_list") == (MAX_ID, None, None, 3)
    assert [item.id for item in page.outcomes.items] == [9, 8]
    assert page.outcomes.cursor == "8"
    assert isinstance(page.outcomes.items[0], CheckpointSummary)
    last = play(list_checkpoints(HistoryFilter("agent", "a", limit=3), NOW), ("checkpoint_history", rows))
    assert last.outcomes.cursor is None
