"""The words of the command line: other names, lengths of time, and advice that can be typed."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError

import pytest

import agentbus.errors
from agentbus.cli.arguments import days, hours, minutes, seconds
from agentbus.cli.command_table import ALIASES, COMMANDS, SYNONYMS
from agentbus.cli.main import main
from agentbus.errors import AgentBusError
from agentbus.sync.bus import open_bus
from tests.cli.conftest import Shell


@pytest.mark.parametrize(
    ("word", "meant"), [("ps", "agents list"), ("logs", "events"), ("kill", "stop"), ("purge", "messages purge")]
)
def test_what_others_call_it_is_understood_and_not_done(shell: Shell, word: str, meant: str) -> None:
    error = shell.refused(word, code=2)
    assert (error["code"], error["fix"]) == ("usage", f"did you mean agentbus {meant}?")


def test_other_names_lead_to_commands_and_hide_none() -> None:
    assert set(ALIASES.values()) | {meant.split()[0] for meant in SYNONYMS.values()} <= set(COMMANDS)
    assert not (set(ALIASES) | set(SYNONYMS)) & set(COMMANDS)


def test_what_is_nothing_like_a_command_suggests_none(shell: Shell) -> None:
    assert shell.refused("zebra", code=2)["fix"].startswith("commands: init, status")
    assert shell.refused("vresion", code=2)["fix"] == "did you mean version?"
    error = shell.refused("session", "recvoer", code=2)
    assert error["message"] == "agentbus session has no command 'recvoer'"
    assert error["fix"] == "did you mean recover?"


def test_help_and_version_are_words_too(capsys: pytest.CaptureFixture[str]) -> None:
    said = {}
    for words in (
        "help",
        "--help",
        "help send",
        "send --help",
        "help agents list",
        "version",
        "--version",
        "help agent",
    ):
        assert main(words.split()) == 0
        said[words] = capsys.readouterr().out
    assert said["help"] == said["--help"]
    assert said["help send"] == said["send --help"]
    assert said["help agents list"].startswith("usage: agentbus agents list")
    assert said["help agent"].startswith("usage: agentbus agents {list")
    assert said["version"] == said["--version"]
    assert main(["help", "nosuch"]) == 2


def test_families_have_singular_and_plural(shell: Shell) -> None:
    shell.register("w1")
    assert shell.say("agent", "list").startswith("w1\t")
    assert shell.json("sessions", "list")["items"] == []


def test_lengths_of_time_have_units() -> None:
    given = ("90", "0.5", "500ms", "5s", "10m", "10min", "1.5h", "2d")
    assert [seconds(text) for text in given] == [90, 0.5, 0.5, 5, 600, 600, 5400, 172_800]
    assert (minutes("30"), minutes("2h"), hours("12"), hours("30m"), days("7"), days("36h")) == (
        30,
        120,
        12,
        0.5,
        7,
        1.5,
    )
    for wrong in ("", "s", "5x", "1h30", "five", "5 s s", "m5"):
        with pytest.raises(ArgumentTypeError, match="500ms, 5s, 10m, 1h, 2d"):
            seconds(wrong)


def test_a_length_of_time_out_of_range_is_refused(shell: Shell) -> None:
    me = shell.register("w1")
    for wrong in ("infs", "nans", "-5m", "9" * 400 + "d", "99999d"):
        assert shell.refused("receive", f"--wait={wrong}", agent=me, code=2)["code"] == "out_of_range", wrong
    assert main(["receive", "--wait", "10ms", "--agent", me, "--url", str(shell.directory / ".agentbus")]) == 4


PYTHON = re.compile(r"\bbus\.|\bawait\b|=True|\w\(|\bagentbus\.\w+\(|connect\(")
FACTS = dict.fromkeys(
    ("agent", "path", "session", "operation", "kind", "name", "id", "member", "meeting", "advice", "rule", "differs"),
    "x",
)


def test_no_error_advises_python_on_the_command_line() -> None:
    kinds = [one for one in vars(agentbus.errors).values() if isinstance(one, type) and issubclass(one, AgentBusError)]
    assert len(kinds) > 30
    advice = {kind.__name__: kind(**FACTS).shell_fix for kind in kinds if not issubclass(kind, agentbus.errors.Misuse)}
    assert {name: text for name, text in advice.items() if text and PYTHON.search(text)} == {}


def test_the_doctor_names_the_command_that_makes_a_backup(shell: Shell) -> None:
    checks = {check["name"]: check for check in shell.json("doctor")}
    assert "agentbus backup" in checks["backups"]["text"]


def test_who_is_alive_without_a_process_is_said_to_be_nowhere(shell: Shell) -> None:
    shell.register("w1")
    assert shell.refused("register", "w1", "--type", "worker", code=1)["message"] == "agent 'w1' is running"
    assert shell.refused("agents", "delete", "w1", code=1)["fix"].startswith("end it first")
    said = shell.say("status", "--settings")
    assert "setting\tagent\t- (default)" in said
    assert "None" not in said


def test_an_epoch_that_never_was_has_not_been_taken_over(shell: Shell) -> None:
    shell.register("w1")
    message = shell.refused("heartbeat", agent="w1#9", code=1)["message"]
    assert message.endswith("it never had such an epoch, the newest is 1")


def test_what_is_built_in_was_never_made(shell: Shell) -> None:
    assert "created\t-" in shell.say("types", "show", "note").splitlines()


def test_messages_of_several_statuses_are_listed(shell: Shell) -> None:
    me = shell.register("w1")
    with open_bus(shell.directory / ".agentbus") as bus:
        for number in range(3):
            bus.agent(me).send("w1", "note", number)
        with bus.agent(me).received():
            pass
    found = shell.json("messages", "list", "--status", "queued,leased")["items"]
    assert sorted(item["status"] for item in found) == ["leased", "queued", "queued"]
    assert shell.refused("messages", "list", "--status", "queued,gone", code=2)["code"] == "out_of_range"


def test_a_bus_is_made_where_it_was_looked_for(nowhere: Shell) -> None:
    assert nowhere.refused("agents", code=1)["fix"] == "create one: agentbus init"
    error = nowhere.refused("agents", "--url", f"{nowhere.directory}/a b/x", code=1)
    assert error["fix"] == f"create one: agentbus init --url '{nowhere.directory}/a b/x'"


def test_a_bus_below_another_is_made_with_a_warning(shell: Shell) -> None:
    assert "above" not in shell.run("init").err
    below = shell.directory / "deep" / "below"
    below.mkdir(parents=True)
    outer, shell.directory = shell.directory, below
    made = shell.run("init")
    assert (made.code, made.out) == (0, f"{below}/.agentbus\n")
    assert f"another bus in {outer}/.agentbus" in made.err
    assert "above" not in shell.run("init").err
