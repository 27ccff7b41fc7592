"""Recovery without a database: possible actions, order of writes, and the comparison of plans."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec import Raw

from agentbus.core.codec import decode, digest
from agentbus.errors import (
    PlanOutdated,
    SessionEnded,
    SessionIdTaken,
    SnapshotTooLarge,
    UnknownCheckpoint,
    UnknownSession,
    WrongState,
)
from agentbus.operations.checkpoints import restored
from agentbus.operations.protocol import Row
from agentbus.operations.recovery import PlanBasis, RecoverRequest, outline_session, recover, summarize
from agentbus.operations.session_snapshots import (
    ComposeRequest,
    Composite,
    RollbackRequest,
    SavedAgent,
    SavedDocument,
    SavedEntry,
    checkpoint_session,
    rollback,
)
from agentbus.operations.sessions import StartSessionRequest
from agentbus.records import CheckpointSummary, Recovered, Rollback
from tests.operations.script import NOW, Answer, Played, play

HOME: Row = (8, "dead", "host", 41, "77", "/bell")


def session_row(status: str = "interrupted", expected: str = "{}", progress: int = 40) -> Row:
    ended = 7 if status in {"completed", "failed"} else None
    return "s", "execution", "m", status, progress, 8, expected, "{}", 5, 6, ended, None, 0


def found(
    status: str = "interrupted",
    agents: tuple[Row, ...] = (),
    documents: tuple[Row, ...] = (),
    owner: str = "dead",
    expected: str = "{}",
) -> list[Answer]:
    """A session as ``outline_session`` finds it."""
    return [
        ("session_get", [session_row(status, expected)]),
        ("session_owner", [("execution", "m", status, expected, 8, owner, "host", 41, "77", "/bell")]),
        ("agent_of_session", agents),
        ("document_list", documents),
    ]


def agent(id: str = "a", status: str = "failed", epoch: int = 1, checkpoint: int | None = None) -> Row:
    return id, "worker", status, epoch, 10, None, "crashed", checkpoint, 0


def basis(status: str = "interrupted", agents: tuple[Row, ...] = (), documents: tuple[Row, ...] = ()) -> PlanBasis:
    return PlanBasis(
        status, 6, 8, tuple((row[0], row[2], row[3]) for row in agents), tuple(row[:2] for row in documents)
    )


def acts(action: str, answers: list[Answer], plan: PlanBasis, **options: Any) -> Played[Any]:
    return play(recover.run([RecoverRequest("s", action, plan, **options)], NOW), *answers)


def events_of(played: Played[Any]) -> list[str]:
    return [event[1] for event in played.written("event_insert")]


def changing(status: str = "interrupted") -> Answer:
    return "session_owner", [("execution", "m", status, "{}", *HOME)]


def test_the_outline_of_a_session_is_what_plans_are_compared_by() -> None:
    agents, documents = (agent("a"), agent("b", "running", 3)), (("plan", 2, None, 7),)
    outlined = play(outline_session("s", NOW), *found(agents=agents, documents=documents)).outcomes
    assert outlined is not None
    record, made_of = outlined
    assert made_of == basis(agents=agents, documents=documents)
    assert record.at_work == ["b"]
    assert play(outline_session("s", NOW), ("session_get", []), ("session_owner", [])).outcomes is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"status": "active"}, "it was interrupted and is active"),
        ({"agents": (("a", "running", 2),)}, "its agents are not what they were"),
        ({"documents": (("d", 1),)}, "its documents are not what they were"),
        ({"updated": 7}, "it was continued"),
        ({"process": None}, "it was continued"),
        ({}, None),
    ],
)
def test_a_plan_says_what_has_changed_since(changed: dict[str, Any], reason: str | None) -> None:
    before = basis()
    assert before.difference(msgspec.structs.replace(before, **changed)) == reason


@pytest.mark.parametrize("action", ["resume", "complete", "abandon", "follow_on", "rollback"])
def test_a_plan_that_does_not_hold_writes_nothing(action: str) -> None:
    played = acts(action, found(agents=(agent("a", "failed", 2),)), basis(agents=(agent(),)))
    assert isinstance(played.outcomes[0], PlanOutdated)
    assert played.statements == []


def test_a_session_that_is_gone_is_unknown() -> None:
    played = acts("resume", [("session_get", []), ("session_owner", [])], basis())
    assert isinstance(played.outcomes[0], UnknownSession)


@pytest.mark.parametrize("action", ["resume", "complete", "abandon", "rollback"])
@pytest.mark.parametrize("status", ["completed", "failed"])
def test_what_has_ended_is_not_recovered(action: str, status: str) -> None:
    played = acts(action, found(status), basis(status))
    assert isinstance(played.outcomes[0], SessionEnded)
    assert played.statements == []


@pytest.mark.parametrize("action", ["complete", "abandon", "rollback", "follow_on"])
@pytest.mark.parametrize("why", ["agent", "owner"])
def test_a_session_with_live_agents_is_not_ended(action: str, why: str) -> None:
    agents = (agent("a", "running"),) if why == "agent" else ()
    status = "interrupted" if why == "agent" else "active"
    played = acts(action, found(status, agents, owner="live"), basis(status, agents))
    assert isinstance(played.outcomes[0], WrongState)
    assert played.statements == []


def test_a_resumption_continues_the_session_and_expects_its_agents() -> None:
    played = acts(
        "resume",
        [*found(agents=(agent(),)), changing(), ("agent_expect_again", [("b",), ("a",)]),
         ("participant_progress", [("m", "a", 5), ("m", "b", None), ("over", "a", 5)])],
        basis(agents=(agent(),)),
    )  # fmt: skip
    assert played.outcomes == [Recovered("resume", "s", True, ["a", "b"], remaining={"m": ["b"]})]
    assert played.written("session_change") == [("active", None, NOW.wall, None, None, "s")]
    assert played.written("agent_expect_again") == [(NOW.wall, "s", NOW.awake, None)]
    assert played.written("session_await") == [], "there is no stop_waiting"
    assert events_of(played) == ["session_continued", "session_recovered"]


def test_of_two_resumptions_in_one_batch_the_second_finds_it_done() -> None:
    request = RecoverRequest("s", "resume", basis())
    played = play(
        recover.run([request, request], NOW), *found(), changing(), ("agent_expect_again", []),
        ("participant_progress", []), *found("active"),
    )  # fmt: skip
    assert [outcome.changed for outcome in played.outcomes if isinstance(outcome, Recovered)] == [True, False]
    assert len(played.written("session_change")) == 1


def test_the_session_ends_before_those_it_waited_for_so_that_their_end_does_not_interrupt_it() -> None:
    agents = (agent("late", "pending", 0), agent("a"))
    played = acts(
        "abandon",
        [*found(agents=agents), changing(), ("session_expected", [("late",)]), ("message_held_by", []),
         ("agent_statuses", []), ("subscription_delete", [])],
        basis(agents=agents),
        reason="no",
    )  # fmt: skip
    assert played.outcomes == [Recovered("abandon", "s", True, ["late"])]
    assert played.wrote.index("session_change") < played.wrote.index("agent_end")
    assert [row[-1] for row in played.written("agent_end")] == ["late"]


def test_a_follow_on_is_there_before_its_documents_and_says_where_they_came_from() -> None:
    documents = (("plan", 3, "a", 7),)
    played = acts(
        "follow_on",
        [*found(documents=documents), ("session_owner", []), ("session_owner", []), changing()],
        basis(documents=documents),
        follow_on=StartSessionRequest("t", "execution", None, metadata='{"mine":1}'),
    )  # fmt: skip
    assert played.outcomes == [Recovered("follow_on", "s", True, [], "t")]
    assert played.wrote.index("session_insert") < played.wrote.index("document_copy")
    (row,) = played.written("session_insert")
    assert (row[0], row[2], row[3]) == ("t", "m", None)
    assert decode(row[5]) == {
        "mine": 1, "follows": {"session": "s", "operation": "execution", "documents": {"plan": 3}},
    }  # fmt: skip
    assert played.written("document_copy") == [("t", NOW.wall, "s")]


def test_an_id_that_is_taken_starts_no_follow_on() -> None:
    documents = (("plan", 3, "a", 7),)
    played = acts(
        "follow_on",
        [*found(documents=documents), changing("active")],
        basis(documents=documents),
        follow_on=StartSessionRequest("t", "execution", None),
    )
    assert isinstance(played.outcomes[0], SessionIdTaken)
    assert played.statements == []


# Composites

CONTENT: list[Answer] = [
    ("agent_of_session", [agent("a", "running", checkpoint=3)]),
    ("document_newest", [("d", 2, None, 7, "new", '{"x": 2}')]),
    ("state_there", [("a", "k", "user_data", None, 9, "a", "2")]),
    ("participant_of_session", [("m", "one", 0, 5, 6, 1, '"yes"')]),
    ("message_open_of", [(4, None, "b", "a", "note", "queued")]),
]
SIZE: Answer = ("session_size", [(40,)])
OPEN: Answer = ("session_status", [("interrupted",)])
PAST = Composite(
    "s", "execution", 10,
    [SavedDocument("d", 1, "a", 7, "old", Raw(b'{"x": 1}'))],
    [SavedEntry("a", "k", "user_data", None, 8, "a", Raw(b"1")),
     SavedEntry("a", "gone", "user_data", NOW.wall, 8, "a", Raw(b"1"))],
    [], [SavedAgent("a", "worker", "running", 0, None, 2), SavedAgent("moved", "worker", "running", 0, None, 1)], [],
)  # fmt: skip


def saves(*answers: Answer, **options: Any) -> Played[Any]:
    request = ComposeRequest("s", "n", options.pop("limit", 10_000), **options)
    return play(checkpoint_session.run([request], NOW), *answers)


def test_a_composite_holds_stored_json_to_the_byte() -> None:
    played = saves(OPEN, SIZE, ("session_get", [session_row()]), *CONTENT, ("checkpoint_insert", [(9,)]), notes="why")
    (row,) = played.written("checkpoint_insert")
    kind, owner, name, session, created, checksum, size, files, notes, _, text = row
    assert (kind, owner, name, session, created, files, notes) == ("composite", "s", "n", "s", NOW.wall, 0, "why")
    assert (checksum, size) == (digest(text.encode()), len(text))
    assert '"value":{"x": 2}' in text, "spaces and all"
    (composed,) = played.outcomes
    assert (composed.id, composed.size) == (9, size)
    again = saves(OPEN, SIZE, ("session_get", [session_row()]), *CONTENT, unless=composed.digest)
    assert again.outcomes == [type(composed)(composed.digest)]
    assert again.statements == []
    other = [*CONTENT[:4], ("message_open_of", [])]
    assert saves(OPEN, SIZE, ("session_get", [session_row()]), *other, unless=composed.digest).statements == []


def test_a_composite_that_is_too_large_writes_nothing() -> None:
    played = saves(OPEN, SIZE, ("session_get", [session_row()]), *CONTENT, limit=50)
    assert isinstance(played.outcomes[0], SnapshotTooLarge)
    assert played.statements == []


def rolls(*answers: Answer, limit: int = 10_000) -> Played[Any]:
    return play(rollback.run([RollbackRequest("s", 5, PAST, limit)], NOW), OPEN, *answers)


def test_a_rollback_saves_what_is_there_before_it_changes_anything() -> None:
    played = rolls(
        ("checkpoint_owner", [("composite", "s")]), SIZE, ("session_get", [session_row()]), *CONTENT,
        ("checkpoint_insert", [(9,)]), ("document_insert", [(1, 3)]),
        ("state_by_key", [("a", "k", 11, "user_data", 4, None, 1, 9)]), ("counter_take", [(20,)]),
        ("checkpoint_again", [(10,)]), ("message_still_open", []),
    )  # fmt: skip
    assert played.wrote[0] == "checkpoint_insert"
    assert played.outcomes == [
        Rollback("s", 5, 9, ["d"], [], {"a": ["k"]}, {"m": ["one"]}, {"a": 10}, [], ["moved"], ["a"], [])
    ]
    assert played.written("document_insert") == [("s", "d", "old", "a", NOW.wall, '{"x": 1}')]
    assert played.written("session_rewind") == [(10, NOW.wall, "s")]
    assert played.woken[:1] == ["state/a"]
    assert events_of(played) == ["session_rolled_back"]


def test_a_rollback_that_cannot_save_what_is_there_changes_nothing() -> None:
    played = rolls(
        ("checkpoint_owner", [("composite", "s")]), SIZE, ("session_get", [session_row()]), *CONTENT, limit=50
    )
    assert isinstance(played.outcomes[0], SnapshotTooLarge)
    assert played.statements == []


def test_a_checkpoint_that_was_deleted_meanwhile_is_unknown() -> None:
    played = rolls(("checkpoint_owner", []))
    assert isinstance(played.outcomes[0], UnknownCheckpoint)
    assert played.statements == []


# Checkpoints to resume from

SUMMARY = CheckpointSummary(4, "agent", "a", "n", "", None, 5, 2, 0)
NEWEST: Answer = ("checkpoint_newest_within", [msgspec.structs.astuple(SUMMARY)])


@pytest.mark.parametrize("before", ["failed", "stopped", "running", "suspect", "pending", "spawning"])
def test_an_incarnation_after_an_incomplete_one_resumes_from_the_newest_checkpoint_of_its_session(before: str) -> None:
    cut_off: list[Answer] = [] if before in {"running", "suspect"} else [("agent_cut_off", [(1,)])]
    played = play(restored("a", before, "s"), *cut_off, NEWEST)
    assert played.outcomes == SUMMARY
    assert played.parameters("checkpoint_newest_within") == ("a", "s")
    assert play(restored("a", before, None), *cut_off, ("checkpoint_newest_within", [])).outcomes is None


def test_other_incarnations_start_without_a_checkpoint() -> None:
    assert play(restored("a", None, "s")).asked == []
    for before in ("completed", "failed", "pending", "spawning"):
        played = play(restored("a", before, "s"), ("agent_cut_off", [(0,)]))
        assert played.outcomes is None


# The summary


@pytest.mark.parametrize(
    ("history", "recoveries", "rate", "mean", "median"),
    [
        ([], 0, None, None, None),
        ([(10, None, None, None)], 0, None, None, None),
        ([(10, "session_completed", 30, None)], 1, 1.0, 20, 20),
        ([(10, "session_failed", 30, None)], 1, 0.0, 20, 20),
        ([(10, "session_continued", 30, None)], 1, None, 20, 20),
        ([(10, "session_continued", 5, "session_completed")], 1, 1.0, 0, 0),
        ([(0, "session_continued", 10, "session_interrupted"), (0, "session_completed", 40, None)], 2, 0.5, 25, 25),
        ([(0, "session_failed", then, None) for then in (9, 1, 2)], 3, 0.0, 4, 2),
    ],
)  # fmt: skip
def test_past_recoveries_are_read_from_the_audit_log(
    history: list[Row], recoveries: int, rate: float | None, mean: int | None, median: int | None
) -> None:
    summary = play(
        summarize(None, NOW), ("recovery_incomplete", []), ("recovery_interrupted", []), ("recovery_dead_holders", []),
        ("recovery_history", history),
    ).outcomes  # fmt: skip
    assert (summary.recoveries, summary.success_rate) == (recoveries, rate)
    assert (summary.mean_time, summary.median_time) == (mean, median)
