"""A bus on a server that nobody opens: what the doctor can see of it from outside. Nothing is made or changed."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

from agentbus.clock import Clock, Now
from agentbus.engine.postgres.address import Address
from agentbus.engine.postgres.clock import ServerClock
from agentbus.engine.postgres.examination import examine
from agentbus.engine.postgres.readers import Readers
from agentbus.errors import AgentBusError
from agentbus.operations import Op
from agentbus.operations.examining import Unseen
from agentbus.records import Check

R = TypeVar("R")
T = TypeVar("T")
_PATIENCE = 2.0
"""Seconds to go on trying to reach a server that does not answer."""


class ClosedPostgres:
    """A bus in a schema of a server, whatever state it is in, for the length of a block."""

    process = 0
    home: str | None = None

    def __init__(self, address: Address, clock: Clock | None) -> None:
        self._address = address
        self._clock = clock or ServerClock()
        self._readers = Readers(address, _PATIENCE, standby=True)

    async def __aenter__(self) -> ClosedPostgres:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._readers.close()

    async def examine(self) -> list[Check | Unseen]:
        if isinstance(self._clock, ServerClock):
            try:
                ((_, _, _, _, moment, *_),) = await self._readers.fetch("server_facts", self._address.schema)
            except AgentBusError as error:
                return [Unseen("server", error)]
            self._clock.told(moment)
        return await examine(self._readers, self._address)

    async def sizes(self) -> tuple[int, int]:
        ((bytes,),) = await self._readers.fetch("server_size")
        return bytes, 0

    async def inspect(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        return await self._readers.answer(lambda: question(request, self._clock.now()))
