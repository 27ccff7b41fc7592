"""Another process that holds the write lock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOLD = """
import sys
from pathlib import Path
from agentbus.engine.sqlite.lock import FileLock

lock = FileLock(Path(sys.argv[1]), 10)
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held_elsewhere(directory: Path) -> Iterator[int]:
    """Another process holds the lock for the length of the block; its pid."""
    command = [sys.executable, "-c", _HOLD, str(directory / "bus.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        try:
            yield holder.pid
        finally:
            holder.kill()
