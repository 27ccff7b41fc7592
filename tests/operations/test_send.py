"""Sending: what is refused, what is written, and who is woken. Ids of the caller's own are in test_send_ids."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from agentbus.core.addresses import Address, pool, topic
from agentbus.core.codec import encode
from agentbus.errors import AgentEnded, AgentFenced, UnknownRecipient, UnknownType
from agentbus.operations.protocol import mailbox_channel, reply_channel
from agentbus.operations.rows import Draft, NewMessage
from agentbus.operations.send import Receipt, SendRequest, post, send
from tests.operations.script import ALIVE, NOW, A, Answer, B, Played, play, standing

KNOWN: Answer = ("type_known", [("note", None)])
TO_B = Address("agent", "b")
TEXT, CHECKSUM = PAYLOAD = encode({"x": "é"}, 100)


def draft(
    to: Address | int = TO_B,
    type: str = "note",
    *,
    priority: int = 5,
    delay: int = 0,
    ttl: int | None = None,
    correlation: str | None = None,
) -> Draft:
    return Draft(to, type, PAYLOAD, priority, 5, delay, ttl, correlation=correlation, session="s-1")


def ids(*, last: int) -> Answer:
    return "counter_take", [(last,)]


def row(played: Played[Any]) -> dict[str, Any]:
    """The one message that was written, by column."""
    (values,) = played.written("message_insert")
    return dict(zip(NewMessage.__struct_fields__, values, strict=True))


def test_a_message_gets_a_row_an_id_and_a_wake() -> None:
    played = play(send.run([SendRequest(A, (draft(),))], NOW), ALIVE, KNOWN, ids(last=42))
    assert played.outcomes == [[Receipt(42, "m-42")]]
    assert row(played) == {
        **dict.fromkeys(NewMessage.__struct_fields__), "id": 42, "mailbox": 20, "sender": "a", "type": "note",
        "payload": TEXT, "checksum": CHECKSUM, "priority": 5, "status": "queued", "max_attempts": 5, "session": "s-1",
        "created": NOW.wall,
    }  # fmt: skip
    assert played.woken == [mailbox_channel(20)]


def test_ids_are_consecutive_over_all_requests() -> None:
    requests = [SendRequest(A, (draft(), draft())), SendRequest(B, (draft(Address("agent", "a")),))]
    played = play(send.run(requests, NOW), ALIVE, KNOWN, ids(last=9))
    assert played.outcomes == [[Receipt(7, "m-7"), Receipt(8, "m-8")], [Receipt(9, "m-9")]]
    assert [values[0] for values in played.written("message_insert")] == [7, 8, 9]
    assert [values[2] for values in played.written("message_insert")] == [20, 20, 10]
    assert played.written("counter_take") == [("message", 3)]


def test_there_is_one_wake_for_each_row() -> None:
    played = play(send.run([SendRequest(A, (draft(), draft(), draft()))], NOW), ALIVE, KNOWN, ids(last=3))
    assert played.woken == [mailbox_channel(20)] * 3


def test_a_refused_request_takes_no_id_and_leaves_its_neighbours_alone() -> None:
    requests = [
        SendRequest(A, (draft(),)),
        SendRequest(A, (draft(), draft(Address("agent", "unknown")))),
        SendRequest(B, (draft(),)),
    ]
    played = play(send.run(requests, NOW), ALIVE, KNOWN, ids(last=2))
    first, second, third = played.outcomes
    assert first == [Receipt(1, "m-1")]
    assert isinstance(second, UnknownRecipient)
    assert third == [Receipt(2, "m-2")]
    assert len(played.written("message_insert")) == 2


def test_when_everything_is_refused_nothing_is_written() -> None:
    played = play(send.run([SendRequest(A, (draft(),))], NOW), ("agent_statuses", []), KNOWN)
    assert isinstance(played.outcomes[0], AgentFenced)
    assert played.statements == []
    assert played.woken == []


@pytest.mark.parametrize("epoch", [0, 2])
def test_a_sender_of_another_epoch_is_fenced(epoch: int) -> None:
    alive: Answer = ("agent_statuses", [standing("a", epoch=epoch), standing("b")])
    played = play(send.run([SendRequest(A, (draft(),))], NOW), alive, KNOWN)
    assert isinstance(played.outcomes[0], AgentFenced)


def test_an_unknown_type_is_refused_with_its_position() -> None:
    drafts = (draft(), draft(type="task_asignment"))
    (error,) = play(send.run([SendRequest(A, drafts)], NOW), ALIVE, KNOWN).outcomes
    assert isinstance(error, UnknownType)
    assert (error.kind, error.name, error.item) == ("message", "task_asignment", 1)


@pytest.mark.parametrize(
    ("to", "question"),
    [(Address("agent", "unknown"), None), (pool("q"), "pool_mailbox"), (topic("u"), "topic_mailboxes")],
)
def test_an_unknown_recipient_is_refused_with_its_position(to: Address, question: str | None) -> None:
    answers: list[Answer] = [ALIVE, KNOWN] if question is None else [ALIVE, KNOWN, (question, [])]
    (error,) = play(send.run([SendRequest(A, (draft(), draft(to)))], NOW), *answers).outcomes
    assert isinstance(error, UnknownRecipient)
    assert (error.kind, error.name, error.item) == (to.kind, to.name, 1)


@pytest.mark.parametrize("status", ["completed", "stopped"])
def test_a_fresh_message_to_an_ended_agent_is_refused(status: str) -> None:
    alive: Answer = ("agent_statuses", [standing("a"), standing("b", status)])
    (error,) = play(send.run([SendRequest(A, (draft(),))], NOW), alive, KNOWN).outcomes
    assert isinstance(error, AgentEnded)
    assert (error.agent, error.status, error.item) == ("b", status, 0)


@pytest.mark.parametrize("status", ["completed", "stopped"])
def test_a_reply_is_queued_even_for_an_agent_that_ended(status: str) -> None:
    alive: Answer = ("agent_statuses", [standing("a"), standing("b", status, mailbox=20)])
    reply = msgspec.structs.replace(draft(), reply=True)
    played = play(send.run([SendRequest(A, (reply,))], NOW), alive, KNOWN, ids(last=1))
    assert played.outcomes == [[Receipt(1, "m-1")]]


@pytest.mark.parametrize("status", ["pending", "spawning", "running", "suspect", "failed"])
def test_a_message_waits_for_an_agent_that_may_still_read_it(status: str) -> None:
    alive: Answer = ("agent_statuses", [standing("a"), standing("b", status, mailbox=20)])
    played = play(send.run([SendRequest(A, (draft(),))], NOW), alive, KNOWN, ids(last=1))
    assert played.outcomes == [[Receipt(1, "m-1")]]


def test_a_pool_has_one_mailbox_for_all_its_members() -> None:
    played = play(
        send.run([SendRequest(A, (draft(pool("p")),))], NOW), ALIVE, KNOWN, ("pool_mailbox", [("p", 30)]), ids(last=1)
    )
    assert played.outcomes == [[Receipt(1, "m-1", delivered=1)]]
    assert played.woken == [mailbox_channel(30)]


def test_a_topic_gives_each_subscriber_a_copy() -> None:
    boxes: Answer = ("topic_mailboxes", [("t", 31), ("t", 32), ("t", 33)])
    requests = [SendRequest(A, (draft(topic("t")), draft()))]
    played = play(send.run(requests, NOW), ALIVE, KNOWN, boxes, ids(last=4))
    assert played.outcomes == [[Receipt(1, "m-1", delivered=3), Receipt(4, "m-4")]]
    assert [(values[0], values[2]) for values in played.written("message_insert")] == [
        (1, 31), (2, 32), (3, 33), (4, 20),
    ]  # fmt: skip
    assert played.woken == [mailbox_channel(box) for box in (31, 32, 33, 20)]


def test_a_topic_without_subscribers_delivers_no_copy_and_that_is_no_error() -> None:
    unsubscribed: Answer = ("topic_mailboxes", [("t", None)])
    played = play(send.run([SendRequest(A, (draft(topic("t")),))], NOW), ALIVE, KNOWN, unsubscribed, ids(last=9))
    assert played.outcomes == [[Receipt(None, None, delivered=0)]]
    assert played.written("message_insert") == []
    assert played.woken == []


def test_a_delayed_message_is_scheduled_and_still_wakes_its_receivers() -> None:
    # They learn from their claim when it is due.
    played = play(send.run([SendRequest(A, (draft(delay=2_000),))], NOW), ALIVE, KNOWN, ids(last=1))
    assert (row(played)["status"], row(played)["due"]) == ("scheduled", NOW.wall + 2_000)
    assert played.woken == [mailbox_channel(20)]


@pytest.mark.parametrize(("delay", "expires"), [(0, 500), (2_000, 2_500)])
def test_time_to_live_counts_from_when_the_message_can_be_read(delay: int, expires: int) -> None:
    played = play(send.run([SendRequest(A, (draft(delay=delay, ttl=500),))], NOW), ALIVE, KNOWN, ids(last=1))
    assert row(played)["expires"] == NOW.wall + expires


def test_a_reply_goes_to_its_mailbox_and_wakes_only_the_requester() -> None:
    # A mailbox is always there, whatever became of its owner: replies always queue.
    played = play(send.run([SendRequest(A, (draft(77, correlation="r-1"),))], NOW), ALIVE, KNOWN, ids(last=1))
    assert row(played)["mailbox"] == 77
    assert played.woken == [reply_channel(77, "r-1")]


def test_a_correlated_message_to_an_agent_wakes_its_mailbox() -> None:
    played = play(send.run([SendRequest(A, (draft(correlation="r-1"),))], NOW), ALIVE, KNOWN, ids(last=1))
    assert played.woken == [mailbox_channel(20)]


def test_everything_a_batch_refers_to_is_looked_up_once() -> None:
    drafts = tuple(draft(to) for to in (TO_B, pool("p"), topic("t"), pool("p"), topic("u")))
    played = play(
        send.run([SendRequest(A, drafts), SendRequest(B, drafts)], NOW),
        ALIVE,
        KNOWN,
        ("pool_mailbox", [("p", 30)]),
        ("topic_mailboxes", [("t", 31), ("u", None)]),
        ids(last=8),
    )
    assert sorted(name for name, _ in played.asked) == sorted({name for name, _ in played.asked})
    assert sorted(played.parameters("topic_mailboxes")[0]) == ["t", "u"]


def test_the_bus_posts_to_mailboxes_without_asking_who_may() -> None:
    drafts = [draft(71), draft(72, correlation="r-1")]
    played = play(post(drafts, "agentbus", NOW), ids(last=6))
    assert [(values[0], values[2], values[3]) for values in played.written("message_insert")] == [
        (5, 71, "agentbus"), (6, 72, "agentbus"),
    ]  # fmt: skip
    assert played.woken == [mailbox_channel(71), reply_channel(72, "r-1")]


def test_posting_nothing_does_nothing() -> None:
    played = play(post([], "agentbus", NOW))
    assert played.statements == []
