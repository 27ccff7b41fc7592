"""Renews the leases of messages that are being handled: one timer for all, one commit for those that are due."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import anyio.abc

from agentbus.clock import Timer
from agentbus.engine.interface import Engine
from agentbus.errors import AgentFenced, LeaseLost
from agentbus.operations.leases import ExtendRequest, extend

if TYPE_CHECKING:
    from agentbus.message import Message

log = logging.getLogger("agentbus")


class Renewer:
    """Holds the messages whose block is open."""

    def __init__(self, engine: Engine, tasks: anyio.abc.TaskGroup) -> None:
        self._engine = engine
        self._tasks = tasks
        self._held: set[Message] = set()
        self._timer: Timer | None = None
        self._next = 0

    def hold(self, message: Message) -> None:
        self._held.add(message)
        self._set(message.renew_at)

    def changed(self, message: Message) -> None:
        """The lease of a message was extended, perhaps to end earlier than it did."""
        if message in self._held:
            self._set(message.renew_at)

    def let_go(self, message: Message) -> None:
        self._held.discard(message)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set(self, at: int) -> None:
        if self._timer is not None:
            if self._next <= at:
                return
            self._timer.cancel()
        self._next = at
        seconds = max(0.0, (at - self._engine.clock.now().awake) / 1000)
        self._timer = self._engine.clock.call_later(asyncio.get_running_loop(), seconds, self._due)

    def _due(self) -> None:
        self._timer = None
        now = self._engine.clock.now().awake
        due = [message for message in self._held if message.renew_at <= now]
        for message in due:
            # Not again while this renewal is under way.
            message.renew_at = now + message.duration
        if due:
            self._tasks.start_soon(self._renew, due)
        else:
            self._set_next()

    def _set_next(self) -> None:
        if self._held:
            self._set(min(message.renew_at for message in self._held))

    async def _renew(self, due: list[Message]) -> None:
        async with anyio.create_task_group() as tasks:
            # One request each: a lease that is lost must not fail its neighbours. The writer puts them together.
            for message in due:
                tasks.start_soon(self._renew_one, message)
        self._set_next()

    async def _renew_one(self, message: Message) -> None:
        before = self._engine.clock.now().awake
        try:
            await self._engine.write(extend, ExtendRequest(message.actor, (message.lease,), message.duration))
        except (LeaseLost, AgentFenced) as error:
            if message in self._held:
                self._held.discard(message)
                message.lose(error)
        except Exception as error:
            # Whatever it is, the other leases must go on being renewed.
            log.warning("the lease on %s could not be renewed, trying again: %s", message.message_id, error)
            message.renew_at = self._engine.clock.now().awake + max(100, message.duration // 10)
        else:
            message.renew_at = renewal(before, message.duration)


def renewal(taken: int, duration: int) -> int:
    """When to renew a lease: after a third of it."""
    return taken + duration // 3
