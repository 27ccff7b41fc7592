"""Files that a checkpoint refers to: hashed when it is saved, compared when it is verified.

Every path is walked from the root, directory by directory, each opened inside the one before and never through a
symbolic link. So nothing outside the root is read, not even while somebody swaps a directory for a link.
Nothing here is asynchronous: callers with an event loop use a thread.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256

from agentbus.errors import AgentBusError, InvalidInput, UnknownFile, UnreadableFile, UnsafePath
from agentbus.limits import MAX_FILES, MAX_PATH, check_range
from agentbus.records import FileCheck, FileReference

Path = str | os.PathLike[str]
Holds = Callable[[int, int], bool]
"""Whether a file, by its device and inode, is part of an open bus."""
Stopped = Callable[[], bool]
"""Whether nobody waits for the result any more."""

_CHUNK = 1024 * 1024
# O_PATH (Linux) needs no permission to list the directory.
_DIRECTORY = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
# Should it be a pipe after all, opening it must not wait for somebody to write.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def check_paths(files: Iterable[Path]) -> tuple[str, ...]:
    """Paths as they are kept: relative, with single slashes, each once."""
    if isinstance(files, str | bytes | os.PathLike) or not isinstance(files, Iterable):
        raise InvalidInput(reason="files must be a list of paths")
    paths: dict[str, None] = {}
    for path in files:
        paths["/".join(_parts(path))] = None
        check_range(len(paths), "number of files", 0, MAX_FILES)
    return tuple(paths)


def check_root(root: Path | None) -> str:
    """The root as an absolute path: what is the working directory now may not be it later."""
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


def hash_files(paths: Sequence[str], root: str, holds: Holds, stopped: Stopped) -> list[FileReference]:
    """References to these files as they are now, or a named error."""
    with _directory(root) as top:
        reader = _Reader(root, top, holds, stopped)
        try:
            return [reader.reference(path) for path in paths]
        except _Refused as refused:
            raise refused.error from None


def compare_files(references: Sequence[FileReference], root: str, holds: Holds, stopped: Stopped) -> list[FileCheck]:
    """What became of these files."""
    with _directory(root) as top:
        reader = _Reader(root, top, holds, stopped)
        return [FileCheck(reference.path, reader.status(reference)) for reference in references]


class _Refused(Exception):
    """A file that cannot be hashed: the error for whoever refers to it, the status for whoever verifies."""

    def __init__(self, error: AgentBusError, status: str) -> None:
        super().__init__(status)
        self.error = error
        self.status = status


class _Abandoned(Exception):
    """Nobody waits for the result any more."""


class _Reader:
    """Reads files below one directory."""

    def __init__(self, root: str, top: int, holds: Holds, stopped: Stopped) -> None:
        self._root = root
        self._top = top
        self._holds = holds
        self._stopped = stopped
        self._buffer = bytearray(_CHUNK)

    def reference(self, path: str) -> FileReference:
        with self._opened(path) as file:
            return self._hash(path, file)

    def status(self, reference: FileReference) -> str:
        try:
            with self._opened("/".join(_parts(reference.path))) as file:
                if os.fstat(file).st_size != reference.size:
                    return "changed"
                found = self._hash(reference.path, file)
        except UnsafePath:
            # Nobody could have saved such a path: it was written into the database by other means.
            return "outside"
        except _Refused as refused:
            return refused.status
        return "ok" if found.sha256 == reference.sha256 else "changed"

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        *folders, name = path.split("/")
        place = self._top
        try:
            for folder in folders:
                self._look(path, folder, place, stat.S_ISDIR)
                inner = self._open(path, folder, _DIRECTORY | os.O_NOFOLLOW, place)
                if place != self._top:
                    os.close(place)
                place = inner
            self._look(path, name, place, stat.S_ISREG)
            file = self._open(path, name, _FILE, place)
        finally:
            if place != self._top:
                os.close(place)
        found = os.fstat(file)
        if self._holds(found.st_dev, found.st_ino):
            # Swapped since we looked. Not closed, not ever: that would drop SQLite's locks.
            raise self._ours(path)
        try:
            if not stat.S_ISREG(found.st_mode):
                raise self._unsafe(path, "it is not a plain file", "changed")
            yield file
        finally:
            os.close(file)

    def _look(self, path: str, name: str, place: int, is_wanted: Callable[[int], bool]) -> None:
        """Look before opening: merely opening a device or a pipe can have effects."""
        try:
            found = os.stat(name, dir_fd=place, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            raise self._missing(path) from None
        except OSError as error:
            raise self._unreadable(path, error) from None
        if stat.S_ISLNK(found.st_mode):
            raise self._unsafe(path, f"{name!r} is a symbolic link", "outside")
        if not is_wanted(found.st_mode):
            if is_wanted is stat.S_ISDIR:
                raise self._missing(path)
            raise self._unsafe(path, "it is not a plain file", "changed")
        if self._holds(found.st_dev, found.st_ino):
            # SQLite's locks belong to the process: closing any descriptor of the file would drop them all.
            raise self._ours(path)

    def _open(self, path: str, name: str, flags: int, place: int) -> int:
        try:
            return os.open(name, flags, dir_fd=place)
        except FileNotFoundError:
            raise self._missing(path) from None
        except OSError as error:
            if stat.S_ISLNK(_mode(name, place)):
                raise self._unsafe(path, f"{name!r} is a symbolic link", "outside") from None
            raise self._unreadable(path, error) from None

    def _hash(self, path: str, file: int) -> FileReference:
        before = os.fstat(file)
        digest = sha256()
        size = 0
        view = memoryview(self._buffer)
        try:
            # One that grows faster than we read must not keep us for ever.
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

    def _ours(self, path: str) -> _Refused:
        return self._unsafe(path, "it is part of a bus that this process has open", "unreadable")

    def _unsafe(self, path: str, reason: str, status: str) -> _Refused:
        return _Refused(UnsafePath(path=path, root=self._root, reason=reason), status)

    def _unreadable(self, path: str, error: OSError) -> _Refused:
        return _Refused(UnreadableFile(path=path, root=self._root, reason=error.strerror or str(error)), "unreadable")

    def _changing(self, path: str) -> UnreadableFile:
        return UnreadableFile(path=path, root=self._root, reason="it changed while it was read")


def _parts(path: Path) -> list[str]:
    """The names on the way from the root to a file."""
    try:
        text = os.fspath(path)
    except TypeError:
        raise UnsafePath(path=repr(path)[:80], reason="it is not a path") from None
    if not isinstance(text, str) or not _is_text(text):
        raise UnsafePath(path=repr(text)[:80], reason="it is not a text of valid Unicode without NUL")
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
def _directory(root: str) -> Iterator[int]:
    try:
        # The root itself is the caller's word; it may be reached through links.
        top = os.open(root, _DIRECTORY)
    except OSError as error:
        reason = error.strerror or str(error)
        if isinstance(error, FileNotFoundError):
            reason = "the root does not exist"
        elif isinstance(error, NotADirectoryError):
            reason = "the root is not a directory"
        raise UnreadableFile(path=".", root=root, reason=reason, rule="say with root= where the files are") from None
    try:
        yield top
    finally:
        os.close(top)


def _mode(name: str, place: int) -> int:
    try:
        return os.stat(name, dir_fd=place, follow_symlinks=False).st_mode
    except OSError:
        return 0


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns
