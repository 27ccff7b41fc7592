"""The blocking SQLite engine: one call, one transaction, no event loop. Used by the command line."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar, cast

from agentbus.core.clock import Clock, Now
from agentbus.engine import process_safety
from agentbus.engine.sqlite import paths
from agentbus.engine.sqlite.connection import open_writer, run_read, translate_error
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.transaction import TransactionRunner
from agentbus.errors import BusClosed, DatabaseGone
from agentbus.operations.protocol import Call, Op, Operation

if TYPE_CHECKING:
    from agentbus.engine.blocking import WaitingProcess

R = TypeVar("R")
T = TypeVar("T")


class BlockingSQLite:
    """A bus in one file, for callers without an event loop. ``engine.blocking`` describes the methods.

    ``create``: create the bus if it does not exist; otherwise raise DatabaseGone.
    """

    read_only = False

    def __init__(
        self, home: paths.Home, *, durability: str, clock: Clock, lock_timeout: float, create: bool = True
    ) -> None:
        if create:
            paths.prepare(home)
        elif not paths.exists(home):
            raise DatabaseGone(path=home.file)
        else:
            paths.check(home)
        self.clock = clock
        self._owner = process_safety.Owner()
        self._home = home
        self._lock = lock = FileLock(home.lock, lock_timeout)
        connection: sqlite3.Connection | None = None
        self._runner: TransactionRunner | None = None
        try:
            self._connection = connection = open_writer(home, lock)
            self._runner = TransactionRunner(home, connection, lock, clock, disk=durability == "disk")
        except BaseException as error:
            if connection is not None:
                connection.close()
            lock.close()
            if isinstance(error, OSError):
                from agentbus.core.files import file_error

                raise file_error(home.directory, error) from error
            raise

    @property
    def home(self) -> str:
        return self._home.root

    shown = home

    def write(
        self, operation: Operation[R, T], request: R, *, durable: bool | None = None, lock_timeout: float | None = None
    ) -> T:
        runner = self._check()
        call = Call(operation, request, operation.durable if durable is None else durable)
        with nullcontext() if lock_timeout is None else self._lock.limit_timeout(lock_timeout):
            runner.run([call])
        if isinstance(call.outcome, BaseException):
            raise call.outcome
        return cast(T, call.outcome)

    def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        runner = self._check()
        op = question(request, self.clock.now())
        try:
            answer = run_read(op, self._connection)
        except sqlite3.Error as error:
            raise translate_error(error, self._home) from error
        if (problem := runner.wait_until_synced()) is not None:
            raise problem
        return answer

    def pause_writes(self) -> AbstractContextManager[None]:
        self._check()
        return self._lock.held()

    def wait_for_wakeups(self) -> AbstractContextManager[WaitingProcess]:
        # Imported only here: most commands do not wait.
        from agentbus.engine.sqlite.blocking_wait import wait_for_wakeups

        self._check()
        return wait_for_wakeups(self, self._home, self._connection)

    def set_process(self, process: int) -> None:
        self._check().process = process

    def owns_file(self, device: int, inode: int) -> bool:
        return process_safety.is_open((device, inode))

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        # Imported only here: most commands use no sockets.
        from agentbus.engine.sqlite.doorbell import remove

        remove(bells)

    def sizes(self) -> tuple[int, int]:
        return paths.sizes(self._home)

    def lock_wait_ms(self) -> int:
        return self._check().lock_wait_ms()

    def close(self) -> None:
        runner, self._runner = self._runner, None
        if runner is not None and self._owner.is_current:
            runner.close()

    def _check(self) -> TransactionRunner:
        self._owner.check()
        if self._runner is None:
            raise BusClosed
        return self._runner
