"""A bus in one file that this user can read but not write.

Every read opens the database and closes it again. Nothing is written: no lock, no visit, no log.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NoReturn, TypeVar

from agentbus.core.clock import Clock, Now
from agentbus.engine import process_safety
from agentbus.engine.sqlite import paths
from agentbus.engine.sqlite.connection import (
    identity,
    newest_schema,
    open_untouched,
    refuse_foreign,
    require_sqlite,
    run_read,
    translate_error,
)
from agentbus.engine.sqlite.wal import sync_what_is_read
from agentbus.errors import BusClosed, BusForked, LockedElsewhere, ReadOnlyBus, SchemaTooNew
from agentbus.operations.protocol import Op, Operation

if TYPE_CHECKING:
    from agentbus.engine.blocking import WaitingProcess

R = TypeVar("R")
T = TypeVar("T")
_MAX_ATTEMPTS = 10


class ReadOnlySQLite:
    """A read-only bus. ``engine.blocking`` describes the methods."""

    read_only = True

    def __init__(self, home: paths.Home, reason: str, *, clock: Clock, lock_timeout: float) -> None:
        paths.check(home)
        require_sqlite(sqlite3.sqlite_version_info)
        if process_safety.is_inherited(identity(home.file)):
            raise BusForked(parent=os.getppid())
        self.clock = clock
        self._owner = process_safety.Owner()
        self._home = home
        self._reason = reason
        self._lock_timeout = lock_timeout
        self._closed = False
        self._require_schema()

    @property
    def home(self) -> str:
        return self._home.root

    shown = home

    def write(
        self, operation: Operation[R, T], request: R, *, durable: bool | None = None, lock_timeout: float | None = None
    ) -> T:
        self._check()
        self._refuse()

    def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        self._check()
        with sync_what_is_read(self._home.lock, self._home.log):
            return self._query(lambda connection: run_read(question(request, self.clock.now()), connection))

    def pause_writes(self) -> AbstractContextManager[None]:
        self._refuse()

    def wait_for_wakeups(self) -> AbstractContextManager[WaitingProcess]:
        # A waiting process would have to be registered.
        self._refuse()

    def set_process(self, process: int) -> None:
        self._refuse()

    def owns_file(self, device: int, inode: int) -> bool:
        return process_safety.is_open((device, inode))

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        """Do nothing: a process that can write removes them."""

    def sizes(self) -> tuple[int, int]:
        return paths.sizes(self._home)

    def lock_wait_ms(self) -> int:
        return 0

    def close(self) -> None:
        self._closed = True

    def _check(self) -> None:
        self._owner.check()
        if self._closed:
            raise BusClosed

    def _refuse(self) -> NoReturn:
        raise ReadOnlyBus(path=self._home.root, reason=self._reason)

    def _require_schema(self) -> None:
        ((found,),) = self._query(lambda connection: connection.execute("PRAGMA user_version").fetchall())
        if found > newest_schema():
            raise SchemaTooNew(path=self._home.file, found=found, known=newest_schema())
        if found < newest_schema():
            reason = f"{self._reason}; its schema {found} is old and cannot be migrated"
            raise ReadOnlyBus(path=self._home.root, reason=reason)
        self._query(lambda connection: refuse_foreign(connection, self._home, found))

    def _query(self, read: Callable[[sqlite3.Connection], T]) -> T:
        """Query the database, and again if its file changed meanwhile.

        Without a log, the file is opened as immutable, because SQLite cannot create the files it needs to detect
        changes. A process that opens the bus at this moment can still change it.
        """
        for _ in range(_MAX_ATTEMPTS):
            before = self._state()
            connection = open_untouched(self._home, self._lock_timeout)
            try:
                answer = read(connection)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                problem = translate_error(error, self._home)
                if self._state() == before:
                    raise problem from error
            else:
                if before[0] or self._state() == before:
                    return answer
            finally:
                connection.close()
        raise LockedElsewhere(path=self._home.file, waited=0)

    def _state(self) -> tuple[bool, tuple[int, ...]]:
        """Return True if there is a log, with which SQLite reads a snapshot; and values that change with each write."""
        found = os.stat(self._home.file)
        return self._home.log.exists(), (found.st_ino, found.st_size, found.st_mtime_ns)
