"""What the doctor asks of an SQLite store: its file, its surroundings, the library itself.

Everything here blocks, on connections of its own that only read: never under the write lock. The files themselves are
only looked at from outside: opening one that SQLite has open would drop its locks.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

from agentbus.disk import EXPORTING, left_behind, stamp
from agentbus.engine import presence
from agentbus.engine.queries import load
from agentbus.engine.sqlite.backup import UNFINISHED
from agentbus.engine.sqlite.connection import migrations, translated
from agentbus.engine.sqlite.home import BACKUP_LOCK, REPLACING, Home, check, filesystem, refuse_unshared
from agentbus.engine.sqlite.lock import holder
from agentbus.engine.sqlite.relics import backups, newest_relic
from agentbus.engine.sqlite.restoring import WORKSHOP
from agentbus.engine.sqlite.shape import differences, is_sound, refused
from agentbus.errors import (
    AgentBusError,
    LockTimeout,
    NotADatabase,
    StoreError,
    UnsafeFile,
    UnsupportedFileSystem,
    UntrustedHome,
)
from agentbus.operations import Rows
from agentbus.operations.examining import Unseen
from agentbus.operations.processes import CREATED
from agentbus.records import Check
from agentbus.safe_files import doubt, is_own

LARGE_LOG = 64 * 1024 * 1024
_WITHOUT_RESET_BUG = (3, 51, 3)
"""The first SQLite in which a checkpoint and a writer cannot damage the database between them."""
_LOW, _LOWEST = 1024 * 1024 * 1024, 64 * 1024 * 1024
_VOLATILE = ("tmpfs", "ramfs")


class Examination:
    """One look at a store; ``connect`` opens a connection to it."""

    def __init__(self, home: Home, connect: Callable[[], sqlite3.Connection]) -> None:
        self._home = home
        self._connect = connect
        self._queries = load("sqlite")
        self._locked: LockTimeout | None = None

    def look(self) -> list[Check | Unseen]:
        """Every check that needs no table of the bus, or why it could not be made."""
        if not self._home.directory.is_dir():
            text = f"there is no bus in {self._home.directory}"
            return [Check("database", "error", text, "name another directory; agentbus.connect(…) makes a bus")]
        looks = _LOOKS
        checks: list[Check | Unseen] = []
        if not self._home.database.exists():
            checks.append(Check("database", "error", f"there is no {self._home.database}", self.cure))
            looks = {name: look for name, look in _LOOKS.items() if name not in _ASKING}
        for name, look in looks.items():
            try:
                checks.append(look(self))
            except AgentBusError as error:
                checks.append(self._unseen(name, error))
            except (sqlite3.Error, UnicodeDecodeError) as error:
                checks.append(self._unseen(name, translated(error, self._home)))
            except OSError as error:
                reason = f"could not be looked at: {error.strerror or error}"
                checks.append(Unseen(name, StoreError(path=str(error.filename or self._home.directory), reason=reason)))
        return checks

    def _unseen(self, name: str, error: AgentBusError) -> Unseen:
        return Unseen(name, error, self.cure if isinstance(error, NotADatabase) else None)

    @cached_property
    def cure(self) -> str:
        """What to do about a database that is damaged or gone."""
        for backup in backups(self._home):
            if is_sound(backup.path):
                return backup.advice(self._home)
        relic = newest_relic(self._home)
        if relic is not None and not relic.backup:
            return relic.advice(self._home)
        return f"there is no sound backup in {self._home.backups}; look for one elsewhere, or move the bus away"

    def _integrity(self) -> Check:
        problems = [str(text) for (text,) in self._asked("PRAGMA integrity_check(10)") if text != "ok"]
        if problems:
            return Check("integrity", "error", "; ".join(problems), self.cure)
        connection = self._opened()
        try:
            tables = refused(connection)
        finally:
            connection.close()
        if tables:
            text = f"rows that a CHECK constraint refuses are in: {', '.join(tables)}"
            return Check("integrity", "error", text, self.cure)
        return Check("integrity", "ok", "every page, index and row is sound")

    def _foreign_keys(self) -> Check:
        rows = self._asked("PRAGMA foreign_key_check")
        if rows:
            tables = ", ".join(sorted({f"{row[0]} to {row[2]}" for row in rows}))
            refer = "row refers to a row that is" if len(rows) == 1 else "rows refer to rows that are"
            text = f"{len(rows)} {refer} not there (somebody wrote without foreign_keys): {tables}"
            return Check("foreign keys", "error", text, self.cure)
        return Check("foreign keys", "ok", "every reference leads somewhere")

    def _schema(self) -> Check:
        ((found,),) = self._asked("PRAGMA user_version")
        newest = max(migrations())
        if not found:
            return Check("schema", "error", "the database is empty", self.cure)
        if found != newest:
            fix = "upgrade agentbus" if found > newest else "open the bus: that brings it up to date"
            return Check("schema", "error", f"schema {found}, this agentbus uses {newest}", fix)
        connection = self._opened()
        try:
            wrong = differences(connection)
        finally:
            connection.close()
        if wrong:
            return Check("schema", "error", f"somebody changed the tables: {'; '.join(wrong)}", self.cure)
        return Check("schema", "ok", f"schema {found}")

    def _library(self) -> Check:
        version = sqlite3.sqlite_version
        if sqlite3.sqlite_version_info < _WITHOUT_RESET_BUG:
            text = (
                f"SQLite {version} has the WAL-reset bug; the lock of the bus keeps it away, "
                "but only from the bus itself"
            )
            fix = "do not write with other programs while the bus is open, or use a Python with SQLite 3.51.3 or newer"
            return Check("sqlite", "warning", text, fix)
        return Check("sqlite", "ok", f"SQLite {version}")

    def _file_system(self) -> Check:
        try:
            mounts = os.fsdecode(Path("/proc/self/mountinfo").read_bytes())
        except OSError:
            return Check("file system", "ok", "this system does not say which it is")
        kind = filesystem(self._home.directory.resolve(), mounts)
        try:
            refuse_unshared(self._home.directory, mounts)
        except UnsupportedFileSystem as error:
            return Check("file system", "error", str(error.args[0]), error.fix)
        if kind in _VOLATILE:
            text = f"{kind} is in memory: the bus is gone after a reboot"
            return Check("file system", "warning", text, "put the bus on a local disk")
        return Check("file system", "ok", kind or "unknown")

    def _permissions(self) -> Check:
        try:
            check(self._home)
        except (UntrustedHome, UnsafeFile) as error:
            return Check("permissions", "error", str(error.args[0]), error.fix)
        closed = [str(path) for path, needed in self._needed() if not os.access(path, needed)]
        if closed:
            fix = f"as the owner: chmod u+rwX {' '.join(closed)}"
            return Check("permissions", "error", f"this user may not read and write {_some(closed)}", fix)
        if (reason := doubt(self._home.directory.stat())) is not None:
            text = f"{self._home.directory} is trusted, although {reason}"
            return Check("permissions", "warning", text, "trust it no longer: agentbus trust --remove, AGENTBUS_TRUST")
        found = list(_found(self._home))
        foreign = [str(path) for path, status in found if not is_own(status.st_uid)]
        if foreign:
            fix = f"as root: chown -R {os.geteuid()} {self._home.directory}"
            return Check("permissions", "warning", f"other users own {_some(foreign)}", fix)
        opened = [str(path) for path, status in found if status.st_mode & 0o077]
        if opened:
            fix = f"chmod -R go= {self._home.directory}"
            return Check("permissions", "warning", f"others may reach into {_some(opened)}", fix)
        return Check("permissions", "ok", "for this user only")

    def _log(self) -> Check:
        size = self._home.log.stat().st_size if self._home.log.exists() else 0
        if size > LARGE_LOG:
            text = (
                f"the log has {size // 2**20} MiB: somebody reads for very long, or nothing moves it into the database"
            )
            return Check("log", "warning", text, "end long readers; it shrinks when all processes have closed the bus")
        return Check("log", "ok", f"{size // 1024} KiB")

    def _disk(self) -> Check:
        free = shutil.disk_usage(self._home.directory).free
        size = self._home.database.stat().st_size if self._home.database.exists() else 0
        text = f"{free // 2**20} MiB free"
        if free < _LOWEST:
            return Check("disk", "error", text, "make room: the bus cannot be written to when the disk is full")
        if free < max(_LOW, 2 * size):
            return Check("disk", "warning", f"{text}, the bus has {size // 2**20} MiB", "make room for it and a backup")
        return Check("disk", "ok", text)

    def _backups(self) -> Check:
        """Whether the bus is the one that was backed up: who opens a bus that vanished gets a new one."""
        relic = newest_relic(self._home)
        if relic is None or not relic.backup:
            return Check("backups", "ok", "there is none; await bus.backup() makes one")
        rows = self._asked(self._queries["meta_get"], CREATED)
        if rows and (made := stamp(int(rows[0][0]))) > relic.moment:
            text = f"this bus was made at {made}, after its newest backup: what was backed up is not in it"
            return Check("backups", "warning", text, f"{relic.advice(self._home)}; or make a backup of this one")
        return Check("backups", "ok", f"the newest is {relic.path.name}")

    def _orphans(self) -> Check:
        """Doorbells that nobody answers to, and what was left behind by somebody who was killed."""
        home = self._home
        live = {bell for (bell,) in self._asked(self._queries["process_bells"])}
        found = [
            str(bell)
            for bell in _entries(home.bells)
            if bell.is_socket() and str(bell) not in live and presence.answers(str(bell)) is False
        ]
        found += [str(path) for path in _entries(home.directory) if ".of-" in path.name]
        if holder(home.lock) is None:
            found += [str(path) for path in _entries(home.directory) if path.name.startswith(WORKSHOP)]
            found += [str(path) for path in _entries(home.backups) if path.name.startswith(REPLACING)]
        if holder(str(home.directory / BACKUP_LOCK)) is None:
            found += [str(path) for path in _entries(home.backups) if UNFINISHED in path.name]
        found += [str(path) for path in left_behind(home.archive, f"{EXPORTING}*")]
        if found:
            text = f"left behind by somebody who is gone: {_some(found)}"
            fix = "remove what has .of- in its name; the rest goes with the next opening, backup, restore or export"
            return Check("orphans", "warning", text, fix)
        return Check("orphans", "ok", "no bells and files without an owner")

    def _lock(self) -> Check:
        pid = holder(self._home.lock)
        if pid is None:
            return Check("lock", "ok", "free")
        return Check("lock", "ok", f"process {pid} has it at this moment", f"if it stays so, end process {pid}")

    def _needed(self) -> Iterator[tuple[Path, int]]:
        yield self._home.directory, os.R_OK | os.W_OK | os.X_OK
        for file in (self._home.database, self._home.log, Path(self._home.lock)):
            if file.exists():
                yield file, os.R_OK | os.W_OK

    def _asked(self, question: str, *parameters: str) -> Rows:
        connection = self._opened()
        try:
            return connection.execute(question, parameters).fetchall()
        except sqlite3.Error as error:
            found = translated(error, self._home)
            if isinstance(found, LockTimeout):
                self._locked = found
            raise found from error
        finally:
            connection.close()

    def _opened(self) -> sqlite3.Connection:
        if self._locked is not None:
            # Whoever waited in vain once does not wait again for every check.
            raise self._locked
        return self._connect()


_LOOKS: dict[str, Callable[[Examination], Check]] = {
    "integrity": Examination._integrity,
    "foreign keys": Examination._foreign_keys,
    "schema": Examination._schema,
    "sqlite": Examination._library,
    "file system": Examination._file_system,
    "permissions": Examination._permissions,
    "log": Examination._log,
    "disk": Examination._disk,
    "backups": Examination._backups,
    "orphans": Examination._orphans,
    "lock": Examination._lock,
}
_ASKING = {"integrity", "foreign keys", "schema", "log", "backups", "orphans", "lock"}
"""What there is to say only of a database that is there."""


def _found(home: Home) -> Iterator[tuple[Path, os.stat_result]]:
    """All that belongs to a bus, with its owner and permissions; links and sockets have none of their own."""
    yield home.directory, home.directory.stat()
    for folder in (home.directory, home.backups, home.archive):
        for path in _entries(folder):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
                yield path, found


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{' …' if len(names) > 5 else ''}"


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
