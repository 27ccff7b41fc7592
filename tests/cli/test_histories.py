"""Histories on the command line: list, show, delete."""

from __future__ import annotations

import base64
import shutil

import pytest

from agentbus import HistoryPut
from agentbus.sync.bus import open_bus
from tests.cli.conftest import Shell
from tests.cli.terminals import on_terminal
from tests.cli.test_terminal import completed

HOSTILE = "$(touch hit) `touch hit`\t\x1b[31m\n"


@pytest.fixture
def stored(shell: Shell) -> Shell:
    """A bus with three histories, one of them with a hostile name."""
    with open_bus(shell.directory / ".agentbus") as bus:
        for kind, name in (("langgraph", "run-1"), ("langgraph", HOSTILE), ("openai", "chat")):
            puts = [HistoryPut(key="a", part="p", body=b'{"n":1}', meta={"n": 1}), HistoryPut(body=b"\xff")]
            bus.do(bus.histories.write(kind, name, puts, meta={"user": "ada"}))
    return shell


def test_histories_are_listed_shown_and_deleted(stored: Shell) -> None:
    plain = [line.split("\t")[:5] for line in stored.say("histories").splitlines()]
    assert plain == [
        ["langgraph", r"$(touch hit) `touch hit`\t\x1b[31m\n", "1", "2", "8"],
        ["langgraph", "run-1", "1", "2", "8"],
        ["openai", "chat", "1", "2", "8"],
    ]
    page = stored.json("histories", "list", "langgraph", "--limit", "1")
    assert page["items"][0]["name"] == HOSTILE
    page = stored.json("histories", "list", "--cursor", page["cursor"], "--prefix", "run")
    assert [item["name"] for item in page["items"]] == ["run-1"]
    lines = [line.split("\t") for line in stored.say("histories", "show", "openai", "chat", "--bodies").splitlines()]
    assert ["history", "meta", '{"user":"ada"}'] in lines
    items = [(line[1], line[2], line[3], line[-2], line[-1]) for line in lines if line[0] == "item"]
    assert items == [("1", "p", "a", '{"n":1}', '{"n":1}'), ("2", "", f"{2:020}", "{}", "/w==")]
    shown = stored.json("histories", "show", "openai", "chat", "--limit", "1")
    assert (shown["cursor"], shown["history"]["items"], "body" in shown["items"][0]) == ("1", 2, False)
    rest = stored.json("histories", "show", "openai", "chat", "--cursor", "1", "--bodies")
    assert [base64.b64decode(item["body"]) for item in rest["items"]] == [b"\xff"]
    assert len(stored.json("histories", "show", "openai", "chat", "--part", "p", "--key", "a")["items"]) == 1
    assert "histories\tlanggraph\t2" in stored.say("status").splitlines()
    assert stored.json("histories", "delete", "langgraph", HOSTILE, "--dry-run")["items"] == 2
    assert stored.say("histories", "delete", "langgraph", HOSTILE) == "2"
    assert stored.refused("histories", "delete", "langgraph", HOSTILE, code=4)["code"] == "unknown_history"
    assert stored.say("histories", "delete", "openai", "chat", "--part", "p", "--key", "a") == "1"
    assert stored.json("histories", "show", "openai", "chat")["history"]["items"] == 1
    stored.refused("histories", "show", "openai", "chat", "--cursor", "x", code=2)
    removed = stored.json("cleanup", "--histories", "0")["removed"]
    assert removed["history"] == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_completion_expands_no_name_of_a_history(stored: Shell) -> None:
    found = completed(stored, 'agentbus histories show langgraph ""', 'agentbus histories show ""')
    assert found == ["run-1", "langgraph openai"]
    assert not (stored.directory / "hit").exists()


def test_a_name_that_starts_with_a_hyphen_follows_two(stored: Shell) -> None:
    with open_bus(stored.directory / ".agentbus") as bus:
        bus.do(bus.histories.write("claude", "-tmp-work/7"))
    error = stored.refused("histories", "show", "claude", "-tmp-work/7", code=2)
    assert "write -- before an argument that starts with -" in error["fix"]
    assert "\t-tmp-work/7\n" in stored.say("histories", "show", "claude", "--", "-tmp-work/7")


def test_no_terminal_interprets_the_name_of_a_history(stored: Shell) -> None:
    for words in (("show", "langgraph", HOSTILE), ("list", "langgraph", "--limit", "1"), ("delete", "openai", "chat")):
        code, shown = on_terminal(stored, "histories", *words)
        assert (code, "\x1b[31m" in shown) == (0, False)
        assert (r"\x1b[31m" in shown) == (words[0] != "delete")
