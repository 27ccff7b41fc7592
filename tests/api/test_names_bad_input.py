"""Names outside ``[A-Za-z0-9._:@/-]{1,128}`` are refused in every argument."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

import agentbus
from agentbus import Agent, Bus
from agentbus.errors import InvalidInput, InvalidName, UnknownRecipient
from tests.api.helpers import known, refusing, take, worker
from tests.api.invalid_names import BAD, NOT_TEXT, some
from tests.api.refusals import refused_each
from tests.support.cases import each

GOOD = ["a", "A-Z_0.9:@/", "x" * 128, "-", "..", "1", "agent@host:8080/path"]

Use = Callable[[Bus, Agent, Any], Awaitable[object]]


USES: dict[str, Use] = {
    "agent": lambda bus, a, name: bus.register(name, type="worker"),
    "agent type": lambda bus, a, name: bus.register("b", type=name),
    "expected agent": lambda bus, a, name: bus.expect(name, type="worker"),
    "session of an agent": lambda bus, a, name: bus.register("b", type="worker", session=some(name)),
    "pool of an agent": lambda bus, a, name: bus.register("b", type="worker", pools=["good", name]),
    "topic of an agent": lambda bus, a, name: bus.register("b", type="worker", topics=[name]),
    "recipient": lambda bus, a, name: a.send(name, "note"),
    "message type": lambda bus, a, name: a.send("a", name),
    "message_id": lambda bus, a, name: a.send("a", "note", message_id=some(name)),
    "correlation": lambda bus, a, name: a.send("a", "note", correlation=some(name)),
    "session": lambda bus, a, name: a.send("a", "note", session=some(name)),
    "topic": lambda bus, a, name: a.publish(name, "note"),
    "recipient of a request": lambda bus, a, name: a.request(name, "note", timeout=5),
    "joined pool": lambda bus, a, name: a.join(name),
    "left pool": lambda bus, a, name: a.leave(name),
    "subscribed topic": lambda bus, a, name: a.subscribe(name),
    "unsubscribed topic": lambda bus, a, name: a.unsubscribe(name),
    "looked up agent": lambda bus, a, name: bus.agents.get(name),
    "updated agent": lambda bus, a, name: bus.agents.update(name, load=5),
    "deleted agent": lambda bus, a, name: bus.agents.delete(name),
    "capability": lambda bus, a, name: bus.agents.find(name),
    "looked up message": lambda bus, a, name: bus.messages.get(name),
    "requeued message": lambda bus, a, name: bus.messages.requeue(name),
    "recipient of listed messages": lambda bus, a, name: bus.messages.list(to=some(name)),
    **{
        f"{given} of listed agents": partial(lambda given, bus, a, name: bus.agents.list(**{given: some(name)}), given)
        for given in ("type", "session", "parent", "cursor")
    },
    **{
        f"{given} of listed messages": partial(
            lambda given, bus, a, name: bus.messages.list(**{given: some(name)}), given
        )
        for given in ("type", "session", "correlation")
    },
    "defined type": lambda bus, a, name: bus.define(name),
}


@pytest.mark.one_engine
@each("use", USES)
async def test_an_invalid_name_is_refused_everywhere(bus: Bus, use: str) -> None:
    a = await worker(bus, "a", takeover=True)
    for refused in await refused_each(bus, a, InvalidName, partial(USES[use], bus, a), [*BAD, *NOT_TEXT]):
        assert refused.code == "invalid_name"
        assert "128" in (refused.fix or "")


@pytest.mark.parametrize("make", [agentbus.pool, agentbus.topic])
def test_an_address_with_a_bad_name_cannot_be_made(make: Callable[[Any], agentbus.Address]) -> None:
    for name in [*BAD, *NOT_TEXT]:
        with pytest.raises(InvalidName):
            make(name)


@pytest.mark.one_engine
async def test_an_address_built_by_the_caller_is_accepted(bus: Bus) -> None:
    a = await worker(bus, "a", pools=["p"])
    await a.send(agentbus.Address("agent", "a"), "note", 1)
    await a.send(agentbus.Address("pool", "p"), "note", 2)
    assert [(await take(a)).payload for _ in range(2)] == [1, 2]


@pytest.mark.one_engine
async def test_an_address_built_by_the_caller_is_checked_too(bus: Bus) -> None:
    a = await worker(bus, "a")
    make: Any = agentbus.Address
    for kind in ("bus", "replies", "subscription", "operator", "", None):
        async with refusing(bus, a, (InvalidInput, UnknownRecipient)):
            await a.send(make(kind, "a"), "note")
    for kind in ("agent", "pool", "topic"):
        async with refusing(bus, a, (InvalidName, UnknownRecipient)):
            await a.send(make(kind, "two words"), "note")


@each("name", GOOD)
async def test_every_allowed_name_works_everywhere(bus: Bus, name: str) -> None:
    b = await bus.register(name, type="worker", pools=[name], topics=[name], capabilities=[name], parent=name)
    await b.send(name, "note", 1, message_id=name, correlation=name, session=name)
    message = await take(b)
    assert (message.recipient, message.message_id, message.correlation, message.session) == (name,) * 4
    await b.send(agentbus.pool(name), "note")
    await b.publish(name, "note")
    assert [(await take(b)).recipient for _ in range(2)] == [f"pool:{name}", f"topic:{name}"]
    assert (await known(bus, name)).capabilities == [name]


@pytest.mark.one_engine
async def test_one_text_is_not_a_list_of_names(bus: Bus) -> None:
    a = await worker(bus, "a")
    for options in ({"pools": "executors"}, {"topics": "plans"}, {"capabilities": "python"}):
        async with refusing(bus, a, InvalidName):
            await bus.register("b", type="worker", **options)  # type: ignore[arg-type]


async def test_the_error_of_an_unknown_recipient_names_similar_ones(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.expect("executor-1", type="worker")
    async with refusing(bus, a, UnknownRecipient) as refused:
        await a.send("executer-1", "note")
    assert refused.value.code == "unknown_recipient"
    assert (refused.value.kind, refused.value.name) == ("agent", "executer-1")
    assert "executor-1" in str(refused.value)
    assert "expect" in (refused.value.fix or "")


async def test_the_error_of_an_unknown_recipient_names_one_of_another_kind(bus: Bus) -> None:
    a = await worker(bus, "a", pools=["executors"])
    for to, meant in (("executors", "pool:executors"), ("topic:executors", "pool:executors"), ("pool:a", "a"),
                      ("pool:executers", "pool:executors")):  # fmt: skip
        async with refusing(bus, a, UnknownRecipient) as refused:
            await a.send(to, "note")
        assert f"; did you mean {meant}? (" in str(refused.value)


async def test_the_error_of_an_unknown_recipient_without_similar_ones_has_no_suggestion(bus: Bus) -> None:
    a = await worker(bus, "a")
    async with refusing(bus, a, UnknownRecipient) as refused:
        await a.send("zzzzzz", "note")
    assert "did you mean" not in str(refused.value)
