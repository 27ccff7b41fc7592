"""Quotas: no more queries than they need, and no writes for refused requests."""

from __future__ import annotations

from agentbus.errors import BusFull, QueueFull, SendingTooFast
from agentbus.operations.protocol import Rows
from agentbus.operations.quotas import Load, admit, delete_send_counters
from tests.operations.script import NOW, play

ONE = Load("a", 1, (("agent", "b", 20),))
TEN = Load("a", 10, (("agent", "b", 20),) * 10)


def quotas(text: str) -> Rows:
    return [(text,)]


def test_without_quotas_nothing_is_asked() -> None:
    played = play(admit([ONE, None, TEN], [], NOW))
    assert played.outcomes == [None, None, None]
    assert played.asked == []


def test_each_mailbox_is_counted_once_and_no_further_than_needed() -> None:
    played = play(admit([ONE, ONE, ONE], quotas('{"depth": 5}'), NOW), ("mailbox_waiting", [(3,)]))
    assert [type(outcome) for outcome in played.outcomes] == [type(None), type(None), QueueFull]
    assert played.parameters("mailbox_waiting") == (20, 5)


def test_one_that_is_refused_takes_no_room() -> None:
    played = play(admit([TEN, ONE], quotas('{"depth": 5}'), NOW), ("mailbox_waiting", [(4,)]))
    assert [type(outcome) for outcome in played.outcomes] == [QueueFull, type(None)]


def test_time_is_used_up_only_by_what_goes_and_written_once_for_each_agent() -> None:
    now = NOW.wall * 1000
    other = Load("b", 1, ())
    played = play(
        admit([ONE, TEN, ONE, other], quotas('{"rate": 1}'), NOW),
        ("counter_value", [(now + 8_000_000,)]),
        ("counter_value", []),
    )
    assert [type(outcome) for outcome in played.outcomes] == [type(None), type(None), SendingTooFast, type(None)]
    assert played.written("counter_set") == [("sent/a", now + 19_000_000), ("sent/b", now + 1_000_000)]


def test_nothing_is_written_where_all_are_refused() -> None:
    played = play(admit([ONE], quotas('{"rate": 1}'), NOW), ("counter_value", [(NOW.wall * 1000 + 10_000_000,)]))
    assert isinstance(played.outcomes[0], SendingTooFast)
    assert played.statements == []


def test_a_full_bus_refuses_messages_and_not_replies() -> None:
    reply = Load("a", 0, ())
    played = play(admit([ONE, reply], quotas('{"size": 100}'), NOW), ("bus_size", [(100,)]))
    assert [type(outcome) for outcome in played.outcomes] == [BusFull, type(None)]


def test_an_agent_that_is_gone_has_sent_nothing() -> None:
    assert play(delete_send_counters(["a", "b"])).written("counter_drop") == [("sent/a",), ("sent/b",)]
