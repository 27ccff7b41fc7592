"""What every contestant offers: mailboxes to send to, receive from and acknowledge in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import anyio

from benchmarks.contestants.about import About, lacking

POLL = 0.001
"""Seconds between two looks of those that cannot wait."""
ONE_BY_ONE = frozenset({"one", "processes", "idle"})
"""The workloads of those that do one thing after another."""
IN_BATCHES = ONE_BY_ONE | {"batches"}
CONCURRENTLY = ONE_BY_ONE | {"tasks"}
EVERYTHING = IN_BATCHES | {"tasks"}


class Sender(Protocol):
    """Somebody who can send to a mailbox."""

    async def send(self, payload: Any) -> None: ...


class Box(Sender, Protocol):
    """One mailbox with its one reader. A received message is whatever the contestant needs to acknowledge it."""

    async def receive(self) -> Any:
        """Waits as the contestant does; those that cannot wait look every millisecond."""
        ...

    async def ack(self, message: Any) -> None: ...

    async def ack_many(self, messages: Sequence[Any]) -> None: ...

    async def send_many(self, payloads: Sequence[Any]) -> None: ...

    async def receive_many(self, most: int, done: Sequence[Any]) -> Sequence[Any]:
        """One message or more, up to ``most``; ``done`` are acknowledged in the same transaction, where there is
        one."""
        ...

    def payload(self, message: Any) -> Any:
        """What was sent, to check that it arrived."""
        ...


class Contestant(About, Protocol):
    @property
    def takes(self) -> frozenset[str]:
        """The workloads that it can do."""
        ...

    def missing(self) -> str | None:
        """Why it cannot be measured here."""
        ...

    def open(self, directory: Path, boxes: int) -> AbstractAsyncContextManager[Sequence[Box]]:
        """A fresh store in ``directory`` with so many mailboxes, each used by a task of its own."""
        ...

    def sender(self, directory: Path) -> AbstractAsyncContextManager[Sender]:
        """Somebody in another process who sends to the first mailbox of an open store."""
        ...


class Calls(Protocol):
    """A library that is called plainly, on the loop's own thread: one message after another."""

    def send(self, payload: Any) -> None: ...

    def claim(self, most: int) -> list[Any]:
        """What is there, without waiting."""
        ...

    def ack(self, messages: Sequence[Any]) -> None: ...

    def payload(self, message: Any) -> Any: ...

    def close(self) -> None: ...


class CalledBox:
    """A library as a mailbox. No call suspends, except to wait for a message."""

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

    async def receive_many(self, most: int, done: Sequence[Any]) -> Sequence[Any]:
        if done:
            self._calls.ack(done)
        while not (found := self._calls.claim(most)):
            await anyio.sleep(POLL)
        return found

    def payload(self, message: Any) -> Any:
        return self._calls.payload(message)

    def close(self) -> None:
        self._calls.close()


@dataclass(frozen=True)
class Library:
    """A contestant that is called plainly, and looks every millisecond."""

    key: str
    title: str
    durability: str
    make: Callable[[Path], CalledBox]
    packages: tuple[str, ...] = ()
    takes: frozenset[str] = ONE_BY_ONE

    def missing(self) -> str | None:
        return lacking(self.packages)

    @asynccontextmanager
    async def open(self, directory: Path, boxes: int) -> AsyncIterator[list[CalledBox]]:
        assert boxes == 1, "it has one mailbox"
        async with self.sender(directory) as box:
            yield [box]

    @asynccontextmanager
    async def sender(self, directory: Path) -> AsyncIterator[CalledBox]:
        box = self.make(directory)
        try:
            yield box
        finally:
            box.close()
