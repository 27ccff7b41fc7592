"""A message_id of the caller's own names one message: sent again it gives the first receipt, or a conflict."""

from __future__ import annotations

import pytest

from agentbus.core.addresses import Address, pool, topic
from agentbus.errors import MessageIdConflict
from agentbus.operations.protocol import CannotBatch, Row
from agentbus.operations.rows import Draft
from agentbus.operations.send import Receipt, SendRequest, send
from tests.operations.script import ALIVE, NOW, A, Answer, B, play, standing

TO_A, TO_B = Address("agent", "a"), Address("agent", "b")
KNOWN: Answer = ("type_known", [("note", None), ("control", None)])


def draft(
    to: Address | int = TO_B,
    type: str = "note",
    payload: str = "1",
    correlation: str | None = None,
    message_id: str | None = "id-1",
    priority: int = 5,
) -> Draft:
    return Draft(to, type, (payload, 0), priority, 5, message_id=message_id, correlation=correlation)


def sent(mailbox: int = 20, id: int = 3, topic: str | None = None, message_id: str = "id-1") -> Row:
    """A row of message_by_message_id: what ``draft()`` made of itself the first time."""
    return message_id, id, mailbox, "note", "1", None, topic


def before(*rows: Row) -> Answer:
    return "message_by_message_id", rows


def ids(last: int) -> Answer:
    return "counter_take", [(last,)]


AGAIN = ids(6)
"""The answer to a batch of repetitions only."""


def test_a_new_id_is_kept_in_the_row_and_in_the_receipt() -> None:
    played = play(send.run([SendRequest(A, (draft(),))], NOW), ALIVE, KNOWN, before(), ids(7))
    assert played.outcomes == [[Receipt(7, "id-1")]]
    assert played.written("message_insert")[0][:2] == (7, "id-1")


def test_the_same_id_with_the_same_content_gives_the_first_receipt_again() -> None:
    played = play(send.run([SendRequest(A, (draft(),))], NOW), ALIVE, KNOWN, before(sent()), AGAIN)
    assert played.outcomes == [[Receipt(3, "id-1", duplicate=True)]]
    assert played.written("message_insert") == []
    assert played.woken == []


def test_a_duplicate_is_a_commit_of_its_own_that_takes_no_id() -> None:
    # The first sender may have died before its fsync: only a commit that writes a row makes it durable too.
    played = play(send.run([SendRequest(A, (draft(),))], NOW), ALIVE, KNOWN, before(sent()), AGAIN)
    assert played.written("counter_take") == [("message", 0)]


def test_with_a_new_message_a_duplicate_needs_no_write_of_its_own() -> None:
    drafts = (draft(), draft(message_id=None))
    played = play(send.run([SendRequest(A, drafts)], NOW), ALIVE, KNOWN, before(sent()), ids(8))
    assert played.written("counter_take") == [("message", 1)]


def test_priority_and_times_are_no_part_of_the_content() -> None:
    played = play(send.run([SendRequest(A, (draft(priority=9),))], NOW), ALIVE, KNOWN, before(sent()), AGAIN)
    assert played.outcomes == [[Receipt(3, "id-1", duplicate=True)]]


def test_with_a_duplicate_the_rest_of_the_request_is_sent() -> None:
    drafts = (draft(message_id=None), draft(), draft(message_id="id-2"))
    played = play(send.run([SendRequest(A, drafts)], NOW), ALIVE, KNOWN, before(sent()), ids(8))
    assert played.outcomes == [[Receipt(7, "m-7"), Receipt(3, "id-1", duplicate=True), Receipt(8, "id-2")]]
    assert [values[0] for values in played.written("message_insert")] == [7, 8]


@pytest.mark.parametrize(
    ("again", "differs"),
    [
        (draft(TO_A), "recipient"),
        (draft(77), "recipient"),
        (draft(type="control"), "type"),
        (draft(payload="2"), "payload"),
        (draft(correlation="r-1"), "correlation"),
    ],
)
def test_the_same_id_with_other_content_is_a_conflict_that_names_the_difference(again: Draft, differs: str) -> None:
    requests = [SendRequest(A, (draft(message_id=None), again))]
    played = play(send.run(requests, NOW), ALIVE, KNOWN, before(sent()))
    (error,) = played.outcomes
    assert isinstance(error, MessageIdConflict)
    assert (error.message_id, error.differs, error.item) == ("id-1", differs, 1)
    assert played.statements == []


def test_the_order_of_keys_is_no_part_of_the_content() -> None:
    again = draft(payload='{"b":2,"a":1}')
    first = ("id-1", 3, 20, "note", '{"a":1,"b":2}', None, None)
    played = play(send.run([SendRequest(A, (again,))], NOW), ALIVE, KNOWN, before(first), AGAIN)
    assert played.outcomes == [[Receipt(3, "id-1", duplicate=True)]]


@pytest.mark.parametrize("payload", ["true", '"1"', "[1]"])
def test_what_looks_alike_in_python_is_not_the_same_payload(payload: str) -> None:
    (error,) = play(send.run([SendRequest(A, (draft(payload=payload),))], NOW), ALIVE, KNOWN, before(sent())).outcomes
    assert isinstance(error, MessageIdConflict)
    assert error.differs == "payload"


@pytest.mark.parametrize(("to", "was"), [(topic("t"), None), (topic("u"), "t"), (TO_B, "t")])
def test_another_topic_or_no_topic_is_another_recipient(to: Address, was: str | None) -> None:
    answers: list[Answer] = [ALIVE, KNOWN, before(sent(31, topic=was))]
    if to.kind == "topic":
        answers.append(("topic_mailboxes", [(to.name, 31)]))
    (error,) = play(send.run([SendRequest(A, (draft(to),))], NOW), *answers).outcomes
    assert isinstance(error, MessageIdConflict)
    assert error.differs == "recipient"


def test_another_pool_is_another_recipient() -> None:
    answers: list[Answer] = [ALIVE, KNOWN, before(sent(30)), ("pool_mailbox", [("q", 35)])]
    (error,) = play(send.run([SendRequest(A, (draft(pool("q")),))], NOW), *answers).outcomes
    assert isinstance(error, MessageIdConflict)


def test_a_publication_sent_again_counts_its_first_copies() -> None:
    copies = before(sent(31, 3, "t"), sent(32, 4, "t"))
    played = play(
        send.run([SendRequest(A, (draft(topic("t")),))], NOW),
        ALIVE, KNOWN, copies, ("topic_mailboxes", [("t", 33)]), AGAIN,
    )  # fmt: skip
    assert played.outcomes == [[Receipt(3, "id-1", delivered=2, duplicate=True)]]
    assert played.written("message_insert") == []


def test_all_copies_of_a_publication_share_its_id() -> None:
    played = play(
        send.run([SendRequest(A, (draft(topic("t")),))], NOW),
        ALIVE, KNOWN, before(), ("topic_mailboxes", [("t", 31), ("t", 32)]), ids(8),
    )  # fmt: skip
    assert [values[:3] for values in played.written("message_insert")] == [(7, "id-1", 31), (8, "id-1", 32)]
    assert played.outcomes == [[Receipt(7, "id-1", delivered=2)]]


def test_a_duplicate_to_an_agent_that_ended_meanwhile_still_gives_its_receipt() -> None:
    # The first send lost its receipt; the retry must not look as if it had failed.
    alive: Answer = ("agent_statuses", [standing("a"), standing("b", "completed", mailbox=20)])
    played = play(send.run([SendRequest(A, (draft(),))], NOW), alive, KNOWN, before(sent()), AGAIN)
    assert played.outcomes == [[Receipt(3, "id-1", duplicate=True)]]


def test_two_requests_of_a_batch_with_the_same_new_id_must_run_by_themselves() -> None:
    requests = [SendRequest(A, (draft(),)), SendRequest(B, (draft(),))]
    with pytest.raises(CannotBatch):
        play(send.run(requests, NOW), ALIVE, KNOWN, before())


def test_a_single_request_never_asks_to_be_run_by_itself() -> None:
    requests = [SendRequest(A, (draft(message_id="id-1"), draft(message_id="id-2")))]
    played = play(send.run(requests, NOW), ALIVE, KNOWN, before(), ids(2))
    assert played.outcomes == [[Receipt(1, "id-1"), Receipt(2, "id-2")]]


def test_one_id_twice_in_one_list_is_a_conflict() -> None:
    (error,) = play(send.run([SendRequest(A, (draft(), draft()))], NOW), ALIVE, KNOWN, before()).outcomes
    assert isinstance(error, MessageIdConflict)
    assert error.item == 1


def test_all_ids_of_a_batch_are_looked_up_together() -> None:
    requests = [
        SendRequest(A, (draft(message_id="id-1"),)),
        SendRequest(B, (draft(message_id="id-2"), draft(message_id=None))),
    ]
    played = play(send.run(requests, NOW), ALIVE, KNOWN, before(sent(message_id="id-2", id=4)), ids(9))
    assert sorted(played.parameters("message_by_message_id")[0]) == ["id-1", "id-2"]
    assert played.outcomes == [[Receipt(8, "id-1")], [Receipt(4, "id-2", duplicate=True), Receipt(9, "m-9")]]
