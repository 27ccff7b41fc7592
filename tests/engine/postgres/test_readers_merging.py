"""Questions that are asked together give what each gives alone; and the driver asks the server for no types."""

from __future__ import annotations

from typing import Any

import asyncpg
import pytest

import agentbus
from agentbus.engine.postgres.connection import WRITING, Connection, connect
from agentbus.engine.postgres.readers import ask_several
from agentbus.engine.postgres.server import parse
from agentbus.engine.postgres.statements import ask
from agentbus.operations.protocol import Query


async def filled(url: str) -> Connection:
    """A bus with two agents, three messages and a pool."""
    async with agentbus.connect(url) as bus:
        a, b = [await bus.register(name, type="worker") for name in ("a", "b")]
        await bus.declare(agentbus.pool("p"))
        for priority in (5, 9, 7):
            await a.send("b", "note", {"p": priority}, priority=priority, message_id=f"id-{priority}")
        await b.send("a", "note", None, delay=60)
    return await connect(parse(url), WRITING)


async def test_questions_asked_together_give_what_each_gives_alone(url: str) -> None:
    connection = await filled(url)
    boxes = [row[0] for row in await connection.fetch("SELECT mailbox FROM agents ORDER BY id")]
    questions = (
        Query("agent_statuses", (["a", "b", "nobody"],)),
        Query("type_known", ("message", ["note", "nothing"])),
        Query("mailbox_horizon", (boxes,)),
        Query("message_ready", (boxes, 2)),
        Query("message_by_message_id", (["id-9", "id-1"],)),
        Query("pool_mailbox", (["p", "q"],)),
        Query("message_ready", (boxes[:1], 1)),
    )
    try:
        for some in (questions, questions[::-1], questions[:2], questions[4:5], questions[3:6]):
            async with connection.transaction():
                alone = [await ask(connection, question) for question in some]
                assert await ask_several(connection, some) == alone
        assert [len(rows) for rows in await ask_several(connection, questions)] == [2, 1, 2, 2, 1, 1, 0]
    finally:
        await connection.close()


async def test_what_is_ready_comes_most_urgent_first_also_together(url: str) -> None:
    connection = await filled(url)
    try:
        (box,) = await connection.fetchrow("SELECT mailbox FROM agents WHERE id = 'b'")  # type: ignore[misc]
        asked = (Query("agent_statuses", (["b"],)), Query("message_ready", ([box], 9)))
        _, ready = await ask_several(connection, asked)
        assert [row[1] for row in ready] == [9, 7, 5]
    finally:
        await connection.close()


async def test_lists_are_sent_without_asking_the_server_for_their_types(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver would, in a way that takes longer than all else that a short command does."""

    async def never(*_: Any) -> Any:
        raise AssertionError("the driver asked for types")

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", never)
    async with agentbus.connect(url) as bus:
        agent = await bus.register("a", type="worker")
        await agent.send_many([("a", "note", number) for number in range(20)])
        await agent.ack(await agent.receive_many(20, timeout=5))
        assert (await bus.messages.list(status="acked")).items
