"""Held messages on the command line: an agent is told, a person decides."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shell


@pytest.fixture
def stopped(shell: Shell) -> Shell:
    """Two agents whose fourth message is held."""
    for agent in ("a", "b"):
        shell.register(agent)
    shell.say("quotas", "--thread", "3", "--by", "ada")
    shell.say("send", "b", "note", "1", agent="a")
    for number, agent in ((1, "b"), (2, "a")):
        (message,) = shell.json("receive", agent=agent)
        assert "held" not in shell.json("reply", message["lease"], "note", str(number), agent=agent)
    (message,) = shell.json("receive", agent="b")
    receipt = shell.json("reply", message["lease"], "note", "3", agent="b")
    assert (receipt["held"], "agentbus holds release m-1" in receipt["hold_reason"]) == (True, True)
    return shell


def test_a_person_releases_a_held_thread(stopped: Shell) -> None:
    assert stopped.run("receive", agent="a").code == 4
    assert stopped.say("holds").split("\t")[:4] == ["m-1", "1", "4", '["a","b"]']
    assert "waiting\tthread\tm-1\t" in stopped.say("status")
    shown = stopped.json("messages", "show", "m-4")
    assert (shown["status"], shown["due"], shown["held"]) == ("scheduled", None, True)
    assert "holds release m-1" in shown["hold_reason"]
    for words in (("holds", "release", "m-1"), ("holds", "discard", "m-1", "--by", "ada"), ("quotas", "--thread", "9")):
        assert stopped.refused(*words, agent="a", code=2)["code"] == "not_an_operator"
    assert stopped.json("holds", "release", "m-1", "--by", "ada") == {"thread": "m-1", "released": 1, "by": "ada"}
    (message,) = stopped.json("receive", agent="a")
    assert message["payload"] == 3
    assert stopped.refused("holds", "release", "m-1", "--by", "ada", code=4)["code"] == "nothing_held"
    (event,) = stopped.json("events", "--kind", "thread_released")
    assert event["actor"] == "ada"


def test_a_pipe_gets_the_id_and_a_note_that_the_message_is_held(stopped: Shell) -> None:
    outcome = stopped.run("reply", "m-3", "note", "4", agent="b")
    assert outcome.out == "m-5\n"
    assert outcome.err.startswith("m-5 is held: thread m-1 ")


def test_a_person_discards_what_is_held(stopped: Shell) -> None:
    assert stopped.say("holds", "discard", "m-1", "--by", "ada", "--reason", "enough") == "1"
    assert stopped.say("holds") == ""
    assert stopped.json("messages", "show", "m-4")["error"] == "discarded by ada: enough"
