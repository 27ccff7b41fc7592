"""Exponential backoff: the delay before the next attempt at something that failed."""

from __future__ import annotations


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
