"""Writing a value to a JSON file that is handed on: the whole file, or nothing of it.

Nothing here is asynchronous: callers with an event loop use a thread.
"""

from __future__ import annotations

import errno
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from agentbus.disk import refusal, sync
from agentbus.errors import InvalidInput


def check_target(path: str | os.PathLike[str]) -> Path:
    """Where to write."""
    try:
        target = Path(os.fsdecode(path))
        encoded = os.fsencode(target)
    except (TypeError, ValueError):
        encoded = b"\0"
    if b"\0" in encoded:
        raise InvalidInput(reason=f"{path!r:.80} is not a path")
    return target


def write_json(target: Path, value: Any) -> None:
    """A new file, for its owner only, takes the old one's place once it is on the disk. An error leaves the old one.

    Some directories cannot be synced, for want of permission or of support; the new file's contents are on the disk all
    the same, and after a power cut there is the new file or the old one.
    """
    text = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    temporary = None
    try:
        if target.is_dir() and not target.is_symlink():
            raise IsADirectoryError(errno.EISDIR, "it is a directory; name a file in it")
        # Beside the target, because a rename works within a file system only; 0600 from the start.
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name[:20]}.", dir=target.parent)
        with open(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        raise refusal(target, error) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
    with suppress(OSError):
        sync(target.parent)
