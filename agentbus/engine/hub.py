"""Who in this process waits for what. Lives on the event loop's thread.

A message wakes one waiter of its mailbox, not all: whoever is woken and does not use it passes it on, and a claim that
left something behind wakes the next. So a pool with many idle receivers costs one claim per message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from agentbus.clock import Clock


class Ear:
    """One waiter on some channels. Listen before looking, so that nothing falls between."""

    __slots__ = ("_future", "_hub", "channels", "rung")

    def __init__(self, hub: Hub, channels: tuple[str, ...]) -> None:
        self._hub = hub
        self.channels = channels
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
        if self.rung:
            self._hub.ring(self.channels)


class Hub:
    """The waiters of this process, by channel."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._ears: dict[str, dict[Ear, None]] = {}

    def listen(self, channels: tuple[str, ...]) -> Ear:
        ear = Ear(self, channels)
        for channel in channels:
            self._ears.setdefault(channel, {})[ear] = None
        return ear

    def forget(self, ear: Ear, channels: Iterable[str]) -> None:
        for channel in channels:
            ears = self._ears.get(channel)
            if ears is not None:
                ears.pop(ear, None)
                if not ears:
                    del self._ears[channel]

    def ring(self, channels: Iterable[str]) -> None:
        """For each channel named, wake one waiter who is not awake yet. A channel may be named several times."""
        for channel in channels:
            for ear in self._ears.get(channel, ()):
                if not ear.rung:
                    ear.ring()
                    break

    def ring_all(self, channel: str | None = None) -> None:
        """Wake every waiter, or every one of a channel."""
        for ears in self._ears.values() if channel is None else [self._ears.get(channel, {})]:
            for ear in ears:
                ear.ring()

    @property
    def channels(self) -> list[str]:
        """Every channel that somebody waits on."""
        return list(self._ears)
