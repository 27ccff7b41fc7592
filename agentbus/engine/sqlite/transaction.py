"""Driving operations in SQLite transactions: many calls in one commit, neighbours never noticing each other.

Synchronous, with no event loop in sight: the group-commit writer runs it on a thread, the blocking driver calls it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from agentbus import ballast
from agentbus.clock import Clock, Now
from agentbus.engine import forking
from agentbus.engine.calls import Call, grouped
from agentbus.engine.logs import engine_log
from agentbus.engine.queries import Queries, bound, widened
from agentbus.engine.sqlite.connection import identity, translated
from agentbus.engine.sqlite.home import Home
from agentbus.engine.sqlite.listeners import Listeners
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.log import Log
from agentbus.errors import AgentBusError, DatabaseGone, DiskFull, LockedElsewhere, OutcomeUnknown, StoreError
from agentbus.operations import Each, Numbered, Op, Query, Rows, Several

_WIDTH = 16
_UNBOUNDED = frozenset({"message_promote", "message_lapsed", "message_expire"})
"""What tends mailboxes: as long as their backlog, so it is not run where it would hold others up."""
_LOG_PAGES = 1000
"""The commit that makes the log this long moves it into the database, if it is one that is synced."""


class Transactor:
    """Commits batches of calls on one connection, under the lock."""

    def __init__(self, home: Home, connection: sqlite3.Connection, lock: FileLock, clock: Clock, *, disk: bool) -> None:
        self.process = 0
        self.gone = False
        """Whether another database, or none, was found at our path."""
        self._home = home
        self._connection = connection
        self._lock = lock
        self.waited = lock.waited
        self._clock = clock
        self._disk = disk
        self._queries = Queries("sqlite")
        self._wide: dict[str, str | None] = {}
        self._synchronous: bool | None = True
        self._checkpoints: bool | None = True
        self._at_once = False
        self._listeners = Listeners(connection, self._queries)
        self._log = Log(connection, home.file)
        self._path = home.file
        self._file = identity(self._path)
        self._log_files = {name: _identity(name) for name in (f"{self._path}-wal", f"{self._path}-shm")}
        self._files = (self._file, *(file for file in self._log_files.values() if file is not None))
        forking.opened(*self._files)

    def run(self, calls: Sequence[Call]) -> tuple[list[str], bool]:
        """Commit the calls and note each one's outcome.

        Returns the channels to wake in this process, and whether every bell could be rung.
        """
        begun = time.perf_counter()
        try:
            self.check_there()
            try:
                channels = self._commit_all(calls)
            except _Busy:
                channels = self._commit_patiently(calls)
        except Exception as error:
            return self._failed(calls, error)
        return self._committed(calls, channels, begun)

    def run_at_once(self, calls: Sequence[Call]) -> tuple[list[str], bool] | None:
        """The same for calls that need no fsync, without waiting for anything: no checkpoint, and None, with nothing
        done, where another process would have to be waited for, or a backlog to be tended."""
        begun = time.perf_counter()
        try:
            if not self._lock.try_acquire():
                return None
            self._at_once = True
            self.check_there()
            channels = self._commit_locked(calls)
        except _Busy:
            return None
        except Exception as error:
            return self._failed(calls, error)
        finally:
            # Also when a signal handler raised in the middle of it.
            self._at_once = False
            try:
                self._rollback()
            finally:
                self._lock.release()
        return self._committed(calls, channels, begun)

    def checkpoint(self, *, whole: bool) -> bool | Exception:
        """Move the log into the database under the lock, as far as nobody reads it; with ``whole`` also make the file
        small again, if nobody reads it at all. Waits for no reader; says whether all was done, or what went wrong."""
        try:
            with self._lock.held():
                self.check_there()
                return self._log.move(whole=whole)
        except Exception as error:
            return self._problem(error)

    def ring_again(self) -> bool:
        return self._listeners.ring_again()

    def hurry(self) -> None:
        """Wait for the lock no longer. May be called from another thread."""
        self._lock.hurry()

    def close(self) -> None:
        """Close under the lock, because the last one to close checkpoints.

        Where somebody holds it for long, that one has the database open, and we are not the last.
        """
        self._listeners.close()
        with suppress(AgentBusError, OSError):
            self._lock.acquire(0.5)
            self._log.sync()
        self._connection.close()
        forking.closed(*self._files)
        if _identity(self._path) not in {None, self._file}:
            self._set_log_aside()
        self._lock.close()

    def _set_log_aside(self) -> None:
        """Another database is at our path: our log must not be replayed into it, but belongs to ours."""
        for name, file in self._log_files.items():
            if file is not None and _identity(name) == file:
                with suppress(OSError):
                    os.rename(name, f"{name}.of-{self._file[1]}")

    def _failed(self, calls: Sequence[Call], error: Exception) -> tuple[list[str], bool]:
        """Whatever it is, every caller must hear of it: an exception that left this thread would hang them all."""
        for call in calls:
            call.outcome = self._problem(error)
        return [], True

    def _committed(self, calls: Sequence[Call], channels: list[str], begun: float) -> tuple[list[str], bool]:
        if (log := engine_log()) is not None and log.isEnabledFor(10):
            names = ", ".join(sorted({call.operation.name for call in calls}))
            log.debug("%d calls (%s) in %.2f ms", len(calls), names, (time.perf_counter() - begun) * 1000)
        return channels, self._listeners.ring(channels)

    def _commit_all(self, calls: Sequence[Call]) -> list[str]:
        with self._lock.held():
            return self._commit_locked(calls)

    def _commit_locked(self, calls: Sequence[Call]) -> list[str]:
        """Commit the calls. On a full disk, those that do not make the bus larger get the room that was kept for them,
        and the others none of it."""
        if ballast.is_needed(self._home.root):
            calls = [call for call in calls if not self._refused(call)]
        channels = self._commit_once(calls)
        again = [call for call in calls if isinstance(call.outcome, DiskFull) and not call.grows]
        if again and ballast.release(self._home.root):
            channels += self._commit_once(again)
        return channels

    def _refused(self, call: Call) -> bool:
        if call.grows:
            call.outcome = DiskFull(path=self._path)
        return call.grows

    def _commit_once(self, calls: Sequence[Call]) -> list[str]:
        if not calls:
            return []
        try:
            return self._commit_batch(calls)
        except sqlite3.Error as error:
            if not isinstance(translated(error, self._home), DiskFull):
                raise
            # Not even a transaction could be begun.
            self._failed(calls, error)
            return []

    def _commit_batch(self, calls: Sequence[Call]) -> list[str]:
        self._rollback()
        # Only promises are fsynced: a power cut that undoes a claim or a beat merely repeats work.
        lasting = self._disk and any(call.durable for call in calls)
        if lasting:
            self._log.require()
        # SQLite does not tell of an fsync that failed while it moves the log: there must be nothing left to sync then.
        synced = lasting or (not self._at_once and self._log.is_due(_LOG_PAGES))
        self._set_synchronous(synced)
        self._set_checkpoints(synced)
        try:
            return self._together(calls)
        except _Undone:
            return self._one_by_one(calls)

    def _commit_patiently(self, calls: Sequence[Call]) -> list[str]:
        """Another program writes to our file without our lock: try again, without keeping ours meanwhile."""
        # Imported only here: the command line should start without it.
        from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

        begun = time.monotonic()

        def enough(_: RetryCallState) -> bool:
            return self._lock.hurried or time.monotonic() - begun > self._lock.timeout

        try:
            retrying = Retrying(
                retry=retry_if_exception_type(_Busy),
                stop=enough,
                wait=wait_random_exponential(0.01, max=0.25),
                reraise=True,
            )
            return retrying(self._commit_all, calls)
        except _Busy:
            waited = round(time.monotonic() - begun, 1)
            raise LockedElsewhere(path=self._path, waited=waited) from None

    def _together(self, calls: Sequence[Call]) -> list[str]:
        """All calls in one transaction, those of one operation as one list. Optimistic: no savepoints."""
        channels: list[str] = []
        now = self._begin()
        try:
            for operation, group in grouped(calls):
                results = self._drive(operation.run([call.request for call in group], now), channels)
                for call, outcome in zip(group, results, strict=True):
                    call.outcome = outcome
        except _Busy:
            raise
        except Exception as error:
            self._rollback()
            if len(calls) > 1:
                raise _Undone from error
            calls[0].outcome = self._problem(error)
            return []
        return self._commit(calls, channels)

    def _one_by_one(self, calls: Sequence[Call]) -> list[str]:
        """Each call behind a savepoint, so that one that fails takes nothing of its neighbours with it."""
        channels: list[str] = []
        now = self._begin()
        for call in calls:
            woken: list[str] = []
            try:
                self._connection.execute("SAVEPOINT call")
                (call.outcome,) = self._drive(call.operation.run([call.request], now), woken)
                self._connection.execute("RELEASE call")
                channels += woken
            except Exception as error:
                call.outcome = self._problem(error)
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK TO call")
                    self._connection.execute("RELEASE call")
                else:
                    # SQLite gave up the whole transaction (disk full, I/O error): the others start anew without it.
                    return self._alone([other for other in calls if other is not call])
        return self._commit(calls, channels)

    def _alone(self, calls: Sequence[Call]) -> list[str]:
        """Each call in a transaction of its own: the last resort, when even savepoints do not hold."""
        channels: list[str] = []
        for call in calls:
            woken: list[str] = []
            try:
                now = self._begin()
                (call.outcome,) = self._drive(call.operation.run([call.request], now), woken)
            except Exception as error:
                self._rollback()
                call.outcome = self._problem(error)
                continue
            channels += self._commit([call], woken)
        return channels

    def _begin(self) -> Now:
        self._rollback()
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            if (error.sqlite_errorcode & 0xFF) == sqlite3.SQLITE_BUSY:
                raise _Busy from error
            raise
        return self._clock.now()

    def _commit(self, calls: Sequence[Call], channels: list[str]) -> list[str]:
        try:
            self._listeners.look(channels, self.process)
            if self._synchronous:
                self._listeners.hint(channels)
            self._connection.execute("COMMIT")
            self._log.committed(synced=bool(self._synchronous))
        except sqlite3.Error as error:
            self._rollback()
            for call in calls:
                if not isinstance(call.outcome, BaseException):
                    call.outcome = translated(error, self._home, committing=True)
            if isinstance(translated(error, self._home, committing=True), OutcomeUnknown):
                self._log.doubt()
            return []
        return channels

    def _problem(self, error: Exception) -> Exception:
        """What a caller is told. Our own errors are made anew for each, because each is raised somewhere else."""
        if isinstance(error, sqlite3.Error):
            return translated(error, self._home)
        if isinstance(error, AgentBusError):
            return type(error)(**error.facts)
        if isinstance(error, _Busy):
            return LockedElsewhere(path=self._path, waited=0)
        return StoreError(path=self._path, reason=str(error)) if isinstance(error, OSError) else error

    def _rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _drive(self, op: Op[Any], channels: list[str]) -> Any:
        rows: Rows = []
        try:
            step = next(op)
            while True:
                if type(step) is Query:
                    rows = self._ask(step)
                elif type(step) is Several:
                    rows = [self._ask(query) for query in step.queries]  # type: ignore[misc]
                elif type(step) is Numbered:
                    rows = self._execute_numbered(step)
                else:
                    rows = []
                    if type(step) is Each:
                        self._execute_each(step)
                    else:
                        channels.extend(step.channels)  # type: ignore[union-attr]
                step = op.send(rows)
        except StopIteration as stop:
            return stop.value

    def _ask(self, query: Query) -> Rows:
        if self._at_once and query.name in _UNBOUNDED:
            raise _Busy
        return self._connection.execute(self._queries[query.name], bound(query)).fetchall()

    def _execute_numbered(self, step: Numbered) -> Rows:
        ((last,),) = self._ask(Query("counter_take", (step.counter, len(step.rows))))
        first = last - len(step.rows) + 1
        self._execute_each(Each(step.name, [(number, *row) for number, row in enumerate(step.rows, first)]))
        return [(first,)]

    def _execute_each(self, step: Each) -> None:
        """Many rows by INSERTs of several rows each, a third faster than row by row; what is left one by one."""
        whole = 0
        if len(step.rows) >= _WIDTH:
            if step.name not in self._wide:
                self._wide[step.name] = widened(self._queries[step.name], _WIDTH)
            wide = self._wide[step.name]
            if wide is not None:
                whole = len(step.rows) - len(step.rows) % _WIDTH
                for start in range(0, whole, _WIDTH):
                    values = [value for row in step.rows[start : start + _WIDTH] for value in row]
                    self._connection.execute(wide, values)
        self._connection.executemany(self._queries[step.name], step.rows[whole:])

    def _set_synchronous(self, full: bool) -> None:
        if full != self._synchronous:
            # Unknown in between: a signal handler may raise here.
            self._synchronous = None
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if full else 'NORMAL'}")
            self._synchronous = full

    def _set_checkpoints(self, wanted: bool) -> None:
        """Whether a commit may move the log into the database."""
        if wanted != self._checkpoints:
            self._checkpoints = None
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES if wanted else 0:d}")
            self._checkpoints = wanted

    def check_there(self) -> None:
        """Raise DatabaseGone if another database, or none, is at the path. May be called from another thread."""
        self.gone = _identity(self._path) != self._file
        if self.gone:
            raise DatabaseGone(path=self._path)


def _identity(path: str) -> forking.File | None:
    try:
        return identity(path)
    except OSError:
        return None


class _Busy(Exception):
    """It would take time: another program has a transaction open, or a backlog waits to be tended. Nothing was done."""


class _Undone(Exception):
    """The common transaction was rolled back; each call must be tried by itself."""
