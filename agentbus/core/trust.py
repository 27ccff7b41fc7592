"""Servers and directories that the user has accepted, in ``~/.config/agentbus/trusted``.

Each line is a kind and a value: ``host db.example.org:5432``, ``home /srv/project/.agentbus``. A repository cannot
write this file, so a server or directory that a repository names is used only after the user accepted it once.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from typing import Literal, TypeAlias

from agentbus.errors import InvalidInput, NotWritable

Kind: TypeAlias = Literal["host", "home"]
KINDS: tuple[Kind, ...] = ("host", "home")
VARIABLE = "AGENTBUS_TRUST"
"""The environment variable that names accepted directories, as PATH does; ``*`` stands for all."""
_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_MAX_BYTES = 1024 * 1024
"""Bytes of the file that are read."""


def path() -> str:
    """Return the path of the user's file."""
    config = os.environ.get("XDG_CONFIG_HOME", "")
    # As the XDG specification says: a relative path, which would depend on where the user is, is ignored.
    folder = config if os.path.isabs(config) else os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(folder, "agentbus", "trusted")


def is_trusted(kind: Kind, value: str) -> bool:
    """Return True if the user has accepted this server or directory."""
    try:
        return (kind, value) in entries()
    except NotWritable:
        return False


def is_trusted_home(directory: str | os.PathLike[str]) -> bool:
    """Return True if the user has accepted this directory or one above it, in the file or in ``AGENTBUS_TRUST``."""
    real = os.path.realpath(directory)
    named = [one if one == "*" else os.path.realpath(one) for one in os.environ.get(VARIABLE, "").split(":") if one]
    with suppress(NotWritable):
        named += [value for kind, value in entries() if kind == "home"]
    return any(one in {"*", real} or real.startswith(f"{one.rstrip('/')}/") for one in named)


def entries() -> list[tuple[Kind, str]]:
    """Return everything that the user has accepted, in the order in which that was done."""
    found: dict[tuple[Kind, str], None] = {}
    for line in _read().splitlines():
        kind, _, value = line.partition(" ")
        for known in KINDS:
            if kind == known and value:
                found[known, value] = None
    return list(found)


def trust(kind: Kind, value: str) -> None:
    """Accept a server or a directory."""
    if not value or not value.isprintable():
        raise InvalidInput(reason=f"{value!r} cannot be accepted: it has characters that cannot be stored on a line")
    text = _read()
    if (kind, value) in entries():
        return
    file = path()
    try:
        os.makedirs(os.path.dirname(file), mode=0o700, exist_ok=True)
        # One write at the end of the file: two processes that accept something at once both succeed.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(file, flags, 0o600)
        try:
            ended = not text or text.endswith("\n")
            os.write(descriptor, f"{'' if ended else chr(10)}{kind} {value}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise NotWritable(path=file, reason=error.strerror or str(error)) from None


def distrust(kind: Kind, value: str) -> bool:
    """Remove a server or a directory from the accepted ones. Return False if it was none of them."""
    import tempfile

    lines = _read().splitlines(keepends=True)
    left = [line for line in lines if line.rstrip("\n") != f"{kind} {value}"]
    if len(left) == len(lines):
        return False
    file = os.path.realpath(path())
    new: str | None = None
    try:
        # mkstemp makes the file for this user only.
        descriptor, new = tempfile.mkstemp(prefix=".trusted-", dir=os.path.dirname(file))
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as out:
            out.writelines(left)
            out.flush()
            os.fsync(out.fileno())
        os.replace(new, file)
    except OSError as error:
        if new is not None:
            with suppress(OSError):
                os.unlink(new)
        raise NotWritable(path=file, reason=error.strerror or str(error)) from None
    return True


def _read() -> str:
    """Return the text of the file. Refuse one that another user can write."""
    file = path()
    try:
        # Should it be a pipe, opening it must not wait for a writer.
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise NotWritable(path=file, reason=error.strerror or str(error)) from None
    with open(descriptor, "rb") as source:
        found = os.fstat(source.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()) or found.st_mode & _OTHERS:
            raise NotWritable(path=file, reason="it is not a regular file that only this user can write")
        return source.read(_MAX_BYTES).decode("utf-8", "surrogateescape")
