"""Files that must outlive a power cut: paths, private directories, names with a time in them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from agentbus.errors import AgentBusError, DiskFull, InvalidInput, NoSuchFile, NotWritable, TooManyFiles
from agentbus.safe_files import check_directory

DATABASE = "bus.db"
"""The file that makes a directory the home of a bus."""
EXPORTING = ".agentbus-export-"
"""How the name of an export begins until it is finished."""
BESIDE = ("-journal", "-wal", "-shm")
"""How the names of the files end that SQLite keeps beside a database."""


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


def require_file(path: Path) -> os.stat_result:
    """What is known of a file that shall be read; an error if it is not there."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchFile(path=str(path), reason="there is no such file") from None
    if stat.S_ISDIR(found.st_mode):
        raise NoSuchFile(path=str(path), reason="that is a directory")
    return found


def stamp(wall: int) -> str:
    """A wall time as a part of a file's name: names in their order are times in theirs.

    >>> stamp(1_700_000_000_123)
    '20231114T221320.123Z'
    """
    return f"{datetime.fromtimestamp(wall // 1000, UTC):%Y%m%dT%H%M%S}.{wall % 1000:03}Z"


def make_private(directory: Path) -> None:
    """A directory for this user only, whose name is on the disk; with those above it that are missing. What is in its
    place and is no such directory is refused."""
    if not directory.parent.exists():
        make_private(directory.parent)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        check_directory(str(directory))
        return
    sync(directory.parent)


def misplaced(target: Path, home: Path, allowed: Path) -> str | None:
    """Why a new file of ours must not be there: beside a database it could be taken for a part of it. Of the folders of
    a bus, only the one that is meant for such files is ``allowed``."""
    folder = target.parent
    if not folder.is_dir():
        return "there is no such directory"
    inside = folder.resolve()
    if inside != allowed.resolve() and (
        inside.is_relative_to(home.resolve()) or os.path.lexists(folder / DATABASE)
    ):  # fmt: skip
        return "it would be among the files of a bus; choose another directory"
    if target.name.endswith(BESIDE):
        return f"SQLite takes files that end in {', '.join(BESIDE)} for its own"
    return "there is something of this name already" if os.path.lexists(target) else None


def make_held(path: Path) -> int:
    """A new file for this user only, to be appended to. It is held as long as it is open: what nobody holds was left
    behind, see ``sweep``."""
    import fcntl

    while True:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with suppress(OSError):
                # Not every file system can. Nothing is swept there either.
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                return file
        except BaseException:
            os.close(file)
            raise
        # Swept in the moment before it was held.
        os.close(file)


def sweep(directory: Path, pattern: str) -> None:
    """Remove the files of these names that were left behind by somebody who was killed: those that nobody holds."""
    try:
        found = list(directory.glob(pattern))
    except OSError:
        # Tidying can wait: what is to be written says why it cannot.
        return
    for path in found:
        with _taken(path) as ours, suppress(OSError):
            if ours:
                path.unlink()


def left_behind(directory: Path, pattern: str) -> list[Path]:
    """What ``sweep`` would remove."""
    found: list[Path] = []
    for path in sorted(directory.glob(pattern)):
        with _taken(path) as ours:
            found += [path] * ours
    return found


@contextmanager
def _taken(path: Path) -> Iterator[bool]:
    """Hold a file, if nobody else does."""
    import fcntl

    try:
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            ours = True
        except OSError:
            ours = False
        yield ours
    finally:
        os.close(file)


def give_name(file: Path, target: Path) -> None:
    """The file is at its place, and on the disk, when this returns. What is there already is never replaced: that
    raises FileExistsError."""
    try:
        os.link(file, target)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}:
            raise
        # A file system without hard links.
        os.rename(file, target)
    sync(target.parent)


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
    reason = error.strerror or str(error)
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return TooManyFiles(path=str(path), reason=reason)
    return NotWritable(path=str(path), reason=reason)
