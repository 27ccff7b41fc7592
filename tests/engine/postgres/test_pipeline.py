"""Values that go with a COMMIT are written into the text of a script: hostile ones too arrive unchanged."""

from __future__ import annotations

from typing import Any, cast

import asyncpg
import pytest

import agentbus
from agentbus.engine.postgres.connection import connect, writing
from agentbus.engine.postgres.pipeline import Scripts, _literal, _Unwritable
from agentbus.engine.postgres.server import parse
from agentbus.operations.protocol import ExecuteMany, Query

NASTY = (
    "it's",
    "''",
    "\\",
    "\\'; DROP TABLE messages; --",
    "'; COMMIT; DELETE FROM messages; --",
    "$1 $2 $$ $tag$",
    "/* -- */ ;\n;",
    "E'\\x00'",
    '"quoted"',
    "ü€𝄞\u202e",
    "%s {0} \t\r\n",
    "",
)


NAMES = ("mailbox/1", "mailbox/1#b7f.2", "state/agent:a-1", "server")
UNWRITABLE = (1.5, b"x", [], [1, "a"], [None], "nul\0", object(), *NASTY, *(["a", text] for text in NASTY))


@pytest.mark.parametrize("text", NAMES)
async def test_a_name_is_what_it_was(url: str, text: str) -> None:
    connection = await asyncpg.connect(parse(url).dsn)
    try:
        assert await connection.fetchval(f"SELECT {_literal(text)}") == text
        assert await connection.fetchval(f"SELECT {_literal([text, text])}") == [text, text]
    finally:
        await connection.close()


@pytest.mark.parametrize("text", NASTY)
async def test_a_message_alone_arrives_as_it_was_sent(url: str, text: str) -> None:
    async with agentbus.connect(url) as bus:
        agent = await bus.register("a", type="worker")
        await agent.send("a", "note", {"text": text, text: [text]})
        message = await agent.receive(timeout=5)
        assert message is not None
        assert message.payload == {"text": text, text: [text]}
        await message.nack(error=text or None)
        assert (await bus.stats()).messages in ({"queued": 1}, {"scheduled": 1})


async def test_numbers_keep_their_sign_and_lists_their_type(url: str) -> None:
    connection = await asyncpg.connect(parse(url).dsn)
    try:
        assert await connection.fetchval(f"SELECT 5 -{_literal(-3)}") == 8
        assert await connection.fetchval(f"SELECT {_literal([1, -2])}") == [1, -2]
        assert await connection.fetchval(f"SELECT {_literal(True)}") == 1
        assert await connection.fetchval(f"SELECT {_literal(2**63 - 1)}") == 2**63 - 1
    finally:
        await connection.close()


@pytest.mark.parametrize("value", UNWRITABLE)
def test_what_cannot_be_written_as_a_literal_is_left_to_the_driver(value: object) -> None:
    with pytest.raises(_Unwritable):
        _literal(value)


async def deferred(step: Query | ExecuteMany) -> str | None:
    """As of a connection that has run nothing yet."""
    return await Scripts(cast(Any, None)).deferred(step)


async def ringing(channels: list[str]) -> str | None:
    return await Scripts(cast(Any, None)).ringing(channels, 7)


async def test_only_what_gives_nothing_back_waits_for_the_commit() -> None:
    assert await deferred(Query("message_ack", (1, [1]))) is None
    assert await deferred(Query("message_held", ([1],))) is None
    assert await deferred(Query("document_insert", ("s", "n", "c", None, 1, "1"))) is None
    assert await deferred(ExecuteMany("message_start", [(1, 2)])) == "UPDATE messages SET attempts = (1) WHERE id = (2)"
    assert await deferred(ExecuteMany("message_start", [])) == ""
    assert await deferred(ExecuteMany("message_start", [(1, 2)] * 5)) is None, "many go faster by a prepared statement"


async def test_what_is_run_again_is_prepared(url: str) -> None:
    async with agentbus.connect(url) as bus:
        agent = await bus.register("a", type="worker")
        await agent.send("a", "note", 1)
        message = await agent.receive(timeout=5)
        assert message is not None
        connection = await connect(parse(url))
        try:
            scripts = Scripts(connection)
            for attempts in (3, 2, 1, 4):
                script = await scripts.deferred(ExecuteMany("message_start", [(attempts, message.id)]))
                assert script is not None
                assert script.startswith("UPDATE" if attempts == 3 else "EXECUTE agentbus_message_start")
                await connection.execute(script)
                assert await connection.fetchval("SELECT attempts FROM messages") == attempts
        finally:
            await connection.close()


async def test_what_could_not_be_prepared_is_prepared_the_next_time(url: str) -> None:
    ours, other = await connect(parse(url), writing(0.1)), await connect(parse(url))
    try:
        scripts = Scripts(ours)
        assert (await scripts.ringing(["mailbox/1"], 7) or "").startswith("SELECT")
        async with other.transaction():
            await other.execute("LOCK TABLE listeners IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(asyncpg.LockNotAvailableError):
                await scripts.ringing(["mailbox/1"], 7)
        for _ in range(2):
            script = await scripts.ringing(["mailbox/1"], 7)
            assert script is not None
            await ours.execute(script)
    finally:
        await ours.close()
        await other.close()


async def test_what_people_wrote_is_never_in_the_text_of_a_statement() -> None:
    assert await deferred(Query("agent_called", (1, "agent-1", 2))) is not None
    assert await deferred(Query("message_dead_letter", ('{"secret": 1}', 2, 3))) is None
    assert await deferred(Query("message_dead_letter", ("secret", 2, 3))) is None, "one word of it looks like a name"
    assert await deferred(Query("message_release", ("queued", None, 1, "secret", 2))) is None
    assert await deferred(Query("message_release", ("queued", None, 1, None, 2))) is not None
    assert await deferred(Query("agent_progress", (1, "secret", 2, 3, "a"))) is None
    assert await deferred(ExecuteMany("event_insert", [(1, "k", "bus", "s", None, "{}")])) is None, "nor is any new row"


async def test_channels_that_are_too_many_or_not_plain_are_rung_apart() -> None:
    assert await ringing(["mailbox/1", "mailbox/2"]) is not None
    assert await ringing(["mailbox/1", "it's"]) is None
    assert await ringing([f"mailbox/{number}" for number in range(65)]) is None


async def test_a_refusal_at_the_commit_is_told_and_nothing_is_written(url: str) -> None:
    """The last write of a transaction is refused by the tables, behind everything that was asked before."""
    from agentbus.errors import FormatRefused
    from agentbus.operations.protocol import operation

    @operation(durable=True)
    def break_a_rule_at_last(requests, now):  # type: ignore[no-untyped-def]
        yield Query("meta_get", ("x",))
        yield Query("meta_set", ("fine", "1"))
        yield Query("process_beat", (None, requests[0]))
        return [None] * len(requests)

    assert await deferred(Query("process_beat", (None, 1))) is not None
    async with agentbus.connect(url) as bus:
        with pytest.raises(FormatRefused):
            await bus._engine.write(break_a_rule_at_last, bus._engine.process)
        connection = await asyncpg.connect(parse(url).dsn, server_settings={"search_path": parse(url).schema})
        assert await connection.fetchval("SELECT count(*) FROM meta WHERE key = 'fine'") == 0
        await connection.close()
        await bus.declare(agentbus.pool("p"))
