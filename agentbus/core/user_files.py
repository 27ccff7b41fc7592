"""Files of the user's own settings, in ``$XDG_CONFIG_HOME/agentbus``. No repository and no bus can write them."""

from __future__ import annotations

import os
import stat
from shlex import quote

from agentbus.core import trust
from agentbus.errors import InvalidSettings

_MAX_BYTES = 1024 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_WRITERS = stat.S_IWGRP | stat.S_IWOTH


def path(name: str) -> str:
    """Return the path of a file of the user."""
    return os.path.join(os.path.dirname(trust.path()), name)


def version(file: str) -> tuple[int, ...] | None:
    """Return a value that changes when the file does; None if there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def read_private(file: str) -> str | None:
    """Return the text of a file that may have secrets; None if there is none. Raise InvalidSettings if another user
    owns it, can read or write it, or can write its directory."""
    try:
        # Should it be a pipe, opening it must not wait for a writer.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InvalidSettings(path=file, reason=error.strerror or str(error), advice="make it readable") from None
    try:
        _check(file, os.fstat(descriptor))
        _check_directory(file)
    except BaseException:
        os.close(descriptor)
        raise
    with open(descriptor, "rb") as source:
        content = source.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise InvalidSettings(path=file, reason="it is larger than 1 MiB", advice="shorten it")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidSettings(path=file, reason="it is not UTF-8", advice="convert it") from None


def _check(file: str, found: os.stat_result) -> None:
    """Refuse a file that is not private to the user."""
    if not stat.S_ISREG(found.st_mode):
        raise InvalidSettings(path=file, reason="it is not a regular file", advice="replace it by one")
    _check_owner(file, found)
    if found.st_mode & _OTHERS:
        reason = f"its mode is {stat.S_IMODE(found.st_mode):04o}: other users can read or write it"
        raise InvalidSettings(path=file, reason=reason, advice=f"check its content, then chmod 600 {quote(file)}")


def _check_directory(file: str) -> None:
    """Refuse a directory in which others can replace the file, with another file of the user for instance."""
    directory = os.path.dirname(file)
    try:
        found = os.stat(directory)
    except OSError as error:
        raise InvalidSettings(path=directory, reason=error.strerror or str(error), advice="make it readable") from None
    _check_owner(directory, found)
    if found.st_mode & _WRITERS:
        reason = f"its mode is {stat.S_IMODE(found.st_mode):04o}: other users can replace files in it"
        advice = f"check its files, then chmod go-w {quote(directory)}"
        raise InvalidSettings(path=directory, reason=reason, advice=advice)


def _check_owner(file: str, found: os.stat_result) -> None:
    if found.st_uid not in (0, os.geteuid()):
        advice = "check where it comes from, move it away, and write your own"
        raise InvalidSettings(path=file, reason=f"it belongs to another user (uid {found.st_uid})", advice=advice)
