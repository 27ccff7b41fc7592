"""A pooler between agentbus and the server: recognised, and named, before anything is written to the wrong place."""

from __future__ import annotations

import asyncio

import pytest

import agentbus
from agentbus.errors import UnsupportedPooler
from tests.support.guarded import run
from tests.support.pooler import PGBOUNCER, pgbouncer, pretended
from tests.support.postgres import server_url
from tests.support.proxy import socket_and_schema

pytestmark = pytest.mark.usefixtures("url")
needs_pgbouncer = pytest.mark.skipif(PGBOUNCER is None, reason="PgBouncer is not installed")
IGNORED = (
    "jit,standard_conforming_strings,default_transaction_isolation,idle_in_transaction_session_timeout,search_path,"
    "tcp_keepalives_idle,tcp_keepalives_interval,tcp_keepalives_count,synchronous_commit,plan_cache_mode,"
    "enable_seqscan,enable_hashjoin,enable_mergejoin,lock_timeout,default_transaction_read_only"
)
"""Settings that an administrator lists to make the errors go away."""


async def refused(url: str) -> UnsupportedPooler:
    with pytest.raises(UnsupportedPooler) as found:
        async with agentbus.connect(url):
            pass
    assert "pooler=session" in str(found.value.fix)
    return found.value


async def made_in(schema: str) -> int:
    """Return the number of tables that a bus has made in a schema."""
    query = f"SELECT count(*) FROM pg_tables WHERE schemaname = '{schema}' AND tablename = 'messages'"
    ((count,),) = (await asyncio.to_thread(run, server_url(), query))[0]
    return int(count)


@pytest.mark.parametrize(
    ("option", "ignoring", "renaming", "said"),
    [
        ("", False, True, "a pooler is between"),
        ("", True, False, "search_path is"),
        ("&pooler=session", True, True, None),
    ],
)
async def test_a_session_that_is_not_what_was_asked_for_is_refused(
    url: str, option: str, ignoring: bool, renaming: bool, said: str | None
) -> None:
    socket, schema = socket_and_schema(url)
    async with pretended(socket, ignoring=ignoring, renaming=renaming) as port:
        there = f"postgresql://agentbus@127.0.0.1:{port}/postgres?schema={schema}{option}"
        if said is not None:
            assert said in str(await refused(there))
        else:
            async with agentbus.connect(there) as bus, bus.agent("a", type="worker") as agent:
                await agent.send("a", "note", 1)
    assert await made_in("public") == 0


@needs_pgbouncer
@pytest.mark.parametrize("ignored", ["", IGNORED], ids=["strict", "ignoring"])
@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_pgbouncer_is_recognised(url: str, mode: str, ignored: str) -> None:
    socket, _ = socket_and_schema(url)
    with pgbouncer(socket.parent, mode, ignored=ignored) as there:
        error = await refused(f"{there}?schema=pooled")
        assert "pooler is between agentbus and the server" in str(error)
        checks = await agentbus.doctor(f"{there}?schema=pooled")
        assert [check.name for check in checks if "pooler" in check.text] == ["server"]
    assert await made_in("public") == await made_in("pooled") == 0


@needs_pgbouncer
@pytest.mark.parametrize("ignored", ["", IGNORED], ids=["strict", "ignoring"])
async def test_pgbouncer_in_session_mode_works_where_the_user_says_so(url: str, ignored: str) -> None:
    socket, schema = socket_and_schema(url)
    with pgbouncer(socket.parent, "session", ignored=ignored) as there:
        pooled = f"{there}?schema={schema}&pooler=session"
        async with (
            agentbus.connect(pooled) as bus,
            agentbus.connect(pooled) as other,
            bus.agent("a", type="worker") as a,
            other.agent("b", type="worker") as b,
        ):
            # The doorbell rings through it, too.
            waiting = asyncio.create_task(b.receive(timeout=30))
            await a.send("b", "note", 1)
            message = await waiting
            assert message is not None
            await message.ack()
            assert (await bus.stats()).messages == {"acked": 1}
    assert await made_in("public") == 0
