"""Durable tasks on the command line: looking at them, deciding, controlling them."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import time
from argparse import Namespace
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from rich.console import Console

import agentbus
from agentbus.cli import rich_output, task_chart
from agentbus.cli.commands.status import overview_of
from agentbus.cli.context import gather_settings
from agentbus.cli.operators import account
from agentbus.cli.task_tree import TaskTree, TaskView, load_tree
from agentbus.sync.bus import open_bus
from tests.cli.conftest import TIMEOUT, Shell, until
from tests.cli.task_workers import begun, start, work
from tests.cli.terminals import on_terminal, uncoloured


def status(shell: Shell, task: str = "f-1") -> str:
    found: str = shell.told("task", "show", task)["task"]["status"]
    return found


def steps(shell: Shell, *words: str) -> list[tuple[str, str]]:
    shown = shell.told("task", "show", "f-1", *words)["steps"]
    return [(step["key"], step["status"]) for step in shown if step["kind"] == "step"]


def logged(shell: Shell, kind: str) -> list[tuple[str, Any]]:
    events = shell.told("task", "log", "f-1", "--kind", kind)
    return [(event["actor"], event["facts"].get("reason")) for event in events]


def test_a_task_is_started_looked_at_approved_and_waited_for(shell: Shell) -> None:
    words = ("task", "start", "feature", "--text", "Add login", "--id", "f-1", "--name", "Login")
    outcome = shell.run(*words)
    assert (outcome.code, outcome.out) == (0, "f-1\n")
    assert "agentbus worker" in outcome.err
    assert shell.say(*words) == "f-1", "the same once more"
    (row,) = shell.say("task").splitlines()
    assert row.split("\t")[:6] == ["f-1", "feature", "pending", "-", "0", "[]"]
    assert row.endswith("\tLogin\t-\t[]")
    work(shell)
    shown = shell.run("task", "list", "--status", "waiting")
    assert '["approval:plan"]' in shown.out
    assert shown.err == "1 open question: agentbus task approvals\n"
    (asked,) = shell.told("task", "approvals")
    answer = asked["command"]
    assert answer == "agentbus task approve f-1 plan"
    # Everything that shows the question shows what is to be decided.
    assert asked["shown"] == {"request": "Add login", "feedback": None}
    told = [shell.say("task", "approvals"), shell.say("task", "show", "f-1").partition("\napproval\t")[2]]
    assert [json.loads(text.splitlines()[0].split("\t")[-1]) for text in told] == [asked["shown"]] * 2
    plain = [line.split("\t") for line in shell.say("task", "show", "f-1").splitlines()]
    assert ["task", "phase", "planning"] in plain
    assert [row[1:5] for row in plain if row[0] == "step"] == [
        ["planning", "phase", "finished", "1"], ["plan", "step", "finished", "1"],
    ]  # fmt: skip
    assert ["action", "f-1", "approval:plan", answer] in plain
    shell.say(*answer.split()[1:], "--by", "ada", "--reason", "fine")
    work(shell)
    assert json.loads(shell.say("task", "wait", "f-1")) == {
        "plan": {"request": "Add login", "feedback": None}, "docs": "written: None",
    }  # fmt: skip
    assert logged(shell, "approval_decided") == [("ada", "fine")]
    assert "\ttask_completed\ttask\tf-1\t" in shell.say("task", "log", "f-1")
    found = shell.told("task", "show", "f-1")
    assert (found["actions"], [one["status"] for one in found["subtasks"]]) == ([], ["completed"])
    assert shell.told("task", "approvals") == []


def test_a_pending_task_says_why_nothing_happens(shell: Shell) -> None:
    start(shell, "feature", "login", id="f-1")
    start(shell, "feature", "login", id="f-2", delay=3600)
    assert shell.run("task", "show", "f-1").err == "no worker is running; start one: agentbus worker MODULE:WORKFLOW\n"
    shell.say("register", "w", "--type", "worker", "--capability", "feature")
    assert shell.run("task", "show", "f-1").err == "no worker is running; start one: agentbus worker MODULE:WORKFLOW\n"
    waiting = {"kind": "workflow", "name": "feature", "what": "no running worker has it"}
    command = "agentbus worker MODULE:feature"
    (found,) = shell.told("status")["waiting"]
    assert found == {**waiting, "since": found["since"], "command": command}
    assert re.fullmatch(r"f-2 is delayed until \S+Z\n", shell.run("task", "show", "f-2").err)
    code, shown = on_terminal(shell, "task", "list")
    assert (code, uncoloured(shown).count("delayed until")) == (0, 1)
    begun(shell)
    assert shell.run("task", "show", "f-1").err == ""


def test_a_rejection_and_its_reason_reach_the_workflow(shell: Shell) -> None:
    begun(shell)
    shell.told("task", "reject", "f-1", "--by", "ada", "--reason", "too large")
    work(shell)
    found = shell.told("task", "show", "f-1")
    assert found["approvals"][1]["shown"]["feedback"] == "too large"
    assert [one["command"] for one in found["actions"]] == [
        "agentbus task approve f-1 plan#2", "agentbus task reject f-1 plan#2 --reason 'why'",
    ]  # fmt: skip


DECISIONS: Sequence[tuple[str, ...]] = [
    ("approve", "f-1"), ("reject", "f-1"), ("auto", "f-1", "on"), ("settle", "f-1", "plan", "--redo"),
    ("start", "feature", "1", "--auto"),
]  # fmt: skip


@pytest.mark.parametrize("words", DECISIONS, ids=lambda words: words[0])
def test_agents_decide_nothing_by_accident(
    shell: Shell, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(shell)
    agent = shell.register("a")
    error = shell.refused("task", *words, agent=agent, code=2)
    assert error["code"] == "not_an_operator"
    assert error["message"].startswith("a is an agent: agents cannot")
    assert ("ask a person" in error["fix"], "--by" in error["fix"]) == (True, False)
    assert shell.refused("task", *words, "--by", "ada", agent=agent, code=2)["code"] == "not_an_operator"
    assert shell.refused("task", *words, "--by", "ada", "--agent", "a", code=2)["code"] == "not_an_operator"
    # What a person's shell says is inherited by the agents that are started from it.
    monkeypatch.setenv("AGENTBUS_OPERATOR", "ada")
    assert shell.refused("task", *words, agent=agent, code=2)["code"] == "not_an_operator"
    assert status(shell) == "waiting"
    with open_bus(shell.directory / ".agentbus") as bus:
        assert len(bus.do(bus.tasks.list()).items) == 1


def test_a_decision_has_the_name_of_a_person(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(shell)
    shell.register("a")
    # A script has no terminal.
    assert shell.refused("task", "approve", "f-1", code=2)["code"] == "no_operator"
    for words in (("approve", "f-1"), ("reject", "f-1", "--reason", "no"), ("auto", "f-1", "on")):
        assert shell.refused("task", *words, "--by", "a", code=2)["code"] == "not_an_operator"
    monkeypatch.setenv("AGENTBUS_OPERATOR", "ada")
    reject = ("task", "reject", "f-1", "--reason", "no")
    assert shell.told(*reject)["by"] == "ada"
    work(shell)
    assert shell.told(*reject, "--by", "bob")["by"] == "bob"
    work(shell)
    code, shown = on_terminal(shell, "task", "approve", "f-1", "--json")
    assert (code, json.loads(shown)["data"]["by"]) == (0, account())
    assert re.fullmatch(r"\S+@\S+", account())


def test_control_is_carried_out_and_recorded_with_its_author(shell: Shell) -> None:
    begun(shell)
    agent = shell.register("a")
    reason = ("--by", "ada", "--reason", "later")
    assert shell.told("task", "halt", "f-1", *reason)["status"] == "halted"
    assert shell.told("task", "show", "f-1")["actions"][-1]["command"] == "agentbus task continue f-1"
    assert "halted by ada: later" in on_terminal(shell, "task", "show", "f-1")[1]
    assert [task["id"] for task in shell.told("task", "resumable")] == ["f-1"]
    assert shell.told("task", "continue", "f-1", *reason)["status"] == "pending"
    assert shell.told("task", "stop", "f-1", *reason)["status"] == "stopped"
    assert shell.told("task", "show", "f-1")["actions"] == [
        {"task": "f-1", "about": "stopped", "command": "agentbus task resume f-1"}
    ]
    assert "stopped by ada: later" in on_terminal(shell, "task", "show", "f-1")[1]
    assert shell.told("task", "resume", "f-1", agent=agent)["status"] == "pending"
    assert "by ada" not in on_terminal(shell, "task", "show", "f-1")[1]
    edited = (
        "--name",
        "Log in",
        "--context",
        '{"k": 1}',
        "--settings",
        '{"m": 2}',
        "--restarts",
        "3",
        "--backoff",
        "5s",
    )
    assert shell.told("task", "edit", "f-1", *edited)["name"] == "Log in"
    record = shell.told("task", "show", "f-1")["task"]
    assert [record[name] for name in ("context", "settings", "restarts", "backoff")] == [{"k": 1}, {"m": 2}, 3, 5.0]
    assert shell.told("task", "auto", "f-1", "on", "--by", "ada")["auto"] is True
    assert shell.told("task", "auto", "f-1", "off", agent=agent)["auto"] is False
    assert shell.told("task", "restart", "f-1", *reason)["status"] == "pending"
    for kind in ("task_halted", "task_continued", "task_stopped", "task_restarted"):
        assert logged(shell, kind) == [("ada", "later")], kind
    assert logged(shell, "task_resumed") == [("a", None)]
    assert [actor for actor, _ in logged(shell, "task_edited")] == [account(), "ada", "a"]


def test_a_redo_hands_a_note_to_the_step_and_keeps_what_was_done(shell: Shell) -> None:
    begun(shell, auto=True)
    assert status(shell) == "completed"
    shell.told("task", "redo", "f-1", "back", "--note", "faster", "--by", "ada")
    work(shell)
    assert steps(shell) == [("plan", "finished"), ("front", "finished"), ("back", "finished")]
    assert sorted(steps(shell, "--history")) == sorted([*steps(shell), ("back", "finished")])
    notes = [step["note"] for step in shell.told("task", "show", "f-1")["steps"] if step["key"] == "back"]
    assert notes == ["faster"]
    (child,) = (one["id"] for one in shell.told("task", "show", "f-1")["subtasks"])
    shell.told("task", "redo", child, "write", "--note", "shorter")
    work(shell)
    assert shell.told("task", "wait", child)["result"] == "written: shorter"


def test_waiting_for_a_task_reports_its_outcome(shell: Shell) -> None:
    start(shell, "broken", id="b-1")
    assert shell.told("task", "wait", "b-1", "--timeout", "0", code=4)["status"] == "pending"
    waiting = shell.start("task", "wait", "b-1")
    try:
        folder = shell.directory / ".agentbus" / "bells"
        until(lambda: folder.is_dir() and bool(os.listdir(folder)))
        work(shell)
        out, err = waiting.communicate(timeout=TIMEOUT)
    finally:
        waiting.kill()
        waiting.wait()
    assert (waiting.returncode, out) == (1, b"")
    assert b"b-1 has failed: " in err
    assert b"no such file" in err
    assert shell.told("task", "show", "b-1")["actions"][0]["command"] == "agentbus task resume b-1"


def test_a_task_is_watched_until_it_has_ended(shell: Shell) -> None:
    begun(shell)
    watching = shell.start("task", "show", "f-1", "--watch", "--interval", "0.05", "--json")
    try:
        assert watching.stdout is not None
        assert json.loads(watching.stdout.readline())["data"]["task"]["status"] == "waiting"
        shell.told("task", "approve", "f-1", "--by", "ada")
        work(shell)
        looks = watching.communicate(timeout=TIMEOUT)[0].splitlines()
    finally:
        watching.kill()
        watching.wait()
    assert watching.returncode == 0
    assert json.loads(looks[-1])["data"]["task"]["status"] == "completed"


def test_people_see_the_steps_and_what_they_can_do(shell: Shell) -> None:
    begun(shell, name="Login\x1b[31m")
    code, shown = on_terminal(shell, "task", "show", "f-1")
    text = uncoloured(shown)
    assert code == 0
    assert "\x1b[31mm" not in shown
    for pattern in (
        r"^f-1  Login", r"^waiting for approval plan · workflow feature · phase planning", r"─ phase:planning +\d\d:",
        r'✓ plan +finished +\d\d:\d\d:\d\d +\d+ ms +\{"request":"login"', r"\? approval:plan +open ",
        r"^plan is awaiting a decision", r'^ +"request": "login"', r"^  agentbus task approve f-1 plan\b",
    ):  # fmt: skip
        assert re.search(pattern, text, re.MULTILINE), pattern
    shell.told("task", "approve", "f-1", "--by", "ada")
    work(shell)
    shell.told("task", "redo", "f-1", "back", "--note", "faster", "--by", "ada")
    work(shell)
    text = uncoloured(on_terminal(shell, "task", "show", "f-1", "--history", "--watch")[1])
    for pattern in (
        r"^completed · workflow feature", r"✓ approval:plan +approved .* by ada", r"┌ ✓ front +finished",
        r"└ ✓ back +finished .* superseded by redo 1", r"✓ back +finished .* note: faster",
        r"✓ task:docs +finished .* f-1/\d+\s*$", r"^ {4}✓ write +finished",
    ):  # fmt: skip
        assert re.search(pattern, text, re.MULTILINE), (pattern, text)


def test_the_overview_names_what_waits_for_a_person(shell: Shell) -> None:
    begun(shell)
    found = shell.told("status")
    assert [(one["id"], one["status"]) for one in found["tasks"]] == [("f-1", "waiting")]
    assert [one["command"] for one in found["asked"]] == ["agentbus task approve f-1 plan"]
    code, shown = on_terminal(shell, "status")
    assert code == 0
    lines = [line.strip() for line in uncoloured(shown).splitlines()]
    assert lines[0] == "waiting"
    assert lines[2].endswith("agentbus task approve f-1 plan")
    assert "tasks" in lines[3:]
    code, shown = on_terminal(
        shell, "task", "list", "--watch", "--interval", "0.05", until="approval plan", interrupt=True
    )
    assert code == 130


def test_tasks_are_listed_and_counted(shell: Shell) -> None:
    shell.told("session", "start", "planning", "--id", "s")
    agent = shell.register("a", session="s")
    made = shell.told("task", "start", "feature", "--keyword", "request=1", "--delay", "1h", agent=agent)
    assert shell.told("task", "show", made["id"])["task"]["keywords"] == {"request": 1}
    start(shell, "broken", id="b-1")
    work(shell)
    listed = shell.told("task", "list", "--session", "s")["items"]
    assert [one["id"] for one in listed] == [made["id"]], "a task of an agent belongs to its session"
    assert [one["id"] for one in shell.told("session", "status", "s")["tasks"]] == [made["id"]]
    page = shell.told("task", "list", "--limit", "1")
    assert [one["id"] for one in page["items"]] == ["b-1"]
    assert len(shell.told("task", "list", "--cursor", page["cursor"])["items"]) == 1
    assert [
        one["id"] for one in shell.told("task", "list", "--workflow", "broken", "--status", "failed,halted")["items"]
    ] == ["b-1"]
    assert shell.told("task", "stats")["tasks"] == {"failed": 1, "pending": 1}
    assert shell.say("task", "stats", "--workflow", "broken").splitlines() == [
        "workflow\tbroken\tfailed\t1", "step\tfailed\t1", "number\topen_approvals\t0", "number\toldest_pending\t-",
        "number\tmean_duration\t-",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("show", "none"), 4, "unknown_task"),
        (("wait", "none"), 4, "unknown_task"),
        (("log", "none"), 4, "unknown_task"),
        (("halt", "none"), 4, "unknown_task"),
        (("show", "no name"), 2, "invalid_name"),
        (("list", "--status", "asleep"), 2, "out_of_range"),
        (("start",), 2, "usage"),
        (("start", "no name"), 2, "invalid_name"),
        (("start", "feature", "Add login"), 2, "invalid_json"),
        (("start", "feature", "--keyword", "x"), 2, "usage"),
        (("start", "feature", "--context", "[1]"), 2, "invalid_input"),
        (("start", "feature", "--restarts", "-1"), 2, "out_of_range"),
        (("start", "feature", "2", "--id", "f-1"), 1, "task_exists"),
        (("start", "feature", "--session", "none"), 1, "unknown_session"),
        (("approve", "f-1", "code", "--by", "ada"), 4, "unknown_approval"),
        (("reject", "f-1", "plan", "--by", "ada"), 2, "usage"),
        (("approve", "f-1", "--by", ""), 2, "out_of_range"),
        (("redo", "f-1", "deploy"), 4, "unknown_step"),
        (("redo", "f-1"), 2, "usage"),
        (("settle", "f-1", "plan", "--by", "ada"), 2, "usage"),
        (("settle", "f-1", "plan", "--redo", "--error", "x", "--by", "ada"), 2, "usage"),
        (("settle", "f-1", "plan", "--redo", "--by", "ada"), 1, "wrong_state"),
        (("continue", "f-1"), 1, "wrong_state"),
        (("resume", "f-1"), 1, "wrong_state"),
        (("edit", "f-1"), 2, "usage"),
        (("auto", "f-1", "maybe"), 2, "usage"),
        (("f-1",), 2, "usage"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_told(waiting: Shell, words: tuple[str, ...], code: int, error: str) -> None:
    assert waiting.refused("task", *words, code=code)["code"] == error


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    """A bus with a task that waits, for what changes nothing."""
    shell = Shell(tmp_path_factory.mktemp("t"))
    open_bus(shell.directory / ".agentbus", create=True).close()
    begun(shell)
    return shell


@pytest.mark.parametrize("width", [160, 100, 80, 60, 40, 25])
def test_nothing_that_is_copied_is_cut_in_two(waiting: Shell, width: int) -> None:
    text = io.StringIO()
    with open_bus(waiting.directory / ".agentbus") as bus:
        task = bus.do(bus.tasks.get("f-1"))
        assert task is not None
        with patch.object(task_chart, "Console", lambda: Console(file=text, width=width)):
            TaskView(load_tree(bus, task, history=True)).show()
    lines = [line.rstrip() for line in text.getvalue().splitlines()]
    assert "  agentbus task reject f-1 plan --reason 'why'" in lines
    assert any("approval:plan" in line for line in lines)


def test_a_decision_that_was_made_stays(shell: Shell) -> None:
    begun(shell)
    shell.told("task", "reject", "f-1", "plan", "--by", "ada", "--reason", "no")
    error = shell.refused("task", "approve", "f-1", "plan", "--by", "bob", code=1)
    assert error["code"] == "wrong_state"
    assert "agentbus task redo f-1 approval:plan" in error["fix"]


def test_what_was_done_at_the_same_time_is_brackets_of() -> None:
    from agentbus.cli.task_chart import brackets_of, duration

    spans = [(n, n + 1, "step") for n in range(100_000)]
    began = time.process_time()
    assert set(brackets_of(spans)) == {""}
    assert time.process_time() - began < 5
    assert brackets_of([(0, 5, "step"), (5, 9, "step"), (6, None, "task"), (7, 8, "step")]) == ["", "┌ ", "├ ", "└ "]
    assert brackets_of([(0, None, "task"), (4, 4, "phase"), (5, 6, "step")]) == ["", "", ""]
    assert [duration(n) for n in (40, 2_500, 90_000, 3_600_000, 9_000_000)] == [
        "40 ms", "2.5 s", "1 min 30 s", "1 h", "2 h 30 min",
    ]  # fmt: skip


def test_a_screen_has_room_for_the_commands_that_answer(shell: Shell) -> None:
    """The text to judge may be long, and the list of steps too."""

    @agentbus.workflow("long")
    async def long(task: agentbus.Task) -> None:
        for number in range(30):
            await task.checkpoint(f"point-{number}", number)
        await task.approval("plan", show=list(range(100)))

    async def worked() -> None:
        async with agentbus.connect(shell.directory / ".agentbus") as bus:
            await bus.tasks.start(long, id="l-1")
            await bus.tasks.run_worker(long, until_idle=True)

    asyncio.run(worked())
    with open_bus(shell.directory / ".agentbus") as bus:
        task = bus.do(bus.tasks.get("l-1"))
        assert task is not None
        screen = io.StringIO()
        Console(file=screen, width=80).print(TaskView(load_tree(bus, task, history=False)).drawn(24))
    lines = screen.getvalue().splitlines()
    assert len(lines) <= 24
    assert lines[-2].strip() == "agentbus task approve l-1 plan"


@agentbus.workflow("release")
async def release(task: agentbus.Task) -> None:
    """A long step at work since the beginning, many that are done, and a decision to be made."""

    async def deploy() -> None:
        await task.progress(40, NOTE)
        await asyncio.Event().wait()

    async def check(number: int) -> str:
        return f"{number}: {NOTE}"

    async def others() -> None:
        for number in range(30):
            await task.step(f"check-{number}", check, number)
        await task.approval("plan-of-the-second-milestone", show=[NOTE * 3] * 40)

    await asyncio.gather(task.step("deploy-to-staging", deploy), others())


NOTE = "the servers of the second region are brought up one after the other, which takes about an hour each; "


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> TaskTree:
    """The task above, as its worker has brought it to the decision."""
    place = tmp_path_factory.mktemp("r") / "bus"

    def looked() -> TaskTree:
        with open_bus(place) as bus:
            task = bus.do(bus.tasks.get("release-of-checkout-redesign-001"))
            assert task is not None
            return load_tree(bus, task, history=False)

    async def worked() -> TaskTree:
        async with agentbus.connect(place) as bus:
            await bus.tasks.start(release, id="release-of-checkout-redesign-001")
            worker = asyncio.create_task(bus.tasks.run_worker(release))
            try:
                while not await bus.tasks.approvals():  # noqa: ASYNC110 - the worker brings it there
                    await asyncio.sleep(0.01)
                return await asyncio.to_thread(looked)
            finally:
                worker.cancel()
                await asyncio.gather(worker, return_exceptions=True)

    return asyncio.run(asyncio.wait_for(worked(), TIMEOUT))


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 24), (60, 20), (160, 50)])
def test_a_watched_task_shows_what_runs_what_is_asked_and_how_to_answer(
    released: TaskTree, width: int, height: int
) -> None:
    """Everything is folded, and many times as long as the screen."""
    screen = io.StringIO()
    console = Console(file=screen, width=width, height=height)
    # Cropped to the screen, as what is drawn in place is.
    console.print(TaskView(released).drawn(height), height=height, crop=True)
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert len(lines) < height
    text = " ".join(" ".join(lines).replace(" \\ ", " ").split())
    assert "deploy-to-staging" in text
    assert "40 %" in text
    assert "check-29" in text or height == 20, "the latest of what is done"
    assert "plan-of-the-second-milestone is awaiting a decision" in text
    command = "release-of-checkout-redesign-001 plan-of-the-second-milestone"
    assert f"agentbus task approve {command}" in text
    assert f"agentbus task reject {command} --reason 'why'" in text
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30)])
def test_a_watched_bus_shows_what_is_asked_however_many_agents_there_are(shell: Shell, width: int, height: int) -> None:
    begun(shell)
    with open_bus(shell.directory / ".agentbus") as bus:
        for number in range(30):
            bus.register(f"executor-frontend-{number:03}", type="worker").progress(number, NOTE)
        found = msgspec.to_builtins(overview_of(bus, gather_settings(Namespace())))
    screen = io.StringIO()
    Console(file=screen, width=width, height=height).print(rich_output.draw_overview(found, max_lines=height))
    lines = screen.getvalue().splitlines()
    assert len(lines) < height
    assert "executor-frontend-000" in screen.getvalue()
    assert lines[0].strip() == "waiting"
    assert lines[2].strip().endswith("agentbus task approve f-1 plan")
    assert any("f-1" in line and "approval plan" in line for line in lines)
