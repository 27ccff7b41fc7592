"""The shared list of work on the command line: add, depend, take, settle."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.cli.conftest import Shell
from tests.cli.terminals import on_terminal, uncoloured


def add(shell: Shell, id: str, *words: str) -> None:
    assert shell.say("task", "start", "--manual", "fix", "--id", id, *words) == id


def test_a_team_shares_a_list_with_dependencies(shell: Shell) -> None:
    a, b = shell.register("a"), shell.register("b")
    add(shell, "parser", "--text", "Fix the parser\nsoon")
    add(shell, "login", '{"file": "login.py"}', "--priority", "8", "--name", "Fix login")
    add(shell, "release", "--after", "parser", "--after", "login")
    rows = [row.split("\t") for row in shell.say("task", "ready").splitlines()]
    assert rows == [
        ["login", "fix", "8", "true", "Fix login", "-"],
        ["parser", "fix", "5", "true", "Fix the parser", "-"],
    ]
    assert shell.say("task", "take", agent=a) == 'login#1\tfix\t8\tFix login\t{"file":"login.py"}\t-'
    (item,) = shell.told("task", "take", "--workflow", "fix", agent=b)
    assert (item["lease"], item["id"], item["input"]) == ("parser#1", "parser", "Fix the parser\nsoon")
    outcome = shell.run("task", "take", agent=b)
    assert (outcome.code, outcome.out) == (4, "")
    shell.say("task", "progress", "parser", "40", "lexer done", agent=b)
    shell.say("task", "release", "parser#1", "--note", "lexer done, tests missing", agent=b)
    assert shell.say("task", "take", agent=a).endswith("\tlexer done, tests missing")
    held = shell.say("task", "take", "--held", agent=a).splitlines()
    assert [row.partition("\t")[0] for row in held] == ["parser#2", "login#1"]
    shell.say("task", "finish", "login", '{"ok": true}', agent=a)
    shell.say("task", "finish", "parser#2", "--text", "done", agent=a)
    again = shell.run("task", "finish", "parser#2", "--text", "done", agent=a)
    assert (again.code, again.err) == (0, "parser#2 was finished before\n")
    assert shell.say("task", "wait", "login") == '{"ok":true}'
    assert shell.say("task", "take", agent=b).startswith("release#1\t")


def test_the_help_says_what_settling_an_item_prints(shell: Shell) -> None:
    a = shell.register("a")
    add(shell, "x")
    for words, line in ((("release",), "released x"), (("finish",), "finished x"), (("fail", "no"), "failed x")):
        shell.say("task", "take", agent=a)
        assert shell.say("task", words[0], "x", *words[1:], agent=a) == line
        assert "plain output: a sentence" in shell.say("task", words[0], "--help")
        shell.say("task", "restart" if line == "finished x" else "show", "x")


def test_lists_say_why_a_task_waits(shell: Shell) -> None:
    a = shell.register("a")
    add(shell, "build")
    add(shell, "deploy", "--after", "build")
    row = shell.say("task", "list").splitlines()[0].split("\t")
    assert row[:6] == ["deploy", "fix", "waiting", "-", "0", '["after:build"]']
    assert json.loads(row[-1]) == [{"task": "build", "status": "pending", "completed": None}]
    shell.say("task", "take", agent=a)
    for command in (("task", "list"), ("task", "show", "deploy")):
        assert "after build (running)" in uncoloured(on_terminal(shell, *command)[1])
    shell.say("task", "fail", "build", "no compiler", agent=a)
    shown = shell.told("task", "show", "deploy")
    assert shown["task"]["waits"] == ["after:build"]
    assert [(one["about"], one["command"]) for one in shown["actions"]] == [
        ("after:build", "agentbus task resume build"),
        ("after:build", "agentbus task edit deploy --no-after build"),
    ]
    shell.say("task", "edit", "deploy", "--no-after", "build")
    assert shell.told("task", "show", "deploy")["actions"][0]["command"] == "agentbus task take deploy"


def test_a_failed_dependency_cancels_if_that_was_asked_for(shell: Shell) -> None:
    a = shell.register("a")
    add(shell, "build")
    add(shell, "deploy", "--after", "build", "--on-failed-dependency", "cancel")
    shell.say("task", "take", agent=a)
    shell.say("task", "fail", "build", "no compiler", agent=a)
    assert shell.told("task", "show", "deploy")["task"]["status"] == "stopped"
    assert shell.say("task", "log", "deploy", "--kind", "task_stopped").endswith('"reason":"dependency build failed"}')


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("task", "start", "fix", "--priority", "3"), 2, "usage"),
        (("task", "start", "--manual", "fix", "1", "2"), 2, "usage"),
        (("task", "start", "--manual", "fix", "--auto"), 2, "usage"),
        (("task", "start", "fix", "--after", "nothing"), 4, "unknown_task"),
        (("task", "edit", "one", "--after", "two"), 1, "dependency_cycle"),
        (("task", "take", "task"), 1, "not_an_item"),
        (("task", "take", "two"), 1, "wrong_state"),
        (("task", "take", "one", "--workflow", "fix"), 2, "usage"),
        (("task", "finish", "one"), 1, "task_lost"),
        (("task", "progress", "one", "101"), 2, "out_of_range"),
    ],
)
def test_refusals_have_a_name_and_a_fix(shell: Shell, words: tuple[str, ...], code: int, error: str) -> None:
    a = shell.register("a")
    shell.say("task", "start", "fix", "--id", "task")
    add(shell, "one")
    add(shell, "two", "--after", "one")
    assert shell.refused(*words, agent=a, code=code)["code"] == error
    assert shell.refused("task", "take", code=2)["code"] == "no_identity"


def test_an_agent_acts_only_as_itself(shell: Shell) -> None:
    a, b = shell.register("a"), shell.register("b")
    add(shell, "one")
    shell.say("task", "take", agent=a)
    for words in (("finish", "one"), ("fail", "one", "no"), ("release", "one"), ("progress", "one", "5")):
        refused = shell.refused("task", *words, agent=b, code=1)
        assert (refused["code"], "held by a" in refused["message"]) == ("task_lost", True)
    shell.say("stop", agent=a)
    assert shell.refused("task", "finish", "one", agent=a, code=1)["code"] == "agent_fenced"
    assert shell.say("task", "take", agent=b).startswith("one#2\t")


def test_the_item_of_a_shell_that_is_killed_is_ready_again(shell: Shell) -> None:
    b = shell.register("b")
    add(shell, "one")
    with subprocess.Popen(["sleep", "60"]) as process:
        a = shell.say("register", "a", "--type", "worker", "--pid", str(process.pid))
        shell.say("task", "take", agent=a)
        assert shell.run("task", "take", agent=b).code == 4
        process.kill()
        process.wait()
        assert shell.say("task", "take", agent=b).startswith("one#2\t")
    assert shell.refused("task", "finish", "one", agent=a, code=1)["code"] == "agent_fenced"
