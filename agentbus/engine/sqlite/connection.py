"""Open connections: pragmas, schema, and the translation of SQLite's errors."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agentbus.engine import process_safety
from agentbus.engine.queries import named, queries
from agentbus.engine.sqlite import disk_reserve
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.paths import Home, check_database
from agentbus.errors import (
    AgentBusError,
    BusForked,
    DiskFull,
    ForeignObjects,
    FormatRefused,
    LockedElsewhere,
    NotADatabase,
    NotWritable,
    OutcomeUnknown,
    SchemaTooNew,
    SQLiteTooOld,
    StoreError,
    TooManyFiles,
)

if TYPE_CHECKING:
    from agentbus.operations.protocol import Op, Query

T = TypeVar("T")
OLDEST_SQLITE = (3, 37, 0)
"""The first version with STRICT tables."""
_PRAGMAS = (
    "PRAGMA foreign_keys = ON",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -16000",
)
_JSON_IS_INNOCUOUS = "SELECT 1 FROM pragma_function_list WHERE name = 'json_valid' AND flags & 0x200000"
_innocuous: list[bool] = []
"""The answer to that query, once it was asked."""


def open_writer(home: Home, lock: FileLock) -> sqlite3.Connection:
    """Open a connection for writing, and migrate the database."""
    require_sqlite(sqlite3.sqlite_version_info)
    if process_safety.is_inherited(identity(home.file)):
        raise BusForked(parent=os.getppid())
    with lock.held():
        connection = _connect(home, lock.timeout)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            if migrate(connection, home):
                # Each of its commits was synced.
                with suppress(OSError):
                    lock.counters.set_synced(lock.counters.announce())
            disk_reserve.load(home.root)
            # The writer itself retries while another program writes, without holding the lock.
            connection.execute("PRAGMA busy_timeout = 0")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            # Before the connection is closed, which may free the descriptor that was missing.
            problem = translate_error(error, home)
            connection.close()
            raise problem from error
        except BaseException:
            connection.close()
            raise
        return connection


def identity(path: str | os.PathLike[str]) -> process_safety.File:
    """Return the device and inode of a file."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def open_reader(home: Home, busy: float) -> sqlite3.Connection:
    """Open a connection that only reads."""
    connection = _connect(home, busy)
    connection.execute("PRAGMA query_only = ON")
    return connection


def open_untouched(home: Home, busy: float) -> sqlite3.Connection:
    """Open a connection that only reads and leaves the files unchanged, whatever their state.

    Closing a connection that may write would checkpoint, which needs the lock. Without a log no program has the
    database open, and SQLite is told not to create one.
    """
    logged = home.log.exists() or home.journal.exists() or process_safety.is_open(identity(home.database))
    return _connect(home, busy, f"?mode=ro{'' if logged else '&immutable=1'}")


def run_read(op: Op[T], connection: sqlite3.Connection) -> T:
    """Run a read-only operation and return its result."""
    sql = queries("sqlite")
    try:
        step = next(op)
        while True:
            query = cast("Query", step)
            step = op.send(connection.execute(sql[query.name], query.with_json_lists()).fetchall())
    except StopIteration as stop:
        return cast("T", stop.value)


def migrate(connection: sqlite3.Connection, home: Home) -> bool:
    """Migrate the schema, unless it contains objects of another program. Return True if there was none before."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    newest = newest_schema()
    if found > newest:
        raise SchemaTooNew(path=home.file, found=found, known=newest)
    refuse_foreign(connection, home, found)
    if found == newest:
        return False
    if not found:
        _warn_of_saved_copy(home)
    # Imported only here: most openings have nothing to migrate.
    from agentbus.engine.sqlite import migration

    migration.run(connection, home, found, migrations())
    return not found


def refuse_foreign(connection: sqlite3.Connection, home: Home, version: int) -> None:
    """Refuse a database with a trigger, view or virtual table of another program, which could act on what is written or
    replace a table. The file may come from an untrusted source, such as a repository."""
    known = "\n".join(migrations().values())
    if all(sql in known for sql, *_ in connection.execute(named("sqlite/schema")["schema_acting"])):
        return
    # Rare: a trigger whose text SQLite changed, or one of another program.
    from agentbus.engine.sqlite.schema_check import foreign_objects

    if objects := foreign_objects(connection, version):
        raise ForeignObjects(path=home.file, objects=", ".join(objects))


@cache
def migrations() -> dict[int, str]:
    """Return the texts of the schema's numbered files, read once: the package may be replaced while the process runs.
    In a checkout they are next to the package, in a wheel inside it."""
    package = __file__.rsplit("/", 3)[0]
    folder = f"{package}/_schemas/sqlite"
    if not os.path.isdir(folder):
        folder = f"{os.path.dirname(package)}/schemas/sqlite"
    steps: dict[int, str] = {}
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".sql")):
        with open(f"{folder}/{name}", "rb") as file:
            steps[int(name.partition("_")[0])] = file.read().decode()
    return steps


def newest_schema() -> int:
    """Return the schema version of this program."""
    return max(migrations())


def require_sqlite(found: tuple[int, ...]) -> None:
    if found < OLDEST_SQLITE:
        raise SQLiteTooOld(found=".".join(map(str, found)), needed=".".join(map(str, OLDEST_SQLITE)))


def translate_error(
    error: sqlite3.Error | UnicodeDecodeError, home: Home, *, committing: bool = False
) -> AgentBusError:
    """Return the AgentBusError for an error of SQLite, by its code and never by its text."""
    path = home.file
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, UnicodeDecodeError) or (code is None and isinstance(error, sqlite3.OperationalError)):
        # From Python, which could not decode a text. Its message contains the whole text.
        return NotADatabase(path=path, reason="it contains text that is not Unicode")
    primary = None if code is None else code & 0xFF
    # SQLite also reports a full disk as shared memory that cannot grow.
    if primary == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR_SHMSIZE:
        return DiskFull(path=path)
    if primary in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return LockedElsewhere(path=path)
    if primary in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
        return NotADatabase(path=path, reason=str(error))
    if primary == sqlite3.SQLITE_CANTOPEN and (reason := missing_descriptor()) is not None:
        return TooManyFiles(path=path, reason=reason)
    if primary in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}:
        return NotWritable(path=path, reason=str(error))
    if primary == sqlite3.SQLITE_CONSTRAINT:
        return FormatRefused(reason=str(error))
    if primary == sqlite3.SQLITE_IOERR and committing:
        return OutcomeUnknown(path=path, reason=str(error))
    return StoreError(path=path, reason=str(error))


def missing_descriptor() -> str | None:
    """Return the reason if this process can open no further file: SQLite does not report it."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror
    return None


def _warn_of_saved_copy(home: Home) -> None:
    """Warn if there are backups or archives: a bus existed here before."""
    import logging

    from agentbus.engine.sqlite.paths import newest_saved_copy

    copy = newest_saved_copy(home)
    if copy is not None:
        text = "%s was missing or empty, created a new bus; %s"
        logging.getLogger("agentbus").warning(text, home.file, copy.advice(home))


class NumberedConnection(sqlite3.Connection):
    """Binds ``?1``, ``?2`` … by number. Python 3.12.0 to 3.12.3 treats them as names, and warns of a sequence."""

    def execute(self, sql: str, parameters: Any = (), /) -> sqlite3.Cursor:
        return super().execute(sql, _numbered(parameters) if "?1" in sql else parameters)

    def executemany(self, sql: str, parameters: Iterable[Any], /) -> sqlite3.Cursor:
        return super().executemany(sql, map(_numbered, parameters) if "?1" in sql else parameters)


def _numbered(parameters: Any) -> dict[str, Any]:
    return {str(number): value for number, value in enumerate(parameters, 1)}


Connection = NumberedConnection if 0x030C0000 <= sys.hexversion < 0x030C0400 else sqlite3.Connection


def _uri(path: str, options: str) -> str:
    from urllib.parse import quote

    return f"file:{quote(path)}{options}"


class _TrackedConnection(Connection):  # type: ignore[misc, valid-type]
    """A connection that is registered for forked children."""

    registration: process_safety.OpenDatabase

    def close(self) -> None:
        super().close()
        self.registration.close()


def _connect(home: Home, busy: float, options: str = "") -> sqlite3.Connection:
    check_database(home)
    name = _uri(home.file, options) if options else home.file
    registration = process_safety.OpenDatabase(home.file)
    try:
        connection = sqlite3.connect(
            name,
            timeout=busy,
            isolation_level=None,
            check_same_thread=False,
            factory=_TrackedConnection,
            cached_statements=256,
            uri=bool(options),
        )
    except sqlite3.Error as error:
        raise translate_error(error, home) from error
    connection.registration = registration
    try:
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        if _json_is_innocuous(connection):
            connection.execute("PRAGMA trusted_schema = OFF")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        problem = translate_error(error, home)
        connection.close()
        raise problem from error
    return connection


def _json_is_innocuous(connection: sqlite3.Connection) -> bool:
    """Return False if SQLite is older (such as 3.40) and does not mark json_valid as innocuous: it would then refuse
    the CHECK constraints. Asked once: it is a property of the library, and a query over all of its functions."""
    if not _innocuous:
        _innocuous.append(connection.execute(_JSON_IS_INNOCUOUS).fetchone() is not None)
    return _innocuous[0]
