"""The doorbell by LISTEN/NOTIFY: no ring is lost."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

import agentbus
from agentbus.engine.postgres import notify
from agentbus.engine.postgres.statements import ask
from agentbus.operations.protocol import Query


async def test_a_channel_that_is_rung_while_it_is_notified_is_notified_again(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process that the first notification wakes may look before the second commit."""
    async with agentbus.connect(url, beat_every=3600) as ours, agentbus.connect(url, beat_every=3600) as other:
        sender = await ours.register("sender", type="worker")
        receiver = await other.register("receiver", type="worker")
        waiting = asyncio.create_task(receiver.receive(timeout=30))
        engine: Any = ours._engine
        bell: notify.Bell = engine._bell
        notified: list[list[str]] = []

        async def slow(connection: Any, query: Query) -> Any:
            if query.name == "listeners_of":
                notified.append(list(query.parameters[0]))
                if len(notified) == 1:
                    bell.ring(["mailbox/1"])
            return await ask(connection, query)

        monkeypatch.setattr(notify, "ask", slow)
        bell.ring(["mailbox/1"])
        with anyio.fail_after(30):
            while bell.busy:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert notified == [["mailbox/1"], ["mailbox/1"]]
        await sender.send("receiver", "note", None)
        assert await waiting is not None
