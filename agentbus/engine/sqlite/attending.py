"""Waiting without an event loop: a process with a doorbell, for as long as it waits."""

from __future__ import annotations

import os
import select
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from agentbus.engine import presence
from agentbus.engine.signals import undisturbed
from agentbus.engine.sqlite import bells, home
from agentbus.errors import AgentBusError, NotWritable
from agentbus.operations.processes import (
    BeatRequest,
    EnterRequest,
    LeaveRequest,
    ListenRequest,
    beat,
    enter,
    leave,
    listen,
)

if TYPE_CHECKING:
    from agentbus.engine.sqlite.blocking import BlockingSQLite

BEAT = 5.0
"""Seconds between two beats of a process that waits."""


@contextmanager
def attend(engine: BlockingSQLite, place: home.Home, connection: sqlite3.Connection) -> Iterator[Attending]:
    """Enter as a process, hang up a bell, and leave at the end, whatever ends it."""
    attending = Attending(engine, connection)
    try:
        with undisturbed():
            attending.hang_up(place)
        attending.enter()
        yield attending
    finally:
        with undisturbed():
            attending.leave()


class Attending:
    """A process that waits. Where it can have no bell, it looks at the database's version instead."""

    def __init__(self, engine: BlockingSQLite, connection: sqlite3.Connection) -> None:
        self.process = 0
        self._engine = engine
        self._bell: bells.Bell | None = None
        self._connection = connection
        self._channels: tuple[str, ...] = ()
        self._beaten = 0.0
        self._version = 0

    def hang_up(self, place: home.Home) -> None:
        """The bell, where there can be one."""
        with suppress(NotWritable, OSError, UnicodeEncodeError):
            directory = home.prepare_bells(place)
            str(directory).encode()
            self._bell = bells.Bell(directory)

    def enter(self) -> None:
        pid = os.getpid()
        path = None if self._bell is None else self._bell.path
        entry = self._engine.write(enter, EnterRequest(presence.host_key(), pid, presence.start_time(pid), path))
        self.process = entry.process
        self._engine.entered(entry.process)
        self._beaten = time.monotonic()

    def leave(self) -> None:
        """Nobody rings it any more."""
        if self.process:
            with suppress(AgentBusError):
                # Nobody lives in this process: a power cut that undoes it undoes nothing of worth.
                self._engine.write(leave, LeaveRequest((self.process,), False, "it has waited"), durable=False)
                self._engine.entered(0)
        if self._bell is not None:
            self._bell.close()

    def listen(self, channels: Sequence[str]) -> None:
        """Be rung for these from now on, and for nothing else."""
        wanted = tuple(dict.fromkeys(channel.partition("#")[0] for channel in channels))
        if wanted == self._channels:
            return
        for channel in self._channels:
            if channel not in wanted:
                self._engine.write(listen, ListenRequest(self.process, channel, False))
        for channel in wanted:
            if channel not in self._channels:
                self._engine.write(listen, ListenRequest(self.process, channel, True))
        self._channels = wanted
        self._version = self._look()

    def wait(self, seconds: float) -> bool:
        """Sleep until something rings, or for so long, or until the next beat; whether something rang."""
        left = min(seconds, self._beaten + BEAT - time.monotonic())
        rung = self._poll(left) if self._bell is None else self._sleep(self._bell, left)
        if time.monotonic() >= self._beaten + BEAT:
            self._beat()
        return rung

    def _sleep(self, bell: bells.Bell, seconds: float) -> bool:
        select.select([bell.socket], [], [], max(0.0, seconds))
        return bool(bell.rung())

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

    def _beat(self) -> None:
        """Show that this process is there. If it counted as dead meanwhile, nobody knows what it listens to."""
        if self._engine.write(beat, BeatRequest(self.process, (), self._engine.waited())):
            known, self._channels = self._channels, ()
            self.listen(known)
        self._beaten = time.monotonic()

    def _look(self) -> int:
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return int(version)
