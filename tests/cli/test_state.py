"""State on the command line."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cli.conftest import Shell

pytestmark = pytest.mark.process


@pytest.fixture
def agent(shell: Shell) -> Shell:
    shell.register("a")
    return shell


def test_entries_are_set_read_listed_and_deleted(agent: Shell) -> None:
    assert agent.say("state", "set", "phase/1", '"design"', agent="a") == "1"
    assert agent.say("state", "set", "phase/2", "[1, 2]", "--type", "progress", "--ttl", "600", agent="a") == "1"
    assert agent.say("state", "get", "phase/1", agent="a") == "design"
    entry = agent.json("state", "get", "phase/2", agent="a")
    assert (entry["value"], entry["type"], entry["author"], entry["scope"]) == ([1, 2], "progress", "a", "a")
    assert entry["expires"] - entry["updated"] == 600_000
    listed = agent.json("state", "list", "phase/", agent="a")
    assert [item["key"] for item in listed["items"]] == ["phase/1", "phase/2"]
    assert agent.say("state", "list", "--limit", "1", agent="a").split("\t")[0] == "phase/1"
    assert agent.json("state", "delete", "phase/1", agent="a") == {"key": "phase/1", "deleted": True}
    assert agent.json("state", "delete", "phase/1", agent="a", code=4) == {"key": "phase/1", "deleted": False}
    assert agent.json("state", "get", "phase/1", agent="a", code=4)["code"] == "nothing_there"


def test_another_scope_is_named(agent: Shell) -> None:
    assert agent.say("state", "set", "leader", '"a"', "--of", "builds", agent="a") == "1"
    assert agent.json("state", "get", "leader", "--of", "builds")["author"] == "a"
    assert agent.say("state", "set", "leader", '"x"', "--of", "builds") == "2"
    assert agent.json("state", "get", "leader", "--of", "builds")["author"] is None
    assert agent.json("state", "set", "k", "1", "--of", "session:none", agent="a", code=1)["code"] == "unknown_session"


def test_a_number_is_added_to_an_entry(agent: Shell) -> None:
    assert agent.say("state", "increment", "build", "--of", "counters", agent="a") == "1"
    assert agent.json("state", "increment", "build", "2.5", "--of", "counters") == {"key": "build", "value": 3.5}
    assert agent.say("state", "increment", "build", "-4.5", "--of", "counters", "--ttl", "60", agent="a") == "-1.0"
    assert agent.json("state", "get", "build", "--of", "counters")["expires"] is not None
    assert agent.refused("state", "increment", "build", "x", agent="a", code=2)["code"] == "usage"
    assert agent.refused("state", "increment", "build", "nan", agent="a", code=2)["code"] == "out_of_range"
    agent.say("state", "set", "text", '"x"', agent="a")
    assert agent.refused("state", "increment", "text", agent="a", code=1)["code"] == "wrong_state"


def test_a_version_can_be_asked_for(agent: Shell) -> None:
    assert agent.say("state", "set", "leader", "1", "--if-version", "0", agent="a") == "1"
    error = agent.json("state", "set", "leader", "2", "--if-version", "0", agent="a", code=1)
    assert error["code"] == "version_conflict"
    assert agent.json("state", "delete", "leader", "--if-version", "7", agent="a", code=1)["code"] == "version_conflict"
    assert agent.say("state", "set", "leader", "2", "--if-version", "1", agent="a") == "2"


def test_changes_are_watched_as_they_come(agent: Shell) -> None:
    agent.say("state", "set", "k", "1", agent="a")
    watching = agent.start("state", "watch", "--of", "a", "--json")
    assert watching.stdout is not None
    seen = [json.loads(watching.stdout.readline())["data"]]
    agent.say("state", "set", "k", "2", agent="a")
    seen.append(json.loads(watching.stdout.readline())["data"])
    agent.say("state", "delete", "k", agent="a")
    seen.append(json.loads(watching.stdout.readline())["data"])
    watching.send_signal(signal.SIGINT)
    _, err = watching.communicate(timeout=30)
    assert (watching.returncode, err) == (130, b"")
    assert [(one["value"], one["deleted"]) for one in seen] == [(1, False), (2, False), (None, True)]
    assert agent.say("state", "watch", "--of", "a", "--after", str(seen[0]["change"]), "--max", "1") == "k\t2\t3\t-"


def test_state_needs_an_owner(agent: Shell) -> None:
    assert agent.json("state", "get", "k", code=2)["code"] == "no_identity"
    assert agent.json("state", "set", "k", "1", "--type", "odd", agent="a", code=2)["code"] == "out_of_range"
    assert agent.run("state").code == 2
