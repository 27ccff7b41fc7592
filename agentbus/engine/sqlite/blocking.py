"""The blocking SQLite driver: one call, one transaction, no event loop. For the command line."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar, cast

from agentbus.clock import Clock, Now
from agentbus.engine import forking
from agentbus.engine.blocking import Attendance
from agentbus.engine.calls import Call
from agentbus.engine.queries import Queries, bound
from agentbus.engine.sqlite import home
from agentbus.engine.sqlite.connection import open_writer, translated
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.transaction import Transactor
from agentbus.errors import BusClosed, DatabaseGone
from agentbus.operations import Op, Operation, Query

R = TypeVar("R")
T = TypeVar("T")


class BlockingSQLite:
    """A bus in one file, for callers without an event loop. ``engine.blocking`` says what its methods do.

    ``create``: make the bus if it does not exist; else raise DatabaseGone.
    """

    read_only = False

    def __init__(
        self, place: home.Home, *, durability: str, clock: Clock, lock_timeout: float, create: bool = True
    ) -> None:
        if create:
            home.prepare(place)
        elif not home.is_there(place):
            raise DatabaseGone(path=place.file)
        else:
            home.check(place)
        self.clock = clock
        self._owner = forking.Owner()
        self._home = place
        self._queries = Queries("sqlite")
        self._lock = lock = FileLock(place.lock, lock_timeout)
        connection: sqlite3.Connection | None = None
        self._transactor: Transactor | None = None
        try:
            self._connection = connection = open_writer(place, lock)
            self._transactor = Transactor(place, connection, lock, clock, disk=durability == "disk")
        except BaseException as error:
            if connection is not None:
                connection.close()
            lock.close()
            if isinstance(error, OSError):
                from agentbus.disk import refusal

                raise refusal(place.directory, error) from error
            raise

    @property
    def home(self) -> str:
        return self._home.root

    shown = home

    def write(
        self, operation: Operation[R, T], request: R, *, durable: bool | None = None, patience: float | None = None
    ) -> T:
        transactor = self._checked()
        call = Call(operation, request, operation.durable if durable is None else durable)
        with nullcontext() if patience is None else self._lock.patient(patience):
            transactor.run([call])
        if isinstance(call.outcome, BaseException):
            raise call.outcome
        return cast(T, call.outcome)

    def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        self._checked()
        op = question(request, self.clock.now())
        try:
            step: Any = next(op)
            while True:
                step = op.send(self._rows(step))
        except StopIteration as stop:
            return cast(T, stop.value)

    def still(self) -> AbstractContextManager[None]:
        self._checked()
        return self._lock.held()

    def attend(self) -> AbstractContextManager[Attendance]:
        # Imported only here: most calls wait for nothing.
        from agentbus.engine.sqlite.attending import attend

        self._checked()
        return attend(self, self._home, self._connection)

    def entered(self, process: int) -> None:
        self._checked().process = process

    def holds(self, device: int, inode: int) -> bool:
        return forking.is_open((device, inode))

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        # Imported only here: most calls have nothing to do with sockets.
        from agentbus.engine.sqlite.bells import remove

        remove(bells)

    def sizes(self) -> tuple[int, int]:
        return home.sizes(self._home)

    def waited(self) -> int:
        return self._checked().waited()

    def close(self) -> None:
        transactor, self._transactor = self._transactor, None
        if transactor is not None and self._owner.is_here:
            transactor.close()

    def _checked(self) -> Transactor:
        self._owner.check()
        if self._transactor is None:
            raise BusClosed
        return self._transactor

    def _rows(self, query: Query) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(self._queries[query.name], bound(query)).fetchall()
        except sqlite3.Error as error:
            raise translated(error, self._home) from error
