"""Tables fit the terminal, and do not wrap what a user may want to copy."""

from __future__ import annotations

import io
from typing import Any
from unittest.mock import patch

import pytest
from rich.cells import cell_len
from rich.console import Console

from agentbus.cli import rich_output
from agentbus.cli.commands.events import _shown
from agentbus.cli.commands.maintenance import Imported, _diagnosis, _named
from agentbus.cli.commands.recovery import COLUMNS as INCOMPLETE
from agentbus.cli.commands.recovery import _plan, _terminal
from agentbus.cli.commands.tasks import ASKED
from agentbus.cli.output import Result, Rows
from agentbus.records import ImportProblem, ImportReport, RecoveryOption, RecoveryRecord, SessionRecord

AGENTS = ("id", "type", "status:status", "progress:percent", "note", "session", "updated:time")
NOTE = "writing the tests of the second milestone, then its documents"


def drawn(result: Result, width: int) -> list[str]:
    """Render the output on a terminal of this width."""
    screen = io.StringIO()
    with patch.object(rich_output, "Console", lambda: Console(file=screen, width=width)):
        result.show()
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def agents(note: str | None = NOTE) -> Rows:
    row: dict[str, Any] = {
        "id": "planning-001", "type": "coordinator", "status": "running", "progress": 40, "note": note,
        "session": "planning-session-001", "updated": 0,
    }  # fmt: skip
    return Rows([row], AGENTS)


@pytest.mark.parametrize("width", [200, 120, 100, 80, 60, 45])
def test_no_id_type_or_status_is_folded(width: int) -> None:
    lines = drawn(agents(), width)
    # Where there is little room, the type is left out rather than the note.
    names = ["planning-001", "running"] if width == 45 else ["planning-001", "coordinator", "running"]
    assert lines[1].split()[: len(names)] == names
    assert max(map(len, lines)) <= width


def test_only_prose_is_folded_and_between_words() -> None:
    lines = drawn(agents(), 80)
    begin = lines[0].index("note")
    gone = next(line for line in lines if line.startswith("not shown:"))
    assert gone == "not shown: session; --json has all"
    folded = [line[begin : begin + 40].partition("  ")[0] for line in lines[1 : lines.index(gone)]]
    assert " ".join(folded).split() == NOTE.split()
    assert "not shown" not in "".join(drawn(agents(), 200))


def test_what_nothing_is_in_goes_first_and_unsaid() -> None:
    """It has no loss to tell of, and what is beside it is of more use."""
    row = {"id": "planning-001", "phase": None, "waits_for": None, "name": "the first of all plans"}
    lines = drawn(Rows([row], ("id", "phase", "waits_for", "name")), 40)
    assert lines == ["id            name", "planning-001  the first of all plans"]
    assert "waits for" in drawn(Rows([row], ("id", "phase", "waits_for", "name")), 80)[0]


def test_numbers_stand_to_the_right() -> None:
    lines = drawn(Rows([{"id": "a", "count": 1}, {"id": "b", "count": 1000}], ("id", "count")), 80)
    assert lines[1:] == ["a       1", "b    1000"]


@pytest.mark.parametrize("width", [1, 5, 20, 30])
def test_a_terminal_without_room_gets_lines(width: int) -> None:
    text = " ".join(drawn(agents(None), width)).replace(" ", "")
    assert "planning-001" in text
    assert "running" in text


def test_events_have_facts_that_can_be_read() -> None:
    event = {
        "id": 7, "at": 0, "kind": "agent_registered", "subject_kind": "agent", "subject": "coord-001", "actor": None,
        "facts": {"epoch": 2, "type": "coordinator", "before": None, "note": "\x1b[2Jx"},
    }  # fmt: skip
    shown = " ".join(" ".join(drawn(_shown([event]), 80)).split())
    assert "agent:coord-001" in shown
    assert "epoch=2 type=coordinator" in shown
    assert not {"{", "\x1b", "before"} & {*shown, *shown.split()}


def test_what_the_doctor_advises_stands_below_what_it_found() -> None:
    check = {"name": "disk", "status": "warning", "text": "3 MiB free", "fix": "make room"}
    lines = drawn(Rows([check], ("status:status", "name", "text", "fix"), terminal=_diagnosis), 80)
    assert [line.strip() for line in lines] == ["status   finding", "warning  disk: 3 MiB free", "→ make room"]


def test_of_who_is_incomplete_the_reason_is_seen_before_the_rest() -> None:
    agent = {
        "id": "executor-001", "type": "coordinator", "status": "failed", "session": "planning-001", "progress": 40,
        "note": NOTE, "updated": 0, "error": "the tests cannot be made to pass",
    }  # fmt: skip
    lines = drawn(Rows([agent], INCOMPLETE, terminal=_terminal), 80)
    assert lines[0].split()[:4] == ["id", "status", "error", "updated"]
    assert lines[1].split()[:2] == ["executor-001", "failed"]


def test_a_backup_is_shown_by_a_name_that_can_be_copied() -> None:
    backup = {"path": f"/a/{'long/' * 20}bus-20261116T100750.099Z-34e30170.db", "size": 10, "created": 0}
    lines = drawn(Rows([backup], ("path", "size:bytes", "created:time"), terminal=_named), 80)
    assert lines[1].split()[0] == "bus-20261116T100750.099Z-34e30170.db"


def words(lines: list[str]) -> list[str]:
    return " ".join(lines).split()


def in_column(lines: list[str], heading: str) -> list[str]:
    """The words below a heading of the last column."""
    top = next(index for index, line in enumerate(lines) if heading in line.split())
    begin = lines[top].index(heading)
    return words([line[begin:] for line in lines[top + 1 :]])


DOES = "continues it and expects executor-frontend-001, executor-backend-002 and reviewer-003 again, within 300 s"


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_plan_says_what_each_option_does(width: int) -> None:
    session = SessionRecord("planning-001", "planning", None, "interrupted", 0, None, {}, {}, 0, 0, None, None)
    options = [RecoveryOption("resume", DOES), RecoveryOption("follow_on", "begins another session after it")]
    record = RecoveryRecord(session, [], {}, {}, [], [], [], False, options, [])
    lines = drawn(_plan(record), width)
    assert in_column(lines, "does") == words([DOES, "begins another session after it"])
    assert "--follow-on OPERATION" in "\n".join(lines)
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_an_import_says_why_it_refused(width: int) -> None:
    why = "the agent 'executor-frontend-001' has no type, and none of its messages says what it does"
    file = "/home/ada/projects/shop/coordination/agents/2026-11/executor-frontend-001.json"
    problems = [ImportProblem(file, 12, why, taken=False)]
    report = ImportReport("/home/ada", {}, 0, refused=1, changed=0, problems=problems, files=[], file_count=1)
    lines = drawn(Imported(report), width)
    assert in_column(lines, "why") == ["–", *words([why])]
    assert "not shown" not in "".join(lines)
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("width", [40, 60, 80, 100])
@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        (("lease", "priority", "type", "sender", "payload:json"), "payload"),
        (("at:time", "severity:severity", "kind", "subject", "text"), "text"),
        (("message_id", "type", "sender", "recipient", "attempts", "finished:time", "error"), "error"),
        (("id", "status:status", "waits for:reason", "phase", "session", "name:prose"), "waits for"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_prose_is_folded_and_never_left_out(columns: tuple[str, ...], kept: str, width: int) -> None:
    names = [column.partition(":")[0] for column in columns]
    row: dict[str, Any] = {name: f"{name.replace(' ', '-')}-of-the-frontend" for name in names}
    row |= {"at": 0, "finished": 0, "severity": "error", kept: NOTE}
    lines = drawn(Rows([row], columns), width)
    shown = "".join(lines)
    assert "not shown" not in shown or kept not in shown.partition("not shown")[2]
    missing = [word for word in NOTE.split() if word not in words(lines)]
    assert missing == [] or width == 40, "a single line may part a word"
    assert max(map(len, lines)) <= width


def test_wide_characters_count_as_two() -> None:
    note = "検索 の 結果 を 確認 して から 報告書 を 書く こと"
    lines = drawn(Rows([{"id": "agent-検索-001", "status": "running", "note": note}], ("id", "status", "note")), 50)
    assert all(cell_len(line) <= 50 for line in lines)
    assert lines[0].split() == ["id", "status", "note"]
    assert [word for word in note.split() if word not in words(lines)] == []


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_the_command_that_answers_is_shown_whole(width: int) -> None:
    """On one line, or on lines that a shell takes for one."""
    command = "agentbus task approve feature-checkout-redesign-001 plan-of-the-second-milestone"
    row = {
        "task": "feature-checkout-redesign-001", "kind": "approval", "name": "plan-of-the-second-milestone",
        "since": 0, "expires": None, "command": command,
    }  # fmt: skip
    lines = drawn(Rows([row, row], ASKED, paged=False), width)
    typed = " ".join(line.strip() for line in lines).replace(" \\ ", " ")
    assert typed.count(command) == 2
    assert max(map(len, lines)) <= width
    assert "not shown" not in "".join(lines) or "command" not in "".join(lines).partition("not shown")[2]
