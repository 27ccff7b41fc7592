"""Files that a checkpoint refers to: hashed when it is saved, compared when it is verified.

Every path is opened directory by directory from the root, each inside its parent and never through a symbolic link, so
that nothing outside the root is read even while another process replaces a directory by a link. All calls block.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256

from agentbus.core.validation import MAX_FILES, MAX_PATH, check_range
from agentbus.errors import AgentBusError, InvalidInput, UnknownFile, UnreadableFile, UnsafePath
from agentbus.records import FileCheck, FileReference

Path = str | os.PathLike[str]
OwnsFile = Callable[[int, int], bool]
"""Returns True if the file with this device and inode is part of an open bus."""
Stopped = Callable[[], bool]
"""Returns True once the caller has been cancelled."""

_CHUNK = 1024 * 1024
# O_PATH (Linux) needs no permission to list the directory.
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# O_NONBLOCK: if it is a pipe after all, opening it must not wait for a writer.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def check_paths(files: Iterable[Path]) -> tuple[str, ...]:
    """Return paths in stored form: relative, with single slashes, without duplicates."""
    if isinstance(files, str | bytes | os.PathLike) or not isinstance(files, Iterable):
        raise InvalidInput(reason="files must be a list of paths")
    paths: dict[str, None] = {}
    for path in files:
        paths["/".join(_parts(path))] = None
        check_range(len(paths), "number of files", 0, MAX_FILES)
    return tuple(paths)


def check_root(root: Path | None) -> str:
    """Return the root as an absolute path: the working directory may change later."""
    try:
        path = os.fspath(os.curdir if root is None else root)
    except TypeError:
        raise InvalidInput(reason=f"root must be a path, not {type(root).__name__}") from None
    if not isinstance(path, str) or not path or "\0" in path:
        raise InvalidInput(reason=f"root must be the path of a directory, not {path!r}")
    try:
        return os.path.abspath(path)
    except OSError as error:
        raise UnreadableFile(path=path, root="the working directory", reason=error.strerror or str(error)) from None


def hash_files(paths: Sequence[str], root: str, owns_file: OwnsFile, stopped: Stopped) -> list[FileReference]:
    """Return references to the files as they are now, or raise why one cannot be read."""
    with _open_root(root) as root_fd:
        reader = _Reader(root, root_fd, owns_file, stopped)
        try:
            return [reader.reference(path) for path in paths]
        except _Refused as refused:
            raise refused.error from None


def compare_files(
    references: Sequence[FileReference], root: str, owns_file: OwnsFile, stopped: Stopped
) -> list[FileCheck]:
    """Compare the files with their references."""
    with _open_root(root) as root_fd:
        reader = _Reader(root, root_fd, owns_file, stopped)
        return [FileCheck(reference.path, reader.status(reference)) for reference in references]


class _Refused(Exception):
    """A file that cannot be hashed: the error when saving, the status when verifying."""

    def __init__(self, error: AgentBusError, status: str) -> None:
        super().__init__(status)
        self.error = error
        self.status = status


class _Abandoned(Exception):
    """The caller was cancelled."""


class _Reader:
    """Reads files below one directory."""

    def __init__(self, root: str, root_fd: int, owns_file: OwnsFile, stopped: Stopped) -> None:
        self._root = root
        self._root_fd = root_fd
        self._owns_file = owns_file
        self._stopped = stopped
        self._buffer = bytearray(_CHUNK)

    def reference(self, path: str) -> FileReference:
        with self._open_path(path) as file:
            return self._hash(path, file)

    def status(self, reference: FileReference) -> str:
        try:
            with self._open_path("/".join(_parts(reference.path))) as file:
                if os.fstat(file).st_size != reference.size:
                    return "changed"
                current = self._hash(reference.path, file)
        except UnsafePath:
            # The bus refuses such a path: it was written into the database by other means.
            return "outside"
        except _Refused as refused:
            return refused.status
        return "ok" if current.sha256 == reference.sha256 else "changed"

    @contextmanager
    def _open_path(self, path: str) -> Iterator[int]:
        *folders, name = path.split("/")
        parent = self._root_fd
        try:
            for folder in folders:
                self._check_type(path, folder, parent, stat.S_ISDIR)
                inner = self._open(path, folder, _DIRECTORY | os.O_NOFOLLOW, parent)
                if parent != self._root_fd:
                    os.close(parent)
                parent = inner
            self._check_type(path, name, parent, stat.S_ISREG)
            file = self._open(path, name, _FILE, parent)
        finally:
            if parent != self._root_fd:
                os.close(parent)
        status = os.fstat(file)
        if self._owns_file(status.st_dev, status.st_ino):
            # Replaced since the check. Never closed: that would drop SQLite's locks.
            raise self._bus_file(path)
        try:
            if not stat.S_ISREG(status.st_mode):
                raise self._unsafe(path, "it is not a plain file", "changed")
            yield file
        finally:
            os.close(file)

    def _check_type(self, path: str, name: str, parent: int, is_wanted: Callable[[int], bool]) -> None:
        """Check the type before opening: opening a device or a pipe can have effects."""
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing(path) from None
        except OSError as error:
            raise self._unreadable(path, error) from None
        if stat.S_ISLNK(status.st_mode):
            raise self._unsafe(path, f"{name!r} is a symbolic link", "outside")
        if not is_wanted(status.st_mode):
            if is_wanted is stat.S_ISDIR:
                raise self._missing(path)
            raise self._unsafe(path, "it is not a plain file", "changed")
        if self._owns_file(status.st_dev, status.st_ino):
            # SQLite's locks belong to the process: closing any descriptor of the file would drop them all.
            raise self._bus_file(path)

    def _open(self, path: str, name: str, flags: int, parent: int) -> int:
        try:
            return os.open(name, flags, dir_fd=parent)
        except FileNotFoundError:
            raise self._missing(path) from None
        except OSError as error:
            if stat.S_ISLNK(_mode(name, parent)):
                raise self._unsafe(path, f"{name!r} is a symbolic link", "outside") from None
            raise self._unreadable(path, error) from None

    def _hash(self, path: str, file: int) -> FileReference:
        before = os.fstat(file)
        digest = sha256()
        size = 0
        view = memoryview(self._buffer)
        try:
            # Bounded: the file may grow faster than it is read.
            while size <= before.st_size and (count := os.readv(file, [self._buffer])):
                if self._stopped():
                    raise _Abandoned
                digest.update(view[:count])
                size += count
        except OSError as error:
            raise self._unreadable(path, error) from None
        after = os.fstat(file)
        if size != before.st_size or _stamp(before) != _stamp(after):
            raise _Refused(self._changing(path), "changed")
        return FileReference(path, size, digest.hexdigest())

    def _missing(self, path: str) -> _Refused:
        return _Refused(UnknownFile(path=path, root=self._root), "vanished")

    def _bus_file(self, path: str) -> _Refused:
        return self._unsafe(path, "it is part of a bus that this process has open", "unreadable")

    def _unsafe(self, path: str, reason: str, status: str) -> _Refused:
        return _Refused(UnsafePath(path=path, root=self._root, reason=reason), status)

    def _unreadable(self, path: str, error: OSError) -> _Refused:
        return _Refused(UnreadableFile(path=path, root=self._root, reason=error.strerror or str(error)), "unreadable")

    def _changing(self, path: str) -> UnreadableFile:
        return UnreadableFile(path=path, root=self._root, reason="it changed while it was read")


def _parts(path: Path) -> list[str]:
    """Split a relative path into names."""
    try:
        text = os.fspath(path)
    except TypeError:
        raise UnsafePath(path=repr(path)[:80], reason="it is not a path") from None
    if not isinstance(text, str) or not _is_text(text):
        raise UnsafePath(path=repr(text)[:80], reason="it is not valid Unicode without NUL")
    if len(text.encode()) > MAX_PATH:
        raise UnsafePath(path=text[:80] + "…", reason=f"it has more than {MAX_PATH} bytes")
    if text.startswith("/"):
        raise UnsafePath(path=text, reason="it is absolute")
    parts = [part for part in text.split("/") if part not in {"", "."}]
    if ".." in parts:
        raise UnsafePath(path=text, reason="it leads out of a directory")
    if not parts or text.endswith(("/", "/.")):
        raise UnsafePath(path=text, reason="it does not name a file")
    return parts


def _is_text(text: str) -> bool:
    try:
        return "\0" not in text and bool(text.encode())
    except UnicodeEncodeError:
        return False


@contextmanager
def _open_root(root: str) -> Iterator[int]:
    try:
        # The caller trusts the root: it may be a link.
        root_fd = os.open(root, _DIRECTORY)
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, FileNotFoundError):
            reason = "the root does not exist"
        elif isinstance(error, NotADirectoryError):
            reason = "the root is not a directory"
        raise UnreadableFile(
            path=".", root=root, reason=reason, rule="pass root= with the directory of the files"
        ) from None
    try:
        yield root_fd
    finally:
        os.close(root_fd)


def _mode(name: str, parent: int) -> int:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except OSError:
        return 0


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns
