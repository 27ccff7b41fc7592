"""Safety in forks and signal handlers: a forked child must not use its parent's locks and sockets, and a handler must
not interrupt code that holds something."""

from __future__ import annotations

import os
import signal
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

from agentbus.errors import BusForked

if TYPE_CHECKING:
    from typing import Protocol

    class Forgets(Protocol):
        """An object with a descriptor that a forked child must close."""

        def forget(self) -> None: ...


File = tuple[int, int]
"""A file by its device and inode."""

_held: weakref.WeakSet[Forgets] = weakref.WeakSet()
_open: Counter[File] = Counter()
"""Number of connections by file: databases, their logs and their shared memory."""
_paths: weakref.WeakKeyDictionary[OpenDatabase, str] = weakref.WeakKeyDictionary()
"""Database paths by connection, from before it is opened until it is closed."""
_inherited: set[File] = set()
generation = 0
"""Number of forks between the first process of the program and this one."""


def forget_in_child(holder: Forgets) -> None:
    _held.add(holder)


def register_open_files(*files: File) -> None:
    """Count a connection of this process that keeps these files open."""
    _open.update(files)


def unregister_open_files(*files: File) -> None:
    _open.subtract(files)


class OpenDatabase:
    """A connection of this process to the database at ``path``, registered before it is opened: another thread may
    fork in the meantime."""

    def __init__(self, path: str) -> None:
        _paths[self] = path

    def close(self) -> None:
        _paths.pop(self, None)


def is_open(file: File) -> bool:
    """Return True if SQLite has the file open in this process. Closing it outside SQLite would drop SQLite's locks."""
    return _open[file] > 0


def is_inherited(database: File) -> bool:
    """Return True if the parent had the database open when this process was forked.

    SQLite then assumes that this process holds the parent's locks: a new connection would take none, and its commits
    could vanish at another process's checkpoint.
    """
    return database in _inherited


class Owner:
    """The process that opened a bus. A forked child cannot use the bus."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.generation = generation

    @property
    def is_current(self) -> bool:
        return generation == self.generation

    def check(self) -> None:
        if generation != self.generation:
            raise BusForked(parent=self.pid)


def _after_fork() -> None:
    global generation  # noqa: PLW0603
    generation += 1
    _inherited.update(file for file, connections in _open.items() if connections > 0)
    for path in set(_paths.values()):
        with suppress(OSError):
            found = os.stat(path)
            _inherited.add((found.st_dev, found.st_ino))
    for holder in list(_held):
        holder.forget()


os.register_at_fork(after_in_child=_after_fork)


_INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block interrupting signals within the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def signals_deferred(stop: Callable[[], object]) -> Iterator[None]:
    """Deliver signals after the block, which ``stop`` is asked to end: an exception raised by a handler inside a driver
    written in C has crashed the process."""
    received: list[int] = []

    def receive(number: int, frame: FrameType | None) -> None:
        received.append(number)
        stop()

    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: handler for number in _INTERRUPTING if callable(handler := signal.getsignal(number))}
    try:
        for number in before:
            signal.signal(number, receive)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for deferred in received:
            signal.raise_signal(deferred)
