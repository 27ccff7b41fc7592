"""Files of other programs: read with limits, replaced in one step, locked among runs of this command, and backed up."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from agentbus.errors import AgentBusError

MAX_BYTES = 32 * 1024 * 1024
"""Size of a configuration file that is edited."""
SUFFIX = ".agentbus-backup"
_ATTEMPTS = 5


class SetupRefused(AgentBusError):
    """A configuration file of a client is left as it is: an edit could damage it, or is not allowed."""

    code = "setup_refused"
    text = "{path} {reason}"
    fix_text = "{advice}"


class Snapshot(msgspec.Struct, frozen=True):
    """A file as it was read. ``text`` is None if there is none."""

    path: str
    """The file as it is named."""
    real: str
    """The file that its links lead to."""
    text: str | None
    mode: int | None = None
    owner: tuple[int, int] | None = None


def read(path: str, *, within: str | None = None) -> Snapshot:
    """Read a file. ``within``: refuse links that lead out of this directory."""
    real = os.path.realpath(path)
    if within is not None and os.path.commonpath([os.path.realpath(within), real]) != os.path.realpath(within):
        raise SetupRefused(path=path, reason=f"is a link that leads out of the project, to {real}",
                           advice="remove the link, or pass --user")  # fmt: skip
    try:
        found = os.stat(real)
        if not stat.S_ISREG(found.st_mode):
            raise SetupRefused(path=path, reason="is not a file", advice="move it away")
        if found.st_size > MAX_BYTES:
            raise SetupRefused(path=path, reason=f"has {found.st_size} bytes; at most {MAX_BYTES} are edited",
                               advice="reduce it; agentbus edits no larger files")  # fmt: skip
        with open(real, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return Snapshot(path, real, None)
    except OSError as error:
        raise _refused(path, error) from None
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise SetupRefused(path=path, reason=f"is not UTF-8: byte {error.start}", advice="convert it") from None
    return Snapshot(path, real, text, stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid))


def change(
    path: str, edit: Callable[[Snapshot], str | None], *, within: str | None = None, private: bool = False
) -> tuple[Snapshot, str | None]:
    """Replace a file by its edited text; None deletes it. Return what it was, and what it is.

    The edit runs under a lock among runs of this command. If another program writes the file in the meantime, it runs
    again on the new text. ``private``: a new file is readable by its owner only.
    """
    folder = os.path.dirname(os.path.realpath(path))
    try:
        with _locked(folder, private=private):
            for _ in range(_ATTEMPTS):
                before = read(path, within=within)
                after = edit(before)
                if after == before.text or _store(before, after, private=private):
                    return before, after
    except OSError as error:
        raise _refused(path, error) from None
    raise SetupRefused(
        path=path, reason="is being changed by another program", advice="close the client, and run it again"
    )


def require_writable(found: Snapshot) -> None:
    """Refuse a file that is marked read-only, or that this user may not write. Its directory would still allow to
    replace it."""
    if found.mode is not None and not found.mode & 0o222:
        raise SetupRefused(path=found.path, reason="is read-only", advice=f"chmod u+w {found.real}")
    if found.owner is not None and not os.access(found.real, os.W_OK):
        raise SetupRefused(path=found.path, reason=f"belongs to user {found.owner[0]}, who lets no other write to it",
                           advice="check its owner and its permissions")  # fmt: skip


def backups(found: Snapshot) -> list[str]:
    """Return the backups of a file, oldest first."""
    names = [f"{found.real}{SUFFIX}"]
    while os.path.lexists(names[-1]):
        names.append(f"{found.real}{SUFFIX}-{len(names) + 1}")
    return names[:-1]


def back_up(found: Snapshot) -> str:
    """Copy a file in its directory, and return the name of the copy. An earlier copy is never overwritten."""
    earlier = backups(found)
    if earlier and read(earlier[-1]).text == found.text:
        return earlier[-1]
    path = f"{found.real}{SUFFIX}" + (f"-{len(earlier) + 1}" if earlier else "")
    _create(path, found.text or "", found.mode or 0o600)
    return path


def delete_quietly(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def remove_empty_folders(path: str, *, until: str) -> None:
    """Remove the directories of a deleted file that are empty now, below another directory."""
    folder = os.path.dirname(path)
    while folder.startswith(f"{until}/"):
        try:
            os.rmdir(folder)
        except OSError:
            return
        folder = os.path.dirname(folder)


def _store(before: Snapshot, after: str | None, *, private: bool) -> bool:
    """Replace the file. Return False if another program has changed it since it was read."""
    if after is None:
        if read(before.path).text != before.text:
            return False
        os.unlink(before.real)
        return True
    folder, name = os.path.split(before.real)
    temporary = f"{folder}/.{name}.agentbus-tmp"
    # A leftover of a run that was killed: runs do not overlap.
    delete_quietly(temporary)
    try:
        _create(temporary, after, before.mode if before.mode is not None else 0o600 if private else 0o644)
        if before.owner is not None:
            with suppress(PermissionError):
                os.chown(temporary, *before.owner)
        if read(before.path).text != before.text:
            return False
        os.replace(temporary, before.real)
    finally:
        delete_quietly(temporary)
    _sync_folder(folder)
    return True


def _create(path: str, text: str, mode: int) -> None:
    """Write a new file to disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(folder: str, *, private: bool) -> Iterator[None]:
    """Hold the lock of a directory, which is created if it is missing."""
    os.makedirs(folder, mode=0o700 if private else 0o777, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _refused(path: str, error: OSError) -> SetupRefused:
    reason = f"cannot be read or written: {error.strerror or error}"
    return SetupRefused(path=path, reason=reason, advice="check its permissions and those of its directory")
