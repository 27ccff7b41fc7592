"""A bus that outgrows one file says so: by how long writers wait, by how many they are, by its size. Each bound can be
set, and a server is never told."""

from __future__ import annotations

import threading
from contextlib import AsyncExitStack
from typing import Any

import anyio
import anyio.to_thread
import pytest

import agentbus
from agentbus import Bus
from agentbus.api.overview import CapacityLimits, capacity_limits, capacity_warnings
from agentbus.errors import InvalidInput, OutOfRange
from agentbus.operations.capacity import WriterLoad
from agentbus.records import Check
from tests.api.helpers import worker
from tests.conftest import Engine
from tests.faults.rows import lock_held
from tests.support.clock import FakeClock
from tests.support.processes import eventually

MANY = {"waits": 1e9, "writers": 1e9, "size": 1e18}


async def room(bus: Bus, **given: float) -> Check:
    (check,) = [check for check in await bus.doctor(outgrown={**MANY, **given}) if check.name == "room"]
    return check


def warns(check: Check, bus: Bus, why: str) -> None:
    assert check.status == "warning"
    assert why in check.text
    command = f"agentbus copy {bus._engine.directory} postgresql://…"
    assert check.fix is not None
    assert check.fix.endswith(command)


async def wait_for_the_lock(bus: Bus, clock: FakeClock) -> None:
    """Another process writes; this one waits, and reports it with its next heartbeat."""
    agent = await worker(bus, "a", takeover=True)
    async with anyio.create_task_group() as tasks:
        with lock_held(bus._engine.directory):
            tasks.start_soon(agent.send, "a", "note")
            await anyio.to_thread.run_sync(eventually, _waits, "it waits")
            await anyio.sleep(0.05)
    await clock.pass_time(bus._beat_every)


def _waits() -> bool:
    return "agentbus-lock" in {thread.name for thread in threading.enumerate()}


async def test_a_bus_that_is_alone_has_room(bus: Bus, clock: FakeClock) -> None:
    await worker(bus, "a")
    await clock.pass_time(bus._beat_every)
    check = await room(bus)
    assert (check.status, check.fix) == ("ok", None)
    assert "0.0 s of each minute" in check.text


async def test_contention_among_writers_is_reported(bus: Bus, clock: FakeClock) -> None:
    await wait_for_the_lock(bus, clock)
    # About 50 ms of ten minutes.
    warns(await room(bus, waits=0.002), bus, "writers waited for each other")
    assert (await room(bus, waits=1)).status == "ok"
    await clock.pass_time(11 * 60)
    assert (await room(bus, waits=0.002)).status == "ok", "what was ten minutes ago is forgotten"


async def test_waits_are_stored_after_the_process_ended(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus:
        await wait_for_the_lock(bus, clock)
    async with engine.connect() as bus:
        assert (await room(bus, waits=0.002)).status == "warning"
    assert any(
        check.name == "room" and check.status == "warning"
        for check in await agentbus.doctor(bus._engine.home, clock=clock, outgrown={"waits": 0.002})
    )


async def test_many_processes_are_reported(engine: Engine) -> None:
    async with AsyncExitStack() as stack:
        buses = [await stack.enter_async_context(engine.connect()) for _ in range(3)]
        warns(await room(buses[0], writers=3), buses[0], "3 processes have it open")
        assert (await room(buses[0], writers=4)).status == "ok"


async def test_a_large_database_is_reported(bus: Bus) -> None:
    size = sum(await bus._engine.sizes())
    warns(await room(bus, size=size), bus, "MiB")
    assert (await room(bus, size=size * 10)).status == "ok"


def test_each_bound_is_checked_separately() -> None:
    assert capacity_warnings(WriterLoad(29.9, 31), 4 * 1024**3 - 1, CapacityLimits()) == []
    assert capacity_warnings(WriterLoad(30, 32), 4 * 1024**3, CapacityLimits()) == [
        "writers waited for each other for 30 s of each minute",
        "32 processes have it open",
        "it has 4,096 MiB",
    ]


async def test_bounds_come_from_the_environment(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTBUS_OUTGROWN_WRITERS", "1")
    checks = {check.name: check for check in await bus.doctor()}
    warns(checks["room"], bus, "1 process has it open")
    checks = {check.name: check for check in await bus.doctor(outgrown={"writers": 2})}
    assert checks["room"].status == "ok", "what is given is stronger"
    monkeypatch.setenv("AGENTBUS_OUTGROWN_WRITERS", "many")
    with pytest.raises(OutOfRange, match="AGENTBUS_OUTGROWN_WRITERS"):
        await bus.doctor()


@pytest.mark.parametrize("value", [0, -1, True, "8", float("nan"), None])
def test_a_bound_is_a_number_above_nothing(value: Any) -> None:
    with pytest.raises(OutOfRange):
        capacity_limits({"writers": value})


def test_an_unknown_bound_is_named() -> None:
    with pytest.raises(InvalidInput, match="waits, writers, size"):
        capacity_limits({"readers": 3})
