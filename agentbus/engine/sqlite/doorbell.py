"""Doorbells: one Unix datagram socket per process. A commit rings the processes that listen; idle costs nothing.

Where no socket can be created, a process polls the database's version instead.
"""

from __future__ import annotations

import atexit
import os
import sqlite3
import stat
import sys
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from agentbus.core import process_info
from agentbus.core.codec import plain
from agentbus.engine.process_safety import forget_in_child
from agentbus.engine.queries import Queries
from agentbus.engine.sqlite.paths import Home, prepare_bells
from agentbus.errors import NotWritable

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from pathlib import Path
    from socket import socket

ANY = "*"
"""Sent in place of a list of channels that does not fit: check everything."""
NO_BELL = (NotWritable, OSError, UnicodeEncodeError)
"""Errors of ``open_doorbell``: no directory for it, or a path that is too long or not text."""
POLL = 0.02
"""Seconds between two polls of a process without a doorbell."""
_MAX_BYTES = 30_000 if sys.platform == "linux" else 1_900
"""Size of a datagram."""
_MAX_CHANNELS = 10_000
"""Channels whose listeners are cached."""


class Bell:
    """This process's own doorbell."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = str(directory / f"{os.getpid()}-{os.urandom(4).hex()}")
        self.socket = _new_socket()
        self.socket.bind(self.path)
        os.chmod(self.path, 0o600)
        forget_in_child(self)

    def rung(self) -> list[str]:
        """Return the channels rung since the last call."""
        channels: list[str] = []
        with suppress(BlockingIOError):
            while True:
                channels += self.socket.recv(65536).decode().split("\n")
        return channels

    def forget(self) -> None:
        """Close the socket in a forked child: otherwise the parent would seem alive after its death."""
        self.socket.close()

    def close(self, *, leave: bool = False) -> None:
        """Close the socket and remove its file. With ``leave``, keep the file until the program ends: a socket that
        refuses connections shows other processes that the bus is not open here."""
        self.socket.close()
        if leave:
            atexit.register(_remove, self.path)
        else:
            _remove(self.path)


def _new_socket() -> socket:
    # Imported only here: most commands find no doorbell, and the import takes longer than opening the bus.
    import socket

    new = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    new.setblocking(False)
    return new


def open_doorbell(home: Home) -> Bell:
    """Create the doorbell of this process, or raise one of ``NO_BELL``."""
    directory = prepare_bells(home)
    str(directory).encode()
    return Bell(directory)


def remove(bells: Iterable[str | None]) -> None:
    """Remove the doorbells of dead processes.

    The paths come from the database, which another program may have written: only doorbells are removed.
    """
    for bell in bells:
        if bell is not None and is_bell(bell):
            with suppress(OSError):
                if stat.S_ISSOCK(os.lstat(bell).st_mode):
                    os.unlink(bell)


def is_bell(path: str) -> bool:
    """Return True if a path has the form of a doorbell's. It may belong to another bus: the same home can have several
    paths."""
    folder, _, name = path.rpartition("/")
    pid, _, token = name.partition("-")
    named = pid.isdecimal() and len(token) == 8 and token.isalnum()
    above, _, own = folder.rpartition("/")
    return named and (own == "bells" or above.rpartition("/")[2].startswith("agentbus-"))


def _remove(bell: str) -> None:
    with suppress(OSError):
        os.unlink(bell)


class Poll:
    """Polls for commits of other connections where no socket can be created, and wakes all waiters after one."""

    def __init__(self, reader: sqlite3.Connection, loop: AbstractEventLoop, wake: Callable[[], None]) -> None:
        self._reader = reader
        self._loop = loop
        self._wake = wake
        self._version = data_version(reader)
        self._timer = loop.call_later(POLL, self._tick)

    def close(self) -> None:
        self._timer.cancel()
        self._reader.close()

    def _tick(self) -> None:
        version = data_version(self._reader)
        if version != self._version:
            self._version = version
            self._wake()
        self._timer = self._loop.call_later(POLL, self._tick)


def data_version(connection: sqlite3.Connection) -> int:
    """Return a number that changes with each commit of another connection."""
    (version,) = connection.execute("PRAGMA data_version").fetchone()
    return int(version)


def sweep(directory: Path, keep: Container[str | None]) -> None:
    """Remove the doorbells that no process answers."""
    try:
        found = list(directory.iterdir())
    except OSError:
        return
    for bell in found:
        if str(bell) in keep or not _is_socket(bell):
            continue
        if process_info.is_listening(str(bell)) is False:
            _remove(str(bell))


def _is_socket(path: Path) -> bool:
    try:
        return stat.S_ISSOCK(path.lstat().st_mode)
    except OSError:
        # Its process, or another sweep, has removed it.
        return False


def _message(channels: Iterable[str]) -> bytes:
    text = "\n".join(channels).encode()
    return text if len(text) <= _MAX_BYTES else ANY.encode()


class Ringer:
    """Rings the processes that listen to a channel. Their doorbells are cached from the database.

    A doorbell whose queue is full is rung again later, with all channels it missed.
    """

    def __init__(self, connection: sqlite3.Connection, queries: Queries) -> None:
        self._connection = connection
        self._queries = queries
        self.topology: int | None = None
        """A number that changes whenever a process starts or stops listening; None: not known in this transaction."""
        self._loaded: int | None = None
        """The topology of the loaded doorbells."""
        self._bells: dict[str, list[str]] = {}
        self._heard: dict[str, tuple[int | None, bool]] = {}
        """The topology as of which it is known whether a process listens to a channel, and the answer."""
        self._missed: dict[str, set[str]] = {}

    def load(self, channels: Sequence[str], process: int) -> None:
        """Load the doorbells to ring for these channels, without this process's; again only if the topology changed or
        is unknown.

        Runs inside the transaction, where it needs none of its own: a process that starts to listen later queries
        after that, and finds what is committed here.
        """
        if self.topology is None or self.topology != self._loaded or len(self._bells) > _MAX_CHANNELS:
            self._bells.clear()
            self._loaded = self.topology
        unknown = {channel.partition("#")[0] for channel in channels} - self._bells.keys()
        if unknown:
            rows = self._connection.execute(self._queries["listeners_of"], (plain(list(unknown)), process))
            self._bells.update({channel: [] for channel in unknown})
            for channel, bell in rows.fetchall():
                if is_bell(bell):
                    self._bells[channel].append(bell)

    def is_heard(self, channel: str) -> bool:
        """Return True if a process listens to a channel, this one included. Runs inside the transaction."""
        if self.topology is None or self._heard.get(channel, (None, False))[0] != self.topology:
            rows = self._connection.execute(self._queries["listener_any"], (channel,)).fetchall()
            self._heard[channel] = (self.topology, bool(rows))
        return self._heard[channel][1]

    def ring(self, channels: Sequence[str]) -> bool:
        """Ring the other processes that listen; return False if some must be rung again. A ring may be lost: processes
        also check with each heartbeat."""
        bells: dict[str, set[str]] = {}
        for channel in channels:
            for bell in self._bells.get(channel.partition("#")[0], ()):
                bells.setdefault(bell, set()).add(channel)
        for bell, rung in bells.items():
            if bell in self._missed:
                self._missed[bell] |= rung
            elif not self._send(bell, rung):
                self._missed[bell] = rung
        return not self._missed

    def ring_again(self) -> bool:
        """Ring the doorbells whose queue was full. Return False if some must be rung yet again."""
        self._missed = {bell: channels for bell, channels in self._missed.items() if not self._send(bell, channels)}
        return not self._missed

    @cached_property
    def _socket(self) -> socket:
        """The socket, opened for the first ring."""
        return _new_socket()

    def _send(self, bell: str, channels: set[str]) -> bool:
        try:
            sender = self._socket
        except OSError:
            # Usually no descriptor is left: ring again later.
            return False
        try:
            sender.sendto(_message(channels), bell)
        except BlockingIOError:
            return False
        except OSError:
            # The process is gone; another one will mark it dead.
            return True
        return True

    def close(self) -> None:
        self._missed.clear()
        if "_socket" in self.__dict__:
            self._socket.close()
