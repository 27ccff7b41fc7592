"""The end of agents: released leases, notified parents, retained memberships."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.core.codec import decode
from agentbus.errors import AgentFenced
from agentbus.operations.agent_status import end
from agentbus.operations.agents import EndRequest, finish
from agentbus.operations.protocol import BUS, Actor, CannotBatch, mailbox_channel, reach_channel
from tests.operations.script import ALIVE, NOW, A, Answer, B, Played, held, play, standing

HOLDS_NOTHING: Answer = ("message_held_by", [])
LIFE: Answer = ("agent_statuses", [standing("a", mailbox=10)])
GIVES_UP: Answer = ("subscription_delete", [])
NO_PARENT: Answer = ("agent_parents", [])


def finished(*requests: EndRequest, answers: tuple[Answer, ...]) -> Played[Any]:
    # Queried before (fencing), and for each agent that ends (its receivers are woken).
    return play(
        finish.run(requests, NOW), ALIVE, *(LIFE for answer in answers if answer[0] == "message_held_by"), *answers
    )


def test_a_completed_agent_ends_now_and_records_an_event() -> None:
    played = finished(EndRequest(A, "completed"), answers=(HOLDS_NOTHING, GIVES_UP))
    assert played.outcomes == [None]
    assert played.written("agent_end") == [("completed", None, NOW.wall, None, "a")]
    ((at, kind, subject_kind, subject, actor, facts),) = played.written("event_insert")
    assert (at, kind, subject_kind, subject, actor, facts) == (
        NOW.wall, "agent_completed", "agent", "a", "a", "{}",
    )  # fmt: skip


def test_a_failed_agent_stores_its_error_in_row_and_event() -> None:
    played = finished(EndRequest(A, "failed", "no tests"), answers=(HOLDS_NOTHING, NO_PARENT))
    assert played.written("agent_end") == [("failed", "no tests", NOW.wall, None, "a")]
    assert decode(played.written("event_insert")[0][5]) == {"error": "no tests"}


@pytest.mark.parametrize("status", ["completed", "stopped"])
def test_a_completed_or_stopped_agent_leaves_pools_and_subscriptions(status: str) -> None:
    gone: Answer = ("subscription_delete", [(31,), (32,)])
    played = finished(EndRequest(A, status), answers=(HOLDS_NOTHING, gone))
    assert played.written("pool_leave_all") == [(["a"],)]
    ((at, _, boxes),) = played.written("message_expire_all")
    assert (at, boxes) == (NOW.wall, [31, 32])


def test_without_subscriptions_nothing_expires() -> None:
    played = finished(EndRequest(A, "completed"), answers=(HOLDS_NOTHING, GIVES_UP))
    assert played.written("message_expire_all") == []


def test_a_failed_agent_may_come_back_and_keeps_pools_and_subscriptions() -> None:
    played = finished(EndRequest(A, "failed"), answers=(HOLDS_NOTHING, NO_PARENT))
    assert not {"pool_leave_all", "subscription_delete", "message_expire_all"} & set(played.wrote)


def test_the_parent_of_a_failed_agent_is_notified() -> None:
    answers: tuple[Answer, ...] = (HOLDS_NOTHING, ("agent_parents", [("a", 55, "s-1")]), ("counter_take", [(8,)]))
    played = finished(EndRequest(A, "failed", "no tests"), answers=answers)
    (report,) = played.written("message_insert")
    id, message_id, mailbox, sender, type, payload = report[:6]
    assert (id, message_id, mailbox, sender, type) == (8, None, 55, BUS, "error_report")
    assert decode(payload) == {"agent": "a", "status": "failed", "error": "no tests"}
    assert "s-1" in report
    assert mailbox_channel(55) in played.woken


@pytest.mark.parametrize("status", ["completed", "failed", "stopped"])
def test_messages_it_held_are_released_or_dead_lettered(status: str) -> None:
    rows: Answer = ("message_held_by", [held(1, attempts=1), held(2, attempts=5, max_attempts=5)])
    played = finished(EndRequest(A, status), answers=(rows, NO_PARENT if status == "failed" else GIVES_UP))
    ((now, due, attempts, error, id),) = played.written("message_release")
    assert (now, due, attempts, id) == ("queued", None, 1, 1)
    assert error.startswith("a: ")
    assert status in error
    assert played.ids("message_dead_letter") == [2]
    assert mailbox_channel(10) in played.woken


def test_a_fenced_agent_cannot_end_again() -> None:
    played = finished(
        EndRequest(Actor("a", 7), "completed"), EndRequest(B, "stopped"), answers=(HOLDS_NOTHING, GIVES_UP)
    )
    assert isinstance(played.outcomes[0], AgentFenced)
    assert played.outcomes[1] is None
    assert [values[-1] for values in played.written("agent_end")] == ["b"]


def test_two_endings_of_one_incarnation_run_individually() -> None:
    # Run individually, the second is fenced.
    with pytest.raises(CannotBatch):
        finished(EndRequest(A, "completed"), EndRequest(A, "failed", "late"), answers=())


def test_a_waiting_receiver_is_woken_when_its_agent_ends() -> None:
    played = finished(EndRequest(A, "stopped"), answers=(HOLDS_NOTHING, GIVES_UP))
    assert mailbox_channel(10) in played.woken
    # And no process listens to its mailboxes any more, or is woken for it.
    own = [mailbox_channel(10), mailbox_channel(11), reach_channel(10, 1)]
    assert played.written("listener_remove") == [(own,)]


def test_many_agents_end_together_with_one_question_each() -> None:
    played = play(end(["a", "b"], "stopped", "the bus was closed", None, NOW), HOLDS_NOTHING, ALIVE, GIVES_UP)
    assert played.parameters("message_held_by") == (["a", "b"],)
    assert len(played.written("agent_end")) == 2
    assert [event[3] for event in played.written("event_insert")] == ["a", "b"]
    assert [event[4] for event in played.written("event_insert")] == [None, None]


def test_ending_no_agents_does_nothing() -> None:
    played = play(end([], "failed", None, None, NOW))
    assert (played.asked, played.statements) == ([], [])
