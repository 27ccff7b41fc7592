"""What every contestant offers: mailboxes to send to, receive from and acknowledge in."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, Protocol


class Box(Protocol):
    """One mailbox with its one reader. A received message is whatever the contestant needs to acknowledge it."""

    async def send(self, payload: Any) -> None: ...

    async def receive(self) -> Any: ...

    async def ack(self, message: Any) -> None: ...

    async def ack_many(self, messages: Sequence[Any]) -> None: ...

    async def send_many(self, payloads: Sequence[Any]) -> None: ...

    async def receive_many(self, most: int, done: Sequence[Any]) -> Sequence[Any]:
        """Up to ``most`` messages; ``done`` are acknowledged in the same transaction, where there is one."""
        ...

    def payload(self, message: Any) -> Any:
        """What was sent, to check that it arrived."""
        ...


class BlockingBox(Protocol):
    """The same without an event loop."""

    def send(self, payload: Any) -> None: ...

    def receive(self) -> Any: ...

    def ack(self, message: Any) -> None: ...

    def ack_many(self, messages: Sequence[Any]) -> None: ...

    def send_many(self, payloads: Sequence[Any]) -> None: ...

    def receive_many(self, most: int, done: Sequence[Any]) -> Sequence[Any]: ...

    def payload(self, message: Any) -> Any: ...


class About(Protocol):
    """How a contestant is called in the tables, and what of it survives a power cut."""

    @property
    def key(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def durability(self) -> str: ...


class Contestant(About, Protocol):
    def open(self, directory: Path, boxes: int) -> AbstractAsyncContextManager[Sequence[Box]]:
        """A fresh store in ``directory`` with so many mailboxes, each used by a task of its own."""
        ...


class BlockingContestant(About, Protocol):
    def open(self, directory: Path, boxes: int) -> AbstractContextManager[Sequence[BlockingBox]]: ...
