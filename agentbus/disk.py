"""Files that must outlive a power cut: paths, private directories, names with a time in them."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

from agentbus.errors import AgentBusError, DiskFull, InvalidInput, NotWritable


def check_path(path: object) -> Path:
    """A path of the caller's, as an absolute one."""
    try:
        text = os.fspath(path)  # type: ignore[call-overload]
        if not isinstance(text, str) or "\0" in text or not text:
            raise InvalidInput(reason=f"{path!r:.80} is not a path")
        os.fsencode(text)
        return Path(text).expanduser().absolute()
    except (TypeError, UnicodeError, RuntimeError, OSError):
        raise InvalidInput(reason=f"{path!r:.80} is not a path") from None


def stamp(wall: int) -> str:
    """A wall time as a part of a file's name: names in their order are times in theirs.

    >>> stamp(1_700_000_000_123)
    '20231114T221320.123Z'
    """
    return f"{datetime.fromtimestamp(wall // 1000, UTC):%Y%m%dT%H%M%S}.{wall % 1000:03}Z"


def make_private(directory: Path) -> None:
    """A directory for this user only, whose name is on the disk; with those above it that are missing."""
    if not directory.parent.exists():
        make_private(directory.parent)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        return
    sync(directory.parent)


def sync(path: Path) -> None:
    """What a file or directory has is on the disk when this returns. Not for a database that is open in this
    process."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refusal(path: Path, error: OSError) -> AgentBusError:
    """What the system said, in the bus's words."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFull(path=str(path))
    return NotWritable(path=str(path), reason=error.strerror or str(error))
