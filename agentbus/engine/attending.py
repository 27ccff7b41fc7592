"""Waiting without an event loop: a process that others can ring, for as long as it waits. How it is rung, an engine
says."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from agentbus.engine import presence
from agentbus.engine.dead_processes import notice_deaths
from agentbus.errors import AgentBusError
from agentbus.operations.processes import BeatRequest, EnterRequest, LeaveRequest, ListenRequest, beat, leave, listen

if TYPE_CHECKING:
    from agentbus.engine.blocking import BlockingEngine

BEAT = 5.0
"""Seconds between two beats of a process that waits."""


class AttendingProcess(ABC):
    """A process that waits: others ring it for what it listens to."""

    def __init__(self, store: BlockingEngine) -> None:
        self.process = 0
        self._store = store
        self._channels: tuple[str, ...] = ()
        self._beaten = 0.0

    def entry(self, bell: str | None) -> EnterRequest:
        """How this process enters."""
        pid = os.getpid()
        return EnterRequest(presence.host_key(), pid, presence.start_time(pid), bell)

    def entered(self, process: int) -> None:
        """It has a number from now on, by which it leaves again."""
        self.process = process
        self._store.entered(process)
        self._beaten = time.monotonic()

    def leave(self) -> None:
        """Nobody rings it any more."""
        if self.process:
            with suppress(AgentBusError):
                # Nobody lives in this process: a power cut that undoes it undoes nothing of worth.
                self._store.write(leave, LeaveRequest((self.process,), False, "it has waited"), durable=False)
                self._store.entered(0)
        self.take_down()

    def listen(self, channels: Sequence[str]) -> None:
        """Be rung for these from now on, and for nothing else. Look after that, then wait."""
        wanted = tuple(dict.fromkeys(channel.partition("#")[0] for channel in channels))
        for channel in self._channels:
            if channel not in wanted:
                self._store.write(listen, ListenRequest(self.process, channel, False))
        for channel in wanted:
            if channel not in self._channels:
                self._store.write(listen, ListenRequest(self.process, channel, True))
        self._channels = wanted

    def wait(self, seconds: float) -> bool:
        """Sleep until something rings, or for that many seconds, or until the next beat; whether it is worth looking.

        With each beat, look for processes that died meanwhile. What they held is released, and this process does not
        ring itself for it.
        """
        rung = self.sleep(min(seconds, self._beaten + BEAT - time.monotonic()))
        if time.monotonic() >= self._beaten + BEAT:
            self._beat()
            with suppress(AgentBusError):
                rung = notice_deaths(self._store) or rung
        return rung

    def _beat(self) -> None:
        """Show that this process is there. If it counted as dead meanwhile, nobody knows what it listens to."""
        if self._store.write(beat, BeatRequest(self.process, (), self._store.waited())):
            known, self._channels = self._channels, ()
            self.listen(known)
        self._beaten = time.monotonic()

    @abstractmethod
    def sleep(self, seconds: float) -> bool:
        """Sleep until something rings, or for so long (not at all, if that is over); whether something rang."""

    @abstractmethod
    def take_down(self) -> None:
        """The bell, if there is one."""
