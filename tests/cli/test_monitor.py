"""Watching on the command line: the monitor, the audit trail, and the vocabulary."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess

import pytest

from agentbus.sync.bus import open_bus
from tests.cli.conftest import TIMEOUT, Shell


def doomed(shell: Shell, agent: str) -> subprocess.Popen[bytes]:
    """A process that an agent lives in."""
    living = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    shell.register(agent, pid=living.pid)
    return living


def test_one_sweep_finds_who_died(shell: Shell) -> None:
    living = doomed(shell, "a")
    assert shell.say("monitor", "--once") == ""
    living.kill()
    living.communicate()
    lines = [line.split("\t") for line in shell.say("monitor", "--once", "--log", "found.log").splitlines()]
    assert [line[2:] for line in lines if line[0] == "finding" and line[3] == "agent_failed"] == [
        ["error", "agent_failed", "agent:a", "a failed: its process died"]
    ]
    assert ["count", "agents_failed", "1"] in lines
    assert "a failed: its process died" in (shell.directory / "found.log").read_text()
    found = shell.json("monitor", "--once")
    assert (found["findings"], found["counts"]["agents_failed"]) == ([], 0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_monitor_prints_what_it_finds_until_it_is_told_to_end(shell: Shell, number: int, code: int) -> None:
    living = doomed(shell, "a")
    monitor = shell.start("monitor", "--interval", "0.05", "--json", "--log", "found.log")
    try:
        assert monitor.stderr is not None
        assert monitor.stdout is not None
        assert b"watching" in monitor.stderr.readline()
        living.kill()
        living.communicate()
        kinds: set[str] = set()
        while "agent_failed" not in kinds:
            envelope = json.loads(monitor.stdout.readline())
            assert envelope["schema_version"] == 1
            kinds.add(envelope["data"]["kind"])
        monitor.send_signal(number)
        _, err = monitor.communicate(timeout=TIMEOUT)
        assert (monitor.returncode, err) == (code, b"")
    finally:
        if monitor.poll() is None:
            monitor.kill()
            monitor.communicate()
    with open_bus(shell.directory / ".agentbus") as bus:
        from agentbus.operations.health import live_processes

        assert bus.read(live_processes, None) == [], "it left in order"


def test_a_monitor_whose_reader_is_gone_ends_quietly(shell: Shell) -> None:
    living = doomed(shell, "a")
    monitor = shell.start("monitor", "--interval", "0.05")
    assert monitor.stderr is not None
    assert monitor.stdout is not None
    assert b"watching" in monitor.stderr.readline()
    monitor.stdout.close()
    living.kill()
    living.communicate()
    assert monitor.wait(TIMEOUT) == 141
    with monitor.stderr as errors:
        assert errors.read() == b""


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("monitor", "--interval", "0"), 2, "out_of_range"),
        (("monitor", "--suspect-after", "1"), 2, "out_of_range"),
        (("monitor", "--once", "--fail-after", "1"), 2, "out_of_range"),
        (("monitor", "--log", "none/x.log"), 1, "not_writable"),
        (("monitor", "--log", ".agentbus/bus.db"), 2, "invalid_input"),
        (("monitor", "--once", "--log", ".agentbus/bus.db"), 2, "invalid_input"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_monitor_that_cannot_work_says_why(shell: Shell, words: tuple[str, ...], code: int, error: str) -> None:
    assert shell.json(*words, code=code)["code"] == error


def trail(shell: Shell) -> None:
    with open_bus(shell.directory / ".agentbus") as bus:
        for name in ("a", "b", "c"):
            bus.register(name, type="worker")
        bus.agent("b").fail("crashed")


def test_the_trail_is_read_from_its_end_or_after_an_event(shell: Shell) -> None:
    trail(shell)
    rows = [line.split("\t") for line in shell.say("events").splitlines()]
    assert [row[2] for row in rows] == ["agent_registered"] * 3 + ["agent_failed"]
    assert rows[-1][3:] == ["agent", "b", "b", '{"error":"crashed"}']
    newest = shell.json("events", "--limit", "2")
    assert [event["subject"] for event in newest] == ["c", "b"]
    assert [event["id"] for event in shell.json("events", "--after", "1", "--limit", "2")] == [2, 3]
    assert [event["subject"] for event in shell.json("events", "--kind", "agent_registered", "--limit", "1")] == ["c"]
    assert [event["kind"] for event in shell.json("events", "--subject", "agent:b")] == [
        "agent_registered", "agent_failed",
    ]  # fmt: skip
    assert shell.json("events", "--after", "now") == []


def test_the_trail_is_followed(shell: Shell) -> None:
    trail(shell)
    following = shell.start("events", "--follow", "--max", "2", "--json")
    assert following.stdout is not None
    with open_bus(shell.directory / ".agentbus") as bus:
        # Which event is the first new one depends on when the command has read the end of the log.
        defined = 0
        while not select.select([following.stdout], [], [], 0.1)[0]:
            defined += 1
            bus.define(f"request_{defined}")
        bus.define("deploy_request")
    out, err = following.communicate(timeout=TIMEOUT)
    assert (following.returncode, err) == (0, b"")
    events = [json.loads(line)["data"] for line in out.splitlines()]
    assert [event["kind"] for event in events] == ["type_defined"] * 2
    assert events[0]["id"] > 4, "none from before"
    assert events[1]["id"] == events[0]["id"] + 1
    assert os.listdir(shell.directory / ".agentbus" / "bells") == []


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        (("events", "--after", "x"), 2, "usage"),
        (("events", "--after", "-1"), 2, "out_of_range"),
        (("events", "--kind", "agent_asleep"), 2, "out_of_range"),
        (("events", "--subject", "planner-1"), 2, "out_of_range"),
        (("events", "--limit", "0"), 2, "out_of_range"),
        (("types", "list", "--kind", "state"), 2, "out_of_range"),
        (("types", "add"), 2, "usage"),
        (("types", "add", "no name"), 2, "invalid_name"),
        (("types", "add", "note", "--schema", "{}"), 2, "built_in_type"),
        (("types", "add", "x", "--kind", "state"), 2, "out_of_range"),
        (("types", "add", "x", "--schema", "{"), 2, "invalid_json"),
        (("types", "add", "x", "--schema", '{"type": "text"}'), 2, "invalid_schema"),
        (("types", "add", "x", "--kind", "agent", "--schema", "{}"), 2, "invalid_input"),
        (("types", "show", "nothing"), 4, "nothing_there"),
        (("types", "ad"), 2, "usage"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_input_is_told(shell: Shell, words: tuple[str, ...], code: int, error: str) -> None:
    assert shell.refused(*words, code=code)["code"] == error


def test_types_are_added_and_hold(shell: Shell) -> None:
    shell.register("a")
    schema = '{"required": ["url"]}'
    shell.say("types", "add", "deploy_request", "--schema", schema, "--description", "please deploy")
    shell.say("types", "add", "deployer", "--kind", "agent")
    rows = [line.split("\t") for line in shell.say("types", "--kind", "message").splitlines()]
    assert ["deploy_request", "message", "false", "true", "please deploy"] in rows
    assert shell.json("types", "show", "deploy_request")["schema"] == {"required": ["url"]}
    assert {"name": "deployer", "kind": "agent", "builtin": False, "schema": False, "description": ""} in shell.json(
        "types"
    )
    assert shell.refused("send", "a", "deploy_request", "{}", agent="a", code=2)["code"] == "invalid_payload"
    shell.say("send", "a", "deploy_request", '{"url": "x"}', agent="a")
    shell.say("register", "d", "--type", "deployer")
