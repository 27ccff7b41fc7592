"""Waiting without an event loop on a bus in one file: rung by a doorbell, or polling."""

from __future__ import annotations

import select
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from agentbus.engine.blocking import WaitingProcess
from agentbus.engine.process_safety import signals_blocked
from agentbus.engine.sqlite import doorbell, paths
from agentbus.operations.processes import enter

if TYPE_CHECKING:
    from agentbus.engine.sqlite.blocking import BlockingSQLite


@contextmanager
def wait_for_wakeups(
    store: BlockingSQLite, home: paths.Home, connection: sqlite3.Connection
) -> Iterator[SQLiteWaitingProcess]:
    """Register a process with a doorbell, and remove both at the end, whatever ends the block."""
    process = SQLiteWaitingProcess(store, connection)
    try:
        with signals_blocked():
            process.open_doorbell(home)
        process.enter()
        yield process
    finally:
        with signals_blocked():
            process.leave()


class SQLiteWaitingProcess(WaitingProcess):
    """A waiting process. Without a doorbell, it polls the database's version."""

    def __init__(self, store: BlockingSQLite, connection: sqlite3.Connection) -> None:
        super().__init__(store)
        self._bell: doorbell.Bell | None = None
        self._connection = connection
        self._version = 0
        self._woken = False

    def open_doorbell(self, home: paths.Home) -> None:
        """Open the doorbell, where that is possible."""
        with suppress(*doorbell.NO_BELL):
            self._bell = doorbell.open_doorbell(home)

    def enter(self) -> None:
        bell = None if self._bell is None else self._bell.path
        self.entered(self._store.write(enter, self.entry(bell)).process)

    def listen(self, channels: Sequence[str]) -> None:
        known = self._channels
        super().listen(channels)
        if self._channels != known:
            self._version = doorbell.data_version(self._connection)

    def wake(self) -> None:
        self._woken = True
        if self._bell is not None:
            # A full socket wakes the sleeper as well; a closed one has none.
            with suppress(OSError):
                self._bell.socket.sendto(doorbell.ANY.encode(), self._bell.path)

    def sleep(self, seconds: float) -> bool:
        if self._bell is None:
            return self._poll(seconds)
        # Not select: it refuses descriptors from 1,024 on.
        bell = select.poll()
        bell.register(self._bell.socket, select.POLLIN)
        bell.poll(max(0.0, seconds) * 1000)
        return bool(self._bell.rung())

    def close_doorbell(self) -> None:
        if self._bell is not None:
            self._bell.close()

    def _poll(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while True:
            version = doorbell.data_version(self._connection)
            if version != self._version:
                self._version = version
                return True
            left = until - time.monotonic()
            if self._woken or left <= 0:
                return self._woken
            time.sleep(min(left, doorbell.POLL))
