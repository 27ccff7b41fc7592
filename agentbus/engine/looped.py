"""What both asynchronous engines are: used in the process and the event loop that opened them, through one writer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Generic, NoReturn, Protocol, TypeVar

from agentbus.aside import running_loop
from agentbus.clock import Clock
from agentbus.engine import forking, presence
from agentbus.engine.hub import Hub
from agentbus.errors import BusClosed, NotPicklable, WrongLoop
from agentbus.operations import Operation
from agentbus.operations.processes import EnterRequest, Entry, enter

R = TypeVar("R")
T = TypeVar("T")


class GroupWriter(Protocol):
    """Commits what callers ask for, many calls in one transaction."""

    process: int

    def write(
        self, operation: Operation[R, T], request: R, durable: bool, orphaned: Callable[[T], None] | None = None
    ) -> Awaitable[T]:
        """Queue a call; await the answer."""


W = TypeVar("W", bound=GroupWriter)


class LoopEngine(Generic[W]):
    """An engine for one event loop of one process. ``engine.interface`` says what its methods do."""

    def __init__(self, clock: Clock, directory: Path, *, home: str | None, durability: str) -> None:
        self.clock = clock
        self.hub = Hub(clock)
        self.process = 0
        self.beat_every = 5.0
        self.directory = directory
        self.home = home
        self.waited_in_vain = float("-inf")
        self._disk = durability == "disk"
        self._owner = forking.Owner()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._writer: W | None = None

    async def _enter(self, bell: str | None) -> Entry:
        """Enter this process, which is rung by that bell."""
        pid = self._owner.pid
        every = max(1, round(self.beat_every * 1000))
        me = EnterRequest(presence.host_key(), pid, presence.start_time(pid), bell, every=every)
        entry = await self.write(enter, me, orphaned=self._entered)
        self._entered(entry)
        return entry

    def _entered(self, entry: Entry) -> None:
        self.process = entry.process
        if self._writer is not None:
            self._writer.process = entry.process

    def write(
        self,
        operation: Operation[R, T],
        request: R,
        *,
        durable: bool | None = None,
        orphaned: Callable[[T], None] | None = None,
    ) -> Awaitable[T]:
        self.check()
        if self._writer is None:
            raise BusClosed
        durable = self._disk and (operation.durable if durable is None else durable)
        return self._writer.write(operation, request, durable, orphaned)

    def holds(self, device: int, inode: int) -> bool:
        # On a server too: another bus may be open in a file here.
        return forking.is_open((device, inode))

    def check(self) -> None:
        self._owner.check()
        if asyncio._get_running_loop() is not self._loop:
            running_loop()
            raise WrongLoop if self._loop is not None else BusClosed

    def __reduce__(self) -> NoReturn:
        # Everything that belongs to a bus refers to its engine, so that this refuses all of it.
        raise NotPicklable
