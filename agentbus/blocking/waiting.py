"""Waiting without an event loop: asleep on a bell, awake now and then to show life."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from agentbus.engine.blocking import Attendance, BlockingEngine

NAP = 5.0
"""Seconds after which one who waits shows life."""


class Ear:
    """Hears one channel."""

    def __init__(self, attendance: Attendance, awake: Callable[[], object]) -> None:
        self._attendance = attendance
        self._awake = awake

    async def wait(self, seconds: float | None) -> None:
        """Sleep until it rings, or for so long."""
        while True:
            nap = NAP if seconds is None else min(NAP, seconds)
            if self._attendance.wait(nap):
                return
            if seconds is not None:
                seconds -= nap
                if seconds <= 0:
                    return
            self._awake()


class Listening:
    """Watching channels, one at a time, each as a process that enters for it and leaves with it."""

    def __init__(self, store: BlockingEngine, awake: Callable[[], object] = lambda: None) -> None:
        self._store = store
        self._awake = awake

    @asynccontextmanager
    async def to(self, channel: str) -> AsyncIterator[Ear]:
        """Watch a channel for the length of a block. Look after entering it: whatever comes later rings."""
        with self._store.attend() as attendance:
            attendance.listen((channel,))
            yield Ear(attendance, self._awake)
