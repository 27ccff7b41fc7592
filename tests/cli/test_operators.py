"""People on the command line: messages as ``operator:NAME``, and what an agent may not do in their name."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shell, until
from tests.cli.task_workers import begun
from tests.cli.terminals import on_terminal, uncoloured


@pytest.fixture
def team(shell: Shell) -> Shell:
    shell.register("a")
    return shell


def test_a_person_sends_and_receives_the_reply(team: Shell) -> None:
    assert team.say("send", "a", "note", '"stop"', "--by", "ada", "--header", "k=v") == "m-1"
    (message,) = team.json("receive", agent="a")
    assert (message["sender"], message["payload"], message["headers"]) == ("operator:ada", "stop", {"k": "v"})
    team.say("reply", "m-1", "note", '"stopped"', "--header", "trace=7", agent="a")
    assert team.say("status").splitlines()[0].split("\t")[:3] == ["waiting", "queue", "operator:ada"]
    assert team.json("status")["waiting"][0]["since"] == team.json("messages", "show", "m-2")["created"]
    assert "agentbus messages list --to operator:ada" in uncoloured(on_terminal(team, "status")[1])
    (reply,) = team.json("receive", "--by", "ada")
    assert (reply["sender"], reply["payload"], reply["headers"]) == ("a", "stopped", {"trace": "7"})
    assert team.say("reply", reply["lease"], "note", '"thanks"', "--by", "ada") == "m-3"
    assert team.json("messages", "show", "m-3")["sender"] == "operator:ada"
    assert team.run("wait", "--by", "ada", "--timeout", "0").code == 4


def test_a_person_asks_and_waits_for_the_answer(team: Shell) -> None:
    asking = team.start("request", "a", "coordination_request", "1", "--by", "ada", "--timeout", "30")
    try:
        until(lambda: team.run("receive", "--peek", agent="a").code == 0)
        team.say("receive", agent="a")
        team.say("reply", "m-1", "coordination_response", "2", agent="a")
        out, err = asking.communicate(timeout=30)
    finally:
        asking.kill()
    assert (asking.returncode, out.decode().split("\t")[1:]) == (0, ["coordination_response", "a", "2\n"]), err


def test_the_name_may_come_from_the_environment(team: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    error = team.refused("send", "a", "note", code=2)
    assert (error["code"], "--by NAME" in error["fix"]) == ("no_identity", True)
    monkeypatch.setenv("AGENTBUS_OPERATOR", "ada")
    team.say("send", "a", "note")
    # An agent that inherits the name stays itself.
    team.say("send", "a", "note", agent="a")
    assert [one["sender"] for one in team.json("messages")["items"]] == ["a", "operator:ada"]


@pytest.mark.parametrize(
    "words",
    [("send", "a", "note"), ("receive",), ("ack", "m-1"), ("request", "a", "note"), ("task", "signal", "f-1", "go")],
)
def test_an_agent_cannot_act_as_a_person(team: Shell, words: tuple[str, ...]) -> None:
    assert team.refused(*words, "--by", "ada", agent="a", code=2)["code"] == "not_an_operator"
    assert team.refused(*words, "--by", "ada", "--agent", "a", code=2)["code"] == "not_an_operator"
    assert team.json("messages")["items"] == []


def test_no_agent_has_the_name_of_a_person(team: Shell) -> None:
    for words in (("register", "operator:ada", "--type", "worker"), ("expect", "operator:ada", "--type", "worker")):
        error = team.refused(*words, code=2)
        assert (error["code"], "people" in error["fix"]) == ("invalid_name", True)
    assert team.refused("send", "operator:ada", "note", agent="a", code=1)["code"] == "unknown_operator"
    assert team.refused("send", "a", "note", "--by", "ada l", code=2)["code"] == "invalid_name"


def test_the_state_of_no_agent_is_asked_for_by_its_scope(team: Shell) -> None:
    for words in (("get", "k"), ("set", "k", "1"), ("list",)):
        error = team.refused("state", *words, code=2)
        assert (error["code"], "--of" in error["fix"]) == ("no_identity", True)


def test_a_terminal_asks_for_the_reason_of_a_rejection(team: Shell) -> None:
    begun(team)
    words = ("task", "reject", "f-1", "--by", "ada")
    code, shown = on_terminal(team, *words, errors=True, until="reason: ", typed="too large\n")
    assert (code, "rejected plan of f-1: too large" in uncoloured(shown)) == (0, True)
    team.say("send", "a", "note", agent="a")
    team.say("receive", agent="a")
    assert team.refused("reject", "m-1", agent="a", code=2)["fix"] == "pass --reason TEXT"
    assert team.say("reject", "m-1", "--reason", "no", agent="a") == "dead-lettered m-1"
    assert team.json("messages", "show", "m-1")["error"] == "no"
