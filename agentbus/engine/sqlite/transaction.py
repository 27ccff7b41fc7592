"""Run batches of calls in SQLite transactions, many calls per commit, isolated from each other's failures.

Synchronous: the group-commit writer calls it on a thread, the blocking driver directly.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from agentbus.core.clock import Clock, Now
from agentbus.engine import process_safety
from agentbus.engine.queries import DIRECTORY, Queries, queries, widened
from agentbus.engine.sqlite import disk_reserve
from agentbus.engine.sqlite.connection import identity, translate_error
from agentbus.engine.sqlite.doorbell import Ringer
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.paths import Home
from agentbus.engine.sqlite.wal import KernelSync, WriteAheadLog
from agentbus.errors import (
    AgentBusError,
    DatabaseGone,
    DiskFull,
    LockedElsewhere,
    LockTimeout,
    LogNotSynced,
    OutcomeUnknown,
    StoreError,
)
from agentbus.operations.protocol import (
    LIVE,
    Announce,
    Call,
    ExecuteMany,
    Gather,
    InsertNumbered,
    Op,
    Query,
    Row,
    Rows,
    group_by_operation,
)

if TYPE_CHECKING:
    from logging import Logger

    from agentbus.core.measurements import Writes

_ROWS_PER_INSERT = 16
_UNBOUNDED = frozenset({"message_promote", "message_lapsed", "message_expire"})
"""Mailbox maintenance, as long as the backlog: not run where it would block the event loop."""
_DEBUG = 10
"""The level of logging."""
_MAX_CACHED_ROWS = 2000
"""Rows of cached lookups; a row of much text counts as several."""


class TransactionRunner:
    """Commits batches of calls on one connection, under the lock.

    ``writes`` counts them, and ``kernel`` syncs those of ``run_nowait``; a short command has neither.
    """

    def __init__(
        self,
        home: Home,
        connection: sqlite3.Connection,
        lock: FileLock,
        clock: Clock,
        *,
        disk: bool,
        writes: Writes | None = None,
        kernel: KernelSync | None = None,
    ) -> None:
        self.process = 0
        self.gone = False
        """True once another database, or none, was found at the path."""
        self._home = home
        self._connection = connection
        self._lock = lock
        self.lock_wait_ms = lock.lock_wait_ms
        self._clock = clock
        self._disk = disk
        self._writes = writes
        self._queries = queries("sqlite")
        self._wide: dict[str, str | None] = {}
        self._nowait = False
        self._changes = 0
        """Changes of the connection before the transaction."""
        self._awaited = 0
        """The durable commit that the callers of the last batch wait for; 0 if they wait for none."""
        self._commits: list[tuple[int, float]] = []
        """Calls and duration of the commits that wait for it."""
        self._covered = 0
        """The newest commit that the sync in progress covers."""
        self._sync_started = 0.0
        self._logger: Logger | None = None
        self._lookups = _LookupCache(connection, self._queries, home.file)
        self._ringer = Ringer(connection, self._queries)
        # The log is synced and checkpointed here: SQLite would do both under the lock.
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        self._path = home.file
        self._file = identity(self._path)
        self._wal_files = {name: _find_file(name) for name in (f"{self._path}-wal", f"{self._path}-shm")}
        self._files = (self._file, *(file for file in self._wal_files.values() if file is not None))
        # Last: what it opens is closed by ``close``.
        self._log = WriteAheadLog(connection, home.file, lock, kernel)
        process_safety.register_open_files(*self._files)

    def run(self, calls: Sequence[Call]) -> tuple[list[str], bool]:
        """Commit the calls, ring the other processes, and then wait for the disk. Store the outcome of each call.

        Return the channels to wake in this process, and True if every doorbell could be rung.
        """
        start = time.perf_counter()
        self._awaited = 0
        self._commits.clear()
        try:
            self.check_exists()
            try:
                channels = self._with_lock(calls)
            except _Busy:
                channels = self._retry_busy(calls)
        except Exception as error:
            return self._fail(calls, error)
        answer = self._finish(calls, channels, start)
        self.wait_for_disk(calls)
        return answer

    def run_nowait(self, calls: Sequence[Call]) -> tuple[list[str], bool, Literal["kernel", "thread"] | None] | None:
        """Commit the calls as ``run`` does, without a checkpoint and without waiting for the disk. Return None, with
        nothing done, where it would have to wait for another process or to maintain a backlogged mailbox.

        The third value names what syncs: the kernel, after which ``end_sync`` or ``fail_sync`` must be called; a
        thread, on which ``wait_for_disk`` must run; or None: the outcomes can be delivered.
        """
        start = time.perf_counter()
        self._awaited = 0
        self._commits.clear()
        try:
            if not self._lock.try_acquire():
                return None
            self._nowait = True
            if self._writes is not None:
                self._writes.lock_wait.buckets[0] += 1
            self.check_exists()
            channels = self._with_disk_reserve(calls)
        except _Busy:
            return None
        except Exception as error:
            return *self._fail(calls, error), None
        finally:
            # A signal handler may have raised at any point.
            self.leave()
        # Before the doorbells: the processes that wake up compete for the processor.
        waits_for = self._begin_sync(calls)
        return *self._finish(calls, channels, start), waits_for

    def leave(self) -> None:
        """End what ``run_nowait`` has begun. May be repeated, if a signal handler raised in it."""
        self._nowait = False
        try:
            self._rollback()
        finally:
            self._lock.release()

    def _begin_sync(self, calls: Sequence[Call]) -> Literal["kernel", "thread"] | None:
        if not self._awaited:
            return None
        self._sync_started = time.perf_counter()
        covered = self._log.begin_kernel_sync(self._awaited)
        if covered is None:
            return "thread"
        if covered == 0:
            self._end_wait(calls)
            return None
        self._covered = covered
        return "kernel"

    def wait_for_disk(self, calls: Sequence[Call]) -> None:
        """Wait until all that these calls wrote durably, and all that they return, is on the disk."""
        if not self._awaited:
            return
        self._sync_started = time.perf_counter()
        try:
            self._log.wait_until_synced(self._awaited, written=True)
        except Exception as error:
            self._end_wait(calls, error)
        else:
            self._end_wait(calls)

    def end_sync(self, calls: Sequence[Call]) -> bool:
        """Complete the calls after the kernel has synced. Return False if ``wait_for_disk`` must be called."""
        done = self._log.end_sync(self._covered)
        if done:
            self._end_wait(calls)
        return done

    def fail_sync(self, calls: Sequence[Call], error: OSError) -> None:
        """Complete the calls after a sync by the kernel that failed."""
        try:
            self._log.fail_sync()
        except Exception as failure:
            self._end_wait(calls, failure)
        else:
            self._end_wait(calls, error)

    def _end_wait(self, calls: Sequence[Call], error: Exception | None = None) -> None:
        awaited, self._awaited = self._awaited, 0
        if error is not None:
            lost = not self._log.is_synced(awaited)
            for call in calls:
                if (call.durable or (lost and _has_rows(call.outcome))) and not isinstance(call.outcome, BaseException):
                    call.outcome = OutcomeUnknown(path=self._path, reason=str(error))
        if self._writes is not None:
            waited = time.perf_counter() - self._sync_started
            for number, seconds in self._commits:
                self._writes.committed(number, seconds + waited, True)

    def unsynced(self) -> int:
        """Return the durable commit that a read may have seen and a power cut could undo; 0 if there is none. May be
        called from another thread, after the read."""
        return self._log.unsynced() if self._disk else 0

    def is_synced(self, number: int) -> bool:
        """Return True if that commit is on the disk. May be called from another thread."""
        return self._log.is_synced(number)

    def wait_until_synced(self) -> AgentBusError | None:
        """Wait until every durable commit is on the disk; return the error if that fails."""
        unsynced = self.unsynced()
        try:
            if unsynced:
                self._log.wait_until_synced(unsynced, written=False)
        except (OSError, AgentBusError):
            if not self._log.is_synced(unsynced):
                return LogNotSynced(path=self._path)
        return None

    def checkpoint(self, *, truncate: bool) -> bool | Exception:
        """Checkpoint the log under the lock, without waiting for readers; with ``truncate``, also shrink its file if
        it has no reader. Return True if the whole log was checkpointed, or the error."""
        try:
            with self._lock.held():
                self.check_exists()
                return self._log.checkpoint(truncate=truncate)
        except Exception as error:
            return self._error_for_caller(error)

    def has_pages(self, pages: int) -> bool:
        """Return True if the log has that many pages. May be called from another thread."""
        return self._log.has_pages(pages)

    def ring_again(self) -> bool:
        return self._ringer.ring_again()

    def stop_waiting(self) -> None:
        """Stop waiting for the lock. May be called from another thread."""
        self._lock.stop_waiting()

    def close(self) -> None:
        """Close under the lock: the last connection to close checkpoints.

        If another process holds the lock for long, it has the database open, and this connection is not the last.
        """
        self._ringer.close()
        with suppress(AgentBusError, OSError):
            self._lock.acquire(0.5)
            self._log.sync()
        self._connection.close()
        self._log.close()
        process_safety.unregister_open_files(*self._files)
        if _find_file(self._path) not in {None, self._file}:
            self._set_log_aside()
        self._lock.close()

    def _set_log_aside(self) -> None:
        """Rename the log: another database is at the path, and the log must not be replayed into it."""
        for name, file in self._wal_files.items():
            if file is not None and _find_file(name) == file:
                with suppress(OSError):
                    os.rename(name, f"{name}.of-{self._file[1]}")

    def _fail(self, calls: Sequence[Call], error: Exception) -> tuple[list[str], bool]:
        """Fail every call: an exception that escaped the thread would leave their callers waiting."""
        if self._writes is not None and isinstance(error, LockTimeout):
            self._writes.timed_out(error.facts["waited"])
        for call in calls:
            call.outcome = self._error_for_caller(error)
        return [], True

    def _finish(self, calls: Sequence[Call], channels: list[str], start: float) -> tuple[list[str], bool]:
        """Log the committed batch and ring the other processes."""
        if self._logger is None and "logging" in sys.modules:
            # Only in a program that uses logging: its import takes longer than a command does.
            self._logger = sys.modules["logging"].getLogger("agentbus.engine")
        if self._logger is not None and self._logger.isEnabledFor(_DEBUG):
            names = ", ".join(sorted({call.operation.name for call in calls}))
            self._logger.debug("%d calls (%s) in %.2f ms", len(calls), names, (time.perf_counter() - start) * 1000)
        return channels, self._ringer.ring(channels)

    def _with_lock(self, calls: Sequence[Call]) -> list[str]:
        before = self._lock.waited
        with self._lock.held():
            if self._writes is not None:
                self._writes.lock_wait.observe(self._lock.waited - before)
            return self._with_disk_reserve(calls)

    def _with_disk_reserve(self, calls: Sequence[Call]) -> list[str]:
        """On a full disk, refuse the calls that store data and release the reserve to the others."""
        if disk_reserve.is_needed(self._home.root):
            calls = [call for call in calls if not self._refuse_data(call)]
        channels = self._translate_disk_full(calls)
        retried = [call for call in calls if isinstance(call.outcome, DiskFull) and not call.stores_data]
        if retried and disk_reserve.release(self._home.root):
            try:
                channels += self._translate_disk_full(retried)
            except _Busy as error:
                # Not raised: the other calls are committed, and would run again.
                self._rollback()
                self._fail(retried, error)
        return channels

    def _refuse_data(self, call: Call) -> bool:
        if call.stores_data:
            call.outcome = DiskFull(path=self._path)
        return call.stores_data

    def _translate_disk_full(self, calls: Sequence[Call]) -> list[str]:
        """Run the calls. If the disk is too full to begin a transaction, fail them with DiskFull."""
        if not calls:
            return []
        try:
            self._maintain_log(calls)
            try:
                return self._run_batch(calls)
            except _RolledBack:
                if self._writes is not None:
                    self._writes.replays += 1
                return self._run_with_savepoints(calls)
        except sqlite3.Error as error:
            if not isinstance(translate_error(error, self._home), DiskFull):
                raise
            self._fail(calls, error)
            return []

    def _maintain_log(self, calls: Sequence[Call]) -> None:
        """Repair a log that is doubtful before anything durable is written, and checkpoint a long one."""
        self._rollback()
        if self._log.doubtful and self._disk and any(call.durable for call in calls):
            self._log.require()
        if not self._nowait and self._log.is_due():
            # Without it the log only grows: a later commit tries again.
            with suppress(sqlite3.Error, AgentBusError):
                self._log.checkpoint(truncate=False)

    def _retry_busy(self, calls: Sequence[Call]) -> list[str]:
        """Retry while another program writes to the file without the bus's lock, which is free in the pauses."""
        # Imported only here: the command line should start without it.
        from tenacity import RetryCallState, Retrying, retry_if_exception_type, wait_random_exponential

        start = time.monotonic()

        def stop(_: RetryCallState) -> bool:
            return self._lock.is_stopping or time.monotonic() - start > self._lock.timeout

        try:
            retrying = Retrying(
                retry=retry_if_exception_type(_Busy),
                stop=stop,
                wait=wait_random_exponential(0.01, max=0.25),
                reraise=True,
            )
            return retrying(self._with_lock, calls)
        except _Busy:
            waited = round(time.monotonic() - start, 1)
            raise LockedElsewhere(path=self._path, waited=waited) from None

    def _run_batch(self, calls: Sequence[Call]) -> list[str]:
        """Run all calls in one transaction, those of one operation as one list. Optimistic: no savepoints."""
        channels: list[str] = []
        now = self._begin()
        try:
            if len(calls) == 1 and self._try_shortcut(calls[0], now, channels):
                return self._commit(calls, channels)
            for operation, group in group_by_operation(calls):
                results = self._drive(operation.run([call.request for call in group], now), channels)
                for call, outcome in zip(group, results, strict=True):
                    call.outcome = outcome
        except _Busy:
            raise
        except Exception as error:
            self._rollback()
            if len(calls) > 1:
                raise _RolledBack from error
            calls[0].outcome = self._error_for_caller(error)
            return []
        return self._commit(calls, channels)

    def _try_shortcut(self, call: Call, now: Now, channels: list[str]) -> bool:
        """Run a single call by its shortcut; return False, with nothing written, if its operation must run."""
        shortcut = call.operation.shortcut
        if shortcut is None or (outcome := self._drive(shortcut(call.request, now), channels)) is None:
            return False
        call.outcome = outcome
        return True

    def _run_with_savepoints(self, calls: Sequence[Call]) -> list[str]:
        """Run each call behind a savepoint, so that one failure undoes nothing of the other calls."""
        channels: list[str] = []
        now = self._begin()
        for call in calls:
            woken: list[str] = []
            try:
                self._connection.execute("SAVEPOINT call")
                (call.outcome,) = self._drive(call.operation.run([call.request], now), woken)
                self._connection.execute("RELEASE call")
                channels += woken
            except _Busy:
                raise
            except Exception as error:
                call.outcome = self._error_for_caller(error)
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK TO call")
                    self._connection.execute("RELEASE call")
                else:
                    # SQLite rolled back the whole transaction (disk full, I/O error): run the others without it.
                    return self._run_individually([other for other in calls if other is not call])
        return self._commit(calls, channels)

    def _run_individually(self, calls: Sequence[Call]) -> list[str]:
        """Run each call in its own transaction: the last resort, when even savepoints fail."""
        channels: list[str] = []
        for call in calls:
            woken: list[str] = []
            try:
                now = self._begin()
                (call.outcome,) = self._drive(call.operation.run([call.request], now), woken)
            except Exception as error:
                self._rollback()
                call.outcome = self._error_for_caller(error)
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
        self._changes = self._connection.total_changes
        try:
            self._ringer.topology = self._lookups.begin()
        except BaseException:
            # The lock will be released: the transaction must not stay open.
            self._rollback()
            raise
        return self._clock.now()

    def _commit(self, calls: Sequence[Call], channels: list[str]) -> list[str]:
        durable = self._disk and any(call.durable for call in calls)
        number = 0
        try:
            if channels:
                self._ringer.load(channels, self.process)
            if durable and self._connection.total_changes != self._changes:
                number = self._log.announce()
            start = time.perf_counter()
            self._connection.execute("COMMIT")
            seconds = time.perf_counter() - start
        except (sqlite3.Error, OSError) as error:
            self._rollback()
            for call in calls:
                if not isinstance(call.outcome, BaseException):
                    call.outcome = self._error_for_caller(error, committing=True)
            if isinstance(self._error_for_caller(error, committing=True), OutcomeUnknown):
                self._log.mark_doubtful()
            return []
        self._log.synced = False
        self._set_awaited(calls, number, durable)
        if self._awaited:
            self._commits.append((len(calls), seconds))
        elif self._writes is not None:
            self._writes.committed(len(calls), seconds, False)
        return channels

    def _set_awaited(self, calls: Sequence[Call], number: int, durable: bool) -> None:
        """After a commit, note the durable commit that its callers wait for: their own, or one whose rows they get."""
        if number:
            self._awaited = number
        elif self._disk:
            unsynced = self._log.unsynced()
            if unsynced and (durable or any(_has_rows(call.outcome) for call in calls)):
                self._awaited = unsynced

    def _error_for_caller(self, error: Exception, *, committing: bool = False) -> Exception:
        """Return the error for one caller. AgentBusErrors are copied, because each is raised in a different task."""
        if isinstance(error, sqlite3.Error):
            return translate_error(error, self._home, committing=committing)
        if isinstance(error, AgentBusError):
            return type(error)(**error.facts)
        if isinstance(error, _Busy):
            return LockedElsewhere(path=self._path, waited=0)
        if isinstance(error, OSError):
            full = error.errno in {errno.ENOSPC, errno.EDQUOT}
            return DiskFull(path=self._path) if full else StoreError(path=self._path, reason=str(error))
        return error

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
                elif type(step) is Gather:
                    rows = [self._ask(query) for query in step.queries]  # type: ignore[misc]
                elif type(step) is InsertNumbered:
                    rows = self._execute_numbered(step)
                else:
                    rows = []
                    if type(step) is ExecuteMany:
                        self._execute_many(step)
                    elif type(step) is Announce:
                        if self._ringer.is_heard(LIVE):
                            channels.append(step.channel)
                    else:
                        channels.extend(step.channels)  # type: ignore[union-attr]
                step = op.send(rows)
        except StopIteration as stop:
            return stop.value

    def _ask(self, query: Query) -> Rows:
        name = query.name
        if name in DIRECTORY:
            return self._lookups.ask(query)
        if self._nowait and name in _UNBOUNDED:
            raise _Busy
        rows = self._connection.execute(self._queries[name], query.with_json_lists()).fetchall()
        if name == "counter_take" and query.parameters[0] == "topology":
            # Unknown until the transaction ends: after a rollback, another process counts to the same number.
            self._ringer.topology = None
        return rows

    def _execute_numbered(self, step: InsertNumbered) -> Rows:
        ((last,),) = self._ask(Query("counter_take", (step.counter, len(step.rows))))
        first = last - len(step.rows) + 1
        self._execute_many(ExecuteMany(step.name, [(number, *row) for number, row in enumerate(step.rows, first)]))
        return [(first,)]

    def _execute_many(self, step: ExecuteMany) -> None:
        """Insert many rows per statement, a third faster than row by row, and the rest one by one."""
        done = 0
        if len(step.rows) >= _ROWS_PER_INSERT:
            if step.name not in self._wide:
                self._wide[step.name] = widened(self._queries[step.name], _ROWS_PER_INSERT)
            wide = self._wide[step.name]
            if wide is not None:
                done = len(step.rows) - len(step.rows) % _ROWS_PER_INSERT
                for start in range(0, done, _ROWS_PER_INSERT):
                    values = chain.from_iterable(step.rows[start : start + _ROWS_PER_INSERT])
                    self._connection.execute(wide, list(values))
        self._connection.executemany(self._queries[step.name], step.rows[done:])

    def check_exists(self) -> None:
        """Raise DatabaseGone if another database, or none, is at the path. May be called from another thread."""
        self.gone = _find_file(self._path) != self._file
        if self.gone:
            raise DatabaseGone(path=self._path)


class _LookupCache:
    """Answers to lookups that nearly every call makes (agents, types, quotas, pools), cached between transactions.

    Triggers count the changes of what they read: one number per transaction shows whether the answers are current.
    """

    def __init__(self, connection: sqlite3.Connection, queries: Queries, path: str) -> None:
        self._connection = connection
        self._queries = queries
        self._path = path
        self._answers: dict[Row, Rows] = {}
        self._cached_rows = 0
        """Number of rows in the answers, and of what they were asked for."""
        self._directory = -1
        """The number of changes of the directory as of which the answers are valid: that at the start of the
        transaction, so that a rollback invalidates none."""
        self._changes = 0
        """Changes of the connection as of which the directory is known to be unchanged in this transaction."""

    def begin(self) -> int:
        """Note the state of the directory, and return the number of changes of the listeners. At the start of a
        transaction."""
        self._changes = self._connection.total_changes
        directory, listeners = self._count()
        if directory != self._directory:
            self._forget()
            self._directory = directory
        return listeners

    def ask(self, query: Query) -> Rows:
        """Run a query of the directory, unless its answer is cached."""
        if self._connection.total_changes != self._changes:
            if self._count()[0] != self._directory:
                # Changed by this transaction, which may be rolled back.
                return self._run(query)
            self._changes = self._connection.total_changes
        key = query.key
        rows = self._answers.get(key)
        if rows is None:
            rows = self._run(query)
            size = _size(key, *rows)
            if self._cached_rows + size > _MAX_CACHED_ROWS:
                self._forget()
            if size <= _MAX_CACHED_ROWS:
                self._answers[key] = rows
                self._cached_rows += size
        return rows

    def _forget(self) -> None:
        self._answers.clear()
        self._cached_rows = 0

    def _count(self) -> tuple[int, int]:
        """Return the numbers of changes of the directory and of the listeners."""
        found = self._connection.execute(self._queries["counter_directory"]).fetchall()
        if not found:
            raise StoreError(path=self._path, reason="the counter of the directory is missing")
        return found[0]  # type: ignore[no-any-return]

    def _run(self, query: Query) -> Rows:
        return self._connection.execute(self._queries[query.name], query.with_json_lists()).fetchall()


def _size(*rows: Row) -> int:
    """Return the number of rows of ordinary size that take as much memory. A list counts by its items."""
    texts = sum(len(cell) for row in rows for cell in row if isinstance(cell, str))
    lists = sum(len(cell) for row in rows for cell in row if isinstance(cell, tuple))
    return len(rows) + texts // 256 + lists


def _has_rows(outcome: object) -> bool:
    """Return True if an outcome may contain what other calls have written."""
    return outcome is not None and type(outcome) is not bool and not isinstance(outcome, BaseException)


def _find_file(path: str) -> process_safety.File | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


class _Busy(Exception):
    """Raised where the call would have to wait: for another program's transaction, or to maintain a backlogged mailbox.
    Nothing was done."""


class _RolledBack(Exception):
    """Raised when the common transaction was rolled back: each call must be run separately."""
