"""The shortcuts of a single claim and acknowledgement: one statement, or nothing, and then the operation runs."""

from __future__ import annotations

from typing import Any

import pytest

from agentbus.operations.protocol import Op
from agentbus.operations.receive import AckRequest, Claim, ClaimRequest, DeliveryStart, ack, claim
from agentbus.operations.rows import MessageRow
from tests.operations.script import ALIVE, NOW, A, Answer, play

ROW = MessageRow(
    id=7, message_id=None, sender="b", type="note", payload="1", checksum=1, priority=5, attempts=1, lease=3,
    session=None, correlation=None, reply_to=None, created=1, mailbox=10, expires=None, headers=None,
)  # fmt: skip
NOTHING = tuple(None for _ in ROW.__struct_fields__)
DEAD: Answer = ("agent_statuses", [])


def columns(row: MessageRow) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in row.__struct_fields__)


def wants(**options: Any) -> ClaimRequest:
    return ClaimRequest(
        **{"actor": A, "leases": (), "own": (10,), "pools": (11,), "limit": 1, "duration": 5, **options}
    )


def claims(request: ClaimRequest) -> Op[Any]:
    assert claim.shortcut is not None
    return claim.shortcut(request, NOW)


def acks(request: AckRequest) -> Op[Any]:
    assert ack.shortcut is not None
    return ack.shortcut(request, NOW)


@pytest.mark.parametrize(("counted", "attempts"), [(True, 0), (False, 1)])
def test_a_claimed_message_is_as_before_its_delivery(counted: bool, attempts: int) -> None:
    played = play(claims(wants(counted=counted)), ALIVE, ("message_claim_one", [(True, *columns(ROW))]))
    found = played.outcomes
    assert isinstance(found, Claim)
    assert (found.more, [(row.id, row.lease, row.attempts) for row in found.rows]) == (True, [(7, 2, attempts)])
    assert played.announced == ["live#leased 7"]


def test_an_empty_mailbox_tells_when_something_is_due() -> None:
    rows = [(10, 2_000_000, None, None), (11, None, 60_000, None)]
    played = play(claims(wants()), ALIVE, ("message_claim_one", [(False, *NOTHING)]), ("mailbox_horizon", rows))
    assert played.outcomes == Claim([], False, 2_000_000, 60_000)


def test_what_must_be_maintained_or_is_locked_is_left_to_the_operation() -> None:
    assert play(claims(wants()), ALIVE, ("message_claim_one", [(True, *NOTHING)])).outcomes is None
    assert play(claims(wants()), ALIVE, ("message_claim_one", [])).outcomes is None


@pytest.mark.parametrize("options", [{"limit": 2}, {"leases": ((1, 1),)}, {"minimum": 3}])
def test_a_claim_of_more_than_one_message_has_no_shortcut(options: dict[str, Any]) -> None:
    played = play(claims(wants(**options)))
    assert (played.outcomes, played.asked, played.statements) == (None, [], [])


def test_a_lease_is_acknowledged_by_its_number_and_holder() -> None:
    played = play(acks(AckRequest(A, ((7, 3),))), ALIVE, ("message_ack_one", [(7,)]))
    assert played.outcomes is True
    assert played.announced == ["live#acked 7"]
    assert played.written("message_ack_one") == [(NOW.wall, 7, 3, "a")]


def test_a_lease_that_is_lost_is_left_to_the_operation() -> None:
    assert play(acks(AckRequest(A, ((7, 3),))), ALIVE, ("message_ack_one", [])).outcomes is None


@pytest.mark.parametrize(
    "request_", [AckRequest(A, ()), AckRequest(A, ((1, 1), (2, 1))), AckRequest(A, ((1, 1),), DeliveryStart((2, 1), 1))]
)
def test_an_acknowledgement_of_more_than_one_lease_has_no_shortcut(request_: AckRequest) -> None:
    played = play(acks(request_))
    assert (played.outcomes, played.asked, played.statements) == (None, [], [])


def test_one_that_is_fenced_writes_nothing() -> None:
    for op in (claims(wants()), acks(AckRequest(A, ((7, 3),)))):
        played = play(op, DEAD)
        assert (played.outcomes, played.statements) == (None, [])
