"""Blocking functions: plain ones run on threads, blocking coroutines keep their leases."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any

import anyio.from_thread
import anyio.to_thread
import pytest

import agentbus
from agentbus import Bus, Message, Task, Unit, pool
from agentbus.core import cancellation
from agentbus.errors import Misuse, OutOfRange
from agentbus.records import TaskChange
from tests.api.helpers import eventually, nothing_for, running, soon, take, worker
from tests.api.task_workers import step_of, task_of, work_off, working
from tests.conftest import Engine
from tests.support.clock import FakeClock

SHORT = 0.3
"""Seconds of a lease that the watchdog renews in real time, and that expires in fake time."""


_counting = threading.Lock()


class Gate:
    """A plain function that blocks until it is opened, and counts its calls."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.calls: list[Any] = []
        self.threads: list[int] = []
        self.problems: list[BaseException] = []
        self.open = threading.Event()

    def __call__(self, *arguments: Any) -> str:
        self.threads.append(threading.get_ident())
        with _counting:
            self._clock.blocked += 1
        self.calls.append(arguments[0].payload if arguments else None)
        try:
            assert self.open.wait(60)
        finally:
            with _counting:
                self._clock.blocked -= 1
        return "done"


@contextmanager
def elsewhere(work: Callable[[], Awaitable[None]]) -> Iterator[None]:
    """Run this in an event loop of its own, on a thread, until the block is left."""
    stops: list[Callable[[], object]] = []
    started = threading.Event()

    async def main() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        stops.append(partial(loop.call_soon_threadsafe, task.cancel))
        started.set()
        await work()

    def run() -> None:
        try:
            asyncio.run(main())
        except asyncio.CancelledError:
            return

    thread = threading.Thread(target=run)
    thread.start()
    started.wait(10)
    try:
        yield
    finally:
        with suppress(RuntimeError):  # it has ended
            stops[0]()
        thread.join(30)
        assert not thread.is_alive()


async def settled(bus: Bus, messages: dict[str, int]) -> None:
    """Wait until the messages of the bus are these."""
    while (await bus.stats()).messages != messages:  # noqa: ASYNC110 - what a thread does has no event here
        await asyncio.sleep(0.01)


async def test_a_plain_step_is_executed_once_by_two_workers_however_long_it_takes(
    engine: Engine, clock: FakeClock
) -> None:
    gate = Gate(clock)

    @agentbus.workflow("build")
    async def build(task: Task) -> str:
        return await task.step("compile", gate)

    async with engine.connect() as bus, engine.connect() as other:
        task = (await bus.tasks.start(build)).id
        async with working(bus, build, lease=3), working(other, build, lease=3):
            await eventually(clock, lambda: bool(gate.calls))
            await clock.pass_time(10)
            gate.open.set()
            record = await soon(bus.tasks.wait(task))
        assert record is not None
        assert (record.status, record.result) == ("completed", "done")
        assert (await step_of(bus, task, "compile")).attempt == 1
    assert len(gate.calls) == 1
    assert gate.threads != [threading.get_ident()]


@pytest.mark.one_engine
async def test_a_plain_handler_handles_each_message_once(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await bus.expect("out", type="worker")
    gate = Gate(clock)

    def handle(message: Message, unit: Unit) -> None:
        gate(message)
        unit.send("out", "note", message.payload)

    await a.send_many((pool("p"), "note", n) for n in range(3))
    async with running(a.serve(handle, lease=10, concurrency=2)):
        await eventually(clock, lambda: len(gate.calls) == 2)
        await clock.pass_time(50)
        taken = await take(b)
        await taken.ack()
        assert await nothing_for(b)
        gate.open.set()
        await soon(settled(bus, {"acked": 3, "queued": 2}))
    assert sorted([*gate.calls, taken.payload]) == [0, 1, 2]
    assert threading.get_ident() not in gate.threads


async def test_the_result_of_a_plain_handler_is_discarded_after_its_lease_is_lost(
    bus: Bus, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await bus.expect("out", type="worker")
    await a.send(pool("p"), "note", "slow")
    gate, late, ended = Gate(clock), Gate(clock), threading.Event()

    def handle(message: Message, unit: Unit) -> None:
        if message.payload == "next":
            late(message)
            return
        gate(message)
        try:
            unit.send("out", "note", "must not be sent")
        except BaseException as error:
            gate.problems.append(error)
        finally:
            ended.set()

    late.open.set()
    caplog.set_level(logging.INFO, "agentbus")
    async with running(a.serve(handle, lease=10)):
        await eventually(clock, lambda: bool(gate.calls))
        clock.stall(11)
        fresh = await take(b)
        clock.advance(0)
        # It is no longer waited for.
        await a.send("a", "note", "next")
        await eventually(clock, lambda: bool(late.calls))
        gate.open.set()
        await asyncio.to_thread(ended.wait, 10)
        await eventually(clock, lambda: "its result is discarded" in caplog.text)
    await fresh.ack()
    assert [type(error) for error in gate.problems] == [Misuse]
    assert (await bus.stats()).messages == {"acked": 2}


async def test_a_step_result_that_comes_after_the_task_is_lost_is_discarded(engine: Engine, clock: FakeClock) -> None:
    gate = Gate(clock)

    def build_with(function: Callable[[], str]) -> Any:
        @agentbus.workflow("build")
        async def build(task: Task) -> str:
            return await task.step("compile", function)

        return build

    async with engine.connect() as bus, engine.connect() as other:
        slow, quick = build_with(gate), build_with(lambda: "quick")
        task = (await bus.tasks.start(slow)).id
        async with working(bus, slow, lease=60, agent="slow") as first:
            await eventually(clock, lambda: bool(gate.calls))
            clock.stall(61)
            await work_off(other, quick, agent="quick")
            before = await other.tasks.steps(task)
            gate.open.set()
            await clock.pass_time(3)
            assert await other.tasks.steps(task) == before
            assert (await task_of(other, task)).result == "quick"
            assert not first.done()


async def test_a_cancelled_receiver_releases_a_message_only_after_its_function_returned(
    bus: Bus, clock: FakeClock
) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1)
    gate = Gate(clock)
    serving = asyncio.create_task(a.serve(gate))
    await eventually(clock, lambda: bool(gate.calls))
    serving.cancel()
    await clock.settle()
    assert (await bus.stats()).messages == {"leased": 1}
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await soon(serving)
    assert (await take(a)).attempts == 1


@pytest.mark.one_engine
async def test_closing_waits_for_threads_but_not_without_end(
    engine: Engine, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cancellation, "GRACE", 0.2)
    gate = Gate(clock)

    @agentbus.workflow("build")
    async def build(task: Task) -> str:
        return await task.step("compile", gate)

    try:
        async with engine.connect() as bus:
            task = (await bus.tasks.start(build, id="t-1")).id
            async with working(bus, build):
                await eventually(clock, lambda: bool(gate.calls))
        assert "step 'compile' of task t-1" in caplog.text
        async with engine.connect() as bus:
            assert (await task_of(bus, task)).status == "pending"
    finally:
        gate.open.set()


@pytest.mark.one_engine
async def test_async_functions_run_on_the_loop_and_plain_ones_on_a_thread(bus: Bus, clock: FakeClock) -> None:
    here = threading.get_ident()
    seen: dict[str, tuple[bool, str]] = {}
    variable: ContextVar[str] = ContextVar("variable", default="?")

    def note(name: str) -> str:
        seen[name] = (threading.get_ident() == here, variable.get())
        return name

    async def anote(name: str) -> str:
        return note(name)

    class Noting:
        async def __call__(self, name: str) -> str:
            return note(name)

    def returning(name: str) -> Any:
        note(f"{name} called")
        return anote(f"{name} awaited")

    @agentbus.workflow("kinds")
    async def kinds(task: Task) -> list[str | None]:
        variable.set("carried")
        return [
            await task.step("plain", note, "plain"),
            await task.step("progress", lambda: anyio.from_thread.run(task.progress, 40)),
            await task.step("async", anote, "async"),
            await task.step("partial", partial(anote, "partial")),
            await task.step("object", Noting(), "object"),
            await task.step("returning", returning, "it", validate=lambda result: note("validated") == "validated"),
        ]

    def on_step(change: TaskChange) -> None:
        note("callback")

    task = (await bus.tasks.start(kinds)).id
    await work_off(bus, kinds, on_step=on_step)
    assert (await task_of(bus, task)).result == ["plain", None, "async", "partial", "object", "it awaited"]
    assert seen == {
        "plain": (False, "carried"),
        "async": (True, "carried"),
        "partial": (True, "carried"),
        "object": (True, "carried"),
        "it called": (False, "carried"),
        "it awaited": (True, "carried"),
        "validated": (False, "carried"),
        "callback": (False, "?"),
    }


@pytest.mark.one_engine
async def test_many_plain_steps_leave_the_threads_of_others_alone(bus: Bus, clock: FakeClock) -> None:
    """anyio's own limiter has 40."""
    gate = Gate(clock)

    @agentbus.workflow("wide")
    async def wide(task: Task) -> int:
        async with asyncio.TaskGroup() as group:
            for n in range(60):
                group.create_task(task.step(f"step-{n}", gate))
        return len(gate.calls)

    task = (await bus.tasks.start(wide)).id
    async with working(bus, wide):
        await eventually(clock, lambda: len(gate.calls) == 40)
        assert await soon(asyncio.to_thread(lambda: 1)) == 1
        assert await soon(anyio.to_thread.run_sync(lambda: 2)) == 2
        gate.open.set()
        record = await soon(bus.tasks.wait(task))
    assert record is not None
    assert record.result == 60


# A loop that is blocked: only real time can show it.


class Blocking:
    """A coroutine function that blocks its event loop the first time that it is called."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.executed: list[str] = []
        self.begun = threading.Event()
        self.enough = threading.Event()
        """Ends the blocking early."""

    async def __call__(self, who: str) -> str:
        self.executed.append(who)
        self.begun.set()
        if len(self.executed) == 1:
            self.enough.wait(self.seconds)
        return who

    def workflow(self, who: str) -> Any:
        @agentbus.workflow("blocking")
        async def blocking(task: Task) -> str:
            return await task.step("sleep", self, who)

        return blocking


class Renewals:
    """Record what the watchdog of a bus writes while the loop is blocked. The time is that of the fake clock."""

    def __init__(self, bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._times: dict[str, int] = {}
        connect = bus._engine.blocking

        def watched() -> Any:
            store = connect()
            write = store.write

            def noted(operation: Any, request: Any) -> Any:
                now = clock.now().awake
                answer = write(operation, request)
                with self._changed:
                    self._times[operation.name] = now
                    self._changed.notify_all()
                return answer

            monkeypatch.setattr(store, "write", noted)
            return store

        monkeypatch.setattr(bus._engine, "blocking", watched)

    def wait_for(self, *operations: str) -> None:
        """Wait until each of these was written at the present time of the clock."""
        now = self._clock.now().awake
        with self._changed:
            assert self._changed.wait_for(lambda: all(self._times.get(name, 0) >= now for name in operations), 60)


async def test_a_step_that_blocks_the_loop_keeps_all_leases_and_is_reported(
    engine: Engine, clock: FakeClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watchdog works in real time, and leases expire in fake time: a busy machine loses none."""
    step = Blocking(120)
    stolen: list[Any] = []

    async def other(renewals: Renewals) -> None:
        async with engine.connect() as bus:
            b = await worker(bus, "b", pools=["p"])
            try:
                await asyncio.to_thread(step.begun.wait, 60)
                for _ in range(3):
                    await asyncio.to_thread(renewals.wait_for, "extend", "renew_tasks", "heartbeat")
                    clock.stall(SHORT * 0.8)
                    stolen.extend(await b.receive_many(10, timeout=0))
                    await work_off(bus, step.workflow("other"), lease=SHORT)
            finally:
                step.enough.set()

    async with engine.connect(beat_every=0.01, max_blocked=10_000) as bus:
        renewals = Renewals(bus, clock, monkeypatch)
        a = await worker(bus, "a", pools=["p"])
        await a.send(pool("p"), "note", "held")
        async with await take(a, lease=SHORT):
            task = (await bus.tasks.start(step.workflow("first"), id="t-1")).id
            with elsewhere(partial(other, renewals)):
                async with working(bus, step.workflow("first"), lease=SHORT):
                    record = await soon(bus.tasks.wait(task))
        assert (await bus.stats()).messages == {"acked": 1}
    assert record is not None
    assert (record.status, record.result) == ("completed", "first")
    assert (step.executed, stolen) == (["first"], [])
    # On a busy machine, other code may take longer than half of this short lease.
    (report,) = [line for line in caplog.messages if "the event loop was blocked for" in line and "t-1" in line]
    assert "by step 'sleep' of task t-1 (test_receive_blocking_code.py:" in report


@pytest.mark.one_engine
async def test_a_handler_that_blocks_the_loop_is_reported(bus: Bus, caplog: pytest.LogCaptureFixture) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note")
    handled: list[str] = []

    async def handle(message: Message, unit: Unit) -> None:
        give_up = time.monotonic() + 60
        while "the event loop was blocked for" not in caplog.text and time.monotonic() < give_up:
            time.sleep(0.01)  # noqa: ASYNC251 - the loop is to be blocked
        handled.append(message.message_id)

    async with running(a.serve(handle, lease=SHORT)):
        while not handled:  # noqa: ASYNC110 - real time
            await asyncio.sleep(0.01)
    (report,) = [line for line in caplog.messages if "the event loop was blocked for" in line]
    assert f"by message {receipt.message_id} of a (test_receive_blocking_code.py:" in report


@pytest.mark.one_engine
async def test_a_loop_that_is_blocked_beyond_the_bound_loses_its_lease(
    engine: Engine, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    step = Blocking(120)

    def abandoned() -> None:
        give_up = time.monotonic() + 60
        while "the lease on task t-1 is abandoned" not in caplog.text and time.monotonic() < give_up:
            time.sleep(0.01)

    async def other() -> None:
        async with engine.connect() as bus:
            await asyncio.to_thread(abandoned)
            clock.stall(SHORT)
            await work_off(bus, step.workflow("other"), lease=SHORT)
            step.enough.set()

    async with engine.connect(max_blocked=0.5) as bus:
        task = (await bus.tasks.start(step.workflow("first"), id="t-1")).id
        with elsewhere(other):
            async with working(bus, step.workflow("first"), lease=SHORT):
                record = await soon(bus.tasks.wait(task))
    assert record is not None
    assert (record.status, record.result) == ("completed", "other")
    assert step.executed == ["first", "other"]
    assert "the lease on task t-1 is abandoned" in caplog.text


@pytest.mark.one_engine
async def test_a_task_that_is_lost_is_not_renewed_again_while_the_loop_is_blocked(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Blocking(60)
    answers: list[tuple[str, Any]] = []
    lost = ("renew_tasks", [(1, 1)])

    async def stop() -> None:
        await asyncio.to_thread(step.begun.wait, 20)
        async with engine.connect() as other:
            await other.tasks.stop("t-1")

    async with engine.connect(beat_every=0.01, max_blocked=10_000) as bus:
        blocking = bus._engine.blocking

        def watched() -> Any:
            store = blocking()
            write = store.write

            def noted(operation: Any, request: Any) -> Any:
                answer = write(operation, request)
                answers.append((operation.name, answer))
                # Each beat that follows is another turn of the watchdog.
                if lost in answers and operation.name == "heartbeat" and len(answers) > answers.index(lost) + 2:
                    step.enough.set()
                return answer

            monkeypatch.setattr(store, "write", noted)
            return store

        monkeypatch.setattr(bus._engine, "blocking", watched)
        await bus.tasks.start(step.workflow("first"), id="t-1")
        with elsewhere(stop):
            async with working(bus, step.workflow("first"), lease=SHORT):
                await asyncio.to_thread(step.enough.wait, 60)
    assert answers.count(lost) == 1


@pytest.mark.parametrize("value", [-1, True, "ten", float("nan"), None])
def test_a_bound_that_is_no_number_is_refused(tmp_path: Any, value: Any) -> None:
    with pytest.raises(OutOfRange):
        agentbus.connect(tmp_path, max_blocked=value)
