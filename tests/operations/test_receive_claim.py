"""Claims: who gets which message. What a claim does for its mailboxes beforehand is in test_tending."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.errors import AgentFenced, LeaseLost
from agentbus.operations.protocol import Actor, CannotBatch
from agentbus.operations.receive import Claim, ClaimRequest, claim
from agentbus.operations.rows import MessageRow
from tests.operations.script import ALIVE, NOW, A, Answer, B, Played, held, play, row, settled, undone

QUIET: Answer = ("mailbox_horizon", [(box, None, None, None) for box in (10, 20, 30)])
"""Nothing is due in any mailbox."""
NOTHING: Answer = ("message_ready", [])
NOTHING_IN_ONE: Answer = ("message_next", [])


def request(
    actor: Actor = A,
    *,
    own: tuple[int, ...] = (10,),
    pools: tuple[int, ...] = (),
    limit: int = 1,
    leases: tuple[tuple[int, int], ...] = (),
    duration: int = 1_000,
    counted: bool = True,
) -> ClaimRequest:
    return ClaimRequest(actor, leases, own, pools, limit, duration, counted)


def ready(*messages: tuple[int, int, int], boxes: int | None = None) -> list[Answer]:
    """Messages as (mailbox, priority, id), in the order the database gives them: most urgent first, then oldest. The
    claim reads ``boxes`` mailboxes, by default those of the messages."""
    ordered = sorted(messages, key=lambda message: (-message[1], message[2]))
    if (boxes or len({mailbox for mailbox, _, _ in messages})) == 1:
        return [
            ("message_next", [(mailbox, priority, *row(id, priority, mailbox)) for mailbox, priority, id in ordered])
        ]
    return [
        ("message_ready", ordered),
        ("message_rows", [row(id, priority, mailbox) for mailbox, priority, id in messages]),
    ]


def got(played: Played[Any]) -> list[list[int]]:
    """The ids that each request was given, in order."""
    return [[row.id for row in outcome.rows] if isinstance(outcome, Claim) else [] for outcome in played.outcomes]


def leases(played: Played[Any]) -> dict[int, tuple[str | None, int, bool]]:
    """Every message that was leased: to whom (None is the mailbox's owner), until when, and whether it counts."""
    return {
        id: (holder, until, counted)
        for holder, until, counted, messages, at in played.written("message_lease")
        if at == NOW.wall
        for id in messages
    }


def test_a_claim_leases_the_most_urgent_message_then_the_oldest() -> None:
    found = ready((10, 5, 1), (10, 9, 3), (10, 9, 2))
    played = play(claim.run([request(limit=2)], NOW), ALIVE, QUIET, *found)
    assert got(played) == [[2, 3]]
    assert sorted(leases(played)) == [2, 3]


def test_urgency_goes_across_all_the_mailboxes_of_a_request() -> None:
    found = ready((10, 5, 1), (20, 9, 4), (30, 9, 2), (30, 5, 3))
    played = play(claim.run([request(own=(10, 20), pools=(30,), limit=4)], NOW), ALIVE, QUIET, *found)
    assert got(played) == [[2, 4, 1, 3]]


def test_no_message_is_leased_to_two_requests() -> None:
    found = ready((30, 5, 1), (30, 5, 2), (30, 5, 3))
    requests = [request(A, own=(), pools=(30,), limit=2), request(B, own=(), pools=(30,), limit=2)]
    played = play(claim.run(requests, NOW), ALIVE, QUIET, *found)
    assert got(played) == [[1, 2], [3]]
    assert {id: holder for id, (holder, _, _) in leases(played).items()} == {1: "a", 2: "a", 3: "b"}


def test_two_requests_of_one_agent_share_its_mailbox() -> None:
    found = ready((10, 5, 1), (10, 5, 2))
    played = play(claim.run([request(), request()], NOW), ALIVE, QUIET, *found)
    assert got(played) == [[1], [2]]


def test_a_request_takes_nothing_from_mailboxes_it_does_not_read() -> None:
    found = ready((10, 5, 1), (20, 9, 2))
    played = play(claim.run([request(A), request(B, own=(20,))], NOW), ALIVE, QUIET, *found)
    assert got(played) == [[1], [2]]


def test_an_empty_claim_leases_nothing() -> None:
    played = play(claim.run([request()], NOW), ALIVE, QUIET, NOTHING_IN_ONE)
    assert played.outcomes == [Claim([], False, None, None)]
    assert played.statements == []


def test_a_claim_of_one_mailbox_needs_three_questions_and_a_lease() -> None:
    found: Answer = ("message_next", [(10, 9, *row(2)), (10, 5, *row(1)), (10, -1, None)])
    played = play(claim.run([request(limit=2)], NOW), ALIVE, QUIET, found)
    assert [name for name, _ in played.asked] == ["agent_statuses", "mailbox_horizon", "message_next"]
    assert played.parameters("message_next") == (10, 2)
    assert played.wrote == ["message_lease"]
    assert got(played) == [[2, 1]]
    assert [outcome.more for outcome in played.outcomes if isinstance(outcome, Claim)] == [True]


def test_the_database_is_asked_for_one_more_than_all_requests_want_together() -> None:
    # Otherwise a claim could not know whether something is left.
    requests = [request(A, pools=(30,), limit=3), request(B, own=(20,), pools=(30,), limit=4)]
    played = play(claim.run(requests, NOW), ALIVE, QUIET, ("message_ready", []))
    boxes, most = played.parameters("message_ready")
    assert sorted(boxes) == [10, 20, 30]
    assert most >= 8


@pytest.mark.parametrize(("limit", "more"), [(1, True), (2, True), (3, False), (4, False)])
def test_more_says_whether_something_is_left(limit: int, more: bool) -> None:
    found = ready((10, 5, 1), (10, 5, 2), (30, 7, 3))
    played = play(claim.run([request(pools=(30,), limit=limit)], NOW), ALIVE, QUIET, *found)
    (outcome,) = played.outcomes
    assert isinstance(outcome, Claim)
    assert outcome.more is more


def test_more_counts_what_neighbours_took() -> None:
    found = ready((30, 5, 1), (30, 5, 2))
    requests = [request(A, own=(), pools=(30,)), request(B, own=(), pools=(30,))]
    played = play(claim.run(requests, NOW), ALIVE, QUIET, *found)
    assert [outcome.more for outcome in played.outcomes if isinstance(outcome, Claim)] == [False, False]


def test_more_speaks_only_of_ones_own_mailboxes() -> None:
    found = ready((10, 5, 1), (20, 5, 2), (20, 5, 3))
    played = play(claim.run([request(A), request(B, own=(20,))], NOW), ALIVE, QUIET, *found)
    assert [outcome.more for outcome in played.outcomes if isinstance(outcome, Claim)] == [False, True]


def test_a_lease_lasts_for_the_duration_in_awake_time() -> None:
    found = ready((10, 5, 1), (20, 5, 2))
    requests = [request(A, duration=1_000), request(B, own=(20,), duration=60_000)]
    played = play(claim.run(requests, NOW), ALIVE, QUIET, *found)
    assert {id: until for id, (_, until, _) in leases(played).items()} == {
        1: NOW.awake + 1_000,
        2: NOW.awake + 60_000,
    }


def test_an_attempt_counts_only_when_the_message_is_delivered_at_once() -> None:
    found = ready((10, 5, 1), (20, 5, 2))
    played = play(
        claim.run([request(A, counted=True), request(B, own=(20,), counted=False)], NOW), ALIVE, QUIET, *found
    )
    assert {id: counted for id, (_, _, counted) in leases(played).items()} == {1: True, 2: False}


def test_the_holder_of_a_pooled_message_is_its_claimer() -> None:
    found = ready((10, 9, 1), (30, 5, 2))
    played = play(claim.run([request(A, own=(10,), pools=(30,), limit=2)], NOW), ALIVE, QUIET, *found)
    holders = {id: holder for id, (holder, _, _) in leases(played).items()}
    assert holders[2] == "a"
    # In a mailbox of its own the owner is the holder, told or not.
    assert holders[1] in {None, "a"}


def test_acknowledgements_travel_with_the_claim() -> None:
    found = ready((10, 5, 3))
    played = play(
        claim.run([request(leases=((1, 4), (2, 1)))], NOW),
        ALIVE, settled(held(1, 4), held(2, 1)), QUIET, *found,
    )  # fmt: skip
    assert got(played) == [[3]]
    assert played.ids("message_ack") == [1, 2]
    assert played.wrote == ["message_ack", "message_lease"]
    assert played.written("message_ack")[0][0] == NOW.wall


def test_the_acknowledgements_of_all_claims_travel_in_one_statement() -> None:
    found = ready((10, 5, 3), (20, 5, 4))
    requests = [request(A, leases=((1, 1),)), request(B, own=(20,), leases=((5, 1),))]
    played = play(claim.run(requests, NOW), ALIVE, settled(held(5, holder="b"), held(1)), QUIET, *found)
    assert got(played) == [[3], [4]]
    assert played.written("message_ack") == [(NOW.wall, [1, 5])]


def test_a_claim_with_nothing_to_acknowledge_writes_no_acknowledgement() -> None:
    played = play(claim.run([request(), request(B, own=(20,))], NOW), ALIVE, QUIET, *ready((10, 5, 1), boxes=2))
    assert played.wrote == ["message_lease"]


def test_a_lost_lease_is_named_and_its_request_leases_nothing() -> None:
    # All or none: it raises, so that what the request still held is not acknowledged either.
    answers: list[Answer] = [
        ALIVE, QUIET, NOTHING_IN_ONE, settled(held(1), held(2, 2, holder="c")),
        ("message_held", [held(2, 2, "acked", holder="c")]),
    ]  # fmt: skip
    played = undone(claim.run([request(A, leases=((1, 1), (2, 1)))], NOW), *answers)
    assert isinstance(played.outcomes, LeaseLost)
    assert played.outcomes.facts == {"message_id": "m-2", "status": "leased", "holder": "c"}
    assert played.wrote == ["message_ack"]
    assert played.woken == []


def test_with_a_claim_that_lost_a_lease_all_must_run_by_themselves() -> None:
    requests = [request(A, leases=((1, 1), (2, 1))), request(B, own=(20,), leases=((5, 1),))]
    answer = settled(held(1), held(2, lease=2, holder="c"), held(5, holder="b"))
    played = undone(claim.run(requests, NOW), ALIVE, QUIET, NOTHING, answer)
    assert isinstance(played.outcomes, CannotBatch)
    assert played.wrote == ["message_ack"]


def test_with_a_claim_that_lost_a_lease_a_plain_claim_runs_by_itself_too() -> None:
    requests = [request(A, leases=((1, 1),)), request(B, own=(20,))]
    played = undone(claim.run(requests, NOW), ALIVE, QUIET, NOTHING, settled())
    assert isinstance(played.outcomes, CannotBatch)


def test_two_claims_that_settle_the_same_lease_must_run_by_themselves() -> None:
    requests = [request(leases=((1, 1),)), request(leases=((1, 1),))]
    played = undone(claim.run(requests, NOW), ALIVE, QUIET, NOTHING_IN_ONE, settled(held(1)))
    assert isinstance(played.outcomes, CannotBatch)


def test_a_fenced_agent_acknowledges_nothing_with_its_claim() -> None:
    found = ready((20, 5, 4), boxes=2)
    requests = [request(Actor("a", 0), leases=((1, 1),)), request(B, own=(20,), leases=((5, 1),))]
    played = play(claim.run(requests, NOW), ALIVE, settled(held(5, holder="b")), QUIET, *found)
    assert isinstance(played.outcomes[0], AgentFenced)
    assert got(played) == [[], [4]]
    assert played.ids("message_ack") == [5]


def test_a_fenced_agent_claims_nothing() -> None:
    found = ready((10, 5, 3), (20, 5, 4))
    requests = [request(Actor("a", 0)), request(B, own=(20,))]
    played = play(claim.run(requests, NOW), ALIVE, QUIET, *found)
    assert isinstance(played.outcomes[0], AgentFenced)
    assert got(played) == [[], [4]]
    assert played.ids("message_lease") == [4]


def test_the_mailboxes_of_a_fenced_agent_are_left_alone() -> None:
    requests = [request(Actor("a", 0)), request(B, own=(20,))]
    due: Answer = ("mailbox_horizon", [(10, NOW.wall, None, None), (20, NOW.wall, None, None)])
    played = play(claim.run(requests, NOW), ALIVE, due, NOTHING, QUIET, NOTHING_IN_ONE)
    assert played.written("message_promote") == [(NOW.wall, [20])]


def test_when_all_are_refused_nothing_is_leased() -> None:
    played = play(
        claim.run([request(Actor("a", 9))], NOW), ALIVE, ("mailbox_horizon", []), NOTHING_IN_ONE
    )  # fmt: skip
    assert isinstance(played.outcomes[0], AgentFenced)
    assert played.statements == []


def test_the_lease_in_a_row_is_the_one_before_this_delivery() -> None:
    played = play(
        claim.run([request()], NOW), ALIVE, QUIET, ("message_next", [(10, 5, *row(1, attempts=2, lease=7))]),
    )  # fmt: skip
    (outcome,) = played.outcomes
    assert isinstance(outcome, Claim)
    assert outcome.rows == [MessageRow(*row(1, attempts=2, lease=7))]
    assert outcome.rows[0].delivered == (1, 8)


def test_where_something_is_left_that_was_not_given_there_is_more() -> None:
    given: Answer = ("message_next", [(10, 5, *row(1)), (10, -1, None)])
    played = play(claim.run([request()], NOW), ALIVE, QUIET, given)
    (outcome,) = played.outcomes
    assert (outcome.more, outcome.contested, played.again) == (True, False, [])


def test_a_claim_that_finds_everything_locked_is_contested_and_woken_again() -> None:
    requests = [request(), request(B, own=(20,))]
    played = play(claim.run(requests, NOW), ALIVE, QUIET, ("message_ready", [(10, -1, None)]))
    assert [(one.rows, one.more, one.contested) for one in played.outcomes] == [([], False, True), ([], False, False)]
    assert played.again == ["mailbox/10"]
