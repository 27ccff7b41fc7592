"""Acknowledging: one statement settles what is leased and says whose it was. What was not the caller's is undone.

The rules that it shares with the other settling operations are stated there, in test_settling, for those that look
before they write; here for the one that looks afterwards.
"""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.errors import AgentFenced, LeaseLost
from agentbus.operations.protocol import Actor, CannotBatch
from agentbus.operations.receive import AckRequest, DeliveryStart, ack
from tests.operations.script import ALIVE, NOW, A, Answer, B, Played, held, play, settled, undone

Facts = dict[str, str]

NEXT = DeliveryStart((2, 4), 3)


def acks(*leases: tuple[int, int], actor: Actor = A, start: DeliveryStart | None = None) -> AckRequest:
    return AckRequest(actor, leases, start)


def found(*rows: tuple[Any, ...]) -> Answer:
    """Answer message_held after message_ack has marked the leased ones done."""
    return "message_held", rows


def facts(played: Played[Any]) -> Facts:
    assert isinstance(played.outcomes, LeaseLost), played.outcomes
    return played.outcomes.facts


# All is held


def test_it_settles_all_leases_of_all_requests_with_one_statement() -> None:
    requests = [acks((1, 1), (2, 3)), acks((3, 1), actor=B)]
    # The database may tell them in any order.
    played = play(ack.run(requests, NOW), ALIVE, settled(held(3, holder="b"), held(2, 3), held(1)))
    assert played.outcomes == [True, True]
    assert played.written("message_ack") == [(NOW.wall, [1, 2, 3])]


def test_what_is_held_is_settled_without_looking_it_up() -> None:
    played = play(ack.run([acks((1, 1))], NOW), ALIVE, settled(held(1)))
    assert [name for name, _ in played.asked] == ["agent_statuses"]


def test_a_request_that_settles_nothing_writes_nothing() -> None:
    played = play(ack.run([acks(), acks(actor=B)], NOW), ALIVE)
    assert played.outcomes == [True, True]
    assert played.statements == []


@pytest.mark.parametrize("concurrent", [[], [acks((1, 1))]], ids=["alone", "with another"])
def test_a_request_that_settles_nothing_is_no_trouble_to_others(concurrent: list[AckRequest]) -> None:
    answers = [settled(held(1))] if concurrent else []
    played = play(ack.run([*concurrent, acks(actor=B)], NOW), ALIVE, *answers)
    assert played.outcomes[-1] is True


def test_a_request_may_name_a_lease_twice() -> None:
    played = play(ack.run([acks((1, 1), (1, 1))], NOW), ALIVE, settled(held(1)))
    assert played.outcomes == [True]


# Something is lost

LOST: dict[str, tuple[tuple[Any, ...] | None, Facts]] = {
    # The message before message_ack, and what is told of it
    "handed to another": (
        held(2, lease=2, holder="c"), {"message_id": "m-2", "status": "leased", "holder": "c"},
    ),
    "of another all along": (
        held(2, holder="c", message_id="id-2"), {"message_id": "id-2", "status": "leased", "holder": "c"},
    ),
    "handed to the same agent again": (
        held(2, lease=2), {"message_id": "m-2", "status": "leased", "holder": "a"},
    ),
    "back in the queue": (
        held(2, status="queued", holder=None), {"message_id": "m-2", "status": "queued", "holder": "no agent"},
    ),
    "done": (
        held(2, status="acked", message_id="id-2"), {"message_id": "id-2", "status": "acked", "holder": "no agent"},
    ),
    "dead": (
        held(2, status="dead"), {"message_id": "m-2", "status": "dead", "holder": "no agent"},
    ),
    "purged": (
        None, {"message_id": "m-2", "status": "purged", "holder": "no agent"},
    ),
}  # fmt: skip
lost = pytest.mark.parametrize(("before", "told"), LOST.values(), ids=LOST)


def answers_to(before: tuple[Any, ...] | None, *others: tuple[Any, ...]) -> list[Answer]:
    """Return the answers to the two statements: the second one sees the effect of the first."""
    if before is None:
        return [settled(*others), found()]
    id, lease, status, *rest = before
    after = (id, lease, "acked" if status == "leased" else status, *rest)
    return [settled(*others, before), found(after)]


@lost
@pytest.mark.parametrize("leases", [((2, 1),), ((1, 1), (2, 1), (3, 1))], ids=["alone", "among others"])
def test_a_lost_lease_is_named_as_it_was_before(
    before: tuple[Any, ...] | None, told: Facts, leases: tuple[tuple[int, int], ...]
) -> None:
    others = [held(id) for id, _ in leases if id != 2]
    played = undone(ack.run([acks(*leases)], NOW), ALIVE, *answers_to(before, *others))
    assert facts(played) == told
    assert played.parameters("message_held") == ([2],)


@lost
def test_with_a_request_that_lost_a_lease_all_must_run_by_themselves(
    before: tuple[Any, ...] | None, told: Facts
) -> None:
    # It raises: an error as the outcome would say that nothing was written for that request.
    requests = [acks((1, 1), (2, 1)), acks((3, 1), actor=B)]
    tells, _ = answers_to(before, held(1), held(3, holder="b"))
    played = undone(ack.run(requests, NOW), ALIVE, tells)
    assert isinstance(played.outcomes, CannotBatch)


def test_when_all_is_lost_nothing_else_is_written_or_woken() -> None:
    played = undone(ack.run([acks((1, 1))], NOW), ALIVE, settled(), found())
    assert isinstance(played.outcomes, LeaseLost)
    assert played.wrote == ["message_ack"]
    assert played.woken == []


def test_the_first_of_several_lost_leases_is_named() -> None:
    answers = [settled(held(1), held(3, 9)), found(held(2, status="dead"))]
    played = undone(ack.run([acks((1, 1), (2, 1), (3, 1))], NOW), ALIVE, *answers)
    assert facts(played) == {"message_id": "m-2", "status": "dead", "holder": "no agent"}


def test_two_deliveries_of_one_message_cannot_both_be_settled() -> None:
    answers = [settled(held(1, 2)), found(held(1, 2, "acked"))]
    played = undone(ack.run([acks((1, 2), (1, 1))], NOW), ALIVE, *answers)
    assert facts(played) == {"message_id": "m-1", "status": "leased", "holder": "a"}


def test_only_its_holder_settles_a_message() -> None:
    answers = [settled(held(1, holder="a")), found(held(1, status="acked", holder="a"))]
    played = undone(ack.run([acks((1, 1), actor=B)], NOW), ALIVE, *answers)
    assert facts(played) == {"message_id": "m-1", "status": "leased", "holder": "a"}


def test_two_that_settle_each_others_messages_must_run_by_themselves() -> None:
    # As many as wanted are settled, but none by its holder.
    requests = [acks((1, 1)), acks((2, 1), actor=B)]
    played = undone(ack.run(requests, NOW), ALIVE, settled(held(1, holder="b"), held(2, holder="a")))
    assert isinstance(played.outcomes, CannotBatch)


@pytest.mark.parametrize("second", [acks((1, 1)), acks((2, 1), (1, 1)), acks((1, 1), actor=B)])
def test_two_requests_that_settle_the_same_lease_must_run_by_themselves(second: AckRequest) -> None:
    # Run one after another, the second hears that the lease is lost; a batch must not change what a request means.
    played = undone(ack.run([acks((1, 1)), second], NOW), ALIVE, settled(held(1), *[held(2)][: len(second.leases) - 1]))
    assert isinstance(played.outcomes, CannotBatch)


# Fenced agents


def test_a_fenced_agent_settles_nothing() -> None:
    requests = [acks((1, 1), actor=Actor("a", 7)), acks((3, 1), actor=B)]
    played = play(ack.run(requests, NOW), ALIVE, settled(held(3, holder="b")))
    refused, fine = played.outcomes
    assert isinstance(refused, AgentFenced)
    assert fine is True
    assert played.ids("message_ack") == [3]


def test_when_all_are_fenced_nothing_is_written() -> None:
    request = acks((1, 1), actor=Actor("a", 7), start=NEXT)
    played = play(ack.run([request, request], NOW), ALIVE)
    assert [type(outcome) for outcome in played.outcomes] == [AgentFenced, AgentFenced]
    assert played.statements == []
    assert played.woken == []


def test_a_fenced_agent_does_not_block_others() -> None:
    # What it would settle or begin, another may: it does neither.
    stale = acks((3, 1), actor=Actor("a", 7), start=DeliveryStart((3, 1), 1))
    requests = [stale, acks((3, 1), actor=B), acks((1, 1))]
    played = play(ack.run(requests, NOW), ALIVE, settled(held(1), held(3, holder="b")))
    refused, *fine = played.outcomes
    assert isinstance(refused, AgentFenced)
    assert fine == [True, True]


def test_a_lost_lease_with_a_fenced_agent_is_rolled_back() -> None:
    # Whatever is raised, the driver then runs each by itself.
    requests = [acks((1, 1), actor=Actor("a", 7)), acks((3, 1), (4, 1), actor=B)]
    with pytest.raises((CannotBatch, LeaseLost)):
        play(ack.run(requests, NOW), ALIVE, settled(held(3, holder="b")), found())


# The next one is begun in the same commit


def test_acknowledging_one_begins_the_next_in_the_same_commit() -> None:
    played = play(ack.run([acks((1, 1), start=NEXT)], NOW), ALIVE, settled(held(1)), found(held(2, 4)))
    assert played.outcomes == [True]
    assert played.ids("message_ack") == [1]
    assert played.written("message_start") == [(3, 2)]


@pytest.mark.parametrize(
    "next_one",
    [[], [held(2, 5)], [held(2, 4, holder="c")], [held(2, 4, "queued")], [held(2, 4, "dead")]],
    ids=["purged", "handed out again", "of another", "back in the queue", "dead"],
)
def test_a_next_one_that_is_lost_does_not_undo_the_acknowledgement(next_one: list[tuple[Any, ...]]) -> None:
    played = play(ack.run([acks((1, 1), start=NEXT)], NOW), ALIVE, settled(held(1)), found(*next_one))
    assert played.outcomes == [False]
    assert played.ids("message_ack") == [1]
    assert played.ids("message_start") == []


def test_a_next_one_that_is_lost_is_lost_to_its_request_only() -> None:
    requests = [acks((1, 1), start=NEXT), acks((3, 1), actor=B, start=DeliveryStart((4, 1), 1)), acks((5, 1))]
    answers = [settled(held(1), held(3, holder="b"), held(5)), found(held(2, 5), held(4, holder="b"))]
    played = play(ack.run(requests, NOW), ALIVE, *answers)
    assert played.outcomes == [False, True, True]
    assert played.written("message_start") == [(1, 4)]


def test_a_refused_acknowledgement_begins_nothing() -> None:
    answers = [settled(held(1, 9)), found(held(1, 9, "acked"))]
    played = undone(ack.run([acks((1, 1), start=NEXT)], NOW), ALIVE, *answers)
    assert isinstance(played.outcomes, LeaseLost)
    assert played.wrote == ["message_ack"]


@pytest.mark.parametrize("settles_first", [True, False])
def test_what_one_begins_and_another_settles_must_run_separately(settles_first: bool) -> None:
    # Begun first it is settled with its attempt; settled first it cannot begin. Nothing is written before that is seen.
    requests = [acks((2, 4)), acks((1, 1), start=NEXT)]
    played = undone(ack.run(requests if settles_first else requests[::-1], NOW), ALIVE)
    assert isinstance(played.outcomes, CannotBatch)
    assert played.statements == []


def test_a_request_that_begins_what_it_settles_is_run_and_begins_nothing() -> None:
    request = acks((2, 4), start=NEXT)
    played = play(ack.run([request], NOW), ALIVE, settled(held(2, 4)), found(held(2, 4, "acked")))
    assert played.outcomes == [False]
    assert played.ids("message_start") == []
