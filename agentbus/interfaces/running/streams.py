"""The command's standard streams: they pass through as they are, while the last lines are kept.

What is a terminal for us is one for the command too: it gets a pseudo-terminal, and ours is set raw as long as we are
in its foreground. Any other output is a pipe that is copied: a pseudo-terminal there would make programs believe in a
person, and change their bytes. Input that is not a terminal is simply inherited.
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

KEPT_LINES = 20
KEPT_CHARACTERS = 4000
_KEPT_BYTES = 16 * 1024
_CHUNK = 65536
_QUIET = 0.5
"""Seconds after which nothing more is expected of a stream that somebody keeps open."""
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class Tail:
    """The end of what was written."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = b""
        self._cut = False

    def add(self, chunk: bytes) -> None:
        with self._lock:
            self._cut = self._cut or len(self._bytes) + len(chunk) > _KEPT_BYTES
            self._bytes = (self._bytes + chunk)[-_KEPT_BYTES:]

    def clear(self) -> None:
        with self._lock:
            self._bytes = b""
            self._cut = False

    def text(self) -> str:
        """The last lines as people read them: without colours, of a line that was overwritten only the last state.

        >>> tail = Tail()
        >>> tail.add(b"\\x1b[31m 10 %\\r100 %\\x1b[0m\\ndone\\n")
        >>> tail.text()
        '100 %\\ndone'
        """
        with self._lock:
            text, cut = self._bytes.decode(errors="replace"), self._cut
        lines = _ESCAPES.sub("", text).rstrip("\r\n").split("\n")
        if cut and len(lines) > 1:
            # Its beginning is gone.
            del lines[0]
        shown = [_CONTROLS.sub("", line.rstrip("\r").rpartition("\r")[2]) for line in lines[-KEPT_LINES:]]
        return "\n".join(shown)[-KEPT_CHARACTERS:]


class Streams:
    """Made before the guard is forked; then each of the processes keeps its side."""

    def __init__(self) -> None:
        self.tail = Tail()
        self._errors = Tail()
        """Of standard error alone, where it can be told apart."""
        _fill_standard()
        self._terminal = next((fd for fd in (1, 2) if os.isatty(fd)), None)
        self.types = self._terminal is not None and os.isatty(0)
        """Whether there are keys that the command may hear."""
        self._master, self._slave = (-1, -1) if self._terminal is None else os.openpty()
        self._pipes = {fd: os.pipe() for fd in (1, 2) if not os.isatty(fd)}
        self._copying: dict[int, bool] = {}
        """What is copied from, and whether something of it is on its way just now."""
        self.attached = False
        """Whether our terminal is raw, and its keys go to the command."""
        if self._terminal is not None:
            self._settings = termios.tcgetattr(self._terminal)
            self._prepare_slave(self._terminal)

    def _prepare_slave(self, terminal: int) -> None:
        # In the background, it is set as the shell needs it that waits for the next line: no command expects that.
        behind = self.types and not _in_foreground()
        settings: list[Any] = termios.tcgetattr(self._slave if behind else terminal)
        if not self.types:
            # Our terminal stays as it is, and ends the lines itself.
            settings[1] &= ~termios.OPOST
        termios.tcsetattr(self._slave, termios.TCSANOW, settings)
        self.resize()

    # In the guard, and in the command before it begins

    def keep_inner(self) -> None:
        """Only what the command gets. Our own output must end when we do, whoever else is left."""
        if self._master >= 0:
            os.close(self._master)
        for reading, _ in self._pipes.values():
            os.close(reading)
        null = os.open(os.devnull, os.O_RDWR)
        self._restorable = os.dup(0) if self.types else -1
        for fd in (0, 1, 2) if self.types else (1, 2):
            os.dup2(null, fd)
        os.close(null)

    def control_terminal(self) -> None:
        """Make the pseudo-terminal that of the guard's session."""
        if self._slave >= 0:
            fcntl.ioctl(self._slave, termios.TIOCSCTTY, 0)

    def restore_terminal(self) -> None:
        """Whoever had set it raw was killed."""
        if self._restorable >= 0:
            with suppress(termios.error):
                termios.tcsetattr(self._restorable, termios.TCSANOW, self._settings)

    def become_standard(self) -> None:
        """The command's own descriptors; and its group is the one that the pseudo-terminal's keys are for."""
        if self.types:
            os.dup2(self._slave, 0)
        for fd in (1, 2):
            os.dup2(self._pipes[fd][1] if fd in self._pipes else self._slave, fd)
        if self._slave >= 0:
            os.tcsetpgrp(self._slave, os.getpgrp())

    # In ``agentbus run``

    def keep_outer(self) -> None:
        """Only our own side."""
        if self._slave >= 0:
            os.close(self._slave)
        for _, writing in self._pipes.values():
            os.close(writing)

    def begin(self) -> None:
        """Copy from now on."""
        for fd, (reading, _) in self._pipes.items():
            self._go(reading, fd, True)
        if self._terminal is not None:
            self._go(self._master, self._terminal, False)
        if self.types:
            self._woken, self._waker = os.pipe()
            threading.Thread(target=self._type, daemon=True).start()

    def forget(self) -> None:
        """What comes now is another run's."""
        self.tail.clear()
        self._errors.clear()

    @property
    def last_line(self) -> str:
        """What it said last, at best of what went wrong."""
        return (self._errors.text() or self.tail.text()).rpartition("\n")[2]

    def settle(self, seconds: float) -> None:
        """Wait until all that was written so far has been copied, but not for longer than this."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(0.005)
            if not any(list(self._copying.values())) and not select.select(list(self._copying), [], [], 0)[0]:
                return

    def finish(self, seconds: float | None = None) -> None:
        """Copy the rest. It is through when nobody can write any more; somebody who went on by himself, with a session
        of his own, is not waited for. A reader who takes his time is, unless ``seconds`` are given."""
        begun = quiet = time.monotonic()
        while self._copying:
            time.sleep(0.002)
            now = time.monotonic()
            if any(list(self._copying.values())):
                quiet = now
            if now - quiet > _QUIET or (seconds is not None and now - begun > seconds):
                return

    def attach(self) -> bool:
        """Let keys through, if we are in the terminal's foreground; says whether."""
        if self.types and not self.attached and _in_foreground():
            self._settings = termios.tcgetattr(0)
            tty.setraw(0, termios.TCSADRAIN)
            self.attached = True
            os.write(self._waker, b".")
        return self.attached

    def detach(self) -> None:
        """Give the terminal back as it was."""
        if self.attached:
            self.attached = False
            os.write(self._waker, b".")
            with suppress(termios.error):
                termios.tcsetattr(0, termios.TCSADRAIN, self._settings)

    def resize(self) -> bool:
        """Make the pseudo-terminal as large as ours, which tells the command; False if there is none."""
        if self._terminal is None:
            return False
        with suppress(OSError):
            size = fcntl.ioctl(self._terminal, termios.TIOCGWINSZ, b"\0" * 8)
            fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)
        return True

    def _go(self, source: int, sink: int, piped: bool) -> None:
        self._copying[source] = False
        threading.Thread(target=self._copy, args=(source, sink, piped), daemon=True).start()

    def _copy(self, source: int, sink: int, piped: bool) -> None:
        lost = False
        while True:
            try:
                chunk = os.read(source, _CHUNK)
            except OSError:
                chunk = b""  # a pseudo-terminal that nobody has open any more ends like this
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
                    # Nobody reads it any more: so the command hears it, as if it wrote there itself.
                    break
            self._copying[source] = False
        del self._copying[source]
        if piped:
            os.close(source)

    def _type(self) -> None:
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
    """Write all of it, also where somebody made the descriptor non-blocking."""
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
    """A standard descriptor that is closed would be given out again for something else."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
