"""Rates over time: a ring of 24 hours in the memory of the server, one slot per minute.

Messages are counted as they are announced, without reading them; depths and sizes are sampled once a minute.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import msgspec

from agentbus.api.live import follow_changes
from agentbus.errors import AgentBusError
from agentbus.operations.protocol import LIVE

if TYPE_CHECKING:
    from agentbus import Bus

log = logging.getLogger("agentbus.web")

MINUTES = 24 * 60
SAMPLE = 60.0
"""Seconds between two samples, unless a dashboard asks for one."""
FRESH = 5.0
"""Seconds for which a sample serves every dashboard that asks."""
_QUEUES = 50
"""Queues whose depth is sampled."""


class Minute(msgspec.Struct):
    """One minute: the number of messages sent, leased, acknowledged, released and dead-lettered in it; at its end, the
    depths of the deepest queues, the bytes of the database, and the seconds per minute that writers waited for the
    lock."""

    at: int
    sent: int = 0
    leased: int = 0
    acked: int = 0
    released: int = 0
    dead: int = 0
    depths: dict[str, int] = {}
    database_bytes: int = 0
    log_bytes: int = 0
    lock_waits: float = 0.0


class Rates(msgspec.Struct, frozen=True):
    """The ring: ``since`` is when the server started to count; minutes before that are unknown."""

    since: int
    minutes: list[Minute]


class RateRing:
    """Counts for the length of a block."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._since = self._wall()
        self._minutes: deque[Minute] = deque(maxlen=MINUTES)
        self._newest = 0
        self._sampled = (0, 0)
        """The minute and the time of the last sample."""
        self.totals: Counter[str] = Counter()
        """Messages leased, acked, released and dead-lettered since the server started."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> RateRing:
        self._stack.callback(follow_changes(self._bus, self._count))
        await self._stack.enter_async_context(self._bus._listening.to(LIVE))
        self._newest = await self._bus.newest_message()
        await self._sample()
        task = asyncio.create_task(self._sample_periodically(), name="agentbus rates")
        self._stack.callback(task.cancel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def read(self) -> Rates:
        """Return the ring, with the present minute. Its depths and sizes are at most FRESH seconds old."""
        if self._present.at != self._sampled[0] or self._wall() - self._sampled[1] >= FRESH * 1000:
            await self._sample()
        else:
            await self._count_sent()
        return Rates(self._since, list(self._minutes))

    def _wall(self) -> int:
        return self._bus._engine.clock.now().wall

    @property
    def _present(self) -> Minute:
        at = self._wall() // 60_000 * 60_000
        if not self._minutes or self._minutes[-1].at != at:
            self._minutes.append(Minute(at))
        return self._minutes[-1]

    def _count(self, detail: str | None) -> None:
        if not detail:
            return
        change, _, ids = detail.partition(" ")
        number = 0
        for part in ids.split(","):
            first, _, last = part.partition("-")
            if first.isdigit():
                number += int(last) - int(first) + 1 if last.isdigit() else 1
        if change in {"leased", "acked", "released", "dead"}:
            setattr(self._present, change, getattr(self._present, change) + number)
            self.totals[change] += number

    async def _sample_periodically(self) -> None:
        timer = self._bus._engine.waiters.listen(())
        while True:
            await timer.wait(SAMPLE)
            try:
                await self._sample()
            except AgentBusError as error:
                log.debug("no sample: %s", error)

    async def _count_sent(self) -> None:
        newest = await self._bus.newest_message()
        # Ids are numbered in their order and never reused.
        self._present.sent += max(0, newest - self._newest)
        self._newest = newest

    async def _sample(self) -> None:
        await self._count_sent()
        depths = await self._bus.messages.deepest(_QUEUES)
        sizes = await self._bus._engine.sizes()
        minute = self._present
        self._sampled = (minute.at, self._wall())
        minute.depths = {queue.recipient: queue.queued for queue in depths}
        minute.database_bytes, minute.log_bytes = sizes
        minute.lock_waits = await self._bus.lock_waits()
