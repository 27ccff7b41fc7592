"""The asynchronous SQLite engine: a writer, a reader on a thread, an inline reader, and a doorbell."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread

from agentbus.core.cancellation import complete
from agentbus.core.clock import Clock, Now
from agentbus.core.files import file_error
from agentbus.core.measurements import writes
from agentbus.core.threads import running_loop
from agentbus.engine.blocking import BlockingEngine
from agentbus.engine.group_commit import AsyncEngine
from agentbus.engine.interface import Progress
from agentbus.engine.sqlite import doorbell, paths
from agentbus.engine.sqlite.backup import back_up
from agentbus.engine.sqlite.blocking import BlockingSQLite
from agentbus.engine.sqlite.connection import open_reader, open_writer, run_read, translate_error
from agentbus.engine.sqlite.health import HealthCheck, run_isolated_read
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.transaction import TransactionRunner
from agentbus.engine.sqlite.wal import open_kernel_sync
from agentbus.engine.sqlite.writer import DaemonConnection, Writer, WriterConnection
from agentbus.errors import BusClosed, DatabaseGone
from agentbus.operations.health import SkippedCheck
from agentbus.operations.processes import Entry
from agentbus.operations.protocol import Op
from agentbus.records import BackupRecord, Check

R = TypeVar("R")
T = TypeVar("T")
log = logging.getLogger("agentbus.engine")

_CHECKPOINT_SIZE, _CHECKPOINT_PAGES = 1024 * 1024, 250
"""Bytes of the log's file, and pages of the log, from which on a checkpoint is worth its cost."""
_TRUNCATE_SIZE = 16 * 1024 * 1024
"""Bytes of log from which on its file is truncated. Commits alone keep it at a quarter of that."""
_MAX_INLINE_READS = 64
"""Inline reads in a row before the other tasks of the loop run."""


class SQLiteEngine(AsyncEngine[Writer]):
    """A bus in one file."""

    def __init__(self, home: paths.Home, *, durability: str, clock: Clock, lock_timeout: float) -> None:
        super().__init__(clock, home.directory, home=home.root, durability=durability)
        self._home = home
        self._lock_timeout = lock_timeout
        self._reader: DaemonConnection | None = None
        self._inline_reader: sqlite3.Connection | None = None
        self._inline_reads = 0
        self._checkpointed: tuple[int, int] | None = None
        """Size and time of the log after this process's last checkpoint, if that was complete."""
        self._bell: doorbell.Bell | None = None
        self._poll: doorbell.Poll | None = None
        self._background: set[asyncio.Future[Any]] = set()
        """Work on a separate thread and connection."""

    async def open(self) -> Entry:
        try:
            return await self._open()
        except OSError as error:
            raise file_error(self._home.directory, error) from error

    async def _open(self) -> Entry:
        self._loop = running_loop()
        paths.prepare(self._home)
        lock = FileLock(self._home.lock, self._lock_timeout)
        connection = WriterConnection(lambda: open_writer(self._home, lock))
        try:
            await connection
        except BaseException:
            # The thread may hold the lock; it must finish before the lock is closed.
            lock.stop_waiting()
            try:
                await complete(anyio.to_thread.run_sync(connection.join))
            finally:
                lock.close()
            raise
        kernel = None
        try:
            kernel = open_kernel_sync(self._home.file)
            runner = TransactionRunner(
                self._home, connection._conn, lock, self.clock, disk=self._disk, writes=writes, kernel=kernel
            )
        except BaseException:
            if kernel is not None:
                kernel.close()
            try:
                await complete(connection.close())
            finally:
                lock.close()
            raise
        self._writer = Writer(connection, runner, self.waiters, kernel)
        # A cancellation must not lose a connection that the thread is about to open.
        await complete(self._open_readers(connection))
        self._open_doorbell()
        entry = await self._enter(None if self._bell is None else self._bell.path)
        if self._bell is not None:
            # The doorbells of processes that count as live are evidence; they go once those are marked dead.
            doorbell.sweep(self._bell.directory, keep={peer.bell for peer in entry.peers})
        return entry

    async def _open_readers(self, connection: WriterConnection) -> None:
        self._reader = DaemonConnection(lambda: open_reader(self._home, self._lock_timeout))
        await self._reader
        # No timeout: the loop's thread must not wait for a lock.
        self._inline_reader = await connection.run(lambda: open_reader(self._home, 0))

    def _open_doorbell(self) -> None:
        """Open the doorbell; where that is not possible, poll the database's version."""
        assert self._loop is not None  # noqa: S101 - set on opening
        try:
            self._bell = doorbell.open_doorbell(self._home)
        except doorbell.NO_BELL as error:
            log.warning("no doorbell, polling every %g s instead: %s", doorbell.POLL, error)
            self._poll = doorbell.Poll(open_reader(self._home, self._lock_timeout), self._loop, self.waiters.ring_all)
        else:
            self._loop.add_reader(self._bell.socket, self._on_ring)

    async def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        self.check()
        self._check_exists()
        reader, writer = self._reader, self._writer
        if reader is None or writer is None:
            raise BusClosed
        op = question(request, self.clock.now())
        try:
            # One hop to the thread for all queries.
            answer = await reader.run(lambda: run_read(op, reader._conn))
        except sqlite3.Error as error:
            raise translate_error(error, self._home) from error
        except ValueError as error:
            # aiosqlite raises it if the connection was closed in the meantime.
            if self._reader is None:
                raise BusClosed from error
            raise
        await writer.wait_until_synced()
        return answer

    async def read_inline(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        """Read on the loop's own thread: the hop to another one costs ten times as much as an indexed lookup.

        No transaction outlives a query, because fetchall reads to the end; an open one would block checkpoints.
        """
        self.check()
        self._check_exists()
        self._inline_reads += 1
        if self._inline_reads % _MAX_INLINE_READS == 0:
            # A task that reads in a loop must not starve the one whose change it waits for.
            await asyncio.sleep(0)
        writer = self._writer
        if self._inline_reader is None or writer is None:
            raise BusClosed
        try:
            answer = run_read(question(request, self.clock.now()), self._inline_reader)
        except sqlite3.Error as error:
            # Another process recovers or closes the log: rare and short.
            if (getattr(error, "sqlite_errorcode", 0) & 0xFF) == sqlite3.SQLITE_BUSY:
                return await self.read(question, request)
            raise translate_error(error, self._home) from error
        await writer.wait_until_synced()
        return answer

    async def backup(self, path: Path | None, keep: int, progress: Progress | None = None) -> BackupRecord:
        wall = self.clock.now().wall
        cancelled = threading.Event()

        def work() -> BackupRecord:
            return back_up(self._home, path, keep, wall, self._lock_timeout, progress, cancelled.is_set)

        try:
            return await self._run_in_background(work)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def check_health(self) -> list[Check | SkippedCheck]:
        return await self._run_in_background(HealthCheck(self._home, self._open_reader).run)

    async def read_isolated(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        op = question(request, self.clock.now())
        writer = self._writer
        answer = await self._run_in_background(lambda: run_isolated_read(op, self._open_reader, self._home))
        if writer is not None:
            await writer.wait_until_synced()
        return answer

    def _open_reader(self) -> sqlite3.Connection:
        return open_reader(self._home, self._lock_timeout)

    async def _run_in_background(self, work: Callable[[], T]) -> T:
        """Run long work on a thread with its own connections. It continues if the caller is cancelled; ``close`` waits
        for it, because the last connection to close checkpoints, which needs the lock."""
        self.check()
        if self._writer is None:
            raise BusClosed
        task = asyncio.ensure_future(anyio.to_thread.run_sync(work))
        self._background.add(task)
        task.add_done_callback(self._on_background_done)
        return await asyncio.shield(task)

    def _on_background_done(self, task: asyncio.Future[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled():
            # Retrieved here: a cancelled caller does not.
            task.exception()

    async def sizes(self) -> tuple[int, int]:
        return paths.sizes(self._home)

    def free_space(self) -> int | None:
        try:
            found = os.statvfs(self._home.directory)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize

    async def oldest_transaction(self) -> None:
        """Return None: there is no server."""

    def lock_wait_ms(self) -> int:
        return 0 if self._writer is None else self._writer.lock_wait_ms()

    async def checkpoint(self) -> None:
        self.check()
        writer = self._writer
        if writer is None:
            raise BusClosed
        before = _stat_log(self._home.log)
        if before is None or before[0] < _CHECKPOINT_SIZE or before == self._checkpointed:
            return
        truncate = before[0] >= _TRUNCATE_SIZE
        if not truncate and not writer.has_pages(_CHECKPOINT_PAGES):
            return
        done = await writer.checkpoint(truncate=truncate)
        self._checkpointed = _stat_log(self._home.log) if done else None

    def blocking(self) -> BlockingEngine:
        writer = self._writer
        if writer is None:
            raise BusClosed
        # A deleted bus must not be created again as an empty one.
        writer.check_exists()
        store = BlockingSQLite(
            self._home,
            durability="disk" if self._disk else "process",
            clock=self.clock,
            lock_timeout=self._lock_timeout,
            create=False,
        )
        store.set_process(self.process)
        return store

    def stop_waiting(self) -> None:
        if self._writer is not None:
            self._writer.stop_waiting()

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        doorbell.remove(bells)

    async def close(self, *, left: bool = True) -> None:
        if not self._owner.is_current:
            return
        bell, self._bell = self._bell, None
        poll, self._poll = self._poll, None
        if poll is not None:
            poll.close()
        reader, self._reader = self._reader, None
        writer, self._writer = self._writer, None
        if bell is not None and self._loop is not None:
            self._loop.remove_reader(bell.socket)
            bell.close(leave=not left)
        inline_reader, self._inline_reader = self._inline_reader, None
        if self._background:
            await asyncio.wait(self._background)
        try:
            if inline_reader is not None:
                inline_reader.close()
            if reader is not None:
                await reader.close()
        finally:
            if writer is not None:
                await writer.close()
            # Tasks that wait for a message raise BusClosed.
            self.waiters.ring_all()

    def _check_exists(self) -> None:
        """Raise DatabaseGone if the last write found it gone: a reader has the old file open and would not notice."""
        if self._writer is not None and self._writer.gone:
            raise DatabaseGone(path=str(self._home.database))

    def _on_ring(self) -> None:
        if self._bell is None:
            return
        channels = self._bell.rung()
        if doorbell.ANY in channels:
            self.waiters.ring_all()
        else:
            self.waiters.ring(channels)


def _stat_log(log: Path) -> tuple[int, int] | None:
    """Return the log's size and modification time, without opening it."""
    try:
        found = os.stat(log)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
