"""Backups: a copy of the database through SQLite's own backup interface, verified before it has its name.

Everything here blocks, on connections of its own: callers with an event loop use a thread. The copy is one read
transaction, so that writers go on meanwhile, and it holds all that was committed before it began.
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

from agentbus.disk import BESIDE, give_name, make_private, misplaced, refusal, stamp, sync
from agentbus.engine.interface import Progress
from agentbus.engine.sqlite.connection import missing_descriptor, open_reader, translated
from agentbus.engine.sqlite.home import BACKUP_LOCK, Home
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.relics import backups
from agentbus.errors import BackupFailed, DamagedBackup, DiskFull, TooManyFiles
from agentbus.records import BackupRecord

UNFINISHED = ".unfinished"
_STEP = 1000
"""Pages after which progress is told."""
_OFTEN = 100_000
"""Instructions of SQLite's own machine after which a copy that is being verified may be given up."""
_SPARE = 1024 * 1024
"""Bytes that must be left when a backup is done: the bus itself needs room too."""


class GivenUp(Exception):
    """No caller waits for a copy any more."""


def back_up(
    home: Home,
    path: Path | None,
    keep: int,
    wall: int,
    timeout: float,
    progress: Progress | None = None,
    given_up: Callable[[], bool] = lambda: False,
) -> BackupRecord:
    """A backup in ``backups/``, of which the newest ``keep`` stay; or at a path where nothing is yet.

    It has its name only when it is whole, verified and synced. Until then it is a hidden file with the mark of this
    bus, which is no backup to anything that lists, restores or prunes them. It is removed here, whatever happens; after
    a kill by the next backup into that directory. ``given_up`` is asked after every few megabytes, and last before the
    name is given: once it says so, nothing is left.
    """
    name = f"bus-{stamp(wall)}-{secrets.token_hex(4)}.db"
    target = home.backups / name if path is None else path
    try:
        if path is None:
            make_private(home.backups)
        else:
            target = path / name if path.is_dir() else path
        reason = misplaced(target, home.directory, home.backups)
        if reason is not None:
            raise BackupFailed(path=str(target), reason=reason)
        # One at a time: what is unfinished and has our mark then belongs to nobody who lives.
        with _alone(home, timeout):
            _sweep(target.parent, mark(home))
            unfinished = target.with_name(f"{mark(home)}{secrets.token_hex(4)}{UNFINISHED}")
            try:
                _fits(home, target.parent)
                os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
                _copy(home, unfinished, timeout, progress, given_up)
                sync(unfinished)
                size = unfinished.stat().st_size
                if given_up():
                    raise GivenUp
                give_name(unfinished, target)
            finally:
                for ending in ("", *BESIDE):
                    unfinished.with_name(f"{unfinished.name}{ending}").unlink(missing_ok=True)
            if path is None:
                _prune(home, keep, target, stamp(wall))
    except GivenUp:
        raise BackupFailed(path=str(target), reason="its caller was cancelled") from None
    except FileExistsError:
        raise BackupFailed(path=str(target), reason="there is something of this name already") from None
    except OSError as error:
        raise refusal(target, error) from error
    return BackupRecord(str(target), size, wall)


def mark(home: Home) -> str:
    """How the names of unfinished backups of this bus begin, wherever they are made."""
    return f".agentbus-{sha256(os.fsencode(home.directory)).hexdigest()[:8]}-"


def verify(connection: sqlite3.Connection) -> str | None:
    """What is wrong with a database, if something is."""
    problems = [str(text) for (text,) in connection.execute("PRAGMA integrity_check(10)") if text != "ok"]
    if not problems and connection.execute("PRAGMA foreign_key_check").fetchone():
        problems.append("rows refer to rows that are not there")
    return "; ".join(problems) or None


def list_backups(home: Home) -> list[BackupRecord]:
    """What is in ``backups/``, newest first."""
    found: list[BackupRecord] = []
    for relic in backups(home):
        with suppress(OSError, ValueError):
            begun = datetime.strptime(f"{relic.moment[:-1]}000Z", "%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
            found.append(BackupRecord(str(relic.path), relic.path.stat().st_size, round(begun.timestamp() * 1000)))
    return found


def copy_into(
    source: sqlite3.Connection,
    target: Path,
    progress: Progress | None = None,
    given_up: Callable[[], bool] | None = None,
) -> str | None:
    """Copy a database into an empty file, as one that needs no other files; says what is wrong with the copy.

    ``progress`` is called with the pages that were copied, then verified. Raises ``GivenUp`` soon after ``given_up``
    returns True.
    """

    def step(_: int, left: int, total: int) -> None:
        if given_up is not None and given_up():
            raise GivenUp
        if progress is not None:
            progress(total - left, 2 * total)

    connection = sqlite3.connect(target, isolation_level=None)
    try:
        # Until it has its name, nobody needs the copy: it is fsynced once, at the end.
        connection.execute("PRAGMA synchronous = OFF")
        if progress is None and given_up is None:
            source.backup(connection, pages=-1)
        else:
            # Inside one read transaction: else the copy would start again with every write.
            source.execute("BEGIN")
            source.execute("PRAGMA schema_version").fetchone()
            source.backup(connection, pages=_STEP, progress=step)
            source.execute("COMMIT")
        connection.execute("PRAGMA journal_mode = DELETE")
        if given_up is not None:
            connection.set_progress_handler(given_up, _OFTEN)
        problem = verify(connection)
        if progress is not None:
            progress(1, 1)
        return problem
    except sqlite3.OperationalError:
        if given_up is not None and given_up():
            raise GivenUp from None
        # Asked before the connection is closed, which frees a descriptor.
        if (reason := missing_descriptor()) is not None:
            raise TooManyFiles(path=str(target), reason=reason) from None
        raise
    finally:
        connection.close()


@contextmanager
def opened_backup(path: Path) -> Iterator[sqlite3.Connection]:
    """A backup to be read, wherever it comes from; SQLite's complaints become DamagedBackup."""
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


def _copy(home: Home, target: Path, timeout: float, progress: Progress | None, given_up: Callable[[], bool]) -> None:
    source = open_reader(home, timeout)
    try:
        problem = copy_into(source, target, progress, given_up)
    except sqlite3.Error as error:
        found = translated(error, home)
        raise DiskFull(path=str(target)) if isinstance(found, DiskFull) else found from error
    finally:
        source.close()
    if problem is not None:
        raise BackupFailed(path=str(target.parent), reason=f"the copy is damaged, and so may the bus be: {problem}")


def _fits(home: Home, directory: Path) -> None:
    """A backup that does not fit is refused before it takes the bus's last room."""
    size = sum(file.stat().st_size for file in (home.database, home.log) if file.exists())
    if shutil.disk_usage(directory).free < size + _SPARE:
        raise DiskFull(path=str(directory))


@contextmanager
def _alone(home: Home, timeout: float) -> Iterator[None]:
    lock = FileLock(home.directory / BACKUP_LOCK, timeout)
    try:
        with lock.held():
            yield
    finally:
        lock.close()


def _sweep(directory: Path, mark: str) -> None:
    """What a backup of this bus left behind that was killed in the middle. Nobody else's files."""
    for ending in ("", *BESIDE):
        for file in directory.glob(f"{mark}????????{UNFINISHED}{ending}"):
            with suppress(OSError):
                file.unlink()


def _prune(home: Home, keep: int, newest: Path, moment: str) -> None:
    others = [backup for backup in backups(home) if backup.path != newest]
    # Those of the future are of a time before the clock was set back: the oldest of all.
    others.sort(key=lambda backup: backup.moment > moment)
    for backup in others[keep - 1 :]:
        backup.path.unlink(missing_ok=True)
