"""The store of a bus that is open on an event loop, used by other threads: they share its connections, its group
commits and its doorbell, so that a waiting thread costs no connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agentbus.engine.blocking import WaitingProcess
from agentbus.errors import BusClosed, Misuse
from agentbus.sync.bus import BlockingBus

if TYPE_CHECKING:
    from agentbus.api.bus import Bus
    from agentbus.core.clock import Now
    from agentbus.engine.waiters import Waiter
    from agentbus.operations.protocol import Op, Operation

R = TypeVar("R")
T = TypeVar("T")


class LoopStore:
    """A blocking store whose calls run on the event loop of an open bus. Made on that loop, used by other threads."""

    read_only = False

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.clock = bus._engine.clock
        self._engine = bus._engine
        self._loop = asyncio.get_running_loop()

    @property
    def shown(self) -> str:
        return str(self._engine.directory)

    @property
    def home(self) -> str | None:
        return self._engine.home

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and return its result."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            # The loop is closed.
            work.close()
            raise BusClosed from None
        return future.result()

    def soon(self, call: Callable[[], object]) -> None:
        """Call a function on the loop, without waiting for it."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    def write(
        self, operation: Operation[R, T], request: R, *, durable: bool | None = None, lock_timeout: float | None = None
    ) -> T:
        async def writing() -> T:
            return await self._engine.write(operation, request, durable=durable)

        return self.run(writing())

    def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        return self.run(self._engine.read(question, request))

    def pause_writes(self) -> AbstractContextManager[None]:
        raise Misuse(reason="the bus is open on an event loop: writers cannot be paused from another thread")

    @contextmanager
    def wait_for_wakeups(self) -> Iterator[WaitingProcess]:
        process = LoopWaiter(self)
        try:
            yield process
        finally:
            process.leave()

    def set_process(self, process: int) -> None:
        """Do nothing: the process of the event loop is registered, and sends heartbeats."""

    def lock_wait_ms(self) -> int:
        # The event loop reports it.
        return 0

    def owns_file(self, device: int, inode: int) -> bool:
        return self._engine.owns_file(device, inode)

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        self._engine.remove_bells(bells)

    def sizes(self) -> tuple[int, int]:
        return self.run(self._engine.sizes())

    def close(self) -> None:
        """Do nothing: the bus belongs to the event loop."""


class LoopWaiter(WaitingProcess):
    """A thread that waits. The process of the event loop listens for it."""

    def __init__(self, store: LoopStore) -> None:
        super().__init__(store)
        self._on_loop = store
        self._waiter: Waiter | None = None
        self._listening: AsyncExitStack | None = None

    def listen(self, channels: Sequence[str]) -> None:
        wanted = tuple(dict.fromkeys(channels))
        if wanted != self._channels:
            self._on_loop.run(self._listen(wanted))
            self._channels = wanted

    async def _listen(self, channels: tuple[str, ...]) -> None:
        await self._end()
        bus = self._on_loop.bus
        # A watcher is woken by every ring: a thread that is late takes no wake-up from another one.
        bases = tuple(dict.fromkeys(channel.partition("#")[0] for channel in channels))
        self._waiter = bus._engine.waiters.watch(tuple(dict.fromkeys((*channels, *bases))))
        self._listening = AsyncExitStack()
        for channel in bases:
            # Other processes ring this one only for the channels that it has announced.
            await self._listening.enter_async_context(bus._listening.to(channel))

    async def _end(self) -> None:
        waiter, self._waiter = self._waiter, None
        listening, self._listening = self._listening, None
        if waiter is not None:
            waiter.close()
        if listening is not None:
            await listening.aclose()

    def wait(self, seconds: float) -> bool:
        return self._on_loop.run(self._wait(seconds))

    async def _wait(self, seconds: float) -> bool:
        waiter = self._waiter
        if waiter is None:
            return True
        clock = self._on_loop.clock
        until = clock.now().awake + seconds * 1000
        await waiter.wait(seconds)
        return clock.now().awake < until

    def wake(self) -> None:
        def ring() -> None:
            if self._waiter is not None:
                self._waiter.ring()

        self._on_loop.soon(ring)

    def leave(self) -> None:
        with suppress(BusClosed):
            self._on_loop.run(self._end())

    def sleep(self, seconds: float) -> bool:
        return self.wait(seconds)

    def close_doorbell(self) -> None:
        """Do nothing: the doorbell is that of the event loop."""


def bus_on_loop(store: LoopStore, *, lease: float) -> BlockingBus:
    """Return the open bus of an event loop for another thread."""
    bus = store.bus
    return BlockingBus(
        cast("Any", store), max_payload=bus._max_payload, max_snapshot=bus._max_snapshot, lease=lease
    )  # fmt: skip
