"""``agentbus prime``: short, true, and usable as it stands."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from importlib import import_module

from agentbus.cli import main
from agentbus.cli.command_table import COMMANDS, DEFAULTS
from agentbus.cli.context import Command
from agentbus.sync.bus import open_bus
from tests.cli.conftest import TIMEOUT, Shell
from tests.support import zygote

MOST_TOKENS = 1500


def tokens(text: str) -> int:
    """At least as many as a tokenizer finds: four characters each, or a word or mark each, whichever are more; words of
    more than six letters count as two."""
    pieces = re.findall(r"[A-Za-z]+|\d+|[^\sA-Za-z\d]", text)
    return max(len(text) // 4, sum(2 if len(piece) > 6 else 1 for piece in pieces))


def called(text: str) -> list[list[str]]:
    """Every call of the command in a text, as words."""
    calls = re.findall(r"(?:^ *|[`(\"]|\|\| )agentbus ([a-z][^`\n]*)", text, re.MULTILINE)
    ends = re.compile(r'  #| # |\)| 2>|"}]| \$\{| \|\|')
    return [shlex.split(ends.split(call)[0].replace("$$", "1")) for call in calls]


def parse(words: list[str]) -> None:
    """Return True if the command line takes these words."""
    name, *rest = words
    commands: dict[str, Command] = import_module(f"agentbus.cli.commands.{COMMANDS[name][0]}").COMMANDS
    if name not in commands:
        member = rest.pop(0) if rest and not rest[0].startswith("-") else DEFAULTS[name]
        name = f"{name} {member}"
    main._parse(main.parser(name, commands[name]), rest)


def test_prime_needs_no_bus_and_is_short(nowhere: Shell) -> None:
    text = nowhere.say("prime")
    assert tokens(text) <= MOST_TOKENS
    assert nowhere.json("prime").rstrip() == text
    assert list(nowhere.directory.iterdir()) == []
    for word in ("register", "receive", "ack", "progress", "request", "reply", "checkpoint create", "complete"):
        assert f"agentbus {word}" in text


def test_every_command_that_is_taught_is_one(nowhere: Shell) -> None:
    for words in (("prime",), ("prime", "--for", "claude-code")):
        calls = called(nowhere.say(*words))
        assert len(calls) >= 8
        for call in calls:
            if call[0] != "COMMAND":
                parse(call)
    assert nowhere.refused("prime", "--for", "emacs", code=2)["code"] == "usage"


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_hooks_are_settings_that_work(shell: Shell) -> None:
    (settings,) = [json.loads(block) for block in blocks(shell.say("prime", "--for", "claude-code"), "json")]
    hooks = settings["hooks"]
    assert set(hooks) == {"SessionStart", "UserPromptSubmit", "PostToolUse", "SessionEnd"}
    commands = {event: entry[0]["hooks"][0]["command"] for event, entry in hooks.items()}
    assert all(entry[0]["hooks"][0]["type"] == "command" for entry in hooks.values())
    shell.environment["PATH"] = zygote.search_path(shell.environment)

    def run(event: str) -> str:
        done = subprocess.run(
            ["sh", "-c", commands[event]], cwd=shell.directory, env=shell.environment, capture_output=True,
            timeout=TIMEOUT, check=False,
        )  # fmt: skip
        # A hook that fails with 2 would block its tool.
        assert (done.returncode, done.stderr) == (0, b"")
        return done.stdout.decode()

    for event in hooks:
        run(event)  # also for a caller that is no agent
    shell.environment |= {"AGENTBUS_AGENT": "claude-1", "AGENT_SHELL": str(os.getpid())}
    assert run("SessionStart").startswith("claude-1#1\n# Working on the agentbus")
    assert run("SessionStart").startswith("# Working on the agentbus")  # it lives
    assert run("UserPromptSubmit") == ""
    shell.say("send", "claude-1", "note", '{"text": "hello"}')
    assert '{"text":"hello"}' in run("UserPromptSubmit")
    run("PostToolUse")
    run("SessionEnd")
    assert shell.json("agents", "show", "claude-1")["status"] == "stopped"
    # An agent that is not on the bus learns of it, and the next session registers it again.
    assert "is fenced" in run("UserPromptSubmit")
    assert run("SessionStart").startswith("claude-1#2\n# Working on the agentbus")
    shell.environment["AGENT_SHELL"] = "0"
    run("SessionEnd")
    assert "You are not on the agentbus" in run("SessionStart")


def test_prime_can_be_played_literally_on_a_new_bus(shell: Shell) -> None:
    """Line by line, in one shell: what is taught works in the order in which it is taught."""
    lines = re.findall(r"^    ((?:agentbus|AGENTBUS_AGENT=).*)$", shell.say("prime"), re.MULTILINE)
    messages = iter(("t-1#1", "t-2#1", "t-3#1", "t-4#1"))
    script = ["set -o pipefail"]
    for line in lines:
        line = line.replace("receive --wait 60", "receive --max 4").replace("--timeout 120", "--timeout 0.01")
        line = line.replace("--wait-seen 60", "--wait-seen 0")
        line = re.sub(r"m-7#1", lambda _: next(messages), line.split("  #")[0].split(" # ")[0])
        # The request gets no reply, no agent sees the message, and nothing else may fail.
        expected = 4 if line.startswith("agentbus request") or "--wait-seen" in line else 0
        script.append(f"{line} >>out; code=$?; test $code = {expected} || echo {shlex.quote(line)} $code")
        if "register" in line:
            script += [f"agentbus send planner-1 note --id t-{n} --agent executor-1 >>out" for n in (1, 2, 3, 4)]
    shell.register("executor-1", pools=("executors",))
    (shell.directory / "plan.md").write_text("# A plan\n")
    (shell.directory / "task.json").write_text("{}")
    shell.environment["PATH"] = zygote.search_path(shell.environment)
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)], cwd=shell.directory, env=shell.environment, capture_output=True,
        timeout=100, check=False,
    )  # fmt: skip
    assert len(lines) > 20
    assert next(messages, None) is None
    assert done.stdout == b"", done.stderr
    assert re.fullmatch(rb"not seen: executor-1 is running, .*\n(no worker is running; .*\n){2}", done.stderr)
    with open_bus(shell.directory / ".agentbus") as bus:
        answer = bus.agent("executor-1").in_hand() or bus.agent("executor-1").peek(10)
        assert any(one.type == "completion_notification" for one in answer)
        session = bus.do(bus.sessions.open("planning-001"))
        assert bus.do(session.document("plan").latest()) == "# A plan\n"


def test_what_receive_gives_is_as_it_is_taught(shell: Shell) -> None:
    (shown,) = re.findall(r"^ +(\{\"schema_version\".*)$", shell.say("prime"), re.MULTILINE)
    taught = json.loads(shown.replace("…", "null"))
    shell.register("a")
    shell.say("send", "a", "note", "1", agent="a")
    given = json.loads(shell.run("receive", "--json", agent="a").out)
    assert set(taught) == set(given)
    assert set(taught["data"][0]) <= set(given["data"][0])


def test_the_skill_has_a_heading_that_tools_can_read(nowhere: Shell) -> None:
    (skill,) = blocks(nowhere.say("prime", "--for", "claude-code"), "markdown")
    _, heading, body = skill.split("---\n")
    fields = dict(line.split(": ", 1) for line in heading.splitlines())
    assert set(fields) == {"name", "description", "allowed-tools"}
    # Plain YAML: a second colon with a space behind it would end the value.
    assert all(": " not in value and " #" not in value for value in fields.values())
    assert "agentbus prime" in body
