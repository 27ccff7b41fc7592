"""Sessions on the command line: started by a command without an owner, interrupted with their agents, recovered."""

from __future__ import annotations

import subprocess

import pytest

from agentbus.sync.bus import open_bus
from tests.cli.conftest import Shell


def begin(shell: Shell, *sessions: str) -> None:
    """Begin sessions, without starting a process for each."""
    with open_bus(shell.directory / ".agentbus") as bus:
        for session in sessions:
            bus.start_session("planning", id=session)


def test_a_session_from_its_beginning_to_its_end(shell: Shell) -> None:
    words = ("--id", "p-1", "--milestone", "ms-1", "--expect", "planner=plan", "--expect", "judge=risks")
    assert shell.say("session", "start", "planning", *words) == "p-1"
    me = shell.register("planner", session="p-1")
    shell.say("session", "progress", "40", agent=me)
    assert shell.say("document", "save", "plan", '{"phases": 3}', agent=me) == "1"
    shell.say("session", "pause", "p-1", "--reason", "lunch")
    found = shell.json("session", "status", agent=me)
    assert (found["session"]["status"], found["session"]["progress"]) == ("paused", 40)
    assert [agent["id"] for agent in found["agents"]] == ["planner"]
    assert [document["name"] for document in found["documents"]] == ["plan"]
    assert (found["missing"], found["counts"]) == ({"judge": "risks"}, {"running": 1})
    shell.say("session", "continue", "p-1")
    lines = [line.split("\t") for line in shell.say("session", "status", "p-1").splitlines()]
    assert ["session", "status", "active"] in lines
    assert ["missing", "judge", "risks"] in lines
    assert [line[:4] for line in lines if line[0] == "agent"] == [["agent", "planner", "worker", "running"]]
    ended = shell.run("session", "complete", agent=me)
    assert (ended.code, ended.out, "risks" in ended.err) == (0, "completed session p-1\n", True)
    (row,) = [line.split("\t") for line in shell.say("session", "list", "--status", "completed").splitlines()]
    assert row[:5] == ["p-1", "planning", "ms-1", "completed", "40"]


def test_a_session_outlives_its_command_and_is_resumed_when_started_again(shell: Shell) -> None:
    shell.say("session", "start", "planning", "--id", "p-1")
    again = shell.run("session", "start", "planning", "--id", "p-1")
    assert (again.code, again.out, "resumed" in again.err) == (0, "p-1\n", True)
    assert shell.json("session", "start", "planning", "--id", "p-1")["continued"] is True
    assert shell.json("session", "interrupted") == []
    made = shell.json("session", "start", "planning")
    assert made["id"].startswith("planning-")
    assert made["continued"] is False


def test_a_session_is_interrupted_when_the_process_of_its_last_agent_is_gone(shell: Shell) -> None:
    """No monitor runs: the next command detects it."""
    begin(shell, "p-1")
    living = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    shell.register("planner", session="p-1", pid=living.pid)
    assert shell.say("session", "interrupted") == ""
    living.kill()
    living.communicate()
    row = shell.say("session", "interrupted").split("\t")
    assert row == ["p-1", "-", "planning", "0", "1", "0", "1", "interrupted"]
    (found,) = shell.json("session", "interrupted")
    assert found == {
        "session": "p-1", "milestone": None, "operation": "planning", "inactive_minutes": 0, "agents": 1, "active": 0,
        "failed": 1, "status": "interrupted",
    }  # fmt: skip


def test_degraded_sessions_are_shown_too(shell: Shell) -> None:
    begin(shell, "p-1")
    shell.register("a", session="p-1")
    shell.register("b", session="p-1")
    shell.say("fail", "no more", agent="a")
    assert shell.say("session", "interrupted").split("\t")[3:] == ["0", "2", "1", "1", "degraded"]
    assert shell.json("session", "list")["items"][0]["degraded"] is True


def cut_off(shell: Shell) -> None:
    """A session with a document and a composite checkpoint, whose agent failed."""
    begin(shell, "p-1")
    with open_bus(shell.directory / ".agentbus") as bus:
        session = bus.do(bus.sessions.open("p-1"))
        bus.do(session.document("plan").save(1))
        bus.do(session.checkpoint_all("half"))
        bus.do(session.document("plan").save(2))
        bus.register("a", type="worker", session="p-1").fail("crashed")


def test_a_plan_says_what_can_be_done_and_does_nothing(shell: Shell) -> None:
    cut_off(shell)
    plan = shell.json("session", "recover", "p-1")
    assert plan["session"]["status"] == "interrupted"
    assert [option["action"] for option in plan["options"]] == [
        "resume",
        "rollback",
        "complete",
        "follow_on",
        "abandon",
    ]
    lines = [line.split("\t") for line in shell.say("session", "recover", "p-1").splitlines()]
    assert [line[1] for line in lines if line[0] == "option"] == [option["action"] for option in plan["options"]]
    assert [line[1:4] for line in lines if line[0] == "agent"] == [["a", "worker", "failed"]]
    assert shell.json("session", "recover", "p-1")["session"]["status"] == "interrupted"


@pytest.mark.parametrize(
    ("option", "status", "action"),
    [
        (("--resume",), "active", "resume"),
        (("--complete",), "completed", "complete"),
        (("--abandon",), "failed", "abandon"),
        (("--abandon", "no budget"), "failed", "abandon"),
        (("--rollback", "1"), "active", "rollback"),
        (("--follow-on", "execution", "--follow-on-id", "e-1"), "completed", "follow_on"),
    ],
)
def test_an_option_carries_it_out(shell: Shell, option: tuple[str, ...], status: str, action: str) -> None:
    cut_off(shell)
    done = shell.json("session", "recover", "p-1", *option)
    assert (done["action"], done["session"], done["changed"]) == (action, "p-1", True)
    with open_bus(shell.directory / ".agentbus") as bus:
        record = bus.do(bus.sessions.get("p-1"))
        assert record is not None
        assert record.status == status
        if action == "abandon":
            assert record.error == (option[1] if len(option) > 1 else "abandoned")
        if action == "rollback":
            assert bus.do(bus.do(bus.sessions.open("p-1")).document("plan").latest()) == 1
        if action in {"resume", "rollback"}:
            assert done["agents"] == ["a"]
        if action == "follow_on":
            assert bus.do(bus.do(bus.sessions.open("e-1")).document("plan").latest()) == 2


def test_what_was_done_is_told_in_lines(shell: Shell) -> None:
    cut_off(shell)
    lines = shell.say("session", "recover", "p-1", "--resume").splitlines()
    assert lines[:4] == ["done\taction\tresume", "done\tsession\tp-1", "done\tchanged\ttrue", "done\tagents\ta"]
    assert "done\tchanged\tfalse" in shell.say("session", "recover", "p-1", "--resume").splitlines()


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("start", "no name"), 2, "invalid_name"),
        (("start", "planning", "--expect", "plan"), 2, "usage"),
        (("start", "planning", "--expect", "a=x", "--expect", "a=y"), 2, "usage"),
        (("start", "planning", "--metadata", "{"), 2, "invalid_json"),
        (("start", "execution", "--id", "p-1"), 1, "session_differs"),
        (("start", "planning", "--id", "over"), 1, "session_ended"),
        (("status",), 2, "usage"),
        (("status", "nothing"), 4, "unknown_session"),
        (("participants", "nothing"), 4, "unknown_session"),
        (("list", "--status", "asleep"), 2, "out_of_range"),
        (("list", "--stale", "-1"), 2, "out_of_range"),
        (("list", "--stale", "1", "--status", "active"), 2, "usage"),
        (("list", "--cursor", "x y"), 2, "out_of_range"),
        (("progress", "101", "p-1"), 2, "out_of_range"),
        (("pause", "over"), 1, "session_ended"),
        (("continue", "p-1"), 1, "wrong_state"),
        (("complete", "nothing"), 1, "unknown_session"),
        (("fail", "p-1"), 2, "usage"),
        (("recover", "nothing"), 1, "unknown_session"),
        (("recover", "p-1", "--resume", "--complete"), 2, "usage"),
        (("recover", "p-1", "--rollback", "99"), 1, "unknown_checkpoint"),
        (("recover", "p-1", "--follow-on-id", "x"), 2, "usage"),
        (("recover", "over", "--resume"), 1, "session_ended"),
        (("strat", "planning"), 2, "usage"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_told_and_changes_nothing(shell: Shell, words: tuple[str, ...], code: int, error: str) -> None:
    begin(shell, "p-1", "over")
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.do(bus.do(bus.sessions.open("over")).complete())
        before = list(bus.events())
    assert shell.refused("session", *words, code=code)["code"] == error
    with open_bus(shell.directory / ".agentbus") as bus:
        assert list(bus.events()) == before
