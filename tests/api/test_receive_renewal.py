"""Lease renewal: by a task of the bus, for as long as a handler works."""

from __future__ import annotations

import asyncio
import importlib.util
import os
from typing import Any

import anyio
import pytest

import agentbus
from agentbus import Message, Task, Unit, pool
from tests.api.helpers import eventually, nothing_for, running, soon, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock


def needs_sniffio() -> None:
    """Fail where sniffio is not installed, unless the matrix of versions says that it is left out."""
    if os.environ.get("AGENTBUS_TEST_WITHOUT") == "sniffio":
        pytest.skip("the oldest versions are tested without sniffio")
    assert importlib.util.find_spec("sniffio") is not None, "install agentbus[dev]"


@pytest.mark.one_engine
def test_leases_are_renewed_where_sniffio_is_installed(engine: Engine, clock: FakeClock) -> None:
    """Under asyncio.run, as users start it: anyio's own runner and its pytest plugin tell sniffio what runs."""
    needs_sniffio()
    seen: list[int] = []

    async def main() -> None:
        gate = asyncio.Event()

        async def handle(message: Message, unit: Unit) -> None:
            seen.append(message.attempts)
            await gate.wait()

        async with engine.connect() as bus:
            a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
            await a.send(pool("p"), "note")
            async with running(a.serve(handle, lease=10)):
                await clock.pass_time(100)
                assert await nothing_for(b)
                gate.set()
                await clock.settle()
            assert (await bus.stats()).messages == {"acked": 1}

    asyncio.run(main())
    assert seen == [1]


@pytest.mark.one_engine
def test_tasks_time_out_wait_and_end_where_sniffio_is_installed(engine: Engine, clock: FakeClock) -> None:
    """Everything that a timer or another callback of the event loop does to a task."""
    needs_sniffio()

    @agentbus.workflow("slow")
    async def slow(task: Task) -> str:
        with anyio.move_on_after(1000):
            try:
                await task.step("hangs", asyncio.Event().wait, timeout=5)
            except agentbus.errors.StepFailed as error:
                verdict = await task.approval("continue", show=str(error))
                return f"{verdict.approved}"
        return "?"

    async def main() -> None:
        async with engine.connect() as bus:
            task = (await bus.tasks.start(slow)).id
            async with running(bus.tasks.run_worker(slow, lease=3)):
                await clock.pass_time(20)
                record = await bus.tasks.get(task)
                assert record is not None
                assert record.status == "waiting"
                await bus.tasks.approve(task, by="ada")
                assert await bus.tasks.result(task, timeout=10) == "True"

    asyncio.run(main())


async def test_renewal_continues_after_a_store_that_did_not_answer(
    bus: agentbus.Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send(pool("p"), "note")
    gate = asyncio.Event()
    handled: list[int] = []

    async def handle(message: Message, unit: Unit) -> None:
        await gate.wait()
        handled.append(message.attempts)

    async with running(a.serve(handle, lease=10)):
        await clock.settle()
        write = bus._engine.write

        def fails(*arguments: object, **options: object) -> None:
            raise RuntimeError("not now")

        monkeypatch.setattr(bus._engine, "write", fails)
        clock.advance(4)
        for _ in range(20):
            await asyncio.sleep(0)
        monkeypatch.setattr(bus._engine, "write", write)
        await clock.pass_time(100)
        assert await nothing_for(b)
        gate.set()
        await eventually(clock, lambda: handled == [1])


async def test_a_worker_outlives_any_failure_to_renew(
    bus: agentbus.Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gate = asyncio.Event()
    begun: list[int] = []

    @agentbus.workflow("long")
    async def long(task: Task) -> str:
        async def waits() -> str:
            begun.append(1)
            await gate.wait()
            return "done"

        return await task.step("waits", waits)

    task = (await bus.tasks.start(long)).id
    write = bus._engine.write
    failing = [RuntimeError("not now"), agentbus.errors.StoreError(path="bus", reason="not now")]

    def fails(operation: Any, *arguments: Any, **options: Any) -> Any:
        if operation.name == "renew_tasks" and failing:
            raise failing.pop()
        return write(operation, *arguments, **options)

    monkeypatch.setattr(bus._engine, "write", fails)
    async with running(bus.tasks.run_worker(long, lease=30)), running(bus.tasks.run_worker(long, lease=30)):
        await eventually(clock, lambda: bool(begun))
        await clock.pass_time(100)
        gate.set()
        assert await soon(bus.tasks.result(task)) == "done"
    assert (failing, begun) == ([], [1])
    assert caplog.text.count("could not renew leases") == 2
