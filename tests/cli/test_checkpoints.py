"""Checkpoints and documents on the command line."""

from __future__ import annotations

import json

import pytest

from agentbus.sync.bus import open_bus
from tests.cli.conftest import Shell


@pytest.fixture
def agent(shell: Shell) -> Shell:
    """``a`` in the session ``s``, and another agent."""
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.start_session("planning", id="s")
    shell.register("a", session="s")
    shell.register("other")
    return shell


def test_an_agent_resumes_from_its_checkpoint(agent: Shell) -> None:
    assert agent.run("checkpoint", "restore", agent="a").code == 4
    assert agent.json("checkpoint", "restore", agent="a", code=4)["code"] == "nothing_there"
    assert agent.say("checkpoint", "create", "first", '{"step": 1}', agent="a") == "1"
    assert agent.json("checkpoint", "create", "second", "-", "--notes", "n", agent="a", input=b'{"step": 2}')["id"] == 2
    assert agent.say("checkpoint", "restore", agent="a") == '{"step":2}'
    assert agent.say("checkpoint", "restore", "first", "--of", "a") == '{"step":1}'
    found = agent.json("checkpoint", "restore", agent="a")
    assert (found["id"], found["snapshot"], found["session"], found["notes"]) == (2, {"step": 2}, "s", "n")
    rows = [line.split("\t") for line in agent.say("checkpoint", "list", agent="a").splitlines()]
    assert [row[:4] for row in rows] == [["2", "agent", "a", "second"], ["1", "agent", "a", "first"]]
    assert agent.json("checkpoint", "list", agent="other")["items"] == []
    assert len(agent.json("checkpoint", "list", "--everybody", agent="other")["items"]) == 2
    assert len(agent.json("checkpoint", "list")["items"]) == 2
    lines = dict(line.split("\t") for line in agent.say("checkpoint", "show", "1").splitlines())
    assert (lines["name"], lines["snapshot"]) == ("first", '{"step":1}')
    assert agent.say("checkpoint", "prune", "--keep", "0", "first", agent="a") == "1"
    assert agent.json("checkpoint", "show", "1", code=4)["code"] == "unknown_checkpoint"


def test_files_are_verified(agent: Shell) -> None:
    (agent.directory / "plan.md").write_text("plan")
    (agent.directory / "more").mkdir()
    (agent.directory / "more" / "notes.md").write_text("notes")
    words = ("--file", "plan.md", "--file", "more/notes.md")
    assert agent.say("checkpoint", "create", "x", "1", *words, agent="a") == "1"
    assert agent.say("checkpoint", "verify", "1") == "plan.md\tok\nmore/notes.md\tok"
    (agent.directory / "plan.md").write_text("another")
    (agent.directory / "more" / "notes.md").unlink()
    outcome = agent.run("checkpoint", "verify", "1")
    assert (outcome.code, outcome.out) == (1, "plan.md\tchanged\nmore/notes.md\tvanished\n")
    assert agent.json("checkpoint", "verify", "1", code=1) == [
        {"path": "plan.md", "status": "changed"}, {"path": "more/notes.md", "status": "vanished"},
    ]  # fmt: skip


def test_a_session_has_checkpoints_of_its_own_and_of_all_that_belongs_to_it(agent: Shell) -> None:
    agent.say("document", "save", "plan", "1", agent="a")
    assert agent.json("checkpoint", "create", "half", "5", "--of", "session:s")["owner_kind"] == "session"
    assert agent.json("checkpoint", "create", "all", "--all", agent="a")["owner_kind"] == "composite"
    assert agent.json("checkpoint", "create", "all", "--all", "--of", "session:s")["owner"] == "s"
    assert agent.say("checkpoint", "restore", "--of", "session:s") == "5"
    found = agent.json("checkpoint", "list", "--all", agent="a")["items"]
    assert [(one["owner_kind"], one["owner"]) for one in found] == [("composite", "s")] * 2
    assert agent.say("checkpoint", "prune", "--all", "--keep", "1", "--of", "session:s") == "1"


def test_documents_have_versions_and_authors(agent: Shell) -> None:
    assert agent.say("document", "save", "plan", '{"n": 1}', agent="a") == "1"
    assert agent.json("document", "save", "plan", '"text"', "--session", "s") == {
        "session": "s", "name": "plan", "version": 2,
    }  # fmt: skip
    assert agent.say("document", "show", "plan", agent="a") == "text"
    assert agent.say("document", "show", "plan", "--version", "1", "--session", "s") == '{"n":1}'
    history = agent.json("document", "history", "plan", agent="a")
    assert [(one["version"], one["author"]) for one in history] == [(2, None), (1, "a")]
    assert [line.split("\t")[:2] for line in agent.say("document", "history", "plan", agent="a").splitlines()] == [
        ["2", "-"], ["1", "a"],
    ]  # fmt: skip
    (row,) = agent.json("document", "list", agent="a")
    assert (row["name"], row["version"]) == ("plan", 2)
    path = agent.say("document", "export", "plan", "plan.json", agent="a")
    assert json.loads((agent.directory / path).read_text()) == "text"
    assert agent.say("document", "save", "plan", "3", "--keep", "1", agent="a") == "3"
    assert len(agent.json("document", "history", "plan", agent="a")) == 1


def test_a_life_that_is_over_keeps_nothing_more(agent: Shell) -> None:
    agent.say("stop", agent="a")
    for words in (("checkpoint", "create", "x", "1"), ("document", "save", "plan", "1")):
        assert agent.json(*words, agent="a#1", code=1)["code"] == "agent_fenced"
    with open_bus(agent.directory / ".agentbus") as bus:
        assert bus.do(bus.checkpoints.list()).items == []


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("checkpoint", "create", "x", "{"), 2, "invalid_json"),
        (("checkpoint", "create", "no name", "1"), 2, "invalid_name"),
        (("checkpoint", "create", "x", "1", "--file", "none"), 1, "unknown_file"),
        (("checkpoint", "create", "x", "1", "--file", "../x"), 2, "unsafe_path"),
        (("checkpoint", "create", "x", "1", "--file", ".agentbus/bus.db"), 2, "unsafe_path"),
        (("checkpoint", "create", "x", "1", "--root", "none", "--file", "x"), 1, "unreadable_file"),
        (("checkpoint", "create", "x", "1", "--all"), 2, "usage"),
        (("checkpoint", "create", "x", "--all", "--of", "a"), 2, "usage"),
        (("checkpoint", "create", "x", "1", "--of", "nobody"), 1, "unknown_agent"),
        (("checkpoint", "create", "x", "1", "--of", "session:none"), 1, "unknown_session"),
        (("checkpoint", "create", "x", "1", "--keep", "0"), 2, "out_of_range"),
        (("checkpoint", "show", "x"), 2, "usage"),
        (("checkpoint", "show", "0"), 2, "out_of_range"),
        (("checkpoint", "verify", "7"), 4, "unknown_checkpoint"),
        (
            (
                "checkpoint",
                "prune",
            ),
            2,
            "usage",
        ),
        (("checkpoint", "list", "--limit", "0"), 2, "out_of_range"),
        (("document", "save", "plan"), 2, "usage"),
        (("document", "save", "plan", "@none"), 2, "usage"),
        (("document", "save", "plan", "1", "--session", "none"), 1, "unknown_session"),
        (("document", "show", "plan", "--session", "none"), 4, "unknown_session"),
        (("document", "list", "--session", "none"), 4, "unknown_session"),
        (("document", "show", "none"), 4, "unknown_document"),
        (("document", "show", "none", "--version", "0"), 2, "out_of_range"),
        (("document", "history", "none"), 4, "unknown_document"),
        (("document", "export", "none", "x.json"), 1, "unknown_document"),
        (("document", "shwo", "plan"), 2, "usage"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_told_and_keeps_nothing(agent: Shell, words: tuple[str, ...], code: int, error: str) -> None:
    assert agent.refused(*words, agent="a", code=code)["code"] == error
    with open_bus(agent.directory / ".agentbus") as bus:
        assert bus.do(bus.checkpoints.list()).items == []
        assert bus.do(bus.do(bus.sessions.open("s")).documents()) == []


def test_a_caller_without_an_agent_must_name_the_owner(agent: Shell) -> None:
    assert agent.json("checkpoint", "create", "x", "1", code=2)["code"] == "no_identity"
    assert agent.json("checkpoint", "restore", code=2)["code"] == "no_identity"
    assert agent.json("document", "show", "plan", code=2)["code"] == "usage"
    assert agent.json("document", "save", "plan", "1", agent="other", code=2)["code"] == "usage"
