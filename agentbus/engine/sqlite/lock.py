"""One writer at a time, across processes, fairly.

SQLite's own busy handler sleeps and tries again, which starves some of many writers. ``flock`` queues them. It is
held around every write transaction, every checkpoint and every close; that also closes the WAL-reset race of SQLite
before 3.51.3.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from agentbus.engine.forking import forget_in_child
from agentbus.errors import LockTimeout, NotWritable, TooManyFiles
from agentbus.safe_files import open_file

_HURRY = 0.1
"""Seconds that all who come after a hurry may wait together."""


class FileLock:
    """The write lock of a bus. One thread uses it at a time."""

    def __init__(self, path: str | os.PathLike[str], timeout: float) -> None:
        self._path = path
        self.timeout = timeout
        self._fd = self._open()
        self._held: int | None = None
        self._ticket: _Ticket | None = None
        self._hurried: float | None = None
        """When nobody waits any more (monotonic seconds)."""
        self._waited = 0.0
        self._told = 0
        forget_in_child(self)

    @contextmanager
    def held(self, timeout: float | None = None) -> Iterator[None]:
        self.acquire(timeout)
        try:
            yield
        finally:
            self.release()

    @contextmanager
    def patient(self, seconds: float) -> Iterator[None]:
        """For the length of a block, wait no longer than this for the lock."""
        usual, self.timeout = self.timeout, min(self.timeout, seconds)
        try:
            yield
        finally:
            self.timeout = usual

    def acquire(self, timeout: float | None = None) -> None:
        """Take the lock, or raise LockTimeout with the pid that holds it."""
        if not self.try_acquire():
            self._held = self._queue(self.timeout if timeout is None else timeout)
            self._sign(self._held)

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._held = self._fd
        self._sign(self._fd)
        return True

    def release(self) -> None:
        # Also when it does not count as ours: a signal handler may have raised right after it was taken.
        held, self._held = self._fd if self._held is None else self._held, None
        if held < 0:
            return
        fcntl.flock(held, fcntl.LOCK_UN)
        if held != self._fd:
            os.close(held)

    def waited(self) -> int:
        """Milliseconds that were waited for it since this was last asked. May be called from another thread."""
        before, self._told = self._told, round(self._waited * 1000)
        return self._told - before

    def hurry(self) -> None:
        """Whoever waits for the lock gives up, and those who come after wait no longer than a moment, all together."""
        if self._hurried is None:
            self._hurried = time.monotonic() + _HURRY
        ticket = self._ticket
        if ticket is not None:
            ticket.over.set()

    @property
    def hurried(self) -> bool:
        return self._hurried is not None

    def close(self) -> None:
        self.release()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def holder(self) -> int | None:
        """The pid that took the lock last; or the one that has it since, if that is another."""
        try:
            return _keeper(self._path, int(os.pread(self._fd, 16, 0)))
        except (OSError, ValueError):
            return None

    def forget(self) -> None:
        """In a forked child: the lock is the parent's, and an open descriptor would keep it."""
        descriptors, self._fd, self._held = {self._fd, self._held}, -1, None
        for descriptor in descriptors:
            if descriptor is not None and descriptor >= 0:
                with suppress(OSError):
                    os.close(descriptor)

    @staticmethod
    def _sign(descriptor: int) -> None:
        """Only for the error message of whoever waits: a full disk must not keep anybody from the lock."""
        with suppress(OSError):
            os.pwrite(descriptor, b"%-15d\n" % os.getpid(), 0)

    def _open(self) -> int:
        try:
            return open_file(self._path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise NotWritable(path=str(self._path), reason=error.strerror or str(error)) from None

    def _queue(self, timeout: float) -> int:
        """Wait in the kernel's queue, on a daemon thread: a thread blocked in flock would hang the exit.

        The descriptor is the helper's own. On ours, a grant that comes after we gave up would be taken for, and
        released with, a lock that we took since.
        """
        try:
            ticket = self._ticket = _Ticket(self._open())
        except (NotWritable, TooManyFiles):
            # No descriptor left to wait with: that passes, as the wait itself would.
            raise LockTimeout(path=str(self._path), pid=self.holder(), waited=0) from None
        # Imported only here: most find the lock free, and the command line should start without it.
        from threading import Thread

        Thread(target=ticket.wait, name="agentbus-lock", daemon=True).start()
        begun = time.monotonic()
        ticket.over.wait(timeout if self._hurried is None else max(0.0, min(timeout, self._hurried - begun)))
        self._ticket = None
        waited = time.monotonic() - begun
        self._waited += waited
        if ticket.give_up():
            raise LockTimeout(path=str(self._path), pid=self.holder(), waited=round(waited, 1))
        return ticket.fd


def holder(path: str) -> str | None:
    """The pid that has a lock at this moment, or ``unknown``; None if nobody has. A look, without waiting and without
    taking it from anybody."""
    try:
        descriptor = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            signed = os.pread(descriptor, 16, 0).decode(errors="replace").strip()
            return str(_keeper(path, int(signed))) if signed.isdecimal() else signed or "unknown"
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        return None
    finally:
        os.close(descriptor)


def _keeper(path: str | os.PathLike[str], signed: int) -> int:
    """Who has the lock that a process signed: that one, or a child of it that was forked behind Python's back, kept the
    descriptor, and outlived it. Where the system does not say, it is the one that signed."""
    try:
        file = os.stat(path)
        others = (int(name) for name in os.listdir("/proc") if name.isdecimal() and name != str(signed))
        return next((pid for pid in (signed, *others) if _has(pid, (file.st_dev, file.st_ino))), signed)
    except OSError:
        return signed


def _has(pid: int, file: tuple[int, int]) -> bool:
    """Whether a process has a lock on a file, as far as this user may see."""
    try:
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with suppress(FileNotFoundError):
                found = os.stat(f"/proc/{pid}/fd/{descriptor}")
                if (found.st_dev, found.st_ino) == file:
                    with open(f"/proc/{pid}/fdinfo/{descriptor}", encoding="ascii") as facts:
                        if "FLOCK" in facts.read():
                            return True
    except OSError:
        # It has ended, or is somebody else's.
        return False
    return False


class _Ticket:
    """A place in the queue for the lock. Either the waiter gets the descriptor, or it is closed."""

    def __init__(self, fd: int) -> None:
        from threading import Event, Lock

        self.fd = fd
        self.over = Event()
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
                self.over.set()

    def forget(self) -> None:
        """In a forked child: a copy of the descriptor would keep the place in the queue, and then the lock."""
        with suppress(OSError):
            os.close(self.fd)

    def give_up(self) -> bool:
        with self._decided:
            self._given_up = not self._granted
            return self._given_up
