"""Trying again what the server did not do: for a bounded time, with random pauses, and logged when it starts."""

from __future__ import annotations

import logging
import random
import time
from typing import TYPE_CHECKING

from agentbus.engine.postgres import problems
from agentbus.engine.postgres.address import Address

if TYPE_CHECKING:
    from tenacity import RetryCallState

log = logging.getLogger("agentbus.engine")

_FIRST = 0.02
_CROWDED = 0.2
"""Seconds of the first pause, at most, after a connection was lost, and after one was refused."""


def pause(attempt: int, first: float, longest: float) -> float:
    """Return the seconds to wait after a try (the first is 1): random, up to twice as long each time, at most
    ``longest``."""
    return random.uniform(0, min(longest, first * 2 ** min(attempt - 1, 10)))  # noqa: S311


def pause_of(state: RetryCallState) -> float:
    """Return the seconds to wait before the next try of a transaction or a question: at most one."""
    error = state.outcome.exception() if state.outcome is not None else None
    # A transaction that was not committed says why.
    error = getattr(error, "reason", error)
    first = _CROWDED if isinstance(error, BaseException) and problems.is_crowded(error) else _FIRST
    return pause(state.attempt_number, first, 1.0)


class Retries:
    """The time for trying again after ``error``: ``patience`` seconds, or less where a server has no connection left,
    because that is not likely to change soon."""

    def __init__(self, address: Address, patience: float, error: BaseException) -> None:
        self._patience = patience
        self._begun = time.monotonic()
        self._crowded: float | None = None
        if problems.is_lost(error):
            crowded = problems.is_crowded(error)
            reason = problems.translated(error, address).args[0]
            log.warning("%s; trying again for up to %g s", reason, self._crowding if crowded else patience)

    @property
    def _crowding(self) -> float:
        return min(self._patience, problems.CROWDED)

    def are_over(self, error: BaseException | None) -> bool:
        """Return True if the last try, which ended with ``error``, was the last one."""
        now = time.monotonic()
        if error is None or not problems.is_crowded(error):
            self._crowded = None
            return now - self._begun > self._patience
        self._crowded = now if self._crowded is None else self._crowded
        return now - self._crowded > self._crowding
