"""Doorbells by LISTEN/NOTIFY: each process listens to a channel of its own, and a commit notifies the waiting ones.

Notifications are hints, sent after the commit: inside the transaction they would serialize all commits. Wake-ups that
arrive while a notification is in flight are sent with the next. A lost connection loses notifications, so all waiters
look again after a reconnect.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agentbus.core.clock import backoff
from agentbus.engine.postgres import errors as driver_errors
from agentbus.engine.postgres.connection import Connection, connect, terminate
from agentbus.engine.postgres.server import Address
from agentbus.engine.postgres.statements import ask
from agentbus.operations.protocol import LIVE, Query

if TYPE_CHECKING:
    from tenacity import RetryCallState

log = logging.getLogger("agentbus.engine")

ANY = "*"
"""Sent instead of a list of channels that is too long: wake all waiters."""
AGAIN = 0.01
"""Seconds after which waiters that found everything locked by others are woken again."""
RESTED = 0.005
"""Seconds after which woken processes may be asleep again."""
_FIRST = 0.05
"""Maximum seconds of the first pause before a reconnect."""
_MAX_DELAY = 2.0
_MAX_DELAY_CROWDED = 10.0
"""Maximum seconds between reconnects; and while the server has no connection left."""
_SETTINGS = {"synchronous_commit": "off"}
_ASK_AGAIN = 1.0
"""Seconds after which the question whether a process listens to the changes of messages is asked again."""


class Ringable(Protocol):
    """Receives the wake-ups of a doorbell."""

    def ring(self, channels: Iterable[str]) -> None: ...

    def ring_all(self) -> None: ...

    def is_followed(self, channel: str) -> bool: ...


class Bell:
    """The doorbell of this process, which also rings those of others."""

    def __init__(self, address: Address, waiters: Ringable) -> None:
        self.name = f"agentbus_{secrets.token_hex(8)}"
        self.process = 0
        self._address = address
        self._waiters = waiters
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._waiting: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._last = 0.0
        self._has_listeners = True
        self._heard = False
        self._asks = False
        self._ask_at = 0.0
        self._closed = False
        self.is_refused: Callable[[], bool] = bool
        """Return True while the bus needs its next connection for something more urgent."""

    async def open(self) -> None:
        """Start to listen. Raises errors of the driver."""
        connection = await connect(self._address, _SETTINGS)
        try:
            await connection.add_listener(self.name, self._rung)
        except BaseException:
            terminate(connection)
            raise
        if self._closed:
            # Closed during a reconnect in the background.
            terminate(connection)
            return
        self._connection = connection
        connection.add_termination_listener(self._lost)

    @property
    def busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def ring(self, channels: Sequence[str], again: Sequence[str] = (), *, notified: bool = False) -> None:
        """Wake waiters here at once and in other processes soon, unless those were ``notified``; the channels in
        ``again`` are rung once more shortly after."""
        if channels:
            self._last = self._loop.time()
            self._waiters.ring(channels)
            if not notified:
                self._waiting.update(dict.fromkeys(channels))
                self._work()
        if again:
            self._loop.call_later(AGAIN, self._waiters.ring, again)

    def is_heard(self) -> bool:
        """Return True if a process listens to ``LIVE``, as far as is known: asked at most every ``_ASK_AGAIN`` seconds,
        on this connection, so that no transaction waits for the answer."""
        now = self._loop.time()
        if now >= self._ask_at:
            self._ask_at = now + _ASK_AGAIN
            self._asks = True
            self._work()
        return self._heard or self._waiters.is_followed(LIVE)

    def hint(self, channels: Sequence[str]) -> None:
        """Wake idle processes before a slow commit, so that they and their connections are ready when they are rung.
        Not if the last ring was for no other process."""
        if self._has_listeners and self._loop.time() - self._last > RESTED:
            self._waiting.update(dict.fromkeys(channels))
            self._work()

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            await asyncio.wait([self._task], timeout=1)
            self._task.cancel()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.remove_termination_listener(self._lost)
            try:
                await connection.close(timeout=0.5)
            except Exception:
                terminate(connection)

    def close_idle(self) -> None:
        """Close the connection, and reconnect later."""
        terminate(self._connection)

    def _work(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._keep_ringing(), name="agentbus bell")

    async def _keep_ringing(self) -> None:
        """Notify other processes, and reconnect if needed."""
        try:
            await self._notify()
        except Exception as error:
            if not self._closed:
                log.warning("doorbell interrupted: %s", driver_errors.translate_error(error, self._address))
                await self._reconnect()

    async def _notify(self) -> None:
        while (self._waiting or self._asks) and self._connection is not None:
            if self._asks:
                self._asks = False
                self._heard = bool(await ask(self._connection, Query("listener_any", (LIVE,))))
                continue
            # Channels that are rung from here on are sent next: a process that this notification wakes may look too
            # early for them.
            channels, self._waiting = self._waiting, {}
            try:
                found = await ask(self._connection, Query("listeners_of", (list(channels), self.process)))
                self._has_listeners = bool(found)
            except BaseException:
                # The next connection sends what this one could not.
                self._waiting = channels | self._waiting
                raise

    async def _reconnect(self) -> None:
        """Reconnect, then wake all waiters: notifications sent in between are lost."""
        from tenacity import AsyncRetrying

        def is_over(_: RetryCallState) -> bool:
            return self._closed

        async def attempt() -> None:
            terminate(self._connection)
            if self.is_refused():
                raise _Refused
            await self.open()
            await self._notify()

        try:
            await AsyncRetrying(stop=is_over, wait=_pause, reraise=True)(attempt)
        except Exception as error:
            if not self._closed:
                log.warning("doorbell lost: %s", error)
        else:
            self._waiters.ring_all()

    def _rung(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        channels = str(payload).split("\n")
        if ANY in channels:
            self._waiters.ring_all()
        else:
            self._waiters.ring(channels)

    def _lost(self, connection: Any) -> None:
        """Reconnect: the server, or something between, ended the connection."""
        if self._connection is connection and not self._closed:
            self._connection = None
            # Nothing can be sent without a connection: the task starts with a reconnect.
            self._task = self._loop.create_task(self._after_loss(self._task), name="agentbus bell")

    async def _after_loss(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        if self._connection is None and not self._closed:
            await self._reconnect()


class _Refused(Exception):
    """The doorbell must not connect now."""


def _pause(state: RetryCallState) -> float:
    """Return the seconds before the next attempt: random, doubling. A server without free connections is asked less
    often: a bus can work without its doorbell, because it also looks at every heartbeat."""
    error = state.outcome.exception() if state.outcome is not None else None
    crowded = error is not None and driver_errors.is_crowded(error)
    return backoff(state.attempt_number, _FIRST, _MAX_DELAY_CROWDED if crowded else _MAX_DELAY, jitter=1.0)
