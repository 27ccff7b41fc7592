"""Sessions of the OpenAI Agents SDK on a bus.

Each session is a history of kind ``openai`` named by the session id. Install the SDK with
``pip install '.[openai-agents]'`` in the checkout.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from agentbus.errors import HistoryConflict
from agentbus.integrations._histories import BusOrUrl, HistoryAdapter, encode
from agentbus.records import HistoryPut

if TYPE_CHECKING:
    from agents import SessionSettings, TResponseInputItem

    from agentbus.records import HistoryItem

KIND = "openai"


class AgentBusSession(HistoryAdapter):
    """A ``Session`` of the OpenAI Agents SDK: the items of a conversation as a history of a bus.

    Any number of processes may use a session at once. Items that are added together stay together, and an item is
    popped by one caller only.

    >>> async with agentbus.connect() as bus:                                         # doctest: +SKIP
    ...     result = await Runner.run(agent, "Hello", session=AgentBusSession("chat-7", bus))
    """

    session_id: str
    """The name of the conversation."""
    session_settings: SessionSettings | None
    """The settings of the SDK, such as the number of items that a run gets."""

    def __init__(self, session_id: str, bus: BusOrUrl, *, session_settings: SessionSettings | None = None) -> None:
        super().__init__(bus)
        self.session_id = session_id
        self.session_settings = session_settings

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the items of the conversation, oldest first; with ``limit`` only the newest ones.

        >>> await session.get_items(limit=1)                                          # doctest: +SKIP
        [{'role': 'user', 'content': 'Hello'}]
        """
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        if limit is None or limit < 0:
            return [_item(item) for item in await self._histories.items(KIND, self.session_id)]
        return [_item(item) for item in reversed(await self._newest(limit))]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items to the conversation, in one commit.

        >>> await session.add_items([{"role": "user", "content": "Hello"}])           # doctest: +SKIP
        """
        if items:
            await self._histories.write(KIND, self.session_id, [HistoryPut(body=encode(item)) for item in items])

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the newest item and return it, or None if there is none.

        >>> await session.pop_item()                                                  # doctest: +SKIP
        {'role': 'user', 'content': 'Hello'}
        """
        while True:
            # Before the item: if another process changes the conversation meanwhile, the version is too old.
            history = await self._histories.find(KIND, self.session_id)
            if history is None or not history.items:
                return None
            newest = await self._newest(1)
            if not newest:
                continue
            keys = [(item.part, item.key) for item in newest]
            try:
                await self._histories.write(
                    KIND, self.session_id, [], delete=keys, if_version=history.version
                )  # fmt: skip
            except HistoryConflict:
                continue
            return _item(newest[0])

    async def clear_session(self) -> None:
        """Remove all items of the conversation.

        >>> await session.clear_session()                                             # doctest: +SKIP
        """
        # The history itself stays: its version must not start again while another process pops an item.
        await self._histories.delete(KIND, self.session_id, part="")

    async def _newest(self, limit: int) -> list[HistoryItem]:
        return await self._histories.items(KIND, self.session_id, newest_first=True, limit=limit) if limit else []


def _item(item: HistoryItem) -> TResponseInputItem:
    return json.loads(item.body)
