"""Waiting tasks on the command line: why they wait, signals, messages and values."""

from __future__ import annotations

import asyncio
import io
import json
from datetime import UTC, datetime

import pytest
from rich.console import Console

import agentbus
from agentbus.cli.task_tree import TaskView, load_tree
from agentbus.sync.bus import open_bus
from tests.cli.conftest import TIMEOUT, Shell
from tests.cli.task_workers import start

WHEN = int(datetime(2099, 11, 21, 9, tzinfo=UTC).timestamp())


@agentbus.workflow("order")
async def order(task: agentbus.Task) -> dict[str, object]:
    await task.expose("stage", {"open": 2})
    payment = await task.signal("payment")
    message = await task.receive()
    await task.expose("stage", "paid")
    await task.until(WHEN)
    return {"payment": payment, "message": None if message is None else message.payload}


def work(shell: Shell) -> None:
    async def run() -> None:
        async with agentbus.connect(shell.directory / ".agentbus") as bus:
            await asyncio.wait_for(bus.tasks.run_worker(order, until_idle=True), TIMEOUT)

    asyncio.run(run())


def drawn(shell: Shell, task: str) -> str:
    """A task as people see it."""
    with open_bus(shell.directory / ".agentbus") as bus:
        record = bus.do(bus.tasks.get(task))
        assert record is not None
        view = TaskView(load_tree(bus, record, history=False))
    console = Console(width=150, file=io.StringIO())
    console.print(view.drawn())
    return str(console.file.getvalue())  # type: ignore[attr-defined]


def test_a_task_says_why_it_waits_and_receives_what_the_shell_sends(shell: Shell) -> None:
    shell.say("register", "a", "--type", "worker")
    start(shell, "order", id="o-1")
    work(shell)
    assert shell.told("task", "list")["items"][0]["waits"] == ["signal:payment"]
    assert shell.say("task", "list").split("\t")[5] == '["signal:payment"]'
    shown = shell.told("task", "show", "o-1")
    assert [(step["kind"], step["status"]) for step in shown["steps"]] == [
        ("expose", "finished"),
        ("signal", "waiting"),
    ]
    assert {"task": "o-1", "about": "signal:payment", "command": "agentbus task signal o-1 payment JSON"} in (
        shown["actions"]
    )
    text = drawn(shell, "o-1")
    assert "waiting for signal payment" in text
    assert "… signal:payment" in text
    assert "o-1 waits for the signal payment" in text
    assert shell.say("task", "query", "o-1", "stage") == '{"open":2}'
    assert (shown["signals"], "not received" in text) == ([], False)
    assert shell.draw("task", "signal", "o-1", "pyment", "1", "--by", "bob").out == "sent pyment to o-1\n"
    (lost,) = shell.told("task", "show", "o-1")["signals"]
    assert (lost["name"], lost["signal_id"], lost["sender"]) == ("pyment", "s-1", "bob")
    assert "\nsignal\tpyment\ts-1\tbob\t" in shell.say("task", "show", "o-1")
    assert "signals not received: pyment (" in drawn(shell, "o-1")

    made = shell.told("task", "signal", "o-1", "payment", '{"paid": 12}', "--signal-id", "p-1", "--by", "ada")
    assert made == {"task": "o-1", "name": "payment", "signal_id": "p-1", "duplicate": False}
    again = ("task", "signal", "o-1", "payment", '{"paid": 12}', "--signal-id", "p-1")
    assert shell.say(*again) == "p-1"
    assert shell.draw(*again).out == "p-1 was sent before\n"
    work(shell)
    shown = shell.told("task", "show", "o-1")
    assert (shown["task"]["waits"], [one["name"] for one in shown["signals"]]) == (["message"], ["pyment"])
    assert "waiting for message" in drawn(shell, "o-1")
    shell.say("--agent", "a", "send", "task:o-1", "note", '"hello"')
    work(shell)
    record = shell.told("task", "show", "o-1")["task"]
    assert (record["waits"], record["due"]) == (["sleep:2099-11-21T09:00:00Z"], WHEN * 1000)
    text = drawn(shell, "o-1")
    assert "waiting for sleep until 2099-11-21T09:00:00Z" in text
    assert "… until" in text
    assert "hello" in text
    assert shell.say("task", "query", "o-1") == "stage\tpaid"
    assert shell.say("task", "query", "o-1", "stage") == "paid"
    events = shell.told("task", "log", "o-1", "--kind", "task_signalled")
    assert [(event["actor"], event["facts"]) for event in events] == [
        ("bob", {"signal": "pyment", "signal_id": "s-1"}), ("ada", {"signal": "payment", "signal_id": "p-1"}),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("task", "signal", "none", "go"), 4, "unknown_task"),
        (("task", "signal", "o-1", "two words"), 2, "invalid_name"),
        (("task", "signal", "o-1", "go", "{"), 2, "invalid_json"),
        (("task", "query", "o-1", "none"), 4, "not_exposed"),
        (("task", "query", "none"), 4, "unknown_task"),
        (("--agent", "a", "send", "task:none", "note"), 4, "unknown_task"),
    ],
)
def test_what_cannot_be_sent_or_read_is_refused_by_name(
    shell: Shell, words: tuple[str, ...], code: int, error: str
) -> None:
    shell.say("register", "a", "--type", "worker")
    start(shell, "order", id="o-1")
    outcome = shell.run("--json", *words)
    assert (outcome.code, json.loads(outcome.out)["error"]["code"]) == (code, error)


def test_an_ended_task_gets_neither_signal_nor_message(shell: Shell) -> None:
    shell.say("register", "a", "--type", "worker")
    start(shell, "order", id="o-1")
    shell.say("task", "stop", "o-1")
    for words in (("task", "signal", "o-1", "payment"), ("--agent", "a", "send", "task:o-1", "note")):
        outcome = shell.run("--json", *words)
        assert (outcome.code, json.loads(outcome.out)["error"]["code"]) == (1, "task_ended")
