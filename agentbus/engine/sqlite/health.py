"""The doctor's checks of an SQLite store: its files, their environment, the library.

Everything here blocks, on its own read-only connections, and never takes the write lock. Files are not opened outside
SQLite: closing one that SQLite has open would drop its locks.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import anyio.to_thread

from agentbus.core import process_info
from agentbus.core.clock import Clock, Now
from agentbus.core.files import EXPORT_PREFIX, find_abandoned, is_own, ownership_problem, timestamp
from agentbus.engine import process_safety
from agentbus.engine.queries import load
from agentbus.engine.sqlite.backup import UNFINISHED
from agentbus.engine.sqlite.connection import identity, migrations, open_untouched, run_read, translate_error
from agentbus.engine.sqlite.lock import holder
from agentbus.engine.sqlite.paths import (
    BACKUP_LOCK,
    REPLACING,
    Home,
    backups,
    check,
    filesystem,
    newest_saved_copy,
    refuse_unshared,
    sizes,
)
from agentbus.engine.sqlite.restore import STAGING, is_restorable
from agentbus.engine.sqlite.schema_check import schema_differences, tables_with_invalid_rows
from agentbus.errors import (
    AgentBusError,
    BusForked,
    LockTimeout,
    NotADatabase,
    StoreError,
    UnsafeFile,
    UnsupportedFileSystem,
    UntrustedHome,
)
from agentbus.operations.health import SkippedCheck
from agentbus.operations.processes import CREATED
from agentbus.operations.protocol import Op, Rows
from agentbus.records import Check

R = TypeVar("R")
T = TypeVar("T")

LARGE_LOG = 64 * 1024 * 1024
_WITHOUT_RESET_BUG = (3, 51, 3)
"""The first SQLite without the race between a checkpoint and a writer."""
_LOW_DISK, _MIN_DISK = 1024 * 1024 * 1024, 64 * 1024 * 1024
_VOLATILE = ("tmpfs", "ramfs")
_LOCK_TIMEOUT = 2.0
"""Seconds to wait for a lock that another program holds on the database."""


class HealthCheck:
    """One run of all checks of a store; ``connect`` opens a connection to it."""

    def __init__(self, home: Home, connect: Callable[[], sqlite3.Connection]) -> None:
        self._home = home
        self._connect = connect
        self._queries = load("sqlite")
        self._locked: LockTimeout | None = None

    def run(self) -> list[Check | SkippedCheck]:
        """Run every check that needs no table of the bus; report also those that could not run."""
        if not self._home.directory.is_dir():
            text = f"there is no bus in {self._home.directory}"
            return [Check("database", "error", text, "name another directory, or create a bus: agentbus init")]
        selected = _CHECKS
        checks: list[Check | SkippedCheck] = []
        if not self._home.database.exists():
            checks.append(Check("database", "error", f"there is no {self._home.database}", self.repair))
            selected = {name: run for name, run in _CHECKS.items() if name not in _OF_DATABASE}
        for name, run in selected.items():
            try:
                checks.append(run(self))
            except AgentBusError as error:
                checks.append(self._unseen(name, error))
            except (sqlite3.Error, UnicodeDecodeError) as error:
                checks.append(self._unseen(name, translate_error(error, self._home)))
            except OSError as error:
                reason = f"could not be checked: {error.strerror or error}"
                checks.append(
                    SkippedCheck(name, StoreError(path=str(error.filename or self._home.directory), reason=reason))
                )
        return checks

    def _unseen(self, name: str, error: AgentBusError) -> SkippedCheck:
        return SkippedCheck(name, error, self.repair if isinstance(error, NotADatabase) else None)

    @cached_property
    def repair(self) -> str:
        """Return how to repair a database that is damaged or missing."""
        for backup in backups(self._home):
            if is_restorable(backup.path):
                return backup.advice(self._home)
        copy = newest_saved_copy(self._home)
        if copy is not None and not copy.backup:
            return copy.advice(self._home)
        return f"there is no sound backup in {self._home.backups}; restore one from elsewhere, or move the bus away"

    def _integrity(self) -> Check:
        problems = [str(text) for (text,) in self._query("PRAGMA integrity_check(10)") if text != "ok"]
        if problems:
            return Check("integrity", "error", "; ".join(problems), self.repair)
        connection = self._open()
        try:
            tables = tables_with_invalid_rows(connection)
        finally:
            connection.close()
        if tables:
            text = f"rows violate a CHECK constraint in: {', '.join(tables)}"
            return Check("integrity", "error", text, self.repair)
        return Check("integrity", "ok", "all pages, indexes and rows are sound")

    def _foreign_keys(self) -> Check:
        rows = self._query("PRAGMA foreign_key_check")
        if rows:
            tables = ", ".join(sorted({f"{row[0]} to {row[2]}" for row in rows}))
            refer = "row refers to a row that does" if len(rows) == 1 else "rows refer to rows that do"
            text = f"{len(rows)} {refer} not exist (another program wrote without foreign_keys): {tables}"
            return Check("foreign keys", "error", text, self.repair)
        return Check("foreign keys", "ok", "all references are valid")

    def _schema(self) -> Check:
        ((found,),) = self._query("PRAGMA user_version")
        newest = max(migrations())
        if not found:
            return Check("schema", "error", "the database is empty", self.repair)
        if found != newest:
            fix = "upgrade agentbus" if found > newest else "open the bus, which migrates it"
            return Check("schema", "error", f"schema {found}, this agentbus uses {newest}", fix)
        connection = self._open()
        try:
            wrong = schema_differences(connection)
        finally:
            connection.close()
        if wrong:
            return Check("schema", "error", f"another program changed the schema: {'; '.join(wrong)}", self.repair)
        return Check("schema", "ok", f"schema {found}")

    def _library(self) -> Check:
        version = sqlite3.sqlite_version
        if sqlite3.sqlite_version_info < _WITHOUT_RESET_BUG:
            text = (
                f"SQLite {version} has the WAL-reset bug; the lock of the bus prevents it, "
                "but only among processes of the bus"
            )
            fix = "do not write with other programs while the bus is open, or use a Python with SQLite 3.51.3 or newer"
            return Check("sqlite", "warning", text, fix)
        return Check("sqlite", "ok", f"SQLite {version}")

    def _file_system(self) -> Check:
        try:
            mounts = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
        except OSError:
            return Check("file system", "ok", "unknown on this system")
        kind = filesystem(self._home.directory.resolve(), mounts)
        try:
            refuse_unshared(self._home.directory, mounts)
        except UnsupportedFileSystem as error:
            return Check("file system", "error", str(error.args[0]), error.fix)
        if kind in _VOLATILE:
            text = f"{kind} is in memory: a reboot deletes the bus"
            return Check("file system", "warning", text, "put the bus on a local disk")
        return Check("file system", "ok", kind or "unknown")

    def _permissions(self) -> Check:
        try:
            check(self._home)
        except (UntrustedHome, UnsafeFile) as error:
            return Check("permissions", "error", str(error.args[0]), error.fix)
        denied = [str(path) for path, needed in self._needed() if not os.access(path, needed)]
        if denied:
            fix = f"as the owner: chmod u+rwX {' '.join(denied)}"
            return Check("permissions", "error", f"this user may not read and write {_first_few(denied)}", fix)
        if (reason := ownership_problem(self._home.directory.stat())) is not None:
            text = f"{self._home.directory} is trusted, although {reason}"
            return Check("permissions", "warning", text, "to stop trusting it: agentbus trust --remove, AGENTBUS_TRUST")
        found = list(_stat_files(self._home))
        foreign = [str(path) for path, status in found if not is_own(status.st_uid)]
        if foreign:
            fix = f"as root: chown -R {os.geteuid()} {self._home.directory}"
            return Check("permissions", "warning", f"other users own {_first_few(foreign)}", fix)
        exposed = [str(path) for path, status in found if status.st_mode & 0o077]
        if exposed:
            fix = f"chmod -R go= {self._home.directory}"
            return Check("permissions", "warning", f"other users can access {_first_few(exposed)}", fix)
        return Check("permissions", "ok", "for this user only")

    def _log(self) -> Check:
        size = self._home.log.stat().st_size if self._home.log.exists() else 0
        if size > LARGE_LOG:
            text = f"the log has {size // 2**20} MiB: a reader runs for very long, or no process checkpoints it"
            return Check(
                "log", "warning", text, "end long readers; the log shrinks when all processes have closed the bus"
            )
        return Check("log", "ok", f"{size // 1024} KiB")

    def _disk(self) -> Check:
        free = shutil.disk_usage(self._home.directory).free
        size = self._home.database.stat().st_size if self._home.database.exists() else 0
        text = f"{free // 2**20} MiB free"
        if free < _MIN_DISK:
            return Check("disk", "error", text, "free space: the bus cannot be written when the disk is full")
        if free < max(_LOW_DISK, 2 * size):
            return Check(
                "disk", "warning", f"{text}, the bus has {size // 2**20} MiB", "free space for the bus and a backup"
            )
        return Check("disk", "ok", text)

    def _backups(self) -> Check:
        """Check that the bus is the one that was backed up: opening a bus that was lost creates a new one."""
        copy = newest_saved_copy(self._home)
        if copy is None or not copy.backup:
            return Check("backups", "ok", "no backup; agentbus backup makes one")
        rows = self._query(self._queries["meta_get"], CREATED)
        if rows and (created := timestamp(int(rows[0][0]))) > copy.moment:
            text = f"this bus was created at {created}, after its newest backup, whose data it does not contain"
            return Check("backups", "warning", text, f"{copy.advice(self._home)}; or make a backup of this one")
        return Check("backups", "ok", f"the newest is {copy.path.name}")

    def _orphans(self) -> Check:
        """Find doorbells that no process answers, and leftovers of killed processes."""
        home = self._home
        live = {bell for (bell,) in self._query(self._queries["process_bells"])}
        found = [
            str(bell)
            for bell in _entries(home.bells)
            if bell.is_socket() and str(bell) not in live and process_info.is_listening(str(bell)) is False
        ]
        found += [str(path) for path in _entries(home.directory) if ".of-" in path.name]
        if holder(home.lock) is None:
            found += [str(path) for path in _entries(home.directory) if path.name.startswith(STAGING)]
            found += [str(path) for path in _entries(home.backups) if path.name.startswith(REPLACING)]
        if holder(str(home.directory / BACKUP_LOCK)) is None:
            found += [str(path) for path in _entries(home.backups) if UNFINISHED in path.name]
        found += [str(path) for path in find_abandoned(home.archive, f"{EXPORT_PREFIX}*")]
        if found:
            text = f"left behind by processes that ended: {_first_few(found)}"
            fix = "remove files with .of- in the name; the next open, backup, restore or export removes the others"
            return Check("orphans", "warning", text, fix)
        return Check("orphans", "ok", "no leftover doorbells or files")

    def _lock(self) -> Check:
        pid = holder(self._home.lock)
        if pid is None:
            return Check("lock", "ok", "free")
        return Check("lock", "ok", f"held by process {pid}", f"if that persists, end process {pid}")

    def _needed(self) -> Iterator[tuple[Path, int]]:
        yield self._home.directory, os.R_OK | os.W_OK | os.X_OK
        for file in (self._home.database, self._home.log, Path(self._home.lock)):
            if file.exists():
                yield file, os.R_OK | os.W_OK

    def _query(self, sql: str, *parameters: str) -> Rows:
        connection = self._open()
        try:
            return connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            found = translate_error(error, self._home)
            if isinstance(found, LockTimeout):
                self._locked = found
            raise found from error
        finally:
            connection.close()

    def _open(self) -> sqlite3.Connection:
        if self._locked is not None:
            # One lock timeout is enough: do not wait again in every check.
            raise self._locked
        return self._connect()


_CHECKS: dict[str, Callable[[HealthCheck], Check]] = {
    "integrity": HealthCheck._integrity,
    "foreign keys": HealthCheck._foreign_keys,
    "schema": HealthCheck._schema,
    "sqlite": HealthCheck._library,
    "file system": HealthCheck._file_system,
    "permissions": HealthCheck._permissions,
    "log": HealthCheck._log,
    "disk": HealthCheck._disk,
    "backups": HealthCheck._backups,
    "orphans": HealthCheck._orphans,
    "lock": HealthCheck._lock,
}
_OF_DATABASE = {"integrity", "foreign keys", "schema", "log", "backups", "orphans", "lock"}
"""Checks that need a database."""


def _stat_files(home: Home) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the files and directories of a bus with their status; links and sockets have no permissions."""
    yield home.directory, home.directory.stat()
    for folder in (home.directory, home.backups, home.archive):
        for path in _entries(folder):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
                yield path, found


def _first_few(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{' …' if len(names) > 5 else ''}"


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def run_isolated_read(op: Op[T], connect: Callable[[], sqlite3.Connection], home: Home) -> T:
    """Run a read-only operation on a new connection, which also accepts text that is not Unicode."""
    connection = connect()
    try:
        connection.text_factory = _text
        return run_read(op, connection)
    except sqlite3.Error as error:
        raise translate_error(error, home) from error
    except (TypeError, ValueError, LookupError) as error:
        raise NotADatabase(path=home.file, reason="it contains a value of the wrong type") from error
    finally:
        connection.close()


def _text(stored: bytes) -> str:
    return stored.decode(errors="surrogateescape")


class OfflineStore:
    """A bus in one file that is not opened: the doctor creates and changes nothing, whatever its state."""

    process = 0

    def __init__(self, home: Home, clock: Clock) -> None:
        self._home = home
        self.home: str | None = home.root
        self._clock = clock
        if home.database.exists() and process_safety.is_inherited(identity(home.database)):
            raise BusForked(parent=os.getppid())

    async def check_health(self) -> list[Check | SkippedCheck]:
        return await anyio.to_thread.run_sync(HealthCheck(self._home, self._connect).run)

    async def sizes(self) -> tuple[int, int]:
        return sizes(self._home)

    async def read_isolated(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        op = question(request, self._clock.now())
        return await anyio.to_thread.run_sync(lambda: run_isolated_read(op, self._connect, self._home))

    def _connect(self) -> sqlite3.Connection:
        check(self._home)
        return open_untouched(self._home, _LOCK_TIMEOUT)
