"""Syncs of the log that a test ends, fails or counts, and a small durable call."""

from __future__ import annotations

import asyncio
import errno
import inspect
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass

import pytest

from agentbus.core.clock import Now
from agentbus.engine.sqlite import wal
from agentbus.engine.sqlite.engine import SQLiteEngine
from agentbus.engine.sqlite.lock import CommitCounters
from agentbus.engine.sqlite.wal import KernelSync
from agentbus.operations.protocol import Op, Outcome, Query, operation
from tests.support.writing import answer_to, writer


class Kernel(KernelSync):
    """Syncs by the kernel that end when a test says so; at first, at once."""

    def __init__(self) -> None:
        self.event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.file = -1
        self.path = ""
        self.begun = 0
        self.error = 0
        self.refuses = False
        self.holds = False
        """A sync that begins does not end by itself."""
        self.is_brief = True
        """A brief wait is long enough for a sync that ends by itself."""
        self.brief_waits = 0
        self._running = False
        self._done: int | None = None

    def open(self, path: str) -> Kernel:
        self.path = f"{path}-wal"
        self.file = os.open(self.path, os.O_RDWR)
        return self

    def begin(self) -> bool:
        if self._running or self.refuses:
            return False
        self.begun += 1
        self._running = True
        if not self.holds:
            self.finish()
        return True

    def finish(self) -> None:
        """End the sync in progress, with ``error``."""
        assert self._running
        self._done = self.error
        os.eventfd_write(self.event, 1)

    def spin(self) -> bool:
        self.brief_waits += 1
        return self._done is not None and self.is_brief

    def result(self) -> int | None:
        return self._done

    def end(self) -> None:
        with suppress(BlockingIOError):
            os.eventfd_read(self.event)
        self._done, self._running = None, False

    def close(self) -> None:
        self.forget()


class Thread:
    """The syncs of the log on a thread; and the log written again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.files: list[int] = []
        self.rewrites = 0
        self.fails: set[str] = set()
        sync, rewrite = wal._sync, wal._rewrite_in_place

        def watched_sync(file: int) -> None:
            self.files.append(file)
            if "sync" in self.fails:
                raise OSError(errno.EIO, "Input/output error")
            sync(file)

        def watched_rewrite(path: str) -> None:
            self.rewrites += 1
            if "rewrite" in self.fails:
                raise OSError(errno.EIO, "Input/output error")
            rewrite(path)

        monkeypatch.setattr(wal, "_sync", watched_sync)
        monkeypatch.setattr(wal, "_rewrite_in_place", watched_rewrite)


async def ready(engine: SQLiteEngine) -> None:
    """From now on small calls run on the loop's own thread, until a number of them has."""
    await engine.write(mark, Mark("ready"))
    writer(engine)._inline_left = 63


def in_progress(engine: SQLiteEngine) -> None:
    """Announce a commit of another process, whose sync has not ended."""
    with counters(engine) as found:
        found.announce()


def is_synced(engine: SQLiteEngine) -> bool:
    with counters(engine) as found:
        return found.unsynced() == 0


@contextmanager
def counters(engine: SQLiteEngine) -> Iterator[CommitCounters]:
    descriptor = os.open(engine._home.lock, os.O_RDWR)
    try:
        yield CommitCounters(descriptor)
    finally:
        os.close(descriptor)


@dataclass(frozen=True)
class Mark:
    """A small promise: it may run on the loop's own thread."""

    name: str
    row_estimate = 1


@operation(durable=True)
def mark(requests: Sequence[Mark], now: Now) -> Op[list[Outcome[None]]]:
    for request in requests:
        yield Query("meta_set", (request.name, "marked"))
    return [None] * len(requests)


def is_marked(name: str, now: Now) -> Op[bool]:
    return bool((yield Query("meta_get", (name,))))


def marked(engine: SQLiteEngine, name: str) -> bool:
    """Look into the database."""
    with closing(sqlite3.connect(engine._home.database)) as connection:
        ((found,),) = connection.execute("SELECT count(*) FROM meta WHERE key = ?", (name,))
    return bool(found)


def marking(engine: SQLiteEngine, name: str) -> asyncio.Task[None]:
    return asyncio.ensure_future(answer_to(engine.write(mark, Mark(name))))


class Interrupted(Exception):
    """As a signal handler of the user may raise it."""


def lines(function: Callable[..., object]) -> list[int]:
    source, first = inspect.getsourcelines(function)
    code = getattr(function, "__code__")  # noqa: B009
    return sorted({line for _, _, line in code.co_lines() if line and first <= line < first + len(source)})
