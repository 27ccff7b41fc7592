"""Dead letters: out again (requeue), or away (purge)."""

from __future__ import annotations

import pytest

from agentbus.core.codec import decode
from agentbus.errors import AgentEnded, UnknownMessage, WrongState
from agentbus.operations.protocol import mailbox_channel
from agentbus.operations.receive import FINISHED, PurgeRequest, RequeueRequest, dead_letter, purge, requeue
from tests.operations.script import NOW, Answer, play

LIVE = ("agent", "a", "running")
"""The kind of a mailbox, its owner, and how that stands."""


def found(*rows: tuple[int, str | None, str, int], owner: tuple[str, str, str | None] = LIVE) -> Answer:
    """Rows of message_find: (id, message_id, status, mailbox), each after 5 attempts, in a mailbox of ``owner``."""
    subscription = rows[0][3] if rows and owner[0] == "subscription" else None
    return "message_find", [(*row, 5, "no model", *owner, subscription, "x") for row in rows]


def test_dead_letters_go_back_to_their_mailboxes() -> None:
    played = play(
        requeue.run([RequeueRequest(("m-1", "id-2"))], NOW), found((1, None, "dead", 10), (2, "id-2", "dead", 20))
    )
    assert played.outcomes == [2]
    assert played.ids("message_requeue") == [1, 2]
    assert {mailbox_channel(10), mailbox_channel(20)} <= set(played.woken)


def test_one_event_has_the_attempts_of_all() -> None:
    rows = found((1, None, "dead", 10), (2, "id-2", "dead", 20))
    played = play(requeue.run([RequeueRequest(("m-1", "id-2"), "ada")], NOW), rows)
    ((at, kind, subject_kind, subject, actor, facts),) = played.written("event_insert")
    assert (at, kind, subject_kind, subject, actor) == (NOW.wall, "messages_requeued", "bus", "messages", "ada")
    assert decode(facts) == {"count": 2, "attempts": {"m-1": 5, "id-2": 5}}


def test_the_event_names_a_bounded_number_of_messages() -> None:
    rows = found(*((n, None, "dead", 10) for n in range(1, 1001)))
    played = play(requeue.run([RequeueRequest(tuple(f"m-{n}" for n in range(1, 1001)))], NOW), rows)
    ((*_, facts),) = played.written("event_insert")
    assert decode(facts)["count"] == 1000
    assert len(decode(facts)["attempts"]) == 100


def test_all_copies_of_a_publication_are_requeued() -> None:
    played = play(
        requeue.run([RequeueRequest(("id-1",))], NOW), found((1, "id-1", "dead", 10), (2, "id-1", "dead", 20))
    )
    assert played.outcomes == [2]
    assert played.ids("message_requeue") == [1, 2]


def test_a_message_is_looked_for_by_row_and_by_its_own_id() -> None:
    played = play(requeue.run([RequeueRequest(("m-7", "m-x", "id-2"))], NOW), found())
    rows, ids = played.parameters("message_find")
    assert rows == [7]
    assert {"m-x", "id-2"} <= set(ids)


def test_one_unknown_message_requeues_none_of_its_request() -> None:
    requests = [RequeueRequest(("m-1", "m-9")), RequeueRequest(("m-2",))]
    played = play(requeue.run(requests, NOW), found((1, None, "dead", 10)), found((2, None, "dead", 10)))
    error, other = played.outcomes
    assert isinstance(error, UnknownMessage)
    assert error.message_id == "m-9"
    assert other == 1
    assert played.ids("message_requeue") == [2]


def test_what_is_not_dead_cannot_be_requeued() -> None:
    for status in ("queued", "scheduled", "leased", "acked", "expired"):
        rows = found((1, None, "dead", 10), (2, None, status, 10))
        played = play(requeue.run([RequeueRequest(("m-1", "m-2"))], NOW), rows)
        (error,) = played.outcomes
        assert isinstance(error, WrongState)
        assert (error.what, error.name, error.status) == ("message", "m-2", status)
        assert played.statements == []


@pytest.mark.parametrize(
    "owner",
    [("agent", "a", "pending"), ("agent", "a", "failed"), ("subscription", "a", "running"), ("pool", "", None)],
)
def test_a_dead_letter_is_requeued_if_its_mailbox_has_a_reader(owner: tuple[str, str, str | None]) -> None:
    played = play(requeue.run([RequeueRequest(("m-1",))], NOW), found((1, None, "dead", 10), owner=owner))
    assert played.outcomes == [1]


@pytest.mark.parametrize("status", ["completed", "stopped", None])
def test_a_dead_letter_without_a_reader_stays_dead(status: str | None) -> None:
    played = play(
        requeue.run([RequeueRequest(("m-1",))], NOW), found((1, None, "dead", 10), owner=("agent", "gone", status))
    )
    (error,) = played.outcomes
    assert isinstance(error, AgentEnded)
    assert (error.agent, error.message_id) == ("gone", "m-1")
    assert error.status == (status or "been deleted")
    assert played.statements == []


def test_purging_takes_one_status_or_all_finished_but_dead_letters() -> None:
    requests = [PurgeRequest("acked", 900, 50), PurgeRequest(None, 800, 50, after=3)]
    played = play(purge.run(requests, NOW), ("message_purge", [(1,), (2,)]), ("message_purge", []))
    assert played.outcomes == [[1, 2], []]
    first, second = played.written("message_purge")
    assert first == (["acked"], 900, 50, 0)
    assert second == (["acked", "expired"], 800, 50, 3)
    # What deleted nothing is no news.
    ((_, kind, subject_kind, subject, actor, facts),) = played.written("event_insert")
    assert (kind, subject_kind, subject, actor) == ("messages_purged", "bus", "messages", None)
    assert decode(facts) == {"count": 2, "status": "acked", "before": 900}


def test_only_what_is_finished_is_ever_purged() -> None:
    assert set(FINISHED) == {"acked", "dead", "expired"}


def test_no_dead_letters_write_nothing() -> None:
    assert play(dead_letter([], NOW)).statements == []
