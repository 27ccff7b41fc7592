"""Requests and replies: matched by correlation and delivered only to the requester."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

import agentbus
from agentbus import Agent, Bus, Message, Unit
from agentbus.errors import AgentEnded, OutOfRange, RequestDied, RequestTimedOut, UnknownRecipient
from tests.api.helpers import count, nothing_for, queued, running, soon, stored, take, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock


@asynccontextmanager
async def answering(agent: Agent) -> AsyncIterator[None]:
    """An agent that answers every request with what it was asked."""

    async def answer(message: Message, unit: Unit) -> None:
        unit.reply(message, "coordination_response", message.payload)

    async with running(agent.serve(answer, concurrency=2)):
        yield


async def test_a_request_gets_its_reply(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    async with running(a.request("b", "coordination_request", {"q": "ready?"}, timeout=30, priority=9)) as asked:
        question = await soon(b.receive())
        assert question is not None
        assert (question.sender, question.payload, question.priority) == ("a", {"q": "ready?"}, 9)
        await question.reply("coordination_response", {"ready": True})
        await question.ack()
        reply = await soon(asked)
    assert (reply.sender, reply.type, reply.payload) == ("b", "coordination_response", {"ready": True})
    assert reply.correlation == question.correlation is not None


async def test_a_reply_through_a_unit_is_one_commit_with_the_acknowledgement(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    async with answering(b):
        reply = await soon(a.request("b", "coordination_request", 42, timeout=30))
    assert reply.payload == 42
    assert (await bus.stats()).messages == {"acked": 2}


async def test_a_request_can_be_sent_to_a_pool(bus: Bus) -> None:
    a = await worker(bus, "a")
    async with answering(await worker(bus, "b", pools=["p"])):
        assert (await soon(a.request(agentbus.pool("p"), "coordination_request", 1, timeout=30))).payload == 1


async def test_concurrent_requests_get_each_its_own_reply(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    async with answering(b):
        asked = [a.request("b", "coordination_request", n, timeout=30) for n in range(20)]
        replies = await soon(asyncio.gather(*asked))
    assert [reply.payload for reply in replies] == list(range(20))


async def test_replies_in_any_order_find_their_request(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    asked = [asyncio.create_task(a.request("b", "coordination_request", n, timeout=30)) for n in range(5)]
    questions: list[Message] = []
    while len(questions) < 5:
        questions += await soon(b.receive_many(5))
    for question in sorted(questions, key=lambda question: -question.payload):
        await question.reply("coordination_response", question.payload * 10)
    assert [reply.payload for reply in await soon(asyncio.gather(*asked))] == [0, 10, 20, 30, 40]


async def test_replies_never_come_into_the_inbox(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    seen: list[Any] = []

    async def read() -> None:
        async for message in a.inbox():
            async with message:
                seen.append(message.payload)

    async with running(read()), answering(b):
        for n in range(5):
            assert (await soon(a.request("b", "coordination_request", n, timeout=30))).payload == n
        await b.send("a", "note", "ordinary")
        await clock.settle()
    assert seen == ["ordinary"]


async def test_a_request_without_an_answer_times_out(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    async with running(a.request("b", "coordination_request", timeout=30)) as asked:
        await clock.pass_time(29.9)
        assert not asked.done()
        await clock.pass_time(0.1)
        with pytest.raises(RequestTimedOut) as timed_out:
            await soon(asked)
    assert timed_out.value.code == "request_timed_out"
    assert (timed_out.value.recipient, timed_out.value.timeout) == ("b", 30)
    assert isinstance(timed_out.value, TimeoutError)
    assert await nothing_for(b), "a request that timed out is not delivered"


async def test_a_reply_that_arrives_too_late_is_not_delivered(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    async with running(a.request("b", "coordination_request", 1, timeout=30)) as asked:
        question = await soon(b.receive(lease=600))
        assert question is not None
        await clock.pass_time(30)
        with pytest.raises(RequestTimedOut):
            await soon(asked)
    await question.reply("coordination_response", "too late")
    await question.ack()
    assert await nothing_for(a)
    async with answering(b):
        assert (await soon(a.request("b", "coordination_request", 2, timeout=30))).payload == 2


async def test_the_time_to_live_of_a_reply_is_the_timeout_of_its_request(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    async with running(a.request("b", "coordination_request", timeout=30)):
        question = await soon(b.receive())
        assert question is not None
        receipt = await question.reply("coordination_response")
        record = await stored(bus, receipt.message_id)
    assert record.expires is not None, "an unread reply must not wait indefinitely"
    assert record.expires - record.created <= 30_000


async def test_the_requester_is_notified_of_a_rejected_request(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    async with running(a.request("b", "coordination_request", timeout=30)) as asked:
        question = await soon(b.receive())
        assert question is not None
        await question.reject("I do not know how")
        with pytest.raises(RequestDied) as died:
            await soon(asked)
    assert died.value.code == "request_died"
    assert (died.value.recipient, died.value.reason) == ("b", "I do not know how")
    assert await nothing_for(a), "the news is for the one who asked, not for the inbox"


async def test_the_requester_is_notified_after_the_last_failed_attempt(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")

    async def fail(message: Message, unit: Unit) -> None:
        raise ValueError("cannot do it")

    async with running(b.serve(fail)):
        with pytest.raises(RequestDied, match="cannot do it"):
            await soon(a.request("b", "coordination_request", timeout=30, max_attempts=1))


async def test_the_requester_is_notified_when_the_holder_of_the_request_dies(bus: Bus, engine: Engine) -> None:
    a = await worker(bus, "a")
    async with engine.connect() as elsewhere:
        b = await worker(elsewhere, "b")
        async with running(a.request("b", "coordination_request", timeout=30, max_attempts=1)) as asked:
            await soon(b.receive())
            await b.fail("crashed")
            with pytest.raises(RequestDied):
                await soon(asked)


async def test_the_requester_is_notified_when_the_recipient_is_deleted(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await bus.expect("b", type="worker")
    async with running(a.request("b", "coordination_request", timeout=30)) as asked:
        await clock.settle()
        await bus.agents.delete("b")
        with pytest.raises(RequestDied):
            await soon(asked)


async def test_a_request_waits_for_an_agent_that_is_expected(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await bus.expect("b", type="worker")
    async with running(a.request("b", "coordination_request", 7, timeout=30)) as asked:
        await clock.pass_time(10)
        async with answering(await worker(bus, "b")):
            assert (await soon(asked)).payload == 7


async def test_a_request_that_cannot_be_sent_raises_at_once(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await b.complete()
    with pytest.raises(UnknownRecipient):
        await soon(a.request("nobody", "coordination_request", timeout=30))
    with pytest.raises(AgentEnded):
        await soon(a.request("b", "coordination_request", timeout=30))
    for timeout in (0, -1, float("nan"), float("inf"), True, "5"):
        with pytest.raises(OutOfRange):
            await soon(a.request("a", "coordination_request", timeout=timeout))  # type: ignore[arg-type]
    assert await count(bus) == 0


async def test_a_reply_to_a_requester_that_ended_is_queued(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    async with running(a.request("b", "coordination_request", timeout=30)):
        question = await soon(b.receive())
        assert question is not None
    await a.complete()
    await question.reply("coordination_response", 1)
    await question.ack()


async def test_a_reply_to_an_ordinary_message_goes_to_its_sender(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    receipt = await a.send("b", "note", session="s-1")
    message = await take(b)
    async with message as unit:
        unit.reply(message, "note", "thanks")
    reply = await take(a)
    assert (reply.sender, reply.payload, reply.session) == ("b", "thanks", "s-1")
    assert reply.correlation == receipt.message_id


async def test_a_reply_to_the_ordinary_message_of_an_ended_sender_is_queued(bus: Bus) -> None:
    """Replies always queue: what its sender did since must not fail the agent that replies."""
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await a.send("b", "note")
    await a.complete()
    message = await take(b)
    async with message as unit:
        unit.reply(message, "note", "thanks")
    assert await queued(bus, "a") == ["thanks"]
    assert (await take(await worker(bus, "a"))).payload == "thanks"


async def test_a_cancelled_request_leaves_the_agent_as_it_was(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    for turns in range(0, 30, 3):
        async with running(a.request("b", "coordination_request", turns, timeout=30)) as asked:
            for _ in range(turns):
                await asyncio.sleep(0)
            asked.cancel()
        await clock.settle()
    async with answering(b):
        assert (await soon(a.request("b", "coordination_request", "last", timeout=30))).payload == "last"
    assert await nothing_for(a)


async def test_between_two_buses_a_request_needs_no_time_to_pass(bus: Bus, engine: Engine) -> None:
    async with engine.connect() as elsewhere:
        a, b = await worker(bus, "a"), await worker(elsewhere, "b")
        async with answering(b):
            for n in range(10):
                assert (await soon(a.request("b", "coordination_request", n, timeout=30))).payload == n


async def test_the_reply_to_a_requeued_request_comes_as_an_ordinary_message(bus: Bus) -> None:
    """The requester was notified that it died, and waits no more."""
    a, b = await worker(bus, "a"), await worker(bus, "b")
    async with running(a.request("b", "coordination_request", "?", timeout=30)) as asking:
        question = await soon(b.receive())
        assert question is not None
        await question.reject("not now")
        with pytest.raises(RequestDied):
            await soon(asking)
    await bus.messages.requeue(question.message_id)
    again = await take(b)
    async with again as unit:
        unit.reply(again, "coordination_response", "!")
    answer = await take(a)
    assert (answer.payload, answer.correlation) == ("!", question.correlation)


async def test_a_request_that_is_sent_again_gets_the_answer_that_was_read_before(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")

    async def answer() -> None:
        message = await take(b)
        async with message as unit:
            unit.reply(message, "coordination_response", "yes")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        first = await a.request("b", "coordination_request", "ready?", timeout=30, message_id="q-1")
    # As after a crash: the requester does not know that there was an answer.
    again = await a.request("b", "coordination_request", "ready?", timeout=30, message_id="q-1")
    assert (again.payload, again.id) == (first.payload, first.id)
