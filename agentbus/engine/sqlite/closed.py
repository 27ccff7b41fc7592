"""A store that nobody opens: what the doctor can see of it from outside. Nothing is made, and nothing is changed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread

from agentbus.clock import Clock, Now
from agentbus.engine import forking
from agentbus.engine.sqlite.connection import identity, open_untouched
from agentbus.engine.sqlite.examination import Examination
from agentbus.engine.sqlite.home import Home, check, sizes
from agentbus.engine.sqlite.inspection import inspected
from agentbus.errors import BusForked
from agentbus.operations import Op
from agentbus.operations.examining import Unseen
from agentbus.records import Check

R = TypeVar("R")
T = TypeVar("T")
_PATIENCE = 2.0
"""Seconds to wait for a lock that another program has on the database."""


class ClosedSQLite:
    """A bus in one file, whatever state it is in."""

    process = 0

    def __init__(self, place: Home, clock: Clock) -> None:
        self._home = place
        self.home: str | None = place.root
        self._clock = clock
        if place.database.exists() and forking.is_inherited(identity(place.database)):
            raise BusForked(parent=os.getppid())

    async def examine(self) -> list[Check | Unseen]:
        return await anyio.to_thread.run_sync(Examination(self._home, self._connect).look)

    async def sizes(self) -> tuple[int, int]:
        return sizes(self._home)

    async def inspect(self, question: Callable[[R, Now], Op[T]], request: R) -> T:
        op = question(request, self._clock.now())
        return await anyio.to_thread.run_sync(lambda: inspected(op, self._connect, self._home))

    def _connect(self) -> sqlite3.Connection:
        check(self._home)
        return open_untouched(self._home, _PATIENCE)
