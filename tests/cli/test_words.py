"""The words of the command line: other names, lengths of time, and advice that can be typed."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from agentbus.interfaces.cli.main import main
from agentbus.interfaces.cli.table import ALIASES, COMMANDS, SYNONYMS
from agentbus.interfaces.cli.values import days, hours, minutes, seconds
from tests.cli.conftest import Shell


@pytest.mark.parametrize(
    ("word", "meant"), [("ps", "agents list"), ("logs", "events"), ("kill", "stop"), ("purge", "messages purge")]
)
def test_what_others_call_it_is_understood_and_not_done(shell: Shell, word: str, meant: str) -> None:
    error = shell.refused(word, code=2)
    assert (error["message"], error["fix"]) == (f"there is no command {word!r}", f"did you mean agentbus {meant}?")


def test_other_names_lead_to_commands_and_hide_none() -> None:
    assert set(ALIASES.values()) | {meant.split()[0] for meant in SYNONYMS.values()} <= set(COMMANDS)
    assert not (set(ALIASES) | set(SYNONYMS)) & set(COMMANDS)


def test_what_is_nothing_like_a_command_suggests_none(shell: Shell) -> None:
    assert shell.refused("zebra", code=2)["fix"].startswith("there are init, status")
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
