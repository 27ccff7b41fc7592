"""Ears and the waiters: no ring is lost, and one that is not used goes to the next who waits."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable

import anyio
import pytest

from agentbus.core.clock import Now
from agentbus.engine.waiters import Waiter, Waiters


class Bell:
    """A timer that rings when the test says so."""

    def __init__(self, seconds: float, callback: Callable[[], None]) -> None:
        self.seconds = seconds
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class StandingClock:
    """Time that does not pass: timers are only kept."""

    def __init__(self) -> None:
        self.timers: list[Bell] = []

    def now(self) -> Now:
        return Now(0, 0, "boot")

    def call_later(self, loop: AbstractEventLoop, seconds: float, callback: Callable[[], None]) -> Bell:
        timer = Bell(seconds, callback)
        self.timers.append(timer)
        return timer


@pytest.fixture
def standing() -> StandingClock:
    return StandingClock()


@pytest.fixture
def waiters(standing: StandingClock) -> Waiters:
    return Waiters(standing)


async def turns() -> None:
    """Let every ready task run."""
    for _ in range(5):
        await asyncio.sleep(0)


def waiting(waiter: Waiter, seconds: float | None = None) -> asyncio.Task[None]:
    return asyncio.ensure_future(waiter.wait(seconds))


async def test_a_ring_wakes_who_waits(waiters: Waiters) -> None:
    waiter = waiters.listen(("a",))
    task = waiting(waiter)
    await turns()
    assert not task.done()
    waiters.ring(["a"])
    with anyio.fail_after(60):
        await task
    assert not waiter.rung


async def test_a_ring_between_listening_and_waiting_is_not_lost(waiters: Waiters) -> None:
    waiter = waiters.listen(("a",))
    waiters.ring(["a"])
    with anyio.fail_after(60):
        await waiter.wait(None)


async def test_a_used_ring_wakes_only_once(waiters: Waiters) -> None:
    waiter = waiters.listen(("a",))
    waiters.ring(["a"])
    await waiter.wait(None)
    task = waiting(waiter)
    await turns()
    assert not task.done()
    task.cancel()


async def test_a_ring_of_another_channel_wakes_no_waiter(waiters: Waiters) -> None:
    waiter = waiters.listen(("a", "b"))
    task = waiting(waiter)
    waiters.ring(["c"])
    await turns()
    assert not task.done()
    waiters.ring(["b"])
    await task


async def test_one_ring_wakes_one_waiter(waiters: Waiters) -> None:
    tasks = [waiting(waiters.listen(("a",))) for _ in range(3)]
    await turns()
    waiters.ring(["a"])
    await turns()
    assert [task.done() for task in tasks] == [True, False, False]
    for task in tasks:
        task.cancel()


async def test_a_channel_named_twice_wakes_two(waiters: Waiters) -> None:
    tasks = [waiting(waiters.listen(("a",))) for _ in range(3)]
    await turns()
    waiters.ring(["a", "a"])
    await turns()
    assert [task.done() for task in tasks] == [True, True, False]
    tasks[2].cancel()


async def test_two_rings_before_a_wake_up_wake_two(waiters: Waiters) -> None:
    # The first is awake already, though its task has not run yet: the second ring must not be spent on it.
    tasks = [waiting(waiters.listen(("a",))) for _ in range(2)]
    await turns()
    waiters.ring(["a"])
    waiters.ring(["a"])
    await turns()
    assert all(task.done() for task in tasks)


async def test_a_ring_that_its_waiter_did_not_use_goes_to_the_next(waiters: Waiters) -> None:
    first, second = waiters.listen(("a",)), waiters.listen(("a",))
    task = waiting(second)
    await turns()
    waiters.ring(["a"])
    assert first.rung
    assert not second.rung
    first.close()
    with anyio.fail_after(60):
        await task


async def test_a_ring_for_a_waiter_that_was_cancelled_goes_to_the_next(waiters: Waiters) -> None:
    first, second = waiters.listen(("a",)), waiters.listen(("a",))
    cancelled, task = waiting(first), waiting(second)
    await turns()
    waiters.ring(["a"])
    # Rung, but not yet running: the cancellation comes in between.
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert first.rung
    first.close()
    with anyio.fail_after(60):
        await task


async def test_a_ring_that_was_used_is_not_passed_on(waiters: Waiters) -> None:
    first, second = waiters.listen(("a",)), waiters.listen(("a",))
    waiters.ring(["a"])
    await first.wait(None)
    first.close()
    assert not second.rung


async def test_a_waiter_that_left_something_behind_wakes_the_next(waiters: Waiters) -> None:
    first, second = waiters.listen(("a",)), waiters.listen(("a",))
    waiters.ring(["a"])
    await first.wait(None)
    first.rung = True
    first.close()
    assert second.rung


async def test_a_ring_passed_on_is_heard_on_every_channel_of_its_waiter(waiters: Waiters) -> None:
    # The channel on which it was rung is not recorded.
    both = waiters.listen(("a", "b"))
    only_b = waiters.listen(("b",))
    waiters.ring(["a"])
    both.close()
    assert only_b.rung


async def test_a_closed_waiter_is_never_rung(waiters: Waiters) -> None:
    waiter = waiters.listen(("a",))
    waiter.close()
    waiters.ring(["a"])
    assert not waiter.rung
    assert waiters.channels == []


async def test_closing_twice_is_fine(waiters: Waiters) -> None:
    waiter = waiters.listen(("a",))
    waiter.close()
    waiter.close()


async def test_a_waiter_gives_up_after_its_time(waiters: Waiters, standing: StandingClock) -> None:
    task = waiting(waiters.listen(("a",)), 30)
    await turns()
    assert [timer.seconds for timer in standing.timers] == [30]
    assert not task.done()
    standing.timers[0].callback()
    with anyio.fail_after(60):
        await task


async def test_a_ring_calls_the_timer_off(waiters: Waiters, standing: StandingClock) -> None:
    task = waiting(waiters.listen(("a",)), 30)
    await turns()
    waiters.ring(["a"])
    await task
    assert standing.timers[0].cancelled


async def test_a_cancelled_waiter_calls_its_timer_off(waiters: Waiters, standing: StandingClock) -> None:
    task = waiting(waiters.listen(("a",)), 30)
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert standing.timers[0].cancelled


async def test_a_timer_that_rings_late_does_no_harm(waiters: Waiters, standing: StandingClock) -> None:
    waiter = waiters.listen(("a",))
    task = waiting(waiter, 30)
    await turns()
    waiters.ring(["a"])
    await task
    standing.timers[0].callback()
    assert not waiter.rung


async def test_time_and_ring_together_are_one_waking_up(waiters: Waiters, standing: StandingClock) -> None:
    waiter = waiters.listen(("a",))
    task = waiting(waiter, 30)
    await turns()
    standing.timers[0].callback()
    waiters.ring(["a"])
    await task
    # It looks after both, so that neither is left over.
    assert not waiter.rung


@pytest.mark.parametrize("seconds", [0, -1])
async def test_no_time_to_wait_is_no_wait(waiters: Waiters, standing: StandingClock, seconds: float) -> None:
    with anyio.fail_after(60):
        await waiters.listen(("a",)).wait(seconds)
    assert standing.timers == []


async def test_all_waiters_can_be_woken(waiters: Waiters) -> None:
    tasks = [waiting(waiters.listen((channel,))) for channel in "aab"]
    await turns()
    waiters.ring_all()
    with anyio.fail_after(60):
        await asyncio.gather(*tasks)


async def test_the_channels_are_those_with_a_listener(waiters: Waiters) -> None:
    first, second = waiters.listen(("a", "b")), waiters.listen(("b",))
    assert sorted(waiters.channels) == ["a", "b"]
    first.close()
    assert waiters.channels == ["b"]
    second.close()
    assert waiters.channels == []


async def test_a_ring_wakes_all_who_watch_and_one_who_listens(waiters: Waiters) -> None:
    watchers = [waiters.watch(("a",)) for _ in range(3)]
    listeners = [waiters.listen(("a",)) for _ in range(2)]
    waiters.ring(["a"])
    assert [waiter.rung for waiter in watchers] == [True, True, True]
    assert [waiter.rung for waiter in listeners] == [True, False]


async def test_a_watcher_that_is_awake_already_is_rung_once(waiters: Waiters) -> None:
    waiter = waiters.watch(("a",))
    waiters.ring(["a", "a"])
    waiters.ring(["a"])
    await waiter.wait(None)
    task = waiting(waiter)
    await turns()
    assert not task.done()
    waiters.ring(["a"])
    with anyio.fail_after(60):
        await task


async def test_a_watcher_passes_nothing_on(waiters: Waiters) -> None:
    # It took nothing away from anybody.
    watcher = waiters.watch(("a",))
    waiters.ring(["a"])
    listener, other = waiters.listen(("a",)), waiters.watch(("a",))
    watcher.close()
    assert not listener.rung
    assert not other.rung


async def test_a_closed_watcher_is_never_rung(waiters: Waiters) -> None:
    gone, there = waiters.watch(("a",)), waiters.watch(("a",))
    gone.close()
    gone.close()
    waiters.ring(["a"])
    assert not gone.rung
    assert there.rung


async def test_watchers_can_be_woken_separately_and_with_all_waiters(waiters: Waiters) -> None:
    watchers, listener = [waiters.watch((channel,)) for channel in "aab"], waiters.listen(("a",))
    waiters.ring_watchers()
    assert all(waiter.rung for waiter in watchers)
    assert not listener.rung
    for waiter in watchers:
        await waiter.wait(None)
    waiters.ring_all("a")
    assert [waiter.rung for waiter in watchers] == [True, True, False]
    waiters.ring_all()
    assert watchers[2].rung
    assert listener.rung


async def test_what_is_only_watched_is_no_mailbox_to_look_into(waiters: Waiters) -> None:
    waiters.watch(("mailbox/1",))
    assert waiters.channels == []


async def test_no_message_is_lost_among_many_impatient_waiters(waiters: Waiters) -> None:
    """A waiter may be cancelled at any moment, rung or not: in the end everything is taken, once."""
    total = 200
    queue: list[int] = []
    taken: list[int] = []
    all_taken = anyio.Event()

    async def receive(scope: anyio.CancelScope) -> None:
        with scope:
            waiter = waiters.listen(("a",))
            try:
                while not queue:
                    await waiter.wait(None)
                taken.append(queue.pop())
                waiter.rung = bool(queue)
            finally:
                waiter.close()
            if len(taken) == total:
                all_taken.set()

    async with anyio.create_task_group() as tasks:
        for number in range(total):
            impatient = anyio.CancelScope()
            tasks.start_soon(receive, impatient)
            tasks.start_soon(receive, anyio.CancelScope())
            await asyncio.sleep(0)
            queue.append(number)
            waiters.ring(["a"])
            if number % 2:
                await asyncio.sleep(0)
            impatient.cancel()
        with anyio.fail_after(60):
            await all_taken.wait()
        tasks.cancel_scope.cancel()
    assert sorted(taken) == list(range(total))
