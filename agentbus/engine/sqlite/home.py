"""Where a bus lives: its directory, the files in it, and whether they can be used."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from pathlib import Path

import msgspec

from agentbus.errors import InvalidUrl, NotWritable, UnsupportedFileSystem

NAME = ".agentbus"
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


class Home(msgspec.Struct, frozen=True):
    """The files of a bus."""

    directory: Path

    @property
    def database(self) -> Path:
        return self.directory / "bus.db"

    @property
    def log(self) -> Path:
        return self.directory / "bus.db-wal"

    @property
    def lock(self) -> Path:
        return self.directory / "bus.lock"

    @property
    def backups(self) -> Path:
        return self.directory / "backups"

    @property
    def bells(self) -> Path:
        """The directory of the doorbells; a deep bus has them in a short runtime directory."""
        near = self.directory / "bells"
        if len(os.fsencode(near)) + _SOCKET_NAME <= _SOCKET_PATH:
            return near
        digest = hashlib.sha256(os.fsencode(self.directory)).hexdigest()[:16]
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
            return Home(_nearest() or Path.cwd() / NAME)
        except OSError as error:
            raise InvalidUrl(url=NAME, reason=str(error)) from None
    text = os.fspath(url)
    if not isinstance(text, str):
        raise InvalidUrl(url=text, reason="it is not a text")
    if text.startswith("sqlite://"):
        # As in other tools: sqlite:///relative, sqlite:////absolute.
        text = text.removeprefix("sqlite://").removeprefix("/")
    elif "://" in text:
        scheme = text.split("://", maxsplit=1)[0]
        server = scheme in {"postgresql", "postgres"}
        reason = "a server has tools of its own for that: pg_restore" if server else "no engine knows this scheme"
        raise InvalidUrl(url=f"{scheme}://…", reason=reason)
    if not text or "\0" in text:
        raise InvalidUrl(url=text, reason="it is empty or has a NUL in it")
    try:
        os.fsencode(text)
        path = Path(text).expanduser().absolute()
        if path.name == "bus.db":
            path = path.parent
        is_file = path.exists() and not path.is_dir()
    except (OSError, RuntimeError, ValueError) as error:
        # A name that is too long, a home that nobody has, bytes that are no Unicode.
        raise InvalidUrl(url=ascii(text[:200]), reason=str(error)) from None
    if is_file:
        raise InvalidUrl(url=text, reason="it is a file, and a bus is a directory")
    return Home(path)


def prepare(home: Home) -> None:
    """Make the directory and the empty database, for this user only, where they do not exist."""
    try:
        _make_private(home.directory)
        refuse_unshared(home.directory)
        if not os.access(home.directory, os.W_OK | os.X_OK):
            raise NotWritable(path=str(home.directory), reason="permission denied")
        # Only ever created, never opened: closing an open file would drop the locks of a bus in this process.
        try:
            os.close(os.open(home.database, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except FileExistsError:
            if not os.access(home.database, os.R_OK | os.W_OK):
                raise NotWritable(path=str(home.database), reason="permission denied") from None
    except OSError as error:
        raise NotWritable(path=str(home.directory), reason=error.strerror or str(error)) from None


def prepare_bells(home: Home) -> Path:
    """The doorbells' directory, made for this user only; refused where someone else could reach into it."""
    bells = home.bells
    try:
        if bells.parent != home.directory:
            _make_private(bells.parent)
            found = bells.parent.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
                raise NotWritable(path=str(bells.parent), reason="it is not a directory of this user alone")
        _make_private(bells)
    except OSError as error:
        raise NotWritable(path=str(bells), reason=error.strerror or str(error)) from None
    return bells


def refuse_unshared(directory: Path, mounts: str | None = None) -> None:
    """Refuse file systems on which processes cannot share SQLite's memory."""
    if mounts is None:
        try:
            mounts = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
        except OSError:
            return
    kind = filesystem(directory.resolve(), mounts)
    if kind.startswith(_NO_SHARED_MEMORY):
        raise UnsupportedFileSystem(path=str(directory), filesystem=kind)


def filesystem(path: Path, mounts: str) -> str:
    """The type of the file system that ``path`` is on, from the text of mountinfo."""
    best, kind = "", ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", _octal, fields[4])
        inside = point == "/" or str(path) == point or str(path).startswith(f"{point}/")
        # Of two mounts on one point, the later one is on top.
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def _octal(match: re.Match[str]) -> str:
    return chr(int(match[1], 8))


def _nearest() -> Path | None:
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / NAME).is_dir():
            return folder / NAME
    return None


def _make_private(directory: Path) -> None:
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError:
        return
