"""An unavailable store is retried; a write with an unknown outcome is not repeated."""

from __future__ import annotations

import pytest

from agentbus.api.tasks.run import retry_transient
from agentbus.engine.waiters import Waiters
from agentbus.errors import DatabaseGone, LockTimeout, OutcomeUnknown, StoreError
from tests.api.helpers import running
from tests.support.clock import FakeClock

LOCKED = LockTimeout(path="bus.db", waited=1, pid=1)
UNKNOWN = OutcomeUnknown(path="bus.db", reason="an I/O error")
GONE = DatabaseGone(path="bus.db")


class Store:
    """Answers after these errors."""

    def __init__(self, *errors: StoreError) -> None:
        self._errors = list(errors)
        self.asked = 0

    async def __call__(self) -> str:
        self.asked += 1
        if self._errors:
            raise self._errors.pop(0)
        return "done"


async def test_an_unavailable_store_is_retried_after_a_delay() -> None:
    clock = FakeClock()
    store = Store(LOCKED, LOCKED)
    async with running(retry_transient(Waiters(clock), "worker-1", store)) as asking:
        await clock.settle()
        assert store.asked == 1
        await clock.pass_time(10)
        assert await asking == "done"
    assert store.asked == 3


@pytest.mark.parametrize("error", [UNKNOWN, GONE])
async def test_an_unknown_outcome_and_a_permanent_failure_are_not_retried(error: StoreError) -> None:
    store = Store(error)
    with pytest.raises(type(error)):
        await retry_transient(Waiters(FakeClock()), "worker-1", store)
    assert store.asked == 1


async def test_an_idempotent_call_is_retried_after_an_unknown_outcome() -> None:
    clock = FakeClock()
    store = Store(UNKNOWN)
    async with running(retry_transient(Waiters(clock), "worker-1", store, repeatable=True)) as asking:
        await clock.pass_time(10)
        assert await asking == "done"
