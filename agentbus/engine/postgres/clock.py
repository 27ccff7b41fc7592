"""The server's clock, as it is known here: every process of a bus measures with the same one, on whatever machine."""

from __future__ import annotations

import time
from asyncio import AbstractEventLoop
from collections.abc import Callable

from agentbus.clock import Now, Timer

_FRESH = 1000
"""Milliseconds for which what the server said is good enough: clocks do not drift by a millisecond in a second."""
BOOT = "server"
"""The server's time goes on over restarts, so that no lease or beat is voided by one."""


class ServerClock:
    """The server's time, which each transaction tells, and which goes on here in between."""

    def __init__(self) -> None:
        self._ahead = time.time_ns() // 1_000_000 - _here()
        self._told = -_FRESH

    @property
    def is_fresh(self) -> bool:
        """Whether the server has said only just now what time it is."""
        return _here() - self._told < _FRESH

    def now(self) -> Now:
        moment = _here() + self._ahead
        return Now(moment, moment, BOOT)

    def told(self, moment: int) -> Now:
        """The server has just said what time it is."""
        self._told = _here()
        self._ahead = moment - self._told
        return Now(moment, moment, BOOT)

    def forget(self) -> None:
        """Ask the server again before the time is used: it may be another server, with a clock of its own."""
        self._told = _here() - _FRESH

    def call_later(self, loop: AbstractEventLoop, seconds: float, callback: Callable[[], None]) -> Timer:
        return loop.call_later(seconds, callback)


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""The server goes on while this machine is suspended: where there is one, a clock that does so too."""


def _here() -> int:
    """Milliseconds of a clock that nobody sets."""
    return time.clock_gettime_ns(_CLOCK) // 1_000_000
