"""The standard streams of the command: copied unchanged, with the last lines stored.

Where this process has a terminal, the command gets a pseudo-terminal, and the terminal is raw while this process is in
its foreground. Other output is copied through a pipe: a pseudo-terminal would make programs behave interactively. Input
that is not a terminal is inherited.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import termios
import threading
import time
import tty
from contextlib import suppress
from typing import Any

TAIL_LINES = 20
TAIL_CHARACTERS = 4000
_TAIL_BYTES = 16 * 1024
_CHUNK = 65536
_QUIET = 0.5
"""Seconds of silence after which a stream that another process keeps open is given up."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Tail:
    """The end of the output."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = b""
        self._cut = False

    def add(self, chunk: bytes) -> None:
        with self._lock:
            self._cut = self._cut or len(self._bytes) + len(chunk) > _TAIL_BYTES
            self._bytes = (self._bytes + chunk)[-_TAIL_BYTES:]

    def clear(self) -> None:
        with self._lock:
            self._bytes = b""
            self._cut = False

    def text(self) -> str:
        """Return the last lines without colours; of an overwritten line, only its last state.

        >>> tail = Tail()
        >>> tail.add(b"\\x1b[31m 10 %\\r100 %\\x1b[0m\\ndone\\n")
        >>> tail.text()
        '100 %\\ndone'
        """
        with self._lock:
            text, cut = self._bytes.decode(errors="replace"), self._cut
        lines = _ESCAPES.sub("", text).rstrip("\r\n").split("\n")
        if cut and len(lines) > 1:
            # Its start is missing.
            del lines[0]
        shown = [_CONTROLS.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in lines[-TAIL_LINES:]]
        return "\n".join(shown)[-TAIL_CHARACTERS:]


class Streams:
    """Created before the supervisor is forked; then each process keeps its side."""

    def __init__(self) -> None:
        self.tail = Tail()
        self._errors = Tail()
        """Of standard error alone, where it is separate."""
        _fill_standard()
        self._terminal = next((fd for fd in (1, 2) if os.isatty(fd)), None)
        self.interactive = self._terminal is not None and os.isatty(0)
        """True if the command can read the keyboard."""
        self._master, self._slave = (-1, -1) if self._terminal is None else os.openpty()
        self._pipes = {fd: os.pipe() for fd in (1, 2) if not os.isatty(fd)}
        self._copying: dict[int, bool] = {}
        """The sources that are copied, each with whether a chunk is being written."""
        self.attached = False
        """True if the terminal is raw and its keys go to the command."""
        if self._terminal is not None:
            self._settings = termios.tcgetattr(self._terminal)
            self._prepare_slave(self._terminal)

    def _prepare_slave(self, terminal: int) -> None:
        # In the background, the terminal has the settings of the shell, which no command expects.
        behind = self.interactive and not _in_foreground()
        settings: list[Any] = termios.tcgetattr(self._slave if behind else terminal)
        if not self.interactive:
            # The terminal stays as it is, and translates newlines itself.
            settings[1] &= ~termios.OPOST
        termios.tcsetattr(self._slave, termios.TCSANOW, settings)
        self.resize()

    # In the supervisor, and in the command before exec

    def keep_inner(self) -> None:
        """Keep only the side of the command: the output of this process must end with it."""
        if self._master >= 0:
            os.close(self._master)
        for reading, _ in self._pipes.values():
            os.close(reading)
        null = os.open(os.devnull, os.O_RDWR)
        self._restorable = os.dup(0) if self.interactive else -1
        for fd in (0, 1, 2) if self.interactive else (1, 2):
            os.dup2(null, fd)
        os.close(null)

    def control_terminal(self) -> None:
        """Make the pseudo-terminal the controlling one of the session."""
        if self._slave >= 0:
            fcntl.ioctl(self._slave, termios.TIOCSCTTY, 0)

    def restore_terminal(self) -> None:
        """Restore the terminal after the process that set it raw was killed."""
        if self._restorable >= 0:
            with suppress(termios.error):
                termios.tcsetattr(self._restorable, termios.TCSANOW, self._settings)

    def become_standard(self) -> None:
        """Set up the standard descriptors of the command, and put its group in the foreground."""
        if self.interactive:
            os.dup2(self._slave, 0)
        for fd in (1, 2):
            os.dup2(self._pipes[fd][1] if fd in self._pipes else self._slave, fd)
        if self._slave >= 0:
            os.tcsetpgrp(self._slave, os.getpgrp())

    # In ``agentbus run``

    def keep_outer(self) -> None:
        """Keep only the side of ``agentbus run``."""
        if self._slave >= 0:
            os.close(self._slave)
        for _, writing in self._pipes.values():
            os.close(writing)

    def start(self) -> None:
        """Start copying."""
        for fd, (reading, _) in self._pipes.items():
            self._start_copy(reading, fd, True)
        if self._terminal is not None:
            self._start_copy(self._master, self._terminal, False)
        if self.interactive:
            self._woken, self._waker = os.pipe()
            threading.Thread(target=self._copy_keys, daemon=True).start()

    def clear(self) -> None:
        """Clear the stored output before another run."""
        self.tail.clear()
        self._errors.clear()

    @property
    def last_line(self) -> str:
        """The last line of output, preferably of standard error."""
        return (self._errors.text() or self.tail.text()).rpartition("\n")[2]

    def settle(self, seconds: float) -> None:
        """Wait until all output so far has been copied, at most for this time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.005)
            if not any(list(self._copying.values())) and not select.select(list(self._copying), [], [], 0)[0]:
                return

    def finish(self, seconds: float | None = None) -> None:
        """Copy the rest, until no process can write any more or, with ``seconds``, until the timeout.

        A process that left the session and keeps the stream open is not waited for. A slow reader is.
        """
        started = quiet = time.monotonic()
        while self._copying:
            time.sleep(0.002)
            now = time.monotonic()
            if any(list(self._copying.values())):
                quiet = now
            if now - quiet > _QUIET or (seconds is not None and now - started > seconds):
                return

    def attach(self) -> bool:
        """Pass keys to the command if this process is in the foreground. Return whether it does."""
        if self.interactive and not self.attached and _in_foreground():
            self._settings = termios.tcgetattr(0)
            tty.setraw(0, termios.TCSADRAIN)
            self.attached = True
            os.write(self._waker, b".")
        return self.attached

    def detach(self) -> None:
        """Restore the terminal."""
        if self.attached:
            self.attached = False
            os.write(self._waker, b".")
            with suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._settings)

    def resize(self) -> bool:
        """Give the pseudo-terminal the size of the terminal. Return False if there is none."""
        if self._terminal is None:
            return False
        with suppress(OSError):
            size = fcntl.ioctl(self._terminal, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        return True

    def _start_copy(self, source: int, sink: int, piped: bool) -> None:
        self._copying[source] = False
        threading.Thread(target=self._copy, args=(source, sink, piped), daemon=True).start()

    def _copy(self, source: int, sink: int, piped: bool) -> None:
        lost = False
        while True:
            try:
                chunk = os.read(source, _CHUNK)
            except OSError:
                chunk = b""  # the end of a pseudo-terminal
            if not chunk:
                break
            self._copying[source] = True
            self.tail.add(chunk)
            if sink == 2:
                self._errors.add(chunk)
            try:
                if not lost:
                    write_all(sink, chunk)
            except OSError:
                lost = True
                if piped:
                    # The reader is gone: closing the pipe lets the command get the same error.
                    break
            self._copying[source] = False
        del self._copying[source]
        if piped:
            os.close(source)

    def _copy_keys(self) -> None:
        while True:
            ready, _, _ = select.select([self._woken, *([0] if self.attached else [])], [], [])
            if self._woken in ready:
                os.read(self._woken, 16)
                continue
            try:
                chunk = os.read(0, 4096)
                if not chunk:
                    return
                write_all(self._master, chunk)
            except OSError:
                return


def write_all(fd: int, chunk: bytes) -> None:
    """Write all bytes, also to a non-blocking descriptor."""
    view = memoryview(chunk)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            select.select([], [fd], [])


def _in_foreground() -> bool:
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _fill_standard() -> None:
    """Open closed standard descriptors, so that they are not reused for something else."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
