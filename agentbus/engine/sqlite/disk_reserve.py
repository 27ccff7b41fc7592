"""The disk reserve: space that is released when the disk is full, so that a full bus can still be cleaned up.

A file of 4 MiB next to the database. When a call that stores no data (an open, a claim, an acknowledgement, a purge,
retention) finds the disk full, the file is truncated and the call retried. While the file is empty and the disk that
full, calls that store data are refused: the space is for the others. Once there is room again, the file is refilled.
"""

from __future__ import annotations

import os
from contextlib import suppress

from agentbus.core.files import open_file
from agentbus.errors import AgentBusError

SIZE = 4 * 1024 * 1024
_MIN_FREE = 16 * SIZE
"""Bytes that must be free for the file to be created: a small disk has none to spare."""
_NAME = "bus.ballast"


def load(directory: str) -> None:
    """Create or refill the file, if there is enough room."""
    path = f"{directory}/{_NAME}"
    try:
        if os.lstat(path).st_size:
            return
    except OSError:
        pass
    if not is_scarce(directory):
        _fill(path)


def is_scarce(directory: str) -> bool:
    """Return True if the disk has too little room to spare any, or that is unknown."""
    free = _free(directory)
    return free is None or free < _MIN_FREE


def release(directory: str) -> bool:
    """Release the space; return True if there was any."""
    path = f"{directory}/{_NAME}"
    try:
        if not os.lstat(path).st_size:
            return False
        file = open_file(path, os.O_WRONLY)
        try:
            os.ftruncate(file, 0)
        finally:
            os.close(file)
    except (OSError, AgentBusError):
        return False
    return True


def is_needed(directory: str) -> bool:
    """Return True if the space was released and is still needed. If it is not, refill the file."""
    path = f"{directory}/{_NAME}"
    try:
        if os.lstat(path).st_size:
            return False
    except OSError:
        # There is no reserve.
        return False
    free = _free(directory)
    if free is None or free >= 2 * SIZE:
        _fill(path)
        return False
    return free < SIZE


def _free(directory: str) -> int | None:
    try:
        found = os.statvfs(directory)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def _fill(path: str) -> None:
    with suppress(OSError, AgentBusError):
        file = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, SIZE)
            else:
                os.pwrite(file, bytes(SIZE), 0)
        except OSError:
            os.ftruncate(file, 0)
        finally:
            os.close(file)
