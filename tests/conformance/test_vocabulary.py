"""The vocabulary: types of agents and messages are known names, built in or defined."""

from __future__ import annotations

import asyncio

import pytest

from agentbus import Bus
from agentbus.errors import InvalidName, OutOfRange, UnknownType
from tests.conformance.helpers import count, known, take, worker
from tests.conftest import Engine

AGENTS = [
    "milestone-coordinator", "milestone-executor", "milestone-planner", "scope-analyzer", "estimation-agent",
    "risk-assessor", "coordinator", "planner", "executor", "reviewer", "tester", "worker",
]  # fmt: skip
MESSAGES = [
    "task_assignment", "progress_update", "coordination_request", "coordination_response", "validation_result",
    "error_report", "completion_notification", "approval_request", "approval_decision", "control", "note",
]  # fmt: skip


async def test_every_built_in_type_is_known(bus: Bus) -> None:
    for type in AGENTS:
        await bus.register(f"an-{type}", type=type)
        assert (await known(bus, f"an-{type}")).type == type
    a = await worker(bus, "a")
    await a.send_many(("a", type) for type in MESSAGES)
    assert await count(bus) == len(MESSAGES)


async def test_an_unknown_message_type_is_an_error_that_names_near_ones(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(UnknownType) as unknown:
        await a.send("a", "task_asignment")
    assert (unknown.value.code, unknown.value.kind, unknown.value.name) == ("unknown_type", "message", "task_asignment")
    assert "task_assignment" in str(unknown.value)
    assert "define" in (unknown.value.fix or "")
    assert await count(bus) == 0
    await a.send("a", "task_assignment")


async def test_kinds_do_not_mix(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(UnknownType):
        await a.send("a", "worker")
    with pytest.raises(UnknownType):
        await bus.register("b", type="note")


async def test_a_defined_type_can_be_used(bus: Bus) -> None:
    await bus.define("deploy_request", description="please deploy this")
    await bus.define("deployer", kind="agent")
    a = await bus.register("a", type="deployer")
    await a.send("a", "deploy_request", 1)
    assert (await take(a)).type == "deploy_request"


async def test_a_defined_type_is_known_to_others_and_after_reopening(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        await bus.define("deploy_request")
        a = await worker(other, "a")
        await a.send("a", "deploy_request")
    async with engine.connect() as bus:
        a = await worker(bus, "b")
        await a.send("b", "deploy_request")


async def test_a_misspelt_own_type_is_told_the_right_one(bus: Bus) -> None:
    await bus.define("deploy_request")
    a = await worker(bus, "a")
    with pytest.raises(UnknownType, match="deploy_request"):
        await a.send("a", "deploy_requests")


async def test_defining_again_is_harmless(bus: Bus) -> None:
    for description in ("", "first", "second"):
        await bus.define("deploy_request", description=description)
    await bus.define("note", description="built in")
    await asyncio.gather(*(bus.define("other") for _ in range(10)))
    a = await worker(bus, "a")
    await a.send("a", "other")


async def test_what_cannot_be_a_type_is_refused(bus: Bus) -> None:
    for name in ("", "two words", "x" * 129, "nul\0", "ünï"):
        with pytest.raises(InvalidName):
            await bus.define(name)
    with pytest.raises(OutOfRange):
        await bus.define("x", kind="session")  # type: ignore[arg-type]
    for description in ("nul \0", "lone \ud800", "x" * 200_000):
        with pytest.raises(OutOfRange):
            await bus.define("x", description=description)
    a = await worker(bus, "a")
    with pytest.raises(UnknownType):
        await a.send("a", "x")
