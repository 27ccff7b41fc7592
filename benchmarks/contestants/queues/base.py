"""The interface of a queue: mailboxes to send to, receive from and acknowledge in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import anyio

from benchmarks.contestants.about import About, missing_packages

POLL = 0.001
"""Polling interval of contestants without a blocking receive."""
ONE_BY_ONE = frozenset({"one", "processes", "idle"})
"""The workloads of contestants without concurrency."""
IN_BATCHES = ONE_BY_ONE | {"batches"}
CONCURRENTLY = ONE_BY_ONE | {"tasks"}
EVERYTHING = IN_BATCHES | {"tasks"}


class Sender(Protocol):
    """A sender to a mailbox."""

    async def send(self, payload: Any) -> None: ...


class Box(Sender, Protocol):
    """A mailbox with one reader. A received message is of any type that the contestant can acknowledge."""

    async def receive(self) -> Any:
        """Wait for a message; contestants without a blocking receive poll every millisecond."""
        ...

    async def ack(self, message: Any) -> None: ...

    async def ack_many(self, messages: Sequence[Any]) -> None: ...

    async def send_many(self, payloads: Sequence[Any]) -> None: ...

    async def receive_many(self, limit: int, done: Sequence[Any]) -> Sequence[Any]:
        """Receive 1 to ``limit`` messages; acknowledge ``done`` in the same transaction, if there is one."""
        ...

    def payload(self, message: Any) -> Any:
        """Return the payload of a received message."""
        ...


class Contestant(About, Protocol):
    @property
    def workloads(self) -> frozenset[str]:
        """The supported workloads."""
        ...

    def missing(self) -> str | None:
        """Return why it cannot be measured here, or None."""
        ...

    def open(self, directory: Path, boxes: int) -> AbstractAsyncContextManager[Sequence[Box]]:
        """Open a new store in ``directory`` with ``boxes`` mailboxes, each used by its own task."""
        ...

    def sender(self, directory: Path) -> AbstractAsyncContextManager[Sender]:
        """Open a sender to the first mailbox of an open store, for another process."""
        ...


class Calls(Protocol):
    """A synchronous library, called on the thread of the loop, one message after another."""

    def send(self, payload: Any) -> None: ...

    def claim(self, limit: int) -> list[Any]:
        """Return up to ``limit`` messages without waiting."""
        ...

    def ack(self, messages: Sequence[Any]) -> None: ...

    def payload(self, message: Any) -> Any: ...

    def close(self) -> None: ...


class CalledBox:
    """A synchronous library as a mailbox. Only waiting for a message suspends."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def send(self, payload: Any) -> None:
        self._calls.send(payload)

    async def receive(self) -> Any:
        return (await self.receive_many(1, ()))[0]

    async def ack(self, message: Any) -> None:
        self._calls.ack((message,))

    async def ack_many(self, messages: Sequence[Any]) -> None:
        self._calls.ack(messages)

    async def send_many(self, payloads: Sequence[Any]) -> None:
        for payload in payloads:
            self._calls.send(payload)

    async def receive_many(self, limit: int, done: Sequence[Any]) -> Sequence[Any]:
        if done:
            self._calls.ack(done)
        while not (found := self._calls.claim(limit)):
            await anyio.sleep(POLL)
        return found

    def payload(self, message: Any) -> Any:
        return self._calls.payload(message)

    def close(self) -> None:
        self._calls.close()


@dataclass(frozen=True)
class Library:
    """A contestant that is a synchronous library and is polled every millisecond."""

    key: str
    title: str
    durability: str
    make: Callable[[Path], CalledBox]
    packages: tuple[str, ...] = ()
    workloads: frozenset[str] = ONE_BY_ONE

    def missing(self) -> str | None:
        return missing_packages(self.packages)

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[list[CalledBox]]:
        assert boxes == 1, "a library has one mailbox"
        async with self.sender(directory) as box:
            yield [box]

    @asynccontextmanager
    async def sender(self, directory: Path) -> AsyncIterator[CalledBox]:
        box = self.make(directory)
        try:
            yield box
        finally:
            box.close()
