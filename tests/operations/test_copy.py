"""Copying: the size of a page, which targets are refused, and that one copy writes at a time."""

from __future__ import annotations

from agentbus.core.codec import plain
from agentbus.errors import CopyOvertaken, NotEmpty, SameBus
from agentbus.operations.copy import (
    BeginRequest,
    FinishRequest,
    LoadRequest,
    Wanted,
    begin_copy,
    finish_copy,
    load_copy,
    read_page,
)
from agentbus.operations.copy_position import CopyPosition
from agentbus.operations.rows import StoredMessage
from tests.operations.script import NOW, play

HERE = CopyPosition("bus-1", "/old", "/new place", "messages", (7,), 31)
THERE = CopyPosition("bus-1", "/old", "/new place", "messages", (9,), 33)
BEGIN = BeginRequest("bus-1", "/old", "/new place")
WIDTH = len(StoredMessage.__struct_fields__)
NOTHING = [("agents", 0), ("messages", 0), ("vocabulary", 23), ("meta", 3)]


def test_a_page_of_long_rows_has_as_many_as_fit() -> None:
    wanted = Wanted("messages", (7,), 1000, 100)
    played = play(
        read_page(wanted, NOW),
        ("copy_sizes_messages", [(60,), (40,), (1,), (1,)]),
        ("copy_read_messages", [(8,), (9,)]),
    )
    assert played.parameters("copy_sizes_messages") == (7, 1000)
    assert played.parameters("copy_read_messages") == (7, 2)
    assert played.outcomes == [(8,), (9,)]


def test_a_row_that_is_too_long_by_itself_is_a_page() -> None:
    played = play(
        read_page(Wanted("documents", (0,), 1000, 100), NOW),
        ("copy_sizes_documents", [(5000,), (1,)]),
        ("copy_read_documents", [(1,)]),
    )
    assert played.parameters("copy_read_documents") == (0, 1)


def test_a_page_of_short_rows_does_not_read_their_sizes() -> None:
    played = play(read_page(Wanted("pool_members", (0, ""), 1000, 100), NOW), ("copy_read_pool_members", []))
    assert played.parameters("copy_read_pool_members") == (0, "", 1000)


def test_a_copy_starts_in_an_empty_bus_and_closes_it() -> None:
    played = play(
        begin_copy.run([BEGIN], NOW), ("meta_get", [("bus-2",)]), ("copy_counts", NOTHING), ("copy_types", [(0,)])
    )
    (place,) = played.outcomes
    assert place == CopyPosition("bus-1", "/old", "/new place", "vocabulary", ("", ""))
    assert played.wrote == ["copy_forget", "meta_set"]
    assert played.written("meta_set") == [("copying", plain(place))]


def test_a_copy_resumes_at_its_position() -> None:
    played = play(begin_copy.run([BEGIN], NOW), ("copy_position", [(plain(HERE),)]))
    assert (played.outcomes, played.wrote) == ([HERE], [])


def test_nothing_is_written_into_a_bus_that_is_not_empty() -> None:
    (outcome,) = play(
        begin_copy.run([BEGIN], NOW),
        ("meta_get", [("bus-2",)]),
        ("copy_counts", [("agents", 2), ("messages", 1200)]),
        ("copy_types", [(1,)]),
    ).outcomes
    assert isinstance(outcome, NotEmpty)
    assert outcome.what == "agents (2), messages (1,200), vocabulary (1)"
    (outcome,) = play(begin_copy.run([BEGIN], NOW), ("meta_get", [("bus-1",)])).outcomes
    assert isinstance(outcome, SameBus)


def test_rows_and_their_position_are_one_commit() -> None:
    request = LoadRequest(HERE, THERE, [(8,) * WIDTH, (9,) * WIDTH])
    played = play(load_copy.run([request], NOW), ("copy_position", [(plain(HERE),)]))
    assert played.outcomes == [THERE]
    assert played.wrote == ["copy_write_messages", "meta_set"]
    assert played.written("meta_set") == [("copying", plain(THERE))]


def test_a_copy_that_was_overtaken_writes_nothing() -> None:
    for found in ([(plain(THERE),)], []):
        played = play(load_copy.run([LoadRequest(HERE, THERE, [(8,) * WIDTH])], NOW), ("copy_position", found))
        assert isinstance(played.outcomes[0], CopyOvertaken)
        assert played.wrote == []
        played_again = play(finish_copy.run([FinishRequest(HERE)], NOW), ("copy_position", found))
        assert isinstance(played_again.outcomes[0], CopyOvertaken)
        assert played_again.wrote == []


def test_the_end_invalidates_what_counts_in_another_time_and_opens_the_bus() -> None:
    played = play(
        finish_copy.run([FinishRequest(HERE)], NOW),
        ("copy_position", [(plain(HERE),)]),
        ("process_live", []),
        ("message_leased", []),
    )
    assert played.outcomes == [None]
    assert played.written("meta_set") == [("boot", NOW.boot)]
    assert played.written("agent_forget_calls") == [(NOW.awake,)]
    assert {"copy_done", "session_forget_deadlines"} <= set(played.wrote)


def test_the_command_that_resumes_can_be_typed() -> None:
    assert HERE.command == "agentbus copy /old '/new place'"
