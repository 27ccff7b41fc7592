"""Changes of state without a database: queries, writes and wake-ups."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest

from agentbus.errors import (
    AgentBusError,
    AgentFenced,
    DamagedPayload,
    SessionEnded,
    UnknownSession,
    VersionConflict,
    WrongState,
)
from agentbus.operations.common import Budget
from agentbus.operations.protocol import Row
from agentbus.operations.state import (
    Changed,
    ChangeRequest,
    ExpireRequest,
    StateQuery,
    change_state,
    clear_state,
    expire,
    get_entry,
    get_value,
    last_change,
    list_changes,
    list_entries,
    next_expiry,
)
from tests.operations.script import ALIVE, NOW, A, Answer, B, Played, play, standing

WALL = NOW.wall


def there(
    key: str = "k",
    version: int = 3,
    *,
    scope: str = "s",
    expires: int | None = None,
    value: str | None = "1",
) -> Row:
    """A row of state_by_key, with the id 7; without a value it is a tombstone."""
    return scope, key, 7, "progress", version, expires, 500, None if value is None else crc32(value.encode())


def change(*requests: ChangeRequest, rows: list[Row] | None = None, answers: tuple[Answer, ...] = ()) -> Played[Any]:
    actors: tuple[Answer, ...] = () if all(request.actor is None for request in requests) else (ALIVE,)
    return play(change_state.run(requests, NOW), *actors, ("state_by_key", rows or []), *answers)


def numbers(last: int) -> Answer:
    return "counter_take", [(last,)]


def put(value: Any = "1", key: str = "k", scope: str = "s", **options: Any) -> ChangeRequest:
    return ChangeRequest(scope, key, (value, crc32(value.encode())), type="user_data", **options)


def add(amount: float, key: str = "k", **options: Any) -> ChangeRequest:
    return ChangeRequest("s", key, amount=amount, **options)


def test_a_new_entry_begins_with_version_1() -> None:
    played = change(put('"x"', ttl=5000, actor=A), answers=(numbers(41),))
    assert played.outcomes == [Changed(1, False)]
    assert played.written("state_insert") == [
        ("user_data", 1, 41, crc32(b'"x"'), WALL + 5000, "a", WALL, WALL, '"x"', "s", "k")
    ]
    assert played.woken == ["state/s"]


def test_a_change_keeps_when_the_entry_was_made() -> None:
    played = change(put("2"), rows=[there(expires=WALL + 1)], answers=(numbers(41),))
    assert played.outcomes == [Changed(4, True)]
    assert played.written("state_update") == [("user_data", 4, 41, crc32(b"2"), None, None, 500, WALL, "2", 7)]


@pytest.mark.parametrize("row", [there(expires=WALL), there(value=None)], ids=["expired", "tombstone"])
def test_a_deleted_entry_is_created_again_with_the_next_version(row: Row) -> None:
    played = change(put("2", if_version=0), rows=[row], answers=(numbers(41),))
    assert played.outcomes == [Changed(4, False)]
    assert played.written("state_update")[0][6] == WALL


def test_a_deletion_leaves_a_tombstone_with_the_version() -> None:
    played = change(ChangeRequest("s", "k", actor=A), rows=[there(expires=WALL + 1)], answers=(numbers(41),))
    assert played.outcomes == [Changed(3, True)]
    assert played.written("state_update") == [("progress", 3, 41, None, None, "a", 500, WALL, None, 7)]


@pytest.mark.parametrize("rows", [[], [there(expires=WALL)], [there(value=None)]])
def test_deleting_what_is_not_there_writes_nothing(rows: list[Row]) -> None:
    played = change(ChangeRequest("s", "k"), rows=rows)
    assert played.outcomes[0].existed is False
    assert played.statements == []
    assert played.woken == []


@pytest.mark.parametrize(
    ("row", "found"),
    [(there(), 3), (there(expires=WALL), 0), (there(value=None), 0), (None, 0)],
    ids=["there", "expired", "tombstone", "never"],
)
def test_a_version_that_is_not_the_present_one_writes_nothing(row: Row | None, found: int) -> None:
    for request in (put(if_version=2), ChangeRequest("s", "k", if_version=2)):
        played = change(request, rows=[row] if row else [])
        (conflict,) = played.outcomes
        assert isinstance(conflict, VersionConflict)
        assert (conflict.expected, conflict.found) == (2, found)
        assert played.statements == []


def test_many_changes_share_their_statements() -> None:
    requests = [put(str(n), key=f"k{n}", scope=f"s{n % 2}", actor=(A, B)[n % 2]) for n in range(10)]
    played = change(*requests, answers=(numbers(50),))
    assert played.outcomes == [Changed(1, False)] * 10
    assert [name for name, _ in played.asked] == ["agent_statuses", "state_by_key", "state_floors"]
    assert played.written("counter_take") == [("change", 10)]
    assert [row[2] for row in played.written("state_insert")] == list(range(41, 51))
    assert sorted(played.woken) == ["state/s0", "state/s1"]


def test_new_entries_are_inserted_and_known_ones_updated() -> None:
    requests = [put(key=key) for key in ("new", "k", "old", "other")]
    tombstone = ("s", "old", 8, *there(value=None)[3:])
    played = change(*requests, rows=[there(), tombstone], answers=(numbers(44),))
    assert [(row[2], row[10]) for row in played.written("state_insert")] == [(41, "new"), (44, "other")]
    assert [(row[2], row[9]) for row in played.written("state_update")] == [(42, 7), (43, 8)]


def test_changes_of_one_entry_happen_one_after_another_and_are_written_once() -> None:
    played = change(
        put("1"),
        put("2", if_version=3),
        put("3", if_version=4),
        ChangeRequest("s", "k"),
        ChangeRequest("s", "k"),
        put("4", if_version=0),
        rows=[there()],
        answers=(numbers(41),),
    )
    outcomes = played.outcomes
    assert outcomes[0] == Changed(4, True)
    assert isinstance(outcomes[1], VersionConflict)
    assert outcomes[2:] == [Changed(5, True), Changed(5, True), Changed(5, False), Changed(6, False)]
    ((*_, value, _),) = played.written("state_update")
    assert value == "4"
    assert played.written("counter_take") == [("change", 1)]


def test_a_fenced_actor_changes_nothing_and_others_do() -> None:
    alive: Answer = ("agent_statuses", [standing("a", epoch=2), standing("b")])
    played = play(
        change_state.run([put(actor=A), put(key="other", actor=B)], NOW), alive, ("state_by_key", []), numbers(41)
    )
    assert isinstance(played.outcomes[0], AgentFenced)
    assert played.outcomes[1] == Changed(1, False)
    assert [row[10] for row in played.written("state_insert")] == ["other"]


@pytest.mark.parametrize(
    ("rows", "error"),
    [([], UnknownSession), ([("completed",)], SessionEnded), ([("failed",)], SessionEnded)],
)
def test_the_state_of_a_session_that_is_not_open_cannot_be_changed(rows: list[Row], error: type[AgentBusError]) -> None:
    requests = [put(scope="session:x"), ChangeRequest("session:x", "k", amount=1), put(scope="s")]
    played = play(
        change_state.run(requests, NOW),
        ("session_status", rows),
        ("state_by_key", []),
        ("state_values", []),
        numbers(41),
    )
    assert [type(outcome) for outcome in played.outcomes] == [error, error, Changed]
    assert played.parameters("session_status") == ("x",)
    assert [row[9] for row in played.written("state_insert")] == ["s"]


@pytest.mark.parametrize("status", ["active", "paused", "interrupted"])
def test_the_state_of_an_open_session_can_be_changed(status: str) -> None:
    played = play(
        change_state.run([put(scope="session:x")], NOW),
        ("session_status", [(status,)]),
        ("state_by_key", []),
        numbers(41),
    )
    assert played.outcomes == [Changed(1, False)]
    assert played.woken == ["state/session:x"]


def test_adding_asks_for_the_value_and_keeps_type_and_end() -> None:
    played = change(
        add(2, actor=A),
        put("0", key="other"),
        rows=[there(expires=WALL + 9, value="40")],
        answers=(("state_values", [("s", "k", "40")]), numbers(42)),
    )
    assert played.outcomes[0] == Changed(4, True, 42)
    assert played.parameters("state_values") == ('{"s":["k"]}',)
    assert played.written("state_update")[0] == (
        "progress", 4, 41, crc32(b"42"), WALL + 9, "a", 500, WALL, "42", 7,
    )  # fmt: skip


def test_adding_to_what_is_not_there_makes_it() -> None:
    played = change(
        add(2, ttl=7), rows=[there(expires=WALL)], answers=(("state_values", [("s", "k", "1")]), numbers(41))
    )
    assert played.outcomes == [Changed(4, False, 2)]
    assert played.written("state_update") == [("user_data", 4, 41, crc32(b"2"), WALL + 7, None, WALL, WALL, "2", 7)]


def test_adding_after_a_set_of_the_same_batch_adds_to_that() -> None:
    played = change(put("10"), add(1), add(1), answers=(("state_values", []), numbers(41)))
    assert [outcome.number for outcome in played.outcomes] == [0, 11, 12]


@pytest.mark.parametrize("value", ['"1"', "null", "true", "[1]", "9223372036854775807"])
def test_a_sum_that_cannot_be_writes_nothing(value: str) -> None:
    played = change(add(1), rows=[there(value=value)], answers=(("state_values", [("s", "k", value)]),))
    assert isinstance(played.outcomes[0], WrongState)
    assert played.statements == []


def test_nothing_is_added_to_a_damaged_number() -> None:
    played = change(add(1), rows=[there(value="1")], answers=(("state_values", [("s", "k", "2")]),))
    assert isinstance(played.outcomes[0], DamagedPayload)
    assert played.statements == []


def test_what_expired_becomes_a_tombstone_with_a_change_of_its_own() -> None:
    rows = [("s", "x"), ("t", "y"), ("s", "z")]
    played = play(expire.run([ExpireRequest(), ExpireRequest()], NOW), ("state_expired", rows), numbers(43))
    assert played.outcomes == [3, 3]
    assert played.parameters("state_expired")[0] == WALL
    assert played.written("state_erase") == [(41, WALL, "s", "x"), (42, WALL, "t", "y"), (43, WALL, "s", "z")]
    assert played.woken == ["state/s", "state/t"]


def test_where_nothing_expired_nothing_is_written() -> None:
    played = play(expire.run([ExpireRequest()], NOW), ("state_expired", []))
    assert played.outcomes == [0]
    assert played.statements == []
    assert played.woken == []


def test_clearing_a_scope_deletes_every_entry_and_skips_tombstones() -> None:
    rows: list[Row] = [("a", "j", 3, 10), ("a", "k", 5, None), ("a", "l", 8, 1)]
    played = play(clear_state("a", 2, Budget(), NOW), ("state_lengths", rows), numbers(42))
    assert played.outcomes == 8
    assert played.parameters("state_lengths")[:2] == ("a", 2)
    assert [row[2:] for row in played.written("state_erase")] == [("a", "j"), ("a", "l")]
    assert played.woken == ["state/a"]


def test_clearing_a_scope_ends_where_the_budget_does() -> None:
    rows: list[Row] = [("a", "j", 3, 10), ("a", "k", 5, 100), ("a", "l", 8, 1)]
    budget = Budget(1500)
    played = play(clear_state("a", 0, budget, NOW), ("state_lengths", rows), numbers(42))
    assert budget.spent
    assert played.outcomes == 5
    assert [row[2:] for row in played.written("state_erase")] == [("a", "j"), ("a", "k")]
    assert play(clear_state("a", 5, budget, NOW)).outcomes == 5, "nothing is asked once it is spent"


# Questions


def entry(key: str = "k", value: str | None = "1", checksum: int | None = None, change: int = 9) -> Row:
    """A row of state_entry, state_list and state_changes."""
    found = checksum if checksum is not None or value is None else crc32(value.encode())
    return "s", key, "user_data", 3, change, None, "a", 1, 2, found, value


def test_a_damaged_value_is_never_returned() -> None:
    with pytest.raises(DamagedPayload, match="'k' of s"):
        play(get_value(("s", "k"), NOW), ("state_value", [("1", 0)]))
    with pytest.raises(DamagedPayload, match="'k' of s"):
        play(get_entry(("s", "k"), NOW), ("state_entry", [entry(checksum=0)]))


def test_one_damaged_value_does_not_hide_the_others() -> None:
    rows = [entry("a"), entry("b", checksum=0), entry("c", value=None)]
    for played in (
        play(list_entries(StateQuery("s", "", 10), NOW), ("state_list", rows)).outcomes.items,
        play(list_changes(StateQuery("s", "", 10), NOW), ("state_changes", rows)).outcomes,
    ):
        assert [(one.value, one.deleted) for one in played] == [(1, False), (None, False), (None, True)]
        assert [one.error is not None for one in played] == [False, True, False]


@pytest.mark.parametrize(
    ("prefix", "cursor", "low", "high"),
    [
        ("", None, "", "\x7f"),
        ("a/", None, "a/", "a/\x7f"),
        ("", "k", "k ", "\x7f"),
        ("a/", "a/1", "a/1 ", "a/\x7f"),
        ("b", "a", "b", "b\x7f"),
    ],
)
def test_a_prefix_and_a_cursor_are_one_range_of_keys(prefix: str, cursor: str | None, low: str, high: str) -> None:
    played = play(list_entries(StateQuery("s", prefix, 10, cursor), NOW), ("state_list", []))
    assert played.parameters("state_list") == ("s", low, high, WALL, 11)


def test_the_last_change_and_the_next_expiry() -> None:
    assert play(last_change(None, NOW), ("state_last_change", [(7,)])).outcomes == 7
    assert play(next_expiry("s", NOW), ("state_next_expiry", [(5,)])).outcomes == 5
    assert play(next_expiry(None, NOW), ("state_first_expiry", [(None,)])).outcomes is None
