"""Doorbells over the server: each process listens to a channel of its own, and a commit notifies those that wait.

Notifications are hints, sent after the commit and outside of it: inside, they would make all commits wait for each
other. Whatever is rung while one is on its way goes with the next. They are lost with the connection, so that everybody
looks again once there is another.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agentbus.engine.postgres import problems
from agentbus.engine.postgres.address import Address
from agentbus.engine.postgres.connection import Connection, connect, let_go
from agentbus.engine.postgres.retries import pause
from agentbus.engine.postgres.statements import ask
from agentbus.operations import Query

if TYPE_CHECKING:
    from tenacity import RetryCallState

log = logging.getLogger("agentbus.engine")

ANY = "*"
"""Rung instead of a list of channels that would not fit: look at everything."""
AGAIN = 0.01
"""Seconds after which those come again who found everything in other hands."""
RESTED = 0.005
"""Seconds after which those that were rung may be asleep again."""
_FIRST = 0.05
"""Seconds of the first pause before trying to connect again, at most."""
_OFTEN = 2.0
_RARELY = 10.0
"""Seconds between tries to connect again, at most; and where the server has no connection left."""
_SETTINGS = {"synchronous_commit": "off"}


class Ears(Protocol):
    """Who is told what was rung."""

    def ring(self, channels: Iterable[str]) -> None: ...

    def ring_all(self) -> None: ...


class Bell:
    """This process's own doorbell, and the way to the others'."""

    def __init__(self, address: Address, hub: Ears) -> None:
        self.name = f"agentbus_{secrets.token_hex(8)}"
        self.process = 0
        self._address = address
        self._hub = hub
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._waiting: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._last = 0.0
        self._closed = False
        self.is_barred: Callable[[], bool] = bool
        """Return True while this bus needs a connection more urgently for something else."""

    async def open(self) -> None:
        """Hang it up. Raises what the driver does."""
        connection = await connect(self._address, _SETTINGS)
        try:
            await connection.add_listener(self.name, self._rung)
        except BaseException:
            let_go(connection)
            raise
        if self._closed:
            # While it was hung up again, in the background.
            let_go(connection)
            return
        self._connection = connection
        connection.add_termination_listener(self._lost)

    @property
    def busy(self) -> bool:
        return self._task is not None and not self._task.done()

    def ring(self, channels: Sequence[str], again: Sequence[str] = (), *, told: bool = False) -> None:
        """Wake who waits here at once, and in other processes soon, unless they were ``told``; those in ``again`` once
        more in a little while."""
        if channels:
            self._last = self._loop.time()
            self._hub.ring(channels)
            if not told:
                self._waiting.update(dict.fromkeys(channels))
                self._work()
        if again:
            self._loop.call_later(AGAIN, self._hub.ring, again)

    def hint(self, channels: Sequence[str]) -> None:
        """Before a commit that takes time: wake processes that are likely to sleep deeply, so that they are awake, and
        their connections too, when they are rung."""
        if self._loop.time() - self._last > RESTED:
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
                let_go(connection)

    def give_back(self) -> None:
        """Close the connection, and hang up again later."""
        let_go(self._connection)

    def _work(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._loop.create_task(self._keep_ringing(), name="agentbus bell")

    async def _keep_ringing(self) -> None:
        """Notify the others of all that was rung, and see that there is a connection for it."""
        try:
            await self._notify()
        except Exception as error:
            if not self._closed:
                log.warning("no doorbell for a while: %s", problems.translated(error, self._address))
                await self._hang_up_again()

    async def _notify(self) -> None:
        while self._waiting and self._connection is not None:
            channels = list(self._waiting)
            await ask(self._connection, Query("listeners_of", (channels, self.process)))
            # Only now: what could not be rung is rung by the next connection.
            for channel in channels:
                self._waiting.pop(channel, None)

    async def _hang_up_again(self) -> None:
        """Connect until it works, then look at everything: whatever was rung meanwhile is lost."""
        from tenacity import AsyncRetrying

        def enough(_: RetryCallState) -> bool:
            return self._closed

        async def again() -> None:
            let_go(self._connection)
            if self.is_barred():
                raise _Barred
            await self.open()
            await self._notify()

        try:
            await AsyncRetrying(stop=enough, wait=_pause, reraise=True)(again)
        except Exception as error:
            if not self._closed:
                log.warning("no doorbell: %s", error)
        else:
            self._hub.ring_all()

    def _rung(self, connection: Any, pid: int, channel: str, payload: object) -> None:
        channels = str(payload).split("\n")
        if ANY in channels:
            self._hub.ring_all()
        else:
            self._hub.ring(channels)

    def _lost(self, connection: Any) -> None:
        """The server, or somebody on the way to it, has cut us off."""
        if self._connection is connection and not self._closed:
            self._connection = None
            # Nothing can be notified without a connection: the task begins with finding another.
            self._task = self._loop.create_task(self._after_loss(self._task), name="agentbus bell")

    async def _after_loss(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        if self._connection is None and not self._closed:
            await self._hang_up_again()


class _Barred(Exception):
    """It is not the turn of the bell to connect."""


def _pause(state: RetryCallState) -> float:
    """Return how long to wait before the next try: random, up to twice as long each time. A server without connections
    is asked less often, because the bell is what a bus can best do without: it looks at every beat, too."""
    error = state.outcome.exception() if state.outcome is not None else None
    crowded = error is not None and problems.is_crowded(error)
    return pause(state.attempt_number, _FIRST, _RARELY if crowded else _OFTEN)
