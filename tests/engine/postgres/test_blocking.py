"""The blocking driver on a server: for callers without an event loop, who can wait all the same."""

from __future__ import annotations

import asyncio
import threading

import pytest

from agentbus.core.addresses import Address, pool
from agentbus.core.codec import plain_payload
from agentbus.engine.postgres.blocking import BlockingPostgres
from agentbus.engine.postgres.server import parse
from agentbus.errors import AccessDenied, AgentBusError, BusClosed, Misuse, ServerUnreachable, UnknownRecipient
from agentbus.operations.agents import DeclareRequest, RegisterRequest, declare, register
from agentbus.operations.lookups import count
from agentbus.operations.protocol import Actor, mailbox_channel
from agentbus.operations.receive import ClaimRequest, claim
from agentbus.operations.rows import Draft, Profile
from agentbus.operations.send import SendRequest, send
from tests.support.proxy import DELAY, proxied, socket_and_schema


def opened(url: str) -> BlockingPostgres:
    return BlockingPostgres(parse(url), create=True, durability="disk", clock=None, lock_timeout=5)


def draft(to: Address) -> Draft:
    return Draft(to, "note", plain_payload({"x": 1}), 5, 5)


def test_a_bus_on_a_server_is_used_without_an_event_loop(url: str) -> None:
    engine = opened(url)
    try:
        life = engine.write(register, RegisterRequest("a", "worker", None, Profile(), "visiting"))
        actor = Actor("a", life.epoch)
        engine.write(declare, DeclareRequest(("p",), ()))
        (receipt,) = engine.write(send, SendRequest(actor, (draft(pool("p")),)))
        assert receipt.message_id == "m-1"
        with pytest.raises(UnknownRecipient):
            engine.write(send, SendRequest(actor, (draft(pool("q")),)))
        assert engine.read(count, 5).messages == {"queued": 1}
        assert engine.sizes()[0] > 0
    finally:
        engine.close()
    engine.close()
    with pytest.raises(BusClosed):
        engine.read(count, 5)


def test_one_that_waits_is_rung_by_another(url: str) -> None:
    engine, other = opened(url), opened(url)
    try:
        life = engine.write(register, RegisterRequest("a", "worker", None, Profile(), "visiting"))
        actor = Actor("a", life.epoch)
        request = ClaimRequest(actor, (), (life.mailbox,), (), 1, 60_000)
        with engine.wait_for_wakeups() as attendance:
            attendance.listen([mailbox_channel(life.mailbox)])
            assert engine.write(claim, request).rows == []
            assert not attendance.wait(0.05)
            later = threading.Timer(0.1, lambda: other.write(send, SendRequest(actor, (draft(Address("agent", "a")),))))
            later.start()
            assert attendance.wait(60)
            later.join()
            assert len(engine.write(claim, request).rows) == 1
    finally:
        engine.close()
        other.close()


@pytest.mark.parametrize(
    ("bad", "kind"), [("postgresql://u@127.0.0.1:1/x", ServerUnreachable), ("postgresql://u@h:port/x", AgentBusError)]
)
def test_what_cannot_be_opened_is_a_named_error(bad: str, kind: type[AgentBusError]) -> None:
    with pytest.raises(kind) as found:
        opened(bad)
    assert not isinstance(found.value, AccessDenied)


async def test_a_commit_that_takes_long_is_no_wait_for_others(url: str) -> None:
    """Raised means not written: what the server has committed does not end as a timeout."""
    socket, schema = socket_and_schema(url)
    async with proxied(socket) as proxy:
        place = f"postgresql://agentbus@127.0.0.1:{proxy.port}/postgres?schema={schema}"

        def write() -> None:
            engine = opened(place)
            try:
                proxy.cut = "delayed"
                engine.write(declare, DeclareRequest(("p",), ()), lock_timeout=DELAY / 5)
            finally:
                engine.close()

        await asyncio.to_thread(write)
        assert proxy.cuts == 1


async def test_in_an_event_loop_it_says_what_to_use_instead(url: str) -> None:
    with pytest.raises(Misuse, match=r"use agentbus\.connect"):
        opened(url)
