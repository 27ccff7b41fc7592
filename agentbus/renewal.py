"""Renewal of leases: one task of the bus renews the messages that are being handled, in one commit for those due."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from agentbus.clock import Timer
from agentbus.engine.interface import Engine
from agentbus.errors import AgentFenced, LeaseLost
from agentbus.watchdog import Watchdog

if TYPE_CHECKING:
    from agentbus.message import Message

log = logging.getLogger("agentbus")

_PAUSE = 1.0
"""Seconds after which renewal is tried again when it failed for a reason that no one foresaw."""


class Renewer:
    """Holds the messages whose block is open, and renews their leases."""

    def __init__(self, engine: Engine, watchdog: Watchdog) -> None:
        self._engine = engine
        self._watchdog = watchdog
        self._held: set[Message] = set()
        self._timer: Timer | None = None
        self._next = 0
        self._due = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()
        watchdog.add(self.held)

    def hold(self, message: Message) -> None:
        self._held.add(message)
        self._set(message.renew_at)
        self._watchdog.cover(message.duration)

    def changed(self, message: Message) -> None:
        """Note that the lease of a message was extended, perhaps to end earlier than before."""
        if message in self._held:
            self._set(message.renew_at)
            self._watchdog.cover(message.duration)

    def let_go(self, message: Message) -> None:
        self._held.discard(message)

    def held(self) -> list[Message]:
        """Return the messages whose block is open. May be called from another thread."""
        return list(self._held)

    async def run(self) -> None:
        """Renew leases until cancelled, whatever goes wrong with one of them.

        The timer only sets an event. A callback of the event loop runs outside of any task: there anyio refuses to
        start tasks where sniffio is installed.
        """
        loop = asyncio.get_running_loop()
        try:
            while True:
                await self._due.wait()
                self._due.clear()
                try:
                    self._renew_due()
                except Exception:
                    log.exception("leases could not be renewed, trying again")
                    loop.call_later(_PAUSE, self._due.set)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for task in self._under_way:
                task.cancel()

    def _set(self, at: int) -> None:
        if self._timer is not None:
            if self._next <= at:
                return
            self._timer.cancel()
        self._next = at
        seconds = max(0.0, (at - self._engine.clock.now().awake) / 1000)
        self._timer = self._engine.clock.call_later(asyncio.get_running_loop(), seconds, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._due.set()

    def _renew_due(self) -> None:
        now = self._engine.clock.now().awake
        for message in [message for message in self._held if message.renew_at <= now]:
            # Not again while this renewal is under way.
            message.renew_at = now + message.duration
            # One request each: a lease that is lost must not fail the others. The writer puts them together.
            task = asyncio.create_task(self._renew_one(message))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        if self._held:
            self._set(min(message.renew_at for message in self._held))

    async def _renew_one(self, message: Message) -> None:
        before = self._engine.clock.now().awake
        try:
            await self._engine.write(*message.renewing())
        except (LeaseLost, AgentFenced) as error:
            if message in self._held:
                self._held.discard(message)
                message.lose(error)
        except Exception as error:
            # Whatever it is, this lease and the others must be renewed further on.
            log.warning("the lease on %s could not be renewed, trying again: %s", message.message_id, error)
            message.renew_at = self._engine.clock.now().awake + max(100, message.duration // 10)
        else:
            message.renew_at = renewal(before, message.duration)
        if message in self._held:
            self._set(message.renew_at)


def renewal(taken: int, duration: int) -> int:
    """Return when to renew a lease: after a third of it."""
    return taken + duration // 3
