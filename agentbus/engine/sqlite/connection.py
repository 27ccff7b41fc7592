"""Opening the database: pragmas, schema, and SQLite's errors in the bus's words."""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

from agentbus import ballast
from agentbus.engine import forking
from agentbus.engine.queries import named
from agentbus.engine.sqlite.home import Home, check_database
from agentbus.engine.sqlite.lock import FileLock
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

OLDEST_SQLITE = (3, 37, 0)
"""The first with STRICT tables."""
_PRAGMAS = (
    "PRAGMA foreign_keys = ON",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA cache_size = -16000",
)
_JSON_IS_HARMLESS = "SELECT 1 FROM pragma_function_list WHERE name = 'json_valid' AND flags & 0x200000"


def open_writer(home: Home, lock: FileLock) -> sqlite3.Connection:
    """A connection that may write, on a database of the current schema."""
    require_sqlite(sqlite3.sqlite_version_info)
    if forking.is_inherited(identity(home.file)):
        raise BusForked(parent=os.getppid())
    with lock.held():
        connection = _connect(home, lock.timeout)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            migrate(connection, home)
            ballast.load(home.root)
            # From here on a foreign writer is waited for by us, without holding our lock meanwhile.
            connection.execute("PRAGMA busy_timeout = 0")
        except (sqlite3.Error, UnicodeDecodeError) as error:
            # Before it is closed, which may free the descriptor that was missing.
            problem = translated(error, home)
            connection.close()
            raise problem from error
        except BaseException:
            connection.close()
            raise
        return connection


def identity(path: str | os.PathLike[str]) -> forking.File:
    """Which file this is, whatever its name."""
    found = os.stat(path)
    return found.st_dev, found.st_ino


def open_reader(home: Home, busy: float) -> sqlite3.Connection:
    """A connection that only reads."""
    connection = _connect(home, busy)
    connection.execute("PRAGMA query_only = ON")
    return connection


def open_untouched(home: Home, busy: float) -> sqlite3.Connection:
    """A connection that only reads, and that leaves the files as they are, in whatever state that is.

    Closing one that may write would move the log into the database, for which it would need the lock. Where there is no
    log, nobody has the database open, and SQLite is told not to make one.
    """
    alone = not home.log.exists() and not home.journal.exists() and not forking.is_open(identity(home.database))
    return _connect(home, busy, f"?mode=ro{'&immutable=1' if alone else ''}")


def migrate(connection: sqlite3.Connection, home: Home) -> None:
    """Bring the schema up to date, once it is known that nothing in it is of another program."""
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    newest = newest_schema()
    if found > newest:
        raise SchemaTooNew(path=home.file, found=found, known=newest)
    refuse_foreign(connection, home, found)
    if found == newest:
        return
    if not found:
        _warn_of_relics(home)
    # Imported only here: most openings have nothing to migrate.
    from agentbus.engine.sqlite import migration

    migration.run(connection, home, found, migrations())


def refuse_foreign(connection: sqlite3.Connection, home: Home, version: int) -> None:
    """Refuse a database with a trigger, a view or a virtual table of another program: such a thing acts on what is
    written, or stands where a table should be. The file may come from anywhere, for example with a repository."""
    known = "\n".join(migrations().values())
    if all(sql in known for sql, *_ in connection.execute(named("file")["file_acting"])):
        return
    # Rare: a trigger whose text SQLite itself has changed since; or one of another program.
    from agentbus.engine.sqlite.shape import foreign

    if objects := foreign(connection, version):
        raise ForeignObjects(path=home.file, objects=", ".join(objects))


@cache
def migrations() -> dict[int, str]:
    """The texts of the schema's numbered files, read once: the package may be replaced under a running process. In a
    checkout they lie beside the package, in a wheel inside it."""
    package = __file__.rsplit("/", 3)[0]
    folder = f"{package}/_schemas/sqlite"
    if not os.path.isdir(folder):
        folder = f"{os.path.dirname(package)}/schemas/sqlite"
    steps: dict[int, str] = {}
    for name in sorted(name for name in os.listdir(folder) if name.endswith(".sql")):
        with open(f"{folder}/{name}", encoding="utf-8") as file:
            steps[int(name.partition("_")[0])] = file.read()
    return steps


def newest_schema() -> int:
    """The schema that this program knows."""
    return max(migrations())


def require_sqlite(found: tuple[int, ...]) -> None:
    if found < OLDEST_SQLITE:
        raise SQLiteTooOld(found=".".join(map(str, found)), needed=".".join(map(str, OLDEST_SQLITE)))


def translated(error: sqlite3.Error | UnicodeDecodeError, home: Home, *, committing: bool = False) -> AgentBusError:
    """SQLite's error in the bus's words, by its code and never by its text."""
    path = home.file
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, UnicodeDecodeError) or (code is None and isinstance(error, sqlite3.OperationalError)):
        # Not from SQLite, but from Python, which was to make a text of it. Its message has all of that text.
        return NotADatabase(path=path, reason="something in it that should be a text is not Unicode")
    primary = None if code is None else code & 0xFF
    # Shared memory that cannot grow is SQLite's other way to say that the disk is full.
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
    """Return the reason why no file can be opened, if none can: SQLite does not say why it could not open one."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return error.strerror
    return None


def _warn_of_relics(home: Home) -> None:
    """Where there are backups or archives there was a bus."""
    import logging

    from agentbus.engine.sqlite.relics import newest_relic

    relic = newest_relic(home)
    if relic is not None:
        text = "%s was missing or empty, a new bus was made; %s"
        logging.getLogger("agentbus").warning(text, home.file, relic.advice(home))


class NumberedConnection(sqlite3.Connection):
    """Binds ``?1``, ``?2`` … by number. Python 3.12.0 to 3.12.3 takes them for names, and warns of a sequence."""

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
    """A connection that a forked child knows of."""

    opened: forking.OpenDatabase

    def close(self) -> None:
        super().close()
        self.opened.close()


def _connect(home: Home, busy: float, options: str = "") -> sqlite3.Connection:
    check_database(home)
    name = _uri(home.file, options) if options else home.file
    opened = forking.OpenDatabase(home.file)
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
        raise translated(error, home) from error
    connection.opened = opened
    try:
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        # Older SQLite (3.40 among them) does not count json_valid as harmless, and then refuses our CHECK constraints.
        if connection.execute(_JSON_IS_HARMLESS).fetchone():
            connection.execute("PRAGMA trusted_schema = OFF")
    except (sqlite3.Error, UnicodeDecodeError) as error:
        problem = translated(error, home)
        connection.close()
        raise problem from error
    return connection
