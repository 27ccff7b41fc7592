"""A clock that stands still until a test moves it, and a way to let time pass while the bus keeps up."""

from __future__ import annotations

import asyncio
import heapq
import threading
from asyncio import AbstractEventLoop
from collections.abc import Awaitable, Callable, Sized
from contextlib import suppress
from itertools import count
from typing import Any, TypeVar

import anyio

import agentbus
from agentbus.engine.interface import Engine
from agentbus.engine.postgres.engine import PostgresEngine
from agentbus.errors import BusClosed

T = TypeVar("T")

START = 1_700_000_000_000
_TEN_YEARS = 10 * 365 * 24 * 3600.0


class FakeTimer:
    """A callback that waits for its moment of awake time."""

    def __init__(self, loop: AbstractEventLoop, due: int, callback: Callable[[], None]) -> None:
        self.due = due
        self.cancelled = False
        self._loop = loop
        self._callback = callback

    def cancel(self) -> None:
        self.cancelled = True

    def fire(self) -> None:
        with suppress(RuntimeError):  # its loop is closed: no task waits for it
            self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        if not self.cancelled:
            self._callback()


class FakeClock:
    """The clocks of a machine whose time the test makes. Milliseconds inside, seconds in every method."""

    def __init__(self, *, wall: int = START, awake: int = 1_000_000, boot: str = "boot-1") -> None:
        self._wall = wall
        self._awake = awake
        self._boot = boot
        self._lock = threading.Lock()
        self._order = count()
        self._timers: list[tuple[int, int, FakeTimer]] = []
        self._buses: list[agentbus.Bus] = []
        self._calls = 0
        """Calls of the engines of these buses."""
        self._on_threads = 0
        """Functions on threads whose callers have not got the result yet: a thread reports its end before that."""
        self.blocked = 0
        """Functions on threads of the bus that wait for the test."""

    # What the bus asks of a clock

    def now(self) -> agentbus.Now:
        with self._lock:
            return agentbus.Now(self._wall, self._awake, self._boot)

    def call_later(self, loop: AbstractEventLoop, seconds: float, callback: Callable[[], None]) -> FakeTimer:
        with self._lock:
            timer = FakeTimer(loop, self._awake + round(seconds * 1000), callback)
            heapq.heappush(self._timers, (timer.due, next(self._order), timer))
        if seconds <= 0:
            self._fire()
        return timer

    # What a test does to it

    def advance(self, seconds: float) -> None:
        """Time passes in one leap, then the timers that came due fire, in their order."""
        self.stall(seconds)
        self._fire()

    def stall(self, seconds: float) -> None:
        """Time passes while no timer fires, as for a process that hangs. The next ``advance`` fires them."""
        with self._lock:
            self._wall += round(seconds * 1000)
            self._awake += round(seconds * 1000)

    def jump(self, seconds: float) -> None:
        """Set the wall clock, forward or back."""
        with self._lock:
            self._wall += round(seconds * 1000)

    def sleep_machine(self, seconds: float) -> None:
        """The machine is suspended: the wall clock advances, awake time does not."""
        self.jump(seconds)

    def attach(self, bus: agentbus.Bus) -> None:
        """Let this bus keep up whenever time passes."""
        self._buses.append(bus)
        for name in ("write", "read", "read_inline"):
            setattr(bus._engine, name, self._counted(getattr(bus._engine, name)))
        setattr(bus._threads, "run", self._awaited(bus._threads.run))  # noqa: B010

    def _awaited(self, run: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> Any:
            self._on_threads += 1
            try:
                return await run(*arguments)
            finally:
                self._on_threads -= 1

        return call

    def _counted(self, method: Callable[..., T]) -> Callable[..., T]:
        def call(*arguments: Any, **options: Any) -> T:
            self._calls += 1
            return method(*arguments, **options)

        return call

    async def pass_time(self, seconds: float) -> None:
        """Time passes as it does in a healthy process: from timer to timer, the bus keeping up with each."""
        await self.settle()
        target = self.now().awake + round(seconds * 1000)
        while (due := self._next()) is not None and due <= target:
            self.advance(max(0, due - self.now().awake) / 1000)
            await self.settle()
        self.advance((target - self.now().awake) / 1000)
        await self.settle()

    async def settle(self) -> None:
        """Let every task run until it waits for time, for a message, or for the test.

        A write that deletes nothing is answered after everything that was written before it, a read after everything
        that was read before it. Five such rounds are more than the longest chain that one event starts (a heartbeat:
        written, pending messages read, rung, claimed, handled and acknowledged); two without another call are enough.
        """
        idle = 0
        for _ in range(5):
            calls = self._calls
            await self._threads_rest()
            for bus in self._buses:
                await _turns()
                if isinstance(bus._engine, PostgresEngine):
                    await quiet(bus._engine)
                    continue
                with suppress(BusClosed):
                    calls += 2
                    await bus.messages.purge(status="expired", older_than=_TEN_YEARS)
                    await bus.messages.get("nothing")
            idle = idle + 1 if self._calls <= calls else 0
            if idle == 2:
                break
        await self._threads_rest()
        await _turns()

    async def _threads_rest(self) -> None:
        """Wait for the functions that run on threads, but for those that wait for the test."""
        with anyio.move_on_after(5):
            while max(self._on_threads, sum(len(bus._threads.running) for bus in self._buses)) > self.blocked:  # noqa: ASYNC110
                await asyncio.sleep(0.0005)

    def _next(self) -> int | None:
        """When the next timer is due."""
        with self._lock:
            while self._timers and self._timers[0][2].cancelled:
                heapq.heappop(self._timers)
            return self._timers[0][0] if self._timers else None

    def _fire(self) -> None:
        while (due := self._next()) is not None and due <= self.now().awake:
            with self._lock:
                timer = heapq.heappop(self._timers)[2]
            timer.fire()


async def quiet(engine: Engine) -> None:
    """Wait until nothing is on its way to a server or back: there, questions and answers may overtake each other, and a
    ring takes its time."""
    assert isinstance(engine, PostgresEngine)
    while engine.busy:  # noqa: ASYNC110 - what it waits for has no event, in the tests' interest only
        await asyncio.sleep(0.0005)
    bell = engine._bell
    if bell is not None and bell._connection is not None:
        # A connection that receives its own notification has received all earlier ones.
        with suppress(Exception):
            await bell._connection.execute(f"NOTIFY {bell.name}, 'nothing'")


async def _turns() -> None:
    """Some turns of the event loop: more than any callback needs to reach the task that waits for it. Once nothing was
    ready in two turns, in which the loop has looked for what others sent, nothing would be in a third."""
    ready: Sized = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    idle = 0
    for _ in range(10):
        await asyncio.sleep(0)
        idle = 0 if len(ready) else idle + 1
        if idle == 2:
            break
