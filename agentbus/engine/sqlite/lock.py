"""The write lock of a bus: one writer at a time across processes, granted in order of arrival.

SQLite's busy handler sleeps and retries, which starves some of many writers; ``flock`` queues them. The lock is held
around every write transaction, checkpoint and close, which also avoids the WAL-reset race of SQLite before 3.51.3.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from agentbus.core.files import open_file
from agentbus.engine.process_safety import forget_in_child
from agentbus.errors import LockTimeout, NotWritable, TooManyFiles

_LAST_WAITS = 0.1
"""Seconds that all acquisitions after ``stop_waiting`` may wait, together."""


class FileLock:
    """The write lock of a bus. One thread uses it at a time."""

    def __init__(self, path: str | os.PathLike[str], timeout: float) -> None:
        self._path = path
        self.timeout = timeout
        self._fd = self._open()
        self._held: int | None = None
        self._ticket: _Ticket | None = None
        self._stops_at: float | None = None
        """Monotonic seconds from which on no acquisition waits."""
        self.waited = 0.0
        """Seconds that all acquisitions waited."""
        self._reported = 0
        forget_in_child(self)

    @contextmanager
    def held(self, timeout: float | None = None) -> Iterator[None]:
        self.acquire(timeout)
        try:
            yield
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
            self._sign(self._held)

    def try_acquire(self) -> bool:
        """Acquire the lock if it is free."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._held = self._fd
        self._sign(self._fd)
        return True

    def release(self) -> None:
        # Even if ``_held`` is not set: a signal handler may have raised right after flock.
        held, self._held = self._fd if self._held is None else self._held, None
        if held < 0:
            return
        fcntl.flock(held, fcntl.LOCK_UN)
        if held != self._fd:
            os.close(held)

    def lock_wait_ms(self) -> int:
        """Return the milliseconds waited since the last call. May be called from another thread."""
        before, self._reported = self._reported, round(self.waited * 1000)
        return self._reported - before

    def stop_waiting(self) -> None:
        """End the current wait for the lock, and bound later ones to a fraction of a second altogether."""
        if self._stops_at is None:
            self._stops_at = time.monotonic() + _LAST_WAITS
        ticket = self._ticket
        if ticket is not None:
            ticket.done.set()

    @property
    def is_stopping(self) -> bool:
        return self._stops_at is not None

    def close(self) -> None:
        self.release()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def holder(self) -> int | None:
        """Return the pid of the holder; if the lock is free, of the last one."""
        try:
            return _find_holder(self._path, int(os.pread(self._fd, 16, 0)))
        except (OSError, ValueError):
            return None

    def forget(self) -> None:
        """Close the descriptors in a forked child: the lock is the parent's, and an open copy would keep it held."""
        descriptors, self._fd, self._held = {self._fd, self._held}, -1, None
        for descriptor in descriptors:
            if descriptor is not None and descriptor >= 0:
                with suppress(OSError):
                    os.close(descriptor)

    @staticmethod
    def _sign(descriptor: int) -> None:
        """Write the pid for the error messages of waiting processes. A full disk must not prevent locking."""
        with suppress(OSError):
            os.pwrite(descriptor, b"%-15d\n" % os.getpid(), 0)

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
        try:
            ticket = self._ticket = _Ticket(self._open())
        except (NotWritable, TooManyFiles):
            # No descriptor left to wait with: a transient condition, like a timeout.
            raise LockTimeout(path=str(self._path), pid=self.holder(), waited=0) from None
        # Imported only here: the lock is usually free, and the command line should start without it.
        from threading import Thread

        Thread(target=ticket.wait, name="agentbus-lock", daemon=True).start()
        start = time.monotonic()
        ticket.done.wait(timeout if self._stops_at is None else max(0.0, min(timeout, self._stops_at - start)))
        self._ticket = None
        waited = time.monotonic() - start
        self.waited += waited
        if ticket.give_up():
            raise LockTimeout(path=str(self._path), pid=self.holder(), waited=round(waited, 1))
        return ticket.fd


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


class _Ticket:
    """One wait for the lock. Either the waiter gets the descriptor, or it is closed."""

    def __init__(self, fd: int) -> None:
        from threading import Event, Lock

        self.fd = fd
        self.done = Event()
        self._decided = Lock()
        self._granted = False
        self._given_up = False
        forget_in_child(self)

    def wait(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        with self._decided:
            if self._given_up:
                fcntl.flock(self.fd, fcntl.LOCK_UN)
                os.close(self.fd)
            else:
                self._granted = True
                self.done.set()

    def forget(self) -> None:
        """Close the descriptor in a forked child: a copy would stay in the queue, and then hold the lock."""
        with suppress(OSError):
            os.close(self.fd)

    def give_up(self) -> bool:
        with self._decided:
            self._given_up = not self._granted
            return self._given_up
