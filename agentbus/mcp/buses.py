"""The open buses of a server: one for each call that is running, kept for the next ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentbus.core.validation import HEARTBEAT_INTERVAL
from agentbus.errors import AgentBusError, StoreError

if TYPE_CHECKING:
    from agentbus.mcp.dispatcher import Cancellation
    from agentbus.sync.bus import BlockingBus

_MAX_IDLE = 4
"""Buses that are kept open while no call uses them."""


class Buses:
    """Buses of one URL. ``open`` opens one, or raises the reason why there is none: the next call tries again."""

    def __init__(self, open: Callable[[], BlockingBus]) -> None:
        self._open = open
        self._idle: list[BlockingBus] = []
        self._closed = False
        self._checked = time.monotonic()

    @contextmanager
    def borrow(self, cancellation: Cancellation | None = None) -> Iterator[BlockingBus]:
        """Use a bus for the length of a block. ``cancellation`` interrupts what the block waits for."""
        bus = self._take()
        bus.interruption.clear()
        if cancellation is not None:
            cancellation.on_cancel(bus.interruption.interrupt)
        usable = True
        try:
            yield bus
        except StoreError:
            # The file may be gone, or the server: open it again.
            usable = False
            raise
        finally:
            if cancellation is not None:
                cancellation.on_cancel(None)
            self._give_back(bus, usable)

    def _take(self) -> BlockingBus:
        try:
            # One operation: threads do not get the same bus.
            bus = self._idle.pop()
        except IndexError:
            return self._open()
        now = time.monotonic()
        if now - self._checked > HEARTBEAT_INTERVAL:
            # As every opening of a bus does.
            self._checked = now
            try:
                bus.mark_dead_processes()
            except StoreError:
                bus.close()
                return self._open()
            except AgentBusError:
                pass
        return bus

    def _give_back(self, bus: BlockingBus, usable: bool) -> None:
        if usable and not self._closed and len(self._idle) < _MAX_IDLE:
            self._idle.append(bus)
        else:
            bus.close()

    def close(self) -> None:
        """Close the buses; those in use are closed by their calls."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()
