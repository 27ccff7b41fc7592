"""Watching channels across processes: whoever watches is rung for each change, its own process's or another's."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from agentbus.engine.hub import Ear
from agentbus.engine.interface import Engine
from agentbus.errors import AgentBusError
from agentbus.operations.processes import ListenRequest, listen
from agentbus.parting import unheeded


class Listening:
    """The channels that this process watches. Other processes are told of the first watcher of each, and of the last
    one's leaving."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watchers: Counter[str] = Counter()
        self._known: set[str] = set()
        """Channels of which the others have been told."""

    @asynccontextmanager
    async def to(self, channel: str) -> AsyncIterator[Ear]:
        """Watch a channel for the length of a block. Look after entering it: whatever comes later rings."""
        ear = self._engine.hub.watch((channel,))
        self._watchers[channel] += 1
        try:
            if channel not in self._known:
                # Each of several who come at once asks for it: one that is cancelled withdraws only its own request.
                await self._engine.write(listen, ListenRequest(self._engine.process, channel, True))
                self._known.add(channel)
            yield ear
        finally:
            ear.close()
            self._watchers[channel] -= 1
            if not self._watchers[channel]:
                del self._watchers[channel]
                self._known.discard(channel)
                with suppress(AgentBusError):
                    unheeded(self._engine.write(listen, ListenRequest(self._engine.process, channel, False)))
