"""Parts that the adapters on histories share: the bus, names of several words, and JSON bodies."""

from __future__ import annotations

import json
import os
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from agentbus.api.bus import Bus, connect
from agentbus.core.validation import MAX_PAGE
from agentbus.errors import InvalidInput

if TYPE_CHECKING:
    from typing import Self

    from agentbus.api.histories import Histories
    from agentbus.records import History

BusOrUrl: TypeAlias = "Bus | str | os.PathLike[str]"
"""An open bus, or the directory or URL of one."""


class HistoryAdapter:
    """The bus of an adapter: one that the caller opened, or one that the block of the adapter opens and closes.

    >>> async with AgentBusSession("chat-7", "postgresql://bus@db/agents") as session:      # doctest: +SKIP
    ...     await Runner.run(agent, "Hello", session=session)
    """

    def __init__(self, bus: BusOrUrl) -> None:
        given: object = bus
        if not isinstance(given, Bus | str | os.PathLike):
            raise no_bus(given)
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


def no_bus(given: object) -> InvalidInput:
    """Return the error of an adapter that got something else than a bus."""
    name = f"{type(given).__module__}.{type(given).__name__}"
    return InvalidInput(reason=f"give a bus of agentbus.connect(), or the directory or URL of one, not {name}")


async def list_all(
    histories: Histories, kind: str, prefix: str = "", where: dict[str, Any] | None = None
) -> list[History]:
    """Return all histories whose names start with ``prefix`` and whose metadata has these values."""
    found: list[History] = []
    cursor: str | None = None
    while True:
        page = await histories.list(kind, prefix=prefix, where=where, limit=MAX_PAGE, cursor=cursor)
        found += page.items
        cursor = page.cursor
        if cursor is None:
            return found


def join(*words: str) -> str:
    """Return the name of a history that is identified by several words. No two lists of words have the same name.

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
