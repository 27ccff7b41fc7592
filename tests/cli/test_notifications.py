"""``agentbus notifications``: list, check and test the notifiers of the user; nothing else can set one up."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from agentbus.sync.bus import open_bus
from tests.cli.conftest import Shell
from tests.support.receiver import SECRET, UserSettings, user

__all__ = ["user"]


@contextmanager
def server() -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """An HTTP server on a thread: its port, and what was posted to it."""
    posted: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if self.path == "/broken" else 204)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield httpd.server_port, posted
        httpd.shutdown()
        thread.join()


def fail(shell: Shell, agent: str) -> None:
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.register(agent, type="worker").fail("by the test")


def test_a_notifier_is_checked_tested_and_listed(shell: Shell, user: UserSettings) -> None:
    assert shell.told("notifications") == shell.told("notifications", "check") == []
    with server() as (port, posted):
        user.webhook(port, buses=str(shell.directory))
        user.write(
            user.path.read_text()
            + f'[webhook.bad]\nurl = "http://127.0.0.1:{port}/broken"\nsecret_variable = "UNSET"\n'
            'buses = ["/elsewhere"]\n[command.desk]\ncommand = ["/nowhere/notify"]\nbuses = ["*"]\n'
            '[webhook.near]\nurl = "http://[::1]/"\nsigned = false\nbuses = ["/elsewhere"]\n'
        )
        checked = shell.told("notifications", "check", code=1)
        allowing = "if that is intended, add it to allow in the settings"
        assert [(one["name"], one["kind"], one["to"], one["problem"]) for one in checked] == [
            ("ops", "webhook", f"127.0.0.1:{port}", None),
            ("bad", "webhook", f"127.0.0.1:{port}", "the variable UNSET is not set"),
            ("near", "webhook", "[::1]", f"the address of the host is loopback; {allowing}"),
            ("desk", "command", "/nowhere/notify", "/nowhere/notify cannot be executed"),
        ]
        assert "approval_requested" in checked[0]["events"]
        assert posted == []
        tested = shell.told("notifications", "test", "ops")
        assert (tested["error"], posted[0]["kind"], posted[0]["bus"]) == (
            None,
            "test",
            str(shell.directory / ".agentbus"),
        )
        tested = shell.told("notifications", "test", "bad", code=1)
        assert tested["error"] == "the settings are invalid: the variable UNSET is not set"
        assert shell.refused("notifications", "test", "none", code=1)["code"] == "unknown_notifier"
        listed = shell.told("notifications")
        assert [(one["name"], one["here"], one["status"]) for one in listed] == [
            ("ops", True, None), ("bad", False, None), ("near", False, None), ("desk", True, None),
        ]  # fmt: skip


def test_a_monitor_that_runs_once_delivers(shell: Shell, user: UserSettings) -> None:
    with server() as (port, posted):
        user.webhook(port, buses=str(shell.directory / ".agentbus"))
        shell.say("monitor", "--once")
        fail(shell, "a")
        shell.say("monitor", "--once")
        assert [one["subject"] for one in posted] == ["agent:a"]
        (listed,) = shell.told("notifications", "list")
        assert (listed["status"], listed["delivered"], listed["error"]) == ("idle", 1, None)
        user.path.chmod(0o620)
        fail(shell, "b")
        assert "notifications are off" in shell.run("monitor", "--once").err
        error = shell.refused("notifications", "list", code=2)
        assert (error["code"], f"chmod 600 {user.path}" in error["fix"]) == ("invalid_settings", True)
        assert len(posted) == 1


def test_a_project_cannot_set_a_notifier_up(shell: Shell, user: UserSettings, tmp_path: Path) -> None:
    """Neither its settings nor files of the right name cause a request or run a command."""
    with server() as (port, posted):
        marker = tmp_path / "ran"
        notifiers = (
            f'[webhook.evil]\nurl = "http://127.0.0.1:{port}/"\nsecret = "{SECRET}"\nbuses = ["*"]\n'
            'allow = ["127.0.0.1"]\n'
            f'[command.evil]\ncommand = ["/usr/bin/env", "touch", "{marker}"]\nbuses = ["*"]\n'
        )
        for directory in (".", ".agentbus", ".config/agentbus", "agentbus", ".agentbus/agentbus"):
            folder = shell.directory / directory
            folder.mkdir(parents=True, exist_ok=True)
            file = folder / "notifications.toml"
            file.write_text(notifiers)
            file.chmod(0o600)
        shell.say("monitor", "--once")
        fail(shell, "a")
        shell.say("monitor", "--once")
        assert shell.told("notifications") == []
        (shell.directory / ".agentbus" / "agentbus.toml").write_text(notifiers)
        fail(shell, "b")
        refused = shell.run("monitor", "--once")
        assert (refused.code, "no setting 'webhook'" in refused.err) == (2, True)
        (shell.directory / ".agentbus" / "agentbus.toml").write_text('notifications = "notifications.toml"\n')
        assert shell.run("monitor", "--once").code == 2
        assert (posted, marker.exists()) == ([], False)


@pytest.mark.usefixtures("user")
def test_a_new_secret_is_random(shell: Shell) -> None:
    first, second = shell.say("notifications", "secret"), shell.say("notifications", "secret")
    assert first.startswith("whsec_")
    assert first != second
