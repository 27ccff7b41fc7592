"""How crowded a bus in one file is: how many write to it, and how long they waited for each other lately."""

from __future__ import annotations

import msgspec

from agentbus.clock import Now
from agentbus.codec import plain
from agentbus.operations import Op, Query

_WAITS = "lock_waits"
_MINUTES = 10
"""For so long it is remembered how long anybody waited."""


class Crowd(msgspec.Struct, frozen=True):
    """Seconds of each of the last minutes that writers waited for the lock, all together; and how many processes have
    the bus open."""

    waits: float
    writers: int


def note_waits(waited: int, now: Now) -> Op[None]:
    """Somebody waited for the lock, for so many milliseconds since their last beat. Where nobody waits, nothing is
    written."""
    minutes = yield from _recent(now)
    minute = now.wall // 60_000
    yield Query("meta_set", (_WAITS, plain({**minutes, minute: minutes.get(minute, 0) + waited})))


def read_crowd(_: None, now: Now) -> Op[Crowd]:
    minutes = yield from _recent(now)
    ((writers,),) = yield Query("process_writers")
    return Crowd(sum(minutes.values()) / 1000 / _MINUTES, writers)


def _recent(now: Now) -> Op[dict[int, int]]:
    """Milliseconds by minute. What a clock that was set back left in the future does not count."""
    rows = yield Query("meta_get", (_WAITS,))
    if not rows:
        return {}
    last = now.wall // 60_000
    try:
        found = msgspec.json.decode(rows[0][0], type=dict[int, int])
    except msgspec.DecodeError:
        # Only somebody else can have written that; it is forgotten with the next wait.
        return {}
    return {minute: waited for minute, waited in found.items() if last - _MINUTES < minute <= last}
