"""Leased messages are started, extended, released or rejected: all of a request, or none.

Acknowledging, which settles before it looks, is in test_receive_ack.
"""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.core.codec import decode
from agentbus.errors import AgentFenced, LeaseLost
from agentbus.operations.protocol import BUS, Actor, CannotBatch, Operation, mailbox_channel, reply_channel
from agentbus.operations.receive import (
    ExtendRequest,
    RejectRequest,
    ReleaseRequest,
    Settlement,
    StartDeliveryRequest,
    extend,
    reject,
    release,
    start_delivery,
)
from tests.operations.script import ALIVE, NOW, A, Answer, B, errors, held, play

Settling = tuple[Operation[Any, Any], type[Settlement], tuple[Any, ...], str]

EVERY: list[Settling] = [
    (start_delivery, StartDeliveryRequest, (2,), "message_start"),
    (extend, ExtendRequest, (1_000,), "message_extend"),
    (release, ReleaseRequest, (), "message_release"),
    (reject, RejectRequest, ("bad",), "message_dead_letter"),
]
each = pytest.mark.parametrize(
    ("operation", "kind", "rest", "query"), EVERY, ids=lambda value: getattr(value, "name", "")
)


def held_rows(*rows: tuple[Any, ...]) -> Answer:
    return "message_held", rows


@each
def test_it_settles_all_leases_of_all_requests(
    operation: Operation[Any, Any], kind: type[Settlement], rest: tuple[Any, ...], query: str
) -> None:
    requests = [kind(A, ((1, 1), (2, 3)), *rest), kind(B, ((3, 1),), *rest)]
    played = play(operation.run(requests, NOW), ALIVE, held_rows(held(1), held(2, 3), held(3, holder="b")))
    assert errors(played.outcomes) == []
    assert played.ids(query) == [1, 2, 3]


@each
@pytest.mark.parametrize(
    ("found", "facts"),
    [
        (held(2, lease=2, holder="c"), {"message_id": "m-2", "status": "leased", "holder": "c"}),
        (held(2, status="queued", holder=None), {"message_id": "m-2", "status": "queued", "holder": "no agent"}),
        (held(2, status="acked", message_id="id-2"), {"message_id": "id-2", "status": "acked", "holder": "no agent"}),
        (held(2, status="dead", holder="a"), {"message_id": "m-2", "status": "dead", "holder": "no agent"}),
        (None, {"message_id": "m-2", "status": "purged", "holder": "no agent"}),
    ],
    ids=["handed to another", "back in the queue", "done", "dead", "purged"],
)
def test_one_lost_lease_refuses_its_whole_request_and_no_other(
    operation: Operation[Any, Any],
    kind: type[Settlement],
    rest: tuple[Any, ...],
    query: str,
    found: tuple[Any, ...] | None,
    facts: dict[str, str],
) -> None:
    requests = [kind(A, ((1, 1), (2, 1)), *rest), kind(B, ((3, 1),), *rest)]
    rows = [held(1), held(3, holder="b")] + ([] if found is None else [found])
    played = play(operation.run(requests, NOW), ALIVE, held_rows(*rows))
    lost, fine = played.outcomes
    assert isinstance(lost, LeaseLost)
    assert lost.facts == facts
    assert errors([fine]) == []
    assert played.ids(query) == [3]


@each
def test_a_fenced_agent_settles_nothing(
    operation: Operation[Any, Any], kind: type[Settlement], rest: tuple[Any, ...], query: str
) -> None:
    requests = [kind(Actor("a", 7), ((1, 1),), *rest), kind(B, ((3, 1),), *rest)]
    played = play(operation.run(requests, NOW), ALIVE, held_rows(held(1), held(3, holder="b")))
    assert isinstance(played.outcomes[0], AgentFenced)
    assert played.ids(query) == [3]


@each
def test_when_all_are_refused_no_message_changes(
    operation: Operation[Any, Any], kind: type[Settlement], rest: tuple[Any, ...], query: str
) -> None:
    played = play(operation.run([kind(A, ((1, 1),), *rest)], NOW), ALIVE, held_rows())
    assert len(errors(played.outcomes)) == 1
    assert played.ids(query) == []
    assert played.woken == []


@each
def test_only_its_holder_settles_a_message(
    operation: Operation[Any, Any], kind: type[Settlement], rest: tuple[Any, ...], query: str
) -> None:
    played = play(operation.run([kind(B, ((1, 1),), *rest)], NOW), ALIVE, held_rows(held(1, holder="a")))
    (lost,) = played.outcomes
    assert isinstance(lost, LeaseLost)
    assert lost.holder == "a"
    assert played.ids(query) == []


def test_beginning_stores_the_attempts_and_does_not_increment_them() -> None:
    # Two callers that begin the same message count one attempt.
    played = play(
        start_delivery.run([StartDeliveryRequest(A, ((1, 1),), 3)], NOW), ALIVE, held_rows(held(1, attempts=2))
    )
    assert played.written("message_start") == [(3, 1)]


def test_a_lease_is_extended_in_awake_time_from_now() -> None:
    requests = [ExtendRequest(A, ((1, 1),), 1_000), ExtendRequest(B, ((2, 1),), 9_000)]
    played = play(extend.run(requests, NOW), ALIVE, held_rows(held(1), held(2, holder="b")))
    assert played.written("message_extend") == [(NOW.awake + 1_000, 1), (NOW.awake + 9_000, 2)]


def test_a_released_message_is_ready_at_once_and_wakes_its_mailbox() -> None:
    played = play(release.run([ReleaseRequest(A, ((1, 1),))], NOW), ALIVE, held_rows(held(1, attempts=2)))
    assert played.written("message_release") == [("queued", None, 2, None, 1)]
    assert played.woken == [mailbox_channel(10)]


def test_a_message_released_with_a_delay_is_due_later_and_keeps_its_error() -> None:
    request = ReleaseRequest(A, ((1, 1),), delay=3_000, error="overloaded")
    played = play(release.run([request], NOW), ALIVE, held_rows(held(1, attempts=2)))
    assert played.written("message_release") == [("scheduled", NOW.wall + 3_000, 2, "overloaded", 1)]
    # Its receivers must learn when it is due.
    assert played.woken == [mailbox_channel(10)]


def test_there_is_one_wake_for_each_released_message() -> None:
    request = ReleaseRequest(A, ((1, 1), (2, 1)))
    played = play(release.run([request], NOW), ALIVE, held_rows(held(1), held(2, mailbox=30)))
    assert played.woken == [mailbox_channel(10), mailbox_channel(30)]


def test_a_delivery_that_does_not_count_restores_the_attempts() -> None:
    request = ReleaseRequest(A, ((1, 1), (2, 1)), restore=(2, 0))
    played = play(release.run([request], NOW), ALIVE, held_rows(held(1, attempts=3), held(2, attempts=1)))
    assert played.written("message_release") == [("queued", None, 2, None, 1), ("queued", None, 0, None, 2)]


def test_a_last_attempt_that_does_not_count_makes_no_dead_letter() -> None:
    request = ReleaseRequest(A, ((1, 1),), restore=(4,))
    played = play(release.run([request], NOW), ALIVE, held_rows(held(1, attempts=5, max_attempts=5)))
    assert played.ids("message_release") == [1]
    assert played.ids("message_dead_letter") == []


def test_a_reserved_message_is_released_without_an_attempt() -> None:
    played = play(
        release.run([ReleaseRequest(A, ((1, 1),))], NOW), ALIVE, held_rows(held(1, attempts=4, max_attempts=5))
    )
    assert played.written("message_release") == [("queued", None, 4, None, 1)]


def test_releasing_the_last_attempt_makes_a_dead_letter_with_the_error() -> None:
    request = ReleaseRequest(A, ((1, 1), (2, 1)), delay=9_000, error="no model")
    rows = held_rows(held(1, attempts=5, max_attempts=5), held(2, attempts=4, max_attempts=5))
    played = play(release.run([request], NOW), ALIVE, rows)
    assert played.outcomes == [None]
    assert played.written("message_dead_letter") == [("no model", NOW.wall, 1)]
    assert played.ids("message_release") == [2]


def test_a_dead_letter_without_an_error_says_how_it_came_to_be() -> None:
    played = play(
        release.run([ReleaseRequest(A, ((1, 1),))], NOW), ALIVE, held_rows(held(1, attempts=3, max_attempts=3))
    )
    ((reason, _, _),) = played.written("message_dead_letter")
    assert "attempt 3 of 3" in reason


def test_a_rejected_message_is_a_dead_letter_at_once() -> None:
    played = play(reject.run([RejectRequest(A, ((1, 1),), "bad")], NOW), ALIVE, held_rows(held(1, attempts=1)))
    assert played.outcomes == [None]
    assert played.written("message_dead_letter") == [("bad", NOW.wall, 1)]


def test_a_dead_letter_is_in_the_audit_log() -> None:
    played = play(reject.run([RejectRequest(A, ((1, 1),), "bad")], NOW), ALIVE, held_rows(held(1, message_id="id-1")))
    ((at, kind, subject_kind, subject, actor, facts),) = played.written("event_insert")
    assert (at, kind, subject_kind, subject, actor) == (NOW.wall, "message_dead", "message", "id-1", "a")
    assert decode(facts) == {"type": "note", "error": "bad"}
    assert "events" in played.woken


@pytest.mark.parametrize("operation", ["reject", "release"])
def test_the_requester_of_a_dead_request_gets_a_report(operation: str) -> None:
    rows = held_rows(held(1, attempts=5, max_attempts=5, correlation="r-1", reply_to=77))
    if operation == "reject":
        op = reject.run([RejectRequest(A, ((1, 1),), "bad")], NOW)
    else:
        op = release.run([ReleaseRequest(A, ((1, 1),), error="bad")], NOW)
    played = play(op, ALIVE, rows, ("counter_take", [(9,)]))
    (report,) = played.written("message_insert")
    id, message_id, mailbox, sender, type, payload = report[:6]
    assert (id, message_id, mailbox, sender, type) == (9, None, 77, BUS, "error_report")
    assert decode(payload) == {"request": "m-1", "dead": "bad"}
    assert "r-1" in report
    assert reply_channel(77, "r-1") in played.woken


def test_a_dead_letter_that_was_no_request_sends_no_report() -> None:
    played = play(reject.run([RejectRequest(A, ((1, 1),), "bad")], NOW), ALIVE, held_rows(held(1, correlation="r-1")))
    assert played.written("message_insert") == []


def test_a_report_expires_with_its_request() -> None:
    rows = held_rows(held(1, correlation="r-1", reply_to=77, expires=NOW.wall + 4_000))
    played = play(reject.run([RejectRequest(A, ((1, 1),), "bad")], NOW), ALIVE, rows, ("counter_take", [(9,)]))
    (report,) = played.written("message_insert")
    assert NOW.wall + 4_000 in report


@each
def test_two_requests_that_settle_the_same_lease_must_run_by_themselves(
    operation: Operation[Any, Any], kind: type[Settlement], rest: tuple[Any, ...], query: str
) -> None:
    # Run one after another, the second hears that the lease is lost; a batch must not change what a request means.
    requests = [kind(A, ((1, 1),), *rest), kind(A, ((1, 1),), *rest)]
    with pytest.raises(CannotBatch):
        play(operation.run(requests, NOW), ALIVE, held_rows(held(1)))


@each
def test_a_single_request_never_asks_to_be_run_by_itself(
    operation: Operation[Any, Any], kind: type[Settlement], rest: tuple[Any, ...], query: str
) -> None:
    played = play(operation.run([kind(A, ((1, 1), (1, 1)), *rest)], NOW), ALIVE, held_rows(held(1)))
    assert errors(played.outcomes) == []


def test_a_message_released_to_an_ended_subscription_expires() -> None:
    request = ReleaseRequest(A, ((1, 1), (2, 1)))
    messages = ("message_held", [held(1, mailbox=10), held(2, mailbox=30)])
    played = play(release.run([request], NOW), ALIVE, messages, ("mailbox_unsubscribed", [(30,)]))
    assert played.outcomes == [None]
    assert played.written("message_expire_all") == [(NOW.wall, "the subscription ended", [30])]
