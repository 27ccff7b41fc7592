"""The files that a bus may use: of the caller or of a user that the caller trusts, and never reached through a link.

A repository that was cloned can have an ``.agentbus/`` with symbolic links in it, and another user can leave one above
the working directory. Every directory and file of a bus is checked here before it is written to or read.

What SQLite opens by itself is checked before. Between the check and the opening only a user who can write to the
directory could put a link in its place: a cloned repository does not change by itself, and a directory that another
user owns or can write to is refused. A caller who trusts such a directory trusts those users.
"""

from __future__ import annotations

import errno
import os
import stat

from agentbus.errors import TooManyFiles, UnsafeFile, UntrustedHome
from agentbus.trust import is_trusted_home

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_NO_REGULAR_FILE = {errno.ENXIO, errno.EISDIR, errno.ENODEV, errno.EOPNOTSUPP}
_LINK, _NO_FILE = "it is a symbolic link", "it is not a regular file"
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def check_home(path: str) -> None:
    """Refuse the directory of a bus that another user owns or can write to, unless this user trusts it.

    A URL may lead through a symbolic link to it: the caller named it.
    """
    found = os.stat(path)
    reason = doubt(found)
    if reason is not None and not is_trusted_home(path):
        from shlex import quote

        command = f"agentbus trust {quote(os.path.realpath(path))}"
        if is_own(found.st_uid):
            command = f"chmod go-w {quote(path)}; or, if you trust those users: {command}"
        else:
            command = f"if you trust that user: {command}"
        raise UntrustedHome(path=path, reason=reason, command=command)


def check_directory(path: str) -> None:
    """Refuse a link in the place of a directory of a bus, and a directory that is not this user's alone."""
    try:
        found = os.lstat(path)
    except OSError:
        # Missing, or out of reach: the caller learns that from its own call.
        return
    if stat.S_ISLNK(found.st_mode):
        raise UnsafeFile(path=path, reason=_LINK)
    # A file that is in its way does no harm: no directory can be made there.
    reason = doubt(found) if stat.S_ISDIR(found.st_mode) else None
    if reason is not None and not is_trusted_home(path):
        raise UnsafeFile(path=path, reason=reason)


def check_file(path: str, *, links: int = 1) -> None:
    """Refuse what is in the place of a file of a bus, unless it is a safe one with at most ``links`` names. It may be
    missing. Nothing is opened: closing a database that SQLite has open would drop its locks."""
    try:
        found = os.lstat(path)
    except OSError:
        return
    _check(path, found, links)


def open_file(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file of a bus, and refuse one that is not safe. Not for a database, see ``check_file``."""
    name = os.fspath(path)
    try:
        descriptor = os.open(name, flags | _FLAGS, 0o600)
    except OSError as error:
        # Some systems say EMLINK or EFTYPE where others say ELOOP.
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
    if not is_own(found.st_uid) and not is_trusted_home(path):
        raise UnsafeFile(path=path, reason=f"it belongs to {_user(found.st_uid)}")


def doubt(found: os.stat_result) -> str | None:
    """Why a directory is not one of this user alone, if it is not."""
    if not is_own(found.st_uid):
        return f"it belongs to {_user(found.st_uid)}"
    if found.st_mode & _OTHERS_WRITE:
        return f"other users can write to it (mode {stat.S_IMODE(found.st_mode):04o})"
    return None


def is_own(uid: int) -> bool:
    """Return True for this user, and for the one for whom sudo made this root: as Git decides it."""
    me = os.geteuid()
    return uid == me or (me == 0 and str(uid) == os.environ.get("SUDO_UID"))


def _user(uid: int) -> str:
    import pwd

    try:
        return f"{pwd.getpwuid(uid).pw_name} (user {uid})"
    except KeyError:
        return f"user {uid}"
