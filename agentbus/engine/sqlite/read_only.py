"""A bus in one file that this user can read and not write: another user's, on a read-only file system, or protected.

Every question opens the database for itself and closes it again, and nothing is written: no lock, no visit, no log.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import NoReturn, TypeVar

from agentbus.clock import Clock, Now
from agentbus.engine import forking
from agentbus.engine.blocking import Attendance
from agentbus.engine.sqlite import home
from agentbus.engine.sqlite.connection import (
    identity,
    newest_schema,
    open_untouched,
    refuse_foreign,
    require_sqlite,
    translated,
)
from agentbus.engine.sqlite.inspection import answered
from agentbus.errors import BusClosed, BusForked, LockedElsewhere, ReadOnlyBus, SchemaTooNew
from agentbus.operations import Op, Operation

R = TypeVar("R")
T = TypeVar("T")
_TRIES = 10


class ReadOnlySQLite:
    """A bus that is only looked at. ``engine.blocking`` says what its methods do."""

    read_only = True

    def __init__(self, place: home.Home, reason: str, *, clock: Clock, lock_timeout: float) -> None:
        home.check(place)
        require_sqlite(sqlite3.sqlite_version_info)
        if forking.is_inherited(identity(place.file)):
            raise BusForked(parent=os.getppid())
        self.clock = clock
        self._owner = forking.Owner()
        self._home = place
        self._reason = reason
        self._patience = lock_timeout
        self._closed = False
        self._require_schema()

    @property
    def home(self) -> str:
        return self._home.root

    shown = home

    def write(
        self, operation: Operation[R, T], request: R, *, durable: bool | None = None, patience: float | None = None
    ) -> T:
        self._check()
        self._refuse()

    def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        self._check()
        return self._asked(lambda connection: answered(question(request, self.clock.now()), connection))

    def still(self) -> AbstractContextManager[None]:
        self._refuse()

    def attend(self) -> AbstractContextManager[Attendance]:
        # A process that waits is entered among the processes of the bus.
        self._refuse()

    def entered(self, process: int) -> None:
        self._refuse()

    def holds(self, device: int, inode: int) -> bool:
        return forking.is_open((device, inode))

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        """Leave them to a process that can write."""

    def sizes(self) -> tuple[int, int]:
        return home.sizes(self._home)

    def waited(self) -> int:
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
        ((found,),) = self._asked(lambda connection: connection.execute("PRAGMA user_version").fetchall())
        if found > newest_schema():
            raise SchemaTooNew(path=self._home.file, found=found, known=newest_schema())
        if found < newest_schema():
            reason = f"{self._reason}; its schema {found} is old, and cannot be brought up to date"
            raise ReadOnlyBus(path=self._home.root, reason=reason)
        self._asked(lambda connection: refuse_foreign(connection, self._home, found))

    def _asked(self, look: Callable[[sqlite3.Connection], T]) -> T:
        """Ask the database, and again if its file was changed meanwhile.

        Where there is no log, SQLite is told that the file does not change, since it could not make the files that it
        needs to notice that. A process that opens the bus in this moment can change it.
        """
        for _ in range(_TRIES):
            before = self._state()
            connection = open_untouched(self._home, self._patience)
            try:
                answer = look(connection)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                problem = translated(error, self._home)
                if self._state() == before:
                    raise problem from error
            else:
                if before[0] or self._state() == before:
                    return answer
            finally:
                connection.close()
        raise LockedElsewhere(path=self._home.file, waited=0)

    def _state(self) -> tuple[bool, tuple[int, ...]]:
        """Return True if there is a log, with which SQLite reads one moment; and what changes with each write."""
        found = os.stat(self._home.file)
        return self._home.log.exists(), (found.st_ino, found.st_size, found.st_mtime_ns)
