"""Restore a backup: verify and migrate it next to the bus, then replace the bus in one step."""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from agentbus.core import process_info
from agentbus.core.clock import Clock
from agentbus.core.files import (
    SIDECAR_SUFFIXES,
    check_file,
    file_error,
    make_private_directory,
    require_file,
    sync,
    timestamp,
)
from agentbus.engine import process_safety
from agentbus.engine.queries import load
from agentbus.engine.sqlite import paths
from agentbus.engine.sqlite.backup import copy_into, open_backup, verify
from agentbus.engine.sqlite.blocking import BlockingSQLite
from agentbus.engine.sqlite.connection import identity, migrations
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.schema_check import (
    foreign_objects,
    missing_objects,
    schema_differences,
    tables_with_invalid_rows,
)
from agentbus.errors import BusForked, BusInUse, DamagedBackup, DiskFull, LockTimeout, NotADatabase, SchemaTooNew
from agentbus.operations.processes import ReleaseProcessesRequest, release_processes

STAGING = "restoring-"
"""Prefix of the directory in which a backup is prepared."""
_LOCK_TIMEOUT = 2.0
"""Seconds to wait for the lock: a process that holds it for longer has the bus open."""


def restore(source: Path, home: paths.Home, clock: Clock) -> Path:
    """Replace a bus with a backup; see ``agentbus.restore_backup``."""
    try:
        if os.path.lexists(home.root):
            paths.check(home)
        _refuse_source(source, home)
        paths.refuse_unshared(home.directory)
        with ExitStack() as stack:
            exists = os.path.exists(home.lock)
            if exists:
                stack.enter_context(_locked(home))
                _remove_leftovers(home)
            staging = stack.enter_context(_staging(_nearest(home.directory)))
            _copy(source, staging)
            _migrate(staging, source, clock)
            if not exists:
                # Not earlier: a refused backup must leave nothing where no bus was.
                home.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
                paths.check(home)
                stack.enter_context(_locked(home))
            _refuse_in_use(home)
            _replace(staging, home, timestamp(clock.now().wall))
    except OSError as error:
        raise file_error(home.directory, error) from error
    return home.directory


def is_restorable(backup: Path) -> bool:
    """Return True if a bus can be restored from this backup."""
    try:
        with open_backup(backup) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            newest = max(migrations())
            if not 1 <= version <= newest or verify(connection) is not None:
                return False
            if foreign_objects(connection, version):
                return False
            return version < newest or not (schema_differences(connection) or tables_with_invalid_rows(connection))
    except (DamagedBackup, UnicodeDecodeError):
        return False


def _refuse_source(source: Path, home: paths.Home) -> None:
    """Refuse what is not a regular file. It may be a symbolic link, but not one in the bus's own directory."""
    if source.parent == home.backups:
        # A backup that was killed leaves two names.
        check_file(str(source), links=2)
    found = require_file(source)
    if not stat.S_ISREG(found.st_mode):
        raise DamagedBackup(path=str(source), reason="it is not an ordinary file")


def _nearest(directory: Path) -> Path:
    """Return the directory or its nearest existing parent: on the same disk, so that a rename is atomic."""
    return next(folder for folder in (directory, *directory.parents) if folder.is_dir())


@contextmanager
def _locked(home: paths.Home) -> Iterator[None]:
    """Hold the lock, without which no process can open the bus."""
    lock = FileLock(home.lock, _LOCK_TIMEOUT)
    try:
        lock.acquire()
    except LockTimeout as error:
        lock.close()
        raise BusInUse(path=str(home.directory), reason=f"process {error.pid} holds its lock") from None
    try:
        yield
    finally:
        lock.close()


@contextmanager
def _staging(directory: Path) -> Iterator[paths.Home]:
    """Create a temporary directory next to the bus."""
    staging = Path(tempfile.mkdtemp(prefix=STAGING, dir=directory))
    try:
        yield paths.Home(staging)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _remove_leftovers(home: paths.Home) -> None:
    """Remove the leftovers of a killed restore: under the lock, no live process uses them."""
    for leftover in home.directory.glob(f"{STAGING}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    for other in home.backups.glob(f"{paths.REPLACING}*"):
        if home.database.exists() and other.samefile(home.database):
            other.unlink()
        else:
            os.rename(other, other.with_name(f"replaced-{other.name.removeprefix(paths.REPLACING)}"))


def _copy(source: Path, staging: paths.Home) -> None:
    os.close(os.open(staging.database, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    with open_backup(source) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        tables = {row[1] for row in connection.execute("PRAGMA table_list")}
        if not {"meta", "messages", "processes"} <= tables or version < 1:
            raise DamagedBackup(path=str(source), reason="it is not a backup of a bus")
        if version > max(migrations()):
            raise SchemaTooNew(path=str(source), found=version, known=max(migrations()))
        if version == max(migrations()) and (lacking := missing_objects(connection)):
            raise DamagedBackup(path=str(source), reason=f"it lacks {', '.join(lacking[:5])}")
        if objects := foreign_objects(connection, version):
            reason = f"it contains objects that agentbus did not create: {', '.join(objects[:5])}"
            raise DamagedBackup(path=str(source), reason=reason)
        try:
            problem = copy_into(connection, staging.database)
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorcode & 0xFF) == sqlite3.SQLITE_FULL:
                raise DiskFull(path=str(staging.directory)) from error
            raise
    if problem is not None:
        raise DamagedBackup(path=str(source), reason=problem)


def _migrate(staging: paths.Home, source: Path, clock: Clock) -> None:
    """Migrate the schema, and end what was live in the backup: agents fail, sessions are interrupted."""
    try:
        bus = BlockingSQLite(staging, durability="disk", clock=clock, lock_timeout=_LOCK_TIMEOUT)
        try:
            bus.write(release_processes, ReleaseProcessesRequest(source.name, "the bus was restored from a backup"))
        finally:
            bus.close()
    except NotADatabase as error:
        raise DamagedBackup(path=str(source), reason=error.reason) from error
    sync(staging.database)


def _refuse_in_use(home: paths.Home) -> None:
    """Raise BusInUse if any program has the database open: it then cannot leave WAL mode."""
    if not home.database.exists():
        return
    if process_safety.is_inherited(identity(home.database)):
        raise BusForked(parent=os.getppid())
    if any(process_info.is_listening(str(bell)) for bell in _bells(home)):
        raise BusInUse(path=str(home.directory), reason=f"open in {_describe_users(home)}")
    try:
        connection = sqlite3.connect(home.database, timeout=0, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        finally:
            connection.close()
    except sqlite3.DatabaseError as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            raise BusInUse(path=str(home.directory), reason=f"open in {_describe_users(home)}") from None
        if code not in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
            raise
        # A damaged database cannot answer; it is being replaced for that reason.


def _bells(home: paths.Home) -> list[Path]:
    try:
        return [bell for bell in home.bells.iterdir() if stat.S_ISSOCK(bell.lstat().st_mode)]
    except OSError:
        return []


def _describe_users(home: paths.Home) -> str:
    """Return the registered processes of the bus as text."""
    with suppress(sqlite3.Error):
        connection = sqlite3.connect(home.database, timeout=0, isolation_level=None)
        try:
            queries = load("sqlite")
            pids = [str(pid) for (pid,) in connection.execute(queries["process_pids"])]
        finally:
            connection.close()
        if pids:
            return f"process {', '.join(pids)}"
    return "another program"


def _replace(staging: paths.Home, home: paths.Home, moment: str) -> None:
    name = f"{moment}-{secrets.token_hex(4)}.db"
    replaced = f"replaced-{name}"
    old = home.database.exists()
    if old:
        make_private_directory(home.backups)
        _link_or_copy(home.database, home.backups / f"{paths.REPLACING}{name}")
        # The log of the old database must not be replayed into the new one.
        for suffix in SIDECAR_SUFFIXES:
            log = home.directory / f"bus.db{suffix}"
            if log.exists():
                os.replace(log, home.backups / f"{replaced}{suffix}")
        sync(home.backups)
    os.replace(staging.database, home.database)
    sync(home.directory)
    if old:
        os.rename(home.backups / f"{paths.REPLACING}{name}", home.backups / replaced)
        sync(home.backups)


def _link_or_copy(file: Path, name: Path) -> None:
    try:
        os.link(file, name)
    except OSError:
        # A file system without hard links. No program has the database open, so that it is safe to open.
        shutil.copy2(file, name)
