"""A store that does not answer is asked again; what may have been written is not written twice."""

from __future__ import annotations

import pytest

from agentbus.engine.hub import Hub
from agentbus.errors import DatabaseGone, LockTimeout, OutcomeUnknown, StoreError
from agentbus.tasks.patience import patiently
from tests.conformance.helpers import running
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


async def test_a_store_that_does_not_answer_is_asked_again_after_a_while() -> None:
    clock = FakeClock()
    store = Store(LOCKED, LOCKED)
    async with running(patiently(Hub(clock), "worker-1", store)) as asking:
        await clock.settle()
        assert store.asked == 1
        await clock.pass_time(10)
        assert await asking == "done"
    assert store.asked == 3


@pytest.mark.parametrize("error", [UNKNOWN, GONE])
async def test_what_may_have_been_written_or_never_will_be_is_not_asked_again(error: StoreError) -> None:
    store = Store(error)
    with pytest.raises(type(error)):
        await patiently(Hub(FakeClock()), "worker-1", store)
    assert store.asked == 1


async def test_what_can_be_repeated_is_asked_again_though_nobody_knows_what_became_of_it() -> None:
    clock = FakeClock()
    store = Store(UNKNOWN)
    async with running(patiently(Hub(clock), "worker-1", store, repeatable=True)) as asking:
        await clock.pass_time(10)
        assert await asking == "done"
