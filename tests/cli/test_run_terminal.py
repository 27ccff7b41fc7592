"""``agentbus run`` on a terminal: the command has one too, keys reach it, and ours is given back as it was."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import termios
from collections.abc import Iterator

import pytest

from agentbus.core import process_info
from tests.cli.conftest import Shell
from tests.cli.terminals import Terminal
from tests.support.processes import PATIENCE, eventually

LOOK = """
import os, signal, sys, time
signal.signal(signal.SIGWINCH, lambda *_: print("now", *os.get_terminal_size(), flush=True))
print("terminal", *(os.isatty(fd) for fd in range(3)), *os.get_terminal_size(), os.getpid(), flush=True)
while True:
    print("heard", sys.stdin.readline().strip(), flush=True)
"""


@pytest.fixture
def terminals(shell: Shell) -> Iterator[list[Terminal]]:
    found: list[Terminal] = []
    yield found
    for terminal in found:
        terminal.close()


def test_a_command_on_a_terminal_has_one_too(shell: Shell, terminals: list[Terminal]) -> None:
    terminal = Terminal(shell, "--agent", "a", "--", sys.executable, "-c", LOOK)
    terminals.append(terminal)
    assert terminal.expect("terminal")[:5] == ["True", "True", "True", "100", "40"]
    terminal.type(b"hello\r")
    assert terminal.expect("heard") == ["hello"]
    terminal.resize(50, 120)
    assert terminal.expect("now") == ["120", "50"]
    assert termios.tcgetattr(terminal.slave) != terminal.before, "keys were heard"
    terminal.type(b"\x03")
    assert terminal.process.wait(PATIENCE) == 130
    assert termios.tcgetattr(terminal.slave) == terminal.before
    assert shell.json("agents", "show", "a")["status"] == "stopped"
    assert "heard hello" in shell.json("state", "get", "agentbus.run", "--of", "a")["value"]["output"]


def test_a_key_stops_the_command_and_the_run_with_it(shell: Shell, terminals: list[Terminal]) -> None:
    terminal = Terminal(shell, "--agent", "a", "--", sys.executable, "-c", LOOK)
    terminals.append(terminal)
    terminal.expect("terminal")
    terminal.type(b"\x1a")
    os.waitid(os.P_PID, terminal.process.pid, os.WSTOPPED)
    assert termios.tcgetattr(terminal.slave) == terminal.before
    terminal.process.send_signal(signal.SIGCONT)
    terminal.type(b"again\r")
    assert terminal.expect("heard") == ["again"]
    terminal.type(b"\x03")
    assert terminal.process.wait(PATIENCE) == 130


def test_a_run_that_comes_to_the_foreground_hears_the_keys(shell: Shell, terminals: list[Terminal]) -> None:
    """It is not notified of that."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("it takes a shell with job control")
    through = (bash, "--norc", "-c", 'set -m; stty -icanon -icrnl; "$0" "$@" & read -d . word; stty sane; fg')
    terminal = Terminal(shell, "--agent", "a", "--", sys.executable, "-c", LOOK, through=through)
    terminals.append(terminal)
    terminal.expect("terminal")
    terminal.type(b"go.")
    eventually(lambda: not termios.tcgetattr(terminal.slave)[3] & termios.ISIG, "the terminal is raw")
    terminal.type(b"hello\r")
    assert terminal.expect("heard") == ["hello"]
    terminal.type(b"\x03")
    assert terminal.process.wait(PATIENCE) == 130


def test_a_run_that_is_killed_leaves_neither_an_orphan_nor_a_raw_terminal(
    shell: Shell, terminals: list[Terminal]
) -> None:
    terminal = Terminal(shell, "--agent", "a", "--", sys.executable, "-c", LOOK)
    terminals.append(terminal)
    command = int(terminal.expect("terminal")[-1])
    eventually(lambda: termios.tcgetattr(terminal.slave) != terminal.before, "the terminal is raw")
    terminal.process.kill()
    eventually(lambda: process_info.is_gone(command, "", None), "the command is gone")
    eventually(lambda: termios.tcgetattr(terminal.slave) == terminal.before, "the terminal is as it was")


def test_what_is_no_terminal_for_us_is_none_for_the_command(shell: Shell, terminals: list[Terminal]) -> None:
    script = "import os, sys; print('terminal', *(os.isatty(fd) for fd in range(3)), file=sys.stderr); print('out')"
    reading, writing = os.pipe()
    terminal = Terminal(shell, "--agent", "a", "--", sys.executable, "-c", script, stdout=writing)
    terminals.append(terminal)
    os.close(writing)
    assert terminal.expect("terminal") == ["True", "False", "True"]
    with open(reading, "rb") as pipe:
        assert pipe.read() == b"out\n"
    assert terminal.process.wait(PATIENCE) == 0
