"""Agents whose process was killed: every command knows, and what they held reaches others, without a monitor."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import pytest

from agentbus.cli.context import DEFAULTS
from agentbus.core.validation import HEARTBEAT_INTERVAL
from agentbus.engine import blocking, processes
from agentbus.errors import LockTimeout, RequestDied
from agentbus.operations.health import live_processes
from agentbus.sync.bus import BlockingBus, open_bus
from tests.cli.conftest import TIMEOUT, Shell, until
from tests.cli.run_helpers import gone

LONG = 40.0
"""Seconds that a test waits for what must come long before."""


@pytest.fixture
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that agents live in. Once it is killed it is a zombie: the test does not wait for it."""
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    until(lambda: gone(process.pid))


def holding(bus: BlockingBus, pid: int) -> None:
    """``w1`` lives in a process, and holds what its pool has; ``w2`` is in the same pool."""
    w1 = bus.register("w1", type="worker", pools=["team"], pid=pid)
    w2 = bus.register("w2", type="worker", pools=["team"])
    w2.send("pool:team", "note", "work")
    assert [message.payload for message in w1.receive_many(1)] == ["work"]


def statuses(shell: Shell, url: str) -> dict[str, str]:
    return {agent["id"]: agent["status"] for agent in shell.told("agents", "list", "--url", url)["items"]}


def test_a_list_of_agents_says_at_once_who_died(nowhere: Shell, url: str, stranger: subprocess.Popen[bytes]) -> None:
    with open_bus(url) as bus:
        holding(bus, stranger.pid)
    stranger.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, stranger.pid, os.WSTOPPED | os.WNOWAIT)
    assert statuses(nowhere, url) == {"w1": "running", "w2": "running"}, "who is stopped is not dead"
    kill(stranger)
    assert statuses(nowhere, url) == {"w1": "failed", "w2": "running"}
    shown = nowhere.told("agents", "show", "w1", "--url", url)
    assert (shown["error"], shown["evidence"]["verdict"]) == ("its process died", "dead")


def test_the_first_status_is_right(nowhere: Shell, url: str, stranger: subprocess.Popen[bytes]) -> None:
    with open_bus(url) as bus:
        holding(bus, stranger.pid)
    kill(stranger)
    found = nowhere.told("status", "--url", url)
    assert found["counts"] == {"agents": {"failed": 1, "running": 1}, "messages": {"queued": 1}}
    assert [agent["id"] for agent in found["agents"]] == ["w2"]


def test_what_a_dead_agent_held_is_received_at_once(
    nowhere: Shell, url: str, stranger: subprocess.Popen[bytes]
) -> None:
    with open_bus(url) as bus:
        holding(bus, stranger.pid)
    kill(stranger)
    assert [one["payload"] for one in nowhere.told("receive", "--agent", "w2", "--url", url)] == ["work"]


def test_one_who_looks_does_not_wait_long_for_one_who_writes(
    url: str, stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert DEFAULTS["lock_timeout"] / 2 > processes.LOCK_TIMEOUT
    monkeypatch.setattr(processes, "LOCK_TIMEOUT", 0.2)
    with open_bus(url) as bus, open_bus(url) as other:
        holding(bus, stranger.pid)
        kill(stranger)
        begun = time.monotonic()
        with bus.store.pause_writes(), pytest.raises(LockTimeout):
            other.mark_dead_processes()
        assert time.monotonic() - begun < DEFAULTS["lock_timeout"] / 2
        assert other.mark_dead_processes(), "later it can be noted"
        assert not other.mark_dead_processes()


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_question_is_answered_while_nothing_can_be_written(
    nowhere: Shell, url: str, stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite is left out: a file cannot be opened while writes are paused."""
    monkeypatch.setattr(processes, "LOCK_TIMEOUT", 0.2)
    with open_bus(url) as bus:
        holding(bus, stranger.pid)
        kill(stranger)
        with bus.store.pause_writes():
            assert statuses(nowhere, url) == {"w1": "running", "w2": "running"}
            assert "dead processes could not be recorded" in nowhere.run("agents", "list", "--url", url).err
    assert statuses(nowhere, url) == {"w1": "failed", "w2": "running"}


def received(bus: BlockingBus) -> Any:
    return [message.payload for message in bus.agent("w2").receive_many(1, timeout=LONG)]


def waited(bus: BlockingBus) -> Any:
    return bus.agent("w2").wait(LONG)


def followed(bus: BlockingBus) -> Any:
    return next(bus.events(follow=True, kind="agent_failed")).subject


@pytest.mark.parametrize(
    ("wait", "found"),
    [(received, ["work"]), (waited, True), (followed, "w1")],
    ids=["receive", "wait", "events"],
)
def test_one_that_waits_looks_for_the_dead_again_and_again(
    url: str,
    stranger: subprocess.Popen[bytes],
    monkeypatch: pytest.MonkeyPatch,
    wait: Callable[[BlockingBus], Any],
    found: Any,
) -> None:
    """Killed while the other waits: no other process looks, and no bell rings."""
    monkeypatch.setattr(blocking, "HEARTBEAT_INTERVAL", 0.2)
    with open_bus(url) as bus:
        holding(bus, stranger.pid)

        def kill_later() -> None:
            with open_bus(url) as other:
                until(lambda: len(other.read(live_processes, None)) == 2)
            stranger.kill()

        killer = Thread(target=kill_later)
        killer.start()
        try:
            begun = time.monotonic()
            assert wait(bus) == found
            assert time.monotonic() - begun < LONG / 2
        finally:
            killer.join()


def test_one_that_asks_hears_that_who_was_asked_died(
    url: str, stranger: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the last time that the question was delivered: it is a dead letter."""
    monkeypatch.setattr(blocking, "HEARTBEAT_INTERVAL", 0.2)
    with open_bus(url) as bus:
        bus.register("w1", type="worker", pid=stranger.pid)
        asker = bus.register("w2", type="worker")

        def take_and_die() -> None:
            with open_bus(url) as other:
                assert other.agent("w1").receive_many(1, timeout=TIMEOUT)
            stranger.kill()

        dying = Thread(target=take_and_die)
        dying.start()
        try:
            with pytest.raises(RequestDied):
                asker.request("w1", "note", "ready?", timeout=LONG, max_attempts=1)
        finally:
            dying.join()


def test_a_pool_mate_gets_it_long_before_its_wait_ends(shell: Shell, stranger: subprocess.Popen[bytes]) -> None:
    """The command itself, in its own process, with a shorter interval between its checks."""
    assert HEARTBEAT_INTERVAL < LONG / 2
    with open_bus(shell.directory / ".agentbus") as bus:
        holding(bus, stranger.pid)
        often = {"agentbus.engine.blocking.HEARTBEAT_INTERVAL": 0.2}
        waiting = shell.start("receive", "--wait", str(LONG), agent="w2", constants=often)
        try:
            until(lambda: len(bus.read(live_processes, None)) == 2)
            begun = time.monotonic()
            kill(stranger)
            printed, _ = waiting.communicate(timeout=TIMEOUT)
            assert time.monotonic() - begun < LONG / 2
        finally:
            waiting.kill()
            waiting.communicate()
    assert (waiting.returncode, printed.count(b"work")) == (0, 1)
