"""Ctrl-C at the worst moments: it is heard, whatever is being imported."""

from __future__ import annotations

import fcntl
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from agentbus.sync.bus import open_bus
from tests.cli.conftest import TIMEOUT, Shell, until
from tests.conftest import pytest_configure

IMPORTING = """
import signal, sys, time
from agentbus.cli.signals import interrupt
signal.signal(signal.SIGINT, interrupt)
try:
    import half
    time.sleep(20)
except KeyboardInterrupt:
    print("heard", sys.modules["half"].whole)
"""
WAITING = """
import os, signal, sys
from agentbus.cli.entry_point import script
class Disturber:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            # As what is called by the import system, where an exception is only reported.
            class Unheard:
                def __del__(self):
                    os.kill(os.getpid(), {number})
            Unheard()
sys.meta_path.insert(0, Disturber())
sys.argv[:] = ["agentbus", *{words!r}]
script()
"""


def test_what_is_being_imported_becomes_whole(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhole = True\n")
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING], cwd=tmp_path, capture_output=True, timeout=TIMEOUT, check=False
    )
    assert (done.stdout, done.stderr) == (b"heard True\n", b"")


@pytest.mark.parametrize(
    ("words", "module", "number", "code"),
    [
        (("wait", "--timeout", "20"), "agentbus.sync.receiving", 2, 130),
        (("receive", "--wait", "20"), "agentbus.sync.receiving", 15, 143),
    ],
)
def test_a_signal_while_something_is_imported_is_heard(
    shell: Shell, words: tuple[str, ...], module: str, number: int, code: int
) -> None:
    agent = shell.register("a")
    done = subprocess.run(
        [sys.executable, "-c", WAITING.format(module=module, number=number, words=words)],
        cwd=shell.directory,
        env={**shell.environment, "AGENTBUS_AGENT": agent},
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, b"")


STARTING = """
import os, signal, sys
from agentbus.cli.entry_point import script
class Disturber:
    def find_spec(self, name, path=None, target=None):
        if name == "msgspec":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Disturber())
sys.argv[:] = ["agentbus", "--version"]
script()
"""


def test_ctrl_c_while_a_command_starts_ends_it_at_once(nowhere: Shell) -> None:
    """Without a traceback."""
    done = subprocess.run([sys.executable, "-c", STARTING], capture_output=True, timeout=TIMEOUT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


UNHEARD = """
import os, signal, sys, threading, time
from agentbus.cli.entry_point import script

def disturb():
    # Taken by this thread, it interrupts no call of the main one: as one that comes right before such a call.
    while not os.path.exists("go"):
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGQUIT)

threading.Thread(target=disturb, daemon=True).start()
sys.argv[:] = ["agentbus", "receive", "--json"]
script()
"""


def test_a_signal_right_before_a_write_that_blocks_is_heard(shell: Shell) -> None:
    agent = shell.register("a")
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.agent(agent).send("a", "note", "x" * 300_000)
        receiving = subprocess.Popen(
            [sys.executable, "-c", UNHEARD],
            cwd=shell.directory,
            env={**shell.environment, "AGENTBUS_AGENT": agent},
            stdout=subprocess.PIPE,
        )
        try:
            assert receiving.stdout is not None
            pipe = receiving.stdout.fileno()
            until(lambda: waiting_in(pipe) > 0)
            (shell.directory / "go").touch()
            assert receiving.wait(TIMEOUT) == 128 + signal.SIGQUIT
        finally:
            receiving.kill()
            receiving.communicate()
        message = bus.do(bus.messages.get("m-1"))
        assert message is not None
        assert (message.status, message.attempts) == ("queued", 0)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_all_is_written_to_a_reader_that_is_slow(shell: Shell, unbuffered: str) -> None:
    """The timer that lets signals be heard interrupts the write, and cuts it short where there is no buffer."""
    agent = shell.register("a")
    shell.environment["PYTHONUNBUFFERED"] = unbuffered
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.agent(agent).send("a", "note", "x" * 300_000)
    receiving = shell.start("receive", "--json", agent=agent)
    try:
        assert receiving.stdout is not None
        pipe = receiving.stdout.fileno()
        until(lambda: waiting_in(pipe) > 0)
        with pytest.raises(subprocess.TimeoutExpired):
            receiving.wait(0.5)
        printed, _ = receiving.communicate(timeout=TIMEOUT)
    finally:
        receiving.kill()
        receiving.communicate()
    assert receiving.returncode == 0
    assert printed.count(b"x") == 300_000 + printed.count(b'"expires"')


def waiting_in(pipe: int) -> int:
    """Bytes in a pipe that were not read."""
    count = fcntl.ioctl(pipe, termios.FIONREAD, struct.pack("i", 0))
    return int(struct.unpack("i", count)[0])


def test_what_a_shell_ignores_for_its_background_is_not_ignored_by_tests() -> None:
    numbers = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        pytest_configure()
        assert not [number for number in numbers if signal.getsignal(number) is signal.SIG_IGN]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM])
def test_what_was_taken_and_is_not_read_goes_back(shell: Shell, number: signal.Signals) -> None:
    """The terminal is closed, or the connection lost, while it prints."""
    agent = shell.register("a")
    with open_bus(shell.directory / ".agentbus") as bus:
        bus.agent(agent).send("a", "note", "x" * 300_000)
        receiving = shell.start("receive", "--json", agent=agent)
        try:
            deadline = time.monotonic() + TIMEOUT
            while bus.do(bus.messages.get("m-1")).status != "leased":  # type: ignore[union-attr]
                assert time.monotonic() < deadline
                time.sleep(0.01)
            time.sleep(0.05)
            receiving.send_signal(number)
            assert receiving.wait(TIMEOUT) == 128 + number
        finally:
            receiving.kill()
            receiving.communicate()
        message = bus.do(bus.messages.get("m-1"))
        assert message is not None
        assert (message.status, message.attempts) == ("queued", 0)
