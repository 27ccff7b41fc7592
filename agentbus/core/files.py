"""Safe and durable files: checks of ownership, links and permissions, private directories, atomic replacement.

A cloned repository may contain an ``.agentbus/`` with symbolic links, and another user may leave one above the working
directory. So every directory and file of a bus is checked before use: it belongs to the caller or a trusted user, and
is not reached through a link.

Files that SQLite opens itself are checked beforehand. Only a user who can write to the directory could replace them in
between: a cloned repository does not change by itself, and a directory that another user owns or can write to is
refused unless the caller trusts it.

Nothing here is asynchronous: callers with an event loop use a thread.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from agentbus.errors import (
    AgentBusError,
    DiskFull,
    InvalidInput,
    NoSuchFile,
    NotWritable,
    TooManyFiles,
    UnsafeFile,
    UntrustedHome,
)

if TYPE_CHECKING:
    from pathlib import Path

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_REGULAR_FILE = {errno.ENXIO, errno.EISDIR, errno.ENODEV, errno.EOPNOTSUPP}
_LINK, _NO_FILE = "it is a symbolic link", "it is not a regular file"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
DATABASE = "bus.db"
"""The file that makes a directory the home of a bus."""
EXPORT_PREFIX = ".agentbus-export-"
"""Prefix of the name of an unfinished export."""
SIDECAR_SUFFIXES = ("-journal", "-wal", "-shm")
"""Suffixes of the files that SQLite creates next to a database."""


def check_home(path: str) -> None:
    """Refuse the directory of a bus that another user owns or can write to, unless this user trusts it.

    A URL may name it through a symbolic link: the caller chose it.
    """
    found = os.stat(path)
    reason = ownership_problem(found)
    if reason is not None and not _is_trusted(path):
        from shlex import quote

        command = f"agentbus trust {quote(os.path.realpath(path))}"
        if is_own(found.st_uid):
            command = f"chmod go-w {quote(path)}; or, if you trust those users: {command}"
        else:
            command = f"if you trust that user: {command}"
        raise UntrustedHome(path=path, reason=reason, command=command)


def check_directory(path: str) -> None:
    """Refuse a link in place of a directory of a bus, and a directory that other users own or can write to."""
    try:
        found = os.lstat(path)
    except OSError:
        # Missing or inaccessible: the call of the caller reports that.
        return
    if stat.S_ISLNK(found.st_mode):
        raise UnsafeFile(path=path, reason=_LINK)
    # A file at this path is harmless: no directory can be created there.
    reason = ownership_problem(found) if stat.S_ISDIR(found.st_mode) else None
    if reason is not None and not _is_trusted(path):
        raise UnsafeFile(path=path, reason=reason)


def check_file(path: str, *, links: int = 1) -> None:
    """Refuse an unsafe file of a bus, or one with more than ``links`` names. It may be missing. The file is not opened:
    closing a database that SQLite has open would drop its locks."""
    try:
        found = os.lstat(path)
    except OSError:
        return
    _check(path, found, links)


def open_file(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file of a bus, refusing an unsafe one. Not for a database, see ``check_file``."""
    name = os.fspath(path)
    try:
        descriptor = os.open(name, flags | _FLAGS, 0o600)
    except OSError as error:
        # Some systems report EMLINK or EFTYPE where others report ELOOP.
        check_file(name)
        if error.errno in _NO_REGULAR_FILE:
            raise UnsafeFile(path=name, reason=_NO_FILE) from None
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise TooManyFiles(path=name, reason=error.strerror) from None
        raise
    try:
        _check(name, os.fstat(descriptor), 1)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check(path: str, found: os.stat_result, links: int) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFile(path=path, reason=_LINK if stat.S_ISLNK(found.st_mode) else _NO_FILE)
    if found.st_nlink > links:
        raise UnsafeFile(path=path, reason=f"it is a hard link: the same file has {found.st_nlink - 1} other names")
    if not is_own(found.st_uid) and not _is_trusted(path):
        raise UnsafeFile(path=path, reason=f"it belongs to {_user(found.st_uid)}")


def _is_trusted(path: str) -> bool:
    # Imported only here: most homes belong to the caller.
    from agentbus.core.trust import is_trusted_home

    return is_trusted_home(path)


def ownership_problem(found: os.stat_result) -> str | None:
    """Return the reason why a directory is not private to this user, or None."""
    if not is_own(found.st_uid):
        return f"it belongs to {_user(found.st_uid)}"
    if found.st_mode & _OTHERS_WRITE:
        return f"other users can write to it (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def is_own(uid: int) -> bool:
    """Return True for this user, and for the one who became root by sudo, as Git does."""
    me = os.geteuid()
    return uid == me or (me == 0 and str(uid) == os.environ.get("SUDO_UID"))


def _user(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (user {uid})"
    except KeyError:
        return f"user {uid}"


def check_path(path: object) -> Path:
    """Return a caller's path as an absolute one."""
    from pathlib import Path

    try:
        text = os.fspath(path)  # type: ignore[call-overload]
        if not isinstance(text, str) or "\0" in text or not text:
            raise InvalidInput(reason=f"{path!r:.80} is not a path")
        os.fsencode(text)
        return Path(text).expanduser().absolute()
    except (TypeError, UnicodeError, RuntimeError, OSError):
        raise InvalidInput(reason=f"{path!r:.80} is not a path") from None


def require_file(path: Path) -> os.stat_result:
    """Return the status of a file to be read; raise NoSuchFile if it is missing."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchFile(path=str(path), reason="there is no such file") from None
    if stat.S_ISDIR(found.st_mode):
        raise NoSuchFile(path=str(path), reason="that is a directory")
    return found


def timestamp(wall: int) -> str:
    """Format a wall time as part of a file name: names sort by time.

    >>> timestamp(1_700_000_000_123)
    '20231114T221320.123Z'
    """
    return f"{datetime.fromtimestamp(wall // 1000, UTC):%Y%m%dT%H%M%S}.{wall % 1000:03}Z"


def make_private_directory(directory: Path) -> None:
    """Create a durable directory for this user only, with missing parents. An unsafe one that exists is refused."""
    if not directory.parent.exists():
        make_private_directory(directory.parent)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        check_directory(str(directory))
        return
    sync(directory.parent)


def target_problem(target: Path, home: Path, allowed: Path) -> str | None:
    """Return the reason why a new file must not be created at ``target``, or None: next to a database it could be
    mistaken for a part of it. Of the directories of a bus only ``allowed`` may hold it."""
    folder = target.parent
    if not folder.is_dir():
        return "there is no such directory"
    inside = folder.resolve()
    if inside != allowed.resolve() and (
        inside.is_relative_to(home.resolve()) or os.path.lexists(folder / DATABASE)
    ):  # fmt: skip
        return "it would be among the files of a bus; choose another directory"
    if target.name.endswith(SIDECAR_SUFFIXES):
        return f"SQLite takes files that end in {', '.join(SIDECAR_SUFFIXES)} for its own"
    return "there is something of this name already" if os.path.lexists(target) else None


def create_locked(path: Path) -> int:
    """Create a file for this user only, opened for appending and locked. An unlocked one is abandoned, see
    ``remove_abandoned``."""
    import fcntl

    while True:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with suppress(OSError):
                # Some file systems have no locks. Nothing is removed there either.
                fcntl.flock(file, fcntl.LOCK_EX)
            if os.fstat(file).st_nlink:
                return file
        except BaseException:
            os.close(file)
            raise
        # Removed before it was locked.
        os.close(file)


def remove_abandoned(directory: Path, pattern: str) -> None:
    """Remove files matching the pattern that a killed process left behind: those that are not locked."""
    try:
        found = list(directory.glob(pattern))
    except OSError:
        # The write that follows reports the error.
        return
    for path in found:
        with _try_lock(path) as ours, suppress(OSError):
            if ours:
                path.unlink()


def find_abandoned(directory: Path, pattern: str) -> list[Path]:
    """Return the files that ``remove_abandoned`` would remove."""
    found: list[Path] = []
    for path in sorted(directory.glob(pattern)):
        with _try_lock(path) as ours:
            found += [path] * ours
    return found


@contextmanager
def _try_lock(path: Path) -> Iterator[bool]:
    """Lock a file; yield False if another process holds it."""
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


def publish(file: Path, target: Path) -> None:
    """Link the file to its final name, durably. Raise FileExistsError rather than replace an existing file."""
    try:
        os.link(file, target)
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS}:
            raise
        # A file system without hard links.
        os.rename(file, target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Flush a file or directory to disk. Not for a database that is open in this process."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_error(path: Path, error: OSError) -> AgentBusError:
    """Translate an OSError to an error of the bus."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return DiskFull(path=str(path))
    reason = error.strerror or str(error)
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return TooManyFiles(path=str(path), reason=reason)
    return NotWritable(path=str(path), reason=reason)


def check_target(path: str | os.PathLike[str]) -> Path:
    """Return the path to write to."""
    from pathlib import Path

    try:
        target = Path(os.fsdecode(path))
        encoded = os.fsencode(target)
    except (TypeError, ValueError):
        encoded = b"\0"
    if b"\0" in encoded:
        raise InvalidInput(reason=f"{path!r:.80} is not a path")
    return target


def write_json(target: Path, value: Any) -> None:
    """Replace a file by the JSON of a value, see ``replace_file``. The new file is private to its owner."""
    replace_file(target, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def replace_file(target: Path, content: bytes, mode: int = 0o600) -> None:
    """Replace a file atomically; an error leaves the old one. The files of a bus are refused.

    Some directories cannot be synced, for lack of permission or support. The contents are durable nevertheless, and
    after a power failure either the new file or the old one is found.
    """
    temporary = None
    try:
        if target.is_dir() and not target.is_symlink():
            raise IsADirectoryError(errno.EISDIR, "it is a directory; name a file in it")
        if os.path.lexists(target.parent / DATABASE):
            raise PermissionError(errno.EPERM, "it would be among the files of a bus; choose another directory")
        import tempfile

        # Next to the target: a rename works only within a file system. Mode 0600 from the start.
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name[:20]}.", dir=target.parent)
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if mode != 0o600:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, target)
        temporary = None
    except OSError as error:
        raise file_error(target, error) from error
    finally:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
    with suppress(OSError):
        sync(target.parent)
