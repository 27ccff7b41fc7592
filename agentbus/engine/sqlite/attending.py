"""Waiting without an event loop for what happens in a file: rung by a doorbell, or looking again and again."""

from __future__ import annotations

import select
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from agentbus.engine.attending import AttendingProcess
from agentbus.engine.signals import undisturbed
from agentbus.engine.sqlite import bells, home
from agentbus.operations.processes import enter

if TYPE_CHECKING:
    from agentbus.engine.sqlite.blocking import BlockingSQLite


@contextmanager
def attend(store: BlockingSQLite, place: home.Home, connection: sqlite3.Connection) -> Iterator[Attending]:
    """Enter as a process, hang up a bell, and leave at the end, whatever ends it."""
    attending = Attending(store, connection)
    try:
        with undisturbed():
            attending.hang_up(place)
        attending.enter()
        yield attending
    finally:
        with undisturbed():
            attending.leave()


class Attending(AttendingProcess):
    """A process that waits. Where it can have no bell, it looks at the database's version instead."""

    def __init__(self, store: BlockingSQLite, connection: sqlite3.Connection) -> None:
        super().__init__(store)
        self._bell: bells.Bell | None = None
        self._connection = connection
        self._version = 0

    def hang_up(self, place: home.Home) -> None:
        """The bell, where there can be one."""
        with suppress(*bells.NO_BELL):
            self._bell = bells.hung_up(place)

    def enter(self) -> None:
        bell = None if self._bell is None else self._bell.path
        self.entered(self._store.write(enter, self.entry(bell)).process)

    def listen(self, channels: Sequence[str]) -> None:
        known = self._channels
        super().listen(channels)
        if self._channels != known:
            self._version = self._look()

    def sleep(self, seconds: float) -> bool:
        if self._bell is None:
            return self._poll(seconds)
        select.select([self._bell.socket], [], [], max(0.0, seconds))
        return bool(self._bell.rung())

    def take_down(self) -> None:
        if self._bell is not None:
            self._bell.close()

    def _poll(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while True:
            version = self._look()
            if version != self._version:
                self._version = version
                return True
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, bells.POLL))

    def _look(self) -> int:
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)
