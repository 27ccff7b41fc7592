"""Units: operations that commit together or not at all, alone and beside other units."""

from __future__ import annotations

import pytest

from agentbus.core.addresses import Address
from agentbus.errors import AgentFenced, LeaseLost, UnknownRecipient
from agentbus.operations.agents import ProgressRequest, progress
from agentbus.operations.protocol import Actor, CannotBatch, Part, UnitRequest, unit
from agentbus.operations.receive import AckRequest, ack
from agentbus.operations.rows import Draft
from agentbus.operations.send import Receipt, SendRequest, send
from tests.operations.script import ALIVE, NOW, A, Answer, B, held, play, settled, undone

KNOWN: Answer = ("type_known", [("note", None)])


def acks(id: int, actor: Actor = A) -> Part:
    return Part(ack, AckRequest(actor, ((id, 1),)))


def sends(to: str = "b", actor: Actor = A) -> Part:
    return Part(send, SendRequest(actor, (Draft(Address("agent", to), "note", ("1", 0), 5, 5),)))


def notes(percent: int, actor: Actor = A) -> Part:
    return Part(progress, ProgressRequest(actor, percent))


def ids(last: int) -> Answer:
    return "counter_take", [(last,)]


def test_the_parts_of_a_unit_run_in_order_and_answer_in_order() -> None:
    request = UnitRequest((acks(1), sends(), notes(50)))
    answers: list[Answer] = [ALIVE, settled(held(1)), ALIVE, KNOWN, ids(7), ALIVE]
    played = play(unit.run([request], NOW), *answers)
    assert played.outcomes == [[True, [Receipt(7, "m-7")], None]]
    assert played.wrote == ["message_ack", "counter_take", "message_insert", "agent_progress"]


def test_when_the_first_part_is_refused_its_error_is_the_outcome() -> None:
    # Nothing was written yet, so that the neighbours need not be run again.
    played = play(unit.run([UnitRequest((acks(1, Actor("a", 9)), sends()))], NOW), ALIVE)
    assert isinstance(played.outcomes[0], AgentFenced)
    assert played.statements == []


def test_when_the_first_part_finds_a_lost_lease_the_unit_raises_to_roll_back() -> None:
    # It settles before it looks. No later part runs.
    request = UnitRequest((acks(1), sends()))
    answers: list[Answer] = [ALIVE, settled(held(1, lease=2)), ("message_held", [held(1, 2, "acked")])]
    played = undone(unit.run([request], NOW), *answers)
    assert isinstance(played.outcomes, LeaseLost)
    assert played.wrote == ["message_ack"]


def test_when_a_later_part_is_refused_the_unit_raises_to_roll_back() -> None:
    request = UnitRequest((acks(1), sends("unknown")))
    played = undone(unit.run([request], NOW), ALIVE, settled(held(1)), ALIVE, KNOWN)
    assert isinstance(played.outcomes, UnknownRecipient)
    assert played.ids("message_ack") == [1]


def test_units_that_wait_together_each_get_their_own_results() -> None:
    requests = [
        UnitRequest((acks(1), sends(), sends())),
        UnitRequest((acks(2, B), sends("a", B), notes(10, B))),
    ]
    answers: list[Answer] = [ALIVE, settled(held(1), held(2, holder="b")), ALIVE, KNOWN, ids(9), ALIVE]
    played = play(unit.run(requests, NOW), *answers)
    assert played.outcomes == [
        [True, [Receipt(7, "m-7")], [Receipt(8, "m-8")]],
        [True, [Receipt(9, "m-9")], None],
    ]
    assert played.ids("message_ack") == [1, 2]


def test_with_a_unit_of_a_fenced_agent_all_must_run_by_themselves() -> None:
    requests = [UnitRequest((acks(1), sends())), UnitRequest((acks(2, Actor("b", 9)),))]
    played = undone(unit.run(requests, NOW), ALIVE, settled(held(1)))
    assert isinstance(played.outcomes, CannotBatch)
    assert played.ids("message_ack") == [1]


def test_with_a_unit_that_cannot_send_all_must_run_by_themselves() -> None:
    requests = [UnitRequest((acks(1), sends())), UnitRequest((sends("unknown", B),))]
    played = undone(unit.run(requests, NOW), ALIVE, settled(held(1)), ALIVE, KNOWN, ids(9))
    assert isinstance(played.outcomes, CannotBatch)


def test_with_a_unit_that_lost_a_lease_all_must_run_by_themselves() -> None:
    requests = [UnitRequest((acks(1), sends())), UnitRequest((acks(2, B), sends("a", B)))]
    played = undone(unit.run(requests, NOW), ALIVE, settled(held(1), held(2, 2, holder="b")))
    assert isinstance(played.outcomes, CannotBatch)
    assert "message_insert" not in played.wrote


def test_a_lost_lease_of_the_only_unit_that_acknowledges_gives_up_for_all() -> None:
    # Whatever is raised, the driver then runs each by itself.
    requests = [UnitRequest((acks(1), sends())), UnitRequest((sends("a", B),))]
    with pytest.raises((CannotBatch, LeaseLost)):
        play(unit.run(requests, NOW), ALIVE, settled(), ("message_held", []))


def test_a_single_unit_never_asks_to_be_run_by_itself() -> None:
    played = play(unit.run([UnitRequest((notes(10, Actor("a", 9)),))], NOW), ALIVE)
    assert isinstance(played.outcomes[0], AgentFenced)


def test_a_unit_is_as_durable_as_its_parts() -> None:
    assert not UnitRequest((acks(1), notes(5))).durable
    assert UnitRequest((acks(1), sends())).durable


def test_the_size_of_a_unit_is_that_of_its_parts() -> None:
    # The writer bounds a batch by the weight of its requests.
    part = sends()
    assert part.request.data_size > 0
    assert getattr(UnitRequest((part, acks(1), part)), "data_size", 0) == 2 * part.request.data_size
