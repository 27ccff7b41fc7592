"""Waiting without an event loop for what happens on a server: it rings, on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentbus.engine.attending import AttendingProcess
from agentbus.engine.postgres import problems
from agentbus.engine.postgres.address import Address
from agentbus.engine.postgres.bell import AGAIN, Bell
from agentbus.engine.signals import undisturbed
from agentbus.operations.processes import enter

if TYPE_CHECKING:
    from agentbus.engine.postgres.blocking import BlockingPostgres


@contextmanager
def attend(store: BlockingPostgres, address: Address) -> Iterator[Attending]:
    """Enter as a process, hang up a bell, and leave at the end, whatever ends it."""
    attending = Attending(store, address)
    try:
        attending.enter()
        yield attending
    finally:
        with undisturbed():
            attending.leave()


class Attending(AttendingProcess):
    """A process that waits: the server rings it."""

    def __init__(self, store: BlockingPostgres, address: Address) -> None:
        super().__init__(store)
        self._server = store
        self._address = address
        self._ear = Ear()
        self._bell: Bell | None = None

    def enter(self) -> None:
        self._bell = self._server.run(self._hung_up())
        request = self.entry(self._bell.name)
        # Whoever is interrupted between the two could not leave: nobody would know its number.
        with undisturbed():
            self.entered(self._server.write(enter, request).process)

    def sleep(self, seconds: float) -> bool:
        contested = self._server.contested
        return self._server.run(self._rings(min(seconds, AGAIN) if contested else seconds)) or contested

    def take_down(self) -> None:
        if self._bell is not None:
            self._server.run(self._bell.close())

    async def _hung_up(self) -> Bell:
        bell = Bell(self._address, self._ear)
        try:
            await bell.open()
        except problems.DRIVER as error:
            raise problems.translated(error, self._address) from error
        return bell

    async def _rings(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._ear.rung.wait(), max(0.0, seconds))
        except TimeoutError:
            return False
        self._ear.rung.clear()
        return True


class Ear:
    """Hears whatever is rung: others ring this process only for what it listens to."""

    def __init__(self) -> None:
        self.rung = asyncio.Event()

    def ring(self, channels: Iterable[str]) -> None:
        self.rung.set()

    def ring_all(self) -> None:
        self.rung.set()
