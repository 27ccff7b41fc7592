"""A command continues the trace that its environment names, without a package for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from agentbus.sync.bus import open_bus
from tests.cli.conftest import COMMAND, TIMEOUT, Shell
from tests.cli.test_cold_start import PROGRAM
from tests.support.traces import OTHER, PARENT, STATE, TRACE

VARIABLES = {"TRACEPARENT": PARENT, "TRACESTATE": STATE}
HEADERS = {"traceparent": PARENT, "tracestate": STATE}
INVALID = (
    "", "1", "00", PARENT.upper(), PARENT[:-1], f"{PARENT}-00", f"{PARENT} x", PARENT.replace("00-", "ff-", 1),
    PARENT.replace("a", "g"), f"00-{'0' * 32}-b7ad6b7169203331-01", "é" * 55,
    f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
)  # fmt: skip


def headers(shell: Shell, message: str) -> dict[str, str]:
    with open_bus(shell.directory / ".agentbus") as bus:
        found = bus.do(bus.messages.get(message))
    assert found is not None
    return found.headers


def test_messages_and_tasks_of_a_command_carry_the_trace_of_its_environment(shell: Shell) -> None:
    shell.processes = True
    shell.register("a")
    shell.environment |= VARIABLES
    sent = shell.say("send", "a", "note", "1", agent="a")
    assert headers(shell, sent) == HEADERS
    shell.say("task", "start", "feature", "--id", "f-1")
    shell.say("task", "start", "review", "--manual", "--id", "r-1")
    with open_bus(shell.directory / ".agentbus") as bus:
        tasks = bus.do(bus.tasks.list()).items
        own = bus.agent("a").send("a", "note", headers={"traceparent": OTHER})
    assert {task.id: task.trace for task in tasks} == {"f-1": TRACE, "r-1": TRACE}
    # The context that a sender gives itself stays.
    (delivery,) = shell.json("receive", agent="a")
    assert delivery["headers"] == HEADERS
    assert headers(shell, str(own.message_id)) == {"traceparent": OTHER}


def test_what_is_no_trace_context_is_not_carried(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentbus.core.trace_context import ids_of, inherited, trace_of

    assert [ids_of(text) for text in INVALID if text != f"{PARENT} x"] == [None] * (len(INVALID) - 1)
    for text in INVALID:
        monkeypatch.setenv("TRACEPARENT", text)
        assert inherited() is None, text
    # A later version may have more fields; a state that is too long or not printable is left out.
    later = f"01{PARENT[2:]}-more"
    assert trace_of({"traceparent": later}) == later
    for state in ("x=" + "y" * 460, "x=1\ny=1", "x=é", 7):
        assert trace_of({"traceparent": PARENT, "tracestate": state}) == PARENT
    monkeypatch.delenv("TRACEPARENT")
    shell.register("a")
    shell.environment["TRACEPARENT"] = INVALID[1]
    assert headers(shell, shell.run_process("send", "a", "note", agent="a").out.strip()) == {}


def test_a_traced_command_imports_no_package_for_it(shell: Shell) -> None:
    """Without a trace it loads not even the module that carries one: ``test_cold_start`` counts them."""
    shell.register("a")
    shell.environment["AGENTBUS_AGENT"] = "a"
    loaded: list[set[str]] = []
    for variables in ({}, VARIABLES):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, "send", "a", "note", "1", "--quiet"],
            cwd=shell.directory,
            env={**shell.environment, **variables},
            capture_output=True,
            timeout=TIMEOUT,
            check=True,
            stdin=subprocess.DEVNULL,
        )
        loaded.append(set(json.loads(done.stderr.splitlines()[-1])[1]))
    assert loaded[1] - loaded[0] == {"agentbus.core.trace_context"}
    assert not [name for name in loaded[1] if name.startswith("opentelemetry")]


def test_a_command_under_run_continues_the_trace(shell: Shell) -> None:
    shell.register("a")
    shell.environment |= VARIABLES
    script = f'echo "$TRACEPARENT $TRACESTATE"; {COMMAND} send a note'
    done = shell.run("run", "--agent", "b", "--", "sh", "-c", script)
    assert done.out.splitlines()[0] == TRACE
    assert headers(shell, done.out.splitlines()[1]) == HEADERS
