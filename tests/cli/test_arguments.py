"""Wrong input, and the world around: the right exit code, nothing lost, no traceback."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, TIMEOUT, Shell
from tests.support import zygote


@pytest.fixture
def agent(shell: Shell) -> Shell:
    shell.register("a")
    return shell


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ('{"a": }', "line 1, column 7"),
        ('{"a": 1,\n "b": x}', "line 2, column 7"),
        ("[1", "line 1, column 3"),
        ("hello", "line 1, column 1"),
        ("", "empty input"),
        ('{"ä": ü}', "line 1, column 7"),
    ],
)
def test_invalid_json_says_where(agent: Shell, given: str, where: str) -> None:
    error = agent.json("send", "a", "note", given, agent="a", code=2)
    assert error["code"] == "invalid_json"
    assert where in error["message"]
    plain = agent.run("send", "a", "note", "-", agent="a", input=given.encode())
    assert (plain.code, plain.out) == (2, "")
    assert plain.err.startswith("agentbus: standard input is not JSON")
    assert agent.say("messages") == ""


def test_a_directory_whose_name_is_not_utf_8_is_printed_as_it_is(nowhere: Shell) -> None:
    nowhere.directory = Path(os.fsdecode(os.fsencode(nowhere.directory) + b"/d\xff"))
    nowhere.directory.mkdir()
    done = zygote.run([COMMAND, "init"], cwd=nowhere.directory, env=nowhere.environment, timeout=TIMEOUT)
    assert (done.returncode, done.stderr) == (0, b"")
    assert os.fsencode(nowhere.directory) in done.stdout


def test_input_must_be_utf_8(agent: Shell) -> None:
    outcome = agent.run("send", "a", "note", b'"\xff"', "--json", agent="a")
    assert (outcome.code, '"code":"invalid_text"' in outcome.out) == (2, True)
    assert agent.json("send", "a", "note", "-", agent="a", input=b'"\xff"', code=2)["code"] == "invalid_text"
    (agent.directory / "latin").write_bytes(b'"gr\xfcn"')
    assert "byte 3 is 0xfc" in agent.json("send", "a", "note", "@latin", agent="a", code=2)["message"]
    assert agent.json("send", "a", "note", "@none", agent="a", code=2)["code"] == "usage"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("sned",), "send"),
        (("recieve", "--json"), "receive"),
        (("send", "a", "note", "--prioritty", "9"), "--priority"),
        (("agents", "lst"), "list"),
        (("state", "git", "k"), "get"),
    ],
)
def test_what_is_misspelt_suggests_the_right_one(nowhere: Shell, words: tuple[str, ...], meant: str) -> None:
    error = nowhere.json(*words, code=2)
    assert error["code"] == "usage"
    assert f"did you mean {meant}?" in error["fix"]


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("send",),
        ("send", "a", "note", "1", "2"),
        ("send", "a", "note", "1", "--priority", "x"),
        ("receive", "--wait", "x"),
        ("--nothing",),
        ("completion", "fish"),
    ],
)
def test_wrong_use_is_told_in_a_line_or_two(nowhere: Shell, words: tuple[str, ...]) -> None:
    outcome = nowhere.run(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err
    if words:
        assert outcome.err.startswith("agentbus: ")
        assert len(outcome.err.splitlines()) <= 2


@pytest.mark.parametrize(
    "words",
    [("send", "a", "note", "1", "--priority", "10"), ("receive", "--max", "0"), ("receive", "--wait", "-1"),
     ("progress", "101"), ("busy", "-1"), ("state", "set", "a b", "1"), ("send", "ä", "note"),
     ("wait", "--timeout", "nan"), ("receive", "--lease", "0")],
)  # fmt: skip
def test_what_is_out_of_range_is_wrong_use(agent: Shell, words: tuple[str, ...]) -> None:
    assert agent.json(*words, agent="a", code=2)["fix"] != ""


def test_a_lock_timeout_is_transient(agent: Shell) -> None:
    agent.environment["AGENTBUS_LOCK_TIMEOUT"] = "0.1"
    with open(agent.directory / ".agentbus" / "bus.lock", "rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        begun = time.monotonic()
        assert agent.json("send", "a", "note", "1", agent="a", code=3)["code"] == "lock_timeout"
        assert time.monotonic() - begun < 10
    agent.say("send", "a", "note", "1", agent="a")


@pytest.mark.parametrize("words", [("receive", "--wait", "60"), ("wait",), ("request", "a", "note", "1"),
                                   ("state", "watch"), ("status", "--watch"), ("events", "--follow")])  # fmt: skip
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_what_waits_can_be_interrupted(agent: Shell, words: tuple[str, ...], number: int, code: int) -> None:
    waiting = agent.start(*words, agent="a")
    try:
        folder = agent.directory / ".agentbus" / "bells"
        deadline = time.monotonic() + 30
        if "status" in words:
            assert waiting.stdout is not None
            assert waiting.stdout.readline()
        else:
            while not folder.is_dir() or not os.listdir(folder):
                assert time.monotonic() < deadline
                time.sleep(0.01)
        waiting.send_signal(number)
        _, err = waiting.communicate(timeout=30)
        assert (waiting.returncode, err) == (code, b"")
        assert not folder.is_dir() or os.listdir(folder) == []
    finally:
        if waiting.poll() is None:
            waiting.kill()
            waiting.communicate()


def test_a_closed_pipe_ends_it_quietly(agent: Shell) -> None:
    for words in (("agents", "--help"), ("agents", "list"), ("messages", "list", "--json"), ("completion", "bash")):
        # Closed before the command starts: it may write at once.
        reading, writing = os.pipe()
        os.close(reading)
        process = agent.start(*words, agent="a", stdout=writing)
        os.close(writing)
        assert process.wait(30) == 141
        assert process.stderr is not None
        assert process.stderr.read() == b""
        process.stderr.close()


def test_where_nothing_can_be_printed_nothing_is_lost(agent: Shell) -> None:
    agent.say("send", "a", "note", "1", agent="a")
    environment = {**agent.environment, "AGENTBUS_AGENT": "a"}
    for redirected, code in ((">/dev/full", 1), (">&-", 2), (">&- 2>&-", 2)):
        done = subprocess.run(
            ["sh", "-c", f'"{COMMAND}" receive --ack {redirected}'],
            cwd=agent.directory,
            env=environment,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert (done.returncode, b"Traceback" in done.stderr) == (code, False), redirected
    assert len(agent.json("receive", "--ack", agent="a")) == 1


def test_debug_adds_a_traceback_and_changes_nothing_else(agent: Shell) -> None:
    cases: tuple[tuple[str, ...], ...] = (
        ("send", "nobody", "note", "1", "--agent", "a"), ("ack", "m-9", "--agent", "a"), ("task", "show", "t-9"),
        ("send", "--no-such-option"), ("receive",),
    )  # fmt: skip
    for words in cases:
        plain, debug = agent.run(*words), agent.run(*words, "--debug")
        assert (debug.code, debug.out) == (plain.code, plain.out), words
        assert debug.code != 0
        assert "Traceback" in debug.err, words
        assert debug.err.endswith(plain.err), words
        assert "bus." not in debug.err.rpartition("Traceback")[2].partition("\nagentbus.")[2], words
        assert agent.refused(*words, "--debug", code=plain.code) == agent.refused(*words, code=plain.code)
    hook = agent.start("hook", "nope", "--client", "claude", "--debug")
    out, err = hook.communicate(timeout=30)
    assert (hook.returncode, out, b"Traceback" in err) == (2, b"", True)


def test_errors_name_what_the_user_typed_and_have_a_fix(agent: Shell) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = str(taken.getsockname()[1])
        assert agent.refused("serve", "--port", port, code=2)["fix"]
    assert "65535" in agent.refused("serve", "--port", "99999", code=2)["message"]
    (agent.directory / "old").touch()
    assert agent.refused("export", "old", code=1)["fix"]
    assert agent.refused("token", "create", "foo", code=2)["fix"]
    agent.environment["AGENTBUS_DURABILITY"] = "foo"
    assert "AGENTBUS_DURABILITY" in agent.refused("status", code=2)["message"]


def test_a_duration_out_of_range_is_named_as_it_was_typed(agent: Shell) -> None:
    for words in (("receive", "--wait", "-1"), ("cleanup", "--keep-days", "-1d"), ("receive", "--wait", "1e12")):
        message = agent.refused(*words, code=2)["message"]
        assert words[1] in message
        assert words[2] in message
    assert "seconds" in agent.refused("busy", "-1", code=2)["message"]


@pytest.mark.parametrize(("name", "shown"), [("", "@"), ("x" * 5000, f"{'x' * 60}… (5000 characters)")])
def test_a_file_that_cannot_be_read_is_named_in_part(agent: Shell, name: str, shown: str) -> None:
    error = agent.json("send", "a", "note", f"@{name}", agent="a", code=2)
    assert error["message"].startswith(f"{shown}: ")
