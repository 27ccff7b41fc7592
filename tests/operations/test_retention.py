"""Retention: the rule for checkpoints, and removals that must not affect changed data."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from agentbus.core.clock import Now
from agentbus.operations.protocol import Op
from agentbus.operations.removal import Removed, RemoveRequest, remove
from agentbus.operations.retention import Piece, RetentionQuery, find_messages, find_surplus
from agentbus.records import RetentionPolicy
from tests.operations.script import NOW, Played, play, standing
from tests.support.examples import examples

DAY = 24 * 3600 * 1000
moments = st.lists(st.integers(0, 60 * DAY), max_size=80)
policies = st.builds(
    RetentionPolicy,
    checkpoints_last=st.integers(1, 10),
    checkpoints_daily=st.one_of(st.none(), st.integers(0, 20)),
)


def at(wall: int) -> Now:
    return Now(wall=wall, awake=0, boot="b")


def left(rows: list[tuple[int, int]], policy: RetentionPolicy, wall: int) -> list[tuple[int, int]]:
    """Return the rows of (id, created), oldest first, that stay."""
    gone = {id for id, _, _ in find_surplus([(id, created, 1) for id, created in reversed(rows)], policy, at(wall))}
    return [row for row in rows if row[0] not in gone]


@given(moments, policies)
@settings(max_examples=examples(200), deadline=None)
def test_the_newest_stay_and_the_last_of_each_day(times: list[int], policy: RetentionPolicy) -> None:
    rows = list(enumerate(sorted(times), 1))
    kept = left(rows, policy, 60 * DAY)
    assert kept[-policy.checkpoints_last :] == rows[-policy.checkpoints_last :]
    days = policy.checkpoints_daily
    for day in range(61):
        of_day = [row for row in rows if row[1] // DAY == day]
        if of_day and (days is None or of_day[-1][1] > 60 * DAY - days * DAY):
            assert of_day[-1] in kept
    for row in kept[: -policy.checkpoints_last]:
        assert days is None or row[1] > 60 * DAY - days * DAY
        assert row == [other for other in rows if other[1] // DAY == row[1] // DAY][-1]


@given(moments, policies)
@settings(max_examples=examples(200), deadline=None)
def test_often_or_once_comes_to_the_same(times: list[int], policy: RetentionPolicy) -> None:
    """Whatever goes early would not have stayed later."""
    rows = list(enumerate(sorted(times), 1))
    kept: list[tuple[int, int]] = []
    for row in rows:
        kept = left([*kept, row], policy, row[1])
    assert left(kept, policy, 61 * DAY) == left(rows, policy, 61 * DAY)


@given(moments, policies)
@settings(max_examples=examples(100), deadline=None)
def test_what_goes_names_the_one_that_stays_for_its_day(times: list[int], policy: RetentionPolicy) -> None:
    rows = list(enumerate(sorted(times), 1))
    kept = {id for id, _ in left(rows, policy, 60 * DAY)}
    for id, _, keeper in find_surplus([(id, created, 1) for id, created in reversed(rows)], policy, at(60 * DAY)):
        assert id not in kept
        assert keeper is None or (keeper in kept and keeper > id)


def found(*rows: tuple[object, ...]) -> list[Piece]:
    policy = RetentionPolicy(messages=100, dead_letters=200, messages_most=None)
    return list(play(find_messages(RetentionQuery(policy), NOW), ("message_ages", list(rows))).outcomes.pieces)


def test_a_message_goes_by_when_it_finished_not_by_when_it_was_sent() -> None:
    old, young = NOW.wall - 100_000, NOW.wall - 99_999
    rows = [
        (1, "acked", old, 0, 10),
        (2, "acked", young, 0, 10),
        (3, "queued", None, 0, 0),
        (4, "expired", old, 0, 10),
        (5, "dead", old, 0, 10),
        (6, "dead", NOW.wall - 200_000, 0, 10),
    ]
    assert [piece.key for piece in found(*rows)] == [1, 4, 6]


def removed(*pieces: Piece, answers: tuple[tuple[str, list[tuple[object, ...]]], ...]) -> Played[list[Removed]]:
    operation: Op[list[Removed]] = remove.run([RemoveRequest("a.gz", pieces)], NOW)  # type: ignore[assignment]
    return play(operation, *answers)


def test_removing_nothing_records_no_event() -> None:
    played = removed(Piece("message", 7, 1, (5,)), answers=(("message_remove", []),))
    assert played.outcomes == [Removed([])]
    assert played.written("event_insert") == []


def test_a_checkpoint_stays_when_newer_ones_were_deleted_meanwhile() -> None:
    pieces = [Piece("checkpoint", id, 1, ("agent", "a", "n", 2, keeper)) for id, keeper in ((1, None), (2, 3), (4, 5))]
    played = removed(
        *pieces,
        answers=(
            ("checkpoint_border", [(3,)]),
            ("checkpoint_present", [(5,)]),
            ("checkpoint_remove_all", [(1,)]),
        ),
    )
    assert played.written("checkpoint_remove_all") == [([1],)], "2 has lost its keeper, 4 is among the newest now"
    assert played.outcomes == [Removed([pieces[0]])]


def test_a_checkpoint_of_an_agent_that_came_back_stays() -> None:
    piece = Piece("checkpoint", 1, 1, ("agent", "a"))
    played = removed(piece, answers=(("agent_statuses", [standing("a")]), ("checkpoint_remove_all", [])))
    assert played.written("checkpoint_remove_all") == [([],)]


def marks(
    status: str = "completed",
    epoch: int = 1,
    ended: int | None = 5,
    updated: int = 7,
    change: int = 9,
    own: int = 0,
) -> list[object]:
    return ["a", status, epoch, ended, updated, change, own, 0]


def test_an_agent_stays_when_anything_about_it_changed() -> None:
    piece = Piece("agent", "a", 1, (True, 1, 5, 7, 9))
    for changed in (
        marks("running", 1, None),
        marks(epoch=2),
        marks(ended=6),
        marks(updated=8),
        marks(change=10),
        marks(own=1),
    ):
        played = removed(piece, answers=(("agent_marks", [tuple(changed)]), ("agent_awaited", [])))
        assert played.outcomes == [Removed([])], changed
        assert played.wrote == []
    played = removed(piece, answers=(("agent_marks", [tuple(marks())]), ("agent_awaited", [("a",)])))
    assert played.outcomes == [Removed([])], "a message came for it"


def test_a_session_stays_when_something_of_it_is_left() -> None:
    piece = Piece("session", "s1", 1, (5,))
    answers: list[list[tuple[object, ...]]] = [[], [(6, 0)], [(5, 1)], [(None, 0)]]
    for rows in answers:
        played = removed(piece, answers=(("session_left", rows),))
        assert played.outcomes == [Removed([])]
        assert played.wrote == []
