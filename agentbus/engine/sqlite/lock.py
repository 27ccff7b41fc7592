"""The write lock of a bus: one writer at a time across processes, granted in order of arrival.

SQLite's busy handler sleeps and retries, which starves some of many writers; ``flock`` queues them. The lock is held
around every write transaction, checkpoint and close, which also avoids the WAL-reset race of SQLite before 3.51.3.

The file holds the pid of the holder, and the numbers of the durable commits. A commit becomes visible before it is
synced, so that syncs of several processes overlap. These numbers say which commits are on the disk: the log is a prefix
of what was committed, so a sync that begins after a commit covers it and all before it. A commit is announced under the
lock, before it becomes visible: a process that reads rows and then finds every announced commit synced has read nothing
that a power cut can undo. Each number has a check value: what is damaged or missing counts as not synced.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from agentbus.core.files import open_file
from agentbus.engine.process_safety import forget_in_child
from agentbus.errors import LockTimeout, NotWritable, TooManyFiles

_OFFSET = 32
_LAYOUT = struct.Struct("<6Q")
_RECORD = struct.Struct("<2Q")
_ANNOUNCED, _SYNCED, _FAILURES = 0x616E6E6F756E6365, 0x73796E6365642121, 0x6661696C75726573
"""Each number is combined with one of these in its check value."""
UNKNOWN = 2**64 - 1
"""A number that no commit reaches."""
_GAP_BITS = 32
"""After a loss of the numbers, new ones begin above all that processes may still remember."""
_LAST_WAITS = 0.1
"""Seconds that all acquisitions after ``stop_waiting`` may wait, together."""


class FileLock:
    """The write lock of a bus. One thread uses it at a time."""

    def __init__(self, path: str | os.PathLike[str], timeout: float) -> None:
        self._path = path
        self.timeout = timeout
        self._fd = self._open()
        self.counters = CommitCounters(self._fd)
        """The numbers of durable commits, in the same file."""
        self._held: int | None = None
        self._signature = b"%-15d\n" % os.getpid()
        self._waiter: _Waiter | None = None
        self._stops_at: float | None = None
        """Monotonic seconds from which on no acquisition waits."""
        self.waited = 0.0
        """Seconds that all acquisitions waited."""
        self._reported = 0
        forget_in_child(self)

    @contextmanager
    def held(self, timeout: float | None = None) -> Iterator[None]:
        """Hold the lock within the block, also if this object holds it already."""
        if self._held is not None:
            yield
            return
        try:
            self.acquire(timeout)
            yield
        finally:
            self.release()

    def is_free(self) -> bool:
        """Return True if no process, or only this object, holds the lock."""
        if self._held is not None:
            return True
        try:
            return self.try_acquire()
        finally:
            self.release()

    @contextmanager
    def limit_timeout(self, seconds: float) -> Iterator[None]:
        """Wait at most this long for the lock within the block."""
        previous, self.timeout = self.timeout, min(self.timeout, seconds)
        try:
            yield
        finally:
            self.timeout = previous

    def acquire(self, timeout: float | None = None) -> None:
        """Acquire the lock, or raise LockTimeout with the pid of the holder."""
        if not self.try_acquire():
            self._held = self._queue(self.timeout if timeout is None else timeout)
            self._sign()

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._held = self._fd
        self._sign()
        return True

    def release(self) -> None:
        held, self._held = self._held, None
        self.counters.under_lock = None
        # Unknown if a signal handler raised right after the lock was granted.
        waiting = () if self._waiter is None else (self._waiter.fd,)
        for descriptor in (self._fd, *waiting) if held is None else (held,):
            if descriptor >= 0:
                fcntl.flock(descriptor, fcntl.LOCK_UN)

    def lock_wait_ms(self) -> int:
        """Return the milliseconds waited since the last call. May be called from another thread."""
        before, self._reported = self._reported, round(self.waited * 1000)
        return self._reported - before

    def stop_waiting(self) -> None:
        """End the current wait for the lock, and bound later ones to a fraction of a second altogether."""
        if self._stops_at is None:
            self._stops_at = time.monotonic() + _LAST_WAITS
        waiter = self._waiter
        if waiter is not None:
            waiter.stop()

    @property
    def is_stopping(self) -> bool:
        return self._stops_at is not None

    def close(self) -> None:
        self.release()
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.end()
        fd, self._fd = self._fd, -1
        self.counters.descriptor = -1
        if fd >= 0:
            os.close(fd)

    def holder(self) -> int | None:
        """Return the pid of the holder; if the lock is free, of the last one."""
        try:
            return _find_holder(self._path, int(os.pread(self._fd, 16, 0)))
        except (OSError, ValueError):
            return None

    def forget(self) -> None:
        """Close the descriptor in a forked child: the lock is the parent's, and an open copy would keep it held."""
        descriptor, self._fd, self._held, self._waiter = self._fd, -1, None, None
        self.counters.descriptor = -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    def _sign(self) -> None:
        """Write the pid for the error messages of waiting processes, unless it is there, and note the numbers of the
        commits. A full disk must not prevent locking."""
        with suppress(OSError):
            found = os.pread(self._fd, _OFFSET + _LAYOUT.size, 0)
            if found[: len(self._signature)] != self._signature:
                os.pwrite(self._fd, self._signature, 0)
            self.counters.under_lock = found[_OFFSET:]

    def _open(self) -> int:
        try:
            return open_file(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise NotWritable(path=str(self._path), reason=error.strerror or str(error)) from None

    def _queue(self, timeout: float) -> int:
        """Wait in the kernel's queue, on a daemon thread: a thread blocked in flock would hang the exit.

        The thread has its own descriptor. On ``_fd``, a grant that arrives after the timeout would be mistaken for,
        and released with, a lock acquired since.
        """
        waiter = self._waiter
        if waiter is None:
            try:
                waiter = self._waiter = _Waiter(self._open())
            except (NotWritable, TooManyFiles, RuntimeError):
                # No descriptor or thread left to wait with: a transient condition, like a timeout.
                raise LockTimeout(path=str(self._path), pid=self.holder(), waited=0) from None
        start = time.monotonic()
        granted = False
        try:
            waiter.begin()
            # Looked at after the wait has begun, so that ``stop_waiting`` ends it if this does not.
            stops_at = self._stops_at
            granted = waiter.wait(timeout if stops_at is None else max(0.0, min(timeout, stops_at - start)))
        finally:
            waited = time.monotonic() - start
            self.waited += waited
            if not granted:
                # Its thread may wait for long; the next wait has another.
                self._waiter = None
                waiter.end()
        if not granted:
            raise LockTimeout(path=str(self._path), pid=self.holder(), waited=round(waited, 1))
        return waiter.fd


class CommitCounters:
    """The numbers in one open lock file."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._settled: bytes | None = None
        """The bytes that were last seen to say that everything is synced."""
        self.under_lock: bytes | None = None
        """The bytes when the lock was acquired. While it is held, only this process announces commits."""

    def read(self) -> tuple[int, int, int]:
        """Return the newest commit that was announced (UNKNOWN if that is lost), the newest that is known to be on the
        disk, and the number of syncs that failed."""
        return _decode(self._load())

    def unsynced(self) -> int:
        """Return the newest commit that was announced, or 0 if it is on the disk."""
        # Read once: another thread may release the lock.
        under_lock = self.under_lock
        if under_lock is not None and under_lock == self._settled:
            return 0
        found = self._load()
        if found == self._settled:
            return 0
        announced, synced, _ = _decode(found)
        if synced < announced:
            return announced
        self._settled = found
        return 0

    def announce(self) -> int:
        """Return the number of a commit that is about to begin. Under the lock."""
        found, self.under_lock = self.under_lock, None
        announced, synced, _ = _decode(self._pread() if found is None else found)
        number = announced + 1 if announced != UNKNOWN else ((synced >> _GAP_BITS) + 1) << _GAP_BITS
        self._store(0, number, _ANNOUNCED)
        return number

    def set_synced(self, number: int) -> None:
        """Publish the newest commit that is on the disk. It was higher than the published one a moment ago; if another
        process has published a still higher one meanwhile, that is lost, and its commits are synced once more."""
        # Without it, other processes sync again.
        with suppress(OSError):
            self._store(1, number, _SYNCED)

    def count_failure(self) -> None:
        """Make every process doubt the log."""
        with suppress(OSError):
            self._store(2, _decode(self._pread())[2] + 1, _FAILURES)

    def _load(self) -> bytes:
        """Return the bytes of the numbers. What cannot be read counts as missing: after a commit, its calls must not be
        reported as failed."""
        try:
            return self._pread()
        except OSError:
            return b""

    def _pread(self) -> bytes:
        return os.pread(self.descriptor, _LAYOUT.size, _OFFSET)

    def _store(self, field: int, number: int, check: int) -> None:
        os.pwrite(self.descriptor, _RECORD.pack(number, number ^ check), _OFFSET + field * _RECORD.size)


def _decode(found: bytes) -> tuple[int, int, int]:
    if len(found) != _LAYOUT.size:
        found = found.ljust(_LAYOUT.size, b"\0")
    announced, announced_check, synced, synced_check, failures, failures_check = _LAYOUT.unpack(found)
    if announced ^ _ANNOUNCED != announced_check:
        announced = UNKNOWN
    # No process publishes more than was announced.
    if synced ^ _SYNCED != synced_check or synced > announced:
        synced = 0
    return announced, synced, failures if failures ^ _FAILURES == failures_check else 0


def holder(path: str) -> str | None:
    """Return the pid that holds a lock, or ``unknown``; None if it is free. Neither waits for the lock nor acquires
    it."""
    try:
        descriptor = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            signed = os.pread(descriptor, 16, 0).decode(errors="replace").strip()
            return str(_find_holder(path, int(signed))) if signed.isdecimal() else signed or "unknown"
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return None
    finally:
        os.close(descriptor)


def _find_holder(path: str | os.PathLike[str], signed: int) -> int:
    """Return the pid that holds the lock which ``signed`` acquired: that process, or a child that was forked without
    Python's hooks, inherited the descriptor and outlived it. Without ``/proc``, return ``signed``."""
    try:
        file = os.stat(path)
        others = (int(name) for name in os.listdir("/proc") if name.isdecimal() and name != str(signed))
        return next((pid for pid in (signed, *others) if _holds(pid, (file.st_dev, file.st_ino))), signed)
    except OSError:
        return signed


def _holds(pid: int, file: tuple[int, int]) -> bool:
    """Return True if a process holds a lock on a file, as far as this user may see."""
    try:
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                found = os.stat(f"/proc/{pid}/fd/{descriptor}")
                if (found.st_dev, found.st_ino) == file:
                    with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii") as facts:
                        if "FLOCK" in facts.read():
                            return True
    except OSError:
        # It has ended, or belongs to another user.
        return False
    return False


class _Waiter:
    """Waits for the lock on a daemon thread, again and again until a wait is given up. Each step is one hand-over of a
    plain lock: an Event takes several times as long."""

    def __init__(self, fd: int) -> None:
        # Imported only here: the lock is usually free, and the command line should start without it.
        from threading import Lock, Thread

        self.fd = fd
        self._wanted = Lock()
        self._answered = Lock()
        self._decided = Lock()
        """Held while one of the following changes."""
        self._state = "idle"
        self._wanted.acquire()
        self._answered.acquire()
        forget_in_child(self)
        self._thread = Thread(target=self._run, name="agentbus-lock", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.forget()
            raise

    def begin(self) -> None:
        """Join the kernel's queue."""
        with self._decided:
            self._state = "waiting"
        self._wanted.release()

    def wait(self, timeout: float) -> bool:
        """Return True once the lock is held through ``fd``, or False after that many seconds or after ``stop``."""
        return self._answered.acquire(timeout=timeout) and self._state == "granted"

    def stop(self) -> None:
        """End the current wait. May be called from another thread."""
        with self._decided:
            if self._state == "waiting":
                self._state = "stopped"
                self._answered.release()

    def end(self) -> None:
        """Release the lock if it was granted meanwhile, and end the thread; one that is in the kernel's queue ends when
        it gets the lock."""
        with self._decided:
            queued = self._state in {"waiting", "stopped"}
            if self._state == "granted":
                fcntl.flock(self.fd, fcntl.LOCK_UN)
            self._state = "ended"
        with suppress(RuntimeError):
            # Unless it was interrupted, a queued thread has taken this already.
            self._wanted.release()
        if not queued:
            self._thread.join(1)

    def forget(self) -> None:
        """Close the descriptor, in a forked child too: a copy would stay in the queue, and then hold the lock."""
        fd, self.fd = self.fd, -1
        with suppress(OSError):
            os.close(fd)

    def _run(self) -> None:
        try:
            while True:
                self._wanted.acquire()
                if self._state == "ended":
                    return
                fcntl.flock(self.fd, fcntl.LOCK_EX)
                with self._decided:
                    if self._state != "waiting":
                        fcntl.flock(self.fd, fcntl.LOCK_UN)
                        return
                    self._state = "granted"
                    self._answered.release()
        finally:
            self.forget()
