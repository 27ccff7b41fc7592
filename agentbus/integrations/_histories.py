"""Parts that the adapters on histories share: the bus, names of several words, and JSON bodies."""

from __future__ import annotations

import json
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from agentbus.api.bus import Bus, connect
from agentbus.errors import InvalidInput

if TYPE_CHECKING:
    from typing import Self

    from agentbus.api.histories import Histories
    from agentbus.records import History

Place: TypeAlias = "Bus | str | os.PathLike[str]"
"""An open bus, or the directory or URL of one."""
_PAGE = 1000


class HistoryAdapter:
    """The bus of an adapter: one that the caller opened, or one that the block of the adapter opens and closes.

    >>> async with AgentBusSession("chat-7", "postgresql://bus@db/agents") as session:      # doctest: +SKIP
    ...     await Runner.run(agent, "Hello", session=session)
    """

    def __init__(self, bus: Place) -> None:
        given: object = bus
        if not isinstance(given, Bus | str | os.PathLike):
            name = f"{type(given).__module__}.{type(given).__name__}"
            raise InvalidInput(reason=f"give a bus of agentbus.connect(), or the directory or URL of one, not {name}")
        self._bus = bus if isinstance(bus, Bus) else connect(bus)
        self._owned = self._bus is not bus

    async def __aenter__(self) -> Self:
        if self._owned:
            await self._bus.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._owned:
            await self._bus.__aexit__(kind, error, trace)

    @property
    def _histories(self) -> Histories:
        return self._bus.histories

    async def _list(self, kind: str, prefix: str, where: dict[str, Any]) -> list[History]:
        """Return all histories whose names begin with ``prefix`` and whose metadata has these values."""
        found: list[History] = []
        cursor: str | None = None
        while True:
            page = await self._histories.list(kind, prefix=prefix, where=where, limit=_PAGE, cursor=cursor)
            found += page.items
            cursor = page.cursor
            if cursor is None:
                return found


def join(*words: str) -> str:
    """Return the name of a history that is known by several words. No two lists of words have the same name.

    >>> join("tenant/a", "100%")
    'tenant%2Fa/100%25'
    """
    return "/".join(word.replace("%", "%25").replace("/", "%2F") for word in words)


def encode(value: Any) -> bytes:
    """Return JSON in UTF-8, as legible as the value permits: a surrogate without its pair is escaped.

    >>> encode({"text": "é"}).decode(), encode("\\ud83d")
    ('{"text":"é"}', b'"\\\\ud83d"')
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()
