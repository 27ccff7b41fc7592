"""Who in this process waits for what. Lives on the event loop's thread.

A message wakes one waiter of its mailbox, not all: whoever is woken and does not use it passes it on, and a claim that
left something behind wakes the next. So a pool with many idle receivers costs one claim per message. Watchers, of state
or of events, take nothing away from each other: every ring wakes all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from agentbus.clock import Clock


class Ear:
    """One waiter on some channels. Listen before looking, so that nothing falls between."""

    __slots__ = ("_future", "_hub", "channels", "rung", "watches")

    def __init__(self, hub: Hub, channels: tuple[str, ...], *, watches: bool = False) -> None:
        self._hub = hub
        self.channels = channels
        self.watches = watches
        """Whether it hears every ring, and takes none from others."""
        self._future: asyncio.Future[None] | None = None
        self.rung = False

    def ring(self) -> None:
        self.rung = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float | None) -> None:
        """Return once rung, or after so many seconds of the bus's clock."""
        if self.rung or (seconds is not None and seconds <= 0):
            self.rung = False
            return
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = None if seconds is None else self._hub.clock.call_later(loop, seconds, self._wake)
        try:
            await self._future
            self.rung = False
        finally:
            self._future = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    def close(self) -> None:
        """Stop listening. A ring that nobody answered goes to the next waiter."""
        self._hub.forget(self, self.channels)
        if self.rung and not self.watches:
            self._hub.ring(self.channels)


class Hub:
    """The waiters of this process, by channel."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._ears: dict[str, dict[Ear, None]] = {}
        self._watchers: dict[str, dict[Ear, None]] = {}

    def listen(self, channels: tuple[str, ...]) -> Ear:
        """One who takes what comes: each ring is for one of those who listen."""
        return self._add(Ear(self, channels), self._ears)

    def watch(self, channels: tuple[str, ...]) -> Ear:
        """One who only looks on: each ring is for all who watch."""
        return self._add(Ear(self, channels, watches=True), self._watchers)

    def forget(self, ear: Ear, channels: Iterable[str]) -> None:
        waiters = self._watchers if ear.watches else self._ears
        for channel in channels:
            ears = waiters.get(channel)
            if ears is not None:
                ears.pop(ear, None)
                if not ears:
                    del waiters[channel]

    def ring(self, channels: Iterable[str]) -> None:
        """For each channel named, wake all who watch, and one listener who is not awake yet. A channel may be named
        several times."""
        for channel in channels:
            for ear in self._watchers.get(channel, ()):
                ear.ring()
            for ear in self._ears.get(channel, ()):
                if not ear.rung:
                    ear.ring()
                    break

    def ring_all(self, channel: str | None = None) -> None:
        """Wake every waiter, or every one of a channel."""
        for waiters in (self._ears, self._watchers):
            for ears in waiters.values() if channel is None else [waiters.get(channel, {})]:
                for ear in ears:
                    ear.ring()

    def ring_watchers(self) -> None:
        """Wake all who watch something."""
        for ears in self._watchers.values():
            for ear in ears:
                ear.ring()

    @property
    def channels(self) -> list[str]:
        """Every channel that somebody listens to."""
        return list(self._ears)

    @staticmethod
    def _add(ear: Ear, waiters: dict[str, dict[Ear, None]]) -> Ear:
        for channel in ear.channels:
            waiters.setdefault(channel, {})[ear] = None
        return ear
