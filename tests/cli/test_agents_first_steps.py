"""The first steps of an agent on the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.conftest import Shell

pytestmark = pytest.mark.process


def test_an_agent_registers_sends_receives_and_acknowledges(shell: Shell) -> None:
    me = shell.say("register", "coord-001", "--type", "coordinator")
    assert me == "coord-001#1"
    sent = shell.say("send", "coord-001", "note", '{"phase": "design"}', "--priority", "9", agent=me)
    assert sent == "m-1"
    (message,) = shell.json("receive", agent=me)
    assert (message["lease"], message["payload"], message["priority"]) == ("m-1#1", {"phase": "design"}, 9)
    assert shell.say("ack", message["lease"], agent=me) == "acknowledged m-1#1"
    assert shell.run("receive", agent=me).code == 4


def test_an_agent_keeps_state(shell: Shell) -> None:
    me = shell.say("register", "coord-001", "--type", "coordinator")
    assert shell.say("state", "set", "scope", '{"files": 12}', agent=me) == "1"
    assert shell.say("state", "get", "scope", agent="coord-001") == '{"files":12}'
    assert shell.run("state", "get", "nothing", agent=me).code == 4


def test_where_there_is_no_bus_it_says_how_to_make_one(nowhere: Shell) -> None:
    error = nowhere.json("status", code=1)
    assert error["code"] == "no_bus"
    assert "agentbus init" in error["fix"]
    assert list(nowhere.directory.iterdir()) == []


def test_the_package_is_the_command_line_too(shell: Shell) -> None:
    """``python -m agentbus``, in a real interpreter: the fork server has imported the package."""
    command = [sys.executable, "-m", "agentbus", "status", "--json"]
    ended = subprocess.run(command, cwd=shell.directory, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["schema_version"] == 1
