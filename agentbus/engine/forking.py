"""What a forked child must let go of: the parent's locks and sockets are not its own."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from contextlib import suppress
from typing import Protocol

from agentbus.errors import BusForked


class Forgets(Protocol):
    """Something that holds a descriptor which a child must not keep open."""

    def forget(self) -> None: ...


File = tuple[int, int]
"""A file by its device and inode."""

_held: weakref.WeakSet[Forgets] = weakref.WeakSet()
_open: Counter[File] = Counter()
"""Databases, their logs and their shared memory, by the number of connections."""
_paths: weakref.WeakKeyDictionary[OpenDatabase, str] = weakref.WeakKeyDictionary()
"""Paths of databases by connection, from before it is opened until it is closed."""
_inherited: set[File] = set()
_generation = 0


def forget_in_child(holder: Forgets) -> None:
    _held.add(holder)


def opened(*files: File) -> None:
    """This process has a connection to a database from now on, which keeps these files open."""
    _open.update(files)


def closed(*files: File) -> None:
    _open.subtract(files)


class OpenDatabase:
    """A connection of this process to the database at ``path``, made before it is opened: another thread may fork
    while it is."""

    def __init__(self, path: str) -> None:
        _paths[self] = path

    def close(self) -> None:
        _paths.pop(self, None)


def is_open(file: File) -> bool:
    """Whether SQLite has the file open in this process. If anybody else closes it here, SQLite's locks are gone."""
    return _open[file] > 0


def is_inherited(database: File) -> bool:
    """Whether the parent had the database open when this process was forked.

    SQLite then believes that this process holds locks which are the parent's: a connection opened here takes none,
    and what it commits can vanish when somebody else checkpoints.
    """
    return database in _inherited


class Owner:
    """The process that opened a bus. In a child that it forked the bus is of no use."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._generation = _generation

    @property
    def is_here(self) -> bool:
        return _generation == self._generation

    def check(self) -> None:
        if _generation != self._generation:
            raise BusForked(parent=self.pid)


def _after_fork() -> None:
    global _generation  # noqa: PLW0603
    _generation += 1
    _inherited.update(file for file, connections in _open.items() if connections > 0)
    for path in set(_paths.values()):
        with suppress(OSError):
            found = os.stat(path)
            _inherited.add((found.st_dev, found.st_ino))
    for holder in list(_held):
        holder.forget()


os.register_at_fork(after_in_child=_after_fork)
