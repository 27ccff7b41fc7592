"""Payloads are checked by the sender, outside the lock, also when a schema changes concurrently."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from msgspec import Struct, defstruct

from agentbus import Agent, Bus
from agentbus.api.sending import PayloadChecker, Problems
from agentbus.core.jsonschema import Schema, payload_error
from agentbus.errors import InvalidPayload, TypeChanging
from agentbus.operations.rows import Draft
from tests.api.helpers import count, known, nothing_for, refusing, soon, stored, take, take_all, worker
from tests.conftest import Engine

WHOLE = {"type": "integer"}
TEXT = {"type": "string"}
NAMES = {"items": {"type": "string"}}
LARGE = ["a name"] * 10_000
"""So large that it is checked on a thread."""


class Plan(Struct):
    files: int


OtherPlan = defstruct("Plan", [("files", int), ("owner", str, "nobody")])


class Watch:
    """Sees every check of a payload, and can make it wait."""

    def __init__(self) -> None:
        self.checks = 0
        self.locked = 0
        self.begun = threading.Event()
        self.resume = threading.Event()
        self.resume.set()

    def see(self) -> None:
        self.checks += 1
        self.locked += any(
            "/agentbus/engine/" in frame.f_code.co_filename for frame, _ in traceback.walk_stack(sys._getframe())
        )
        self.begun.set()
        assert self.resume.wait(20)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    watch = Watch()
    original = Schema.violation

    def violation(self: Schema, value: Any) -> tuple[str, str] | None:
        watch.see()
        return original(self, value)

    monkeypatch.setattr(Schema, "violation", violation)
    yield watch
    watch.resume.set()


def attempts_of(monkeypatch: pytest.MonkeyPatch, agent: Agent) -> list[str]:
    """Return the types that the agent looks up in the database, in order."""
    attempts: list[str] = []
    original = agent._write

    def write(operation: Any, request: Any, **options: Any) -> Any:
        attempts.append(operation.name)
        return original(operation, request, **options)

    monkeypatch.setattr(agent, "_write", write)
    return attempts


# Never under the lock


@pytest.mark.parametrize("durability", ["disk", "process"])
async def test_nothing_is_checked_under_the_lock(engine: Engine, watch: Watch, durability: str) -> None:
    async with engine.connect(durability=durability) as bus, engine.connect() as other:
        a = await worker(bus, "a", pools=["p"], topics=["t"])
        await other.define("names", schema=NAMES)
        for payload in (["a"], LARGE):
            await a.send("a", "names", payload)
            await a.send_many([("a", "names", payload), ("pool:p", "names", payload)])
            await a.publish("t", "names", payload)
            async with a.unit() as unit:
                unit.send("a", "names", payload)
                unit.send("a", Plan(1))
            async with await take(a) as unit:
                unit.send("a", "names", payload)
            await (await take(a)).reply("names", payload)
            with pytest.raises(InvalidPayload):
                await a.send("a", "names", [*payload, 1])
            await other.define("names", schema={**NAMES, "title": "changed"})
        assert (watch.checks > 14, watch.locked) == (True, 0)


def test_the_detector_of_checks_under_the_lock_works() -> None:
    watch = Watch()
    namespace: dict[str, Any] = {"see": watch.see}
    exec(compile("see()", "/anywhere/agentbus/engine/sqlite/transaction.py", "exec"), namespace)  # noqa: S102
    assert (watch.checks, watch.locked) == (1, 1)


@pytest.mark.one_engine
async def test_a_long_check_blocks_no_other_caller(engine: Engine, watch: Watch) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a, b, c = await worker(bus, "a"), await worker(bus, "b"), await worker(other, "c")
        await bus.define("names", schema=NAMES)
        watch.resume.clear()
        long = asyncio.create_task(a.send("a", "names", LARGE))
        assert await asyncio.to_thread(watch.begun.wait, 10)
        await soon(b.send("b", "note"))
        await soon(c.send("c", "note"))
        assert not long.done()
        watch.resume.set()
        await soon(long)
        assert (await take(a)).payload == LARGE


async def test_a_send_cancelled_during_its_check_has_sent_nothing(bus: Bus, watch: Watch) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await bus.define("names", schema=NAMES)
    await a.send("a", "note")

    async def in_a_unit() -> None:
        async with await take(a) as unit:
            unit.send("b", "names", LARGE)

    for sending in (in_a_unit(), b.send("b", "names", LARGE)):
        watch.begun.clear()
        watch.resume.clear()
        task = asyncio.create_task(sending)
        assert await asyncio.to_thread(watch.begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(task)
        watch.resume.set()
    assert await nothing_for(b)
    assert (await take(a)).attempts == 1, "its attempt did not count"
    await soon(b.send("b", "names", LARGE))


@pytest.mark.one_engine
async def test_many_small_checks_do_not_block_the_loop(bus: Bus, watch: Watch) -> None:
    a = await worker(bus, "a")
    await bus.define("names", schema=NAMES)
    sending = asyncio.create_task(a.send_many([("a", "names", ["x" * 9000])] * 100))
    turns = 0
    while watch.checks < 100:
        await asyncio.sleep(0)
        turns += 1
    assert turns > 40
    await sending


# What it costs


async def test_a_type_without_a_schema_or_with_a_known_one_is_sent_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, watch: Watch
) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a = await worker(bus, "a")
        await other.define("plan", schema=WHOLE)
        attempts = attempts_of(monkeypatch, a)
        await a.send("a", "note", 1)
        assert (len(attempts), watch.checks) == (1, 0)
        await a.send("a", "plan", 1)
        assert (len(attempts), watch.checks) == (3, 1), "the first learns of the schema"
        await a.send("a", "plan", 2)
        assert (len(attempts), watch.checks) == (4, 2)
        await a.send("a", Plan(1))
        await a.send("a", Plan(2))
        assert (attempts[4:], watch.checks) == (["unit", "send"], 4)


# A schema that another process defined


async def test_a_schema_that_another_changed_holds_at_once(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a = await worker(bus, "a")
        await bus.define("plan", schema=WHOLE)
        await a.send("a", "plan", 1)
        await other.define("plan", schema=TEXT)
        async with refusing(bus, a, InvalidPayload) as refused:
            await a.send("a", "plan", 2)
        assert (refused.value.type, refused.value.path, refused.value.item) == ("plan", "$", 0)
        assert "must be a string" in str(refused.value)
        await other.define("plan", schema=WHOLE)
        await a.send("a", "plan", 3)
        await other.define("plan", schema=TEXT)
        await a.send("a", "plan", "what did not fit the schema that was known here")
        assert await count(bus) == 3 + 1  # with that of refusing()


@pytest.mark.parametrize("known_before", [True, False])
async def test_a_list_with_a_bad_one_names_it(engine: Engine, known_before: bool) -> None:
    types = [f"type-{number}" for number in range(20)]
    async with engine.connect() as bus, engine.connect() as other:
        a = await worker(bus, "a")
        for type in types:
            await (bus if known_before else other).define(type, schema={**WHOLE, "title": type})
        messages: list[Any] = [("a", type, number) for number, type in enumerate(types)]
        bad = [*messages]
        bad[13] = ("a", "type-13", "thirteen")
        bad[17] = ("a", "type-17", "seventeen")
        async with refusing(bus, a, InvalidPayload) as refused:
            await a.send_many(bad)
        assert (refused.value.item, refused.value.type) == (13, "type-13")
        await a.send_many(messages)
        assert len(await take_all(a)) == 20


async def test_a_unit_is_written_as_a_whole_once_the_schema_is_known(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a = await worker(bus, "a")
        await other.define("plan", schema=WHOLE)
        await a.send("a", "note")
        message = await take(a)
        with pytest.raises(InvalidPayload) as refused:
            async with message as unit:
                unit.send("a", "note")
                unit.send("a", "plan", "x")
                unit.progress(50)
                unit.state.set("k", 1)
        assert refused.value.item == 1
        assert (await known(bus, "a")).progress == 0
        assert (await a.state.get("k"), await count(bus)) == (None, 1)
        await other.define("plan", schema=TEXT)
        await bus.messages.purge()
        async with a.unit() as unit:
            unit.send("a", "plan", "x")
            unit.progress(50)
        assert (await known(bus, "a")).progress == 50
        assert (await take(a)).payload == "x"
        assert (await stored(bus, message.message_id)).status == "scheduled"


async def test_concurrent_senders_without_the_schema_all_succeed(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        agents = [await worker(bus, f"a-{number}") for number in range(20)]
        await other.define("plan", schema=WHOLE)

        async def in_a_unit(agent: Agent, payload: Any) -> None:
            async with agent.unit() as unit:
                unit.send(agent.id, "plan", payload)
                unit.progress(50)

        payloads: list[Any] = [n if n % 3 else "x" for n in range(20)]
        both = zip(agents, payloads, strict=True)
        outcomes = await asyncio.gather(
            *(in_a_unit(a, payload) if n % 2 else a.send(a.id, "plan", payload) for n, (a, payload) in enumerate(both)),
            return_exceptions=True,
        )
        assert [isinstance(outcome, InvalidPayload) for outcome in outcomes] == [n % 3 == 0 for n in range(20)]
        assert [await nothing_for(agent) for agent in agents] == [n % 3 == 0 for n in range(20)]


async def test_a_reply_and_a_request_learn_of_a_schema_too(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a, b = await worker(bus, "a"), await worker(other, "b")
        await bus.define("question", schema=WHOLE)
        await other.define("answer", schema=TEXT)

        async def answer() -> None:
            message = await b.receive()
            assert message is not None
            with pytest.raises(InvalidPayload):
                await message.reply("question", "x")
            async with message as unit:
                unit.reply(message, "answer", "yes")

        answering = asyncio.create_task(answer())
        assert (await soon(a.request("b", "question", 1, timeout=60))).payload == "yes"
        await answering


async def test_to_learn_a_schema_defines_nothing(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a, b = await worker(bus, "a"), await worker(other, "b")
        await a.send("a", Plan(1))
        await b.send("a", OtherPlan(files=2))
        defined = await bus.types()
        await a.send("a", Plan(3))
        await a.send("a", "plan", {"files": 4})
        assert await bus.types() == defined
        # Nor does one whose knowledge is old bring the old schema back.
        await other.define("plan", schema={})
        defined = await bus.types()
        await a.send("a", Plan(5))
        async with b.unit() as unit:
            unit.send("a", OtherPlan(files=6))
        assert await bus.types() == defined
        assert [message.payload.files for message in await take_all(a)] == [1, 2, 3, 4, 5, 6]


async def test_two_forms_of_a_type_can_be_sent_for_the_first_time_together(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send_many([("a", Plan(1)), ("a", OtherPlan(files=2)), ("a", Plan(3))])
    assert [message.raw["files"] for message in await take_all(a)] == [1, 2, 3]


async def test_a_schema_that_changes_all_the_time_is_a_named_error(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        a = await worker(bus, "a")
        original = PayloadChecker.check
        changes = 0

        async def checked(self: PayloadChecker, drafts: Sequence[Draft]) -> tuple[tuple[Draft, ...], Problems]:
            nonlocal changes
            result = await original(self, drafts)
            if drafts[0].type == "plan" and changes < 100:
                changes += 1
                await other.define("plan", schema={"title": f"{changes}"})
            return result

        await other.define("plan", schema=WHOLE)
        monkeypatch.setattr(PayloadChecker, "check", checked)
        async with refusing(bus, a, TypeChanging) as refused:
            await a.send("a", "plan", 1)
        assert refused.value.type == "plan"
        assert 1 < changes < 10
        changes = 98
        await a.send("a", "plan", 1)


def test_a_schema_that_cannot_be_used_is_a_named_error() -> None:
    error = payload_error("plan", "1", '{"minimun":1}')
    assert error is not None
    assert (error.code, error.type) == ("invalid_schema", "plan")
    assert "minimun" in str(error)
