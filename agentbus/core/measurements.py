"""Measurements of the writes of this process: batch size, wait for the lock, duration of commits.

They are kept in memory, for all buses that this process has open through an event loop, and start at zero with the
process. The writer pays a few additions per batch, none per call. A reader on another thread may see a batch counted in
one histogram and not yet in another.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Sequence

BATCH_BOUNDS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Upper bounds in calls."""
SECOND_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds in seconds: of a commit without fsync, of one with it, and of the lock timeout."""


class Histogram:
    """Counts of values by upper bound, and their sum.

    >>> sizes = Histogram((1, 10))
    >>> for size in (1, 4, 50):
    ...     sizes.observe(size)
    >>> sizes.buckets, sizes.cumulative(), sizes.count, sizes.sum
    ([1, 1, 1], [1, 2, 3], 3, 55)
    """

    __slots__ = ("bounds", "buckets", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.buckets = [0] * (len(bounds) + 1)
        """The values up to each bound and above the one before; the last are above all bounds."""
        self.sum: float = 0

    def observe(self, value: float) -> None:
        self.buckets[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        return sum(self.buckets)

    def cumulative(self) -> list[int]:
        """Return the number of values up to each bound, and of all."""
        total = 0
        return [total := total + number for number in self.buckets]


class Writes:
    """The writes of this process."""

    __slots__ = ("batch_calls", "commit", "lock_timeouts", "lock_wait", "replays", "started", "synced_commit")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.started = time.time()
        """Seconds since 1970: the start of the process, or nearly."""
        self.batch_calls = Histogram(BATCH_BOUNDS)
        """Calls per committed transaction (group commit)."""
        self.lock_wait = Histogram(SECOND_BOUNDS)
        """Seconds that each batch waited for the lock of the bus. On PostgreSQL it includes a round trip."""
        self.synced_commit = Histogram(SECOND_BOUNDS)
        """Seconds of each COMMIT that waited for the disk: the fsync, and what is written before it."""
        self.commit = Histogram(SECOND_BOUNDS)
        """Seconds of each COMMIT that did not wait for the disk."""
        self.lock_timeouts = 0
        """Batches that failed because the lock was not free in time."""
        self.replays = 0
        """Batches that were rolled back and run again call by call, because one of them failed."""

    def committed(self, calls: int, seconds: float, synced: bool) -> None:
        """Count a committed transaction."""
        # Without calls of ``observe``, which would take twice as long.
        sizes = self.batch_calls
        sizes.buckets[bisect_left(BATCH_BOUNDS, calls)] += 1
        sizes.sum += calls
        times = self.synced_commit if synced else self.commit
        times.buckets[bisect_left(SECOND_BOUNDS, seconds)] += 1
        times.sum += seconds

    def timed_out(self, seconds: float) -> None:
        """Count a batch that failed because the lock was not free in time."""
        self.lock_wait.observe(seconds)
        self.lock_timeouts += 1


writes = Writes()
"""The writes of this process."""

# A forked child has its own, or its parent's would be counted twice.
os.register_at_fork(after_in_child=writes.reset)
