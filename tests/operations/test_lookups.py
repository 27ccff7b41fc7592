"""Queries: filters, pages and counters."""

from __future__ import annotations

import zlib
from typing import Any

import pytest
from msgspec.structs import replace

from agentbus.core.clock import Now
from agentbus.operations.lookups import (
    AgentFilter,
    MessageFilter,
    Seen,
    count,
    get_agent,
    get_message,
    last_seen,
    list_agents,
    list_dead,
    list_messages,
    near_matches,
    pending,
    recipient,
)
from agentbus.operations.protocol import Row
from agentbus.operations.rows import StoredMessage
from agentbus.records import QueueDepth
from tests.operations.script import NOW, Answer, play


def agent(id: str) -> Row:
    """A row of agent_get: 27 columns as in AgentRecord."""
    return (
        id, "Ada", "worker", "resident", None, None, None, '["python"]', None, None, 30, 1_500, '{"k":1}', "running",
        40, "note", 3, 1, 2_500, 900, None, 100, 110, 120, None, None, '{"verdict":"stuck"}',
    )  # fmt: skip


def message(id: int, message_id: str | None = None, text: str = '{"x":1}', crc: int | None = None) -> Row:
    """A row of message_list."""
    crc = zlib.crc32(text.encode()) if crc is None else crc
    given: dict[str, Any] = {
        "id": id, "message_id": message_id, "sender": "b", "type": "note", "payload": text, "checksum": crc,
        "priority": 5, "attempts": 0, "lease": 0, "created": 100, "mailbox": 7, "headers": '{"trace":"t-1"}',
        "status": "queued", "max_attempts": 5,
    }  # fmt: skip
    return *(given.get(column) for column in StoredMessage.__struct_fields__), "pool", "p", ""


def test_an_agent_that_is_not_there_is_none() -> None:
    assert play(get_agent("a", NOW), ("agent_get", [])).outcomes is None


def test_an_agent_is_shown_decoded_and_in_seconds() -> None:
    record = play(get_agent("a", NOW), ("agent_get", [agent("a")])).outcomes
    assert record is not None
    assert record.capabilities == ["python"]
    assert record.metadata == {"k": 1}
    assert (record.estimate, record.patience) == (1.5, 2.5)
    assert (record.last_call, record.progress, record.epoch) == (900, 40, 1)
    assert record.evidence == {"verdict": "stuck"}


def test_an_agent_was_seen_at_its_last_call_or_heartbeat() -> None:
    record = play(get_agent("a", NOW), ("agent_get", [agent("a")])).outcomes
    assert record is not None
    now = Now(wall=1_000_000, awake=5_000, boot="b")
    beats = [(3, "h", 1, 1, None, 0, 4_000, 1)]

    def seen(*answers: tuple[str, list[Row]], **changes: Any) -> Any:
        return play(last_seen([replace(record, **changes)], now), *answers).outcomes["a"]

    assert seen(("process_others", beats)) == Seen(999_000, None)
    assert seen(("process_others", [])) == Seen(995_900, None)
    # A visiting one calls, whatever its process does.
    assert seen(kind="visiting", busy_until=8_000) == Seen(995_900, 1_003_000)
    # Since the last boot it has not called, or it has ended.
    assert seen(kind="visiting", last_call=0) == Seen(None, None)
    assert seen(kind="visiting", status="stopped") == Seen(None, None)


@pytest.mark.parametrize(("rows", "cursor"), [(1, None), (2, None), (3, "b")])
def test_a_page_has_a_cursor_only_if_something_follows(rows: int, cursor: str | None) -> None:
    found = [agent(id) for id in "abc"[:rows]]
    page = play(list_agents(AgentFilter(limit=2), NOW), ("agent_list", found)).outcomes
    assert [record.id for record in page.items] == ["a", "b"][:rows]
    assert page.cursor == cursor


def test_agent_filters_reach_the_query() -> None:
    wanted = AgentFilter(("running",), "worker", "s-1", "p-1", "resident", "python", "m", 5)
    played = play(list_agents(wanted, NOW), ("agent_list", []))
    assert played.parameters("agent_list") == ("m", ["running"], "worker", "s-1", "p-1", "resident", "python", 6, None)


@pytest.mark.parametrize(("rows", "cursor"), [(2, None), (3, "8")])
def test_a_page_of_messages_continues_before_the_last_one_shown(rows: int, cursor: str | None) -> None:
    found = [message(id) for id in (9, 8, 7)[:rows]]
    page = play(list_messages(MessageFilter(limit=2), NOW), ("message_list", found)).outcomes
    assert [record.message_id for record in page.items] == ["m-9", "m-8"]
    assert page.cursor == cursor


def test_a_message_is_shown_decoded() -> None:
    (record,) = play(list_messages(MessageFilter(), NOW), ("message_list", [message(9, "id-9")])).outcomes.items
    assert (record.id, record.message_id, record.recipient, record.payload) == (9, "id-9", "pool:p", {"x": 1})
    assert (record.priority, record.status, record.created) == (5, "queued", 100)
    assert record.headers == {"trace": "t-1"}


def test_one_damaged_payload_does_not_hide_the_others() -> None:
    found = [message(9), message(8, crc=1)]
    whole, damaged = play(list_messages(MessageFilter(), NOW), ("message_list", found)).outcomes.items
    assert whole.payload == {"x": 1}
    assert damaged.payload is None
    assert damaged.error is not None
    assert "m-8" in damaged.error


@pytest.mark.parametrize(("wanted", "parameters"), [("m-7", (7, None)), ("id-7", (None, "id-7"))])
def test_a_message_is_found_by_row_or_by_its_own_id(wanted: str, parameters: tuple[Any, ...]) -> None:
    played = play(get_message(wanted, NOW), ("message_get", [message(7, "id-7")]))
    assert played.outcomes is not None
    assert played.outcomes.id == 7
    assert played.parameters("message_get") == parameters


def test_a_message_that_is_not_there_is_none() -> None:
    assert play(get_message("id-7", NOW), ("message_get", [])).outcomes is None


def test_message_filters_reach_the_query() -> None:
    wanted = MessageFilter(("queued", "dead"), "note", "b", "s-1", "r-1", ("pool", "p"), 50, 5)
    played = play(list_messages(wanted, NOW), ("message_list", []))
    expected = (50, ",queued,dead,", "note", "b", "s-1", "r-1", "pool", "p", 6, None)
    assert played.parameters("message_list") == expected


def test_dead_letters_are_paged_like_the_rest() -> None:
    found = [message(id) for id in (9, 8, 7)]
    played = play(list_dead(MessageFilter(cursor=10, limit=2), NOW), ("message_list_dead", found))
    assert [record.id for record in played.outcomes.items] == [9, 8]
    assert played.outcomes.cursor == "8"
    assert played.parameters("message_list_dead") == (10, 3)


NAMES = [("executor-1",), ("executors",), ("task_assignment",), ("zzz",)]


def test_types_that_could_have_been_meant_are_found() -> None:
    played = play(near_matches(("type", "message", "task_asignment"), NOW), ("type_names", NAMES))
    assert played.outcomes == ["task_assignment"]
    assert played.parameters("type_names") == ("message",)


@pytest.mark.parametrize(
    ("kind", "name", "found"),
    [
        ("agent", "executer-1", ["executor-1"]),
        ("pool", "executers", ["pool:executors"]),
        # One of that name and another kind comes first.
        ("agent", "plans", ["topic:plans"]),
        ("pool", "executor-1", ["executor-1", "pool:executors"]),
    ],
)
def test_recipients_that_could_have_been_meant_are_found(kind: str, name: str, found: list[str]) -> None:
    def names(of: str) -> tuple[str, list[tuple[str]]]:
        known = {"agent": ["executor-1", "zzz"], "pool": ["executors", "zzz"], "topic": ["plans"]}
        return "agent_names" if of == "agent" else "mailbox_names", [(one,) for one in known[of]]

    others = [other for other in ("agent", "pool", "topic") if other != kind]
    played = play(near_matches(("recipient", kind, name), NOW), *map(names, [*others, kind]))
    assert played.outcomes == found


def test_numbers_are_counted_and_ages_are_milliseconds() -> None:
    counts = play(
        count(5, NOW),
        ("message_counts", [("queued", 2), ("dead", 1)]),
        ("agent_counts", [("running", 1)]),
        ("queue_depths", [("agent", "a", "a", 2, NOW.wall - 500), ("pool", "p", "", 1, NOW.wall + 9)]),
        ("queue_oldest", [(NOW.wall - 500,)]),
    ).outcomes
    assert counts.messages == {"queued": 2, "dead": 1}
    assert counts.agents == {"running": 1}
    # A clock that was set back makes nothing younger than now.
    assert counts.queues == [QueueDepth("a", 2, 500), QueueDepth("pool:p", 1, 0)]
    assert counts.oldest_waiting == 500
    assert counts.since == [NOW.wall - 500, NOW.wall + 9]


def test_an_empty_bus_has_no_oldest_message() -> None:
    answers: list[Answer] = [(name, []) for name in ("message_counts", "agent_counts", "queue_depths")]
    assert play(count(5, NOW), *answers, ("queue_oldest", [(None,)])).outcomes.oldest_waiting is None


def test_mailboxes_with_something_to_do_are_named() -> None:
    played = play(pending((10, 20), NOW), ("mailbox_pending", [(20,)]))
    assert played.outcomes == [20]
    assert played.parameters("mailbox_pending") == ([10, 20], NOW.wall, NOW.awake)


@pytest.mark.parametrize(
    ("mailbox", "shown"),
    [
        (("agent", "a", "a"), "a"),
        (("pool", "p", ""), "pool:p"),
        (("subscription", "t", "a"), "topic:t"),
        (("replies", "a", "a"), "a (reply)"),
    ],
)
def test_a_mailbox_is_shown_as_its_address(mailbox: tuple[str, str, str], shown: str) -> None:
    assert recipient(*mailbox) == shown
