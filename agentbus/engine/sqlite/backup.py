"""Backups through SQLite's backup interface, verified before they get their name.

Everything here blocks, on its own connections: callers with an event loop use a thread. The copy is one read
transaction: writers continue during the copy, and it contains everything committed before it started.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote

from agentbus.core.files import (
    SIDECAR_SUFFIXES,
    file_error,
    make_private_directory,
    publish,
    sync,
    target_problem,
    timestamp,
)
from agentbus.engine.interface import Progress
from agentbus.engine.sqlite.connection import missing_descriptor, open_reader, translate_error
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.paths import BACKUP_LOCK, Home, backups
from agentbus.errors import BackupFailed, DamagedBackup, DiskFull, TooManyFiles
from agentbus.records import BackupRecord

UNFINISHED = ".unfinished"
_STEP = 1000
"""Pages between two progress reports."""
_INSTRUCTIONS = 100_000
"""Virtual machine instructions between two checks for cancellation during verification."""
_MIN_FREE = 1024 * 1024
"""Bytes that must remain free after a backup, for the bus itself."""


class Cancelled(Exception):
    """The caller of a backup was cancelled."""


def back_up(
    home: Home,
    path: Path | None,
    keep: int,
    wall: int,
    timeout: float,
    progress: Progress | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
) -> BackupRecord:
    """Make a backup in ``backups/``, of which the newest ``keep`` stay, or at a path that does not exist.

    It gets its name only when it is complete, verified and synced. Until then it is a hidden file with the mark of this
    bus, which no listing, restore or pruning considers a backup. It is removed here, whatever happens; after a kill, by
    the next backup into that directory. ``is_cancelled`` is called every few megabytes and just before the rename: once
    it returns True, nothing is left behind.
    """
    name = f"bus-{timestamp(wall)}-{secrets.token_hex(4)}.db"
    target = home.backups / name if path is None else path
    try:
        if path is None:
            make_private_directory(home.backups)
        else:
            target = path / name if path.is_dir() else path
        reason = target_problem(target, home.directory, home.backups)
        if reason is not None:
            raise BackupFailed(path=str(target), reason=reason)
        # One at a time: under the lock, an unfinished file with the bus's mark belongs to no live process.
        with _backup_lock(home, timeout):
            _sweep(target.parent, mark(home))
            unfinished = target.with_name(f"{mark(home)}{secrets.token_hex(4)}{UNFINISHED}")
            try:
                _require_space(home, target.parent)
                os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
                _copy(home, unfinished, timeout, progress, is_cancelled)
                sync(unfinished)
                size = unfinished.stat().st_size
                if is_cancelled():
                    raise Cancelled
                publish(unfinished, target)
            finally:
                for ending in ("", *SIDECAR_SUFFIXES):
                    unfinished.with_name(f"{unfinished.name}{ending}").unlink(missing_ok=True)
            if path is None:
                _prune(home, keep, target, timestamp(wall))
    except Cancelled:
        raise BackupFailed(path=str(target), reason="the caller was cancelled") from None
    except FileExistsError:
        raise BackupFailed(path=str(target), reason="the path already exists") from None
    except OSError as error:
        raise file_error(target, error) from error
    return BackupRecord(str(target), size, wall)


def mark(home: Home) -> str:
    """Return the prefix of the names of this bus's unfinished backups, in any directory."""
    return f".agentbus-{sha256(os.fsencode(home.directory)).hexdigest()[:8]}-"


def verify(connection: sqlite3.Connection) -> str | None:
    """Return the problems of a database; None if it is sound."""
    problems = [str(text) for (text,) in connection.execute("PRAGMA integrity_check(10)") if text != "ok"]
    if not problems and connection.execute("PRAGMA foreign_key_check").fetchone():
        problems.append("rows refer to rows that do not exist")
    return "; ".join(problems) or None


def list_backups(home: Home) -> list[BackupRecord]:
    """Return the backups in ``backups/``, newest first."""
    found: list[BackupRecord] = []
    for copy in backups(home):
        with suppress(OSError, ValueError):
            created = datetime.strptime(f"{copy.moment[:-1]}000Z", "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
            found.append(BackupRecord(str(copy.path), copy.path.stat().st_size, round(created.timestamp() * 1000)))
    return found


def copy_into(
    source: sqlite3.Connection,
    target: Path,
    progress: Progress | None = None,
    is_cancelled: Callable[[], bool] | None = None,
) -> str | None:
    """Copy a database into an empty file that needs no other files; return the problems of the copy.

    ``progress`` is called with the pages copied, then verified. Raise ``Cancelled`` soon after ``is_cancelled`` returns
    True.
    """

    def step(_: int, left: int, total: int) -> None:
        if is_cancelled is not None and is_cancelled():
            raise Cancelled
        if progress is not None:
            progress(total - left, 2 * total)

    connection = sqlite3.connect(target, isolation_level=None)
    try:
        # The copy is synced once, before it gets its name.
        connection.execute("PRAGMA synchronous = OFF")
        if progress is None and is_cancelled is None:
            source.backup(connection, pages=-1)
        else:
            # Inside one read transaction: otherwise the copy would restart with every write.
            source.execute("BEGIN")
            source.execute("PRAGMA schema_version").fetchone()
            source.backup(connection, pages=_STEP, progress=step)
            source.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = DELETE")
        if is_cancelled is not None:
            connection.set_progress_handler(is_cancelled, _INSTRUCTIONS)
        problem = verify(connection)
        if progress is not None:
            progress(1, 1)
        return problem
    except sqlite3.OperationalError:
        if is_cancelled is not None and is_cancelled():
            raise Cancelled from None
        # Before the connection is closed, which frees a descriptor.
        if (reason := missing_descriptor()) is not None:
            raise TooManyFiles(path=str(target), reason=reason) from None
        raise
    finally:
        connection.close()


@contextmanager
def open_backup(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a backup for reading; translate SQLite's errors to DamagedBackup."""
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)
    except sqlite3.Error as error:
        raise DamagedBackup(path=str(path), reason=str(error)) from error
    try:
        yield connection
    except sqlite3.Error as error:
        raise DamagedBackup(path=str(path), reason=str(error)) from error
    finally:
        connection.close()


def _copy(
    home: Home, target: Path, timeout: float, progress: Progress | None, is_cancelled: Callable[[], bool]
) -> None:
    source = open_reader(home, timeout)
    try:
        problem = copy_into(source, target, progress, is_cancelled)
    except sqlite3.Error as error:
        found = translate_error(error, home)
        raise DiskFull(path=str(target)) if isinstance(found, DiskFull) else found from error
    finally:
        source.close()
    if problem is not None:
        raise BackupFailed(path=str(target.parent), reason=f"the copy is damaged, perhaps also the bus: {problem}")


def _require_space(home: Home, directory: Path) -> None:
    """Raise DiskFull before a backup takes the bus's last space."""
    size = sum(file.stat().st_size for file in (home.database, home.log) if file.exists())
    if shutil.disk_usage(directory).free < size + _MIN_FREE:
        raise DiskFull(path=str(directory))


@contextmanager
def _backup_lock(home: Home, timeout: float) -> Iterator[None]:
    lock = FileLock(home.directory / BACKUP_LOCK, timeout)
    try:
        with lock.held():
            yield
    finally:
        lock.close()


def _sweep(directory: Path, mark: str) -> None:
    """Remove what a killed backup of this bus left behind, and no other files."""
    for ending in ("", *SIDECAR_SUFFIXES):
        for file in directory.glob(f"{mark}????????{UNFINISHED}{ending}"):
            with suppress(OSError):
                file.unlink()


def _prune(home: Home, keep: int, newest: Path, moment: str) -> None:
    others = [backup for backup in backups(home) if backup.path != newest]
    # Backups of the future were made before the clock was set back: they are the oldest.
    others.sort(key=lambda backup: backup.moment > moment)
    for backup in others[keep - 1 :]:
        backup.path.unlink(missing_ok=True)
