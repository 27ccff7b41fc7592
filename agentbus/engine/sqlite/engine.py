"""The asynchronous SQLite engine: one writer, one reader, one connection for quick looks, one doorbell."""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from agentbus.aside import running_loop
from agentbus.clock import Clock, Now
from agentbus.disk import refusal
from agentbus.engine.blocking import BlockingEngine
from agentbus.engine.interface import Progress
from agentbus.engine.looped import LoopEngine
from agentbus.engine.sqlite import bells, home
from agentbus.engine.sqlite.backup import back_up
from agentbus.engine.sqlite.bells import remove
from agentbus.engine.sqlite.blocking import BlockingSQLite
from agentbus.engine.sqlite.connection import open_reader, open_writer, translated
from agentbus.engine.sqlite.examination import Examination
from agentbus.engine.sqlite.inspection import answered, inspected
from agentbus.engine.sqlite.lock import FileLock
from agentbus.engine.sqlite.transaction import Transactor
from agentbus.engine.sqlite.writer import DaemonConnection, Writer, WriterConnection
from agentbus.errors import BusClosed, DatabaseGone
from agentbus.operations import Op
from agentbus.operations.examining import Unseen
from agentbus.operations.processes import Entry
from agentbus.records import BackupRecord, Check

R = TypeVar("R")
T = TypeVar("T")
log = logging.getLogger("agentbus.engine")

_LOG_WORTH_IT = 1024 * 1024
"""Bytes of log from which on it is worth moving into the database."""
_LOG_TOO_LONG = 16 * 1024 * 1024
"""Bytes of log from which on its file is made small again. Commits alone keep it at a quarter of that."""
_LOOKS = 64
"""Looks in a row before the other tasks of the loop have their turn."""


class SQLiteEngine(LoopEngine[Writer]):
    """A bus in one file."""

    def __init__(self, place: home.Home, *, durability: str, clock: Clock, lock_timeout: float) -> None:
        super().__init__(clock, place.directory, home=place.root, durability=durability)
        self._home = place
        self._lock_timeout = lock_timeout
        self._reader: DaemonConnection | None = None
        self._eye: sqlite3.Connection | None = None
        self._looks = 0
        self._checkpointed: tuple[int, int] | None = None
        """The log as our last checkpoint left it, if nothing in it was left to do."""
        self._bell: bells.Bell | None = None
        self._poll: bells.Poll | None = None
        self._aside: set[asyncio.Future[Any]] = set()
        """What is at work on a thread and a connection of its own."""

    async def open(self) -> Entry:
        try:
            return await self._open()
        except OSError as error:
            raise refusal(self._home.directory, error) from error

    async def _open(self) -> Entry:
        self._loop = running_loop()
        home.prepare(self._home)
        lock = FileLock(self._home.lock, self._lock_timeout)
        connection = WriterConnection(lambda: open_writer(self._home, lock))
        try:
            await connection
        except BaseException:
            # The thread may be at work under the lock; it must be through before the lock is closed.
            lock.hurry()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(connection.join)
            lock.close()
            raise
        try:
            transactor = Transactor(self._home, connection._conn, lock, self.clock, disk=self._disk)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await connection.close()
            lock.close()
            raise
        self._writer = Writer(connection, transactor, self.hub)
        self._reader = DaemonConnection(lambda: open_reader(self._home, self._lock_timeout))
        await self._reader
        # Without patience: on the loop's thread nobody may wait for a lock.
        self._eye = await connection.run(lambda: open_reader(self._home, 0))
        self._listen()
        entry = await self._enter(None if self._bell is None else self._bell.path)
        if self._bell is not None:
            # The bells of processes that still count as live are evidence; they go once those are struck off.
            bells.sweep(self._bell.directory, keep={neighbour.bell for neighbour in entry.neighbours})
        return entry

    def _listen(self) -> None:
        """Hang up the doorbell; where there can be none, look at the database's version instead."""
        assert self._loop is not None  # noqa: S101 - set on opening
        try:
            self._bell = bells.hung_up(self._home)
        except bells.NO_BELL as error:
            log.warning("no doorbell, looking for changes every %g s instead: %s", bells.POLL, error)
            self._poll = bells.Poll(open_reader(self._home, self._lock_timeout), self._loop, self.hub.ring_all)
        else:
            self._loop.add_reader(self._bell.socket, self._rung)

    async def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        self.check()
        self._check_there()
        reader = self._reader
        if reader is None:
            raise BusClosed
        op = question(request, self.clock.now())
        try:
            # One hop to the thread for all queries of the question.
            return await reader.run(lambda: answered(op, reader._conn))
        except sqlite3.Error as error:
            raise translated(error, self._home) from error
        except ValueError as error:
            # aiosqlite's word for a connection that was closed meanwhile.
            if self._reader is None:
                raise BusClosed from error
            raise

    async def look(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        """On the loop's own thread: the hop to another one and back costs ten times as much as an indexed look-up.

        No transaction outlives a query, because fetchall reads to the end; an open one would pin the log.
        """
        self.check()
        self._check_there()
        self._looks += 1
        if self._looks % _LOOKS == 0:
            # A task that looks and looks must not keep the others from what it looks for.
            await asyncio.sleep(0)
        if self._eye is None:
            raise BusClosed
        try:
            return answered(question(request, self.clock.now()), self._eye)
        except sqlite3.Error as error:
            if _is_busy(error):
                return await self.read(question, request)
            raise translated(error, self._home) from error

    async def backup(self, path: Path | None, keep: int, progress: Progress | None = None) -> BackupRecord:
        wall = self.clock.now().wall
        given_up = threading.Event()

        def work() -> BackupRecord:
            return back_up(self._home, path, keep, wall, self._lock_timeout, progress, given_up.is_set)

        try:
            return await self._beside(work)
        except asyncio.CancelledError:
            given_up.set()
            raise

    async def examine(self) -> list[Check | Unseen]:
        return await self._beside(Examination(self._home, self._another).look)

    async def inspect(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        op = question(request, self.clock.now())
        return await self._beside(lambda: inspected(op, self._another, self._home))

    def _another(self) -> sqlite3.Connection:
        return open_reader(self._home, self._lock_timeout)

    async def _beside(self, work: Callable[[], T]) -> T:
        """Run what takes long on a thread, with connections of its own. It goes on when the caller is cancelled; the
        bus is not closed before it is through: the last connection to close checkpoints, which needs the lock."""
        self.check()
        if self._writer is None:
            raise BusClosed
        task = asyncio.ensure_future(anyio.to_thread.run_sync(work))
        self._aside.add(task)
        task.add_done_callback(self._is_through)
        return await asyncio.shield(task)

    def _is_through(self, task: asyncio.Future[Any]) -> None:
        self._aside.discard(task)
        if not task.cancelled():
            # Whoever was cancelled does not ask what became of it.
            task.exception()

    async def sizes(self) -> tuple[int, int]:
        return home.sizes(self._home)

    def free_space(self) -> int | None:
        try:
            found = os.statvfs(self._home.directory)
        except OSError:
            return None
        return found.f_bavail * found.f_frsize

    async def oldest_transaction(self) -> None:
        """There is no server."""

    def waited(self) -> int:
        return 0 if self._writer is None else self._writer.waited()

    async def checkpoint(self) -> None:
        self.check()
        writer = self._writer
        if writer is None:
            raise BusClosed
        before = _state(self._home.log)
        if before is None or before[0] < _LOG_WORTH_IT or before == self._checkpointed:
            return
        done = await writer.checkpoint(whole=before[0] >= _LOG_TOO_LONG)
        self._checkpointed = _state(self._home.log) if done else None

    def blocking(self) -> BlockingEngine:
        writer = self._writer
        if writer is None:
            raise BusClosed
        # A bus that was deleted must not come back as an empty one.
        writer.check_there()
        store = BlockingSQLite(
            self._home,
            durability="disk" if self._disk else "process",
            clock=self.clock,
            lock_timeout=self._lock_timeout,
            create=False,
        )
        store.entered(self.process)
        return store

    def hurry(self) -> None:
        if self._writer is not None:
            self._writer.hurry()

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        remove(bells)

    async def close(self, *, left: bool = True) -> None:
        if not self._owner.is_here:
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
        eye, self._eye = self._eye, None
        if self._aside:
            await asyncio.wait(self._aside)
        try:
            if eye is not None:
                eye.close()
            if reader is not None:
                await reader.close()
        finally:
            if writer is not None:
                await writer.close()
            # Whoever waits for a message hears that there will be none.
            self.hub.ring_all()

    def _check_there(self) -> None:
        """What the last write found: a reader has the old file open and would not notice."""
        if self._writer is not None and self._writer.gone:
            raise DatabaseGone(path=str(self._home.database))

    def _rung(self) -> None:
        if self._bell is None:
            return
        channels = self._bell.rung()
        if bells.ANY in channels:
            self.hub.ring_all()
        else:
            self.hub.ring(channels)


def _is_busy(error: sqlite3.Error) -> bool:
    """Somebody recovers the log, or closes it: rare, and soon over."""
    return (getattr(error, "sqlite_errorcode", 0) & 0xFF) == sqlite3.SQLITE_BUSY


def _state(log: Path) -> tuple[int, int] | None:
    """The log's size and when it was last written, without opening it."""
    try:
        found = os.stat(log)
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
