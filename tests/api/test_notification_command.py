"""A command gets the words of the settings, the notification on standard input, and no more of the environment than it
needs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from agentbus.api.notification_command import run
from agentbus.api.webhook import Delivery
from agentbus.core.notification_settings import Command
from tests.support.processes import PATIENCE, eventually

FACTS = {"ID": "id-1", "KIND": "test"}


def command(*words: str, **options: Any) -> Command:
    return Command(**{"command": list(words), "buses": ["*"], "timeout": 20.0, **options})


async def test_it_gets_the_notification_on_standard_input_and_a_small_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTBUS_URL", "s3cret")
    monkeypatch.setenv("LD_PRELOAD_NOT", "s3cret")
    monkeypatch.setenv("WANTED", "w")
    monkeypatch.chdir(tmp_path)
    program = "import json, os, sys; print(json.dumps([sys.argv[1:], sys.stdin.read(), dict(os.environ), os.getcwd()]))"
    words = (sys.executable, "-IS", "-c", program, "$(touch here)", "a;b", "*")
    found = await run(command(*words, environment=["WANTED", "ABSENT"]), FACTS, b'{"x": "$(touch here)"}')
    assert found.error is None
    assert found.output is not None
    given, text, environment, directory = json.loads(found.output)
    assert (given, text, directory) == (["$(touch here)", "a;b", "*"], '{"x": "$(touch here)"}', "/")
    assert "s3cret" not in str(environment)
    assert environment["AGENTBUS_NOTIFICATION_ID"] == "id-1"
    assert {name for name in environment if name.startswith("AGENTBUS_")} == {
        "AGENTBUS_NOTIFICATION_ID", "AGENTBUS_NOTIFICATION_KIND",
    }  # fmt: skip
    assert (environment["WANTED"], "ABSENT" in environment, os.listdir(tmp_path)) == ("w", False, [])


async def test_its_exit_status_decides() -> None:
    failed = await run(command("/bin/sh", "-c", "echo why; exit 3"), FACTS, b"{}")
    assert (failed.error, failed.output) == ("the command failed: exit status 3", "why\n")
    killed = await run(command("/bin/sh", "-c", "kill -9 $$"), FACTS, b"{}")
    assert killed.error == "the command failed: signal 9"
    missing = await run(command("/nowhere/s3cret", "s3cret"), FACTS, b"{}")
    assert missing.error == "the command was not started: No such file or directory"


async def test_one_that_reads_nothing_and_prints_without_end_is_bounded() -> None:
    body = b"x" * 4_000_000
    unread = await run(command("/bin/true"), FACTS, body)
    assert unread.error is None
    long = await run(command("/bin/sh", "-c", "head -c 3000000 /dev/zero"), FACTS, body)
    assert (long.error, long.output) == (None, "\0" * 4096)


async def test_one_that_takes_too_long_is_ended() -> None:
    found = await run(command("/bin/sleep", "600", timeout=0.2), FACTS, b"{}")
    assert found.error == "the command was ended after 0.2 s"


async def test_a_process_that_it_left_behind_is_not_waited_for() -> None:
    found = await run(command("/bin/sh", "-c", "sleep 600 & echo $!; exit 0", timeout=10.0), FACTS, b"{}")
    try:
        assert (found.error, found.output is not None and found.output.strip().isdigit()) == (None, True)
    finally:
        _kill(found.output)


async def test_one_that_takes_too_long_is_ended_though_its_pipes_are_held(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"setsid sleep 600 & echo $! > {pid}; sleep 600"
    async with asyncio.timeout(30):
        try:
            # More than a pipe holds, so that some of it is still to be written.
            found = await run(command("/bin/sh", "-c", script, timeout=0.5), FACTS, b"x" * 4_000_000)
        finally:
            _kill(pid.read_text() if pid.exists() else None)
    assert found.error == "the command was ended after 0.5 s"


async def test_all_that_it_started_is_ended_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"
    task = asyncio.create_task(run(command("/bin/sh", "-c", script), FACTS, b"{}"))
    await asyncio.to_thread(eventually, pids.exists, "it did not start")
    await _cancel(task)
    started = pids.read_text().split()
    await asyncio.to_thread(eventually, lambda: all(map(_has_ended, started)), "they still run")


# The process runs from the second iteration of the loop; asyncio connects its pipes in the next ones.
@pytest.mark.parametrize("iterations", range(2, 9))
async def test_one_that_is_cancelled_while_it_starts_is_ended_with_all_that_it_started(
    tmp_path: Path, iterations: int
) -> None:
    pids = tmp_path / "pids"
    script = f"sleep 600 & echo $! $$ > {pids}.new; mv {pids}.new {pids}; wait"
    task = asyncio.create_task(run(command("/bin/sh", "-c", script), FACTS, b"{}"))
    for _ in range(iterations):
        await asyncio.sleep(0)
    # On the loop, which stands still until the command has started another process.
    eventually(pids.exists, "it did not start")
    started = pids.read_text().split()
    try:
        await _cancel(task)
        await asyncio.to_thread(eventually, lambda: all(map(_has_ended, started)), "they still run")
    finally:
        for pid in started:
            _kill(pid)


async def _cancel(task: asyncio.Task[Delivery]) -> None:
    task.cancel()
    await asyncio.wait([task], timeout=PATIENCE)
    assert task.cancelled()


def _kill(pid: str | None) -> None:
    if pid and pid.strip().isdigit():
        with suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)


def _has_ended(pid: str) -> bool:
    """Return True if a process is gone, or waits only for its parent to notice."""
    done = subprocess.run(["ps", "-o", "stat=", "-p", pid], capture_output=True, text=True, check=False)
    return done.stdout.strip()[:1] in {"", "Z"}
