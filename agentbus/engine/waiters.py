"""The waiting tasks of this process, by channel. Used on the event loop's thread only.

A message wakes one listener of its mailbox, not all: a listener that is woken and does not use the ring passes it on,
and a claim that left messages behind wakes the next. So a pool with many idle receivers costs one claim per message.
Watchers, of state or of events, do not compete: every ring wakes all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from agentbus.core.clock import Clock


class Waiter:
    """One waiting task. Create it before the first query, so that no change is missed in between."""

    __slots__ = ("_future", "_waiters", "channels", "rung", "watches")

    def __init__(self, waiters: Waiters, channels: tuple[str, ...], *, watches: bool = False) -> None:
        self._waiters = waiters
        self.channels = channels
        self.watches = watches
        """True if it is woken by every ring, without consuming it."""
        self._future: asyncio.Future[None] | None = None
        self.rung = False

    def ring(self) -> None:
        self.rung = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)

    async def wait(self, seconds: float | None) -> None:
        """Return once rung, or after this many seconds of the bus's clock."""
        if self.rung or (seconds is not None and seconds <= 0):
            self.rung = False
            return
        loop = asyncio.get_running_loop()
        self._future = loop.create_future()
        timer = None if seconds is None else self._waiters.clock.call_later(loop, seconds, self._wake)
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
        """Stop listening. A ring that was not consumed goes to the next listener."""
        self._waiters.forget(self, self.channels)
        if self.rung and not self.watches:
            self._waiters.ring(self.channels)


class Waiters:
    """The waiters of this process, by channel."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._listeners: dict[str, dict[Waiter, None]] = {}
        self._watchers: dict[str, dict[Waiter, None]] = {}
        self._followers: dict[str, list[Callable[[str | None], None]]] = {}

    def follow(self, channel: str, follower: Callable[[str | None], None]) -> Callable[[], None]:
        """Call ``follower`` with each ring of a channel, and what it says after a ``#``; with None if rings may have
        been lost. Return a function that ends this."""
        self._followers.setdefault(channel, []).append(follower)

        def end() -> None:
            self._followers[channel].remove(follower)
            if not self._followers[channel]:
                del self._followers[channel]

        return end

    def is_followed(self, channel: str) -> bool:
        """Return True if a channel has a follower in this process."""
        return channel in self._followers

    def listen(self, channels: tuple[str, ...]) -> Waiter:
        """Add a listener: each ring wakes one of them."""
        return self._add(Waiter(self, channels), self._listeners)

    def watch(self, channels: tuple[str, ...]) -> Waiter:
        """Add a watcher: each ring wakes all of them."""
        return self._add(Waiter(self, channels, watches=True), self._watchers)

    def forget(self, waiter: Waiter, channels: Iterable[str]) -> None:
        waiters = self._watchers if waiter.watches else self._listeners
        for channel in channels:
            listeners = waiters.get(channel)
            if listeners is not None:
                listeners.pop(waiter, None)
                if not listeners:
                    del waiters[channel]

    def ring(self, channels: Iterable[str]) -> None:
        """For each channel, wake all watchers and one listener that is not awake yet. A channel may occur several
        times."""
        for channel in channels:
            if self._followers:
                base, _, detail = channel.partition("#")
                for follower in self._followers.get(base, ()):
                    follower(detail)
            for waiter in self._watchers.get(channel, ()):
                waiter.ring()
            for waiter in self._listeners.get(channel, ()):
                if not waiter.rung:
                    waiter.ring()
                    break

    def ring_all(self, channel: str | None = None) -> None:
        """Wake every waiter, or every waiter of a channel."""
        if channel is None:
            for followers in self._followers.values():
                for follower in followers:
                    follower(None)
        for waiters in (self._listeners, self._watchers):
            for listeners in waiters.values() if channel is None else [waiters.get(channel, {})]:
                for waiter in listeners:
                    waiter.ring()

    def ring_watchers(self) -> None:
        """Wake all watchers."""
        for listeners in self._watchers.values():
            for waiter in listeners:
                waiter.ring()

    @property
    def channels(self) -> list[str]:
        """Return every channel that has a listener."""
        return list(self._listeners)

    @staticmethod
    def _add(waiter: Waiter, waiters: dict[str, dict[Waiter, None]]) -> Waiter:
        for channel in waiter.channels:
            waiters.setdefault(channel, {})[waiter] = None
        return waiter
