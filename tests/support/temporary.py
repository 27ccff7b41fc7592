"""Temporary files of the tests: in memory where there is room, since most tests need no disk and an fsync costs time.

A test whose property is that of a disk asks for the fixture ``disk``. ``TMPDIR`` chooses the directory instead.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ROOM = 2 * 1024**3
"""Bytes that have to be free in memory: a run needs about a quarter of it."""
_DISK = tempfile.gettempdir()


def use_memory() -> None:
    """Make the file system in memory the place of temporary files, here and in child processes."""
    if "TMPDIR" in os.environ or not os.access(_MEMORY, os.W_OK | os.X_OK):
        return
    if shutil.disk_usage(_MEMORY).free >= _ROOM:
        os.environ["TMPDIR"] = str(_MEMORY)
        tempfile.tempdir = None


def disk() -> str:
    """Return the directory that temporary files would have had."""
    return _DISK
