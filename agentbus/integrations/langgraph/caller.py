"""Calls of a bus from plain threads and from any event loop: LangGraph runs graphs in both."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from types import TracebackType
from typing import ParamSpec, Self, TypeVar

import agentbus
from agentbus.core.threads import has_loop, running_loop
from agentbus.errors import BusClosed, Misuse
from agentbus.integrations._histories import no_bus

P = ParamSpec("P")
T = TypeVar("T")

AnyBus = agentbus.Bus | agentbus.sync.Bus | str | os.PathLike[str]
"""A bus that is open, or the URL of one to open."""


class Caller:
    """A bus and the event loop that its calls run on.

    An asynchronous bus is called on its own loop, which must be running where this is made. A synchronous one has a
    loop on a thread. One that is named by its URL is opened as a synchronous one, and closed by ``close`` or at the end
    of the interpreter.
    """

    def __init__(self, bus: AnyBus) -> None:
        self._opened: agentbus.sync.Bus | None = None
        self._own: asyncio.AbstractEventLoop | None = None
        if isinstance(bus, str | os.PathLike):
            bus = self._opened = agentbus.sync.connect(bus).open()
        if isinstance(bus, agentbus.Bus):
            self.bus = bus
            self._own = running_loop()
        elif isinstance(bus, agentbus.sync.Bus):
            self.bus = bus._inner
            self._portal = bus._portal
        else:
            raise no_bus(bus)

    def run(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a coroutine function on the loop of the bus, from a thread that has no other loop to run."""
        loop = self._own
        if loop is None:
            return self._portal.call(work, *args, **kwargs)
        if has_loop() and asyncio.get_running_loop() is loop:
            raise Misuse(
                reason="a synchronous method was called on the event loop of the bus, which the call would block: "
                "await the asynchronous one (graph.ainvoke, saver.aget_tuple, store.aget), or open the bus with "
                "agentbus.sync.connect()"
            )
        future = _submit(loop, work, *args, **kwargs)
        try:
            return future.result()
        except BaseException:
            # An interruption of this thread, such as KeyboardInterrupt, cancels the call.
            future.cancel()
            raise

    async def wait(self, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await a coroutine function on the loop of the bus, from any loop."""
        loop = self._portal.check() if self._own is None else self._own
        if asyncio.get_running_loop() is loop:
            return await work(*args, **kwargs)
        return await asyncio.wrap_future(_submit(loop, work, *args, **kwargs))

    def close(self) -> None:
        """Close the bus if it was opened here."""
        if self._opened is not None:
            self._opened.close()


def _submit(
    loop: asyncio.AbstractEventLoop, work: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
) -> Future[T]:
    if loop.is_closed():
        raise BusClosed

    async def call() -> T:
        return await work(*args, **kwargs)

    return asyncio.run_coroutine_threadsafe(call(), loop)


class Adapter:
    """An adapter that is closed by leaving its block, with or without ``async``."""

    _caller: Caller

    def close(self) -> None:
        """Close the bus if it was opened by its URL. A bus that the caller opened stays open."""
        self._caller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)
