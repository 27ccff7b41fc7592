"""Ballast: room on the disk that is given up when there is no other, so that a full bus can still be cleaned up.

A file of 4 MiB beside the database. When something that does not make the bus larger (a process that opens it, a
claim, an acknowledgement, a purge, retention) finds the disk full, the file is made empty, and that is tried again. As
long as it is empty and the disk is as full as that, nothing that makes the bus larger is taken: the room is for the
others. Once there is room again, it is filled again.
"""

from __future__ import annotations

import os
from contextlib import suppress

from agentbus.errors import AgentBusError
from agentbus.safe_files import open_file

SIZE = 4 * 1024 * 1024
_PLENTY = 16 * SIZE
"""Bytes that must be free for a file to be made at all: a small disk has none to spare."""
_NAME = "bus.ballast"


def load(directory: str) -> None:
    """Have the file, if there is plenty of room for it."""
    path = f"{directory}/{_NAME}"
    try:
        if os.lstat(path).st_size:
            return
    except OSError:
        pass
    if (free := _free(directory)) is not None and free >= _PLENTY:
        _fill(path)


def release(directory: str) -> bool:
    """Give the room up; whether there was any."""
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
    """Whether the room was given up, and is still needed for cleaning up. Where it is not, it is taken back."""
    path = f"{directory}/{_NAME}"
    try:
        if os.lstat(path).st_size:
            return False
    except OSError:
        # There never was any.
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
