"""Reading a folder of somebody else's: only plain files below it, none through a link, none that never ends.

Whatever cannot be read is said, and the others are read all the same. Everything here blocks: callers with an event
loop use a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from agentbus.aside import check_interruption
from agentbus.disk import DATABASE
from agentbus.errors import AgentBusError

MOST_FILES = 100_000
MOST_ENTRIES = 250_000
"""Of any kind: also what is left out takes memory and time."""
MOST_DEPTH = 32
MOST_BYTES = 16 * 1024 * 1024
"""Of one JSON file: no more than that fits into a checkpoint. Decoded it may take twenty times as much memory."""
NOT_OURS = frozenset({".git", ".hg", ".svn", "node_modules", ".venv", "venv", "__pycache__", ".mypy_cache", ".tox"})
# Should it be a pipe after all, opening it must not wait for somebody to write.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHUNK = 1024 * 1024

Holds = Callable[[int, int], bool]


class Unreadable(AgentBusError):
    """Why a file or folder is left out. No caller sees it: it becomes a line of the report."""

    code = "unreadable"


class Entry(msgspec.Struct, frozen=True):
    """A file to be looked at: its path below the root (with what is not Unicode escaped), and its size."""

    name: str
    path: Path
    size: int


class Contents(msgspec.Struct, frozen=True):
    """What a file had, and when it was last written (wall milliseconds)."""

    data: bytes
    modified: int


def entries(root: Path, holds: Holds) -> Iterator[Entry | tuple[str, str]]:
    """The files below a folder in the order of their names; or a name and the reason why it is left out."""
    count = 0
    left = MOST_ENTRIES
    waiting = [(root, 0)]
    while waiting:
        folder, depth = waiting.pop()
        found, problem = _listed(folder, left)
        if problem is not None:
            yield shown(folder, root), problem
            continue
        if any(entry.name == DATABASE for entry in found):
            yield shown(folder, root), "it is the home of a bus: export that bus, and import what it writes"
            continue
        left -= len(found)
        inner: list[tuple[Path, int]] = []
        for entry in found:
            check_interruption()
            path = folder / entry.name
            name = shown(path, root)
            look = _look(entry, holds)
            if isinstance(look, str):
                yield name, look
            elif look is None:
                if entry.name in NOT_OURS or depth >= MOST_DEPTH:
                    yield name, "it is too deep" if depth >= MOST_DEPTH else "this folder is not looked into"
                else:
                    inner.append((path, depth + 1))
            else:
                count += 1
                if count > MOST_FILES:
                    yield "", f"there are more than {MOST_FILES} files; import its folders one by one"
                    return
                yield Entry(name, path, look)
        waiting += reversed(inner)


def shown(path: Path, root: Path) -> str:
    """A path as it is reported: below the root, valid Unicode."""
    relative = os.fsencode(path.relative_to(root)).decode("utf-8", "backslashreplace") if path != root else ""
    return relative.replace("\0", "\\0")


@contextmanager
def opened(path: Path, holds: Holds) -> Iterator[int]:
    """A plain file, never one of an open bus: closing that would drop the locks that SQLite has on it."""
    try:
        found = os.stat(path, follow_symlinks=False)
        if holds(found.st_dev, found.st_ino):
            raise Unreadable(reason="it is part of a bus that is open")
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable(reason="it is not a plain file")
        file = os.open(path, _FLAGS)
    except (OSError, ValueError) as error:
        raise Unreadable(reason=_reason(error)) from None
    there = os.fstat(file)
    if holds(there.st_dev, there.st_ino):
        # Swapped since we looked. Not closed, not ever.
        raise Unreadable(reason="it is part of a bus that is open")
    try:
        if not stat.S_ISREG(there.st_mode):
            raise Unreadable(reason="it is not a plain file")
        yield file
    except OSError as error:
        raise Unreadable(reason=_reason(error)) from None
    finally:
        os.close(file)


def beginning(path: Path, holds: Holds, size: int = 16) -> bytes:
    """The first bytes of a file, which say what it is."""
    with opened(path, holds) as file:
        return os.read(file, size)


def read(path: Path, holds: Holds) -> Contents:
    """All of a file, as it was at one moment."""
    with opened(path, holds) as file:
        before = os.fstat(file)
        if before.st_size > MOST_BYTES:
            raise Unreadable(reason=f"it has {before.st_size} bytes, more than {MOST_BYTES} are not read")
        parts: list[bytes] = []
        size = 0
        while part := os.read(file, _CHUNK):
            parts.append(part)
            size += len(part)
            if size > MOST_BYTES:
                break
        after = os.fstat(file)
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns) or size != after.st_size:
            raise Unreadable(reason="it changed while it was read; import it again")
    return Contents(b"".join(parts), after.st_mtime_ns // 1_000_000)


def _listed(folder: Path, most: int) -> tuple[list[os.DirEntry[str]], str | None]:
    """List a folder by name, or say why not: nothing is taken of one that has more than ``most`` entries, as it would
    be chance which."""
    listed: list[os.DirEntry[str]] = []
    try:
        with os.scandir(folder) as found:
            for entry in found:
                check_interruption()
                if len(listed) == most:
                    return (
                        [],
                        f"there are more than {MOST_ENTRIES} files and folders; import smaller folders one by one",
                    )
                listed.append(entry)
    except OSError as error:
        return [], _reason(error)
    return sorted(listed, key=lambda entry: entry.name), None


def _look(entry: os.DirEntry[str], holds: Holds) -> int | str | None:
    """The size of a file, None for a folder, or why it is neither."""
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError as error:
        return _reason(error)
    if stat.S_ISLNK(found.st_mode):
        return "it is a link, and links are not followed"
    if stat.S_ISDIR(found.st_mode):
        return None
    if not stat.S_ISREG(found.st_mode):
        return "it is not a plain file"
    return "it is part of a bus that is open" if holds(found.st_dev, found.st_ino) else found.st_size


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
