"""``agentbus metrics``, and structured logs of the commands that run for long."""

from __future__ import annotations

import json
import os
import signal
import stat
from datetime import datetime
from typing import Any

import pytest

from tests.cli.conftest import TIMEOUT, Shell
from tests.cli.test_monitor import doomed
from tests.support.prometheus import check_metrics, parsed, value


def test_metrics_are_printed_or_replace_a_file_for_a_collector(shell: Shell) -> None:
    shell.register("a", pools=["build"])
    shell.say("send", "pool:build", "note", "1", "--by", "ada")
    text = shell.say("metrics") + "\n"
    assert value(parsed(text), "agentbus_queue_messages", kind="pool", pool="build", status="queued") == 1
    # A process that ends has no measurements of its own.
    assert "agentbus_write" not in text
    check_metrics(text)
    newer = shell.say("metrics", "--format", "openmetrics") + "\n"
    assert parsed(newer, "openmetrics").keys() == parsed(text).keys()
    file = shell.directory / "agentbus.prom"
    file.write_text("old")
    file.chmod(0o600)
    before = os.umask(0o077)
    try:
        assert shell.say("metrics", "--output", str(file)) == str(file)
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert parsed(file.read_text()).keys() == parsed(text).keys()
    assert set(os.listdir(shell.directory)) == {".agentbus", "agentbus.prom"}
    families = shell.json("metrics")
    assert {"name", "type", "help", "samples", "unit", "scope"} == families[0].keys()
    assert shell.refused("metrics", "--output", "none/m.prom", code=1)["code"] == "not_writable"
    refused = shell.refused("metrics", "--output", ".agentbus/bus.db", code=1)
    assert "files of a bus" in refused["message"]
    assert shell.run("metrics", "--format", "xml").code == 2


def records(text: str) -> list[dict[str, Any]]:
    """The lines of a log; every one is an object with a time, a level, a logger and a message."""
    found: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
    for one in found:
        assert datetime.fromisoformat(one["time"]).utcoffset() is not None
        assert one["level"] in {"info", "warning", "error"}
        assert one["logger"].startswith("agentbus")
        assert one["message"]
    return found


def test_a_monitor_logs_findings_as_json(shell: Shell) -> None:
    shell.environment["AGENTBUS_LOG"] = "json"
    living = doomed(shell, "a")
    monitor = shell.start("monitor", "--interval", "0.05")
    try:
        assert monitor.stdout is not None
        assert monitor.stderr is not None
        # Its first line: it has started.
        first = monitor.stderr.readline()
        living.kill()
        living.communicate()
        while b"agent_failed" not in monitor.stdout.readline():
            pass
        monitor.send_signal(signal.SIGTERM)
        _, err = monitor.communicate(timeout=TIMEOUT)
    finally:
        if monitor.poll() is None:
            monitor.kill()
            monitor.communicate()
    assert monitor.returncode == 143
    (note, *found) = records((first + err).decode())
    assert (note["logger"], note["level"]) == ("agentbus.cli", "info")
    (failed,) = [one for one in found if one.get("code") == "agent_failed"]
    assert (failed["logger"], failed["level"]) == ("agentbus.monitor", "error")
    assert failed["fields"] == {"subject": "agent:a"}


@pytest.mark.parametrize("command", [("monitor",), ("run", "--", "true"), ("worker", "flows")])
def test_the_last_error_of_a_command_is_a_record_too(nowhere: Shell, command: tuple[str, ...]) -> None:
    nowhere.environment["AGENTBUS_LOG"] = "json"
    done = nowhere.run(*command)
    assert done.code != 0
    assert done.out == ""
    (one,) = records(done.err)
    assert (one["level"], one["logger"]) == ("error", "agentbus.cli")
    assert one["code"] in {"no_bus", "no_workflow"}


def test_short_commands_and_a_level_keep_the_log_quiet(shell: Shell) -> None:
    shell.environment |= {"AGENTBUS_LOG": "json", "AGENTBUS_LOG_LEVEL": "error"}
    done = shell.run("run", "--", "true")
    assert (done.code, done.err) == (0, "")
    assert shell.run("ack").err.startswith("agentbus: ")
    shell.environment["AGENTBUS_LOG"] = "xml"
    error = shell.refused("monitor", "--once", code=2)
    assert "AGENTBUS_LOG" in error["message"]
    assert "json" in error["message"]
