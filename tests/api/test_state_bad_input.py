"""Invalid input for state: a named error, nothing written, and the bus still works."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from agentbus import Bus, State
from agentbus.errors import (
    AgentBusError,
    InvalidInput,
    InvalidName,
    InvalidPayload,
    OutOfRange,
    PayloadTooLarge,
    ReservedScope,
)
from tests.api.helpers import worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.values import NOT_JSON

NO_KEYS: list[Any] = ["", "two words", "x" * 257, "ü", "nul\0", "a\nb", "50%", "lone \ud800", None, 7, b"k", ["k"]]
NO_SCOPES: list[Any] = ["", "two words", "x" * 129, "ü", "nul\0", "session:", "session:" + "x" * 129, None, 7, b"s"]
NO_SECONDS: list[Any] = [0, -1, float("nan"), float("inf"), 1e12, "60", True, None]
NO_VERSIONS: list[Any] = [-1, 2**63, 1.0, "1", True]


@asynccontextmanager
async def refusing(bus: Bus, expected: type[AgentBusError]) -> AsyncIterator[None]:
    """A block that must raise this error; then nothing may have been written, and the bus must still work."""
    state = bus.state("s")
    await state.set("there", 1)
    before = (await state.list()).items
    with pytest.raises(expected) as refused:
        yield
    assert type(refused.value) is expected
    assert (await state.list()).items == before
    assert await state.increment("there") == 2


def ways(state: State, key: Any) -> list[Callable[[], Any]]:
    """Every call that takes a key."""
    return [
        lambda: state.get(key),
        lambda: state.entry(key),
        lambda: state.set(key, 1),
        lambda: state.delete(key),
        lambda: state.increment(key),
    ]


@pytest.mark.one_engine
@each("key", NO_KEYS, ids=repr)
async def test_invalid_keys_are_refused(bus: Bus, key: Any) -> None:
    for way in ways(bus.state("s"), key):
        async with refusing(bus, InvalidName):
            await way()


@pytest.mark.one_engine
async def test_only_the_bus_writes_into_its_own_scope(bus: Bus) -> None:
    reserved = "agentbus/clients"
    async with refusing(bus, InvalidName):
        await bus.register_visitor(reserved, type="worker")
    for way in ways(bus.state(reserved), "hook/a")[2:]:
        async with refusing(bus, ReservedScope):
            await way()
    agent = await worker(bus, "a")
    async with refusing(bus, ReservedScope), agent.unit() as unit:
        unit.state_of(reserved).set("hook/a", {})


@pytest.mark.one_engine
async def test_the_error_of_an_invalid_key_names_the_rule(bus: Bus) -> None:
    with pytest.raises(InvalidName, match=r"key 'two words' .*1 to 256"):
        await bus.state("s").get("two words")


@each("key", ["k", "x" * 256, "a/b:c@d.e_f-g", "0"])
async def test_valid_keys_are_accepted(bus: Bus, key: str) -> None:
    await bus.state("s").set(key, 1)
    assert await bus.state("s").get(key) == 1


@pytest.mark.one_engine
@each("scope", NO_SCOPES, ids=repr)
async def test_invalid_scopes_are_refused(bus: Bus, scope: Any) -> None:
    async with refusing(bus, InvalidName):
        bus.state(scope)


@pytest.mark.one_engine
async def test_an_agent_cannot_have_the_name_of_a_sessions_scope(bus: Bus) -> None:
    for way in (lambda: bus.register("session:x", type="worker"), lambda: bus.expect("session:x", type="worker")):
        async with refusing(bus, InvalidName):
            await way()


@pytest.mark.one_engine
@each("prefix", ["two words", "x" * 257, "a%", "*", "nul\0", None, 7], ids=repr)
async def test_invalid_prefixes_are_refused(bus: Bus, prefix: Any) -> None:
    async with refusing(bus, InvalidName):
        await bus.state("s").list(prefix)
    async with refusing(bus, InvalidName):
        bus.state("s").watch(prefix)


@pytest.mark.one_engine
@each("cursor", ["", "two words", "x" * 257, 7], ids=repr)
async def test_invalid_cursors_are_refused(bus: Bus, cursor: Any) -> None:
    async with refusing(bus, InvalidName):
        await bus.state("s").list(cursor=cursor)


@pytest.mark.one_engine
@each("limit", [0, -1, 1001, 1.5, "10", True, None], ids=repr)
async def test_invalid_limits_are_refused(bus: Bus, limit: Any) -> None:
    async with refusing(bus, OutOfRange):
        await bus.state("s").list(limit=limit)


@pytest.mark.one_engine
@each("type", ["", "other", "User_Data", None, 7], ids=repr)
async def test_invalid_state_types_are_refused(bus: Bus, type: Any) -> None:
    async with refusing(bus, OutOfRange):
        await bus.state("s").set("k", 1, type=type)


@pytest.mark.one_engine
@each("ttl", NO_SECONDS[:-1], ids=repr)
async def test_invalid_ttls_are_refused(bus: Bus, ttl: Any) -> None:
    async with refusing(bus, OutOfRange):
        await bus.state("s").set("k", 1, ttl=ttl)
    async with refusing(bus, OutOfRange):
        await bus.state("s").increment("k", ttl=ttl)


@pytest.mark.one_engine
@each("version", NO_VERSIONS, ids=repr)
async def test_invalid_versions_are_refused(bus: Bus, version: Any) -> None:
    async with refusing(bus, OutOfRange):
        await bus.state("s").set("k", 1, if_version=version)
    async with refusing(bus, OutOfRange):
        await bus.state("s").delete("there", if_version=version)
    async with refusing(bus, OutOfRange):
        bus.state("s").watch(after=version)


@pytest.mark.one_engine
async def test_values_that_are_not_json_are_refused(bus: Bus) -> None:
    for value in NOT_JSON.values():
        async with refusing(bus, InvalidPayload):
            await bus.state("s").set("k", value)


@pytest.mark.one_engine
async def test_values_that_are_too_large_are_refused(engine: Engine) -> None:
    async with engine.connect(max_payload=1000) as bus:
        async with refusing(bus, PayloadTooLarge):
            await bus.state("s").set("k", "x" * 999)
        await bus.state("s").set("k", "x" * 998)


@pytest.mark.one_engine
@each("by", [float("nan"), float("inf"), 2**63, -(2**63) - 1, "1", True, None, [1]], ids=repr)
async def test_values_that_cannot_be_added_are_refused(bus: Bus, by: Any) -> None:
    async with refusing(bus, OutOfRange):
        await bus.state("s").increment("k", by)


@pytest.mark.one_engine
@each(
    "change",
    [
        lambda unit: unit.state.set("two words", 1),
        lambda unit: unit.state.set("k", float("nan")),
        lambda unit: unit.state.set("k", 1, ttl=0),
        lambda unit: unit.state.set("k", 1, type="other"),
        lambda unit: unit.state.set("k", 1, if_version=-1),
        lambda unit: unit.state.delete(""),
        lambda unit: unit.state.increment("k", "1"),
        lambda unit: unit.state_of("two words"),
        lambda unit: unit.state_of("session:"),
    ],
)
async def test_a_unit_refuses_at_once(bus: Bus, change: Callable[[Any], Any]) -> None:
    a = await worker(bus, "a", takeover=True)
    await a.state.delete("k")
    with pytest.raises(InvalidInput):
        async with a.unit() as unit:
            unit.state.set("good", 1)
            change(unit)
            pytest.fail("it was accepted")
    assert (await a.state.list()).items == []
    await a.state.set("k", 1)
