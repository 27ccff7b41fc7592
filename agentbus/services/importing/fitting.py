"""Payloads of messages that somebody will receive, held against the schemas of their types, as when they are sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from agentbus.errors import InvalidInput, TypeChanging
from agentbus.operations.archives import ArchivedMessage
from agentbus.operations.vocabulary import Unchecked
from agentbus.schema import misfit
from agentbus.services.threads import to_its_end

T = TypeVar("T")
_MOST_ROUNDS = 10
_LARGE = 16 * 1024
"""Characters of JSON that take too long to be checked on the loop."""


class Fitting:
    """What is known of the schemas of this bus, as far as an import needed them."""

    def __init__(self) -> None:
        self._schemas: dict[str, str] = {}

    async def fits(self, line: object) -> str | None:
        """The schema that a line is found to fit, if it needs one; what does not fit raises why."""
        if not isinstance(line, ArchivedMessage) or line.finished is not None:
            return None
        schema = self._schemas.get(line.type)
        if schema is None:
            return None
        if len(line.payload) <= _LARGE:
            problem = misfit(line.type, line.payload, schema)
        else:
            problem = await to_its_end(misfit, line.type, line.payload, schema)
        if problem is not None:
            raise problem
        return schema

    async def written(self, line: object, write: Callable[[str | None], Awaitable[T]]) -> T:
        """Write a line that fits. Where the bus turns out to have another schema, it is held against that one."""
        for _ in range(_MOST_ROUNDS):
            try:
                return await write(await self.fits(line))
            except Unchecked as news:
                self.learn(news)
        raise TypeChanging(type=getattr(line, "type", ""), rounds=_MOST_ROUNDS)

    def learn(self, news: Unchecked) -> None:
        self._schemas.update(news.schemas)


MISFITS = (InvalidInput, TypeChanging)
"""Why a message is left out."""
