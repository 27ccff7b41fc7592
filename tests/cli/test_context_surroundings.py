"""Commands in bad surroundings: streams, directories, files, the environment."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.cli.conftest import COMMAND, TIMEOUT, Shell


@pytest.fixture
def agent(shell: Shell) -> Shell:
    shell.register("a")
    shell.environment["AGENTBUS_AGENT"] = "a"
    return shell


def script(shell: Shell, text: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a line of shell in which ``$A`` is the command."""
    done = subprocess.run(
        ["sh", "-c", text],
        cwd=shell.directory,
        env={**shell.environment, "A": COMMAND, **environment},
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert b"Traceback" not in done.stderr, done.stderr.decode(errors="replace")
    return done


@pytest.mark.parametrize(
    "words",
    [
        ("send", "a", "note", "--priority", "9", "-5"),
        ("send", "--priority=9", "a", "note", "--", "-5"),
        ("send", "a", "--priority", "9", "note", "-5"),
    ],
)
def test_options_may_stand_anywhere(agent: Shell, words: tuple[str, ...]) -> None:
    name = agent.say(*words)
    message = agent.json("messages", "show", name)
    assert (message["priority"], message["payload"]) == (9, -5)


def test_what_follows_two_dashes_is_no_option(agent: Shell) -> None:
    agent.say("fail", "--", "--it broke")
    assert agent.json("agents", "show", "a")["error"] == "--it broke"


def test_where_not_even_an_error_can_be_printed_there_is_no_traceback(agent: Shell) -> None:
    assert script(agent, '"$A" status --json >/dev/full 2>/dev/full').returncode == 1
    assert script(agent, '"$A" sned --json >/dev/full').returncode == 2


@pytest.mark.parametrize("words", ["status --json", "agents list", "send a note 1", "--help", "events"])
def test_output_that_does_not_fit_is_a_named_error(agent: Shell, words: str) -> None:
    done = script(agent, f'"$A" {words} >/dev/full')
    assert done.returncode == 1
    assert done.stderr.startswith(b"agentbus: cannot write the output: No space left on device\n")


def test_a_process_without_descriptors_is_told_so(agent: Shell) -> None:
    """Whatever it is that cannot be opened: a module, the database, its log."""
    codes = set()
    for most in (6, 7, 8):
        done = script(agent, f'ulimit -n {most}; "$A" send a note 1')
        codes.add(done.returncode)
        assert (done.returncode == 0) != (b"Too many open files" in done.stderr), (most, done)
    assert 3 in codes
    assert codes <= {0, 3}


def test_an_encoding_that_lacks_a_letter_gets_it_escaped(agent: Shell) -> None:
    done = script(agent, '"$A" --help', PYTHONIOENCODING="ascii", LANG="C")
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, rb"usage: agentbus COMMAND \u2026")


def test_standard_input_may_be_closed_and_a_file_without_end(agent: Shell) -> None:
    closed = script(agent, '"$A" send a note - <&-')
    assert (closed.returncode, b"empty input" in closed.stderr) == (2, True)
    endless = script(agent, '"$A" send a note @/dev/zero')
    assert (endless.returncode, b"payload too large: more than 16777216 bytes" in endless.stderr) == (2, True)


def test_a_mark_at_the_beginning_of_a_file_is_no_json(agent: Shell) -> None:
    (agent.directory / "marked.json").write_bytes(b"\xef\xbb\xbf[1]")
    name = agent.say("send", "a", "note", "@marked.json")
    assert agent.json("messages", "show", name)["payload"] == [1]


def test_a_bus_is_found_from_a_directory_that_is_gone(agent: Shell) -> None:
    url = str(agent.directory / ".agentbus")
    gone = 'mkdir gone && cd gone && rmdir ../gone && "$A"'
    assert script(agent, f"{gone} agents list", AGENTBUS_URL=url).returncode == 0
    refused = script(agent, f"{gone} init")
    assert (refused.returncode, b"the working directory does not exist" in refused.stderr) == (2, True)


def test_names_that_are_no_text_are_refused_as_such(agent: Shell) -> None:
    done = script(agent, 'AGENTBUS_AGENT=$(printf "\\377") "$A" status --json')
    assert (done.returncode, b'"code":"invalid_text"' in done.stdout) == (2, True)
    done = script(agent, 'AGENTBUS_URL=$(printf "/tmp/none\\377") "$A" status --json')
    assert (done.returncode, b'"code":"no_bus"' in done.stdout) == (1, True)


def test_a_settings_file_that_is_a_pipe_or_too_deep_blocks_no_command(agent: Shell) -> None:
    file = agent.directory / ".agentbus" / "agentbus.toml"
    os.mkfifo(file)
    assert script(agent, '"$A" agents list').returncode == 0
    file.unlink()
    file.write_text("lease = " + "[" * 100_000)
    assert script(agent, '"$A" agents list').returncode == 2


def test_limits_of_the_settings_are_checked(agent: Shell) -> None:
    done = script(agent, '"$A" send a note 1', AGENTBUS_MAX_PAYLOAD="-1")
    assert (done.returncode, b"max_payload is -1" in done.stderr) == (2, True)


def test_an_error_is_not_longer_than_anybody_reads(agent: Shell) -> None:
    assert len(script(agent, '"$A" send a note "$(head -c 100000 /dev/zero | tr "\\0" x)"').stderr) < 5000
    assert len(script(agent, '"$A" "$(head -c 100000 /dev/zero | tr "\\0" x)"').stderr) < 5000
