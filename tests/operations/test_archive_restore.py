"""Importing rows of other programs: which are new, which exist, and which are refused."""

from __future__ import annotations

from typing import Any

from agentbus.errors import ArchiveDiffers, Outdated, UnknownSession
from agentbus.operations.archive_restore import Foreign, ImportedRow, ImportRowsRequest, import_rows
from agentbus.operations.archive_rows import (
    ArchivedAgent,
    ArchivedCheckpoint,
    ArchivedDocument,
    ArchivedMessage,
    ArchivedParticipant,
    ArchivedSession,
    ArchivedState,
    ArchivedTask,
)
from agentbus.operations.rows import StoredAgent, StoredMessage
from agentbus.operations.types import Unchecked
from tests.operations.script import NOW, Answer, Played, play

SUM = "0" * 64
BOXES: tuple[Answer, ...] = (("mailbox_find", [(5,)]), ("mailbox_find", [(6,)]))
KNOWN: Answer = ("type_known", [("x", None)])


def adopted(line: Foreign, *answers: Answer, dated: bool = True) -> Played[Any]:
    return play(import_rows.run([ImportRowsRequest((ImportedRow(line, dated),), 1)], NOW), *answers)


def an_agent(status: str, ended: int | None = None) -> ArchivedAgent:
    return ArchivedAgent(**{
        **dict.fromkeys(ArchivedAgent.__struct_fields__), "id": "a", "name": "A", "type": "worker", "kind": "resident",
        "parent": "boss", "capabilities": "[]", "metadata": "{}", "status": status, "progress": 0, "epoch": 1,
        "created": 7, "updated": 8, "ended": ended,
    })  # fmt: skip


def test_an_active_agent_is_imported_as_failed_without_a_wake() -> None:
    for status in ("running", "suspect", "spawning"):
        played = adopted(an_agent(status), ("agent_incarnation", []), KNOWN, *BOXES)
        assert played.outcomes == [[True]]
        agent = StoredAgent(*played.written("agent_restore")[0])
        assert (agent.status, agent.error, agent.ended) == ("failed", "imported", NOW.wall)
        assert (agent.cut_off, agent.mailbox, agent.replies) == (1, 5, 6)
        assert played.wrote == ["mailbox_ensure", "agent_restore", "agent_restored"]
        assert played.woken == []


def test_one_that_was_expected_or_had_ended_stays_so() -> None:
    for status, ended in (("pending", None), ("completed", 9)):
        (row,) = adopted(an_agent(status, ended), ("agent_incarnation", []), KNOWN, *BOXES).written("agent_restore")
        agent = StoredAgent(*row)
        assert (agent.status, agent.ended, agent.cut_off) == (status, ended, 0)


def test_an_existing_agent_does_not_change() -> None:
    played = adopted(an_agent("running"), ("agent_incarnation", [(1, 5, 6, None)]), ("type_known", [("worker", None)]))
    assert (played.outcomes, played.wrote) == ([[False]], [])


def test_an_unknown_type_is_defined() -> None:
    played = adopted(
        an_agent("pending"), ("agent_incarnation", []), ("type_known", []), ("type_get", []), *BOXES
    )  # fmt: skip
    assert played.written("type_define") == [("agent", "worker", "imported", None, NOW.wall)]


def a_session(status: str = "active") -> ArchivedSession:
    return ArchivedSession("s", "planning", None, status, 0, 0, "{}", "{}", None, 7, 8, None)


def test_an_active_session_is_imported_as_interrupted() -> None:
    (row,) = adopted(a_session(), ("session_restore", [("s",)])).written("session_restore")
    assert (row[3], row[8]) == ("interrupted", "imported")


def test_an_existing_session_is_the_same_if_it_was_created_at_the_same_time() -> None:
    taken: Answer = ("session_restore", [])
    assert adopted(a_session(), taken, ("session_same", [(1,)])).outcomes == [[False]]
    ((outcome,),) = adopted(a_session(), taken, ("session_same", [])).outcomes
    assert isinstance(outcome, ArchiveDiffers)
    assert adopted(a_session(), taken, dated=False).outcomes == [[False]], "its time is a guess"


def test_state_is_imported_only_where_no_entry_exists() -> None:
    line = ArchivedState("a", "k", "user_data", 1, 42, None, None, 7, 7, "1")
    played = adopted(
        line, ("state_checksum", []), ("agent_made", []), ("state_floors", [("a", 9)]), ("counter_take", [(3,)])
    )  # fmt: skip
    assert played.outcomes == [[True]]
    assert played.written("state_insert")[0][:3] == ("user_data", 10, 3), "versions never repeat"
    assert adopted(line, ("state_checksum", [(42,)])).outcomes == [[False]]
    assert adopted(line, ("state_checksum", [(None,)])).outcomes == [[False]], "what was deleted stays deleted"
    ((outcome,),) = adopted(line, ("state_checksum", [(43,)])).outcomes
    assert isinstance(outcome, ArchiveDiffers)


def test_a_document_is_a_new_version_unless_one_has_the_same_content() -> None:
    line = ArchivedDocument("s", "plan", 0, SUM, None, 7, "1")
    there: Answer = ("session_made", [(8, "completed")])
    played = adopted(line, there, ("document_alike", []), ("document_insert", [(1, 4)]))
    assert played.outcomes == [[True]]
    assert adopted(line, there, ("document_alike", [(1,)])).outcomes == [[False]]
    ((outcome,),) = adopted(line, ("session_made", [])).outcomes
    assert isinstance(outcome, UnknownSession)


def test_an_older_checkpoint_is_refused() -> None:
    line = ArchivedCheckpoint(0, "agent", "a", "n", None, 7, SUM, 1, 0, "", "[]", "1")
    new: Answer = ("checkpoint_alike", [])
    made: Answer = ("checkpoint_insert", [(9,)])
    assert adopted(line, new, ("checkpoint_newest", []), made).outcomes == [[True]]
    assert adopted(line, new, ("checkpoint_newest", [(3, 7)]), made).outcomes == [[True]]
    ((outcome,),) = adopted(line, new, ("checkpoint_newest", [(3, 8)])).outcomes
    assert isinstance(outcome, Outdated)
    assert adopted(line, ("checkpoint_alike", [(1,)])).outcomes == [[False]]


def a_message(status: str) -> ArchivedMessage:
    return ArchivedMessage(**{
        **dict.fromkeys(ArchivedMessage.__struct_fields__), "id": 0, "message_id": "old:1", "mailbox_kind": "agent",
        "mailbox_name": "b", "mailbox_owner": "b", "sender": "a", "type": "note", "payload": "1", "checksum": 42,
        "priority": 5, "status": status, "attempts": 0, "max_attempts": 5, "lease": 0, "created": 7,
        "finished": 8 if status == "acked" else None,
    })  # fmt: skip


def test_a_message_gets_a_number_and_wakes_its_receiver_if_it_waits() -> None:
    answers: tuple[Answer, ...] = (
        ("mailbox_find", [(5,)]), ("message_in_box", []), KNOWN, ("counter_take", [(12,)]),
        ("message_restore", [(12,)]),
    )  # fmt: skip
    played = adopted(a_message("queued"), *answers)
    assert (played.outcomes, played.woken) == ([[True]], ["mailbox/5"])
    written = StoredMessage(*played.written("message_restore")[0])
    assert (written.id, written.message_id, written.mailbox) == (12, "old:1", 5)
    assert adopted(a_message("acked"), *answers).woken == []
    leased = StoredMessage(*adopted(a_message("leased"), *answers).written("message_restore")[0])
    assert leased.status == "queued"


def test_a_message_is_known_again_by_its_id() -> None:
    box: Answer = ("mailbox_find", [(5,)])
    assert adopted(a_message("queued"), box, ("message_in_box", [(42, "note", "a")])).outcomes == [[False]]
    ((outcome,),) = adopted(a_message("queued"), box, ("message_in_box", [(43, "note", "a")])).outcomes
    assert isinstance(outcome, ArchiveDiffers)


def test_a_line_that_is_refused_does_not_hold_up_the_others() -> None:
    lines = (ArchivedDocument("s", "plan", 0, SUM, None, 7, "1"), an_agent("pending"))
    request = ImportRowsRequest(tuple(ImportedRow(line) for line in lines), 1)
    played = play(import_rows.run([request], NOW), ("session_made", []), ("agent_incarnation", []), KNOWN, *BOXES)
    outcomes: Any = played.outcomes[0]
    refused, taken = outcomes
    assert isinstance(refused, UnknownSession)
    assert taken is True


def test_what_belongs_to_a_session_that_is_another_one_here_is_refused_with_it() -> None:
    lines = (
        a_session(),
        ArchivedDocument("s", "plan", 0, SUM, None, 9, "1"),
        ArchivedParticipant("s", "m", "x", 0, 9, None, None, None),
        ArchivedState("session:s", "k", "user_data", 1, 42, None, None, 9, 9, "1"),
        ArchivedCheckpoint(0, "session", "s", "n", None, 9, SUM, 1, 0, "", "[]", "1"),
    )
    request = ImportRowsRequest(tuple(ImportedRow(line) for line in lines), 1)
    played = play(import_rows.run([request], NOW), ("session_restore", []), ("session_same", []))
    outcomes: Any = played.outcomes[0]
    assert [type(outcome) for outcome in outcomes] == [ArchiveDiffers] * 5
    later = ImportRowsRequest((ImportedRow(lines[1]),), 1, others=frozenset({"s"}))
    outcomes = play(import_rows.run([later], NOW)).outcomes[0]
    assert [type(outcome) for outcome in outcomes] == [ArchiveDiffers]


def test_an_active_session_or_agent_gets_no_older_rows() -> None:
    document = ArchivedDocument("s", "plan", 0, SUM, None, 7, "1")
    state = ArchivedState("a", "k", "user_data", 1, 42, None, None, 7, 7, "1")
    checkpoint = ArchivedCheckpoint(0, "session", "s", "n", None, 7, SUM, 1, 0, "", "[]", "1")
    at_work: Answer = ("session_made", [(8, "active")])
    for played in (
        adopted(document, at_work),
        adopted(checkpoint, ("checkpoint_alike", []), at_work),
        adopted(state, ("state_checksum", []), ("agent_made", [(8, "running")])),
    ):
        ((outcome,),) = played.outcomes
        assert isinstance(outcome, ArchiveDiffers)
        assert played.wrote == []
    expected: Answer = ("agent_made", [(8, "pending")])
    played = adopted(state, ("state_checksum", []), expected, ("counter_take", [(3,)]))
    assert played.outcomes == [[True]], "times are often guessed"


def test_an_unfinished_message_must_be_known_to_fit_its_type() -> None:
    asked: tuple[Answer, ...] = (("mailbox_find", [(5,)]), ("message_in_box", []), ("type_known", [("note", "{}")]))
    played = adopted(a_message("queued"), *asked)
    ((outcome,),) = played.outcomes
    assert isinstance(outcome, Unchecked)
    assert outcome.schemas == {"note": "{}"}
    assert "message_restore" not in played.wrote
    taken: tuple[Answer, ...] = (("counter_take", [(12,)]), ("message_restore", [(12,)]))
    fitting = ImportRowsRequest((ImportedRow(a_message("queued"), fits="{}"),), 1)
    assert play(import_rows.run([fitting], NOW), *asked, *taken).outcomes == [[True]]
    assert adopted(a_message("acked"), *asked, *taken).outcomes == [[True]], "history"


def a_task(status: str, workflow: str = "feature") -> ArchivedTask:
    ended = 8 if status == "completed" else None
    return ArchivedTask(
        id="t", workflow=workflow, name="T", session=None, parent=None, status=status, phase=None, auto=0, progress=0,
        note=None, generation=0, lease=0, restarts=0, backoff=1000, restarted=0, error=None, created=7, started=None,
        updated=8, ended=ended, notes="{}", context="{}", settings="{}", waits="[]", checksum=0, arguments="{}",
        result_sum=None, result=None,
    )  # fmt: skip


def test_a_task_that_had_not_ended_is_halted() -> None:
    for status, becomes in (("halted", "halted"), ("running", "halted"), ("completed", "completed")):
        played = adopted(a_task(status), ("task_known", []), ("task_restore", [(1,)]))
        assert played.outcomes == [[True]]
        assert becomes in played.written("task_restore")[0]


def test_a_task_whose_time_was_guessed_is_known_again_by_its_workflow() -> None:
    known: Answer = ("task_known", [("t", "feature", "{}")])
    assert adopted(a_task("halted"), known, dated=False).outcomes == [[False]]
    (differs,) = adopted(a_task("halted", "other"), known, known, ("task_same", []), dated=False).outcomes[0]
    assert isinstance(differs, ArchiveDiffers)
    assert adopted(a_task("halted"), known, ("task_same", [(1,)])).outcomes == [[False]]
