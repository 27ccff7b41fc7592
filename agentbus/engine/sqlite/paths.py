"""The directory of a bus: its files, their permissions, and the backups and archives in it."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from agentbus.core.files import check_directory, check_file, check_home
from agentbus.engine.url import directory_path
from agentbus.errors import (
    InvalidUrl,
    NoBus,
    NotWritable,
    ReadOnlyBus,
    UnreadableBus,
    UnsafeFile,
    UnsupportedFileSystem,
)

if TYPE_CHECKING:
    from pathlib import Path

NAME = ".agentbus"
BACKUP_LOCK = "backup.lock"
REPLACING = ".replacing-"
"""Prefix of the second name of a database, in ``backups/``, until a restore has replaced it."""
_NO_SHARED_MEMORY = (
    "nfs",
    "cifs",
    "smb",
    "9p",
    "virtiofs",
    "fuse",
    "afs",
    "ceph",
    "gluster",
    "lustre",
    "beegfs",
)
# A socket's path is limited to about 104 bytes on macOS and 108 on Linux.
_SOCKET_PATH = 100
_SOCKET_NAME = 24
_FILES = ("bus.lock", "bus.ballast", BACKUP_LOCK)
_FOLDERS = ("bells", "backups", "archive")
_DATABASE = ("-wal", "-shm", "-journal")
_FILE_ENDINGS = (".db", ".sqlite", ".sqlite3", ".db3")
"""Suffixes of the name of a database in one file."""


class Home:
    """The files of a bus. Paths used by every open are strings: importing pathlib takes longer than opening the bus."""

    __slots__ = ("file", "lock", "root")

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.root = os.fspath(directory)
        self.file = f"{self.root}/bus.db"
        self.lock = f"{self.root}/bus.lock"

    @property
    def directory(self) -> Path:
        from pathlib import Path

        return Path(self.root)

    @property
    def database(self) -> Path:
        return self.directory / "bus.db"

    @property
    def log(self) -> Path:
        return self.directory / "bus.db-wal"

    @property
    def journal(self) -> Path:
        return self.directory / "bus.db-journal"

    @property
    def backups(self) -> Path:
        return self.directory / "backups"

    @property
    def archive(self) -> Path:
        return self.directory / "archive"

    @property
    def bells(self) -> Path:
        """Return the directory of the doorbells; a deep bus has them in a short runtime directory."""
        from pathlib import Path

        own = self.directory / "bells"
        if len(os.fsencode(own)) + _SOCKET_NAME <= _SOCKET_PATH:
            return own
        import tempfile
        from hashlib import sha256

        digest = sha256(os.fsencode(self.root)).hexdigest()[:16]
        runtime = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        if len(os.fsencode(runtime)) > _SOCKET_PATH - _SOCKET_NAME - 40:
            runtime = "/tmp"  # noqa: S108 - the directory below it is ours alone, or refused
        return Path(runtime) / f"agentbus-{os.getuid()}" / digest


def find(url: str | os.PathLike[str] | None) -> Home:
    """Return the home that ``url`` names; by default the nearest ``.agentbus`` here or above."""
    if url is None:
        url = os.environ.get("AGENTBUS_URL") or None
    if url is None:
        try:
            return Home(_nearest() or os.path.join(os.getcwd(), NAME))
        except OSError as error:
            raise InvalidUrl(url=NAME, reason=str(error)) from None
    text = os.fspath(url)
    if not isinstance(text, str):
        raise InvalidUrl(url=text, reason="it is not text")
    if text.startswith("sqlite://"):
        text = directory_path(text)
        first = text.partition("/")[0]
        if first and first != text and not os.path.lexists(first) and os.path.isdir(f"/{first}"):
            reason = f"{text} is relative, and there is no {first} here; write sqlite:////{text} for /{text}"
            raise InvalidUrl(url=url, reason=reason)
    elif "://" in text:
        raise InvalidUrl(url=text.split("://", maxsplit=1)[0] + "://…", reason="unknown scheme")
    if not text or "\0" in text:
        raise InvalidUrl(url=text, reason="it is empty or contains NUL")
    try:
        os.fsencode(text)
        path = _absolute(text)
        if path.endswith("/bus.db"):
            path = path.removesuffix("/bus.db") or "/"
        is_file = not _is_directory(path)
    except (OSError, ValueError) as error:
        # A name that is too long, an unknown home directory, bytes that are not Unicode.
        raise InvalidUrl(url=ascii(text[:200]), reason=str(error)) from None
    if is_file:
        raise InvalidUrl(url=text, reason="it is a file; a bus is a directory")
    if path.lower().endswith(_FILE_ENDINGS) and not os.path.isdir(path):
        raise InvalidUrl(url=text, reason="it has the suffix of a file; a bus is a directory")
    return Home(path)


def find_bus(url: str | os.PathLike[str] | None, *, create: bool) -> Home:
    """Return the home of a bus that exists, or that may be created."""
    home = find(url)
    if not create and not exists(home):
        raise NoBus(path=home.root)
    return home


def exists(home: Home) -> bool:
    """Return True if there is a bus."""
    try:
        os.lstat(home.file)
    except PermissionError:
        raise _unreadable(home) from None
    except OSError:
        return False
    return True


def check(home: Home) -> None:
    """Refuse a home that other users can write, and links in place of its files."""
    check_home(home.root)
    for name in _FILES:
        check_file(f"{home.root}/{name}")
    for name in _FOLDERS:
        check_directory(f"{home.root}/{name}")
    check_database(home)


def check_database(home: Home) -> None:
    """Check the files that SQLite opens. They are not opened here: closing one would drop SQLite's locks."""
    for suffix in _DATABASE:
        check_file(home.file + suffix)
    try:
        check_file(home.file)
    except UnsafeFile:
        check_file(home.file, links=1 + _own_links(home))


def only_readable(home: Home) -> str | None:
    """Return the reason why this user can only read the bus; None if it can write, or not even read."""
    writable = os.access(home.root, os.W_OK | os.X_OK) and os.access(home.file, os.R_OK | os.W_OK)
    if writable and (os.access(home.lock, os.R_OK | os.W_OK) or not os.path.lexists(home.lock)):
        return None
    if not os.access(home.file, os.R_OK):
        return None
    return "the file system is read-only" if _is_read_only(home.root) else "this user may not write to it"


def _is_read_only(path: str) -> bool:
    try:
        return bool(os.statvfs(path).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def sizes(home: Home) -> tuple[int, int]:
    """Return the bytes of the database and of its log, without opening them."""
    return _size(home.file), _size(f"{home.file}-wal")


def prepare(home: Home) -> None:
    """Create the directory and an empty database, for this user only, if they do not exist."""
    try:
        _make_durable(home.root)
        check(home)
        refuse_unshared(home.root)
        if not os.access(home.root, os.W_OK | os.X_OK):
            raise _refusal(home)
        # Created, but never opened: closing an open file would drop the locks of a bus in this process.
        try:
            os.close(os.open(home.file, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            if not os.access(home.file, os.R_OK | os.W_OK):
                raise _refusal(home) from None
    except OSError as error:
        if isinstance(error, PermissionError) and os.path.isdir(home.root) and not os.access(home.root, os.X_OK):
            raise _unreadable(home) from None
        raise NotWritable(path=home.root, reason=error.strerror or str(error)) from None


def _refusal(home: Home) -> NotWritable:
    """Return the error for a home or database that this user may not write."""
    if (reason := only_readable(home)) is not None:
        return ReadOnlyBus(path=home.root, reason=reason)
    if os.path.lexists(home.file) and not os.access(home.file, os.R_OK):
        return _unreadable(home)
    return NotWritable(path=home.root, reason="permission denied")


def _unreadable(home: Home) -> UnreadableBus:
    return UnreadableBus(path=home.root, reason="permission denied")


def prepare_bells(home: Home) -> Path:
    """Create the doorbells' directory for this user only; refuse one that other users can write."""
    bells = home.bells
    try:
        if bells.parent != home.directory:
            _make_private(bells.parent)
            check_directory(str(bells.parent))
        _make_private(bells)
        check_directory(str(bells))
    except UnsafeFile as error:
        raise NotWritable(path=error.path, reason=error.reason) from None
    except OSError as error:
        raise NotWritable(path=str(bells), reason=error.strerror or str(error)) from None
    return bells


def refuse_unshared(directory: str | os.PathLike[str], mounts: str | None = None) -> None:
    """Refuse file systems on which processes cannot share memory, as SQLite's WAL needs."""
    if mounts is None:
        try:
            with open("/proc/self/mountinfo", "rb") as file:
                mounts = os.fsdecode(file.read())
        except OSError:
            return
    kind = filesystem(os.path.realpath(directory), mounts)
    if kind.startswith(_NO_SHARED_MEMORY):
        raise UnsupportedFileSystem(path=str(directory), filesystem=kind)


def filesystem(path: str | os.PathLike[str], mounts: str) -> str:
    """Return the type of the file system of ``path``, from the text of mountinfo."""
    best, kind = "", ""
    name = os.fspath(path)
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", _octal, fields[4]) if "\\" in fields[4] else fields[4]
        inside = point in {"/", name} or name.startswith(f"{point}/")
        # Of two mounts on one point, the later one is visible.
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _octal(match: re.Match[str]) -> str:
    return chr(int(match[1], 8))


def _own_links(home: Home) -> int:
    """Return the number of names of the database that a killed restore left behind."""
    try:
        found = os.lstat(home.file)
        with os.scandir(f"{home.root}/backups") as entries:
            others = [entry.stat(follow_symlinks=False) for entry in entries if entry.name.startswith(REPLACING)]
    except OSError:
        return 0
    return sum((other.st_dev, other.st_ino) == (found.st_dev, found.st_ino) for other in others)


def refuse_link(path: str) -> None:
    """Refuse a home that was found, not named, and is a symbolic link: a cloned repository could choose the bus. A user
    who links to a bus on purpose names it in ``AGENTBUS_URL``."""
    if os.path.islink(path):
        from shlex import quote

        advice = f"if that is intended, name it: export AGENTBUS_URL={quote(os.path.realpath(path))}"
        raise UnsafeFile(path=path, reason="it is a symbolic link", advice=advice)


def _nearest() -> str | None:
    here = os.getcwd()
    while True:
        found = os.path.join(here, NAME)
        refuse_link(found)
        if os.path.isdir(found):
            return found
        above = os.path.dirname(here)
        if above == here:
            return None
        here = above


def _absolute(text: str) -> str:
    """Return the absolute path, without resolving symbolic links."""
    path = os.path.expanduser(text)
    if path.startswith("~"):
        raise ValueError("unknown home directory")
    # The working directory may have been deleted: an absolute path does not need it.
    parts = (path if path.startswith("/") else os.path.join(os.getcwd(), path)).split("/")
    return "/" + "/".join(part for part in parts if part not in {"", "."})


def _is_directory(path: str) -> bool:
    """Return True if the path is a directory, or does not exist."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True


def _make_durable(directory: str, mode: int = 0o700) -> None:
    """Create a directory and its parents, and sync their names: otherwise a power cut could remove the whole bus."""
    try:
        try:
            os.mkdir(directory, mode)
        except FileNotFoundError:
            # Once: some file systems, like /proc, allow no new directories.
            _make_durable(os.path.dirname(directory), 0o777)
            os.mkdir(directory, mode)
    except FileExistsError:
        return
    try:
        above = os.open(os.path.dirname(directory), os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        # This user may create names in it, but not read it.
        return
    try:
        os.fsync(above)
    finally:
        os.close(above)


def _make_private(directory: str | os.PathLike[str]) -> None:
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        os.makedirs(os.path.dirname(directory), exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(directory, 0o700)


_MOMENT = r"([0-9]{8}T[0-9]{6}\.[0-9]{3}Z)-[0-9a-f]{8}"
_BACKUP = rf"bus-{_MOMENT}\.db"
_ARCHIVE = rf"{_MOMENT}\.jsonl\.gz"


class SavedCopy(msgspec.Struct, frozen=True):
    """A backup or an archive of a bus, and the time in its name."""

    path: Path
    moment: str
    backup: bool

    def advice(self, home: Home) -> str:
        """Return the advice for a bus whose database is gone."""
        from shlex import quote

        if self.backup:
            restore = f"agentbus backup restore {quote(str(self.path))} --url {quote(str(home.directory))}"
            return f"close the bus in all processes, then restore the newest backup: {restore}"
        return f"there is no backup, but an archive of old data: agentbus import {quote(str(self.path))}"


def backups(home: Home) -> list[SavedCopy]:
    """Return the backups of a bus, newest first by their names."""
    found = ((path, re.fullmatch(_BACKUP, path.name)) for path in _entries(home.backups))
    return sorted((SavedCopy(path, name[1], True) for path, name in found if name), key=_moment, reverse=True)


def newest_saved_copy(home: Home) -> SavedCopy | None:
    """Return the newest backup; if there is none, the newest archive."""
    found = ((path, re.fullmatch(_ARCHIVE, path.name)) for path in _entries(home.archive))
    archives = sorted((SavedCopy(path, name[1], False) for path, name in found if name), key=_moment)
    return next(iter([*backups(home), *archives[-1:]]), None)


def _moment(copy: SavedCopy) -> str:
    return copy.moment


def _entries(folder: Path) -> list[Path]:
    """Return the regular files of a folder: a link is not the bus's own, and opening a pipe would block."""
    try:
        with os.scandir(folder) as found:
            return sorted(folder / entry.name for entry in found if entry.is_file(follow_symlinks=False))
    except OSError:
        return []
