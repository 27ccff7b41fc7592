"""Two clocks: wall time for timestamps, awake (monotonic) time for leases and heartbeats. Tests inject their own.

Also ``backoff``, the delay before the next attempt at something that failed.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from agentbus.errors import StoreError, TooManyFiles

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class Now(msgspec.Struct, frozen=True):
    """One moment: ``wall`` and ``awake`` in milliseconds, and the ``boot`` in which awake time counts.

    >>> Now(wall=1_700_000_000_000, awake=5_000, boot="b1").awake
    5000
    """

    wall: int
    awake: int
    boot: str


class Timer(Protocol):
    """A scheduled call that can be cancelled."""

    def cancel(self) -> None: ...


class Clock(Protocol):
    """The source of time of a bus. ``now`` is also called from the writer's thread.

    Pass your own to ``connect(clock=…)`` to advance time in tests without sleeping.

    >>> class Frozen:                                                                 # doctest: +SKIP
    ...     def now(self): return Now(wall=0, awake=0, boot="test")
    ...     def call_later(self, loop, seconds, callback): return loop.call_later(3600, callback)
    """

    def now(self) -> Now: ...

    def call_later(self, loop: AbstractEventLoop, seconds: float, callback: Callable[[], None]) -> Timer: ...


class SystemClock:
    """The clocks of this machine.

    >>> SystemClock().now().awake > 0
    True
    """

    def __init__(self) -> None:
        self._boot = _boot_id()

    def now(self) -> Now:
        return Now(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000, self._boot)

    def call_later(self, loop: AbstractEventLoop, seconds: float, callback: Callable[[], None]) -> Timer:
        return loop.call_later(seconds, callback)


def _boot_id() -> str:
    """Return the id of this boot of the machine."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise TooManyFiles(path="/proc/sys/kernel/random/boot_id", reason=error.strerror) from None
        return _boot_session()


def _boot_session() -> str:
    """Return macOS's id of this boot. Deriving it from the clocks would mistake a sleep of the machine for a reboot."""
    import ctypes

    size = ctypes.c_size_t(64)
    buffer = ctypes.create_string_buffer(size.value)
    library = ctypes.CDLL(None, use_errno=True)
    if library.sysctlbyname(b"kern.bootsessionuuid", buffer, ctypes.byref(size), None, 0) != 0:
        raise StoreError(path="kern.bootsessionuuid", reason="this system does not identify its boots")
    return buffer.value.decode()


def backoff(attempt: int, first: float, longest: float, *, jitter: float = 0.0) -> float:
    """Return the delay after an attempt (the first is 1): ``first``, doubled with each attempt, at most ``longest``.

    With ``jitter``, up to this fraction of the delay is taken off at random, so that callers that failed at the same
    time do not retry at the same time.

    >>> backoff(1, 0.5, 60), backoff(4, 0.5, 60), backoff(100, 0.5, 60)
    (0.5, 4.0, 60)
    """
    delay = min(longest, first * 2.0 ** min(attempt - 1, 30))
    if not jitter:
        return delay
    # Imported only here: the command line should start without it.
    from random import uniform

    return delay * uniform(1 - jitter, 1)  # noqa: S311
