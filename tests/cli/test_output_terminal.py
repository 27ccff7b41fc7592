"""A terminal shows of tasks and of the bus the facts that a person decides by."""

from __future__ import annotations

import sys
import time
from typing import Any

import pytest

import agentbus
from agentbus import sync
from agentbus.cli.output import Rows
from agentbus.records import HistoryPut
from tests.cli.conftest import Outcome, Shell
from tests.cli.terminals import on_terminal
from tests.cli.test_rich_output import drawn
from tests.support.cases import each

QUESTION = "deploy to " + ", ".join(f"host-{number}" for number in range(40))


@agentbus.workflow("ship")
async def ship(task: agentbus.Task) -> None:
    await task.approval("plan", show="plan")
    await task.approval("go", show=QUESTION, expires=3600)


@agentbus.workflow("flaky")
async def flaky(task: agentbus.Task) -> None:
    await task.options(retries=3, backoff=3600).step("fetch", _fail)


@agentbus.workflow("broken")
async def broken(task: agentbus.Task) -> None:
    raise RuntimeError("no disk")


def _fail() -> None:
    raise OSError("no network")


def words(outcome: Outcome) -> str:
    """Return what is on the terminal, without its line breaks and columns."""
    assert outcome.code == 0, outcome
    return " ".join(outcome.out.split())


def open_bus(shell: Shell) -> sync.Bus:
    return sync.connect(shell.directory / ".agentbus")


def test_a_task_shows_why_it_is_where_it_is(shell: Shell) -> None:
    with open_bus(shell) as bus:
        for workflow in (ship, flaky, broken):
            bus.tasks.start(workflow, id=workflow.name, restarts=0)
        bus.tasks.start(ship, id="auto", auto=True)
        bus.tasks.start(ship, id="blocked", after=["broken"])
        bus.tasks.run_worker(ship, flaky, broken, until_idle=True)
        bus.tasks.approve("ship", "plan", by="ada", reason="it is short")
        bus.tasks.run_worker(ship, until_idle=True)
        bus.tasks.add("review", {"files": 3}, id="item", restarts=2)
        agent = bus.register("a", type="worker")
        item = agent.items.take("item")
        assert item is not None
        item.progress(40, "half of it")
        bus.tasks.halt("item", by="ada")
        shown = {task: words(shell.draw("task", "show", task)) for task in ("ship", "flaky", "broken", "auto", "item")}
        blocked = words(shell.draw("task", "show", "blocked"))
    assert "by ada; it is short" in shown["ship"]
    assert "expires in" in shown["ship"]
    assert "retry in" in shown["flaky"]
    assert "OSError: no network" in shown["flaky"]
    assert "RuntimeError: no disk" in shown["broken"]
    assert shown["auto"].count("approved automatically") == 2
    assert 'input {"files":3}' in shown["item"]
    assert "(halts when it is released)" in shown["item"]
    assert "40 % · 0 of 2 restarts · half of it" in shown["item"]
    assert "blocked waits for broken, which cannot complete by itself" in blocked


def test_a_question_is_shortened_in_the_list_and_whole_with_its_task(shell: Shell) -> None:
    with open_bus(shell) as bus:
        bus.tasks.start(ship, id="ship")
        bus.tasks.run_worker(ship, until_idle=True)
        bus.tasks.approve("ship", by="ada")
        bus.tasks.run_worker(ship, until_idle=True)
    listed = words(shell.draw("task", "approvals"))
    assert "agentbus task approve ship go" in listed
    assert "host-1" in listed
    assert "…" in listed
    assert "host-39" not in listed
    assert "host-39" in words(shell.draw("task", "show", "ship", width=400))


def test_an_overview_shows_the_first_failures_of_each_kind_then_the_rest(shell: Shell) -> None:
    with open_bus(shell) as bus:
        session = bus.sessions.start("planning", id="s")
        bus.register("member", type="worker", session="s").fail("crashed")
        for number in range(12):
            bus.register(f"agent-{number}", type="worker").fail("no disk")
        bus.histories.write("chat", "one", [HistoryPut(body=b"1")])
        session.document("plan").save(1)
        shown = words(shell.draw("status", "--settings"))
    assert "no disk" in shown
    assert "no disk 8 more; details: " in shown
    assert "agents: 13 failed" in shown
    assert "s planning – interrupted" in shown
    assert "chat" in shown
    assert "url" in shown


def test_a_stream_prints_a_record_on_a_line_without_its_empty_fields() -> None:
    row: dict[str, Any] = {"at": 0, "kind": "agent_failed", "note": "one\ntwo", "session": None, "facts": {}}
    columns = ("at:time", "kind", "note", "session", "facts")
    (line,) = drawn(Rows([row], columns, following=True), 30)
    assert line == f"{time.strftime('%H:%M:%S', time.localtime(0))}  agent_failed  one two"


def test_a_narrow_terminal_shows_a_record_as_lines(shell: Shell) -> None:
    shell.say("register", "a", "--type", "worker", "--metadata", '{"note":"' + "x" * 30 + '"}')
    shown = shell.draw("agents", "show", "a", width=25)
    assert shown.code == 0
    assert "type  worker" in [" ".join(line.split(" ")).strip() for line in shown.out.splitlines()]


def test_a_running_agent_is_cleared_if_a_person_confirms(shell: Shell) -> None:
    with open_bus(shell) as bus:
        bus.register("a", type="worker")
        refused = shell.draw("recovery", "clear", "a", input=b"n\n")
        record = bus.agents.get("a")
        assert record is not None
        assert (refused.code, record.status) == (2, "running")
        assert "a is running; its next call will be rejected. Clear it? [y/N]" in refused.err
        assert "a stopped" in words(shell.draw("recovery", "clear", "a", input=b"y\n"))


def test_deleted_agents_are_named(shell: Shell) -> None:
    for name in ("a", "b"):
        shell.register(name)
        shell.say("complete", agent=name)
    assert words(shell.draw("agents", "delete", "a", "b")) == "deleted a b"


def test_agents_deleted_before_an_error_are_named(shell: Shell) -> None:
    for name in ("a", "b"):
        shell.register(name)
    shell.say("complete", agent="a")
    failed = shell.run("agents", "delete", "a", "b")
    assert failed.code == 1
    assert "deleted before the error: a" in failed.err
    assert shell.refused("agents", "show", "a", code=4)["code"] == "unknown_agent"


def test_what_else_happened_is_noted_on_standard_error(shell: Shell) -> None:
    for name in ("s", "t"):
        shell.say("session", "start", "planning", "--id", name)
    shell.register("a", session="s")
    assert "left s" in shell.run("session", "join", "t", agent="a").err
    shell.say("task", "start", "review", "--manual", "--id", "r", "--restarts", "1")
    shell.say("task", "take", "r", agent="a")
    assert "r is retried later" in shell.run("task", "fail", "r", "no disk", agent="a").err


def test_a_command_whose_packages_are_missing_names_them(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "agentbus.web.server", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    error = shell.refused("serve", code=2)
    assert error["code"] == "no_extra"
    assert "uvicorn" in error["message"]
    assert "uvicorn" in error["fix"]


def test_stale_sessions_are_listed_by_their_inactivity(shell: Shell) -> None:
    shell.say("session", "start", "planning", "--id", "s")
    assert [row["id"] for row in shell.told("session", "list", "--stale", "0.00001")["items"]] == ["s"]
    assert shell.told("session", "list", "--stale", "60")["items"] == []


def test_waiting_until_a_message_was_seen_ends_at_once_without_a_recipient(shell: Shell) -> None:
    shell.register("a")
    shell.say("declare", "topic:news")
    told = shell.told("send", "topic:news", "note", "1", "--wait-seen", "60", agent="a", code=4)
    assert (told["seen"], told["receipts"]) == (False, [])


@each("words", [
    ("mcp", "--tools", "no_such_tool"),
    ("wait", "--for", "a", "--by", "ada"),
    ("task", "take", "r", "--held", "--agent", "a"),
    ("trust", "here", "--list"),
    ("checkpoint", "create", "half", "--all", "--agent", "a"),
    ("session", "list", "--stale", "1", "--status", "active"),
])  # fmt: skip
def test_options_that_exclude_or_need_each_other_are_refused(shell: Shell, words: tuple[str, ...]) -> None:
    shell.register("a", takeover=True)
    assert shell.refused(*words, code=2)["code"] == "usage"


def test_a_file_of_settings_that_is_no_text_is_refused_by_name(shell: Shell) -> None:
    (shell.directory / ".agentbus" / "agentbus.toml").write_bytes(b"\xff")
    error = shell.refused("status", code=2)
    assert (error["code"], error["fix"]) == ("usage", "convert it")
    assert "agentbus.toml is not UTF-8" in error["message"]


HOSTILE = "\x9b2J\x9d0;owned\x07\x7f\u202ertl\u200b\U000e0041"


def test_text_that_a_terminal_interprets_or_hides_is_escaped(shell: Shell) -> None:
    shell.register("a")
    with open_bus(shell) as bus:
        bus.state("s").set("k", {"x": HOSTILE})
        sender = bus.register("b", type="worker")
        for _ in range(2):
            sender.send("a", "note", {"x": HOSTILE})
    commands: list[tuple[str, ...]] = [
        ("state", "list", "--of", "s"), ("state", "get", "k", "--of", "s"), ("state", "get", HOSTILE, "--of", "s"),
        ("messages", "show", "m-1"), ("receive", "--max", "1"),
    ]  # fmt: skip
    for words in commands:
        for json in ((), ("--json",)):
            shown = shell.draw(*words, *json, agent="a")
            text = shown.out + shown.err
            assert "rtl" in text
            assert text.replace("\n", "").isprintable(), (words, text)
    entry = shell.json("state", "get", "k", "--of", "s")
    assert entry["value"] == {"x": HOSTILE}


def test_a_quiet_action_prints_what_scripts_use(shell: Shell) -> None:
    shell.register("a")
    sent = on_terminal(shell, "send", "a", "note", "1", "--agent", "a")[1]
    assert "sent m-1 to a" in sent
    assert on_terminal(shell, "send", "a", "note", "1", "--agent", "a", "--quiet")[1].split() == ["m-2"]
    assert on_terminal(shell, "heartbeat", "--agent", "a", "--quiet")[1].split() == []
