"""Doorbells: a Unix datagram socket per process. A commit rings the processes that listen; idle costs nothing.

Where no socket can be, the database's version is looked at now and then.
"""

from __future__ import annotations

import atexit
import os
import socket
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Container, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from agentbus.engine import presence
from agentbus.engine.forking import forget_in_child
from agentbus.engine.sqlite.home import Home, prepare_bells
from agentbus.errors import NotWritable

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from pathlib import Path

ANY = "*"
"""Rung instead of a list of channels that would not fit: look at everything."""
NO_BELL = (NotWritable, OSError, UnicodeEncodeError)
"""What is raised where there can be no bell: no place for it, or a path that is too long or no text."""
POLL = 0.02
"""Seconds between two looks of a process that has no bell."""
_WHILE = 0.005
_MOST = 30_000 if sys.platform == "linux" else 1_900


class Bell:
    """This process's own doorbell."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = str(directory / f"{os.getpid()}-{os.urandom(4).hex()}")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind(self.path)
        os.chmod(self.path, 0o600)
        forget_in_child(self)

    def rung(self) -> list[str]:
        """The channels rung since the last look."""
        channels: list[str] = []
        with suppress(BlockingIOError):
            while True:
                channels += self.socket.recv(65536).decode().split("\n")
        return channels

    def forget(self) -> None:
        """In a forked child: an open socket would let the parent look alive after its death."""
        self.socket.close()

    def close(self, *, leave: bool = False) -> None:
        """``leave`` the file while the program runs: a bell that refuses shows others that the bus is not open here."""
        self.socket.close()
        if leave:
            atexit.register(_remove, self.path)
        else:
            _remove(self.path)


def hung_up(place: Home) -> Bell:
    """A bell for this process; one of NO_BELL where there can be none."""
    directory = prepare_bells(place)
    str(directory).encode()
    return Bell(directory)


def remove(bells: Iterable[str | None]) -> None:
    """Remove the bells of processes that are gone, as far as they had any.

    Their paths come from the database, which another program may have prepared: nothing is removed but a bell.
    """
    for bell in bells:
        if bell is not None and is_bell(bell):
            with suppress(OSError):
                if stat.S_ISSOCK(os.lstat(bell).st_mode):
                    os.unlink(bell)


def is_bell(path: str) -> bool:
    """Return True if a path can be that of a bell, as far as its text says. That it is one of this bus cannot be said:
    a home has as many paths as there are ways to it."""
    folder, _, name = path.rpartition("/")
    pid, _, token = name.partition("-")
    named = pid.isdecimal() and len(token) == 8 and token.isalnum()
    above, _, own = folder.rpartition("/")
    return named and (own == "bells" or above.rpartition("/")[2].startswith("agentbus-"))


def _remove(bell: str) -> None:
    with suppress(OSError):
        os.unlink(bell)


class Ringer:
    """Rings other processes' bells. A bell whose queue is full is rung again later, with all it missed."""

    def __init__(self) -> None:
        self._last = 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._missed: dict[str, set[str]] = {}

    def ring(self, bells: dict[str, set[str]]) -> bool:
        """Ring each bell for its channels. False if some must be rung again."""
        if bells:
            self._last = time.perf_counter()
        for bell, channels in bells.items():
            if bell in self._missed:
                self._missed[bell] |= channels
            elif not self._rung(bell, channels):
                self._missed[bell] = set(channels)
        return not self._missed

    @property
    def rested(self) -> bool:
        """Whether no bell was rung for a while: those who listen are then likely to sleep deeply."""
        return self._last < time.perf_counter() - _WHILE

    def ring_again(self) -> bool:
        """Try those bells again whose queue was full. False if some must be rung yet another time."""
        self._missed = {bell: channels for bell, channels in self._missed.items() if not self._rung(bell, channels)}
        return not self._missed

    def _rung(self, bell: str, channels: set[str]) -> bool:
        try:
            self._socket.sendto(_message(channels), bell)
        except BlockingIOError:
            return False
        except OSError:
            # Nobody is there any more; whoever finds that process dead strikes it off.
            return True
        return True

    def close(self) -> None:
        self._socket.close()


class Poll:
    """For where no socket can be: looks whether anybody else has committed, and wakes everyone if so."""

    def __init__(self, reader: sqlite3.Connection, loop: AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._reader = reader
        self._loop = loop
        self._wake = wake
        self._version = self._look()
        self._timer = loop.call_later(POLL, self._tick)

    def close(self) -> None:
        self._timer.cancel()
        self._reader.close()

    def _tick(self) -> None:
        version = self._look()
        if version != self._version:
            self._version = version
            self._wake()
        self._timer = self._loop.call_later(POLL, self._tick)

    def _look(self) -> int:
        (version,) = self._reader.execute("PRAGMA data_version").fetchone()
        return int(version)


def sweep(directory: Path, keep: Container[str | None]) -> None:
    """Remove the bells that no process answers to."""
    try:
        found = list(directory.iterdir())
    except OSError:
        # Tidying can wait.
        return
    for bell in found:
        if str(bell) in keep or not stat.S_ISSOCK(bell.lstat().st_mode):
            continue
        if presence.answers(str(bell)) is False:
            _remove(str(bell))


def _message(channels: Iterable[str]) -> bytes:
    text = "\n".join(channels).encode()
    return text if len(text) <= _MOST else ANY.encode()
