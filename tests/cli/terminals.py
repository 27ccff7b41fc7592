"""Terminals that commands are run on."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.cli.conftest import COMMAND, TIMEOUT, Shell, command_with
from tests.support import zygote


def on_terminal(
    shell: Shell,
    *words: str,
    until: str | None = None,
    interrupt: bool = False,
    errors: bool = False,
    typed: str | None = None,
) -> tuple[int, str]:
    """Run it on a terminal of its own, with standard error if asked; what it showed. It is interrupted, or ``typed`` is
    typed, once it has shown ``until``."""
    mine, theirs = pty.openpty()
    environment = {**shell.environment, "TERM": "xterm-256color", "COLUMNS": "160"}
    process = zygote.Popen(
        [COMMAND, *words],
        cwd=shell.directory,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs if errors else None,
    )
    os.close(theirs)
    shown = b""
    deadline = time.monotonic() + TIMEOUT
    try:
        while time.monotonic() < deadline:
            if select.select([mine], [], [], 0.05)[0]:
                try:
                    part = os.read(mine, 65536)
                except OSError:
                    break
                shown += part
            if until is not None and until in shown.decode(errors="replace"):
                if interrupt:
                    process.send_signal(signal.SIGINT)
                if typed is not None:
                    os.write(mine, typed.encode())
                until = None
        return process.wait(TIMEOUT), shown.decode()
    finally:
        os.close(mine)


def uncoloured(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


WRAPPER = str(Path(__file__).with_name("in_terminal.py"))


class Terminal:
    """A terminal with a command in its foreground."""

    def __init__(
        self,
        shell: Shell,
        *words: str,
        stdout: int | None = None,
        quiet: bool = True,
        through: Sequence[str] = (),
        constants: Mapping[str, float] | None = None,
    ) -> None:
        self.master, self.slave = os.openpty()
        self.resize(40, 100)
        self.before = termios.tcgetattr(self.slave)
        command = command_with(constants or {})
        self.process = subprocess.Popen(
            [sys.executable, WRAPPER, *through, *command, "run", *(["--quiet"] if quiet else []), *words],
            cwd=shell.directory,
            env=shell.environment,
            stdin=self.slave,
            stdout=self.slave if stdout is None else stdout,
            stderr=self.slave,
        )
        self.text = ""

    def resize(self, lines: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        os.write(self.master, keys)

    def expect(self, word: str) -> list[str]:
        """Wait for a line that begins with this; the words that follow."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            *lines, self.text = self.text.split("\r\n")
            for index, line in enumerate(lines):
                if line.startswith(word):
                    self.text = "\r\n".join([*lines[index + 1 :], self.text])
                    return line.split()[1:]
            if not select.select([self.master], [], [], deadline - time.monotonic())[0]:
                pytest.fail(f"no {word!r}; {lines} {self.text!r}")
            self.text += os.read(self.master, 65536).decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)
