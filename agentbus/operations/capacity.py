"""The load of the writers: how long they wait for the lock, which shows when a bus outgrows one file."""

from __future__ import annotations

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import plain
from agentbus.operations.protocol import Op, Query

_WAITS = "lock_waits"
_MINUTES = 10
"""Minutes for which lock waits are remembered."""


class WriterLoad(msgspec.Struct, frozen=True):
    """Seconds per minute that all writers together waited for the lock recently, and the number of processes that have
    the bus open."""

    waits: float
    writers: int


def record_lock_waits(waited: int, now: Now) -> Op[None]:
    """Record milliseconds of waiting for the lock since the last heartbeat. Nothing is written without waits."""
    minutes = yield from _recent_lock_waits(now)
    minute = now.wall // 60_000
    yield Query("meta_set", (_WAITS, plain({**minutes, minute: minutes.get(minute, 0) + waited})))


def read_writer_load(_: None, now: Now) -> Op[WriterLoad]:
    minutes = yield from _recent_lock_waits(now)
    ((writers,),) = yield Query("process_writers")
    return WriterLoad(sum(minutes.values()) / 1000 / _MINUTES, writers)


def _recent_lock_waits(now: Now) -> Op[dict[int, int]]:
    """Return milliseconds by minute. Minutes in the future, left by a clock that was set back, are ignored."""
    rows = yield Query("meta_get", (_WAITS,))
    if not rows:
        return {}
    last = now.wall // 60_000
    try:
        found = msgspec.json.decode(rows[0][0], type=dict[int, int])
    except msgspec.DecodeError:
        # Written by a foreign program; the next wait replaces it.
        return {}
    return {minute: waited for minute, waited in found.items() if last - _MINUTES < minute <= last}
