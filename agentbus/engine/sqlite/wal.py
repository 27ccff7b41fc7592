"""The write-ahead log: syncs, checkpoints, and recovery from a failed fsync.

A commit is written under the lock and synced after it was released, so that other processes write meanwhile.
The counters in the lock file say what is on the disk.

After a failed fsync Linux marks the pages clean, and no later fsync writes them. A later synced commit would follow a
gap in the log and be lost in a power cut with everything after the gap; a checkpoint of such a log could damage the
database when it is replayed. So after an I/O error the whole log is rewritten in place from memory and synced before
anything else is promised. Linux reports the error to every descriptor that was open when it happened, but not to one
that was opened later. A process therefore does not trust commits that were not synced when it opened the log: unless
another process has synced them, it rewrites the log too.
"""

from __future__ import annotations

import fcntl
import os
import select
import sqlite3
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from agentbus.core.files import open_file
from agentbus.engine.process_safety import forget_in_child
from agentbus.engine.sqlite import disk_reserve
from agentbus.engine.sqlite.lock import UNKNOWN, CommitCounters, FileLock
from agentbus.errors import AgentBusError, LogNotSynced

_CHUNK = 1024 * 1024
_FULL_SYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)
"""On macOS, fsync leaves the data in the cache of the disk."""
_AIO_CALLS = {"x86_64": (206, 208, 209), "aarch64": (0, 4, 2)}
"""io_setup, io_getevents and io_submit, by machine."""
_AIO_REQUEST = struct.Struct("<QIIHhIQQqQII")
"""struct iocb: data, key, flags, opcode, priority, file, buffer, bytes, offset, reserved, flags, eventfd."""
_AIO_EVENT = struct.Struct("<QQqq")
"""struct io_event: data, request, result, second result."""
_AIO_NUMBER = struct.Struct("<Q")
"""The data of a request, which its event repeats."""
_AIO_FDSYNC = 3
_AIO_NOTIFY = 1
"""IOCB_CMD_FDSYNC and IOCB_FLAG_RESFD."""
_FIRST_KERNEL_SYNC = 16
"""The sync of a bus from which on the kernel is asked; those before run on the thread."""
_MAX_SPIN = 0.0002
"""Maximum number of seconds to spin: about twice the sync of a fast disk."""
_SKIPPED_SPINS = 15
"""Spins that are skipped after one without success."""
CHECKPOINT_PAGES = 1000
"""Length of the log at which it is checkpointed, and begins again."""
_FIRST_PREALLOCATION = 3
"""The sync on a thread from which on the log is preallocated: a command ends before."""
_PREALLOCATED_PAGES = 80
"""Pages that one sync adds; it takes 50 % longer. Those before the kernel's first sync reach the full length."""
_numbers = count(1)
"""Numbers of the kernel's syncs: an answer to another one, of this bus or of the one before, is not taken for it."""
_contexts: list[int] = []
"""Contexts of closed buses. They are not valid in a forked child."""
os.register_at_fork(after_in_child=_contexts.clear)
_HEADER, _FRAME = 32, 24
"""Bytes of the file header and of the header of each page; both contain the salt."""


class WriteAheadLog:
    """The log of one writer connection. What syncs or reads the counters runs without the lock; ``wait_until_synced``
    and ``fail_sync`` acquire it, to preallocate or rewrite the log. The other methods need it."""

    def __init__(
        self, connection: sqlite3.Connection, path: str, lock: FileLock, kernel: KernelSync | None = None
    ) -> None:
        self._connection = connection
        self._path = path
        self._lock = lock
        self._counters = lock.counters
        self._kernel = kernel
        # Opened once: only an older descriptor gets the error of a failed fsync, each once. The kernel has its own,
        # because it may sync while a thread does.
        self._file = open_file(f"{path}-wal", os.O_RDWR)
        announced, synced, self._failures = self._counters.read()
        self._found = announced if synced < announced else 0
        """The newest commit that was in the log when it was opened and not synced yet."""
        self._thread_syncs = 0
        """Syncs on a thread since the bus was opened or the log was last to be truncated."""
        self._page_size = 0
        self._checked = (0, b"")
        """Number and salt of the page that ``is_due`` looked at."""
        self._not_moved = (b"", 0)
        """The salt of a log that could not be checkpointed completely, and its pages."""
        self.doubtful = False
        """True from an I/O error until the log was rewritten: part of it may exist only in memory."""
        self.synced = True
        """True if the last commit of this connection, and so every commit before it, was synced."""
        forget_in_child(self)

    def announce(self) -> int:
        """Return the number of a durable commit that is about to begin."""
        return self._counters.announce()

    def unsynced(self) -> int:
        """Return the number of the newest durable commit, or 0 if it is on the disk."""
        return self._counters.unsynced()

    def is_synced(self, number: int) -> bool:
        return self._counters.read()[1] >= number

    def wait_until_synced(self, number: int, *, written: bool) -> None:
        """Return when a durable commit and all before it are on the disk: another process may have synced it already.

        ``written``: the commit is known to be in the log. If the sync fails, rewrite the log and raise OSError. Raise
        LogNotSynced if the log cannot be rewritten.
        """
        if written:
            self._thread_syncs += 1
            if self._thread_syncs >= _FIRST_PREALLOCATION:
                self._preallocate()
        covered = self._begin_sync(number, written=written)
        if covered == 0:
            return
        if covered is not None:
            try:
                _sync(self._file)
            except OSError:
                self.fail_sync()
                raise
            if self._kernel is not None:
                self._kernel.forgive()
            if self.end_sync(covered):
                return
        with self._lock.held():
            self.require()

    def begin_kernel_sync(self, number: int) -> int | None:
        """Let the kernel sync a commit that is in the log. Return the newest commit that this covers, 0 if it is on the
        disk already, or None if ``wait_until_synced`` must be called."""
        covered = self._begin_sync(number, written=True)
        return covered if not covered or (self._kernel is not None and self._kernel.begin()) else None

    def end_sync(self, covered: int) -> bool:
        """Publish what is on the disk after a sync. Return False if the log must be rewritten: another sync failed."""
        _, synced, failures = self._counters.read()
        if self.doubtful or failures != self._failures:
            return False
        if synced < covered:
            self._counters.set_synced(covered)
        self.synced = True
        return True

    def fail_sync(self) -> None:
        """Rewrite the log after a sync that failed."""
        self._fail()
        with self._lock.held():
            self._rewrite()

    def checkpoint(self, *, truncate: bool) -> bool:
        """Move the log into the database up to the oldest reader; with ``truncate`` also shrink its file if it has no
        reader. Return True if all of it was done."""
        # SQLite does not report an fsync that fails during a checkpoint: nothing may be left to sync by then.
        self._sync_all()
        mode = "TRUNCATE" if truncate else "PASSIVE"
        try:
            ((busy, pages, moved),) = self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()
        except sqlite3.Error as error:
            if (getattr(error, "sqlite_errorcode", None) or sqlite3.SQLITE_IOERR) & 0xFF == sqlite3.SQLITE_IOERR:
                self.mark_doubtful()
            raise
        done = not busy and bool(pages == moved)
        if truncate:
            self._thread_syncs = 0
        self._not_moved = (b"", 0) if done else (self._salt(), pages)
        return done

    def mark_doubtful(self) -> None:
        """Rewrite the log after an I/O error."""
        self._fail()
        self._rewrite()

    def require(self) -> None:
        """Raise LogNotSynced if the log is doubtful and cannot be rewritten."""
        if not self._ensure_sound():
            raise LogNotSynced(path=self._path)

    def is_due(self, pages: int | None = None) -> bool:
        """Return True if the log has that many pages and can be checkpointed. If a reader prevented the last
        checkpoint, it must have grown by that many since. Rewrites a doubtful log."""
        pages = CHECKPOINT_PAGES if pages is None else pages
        salt, left = self._not_moved
        if left:
            pages += left if salt == self._salt() else 0
        return self.has_pages(pages) and self._ensure_sound()

    def sync(self) -> None:
        """Sync before closing: the last connection to close checkpoints, and SQLite does not report a failed fsync."""
        if not self.synced or self.unsynced():
            with suppress(OSError, LogNotSynced):
                self._sync_all()

    def forget(self) -> None:
        """Close the descriptor, also in a forked child. SQLite has no locks on the log, so closing it drops none."""
        file, self._file = self._file, -1
        if file >= 0:
            with suppress(OSError):
                os.close(file)

    def close(self) -> None:
        self.forget()
        if self._kernel is not None:
            self._kernel.close()

    def _vouches(self, announced: int, synced: int, failures: int) -> bool:
        """Return True if a sync by this process says something about the whole log."""
        if synced >= self._found:
            self._found = 0
        return not self._found and not self.doubtful and announced != UNKNOWN and failures == self._failures

    def _begin_sync(self, number: int, *, written: bool) -> int | None:
        """Return the newest commit that a sync covers from now on: 0 if none is needed, None if the log must be
        rewritten."""
        announced, synced, failures = self._counters.read()
        if synced >= number:
            return 0
        if not self._vouches(announced, synced, failures):
            return None
        # A commit is announced after the one before was written. One that was announced is in the log if no commit is
        # in progress, or it failed, or its process was killed.
        written = written or self._lock.is_free()
        return max(min(number, announced), announced - 1) if written else announced - 1

    def _sync_all(self) -> None:
        """Sync what is in the log, non-durable commits included. Under the lock."""
        if not self._vouches(*self._counters.read()):
            self._rewrite()
            self.require()
            return
        # Announced, so that a process that is killed after a failed sync leaves a trace of it.
        number = self._counters.announce()
        try:
            _sync(self._file)
        except OSError:
            self.mark_doubtful()
            self.require()
        else:
            self.synced = True
            self._counters.set_synced(number)

    def _fail(self) -> None:
        self.doubtful = True
        self._counters.count_failure()

    def _ensure_sound(self) -> bool:
        if not self._vouches(*self._counters.read()):
            self._rewrite()
        return not self.doubtful

    def _salt(self) -> bytes:
        return os.pread(self._file, 8, 16)

    def _size_of(self, pages: int) -> int:
        """Return the size of a log with this number of pages, in bytes."""
        if not self._page_size:
            self._page_size = int.from_bytes(os.pread(self._file, 4, 8), "big")
        return _HEADER + pages * (self._page_size + _FRAME)

    def _preallocate(self) -> None:
        """Append zeros to a log that is shorter than the length at which it begins again: to sync a file that grows
        takes 50 % longer. SQLite ends its log where the salt is another one. Does nothing if the lock is not free, or
        the disk is nearly full."""
        with suppress(sqlite3.Error, OSError):
            full = self._size_of(CHECKPOINT_PAGES)
            if os.fstat(self._file).st_size >= full or disk_reserve.is_scarce(os.path.dirname(self._path)):
                return
            try:
                if not self._lock.try_acquire():
                    return
                try:
                    # No other program may append meanwhile, not even one that does not use the bus's lock.
                    self._connection.execute("BEGIN IMMEDIATE")
                    size = os.fstat(self._file).st_size
                    # Not to an empty log: SQLite has not written its header.
                    if size > _HEADER:
                        added = _PREALLOCATED_PAGES * (self._page_size + _FRAME)
                        os.pwrite(self._file, bytes(max(0, min(added, full - size))), size)
                finally:
                    # Not begun if another program is writing.
                    if self._connection.in_transaction:
                        self._connection.execute("ROLLBACK")
            finally:
                self._lock.release()

    def has_pages(self, pages: int) -> bool:
        """Return True if the log is that long. The size of its file says nothing: it is preallocated, and stays when
        the log begins again. Pages of an earlier round have another salt."""
        salt = os.pread(self._file, 8, self._size_of(pages - 1) + 8)
        if self._checked == (pages, salt):
            # Not written since it was found to be of an earlier round.
            return False
        if salt == self._salt() != b"":
            return True
        self._checked = (pages, salt)
        return False

    def _rewrite(self) -> None:
        """Write the log again and sync it. The log stays doubtful if that fails."""
        self.doubtful = True
        with suppress(sqlite3.Error, OSError, AgentBusError):
            # Their errors are known: a later sync is not to fail because of them.
            for file in (self._file,) if self._kernel is None else (self._file, self._kernel.file):
                with suppress(OSError):
                    _sync(file)
            # No other program may append meanwhile, not even one that does not use the bus's lock.
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                number = self._counters.announce()
                failures = self._counters.read()[2]
                _rewrite_in_place(f"{self._path}-wal")
                self._found, self._failures = 0, failures
                self.doubtful, self.synced = False, True
                self._counters.set_synced(number)
            finally:
                self._connection.execute("ROLLBACK")


class KernelSync:
    """fdatasync by the asynchronous I/O of the Linux kernel, one at a time: ``event`` is readable when it has ended.

    A sync on a thread costs two changes of threads, which take as long as the disk does. The standard library has no
    binding; the calls are made by number, as in libaio. Raises OSError where the system has no such calls.
    """

    def __init__(self, path: str) -> None:
        import platform

        calls = _AIO_CALLS.get(platform.machine()) if sys.platform == "linux" and sys.maxsize > 2**32 else None
        if calls is None:
            raise OSError("no asynchronous I/O")
        self._setup, self._getevents, self._submit = calls
        self.file = self.event = -1
        self._context: Any = None
        self._call: Any = None
        self._asked = 0
        self._spins_to_skip = 0
        """The number of spins to skip."""
        self._number: int | None = None
        """The number of the sync in progress."""
        self._given_up: int | None = None
        """The number of a sync that no caller waits for, until its answer has come."""
        self._has_failed = False
        """True if the error of one that was given up has been taken from the descriptor: it is not reported again."""
        forget_in_child(self)
        try:
            self.file = open_file(path, os.O_RDWR)
            self.event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except BaseException:
            self.forget()
            raise

    def begin(self) -> bool:
        """Begin a sync. Return False if one is in progress, or if the kernel refuses, as Linux before 4.18 does. The
        first ones are declined: a process that has a context takes 30 ms longer to exit."""
        if self._number is not None or not self._is_settled():
            return False
        if self._context is None:
            self._asked += 1
            # Once: a system without such calls does not get them later.
            if self._asked != _FIRST_KERNEL_SYNC or not self._open_context():
                return False
        number = next(_numbers)
        _AIO_NUMBER.pack_into(self._request, 0, number)
        self._number = number
        if self._call(self._submit, self._context, self._one, self._requests) != 1:
            self._number = None
        return self._number is not None

    def _open_context(self) -> bool:
        import ctypes

        self._call = ctypes.CDLL(None, use_errno=True).syscall
        context = ctypes.c_ulong(_contexts.pop() if _contexts else 0)
        if not context.value and self._call(self._setup, 1, ctypes.byref(context)) != 0:
            return False
        self._context = context
        self._request = ctypes.create_string_buffer(_AIO_REQUEST.size)
        request = (0, 0, 0, _AIO_FDSYNC, 0, self.file, 0, 0, 0, 0, _AIO_NOTIFY, self.event)
        _AIO_REQUEST.pack_into(self._request, 0, *request)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._answer = ctypes.create_string_buffer(_AIO_EVENT.size)
        self._zero, self._one = ctypes.c_long(0), ctypes.c_long(1)
        self._poll = select.poll()
        self._poll.register(self.event, select.POLLIN)
        return True

    def spin(self) -> bool:
        """Wait for the sync without giving up the processor, unless another thread wants it. Return True if it has
        ended. After a sync that took longer, the next spins are skipped."""
        if self._spins_to_skip:
            self._spins_to_skip -= 1
            return False
        deadline = time.perf_counter() + _MAX_SPIN
        # Not the answer, which may come before the event: a signal after ``end`` would wake the loop indefinitely.
        while not self._poll.poll(0):
            if time.perf_counter() > deadline:
                self._spins_to_skip = _SKIPPED_SPINS
                return False
            os.sched_yield()
        return True

    def result(self) -> int | None:
        """Return 0 after a sync, or the number of its error; None if it has not ended. Until ``end``, ``event`` stays
        readable, so that the result is not lost if a signal handler raises."""
        number = self._number
        return None if number is None or self._context is None else self._answer_to(number)

    def _is_settled(self) -> bool:
        """Return False while a sync that was given up may take the error of the next one, or has taken one."""
        if self._given_up is not None and (error := self._answer_to(self._given_up)) is not None:
            self._has_failed = self._has_failed or error != 0
            self._clear_event()
            self._given_up = None
        return self._given_up is None and not self._has_failed

    def forgive(self) -> None:
        """Allow syncs after one that failed unnoticed: another descriptor, which gets the same errors, was synced."""
        self._has_failed = False

    def _answer_to(self, number: int) -> int | None:
        while (answer := _AIO_EVENT.unpack(self._answer))[0] != number:
            # The answer stays in the buffer if a handler raises right after the call.
            if self._call(self._getevents, self._context, self._zero, self._one, self._answer, None) != 1:
                return None
        return -int(answer[2])

    def end(self) -> None:
        """Allow the next sync; if one is in progress, after its answer has come."""
        number = self._number
        if number is not None and self._context is not None and _AIO_EVENT.unpack(self._answer)[0] != number:
            self._given_up = number
        self._number = None
        # If a handler raises before it, the loop is woken by the event until this is called again.
        self._clear_event()

    def _clear_event(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self.event)

    def close(self) -> None:
        """Leave the context to another bus: to destroy one takes 30 ms. One with a sync in progress is not reused."""
        if self._context is not None and self._number is None and self._given_up is None:
            _contexts.append(self._context.value)
        self._context = None
        self.forget()

    def forget(self) -> None:
        """Close the descriptors, also in a forked child, where the context is not valid."""
        descriptors, self.event, self.file = (self.event, self.file), -1, -1
        for descriptor in descriptors:
            if descriptor >= 0:
                with suppress(OSError):
                    os.close(descriptor)


def open_kernel_sync(path: str) -> KernelSync | None:
    """Return a KernelSync of a log, or None where there is none."""
    try:
        return KernelSync(f"{path}-wal")
    except OSError:
        return None


@contextmanager
def sync_what_is_read(lock: str | os.PathLike[str], log: str | os.PathLike[str]) -> Iterator[None]:
    """After a block that reads, sync the log if it may have seen commits that are not on the disk.

    For a process that may write neither file: it cannot rewrite a log after a sync that failed before.
    """
    yield
    if _may_be_unsynced(lock):
        try:
            file = open_file(log, os.O_RDONLY)
        except FileNotFoundError:
            # Everything is in the database, which is synced before the log is deleted.
            return
        try:
            _sync(file)
        except OSError as error:
            raise LogNotSynced(path=os.fspath(log)) from error
        finally:
            os.close(file)


def _may_be_unsynced(lock: str | os.PathLike[str]) -> bool:
    try:
        counters = open_file(lock, os.O_RDONLY)
    except OSError:
        return True
    try:
        return CommitCounters(counters).unsynced() > 0
    finally:
        os.close(counters)


def _sync(file: int) -> None:
    """Write what the system holds of a file to the disk."""
    if _FULL_SYNC is not None:
        fcntl.fcntl(file, _FULL_SYNC)
    else:
        os.fdatasync(file)


def _rewrite_in_place(path: str) -> None:
    """Write the contents of a file to the file itself, and sync it.

    SQLite holds no lock on the log itself, so opening and closing it drops none.
    """
    file = open_file(path, os.O_RDWR)
    try:
        offset = 0
        while chunk := os.pread(file, _CHUNK, offset):
            offset += os.pwrite(file, chunk, offset)
        os.fsync(file)
        if _FULL_SYNC is not None:
            fcntl.fcntl(file, _FULL_SYNC)
    finally:
        os.close(file)
