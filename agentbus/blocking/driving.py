"""Running the asynchronous API without an event loop: every answer of the engine is there at once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from typing import Any, TypeVar

from agentbus.clock import Now
from agentbus.engine.blocking import BlockingEngine
from agentbus.errors import Misuse
from agentbus.operations import Op, Operation

R = TypeVar("R")
T = TypeVar("T")


class Immediate:
    """A blocking engine as the asynchronous API knows engines. ``write`` may be another's: an agent's, who visits."""

    process = 0

    def __init__(self, store: BlockingEngine, write: Callable[..., Any] | None = None) -> None:
        self.clock = store.clock
        self._store = store
        self._write = write or store.write

    async def write(
        self,
        operation: Operation[R, T],
        request: R,
        *,
        durable: bool | None = None,
        orphaned: Callable[[T], None] | None = None,
    ) -> T:
        result: T = self._write(operation, request, durable=durable)
        return result

    async def read(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        return self._store.read(question, request)

    async def look(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        return self._store.read(question, request)

    def holds(self, device: int, inode: int) -> bool:
        return self._store.holds(device, inode)

    def remove_bells(self, bells: Iterable[str | None]) -> None:
        self._store.remove_bells(bells)

    async def sizes(self) -> tuple[int, int]:
        return self._store.sizes()


def run(work: Awaitable[T]) -> T:
    """What ``work`` comes to."""
    steps = work.__await__()
    try:
        next(steps)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise Misuse(reason="this needs an event loop: use agentbus.connect()")


def each(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """What ``items`` gives, one by one."""
    try:
        while True:
            try:
                item = run(items.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        run(items.aclose())
