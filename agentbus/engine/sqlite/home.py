"""Where a bus lives: its directory, the files in it, and whether they can be used."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from agentbus.errors import (
    InvalidUrl,
    NoBus,
    NotWritable,
    ReadOnlyBus,
    UnreadableBus,
    UnsafeFile,
    UnsupportedFileSystem,
)
from agentbus.safe_files import check_directory, check_file, check_home

if TYPE_CHECKING:
    from pathlib import Path

NAME = ".agentbus"
BACKUP_LOCK = "backup.lock"
REPLACING = ".replacing-"
"""The prefix of the second name of a database, in ``backups/``, until a restore has put another one in its place."""
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
# A socket's path may have some 104 bytes on macOS and 108 on Linux.
_SOCKET_PATH = 100
_SOCKET_NAME = 24
_FILES = ("bus.lock", "bus.ballast", BACKUP_LOCK)
_FOLDERS = ("bells", "backups", "archive")
_DATABASE = ("-wal", "-shm", "-journal")
_FILE_ENDINGS = (".db", ".sqlite", ".sqlite3", ".db3")
"""Endings of the name of a database that is one file."""


class Home:
    """The files of a bus. What every opening needs is text; pathlib takes the command line longer than opening does."""

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
        """The directory of the doorbells; a deep bus has them in a short runtime directory."""
        from pathlib import Path

        near = self.directory / "bells"
        if len(os.fsencode(near)) + _SOCKET_NAME <= _SOCKET_PATH:
            return near
        import tempfile
        from hashlib import sha256

        digest = sha256(os.fsencode(self.root)).hexdigest()[:16]
        runtime = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
        if len(os.fsencode(runtime)) > _SOCKET_PATH - _SOCKET_NAME - 40:
            runtime = "/tmp"  # noqa: S108 - the directory below it is ours alone, or refused
        return Path(runtime) / f"agentbus-{os.getuid()}" / digest


def find(url: str | os.PathLike[str] | None) -> Home:
    """The home that ``url`` names: a directory, or nothing for ``.agentbus`` here or above."""
    if url is None:
        url = os.environ.get("AGENTBUS_URL") or None
    if url is None:
        try:
            return Home(_nearest() or os.path.join(os.getcwd(), NAME))
        except OSError as error:
            raise InvalidUrl(url=NAME, reason=str(error)) from None
    text = os.fspath(url)
    if not isinstance(text, str):
        raise InvalidUrl(url=text, reason="it is not a text")
    if text.startswith("sqlite://"):
        # As in other tools: sqlite:///relative, sqlite:////absolute.
        text = text.removeprefix("sqlite://").removeprefix("/")
    elif "://" in text:
        raise InvalidUrl(url=text.split("://", maxsplit=1)[0] + "://…", reason="no engine knows this scheme")
    if not text or "\0" in text:
        raise InvalidUrl(url=text, reason="it is empty or has a NUL in it")
    try:
        os.fsencode(text)
        path = _absolute(text)
        if path.endswith("/bus.db"):
            path = path.removesuffix("/bus.db") or "/"
        is_file = not _is_directory(path)
    except (OSError, ValueError) as error:
        # A name that is too long, a home that nobody has, bytes that are no Unicode.
        raise InvalidUrl(url=ascii(text[:200]), reason=str(error)) from None
    if is_file:
        raise InvalidUrl(url=text, reason="it is a file, and a bus is a directory")
    if path.lower().endswith(_FILE_ENDINGS) and not os.path.isdir(path):
        raise InvalidUrl(url=text, reason="it has the name of a file, and a bus is a directory")
    return Home(path)


def find_bus(url: str | os.PathLike[str] | None, *, create: bool) -> Home:
    """The home of a bus that is there, or may be made."""
    home = find(url)
    if not create and not is_there(home):
        raise NoBus(path=home.root)
    return home


def is_there(home: Home) -> bool:
    """Whether somebody made a bus there."""
    try:
        os.lstat(home.file)
    except PermissionError:
        raise _unreadable(home) from None
    except OSError:
        return False
    return True


def check(home: Home) -> None:
    """Refuse a home that is not this user's alone, and what is in the place of its files and leads elsewhere."""
    check_home(home.root)
    for name in _FILES:
        check_file(f"{home.root}/{name}")
    for name in _FOLDERS:
        check_directory(f"{home.root}/{name}")
    check_database(home)


def check_database(home: Home) -> None:
    """Check what SQLite opens by itself. Only looked at from outside: to close one of these files would drop SQLite's
    locks."""
    for suffix in _DATABASE:
        check_file(home.file + suffix)
    try:
        check_file(home.file)
    except UnsafeFile:
        check_file(home.file, links=1 + _own_links(home))


def only_readable(home: Home) -> str | None:
    """Why this user can read the bus and not write it; None if it can write, or not even read."""
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
    """Bytes of the database and of its log, without opening them."""
    return _size(home.file), _size(f"{home.file}-wal")


def prepare(home: Home) -> None:
    """Make the directory and the empty database, for this user only, where they do not exist."""
    try:
        _make_lasting(home.root)
        check(home)
        refuse_unshared(home.root)
        if not os.access(home.root, os.W_OK | os.X_OK):
            raise _refusal(home)
        # Only ever created, never opened: closing an open file would drop the locks of a bus in this process.
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
    """The error for a home, or a database in it, that this user may not write."""
    if (reason := only_readable(home)) is not None:
        return ReadOnlyBus(path=home.root, reason=reason)
    if os.path.lexists(home.file) and not os.access(home.file, os.R_OK):
        return _unreadable(home)
    return NotWritable(path=home.root, reason="permission denied")


def _unreadable(home: Home) -> UnreadableBus:
    return UnreadableBus(path=home.root, reason="permission denied")


def prepare_bells(home: Home) -> Path:
    """The doorbells' directory, made for this user only; refused where someone else could reach into it."""
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
    """Refuse file systems on which processes cannot share SQLite's memory."""
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
    """The type of the file system that ``path`` is on, from the text of mountinfo."""
    best, kind = "", ""
    name = os.fspath(path)
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", _octal, fields[4]) if "\\" in fields[4] else fields[4]
        inside = point in {"/", name} or name.startswith(f"{point}/")
        # Of two mounts on one point, the later one is on top.
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
    """Return the number of names of the database that a restore which was killed left behind."""
    try:
        found = os.lstat(home.file)
        with os.scandir(f"{home.root}/backups") as entries:
            others = [entry.stat(follow_symlinks=False) for entry in entries if entry.name.startswith(REPLACING)]
    except OSError:
        return 0
    return sum((other.st_dev, other.st_ino) == (found.st_dev, found.st_ino) for other in others)


def refuse_link(path: str) -> None:
    """Refuse a home that was not named and that is a symbolic link: a cloned repository would choose the bus that its
    agents join. A user who links to a bus on purpose names it in ``AGENTBUS_URL``."""
    if os.path.islink(path):
        from shlex import quote

        advice = f"if that is meant, name it: export AGENTBUS_URL={quote(os.path.realpath(path))}"
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
    """The path from the root on. What follows a symbolic link stays as it is written."""
    path = os.path.expanduser(text)
    if path.startswith("~"):
        raise ValueError("nobody here has that home")
    # The working directory may have been deleted: whoever names the whole path does not need it.
    parts = (path if path.startswith("/") else os.path.join(os.getcwd(), path)).split("/")
    return "/" + "/".join(part for part in parts if part not in {"", "."})


def _is_directory(path: str) -> bool:
    """Whether it is one, or can become one."""
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return True


def _make_lasting(directory: str, mode: int = 0o700) -> None:
    """A directory, and those above it, whose names are on the disk: a power cut would take away all that is in it."""
    try:
        try:
            os.mkdir(directory, mode)
        except FileNotFoundError:
            # Once: there are places that have nothing in them but what they make themselves, like /proc.
            _make_lasting(os.path.dirname(directory), 0o777)
            os.mkdir(directory, mode)
    except FileExistsError:
        return
    try:
        above = os.open(os.path.dirname(directory), os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        # One that this user may make names in, but not read.
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
