"""Plain output for pipes: columns as the help names them, times, escapes, and what an action says that it did."""

from __future__ import annotations

import asyncio
import re
from importlib import import_module

import pytest

import agentbus
from agentbus.cli.command_table import COMMANDS
from agentbus.cli.context import Command
from agentbus.cli.output import iso_time, plain
from agentbus.sync.bus import open_bus
from tests.api.legacy_files import session
from tests.api.legacy_files import write as write_json
from tests.cli.conftest import TIMEOUT, Shell
from tests.cli.task_workers import add_module, begun, start, work
from tests.support.receiver import UserSettings, user

__all__ = ["user"]

ISO = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
# In this order, as agent "a".
PRINTED = (
    ("agents", "list"), ("agents", "show", "a"), ("agents", "find", "python"), ("agents", "delete", "old"),
    ("agents", "clear"), ("receive", "--peek"), ("watch", "--max", "1"), ("messages", "list"),
    ("messages", "show", "m-1"), ("messages", "dead"), ("holds", "list"),
    ("histories", "list"), ("histories", "show", "k", "h", "--bodies"),
    ("state", "list"), ("state", "watch", "--max", "1"), ("checkpoint", "list"), ("checkpoint", "show", "1"),
    ("checkpoint", "verify", "1"), ("document", "list", "--session", "s"),
    ("document", "history", "plan", "--session", "s"), ("session", "status", "s"), ("session", "list"),
    ("session", "interrupted"), ("session", "participants", "session-20240115"),
    ("session", "recover", "session-20240115"), ("session", "recover", "session-20240115", "--resume"),
    ("recovery", "check"), ("recovery", "list"), ("recovery", "clear", "failing"), ("events",), ("task", "list"),
    ("task", "show", "f-1"), ("task", "approvals"), ("task", "resumable"), ("task", "log", "f-1"), ("task", "stats"),
    ("task", "ready"), ("task", "query", "o-1"), ("task", "take"), ("quotas",),
    ("types", "list"), ("types", "show", "note"), ("monitor", "--once"), ("status",), ("status", "--settings"),
    ("backup", "list"), ("doctor",), ("cleanup", "--stale", "0"), ("import", "more"), ("copy", ".agentbus", "copy"),
    ("trust", "--list"), ("token", "list"), ("token", "revoke", "TOKEN"),
    ("notifications", "list"), ("notifications", "check"), ("notifications", "test", "log"),
    ("setup",), ("worker", "flows:docs", "--until-idle"),
)  # fmt: skip


def tabular() -> dict[str, Command]:
    """Return the commands whose plain output has columns."""
    found: dict[str, Command] = {}
    for module, _ in COMMANDS.values():
        found |= import_module(f"agentbus.cli.commands.{module}").COMMANDS
    return {name: command for name, command in found.items() if command.columns}


def documented(command: Command) -> dict[str, list[str]]:
    """Return the columns that the help names, by the first column if there are several kinds of lines."""
    text = re.sub(r" \([^)]*\)", "", command.output)
    lines = text.partition("plain output: ")[2].splitlines()
    found: dict[str, list[str]] = {}
    if "by the first column" not in lines[0]:
        found[""] = lines[0].rpartition(": ")[2].split(", ")
    for line in lines[1:]:
        if line.startswith("  "):
            subject, *columns = line.strip().split(", ")
            found[subject] = ["subject", *columns]
        elif line.startswith("after an option: "):
            subject, *columns = line.partition(": ")[2].split(", ")
            found[subject] = ["subject", *columns]
    return found


def name_of(words: tuple[str, ...], known: dict[str, Command]) -> str:
    return words[0] if words[0] in known else " ".join(words[:2])


@agentbus.workflow("exposing")
async def exposing(task: agentbus.Task) -> None:
    await task.expose("stage", "done")


async def expose(shell: Shell) -> None:
    async with agentbus.connect(shell.directory / ".agentbus") as bus:
        await bus.tasks.start(exposing, id="o-1")
        await asyncio.wait_for(bus.tasks.run_worker(exposing, until_idle=True), TIMEOUT)


@pytest.fixture
def busy(shell: Shell, user: UserSettings) -> Shell:
    """A bus with something in each list."""
    user.write('[command.log]\ncommand = ["/bin/cat"]\nbuses = ["*"]\n')
    begun(shell)
    begun(shell, "f-2")
    asyncio.run(expose(shell))
    add_module(shell)
    for directory in ("old", "more"):
        write_json(shell.directory / directory / "current_session.json", session(id=f"session-{directory}"))
    with open_bus(shell.directory / ".agentbus") as bus:
        a = bus.register("a", type="worker", capabilities=["python"])
        bus.register("done", type="worker").complete()
        bus.register("old", type="worker").complete()
        bus.register("failing", type="worker").fail("no")
        for number in range(3):
            a.send("a", "note", number)
        (message,) = a.receive_many(1)
        a.reject(str(message.lease), error="no")
        bus.do(a.state.set("k", 1, ttl=60))
        bus.do(bus.histories.write("k", "h", [agentbus.HistoryPut(body=b"\xff\t")]))
    write_json(shell.directory / "old" / "current_session.json", session())
    for words in (
        ("session", "start", "planning", "--id", "s", "--expect", "b=c"), ("document", "save", "plan", "1"),
        ("checkpoint", "create", "x", "1", "--file", "flows.py"), ("import", "old"), ("backup",),
        ("task", "start", "docs", "--id", "d-1"), ("task", "start", "review", "3", "--manual", "--id", "i-1"),
        ("token", "create", "read", "--operator", "ada"),
    ):  # fmt: skip
        shell.say(*words, agent="a")
    return shell


def test_the_header_names_the_columns_that_the_help_names(busy: Shell) -> None:
    known = tabular()
    assert {name_of(words, known) for words in PRINTED} == set(known)
    wrong: list[object] = []
    (token,) = busy.json("token", "list")
    for words in PRINTED:
        given = [token["id"] if word == "TOKEN" else word for word in words]
        outcome = busy.run(*given, "--header", agent="a")
        columns = documented(known[name_of(words, known)])
        lines = [line.split("\t") for line in outcome.out.splitlines()]
        header = lines[0] if lines else []
        for line in lines:
            if line[0] == "subject" or (header[0] != "subject" and line is lines[0]):
                header = line
                continue
            wanted = columns.get(line[0] if header[0] == "subject" else "")
            if line[0] == "remark":
                continue
            if wanted != header or len(line) != len(header):
                wrong.append((words, wanted, header, line))
                break
        # A healthy bus gives a monitor nothing to print.
        if (not lines and words[0] != "monitor") or outcome.code not in {0, 1}:
            wrong.append((words, outcome))
    assert wrong == [], "\n".join(map(str, wrong))


def test_times_are_iso_8601_unless_milliseconds_are_wanted(busy: Shell) -> None:
    ((_, *_, updated, seen),) = [
        line.split("\t") for line in busy.say("agents", "list", "--status", "running").splitlines() if line[:2] == "a\t"
    ]
    assert re.fullmatch(ISO, updated)
    assert re.fullmatch(ISO, seen)
    fields = dict(line.split("\t", 1) for line in busy.say("messages", "show", "m-1").splitlines())
    record = busy.json("messages", "show", "m-1")
    assert fields["created"] == iso_time(record["created"])
    epoch = dict(line.split("\t", 1) for line in busy.say("messages", "show", "m-1", "--epoch").splitlines())
    assert int(epoch["created"]) == record["created"]
    assert re.search(rf"^step\tplan\t.*\t{ISO}\t", busy.say("task", "show", "f-1"), re.MULTILINE)


def test_a_stream_has_one_header(busy: Shell) -> None:
    lines = busy.say("events", "--follow", "--after", "0", "--max", "3", "--header").splitlines()
    assert [line.split("\t")[0] for line in lines] == ["id", "1", "2", "3"]


def test_no_control_character_of_a_value_reaches_the_output() -> None:
    nasty = "one\ttwo\nthree\r\x1b[2J\x0b\x85\u2028 \\ é 👩\u200d💻"
    assert plain(nasty) == r"one\ttwo\nthree\r\x1b[2J\x0b\x85\u2028 \\ é 👩" + "\u200d💻"
    assert plain({"k": nasty}).splitlines() == [plain({"k": nasty})]
    assert "\\u0085" in plain([nasty])
    assert not any(ord(one) < 32 or 127 <= ord(one) < 160 for one in plain([nasty, "\x7f"]))


def test_the_path_of_a_file_is_one_line_without_control_characters(shell: Shell) -> None:
    for number, words in enumerate((("export",), ("backup", "create"), ("metrics", "--output"))):
        assert shell.say(*words, f"{number}\x1b[2J\ntwo").endswith(rf"{number}\x1b[2J\ntwo")


KINDS = ("agent", "task", "session", "message")
# In this order, as agent "a".
SAID: list[tuple[tuple[str, ...], str]] = [
    (("task", "edit", "f-1", "--name", "x"), "changed name of f-1"),
    (("task", "halt", "f-1"), "halted f-1"),
    (("task", "continue", "f-1"), "continued f-1"),
    (("task", "redo", "f-1", "plan"), "redoing plan of f-1"),
    (("task", "stop", "f-1"), "stopped f-1"),
    (("task", "resume", "f-1"), "resumed f-1 after its last finished step"),
    (("task", "restart", "f-1"), "restarted f-1 from its first step"),
    (("messages", "requeue", "m-1"), "1"),
    (("session", "pause", "s"), "paused session s"),
    (("session", "continue", "s"), "continued session s"),
    (("state", "delete", "k"), "deleted k of a"),
    (("declare", "pool:p", "topic:t"), "declared pool:p, topic:t"),
    (("expect", "later", "--type", "worker", "--within", "1m"), "expecting later within 60 s"),
    (("expect", "a", "--type", "worker"), "a is registered already"),
    (("progress", "40"), ""),
    (("complete",), "completed a#1"),
]


def test_an_action_says_what_it_did(busy: Shell) -> None:
    for words, sentence in (
        (("auto", "f-2", "off"), "f-2 waits for decisions"),
        (("reject", "f-1", "--reason", "no"), "rejected plan of f-1: no"),
        (("approve", "f-2"), "approved plan of f-2"),
        (("auto", "f-2", "on"), "f-2 passes its approvals automatically"),
    ):
        assert busy.say("task", *words, "--by", "ada") == sentence
    assert [(words, busy.say(*words, agent="a")) for words, _ in SAID] == SAID


def test_the_status_names_what_failed_then_what_waits_then_counts(busy: Shell) -> None:
    start(busy, "broken", id="b-1")
    work(busy)
    busy.say("session", "fail", "s", "no budget")
    busy.say("task", "halt", "f-2")
    lines = [line.split("\t") for line in busy.say("status").splitlines()]
    failed = [tuple(line[1:4]) for line in lines if line[0] == "failed"]
    assert [one[0] for one in failed] == sorted((one[0] for one in failed), key=KINDS.index)
    assert {
        ("agent", "failing", "failed"), ("task", "b-1", "failed"), ("session", "s", "failed"),
        ("message", "m-1", "dead"),
    } <= set(failed)  # fmt: skip
    waiting = [(line[1], line[2]) for line in lines if line[0] == "waiting"]
    assert waiting == [
        ("approval", "f-1"), ("approval", "f-2"), ("session", "session-20240115"), ("task", "f-2"), ("queue", "a"),
    ]  # fmt: skip
    subjects = list(dict.fromkeys(line[0] for line in lines))
    assert subjects[:4] == ["failed", "waiting", "agents", "messages"]
    assert "setting" not in subjects
    commands = {tuple(line[-1].split()[1:]) for line in lines if line[0] in {"failed", "waiting"}}
    for words in commands:
        if words[:2] not in {("task", "approve"), ("task", "continue")}:
            assert busy.run(*words).code == 0, words


def test_a_confirmation_can_be_left_out(busy: Shell) -> None:
    assert busy.say("session", "pause", "s", "--quiet") == ""
    assert busy.say("messages", "requeue", "m-1", "--quiet") == "1", "a number that scripts use stays"
