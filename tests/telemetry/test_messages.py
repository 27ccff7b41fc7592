"""Spans of messages: names, kinds, attributes, links, parents and errors, by the conventions for messaging."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

import agentbus
from agentbus import Agent, Bus, Message, Unit, telemetry
from agentbus.core.logs import JSONFormatter
from agentbus.core.validation import MAX_HEADERS
from agentbus.errors import UnknownRecipient
from tests.api.helpers import running, take, take_all
from tests.conftest import Engine
from tests.support.traces import OTHER, Recorded, linked, parent_of, text_of

SECRET = "s3cr3t"


async def worker(bus: Bus, id: str, **options: Any) -> Agent:
    return await bus.register(id, type="worker", **options)


def facts(span: Any) -> tuple[str, str, str]:
    return span.name, span.kind.name, span.attributes["messaging.operation.type"]


async def test_a_message_is_one_trace_from_its_sender_through_its_handler(bus: Bus, recorded: Recorded) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b", pools=["builders"])
    await a.send("pool:builders", "note", {"password": SECRET}, correlation="thread-1", message_id="job-1")
    async with await take(b) as unit:
        unit.send("a", "note", SECRET)
    sent, received, processed, answered = recorded.spans()
    assert [facts(span) for span in (sent, received, processed, answered)] == [
        ("send pool:builders", "PRODUCER", "send"),
        ("receive pool:builders", "CLIENT", "receive"),
        ("process pool:builders", "CONSUMER", "process"),
        ("send agent:{id}", "PRODUCER", "send"),
    ]
    common = {
        "messaging.system": "agentbus",
        "messaging.destination.name": "pool:builders",
        "messaging.message.id": "job-1",
        "messaging.message.conversation_id": "thread-1",
        "messaging.message.body.size": 21,
        "agentbus.message.type": "note",
    }
    consuming = {**common, "messaging.consumer.group.name": "builders"}
    assert sent.attributes == {**common, "messaging.operation.name": "send", "messaging.operation.type": "send"}
    operation = {"messaging.operation.name": "receive", "messaging.operation.type": "receive"}
    assert received.attributes == {**consuming, **operation}
    assert processed.attributes == {
        **consuming, "messaging.operation.name": "process", "messaging.operation.type": "process",
        "agentbus.message.attempt": 1, "agentbus.lease.age": 0.0,
    }  # fmt: skip
    assert "messaging.destination.name" not in answered.attributes, "the names of agents have no bound"
    assert answered.attributes["messaging.destination.template"] == "agent:{id}"
    # The claim is a call of its own, and links to what it got. The handler continues the trace.
    assert linked(received) == linked(processed) == [sent.context.span_id]
    assert (sent.parent, received.parent) == (None, None)
    assert (parent_of(processed), parent_of(answered)) == (text_of(sent), text_of(processed))
    assert (await take(a)).headers == {"traceparent": text_of(answered)}
    assert SECRET not in "".join(span.to_json() for span in (sent, received, processed, answered))


@pytest.mark.one_engine
async def test_a_batch_is_one_span_and_the_context_of_a_caller_stays(bus: Bus, recorded: Recorded) -> None:
    a = await worker(bus, "a", pools=["p"])
    given = {"traceparent": OTHER, "tracestate": "x=1", "k": "v"}
    full = {"k": "v" * (MAX_HEADERS - 10)}
    await a.send_many([
        ("a", "note", 1), ("pool:p", "note", 2), {"to": "a", "type": "note", "headers": given},
        {"to": "a", "type": "note", "headers": {"k": "v"}}, {"to": "a", "type": "note", "headers": full},
    ])  # fmt: skip
    sent = recorded.span("send")
    assert sent.attributes["messaging.batch.message_count"] == 5
    assert not [name for name in sent.attributes if "destination" in name or name.endswith("message.id")]
    own = {"traceparent": text_of(sent)}
    assert [message.headers for message in sorted(await take_all(a), key=lambda message: message.id)] == [
        own, own, given, {"k": "v", **own}, full,
    ]  # fmt: skip
    assert [f"{link.context.span_id:016x}" for link in sent.links] == [OTHER.split("-")[2]]
    received = recorded.span("receive")
    assert linked(received) == [sent.context.span_id, sent.links[0].context.span_id]


@pytest.mark.one_engine
async def test_an_error_is_named_by_its_code_and_not_by_its_text(bus: Bus, recorded: Recorded) -> None:
    a = await worker(bus, "a")
    with pytest.raises(UnknownRecipient):
        await a.send(SECRET, "note")
    refused = recorded.span("send agent:{id}")
    assert (refused.status.status_code.name, refused.status.description) == ("ERROR", None)
    assert refused.attributes["error.type"] == "unknown_recipient"
    await a.send("a", "note")
    with pytest.raises(KeyError):
        async with await take(a):
            raise KeyError(SECRET)
    spans = recorded.spans()
    assert [(span.name, span.attributes.get("error.type")) for span in spans] == [
        ("send agent:{id}", None), ("receive agent:{id}", None), ("process agent:{id}", "KeyError"),
        ("nack agent:{id}", None),
    ]  # fmt: skip
    assert not any(span.events for span in spans), "an event would hold the text of the exception"
    assert SECRET not in "".join(span.to_json() for span in (refused, *spans))


@pytest.mark.one_engine
async def test_settling_has_spans_on_every_way(bus: Bus, recorded: Recorded) -> None:
    a = await worker(bus, "a", topics=["news"])
    for _ in range(5):
        await a.publish("news", "note")
    first, second, third, *rest = await take_all(a)
    await first.ack()
    await second.nack(delay=1)
    await third.reject("no")
    await a.ack(rest)
    visitor = await bus.register_visitor("v", type="worker", pools=["p"])
    await a.send("pool:p", "note")
    (delivery,) = await visitor.receive()
    await visitor.ack(str(delivery.lease))
    settled = [span for span in recorded.spans() if span.attributes["messaging.operation.type"] == "settle"]
    assert [(span.name, span.kind.name, len(span.links)) for span in settled] == [
        ("ack topic:news", "CLIENT", 1), ("nack topic:news", "CLIENT", 1), ("reject topic:news", "CLIENT", 1),
        ("ack topic:news", "CLIENT", 2), ("ack pool:p", "CLIENT", 0),
    ]  # fmt: skip
    assert settled[0].attributes["messaging.message.id"] == first.message_id
    assert settled[3].attributes["messaging.batch.message_count"] == 2


@pytest.mark.one_engine
async def test_a_request_and_its_reply_are_one_trace_under_the_span_of_the_caller(bus: Bus, recorded: Recorded) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")

    async def answer(message: Message, unit: Unit) -> None:
        unit.reply(message, "note", 2)

    with recorded.provider.get_tracer("program").start_as_current_span("work") as work:
        assert telemetry.current_ids() == tuple(text_of(work).split("-")[1:3])
        assert telemetry.environment() == {"TRACEPARENT": text_of(work)}
        line = json.loads(JSONFormatter().format(logging.makeLogRecord({"msg": "x"})))
        assert (line["trace_id"], line["span_id"]) == telemetry.current_ids()
        async with running(b.serve(answer)):
            reply = await a.request("b", "note", 1, timeout=30)
    spans = {span.name: span for span in recorded.spans() if span.name.startswith(("send", "process"))}
    asked, replied = spans["send agent:{id}"], spans["send replies:{id}"]
    assert parent_of(asked) == text_of(work)
    assert parent_of(replied) == text_of(spans["process agent:{id}"])
    assert reply.headers == {"traceparent": text_of(replied)}
    assert {span.context.trace_id for span in spans.values()} == {work.get_span_context().trace_id}
    assert telemetry.current_ids() is None


@pytest.mark.one_engine
def test_the_blocking_api_continues_the_trace_of_its_thread(engine: Engine, recorded: Recorded) -> None:
    tracer = recorded.provider.get_tracer("program")
    with (
        agentbus.sync.connect(engine.url) as bus,
        bus.agent("a", type="worker", pools=["p"]) as agent,
        tracer.start_as_current_span("work") as work,
    ):
        agent.send("pool:p", "note", 1)
        message = agent.receive(timeout=0)
        assert message is not None
        with message:
            agent.send("a", "note", 2)
        assert telemetry.environment() == {"TRACEPARENT": text_of(work)}, "the block has left nothing behind"
    spans = {span.name: span for span in recorded.spans()}
    assert parent_of(spans["send pool:p"]) == text_of(work)
    assert parent_of(spans["process pool:p"]) == text_of(spans["send pool:p"])
    assert parent_of(spans["send agent:{id}"]) == text_of(spans["process pool:p"])


@pytest.mark.one_engine
async def test_a_block_that_another_task_leaves_ends_its_span(bus: Bus, recorded: Recorded, caplog: Any) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a)
    entered = asyncio.create_task(message.__aenter__())
    await entered
    await message.__aexit__(None, None, None)
    assert recorded.span("process agent:{id}").status.is_ok
    assert not caplog.records


async def test_operations_are_counted_and_the_bus_is_observed(bus: Bus, recorded: Recorded) -> None:
    tracer = agentbus.core.tracer
    assert tracer is not None
    await tracer.opened(bus)
    a = await worker(bus, "a", pools=["p"])
    await a.send_many([("pool:p", "note", n) for n in range(3)])
    with pytest.raises(UnknownRecipient):
        await a.send("nowhere", "note")
    async with await take(a):
        pass
    await bus.tasks.add("review")
    # Readers have threads of their own; the event loop collects for them.
    found = await asyncio.to_thread(recorded.metrics)
    pool = {"messaging.system": "agentbus", "messaging.destination.name": "pool:p"}
    sending = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    refused = {
        "messaging.system": "agentbus", "messaging.destination.template": "agent:{id}", **sending,
        "error.type": "unknown_recipient",
    }  # fmt: skip
    assert found["messaging.client.sent.messages"] == [({**pool, **sending}, 3), (refused, 1)]
    assert [(one["messaging.operation.name"], n) for one, n in found["messaging.client.operation.duration"]] == [
        ("send", 1), ("send", 1), ("receive", 1), ("ack", 1),
    ]  # fmt: skip
    assert [value for _, value in found["messaging.client.consumed.messages"]] == [1]
    assert [value for _, value in found["messaging.process.duration"]] == [1]
    depth = {tuple(sorted(one.items()))[1:]: n for one, n in found["agentbus.queue.messages"]}
    assert depth[("kind", "pool"), ("pool", "p"), ("status", "queued")] == 2
    assert {one["status"]: n for one, n in found["agentbus.tasks"]}["pending"] == 1
    ((_, batches),) = found["agentbus.write.batch_calls.count"]
    assert batches >= 4
    assert "agentbus.write.commit.sum" in found
    assert "agentbus.approvals.oldest" in found
    # Each reader collects again, and nothing is observed any more once the bus is closed.
    await a.send("pool:p", "note")
    again = await asyncio.to_thread(recorded.metrics)
    assert 3 in [n for one, n in again["agentbus.queue.messages"] if one.get("pool") == "p"]
    tracer.closed(bus)
    assert "agentbus.tasks" not in await asyncio.to_thread(recorded.metrics)
