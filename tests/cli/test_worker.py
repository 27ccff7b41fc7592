"""``agentbus worker``: finds workflows, runs tasks, and lets go of them when it is told to end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agentbus.operations.task_lookups import served_workflows
from agentbus.records import TaskRecord
from agentbus.sync.bus import open_bus
from tests.cli.conftest import TIMEOUT, Shell, until
from tests.cli.task_workers import add_module, start


@pytest.fixture
def works(shell: Shell) -> Shell:
    """A bus beside a module with workflows."""
    add_module(shell)
    return shell


@contextmanager
def working(shell: Shell, *words: str, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    worker = shell.start("worker", *words, **options)
    try:
        yield worker
    finally:
        if worker.poll() is None:
            worker.kill()
        worker.communicate()


def task(shell: Shell, id: str) -> TaskRecord:
    with open_bus(shell.directory / ".agentbus") as bus:
        found = bus.do(bus.tasks.get(id))
    assert found is not None
    return found


def test_a_worker_does_what_there_is_to_do_and_says_so(works: Shell) -> None:
    start(works, "docs", id="d-1")
    done = works.run("worker", "flows:docs", "flows:feature", "--until-idle", "--agent", "w", agent="somebody")
    assert (done.code, done.err) == (0, "working on docs, feature; press Ctrl-C to stop\n")
    rows = [line.split("\t")[1:] for line in done.out.splitlines()]
    assert rows == [
        ["d-1", "step", "write", "running", "1", "-"],
        ["d-1", "step", "write", "finished", "1", "-"],
        ["d-1", "workflow", "docs", "completed", "1", "-"],
    ]
    assert task(works, "d-1").result == "written: None"
    with open_bus(works.directory / ".agentbus") as bus:
        agents = bus.do(bus.agents.list()).items
    assert [(agent.id, agent.type, agent.status) for agent in agents] == [("w", "worker", "completed")]


def test_a_worker_tells_of_a_task_that_fails(works: Shell) -> None:
    works.say("task", "start", "feature", "--id", "f-1")
    done = works.run("worker", "flows:feature", "--until-idle")
    ((*_, status, attempt, error),) = (line.split("\t") for line in done.out.splitlines())
    assert (status, attempt) == ("failed", "1")
    assert error.startswith("WrongArguments: "), error


def test_wrong_arguments_are_refused_by_what_workers_announce_and_mended_by_an_edit(works: Shell) -> None:
    works.say("task", "start", "feature", "5", "--id", "f-1")
    works.say("worker", "flows:feature", "--until-idle", "--quiet")
    assert task(works, "f-1").status == "failed"
    found = works.told("task", "show", "f-1")
    assert found["task"]["error"]["type"] == "WrongArguments"
    assert [one["command"] for one in found["actions"]] == [
        "agentbus task edit f-1 --arguments '[…]'", "agentbus task resume f-1",
    ]  # fmt: skip
    with working(works, "flows:feature"):
        until(lambda: "worker-" in works.say("agents", "list"))
        until(lambda: works.run("task", "start", "feature").code == 2)
        refused = works.run("task", "start", "feature", "5")
        assert refused.code == 2
        assert "'request' must be str, not int" in refused.err
        assert "feature(request: str)" in refused.err
        assert works.run("task", "edit", "f-1", "--arguments", "[5]").code == 2
        refused = works.run("task", "edit", "f-1", "--arguments", '"login"')
        assert (refused.code, "arguments must be a list\n" in refused.err) == (2, True)
        assert "--arguments '[…]'" in refused.err
        edited = works.told("task", "edit", "f-1", "--arguments", '["login"]', "--max-losses", "2", "--by", "ada")
        assert edited["status"] == "failed"
        works.told("task", "resume", "f-1", "--by", "ada")
        until(lambda: task(works, "f-1").status == "waiting")
    shown = works.told("task", "show", "f-1")["task"]
    assert (shown["error"], shown["arguments"], shown["max_losses"]) == (None, ["login"], 2)
    # The plan was made for the other request.
    works.told("task", "edit", "f-1", "--arguments", '["logout"]', "--by", "ada")
    works.told("task", "approve", "f-1", "--by", "ada")
    works.say("worker", "flows:feature", "--until-idle", "--quiet")
    found = works.told("task", "show", "f-1")
    assert found["task"]["error"]["type"] == "WorkflowChanged"
    assert [one["command"] for one in found["actions"]] == ["agentbus task redo f-1 plan", "agentbus task resume f-1"]
    assert found["task"]["error"]["step"] == "plan"


def test_starting_an_unknown_workflow_prints_a_note(works: Shell) -> None:
    with working(works, "flows:docs", "flows:feature"):
        with open_bus(works.directory / ".agentbus") as bus:
            until(lambda: bus.read(served_workflows, 10) == ["docs", "feature"])
        assert works.run("task", "start", "docs", "--id", "d-1").err == ""
        told = works.run("task", "start", "dosc", "--id", "d-2")
        assert (told.code, told.err.endswith(" dosc, only docs, feature\n")) == (0, True)
        assert [one["name"] for one in works.told("status")["waiting"] if one["kind"] == "workflow"] == ["dosc"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_worker_that_is_told_to_end_lets_go_of_its_tasks(works: Shell, number: signal.Signals, code: int) -> None:
    start(works, "order", "o", id="o-1")
    with working(works, "flows", "--agent", "w", "--json", "--lease", "1h") as worker:
        assert worker.stdout is not None
        until((works.directory / "o-pack.begun").exists)
        assert json.loads(worker.stdout.readline())["data"]["status"] == "running"
        assert (task(works, "o-1").status, task(works, "o-1").holder) == ("running", "w")
        worker.send_signal(number)
        assert worker.wait(TIMEOUT) == code
        assert worker.stderr is not None
        assert b"Traceback" not in worker.stderr.read()
    # At once, not when its lease of an hour has run out.
    assert (task(works, "o-1").status, task(works, "o-1").holder) == ("pending", None)
    with open_bus(works.directory / ".agentbus") as bus:
        agent = bus.do(bus.agents.get("w"))
    assert agent is not None
    assert agent.status == "stopped"
    if number is signal.SIGTERM:
        (works.directory / "o-pack.go").touch()
        (works.directory / "o-charge.go").touch()
        works.say("worker", "flows", "--until-idle", "--quiet")
        assert task(works, "o-1").result == "o-charge"


def test_a_step_that_must_run_only_once_is_settled_by_a_person(works: Shell) -> None:
    start(works, "order", "o", id="o-1")
    (works.directory / "o-pack.go").touch()
    with working(works, "flows:order") as worker:
        until((works.directory / "o-charge.begun").exists)
        worker.kill()
        worker.wait(TIMEOUT)
    assert [one["id"] for one in works.told("task", "resumable")] == ["o-1"]
    works.say("worker", "flows", "--until-idle")
    assert task(works, "o-1").waits == ["step:charge"]
    (asked,) = works.told("task", "approvals")
    assert (asked["kind"], asked["command"]) == ("step", "agentbus task settle o-1 charge --result JSON")
    assert [one["about"] for one in works.told("task", "show", "o-1")["actions"]] == ["step:charge"] * 3
    works.told("task", "settle", "o-1", "charge", "--result", "paid", "--text", "--by", "ada")
    works.say("worker", "flows", "--until-idle")
    assert works.say("task", "wait", "o-1") == "paid"


def test_a_task_that_kills_every_worker_fails_after_five_and_others_continue(works: Shell) -> None:
    start(works, "poison", id="p-1")
    beside = ("b-1", "b-2", "b-3")
    for id in beside:
        start(works, "order", id, id=id)
    deaths = []
    for _ in range(5):
        with working(works, "flows:poison", "flows:order", "--until-idle") as worker:
            deaths.append(worker.wait(TIMEOUT))
    assert deaths == [-signal.SIGKILL, 7, -signal.SIGSEGV, -signal.SIGKILL, 7]
    assert [task(works, id).losses for id in beside] == [2, 2, 2], "only the first two workers had them"
    # The fifth is noticed by the next command; no worker is needed for it.
    found = works.told("task", "show", "p-1")
    assert (found["task"]["status"], found["task"]["losses"], found["task"]["error"]["type"]) == (
        "failed", 5, "WorkersLost",
    )  # fmt: skip
    assert "5 workers in a row died" in found["task"]["error"]["message"]
    assert "at step swallow: its process died" in found["task"]["error"]["message"]
    assert [one["command"] for one in found["actions"]] == ["agentbus task resume p-1"]
    start(works, "docs", id="d-1")
    for id in beside:
        (works.directory / f"{id}-pack.go").touch()
        (works.directory / f"{id}-charge.go").touch()
    works.say("worker", "flows", "--until-idle", "--quiet")
    assert [(task(works, id).status, task(works, id).losses) for id in (*beside, "d-1")] == [("completed", 0)] * 4
    (works.directory / "antidote").touch()
    works.told("task", "resume", "p-1", "--by", "ada")
    works.say("worker", "flows", "--until-idle", "--quiet")
    assert (task(works, "p-1").result, task(works, "p-1").error) == ("well", None)


def test_a_worker_whose_reader_is_gone_ends_quietly(works: Shell) -> None:
    with working(works, "flows:docs") as worker:
        assert worker.stderr is not None
        assert worker.stdout is not None
        assert b"working on docs" in worker.stderr.readline()
        worker.stdout.close()
        start(works, "docs", id="d-1")
        assert worker.wait(TIMEOUT) == 141
        assert worker.stderr.read() == b""
        worker.stdout = None


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        ((), "usage", "MODULE[:WORKFLOW]"),
        (("nothing_here:feature",), "no_workflow", "no module 'nothing_here'"),
        (("tests.cli.workflows:nothing",), "no_workflow", "no 'nothing' in tests.cli.workflows"),
        (("tests.cli.workflows:no_workflow",), "no_workflow", "no_workflow is not a workflow"),
        (("tests.cli.conftest",), "no_workflow", "it has no workflow"),
        (("flows.py:feature",), "no_workflow", "'flows.py' is not the name of a module"),
        (("./flows",), "no_workflow", "is not the name of a module"),
        (("wrong_inside:feature",), "no_workflow", "ZeroDivisionError: division by zero"),
        (("needs_more:feature",), "no_workflow", "No module named 'nothing_here'"),
        (("twice",), "no_workflow", "two workflows are named 'feature'"),
        (("tests.cli.workflows", "--concurrency", "0"), "out_of_range", "concurrency"),
        (("tests.cli.workflows", "--lease", "0"), "out_of_range", "lease"),
        (("tests.cli.workflows", "--agent", "w#1"), "usage", "w#1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_worker_that_cannot_work_says_why(
    shell: Shell, words: tuple[str, ...], error: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    made = "import agentbus\n@agentbus.workflow('feature')\nasync def {}(task): ...\n"
    for name, text in {
        "wrong_inside": "1 / 0\n",
        "needs_more": "import nothing_here\n",
        "twice": made.format("one") + made.format("two"),
    }.items():
        Path(shell.directory / f"{name}.py").write_text(text)
    found = shell.refused("worker", *words, code=2)
    assert found["code"] == error
    assert says in found["message"]


def test_a_worker_needs_a_bus(nowhere: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert nowhere.refused("worker", "tests.cli.workflows:feature", code=1)["code"] == "no_bus"
