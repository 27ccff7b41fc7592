"""The start of a command: the modules that it imports, and those that it must not."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.cli.conftest import TIMEOUT, Shell

HEAVY = {"asyncio", "anyio", "aiosqlite", "tenacity", "rich", "uvloop"}
LATE = {
    "logging", "pathlib", "hashlib", "tempfile", "random", "shutil", "threading", "difflib", "locale", "inspect",
    "typing_extensions", "socket",
}  # fmt: skip
"""Modules that take long to import, and that a short command does not need."""
MAX_MODULES = 54
"""Modules of agentbus, packages included, that a send loads."""

PROGRAM = """
import json, sys
from agentbus.cli.entry_point import import_msgspec
import_msgspec()
from agentbus.cli.main import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted(sys.modules)]), file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [
        ("send", "a", "note", '{"n": 1}'),
        ("receive", "--wait", "0.01"),
        ("state", "set", "k", "1"),
        ("state", "get", "k"),
        ("heartbeat",),
        ("hook", "after-tool"),
        ("ack", "m-1"),
        ("progress", "10"),
        ("agents", "list"),
        ("messages", "list"),
        ("status",),
        ("request", "a", "note", "1", "--timeout", "0.01"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_data_command_imports_nothing_heavy(shell: Shell, words: tuple[str, ...]) -> None:
    shell.register("a")
    shell.environment["AGENTBUS_AGENT"] = "a"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, "--quiet"],
        cwd=shell.directory,
        env=shell.environment,
        capture_output=True,
        timeout=TIMEOUT,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    code, modules = json.loads(done.stderr.splitlines()[-1])
    assert code in {0, 1, 4}
    assert not HEAVY & set(modules)
    if words[0] in {"send", "state", "heartbeat", "hook"}:
        assert not LATE & set(modules)
    if words[0] == "send":
        own = [module for module in modules if module.partition(".")[0] == "agentbus"]
        assert len(own) <= MAX_MODULES, f"agentbus send loads {len(own)} modules:\n" + "\n".join(own)


def test_a_hook_imports_little_more_than_a_heartbeat(shell: Shell) -> None:
    """It runs with every tool of a coding agent. Without a message it loads what a heartbeat does, and its own part."""
    shell.register("a")
    # The first hook of an agent declares how messages reach it.
    shell.run("hook", "after-tool", agent="a", input=b"{}")
    loaded: dict[str, set[str]] = {}
    for words in (("heartbeat", "--quiet"), ("hook", "after-tool", "--client-pid", "0")):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *words, "--agent", "a"],
            cwd=shell.directory,
            env=shell.environment,
            capture_output=True,
            timeout=TIMEOUT,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        loaded[words[0]] = set(json.loads(done.stderr.splitlines()[-1])[1])
    assert loaded["hook"] - loaded["heartbeat"] == {
        "agentbus.cli.clients", "agentbus.cli.commands.hook", "agentbus.operations.hook_ledger",
    }  # fmt: skip


def test_msgspec_works_the_same_without_typing_extensions() -> None:
    """It decodes types of typing_extensions that are imported later."""
    program = """
import sys
from agentbus.cli.entry_point import import_msgspec
import_msgspec()
assert "typing_extensions" not in sys.modules
import msgspec, typing_extensions
class Job(typing_extensions.TypedDict, total=False):
    name: typing_extensions.Required[str]
    size: "typing_extensions.Annotated[int, msgspec.Meta(gt=0)]"
print(msgspec.json.decode('{"name": "a", "size": 1}', type=Job))
for wrong in ('{"size": 1}', '{"name": "a", "size": 0}'):
    try:
        msgspec.json.decode(wrong, type=Job)
    except msgspec.ValidationError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=TIMEOUT, check=True, text=True)
    assert done.stdout.splitlines() == [
        "{'name': 'a', 'size': 1}",
        "Object missing required field `name`",
        "Expected `int` >= 1 - at `$.size`",
    ]


def test_what_agents_keep_imports_nothing_heavy(shell: Shell) -> None:
    """In one process, for all of them."""
    calls = [
        "session start planning --id s", "session status s", "session list", "session interrupted", "session pause s",
        "session recover s", "session continue s", "document save plan 1 --session s", "document show plan --session s",
        "document history plan --session s", "document export plan plan.json --session s",
        "checkpoint create x 1 --file plan.json", "checkpoint create x --all --of session:s", "checkpoint list",
        "checkpoint show 1", "checkpoint restore", "checkpoint verify 1", "checkpoint prune --keep 1", "events",
        "types list", "types add zebra", "recovery list", "recovery clear", "backup list", "prime",
        "session complete s", "task start feature 1 --id t", "task list", "task show t --history", "task approvals",
        "task resumable", "task halt t", "task continue t", "task auto t off", "task stop t", "task resume t",
        "task restart t", "task edit t --name x", "task log t", "task stats", "task auto t off",
    ]  # fmt: skip
    program = """
import json, sys
from agentbus.cli.main import main
codes = {call: main(call.split()) for call in sys.argv[1:]}
print(json.dumps([codes, sorted(sys.modules)]), file=sys.stderr)
"""
    shell.register("a")
    shell.environment["AGENTBUS_AGENT"] = "a"
    done = subprocess.run(
        [sys.executable, "-c", program, *calls],
        cwd=shell.directory,
        env=shell.environment,
        capture_output=True,
        timeout=TIMEOUT,
        check=True,
    )
    codes, modules = json.loads(done.stderr.splitlines()[-1])
    assert {call: code for call, code in codes.items() if code} == {}
    assert not HEAVY & set(modules)


def test_every_command_is_explained_with_an_example(nowhere: Shell) -> None:
    """In one process, for all of them."""
    program = """
from importlib import import_module
from agentbus.cli.main import parser
from agentbus.cli.command_table import COMMANDS
for name, (module, purpose) in COMMANDS.items():
    found = {full: command for full, command in import_module(f"agentbus.cli.commands.{module}").COMMANDS.items()
             if full.partition(" ")[0] == name}
    assert found, name
    assert purpose
    for full, command in found.items():
        text = parser(full, command).format_help()
        assert command.purpose.endswith(".") and command.purpose in text.replace("\\n", " "), full
        assert "agentbus" in command.example and "plain output:" in text, full
        for option in ("--json", "--url", "--agent", "--quiet", "--debug", "--help"):
            assert option in text, full
        wide = [line for line in text.splitlines() if len(line) > 80 and not line.startswith("  agentbus ")]
        assert not wide, wide
        print(full)
"""
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=TIMEOUT, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr.decode()
    assert {b"send", b"agents list", b"state watch"} <= set(done.stdout.splitlines())


def test_help_is_there_without_a_bus(nowhere: Shell) -> None:
    overview = nowhere.say("--help")
    assert "receive" in overview
    assert "exit codes" in overview
    assert "agentbus send exec-001" in nowhere.say("send", "--help")
    assert "agentbus agents find python" in nowhere.say("agents", "--help")
    assert nowhere.say("--version").startswith("agentbus ")
    assert list(nowhere.directory.iterdir()) == []
