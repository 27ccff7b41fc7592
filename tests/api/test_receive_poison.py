"""User code that raises a base exception fails itself, and does not end the worker or receiver."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import agentbus
from agentbus import Bus, Message, Task, Unit
from agentbus.core.cancellation import UserCodeExit, await_user_code
from agentbus.errors import StepFailed
from agentbus.records import TaskChange
from tests.api.helpers import eventually, running, soon, stored, worker
from tests.api.task_workers import comes_to, step_of, task_of, work_off, working
from tests.support.cases import each
from tests.support.clock import FakeClock


class Poison(BaseException):
    """An exception of the user's own, which no `except Exception` catches."""


POISONS = [SystemExit(2), KeyboardInterrupt("mine"), GeneratorExit("no generator"), Poison("drink me")]


def named(error: BaseException) -> str:
    return type(error).__name__


@pytest.mark.one_engine
@each("poison", POISONS)
async def test_a_worker_survives_whatever_a_workflow_or_a_step_raises(
    bus: Bus, clock: FakeClock, poison: BaseException
) -> None:
    gate = asyncio.Event()

    def plain() -> None:
        raise poison

    async def coroutine() -> None:
        await asyncio.sleep(0)
        raise poison

    def invalid(result: Any) -> bool:
        raise poison

    @agentbus.workflow("poison")
    async def poisoned(task: Task, where: str) -> str:
        if where == "workflow":
            raise poison
        if where == "validate":
            await task.step("step", lambda: 1, validate=invalid)
        await task.step("step", plain if where == "plain" else coroutine)
        return "unreachable"

    @agentbus.workflow("healthy")
    async def healthy(task: Task) -> str:
        await task.step("waits", gate.wait)
        return "well"

    places = ["workflow", "plain", "coroutine", "validate"]
    async with working(bus, poisoned, healthy, concurrency=8) as working_on:
        well = (await bus.tasks.start(healthy)).id
        await comes_to(bus, clock, well, "running")
        for where in places:
            await bus.tasks.start(poisoned, where, id=f"{where}-{named(poison)}")
        for where in places:
            id = f"{where}-{named(poison)}"
            record = await soon(bus.tasks.wait(id))
            assert record is not None
            assert record.status == "failed"
            assert record.error is not None
            kept = record.error if where == "workflow" else (await step_of(bus, id, "step")).error
            assert kept is not None
            assert (kept.type, kept.message) == (named(poison), str(poison))
        gate.set()
        assert await soon(bus.tasks.result(well)) == "well"
        assert not working_on.done()


@pytest.mark.one_engine
@each("poison", POISONS)
async def test_serve_survives_whatever_a_handler_raises(bus: Bus, clock: FakeClock, poison: BaseException) -> None:
    a, b = await worker(bus, "a", takeover=True), await worker(bus, "b", takeover=True)
    seen: list[str] = []

    def plain(message: Message, unit: Unit) -> None:
        if message.payload == "poison":
            raise poison
        seen.append(message.recipient)

    async def coroutine(message: Message, unit: Unit) -> None:
        await asyncio.sleep(0)
        plain(message, unit)

    async with running(a.serve(plain)) as first, running(b.serve(coroutine, concurrency=2)) as second:
        receipts = [await a.send(to, "note", "poison", max_attempts=1) for to in ("a", "b")]
        for to in ("a", "b"):
            await a.send(to, "note", "well")
        await eventually(clock, lambda: sorted(seen) == ["a", "b"])
        for receipt in receipts:
            record = await stored(bus, receipt.message_id)
            assert (record.status, record.error) == ("dead", f"{named(poison)}: {poison}")
        assert not first.done()
        assert not second.done()


@pytest.mark.one_engine
@each("poison", POISONS)
async def test_callbacks_of_workers_and_monitors_may_raise_anything(
    bus: Bus, clock: FakeClock, poison: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def plain(_: object) -> None:
        raise poison

    async def coroutine(_: object) -> None:
        raise poison

    @agentbus.workflow("simple")
    async def simple(task: Task) -> int:
        await task.phase("only")
        return await task.step("one", lambda: 1)

    task = (await bus.tasks.start(simple)).id
    with caplog.at_level(logging.ERROR):
        await work_off(bus, simple, on_step=plain, on_phase=coroutine, on_task=coroutine)
        assert (await task_of(bus, task)).result == 1
        assert sum("callback failed" in line for line in caplog.messages) >= 3
        caplog.clear()
        for callback in (plain, coroutine):
            await bus.expect(f"{named(poison)}-{callback.__name__}", type="worker", within=1)
            caplog.clear()
            async with bus.monitor(interval=1, on_finding=callback) as monitor:
                await clock.pass_time(5)
                await eventually(clock, lambda: "on_finding failed" in caplog.text)
                sweeps = monitor.sweeps
                await clock.pass_time(2)
                assert monitor.sweeps > sweeps


@pytest.mark.one_engine
async def test_a_failed_step_can_be_handled_by_the_workflow(bus: Bus, clock: FakeClock) -> None:
    """argparse in a step, and a workflow that has another way."""

    def parse() -> None:
        sys.exit("usage: no")

    @agentbus.workflow("handles")
    async def handles(task: Task) -> str:
        try:
            await task.step("parse", parse, retries=1, backoff=0)
        except StepFailed as error:
            return f"{error.facts['type']}: {error.facts['message']} after {error.facts['failures']}"
        return "?"

    changes: list[TaskChange] = []
    task = (await bus.tasks.start(handles)).id
    await work_off(bus, handles, on_step=changes.append)
    assert (await task_of(bus, task)).result == "SystemExit: usage: no after 2"
    assert [change.status for change in changes] == ["running", "retrying", "running", "failed"]


class Untrue(Exception):
    """An exception whose truth cannot be asked for."""

    def __bool__(self) -> bool:
        raise RuntimeError("neither true nor false")


async def test_the_cause_of_an_exception_is_not_asked_for_its_truth() -> None:
    async def code() -> None:
        raise SystemExit(1) from Untrue()

    with pytest.raises(UserCodeExit) as caught:
        await await_user_code(code())
    assert isinstance(caught.value.error, SystemExit)


# Ctrl-C


async def raising() -> None:
    raise KeyboardInterrupt


async def interrupted() -> None:
    signal.raise_signal(signal.SIGINT)


async def in_cleanup() -> None:
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt as error:
        raise SystemExit(1) from error


def exits(*_: object) -> None:
    sys.exit(3)


@pytest.mark.parametrize(
    ("code", "handler", "expected"),
    [
        (raising, signal.default_int_handler, UserCodeExit),
        (interrupted, signal.default_int_handler, KeyboardInterrupt),
        (in_cleanup, signal.default_int_handler, SystemExit),
        (interrupted, exits, SystemExit),
        (raising, exits, UserCodeExit),
    ],
)
def test_an_exception_of_a_signal_handler_is_no_failure_of_the_interrupted_code(
    code: Callable[[], Awaitable[None]], handler: Any, expected: type[BaseException]
) -> None:
    async def main() -> None:
        before = signal.signal(signal.SIGINT, handler)
        try:
            with pytest.raises(expected):
                await await_user_code(code())
        finally:
            signal.signal(signal.SIGINT, before)

    asyncio.run(main())


PROGRAM = """
    import asyncio, contextlib, sys, time
    import agentbus

    async def sleeps():
        print("begun", flush=True)
        time.sleep(60)

    @agentbus.workflow("w")
    async def w(task):
        await task.step("sleeps", sleeps)

    async def main():
        async with agentbus.connect(sys.argv[1]) as bus:
            await bus.tasks.start(w, id="t-1")
            await bus.tasks.run_worker(w)

    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(main())
    except KeyboardInterrupt:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        while tasks := asyncio.all_tasks(loop):
            with contextlib.suppress(KeyboardInterrupt):  # each task that it leaves raises it out of the loop
                loop.run_until_complete(asyncio.wait(tasks))
        print("interrupted", flush=True)
"""


@pytest.mark.slow
def test_ctrl_c_leaves_a_worker_whose_step_blocks_the_loop(tmp_path: Any) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path / "bus")],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            os.kill(process.pid, signal.SIGINT)
            assert process.communicate(timeout=30)[0] == "interrupted\n"
        finally:
            process.kill()

    async def look() -> str:
        async with agentbus.connect(tmp_path / "bus") as bus:
            return (await task_of(bus, "t-1")).status

    assert asyncio.run(look()) == "pending"


async def failing_group() -> None:
    """Fail a child of a TaskGroup: Python 3.11 and 3.12 then count a cancellation of the parent that never was one."""

    async def boom() -> None:
        raise ValueError("boom")

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(boom())
    except* ValueError:
        pass


async def await_cancelled() -> None:
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@pytest.mark.one_engine
async def test_a_workflow_that_awaits_something_cancelled_fails_after_a_failed_group(bus: Bus) -> None:
    @agentbus.workflow("bad")
    async def bad(task: Task) -> None:
        await failing_group()
        await await_cancelled()

    @agentbus.workflow("good")
    async def good(task: Task) -> str:
        return "done"

    poison = await bus.tasks.start(bad)
    innocent = await bus.tasks.start(good)
    await work_off(bus, bad, good)
    assert (await task_of(bus, innocent.id)).status == "completed"
    record = await task_of(bus, poison.id)
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.type == "CancelledError"


@pytest.mark.one_engine
async def test_serve_survives_a_failed_group_and_something_cancelled(bus: Bus, clock: FakeClock) -> None:
    handled: list[int] = []

    async def handle(message: Message, unit: Unit) -> None:
        handled.append(message.payload)
        if message.payload == 1:
            await failing_group()
        elif message.payload == 2:
            await await_cancelled()

    agent = await worker(bus, "server")
    for number in (1, 2, 3):
        await agent.send("server", "note", number, max_attempts=1)
    async with running(agent.serve(handle)):
        await eventually(clock, lambda: handled == [1, 2, 3])
