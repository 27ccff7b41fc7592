"""Ears and the hub: no ring is lost, and one that is not used goes to the next who waits."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import Callable

import anyio
import pytest

from agentbus.clock import Now
from agentbus.engine.hub import Ear, Hub


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
def hub(standing: StandingClock) -> Hub:
    return Hub(standing)


async def turns() -> None:
    """Let every task that can go on do so."""
    for _ in range(5):
        await asyncio.sleep(0)


def waiting(ear: Ear, seconds: float | None = None) -> asyncio.Task[None]:
    return asyncio.ensure_future(ear.wait(seconds))


async def test_a_ring_wakes_who_waits(hub: Hub) -> None:
    ear = hub.listen(("a",))
    task = waiting(ear)
    await turns()
    assert not task.done()
    hub.ring(["a"])
    with anyio.fail_after(5):
        await task
    assert not ear.rung


async def test_a_ring_between_listening_and_waiting_is_not_lost(hub: Hub) -> None:
    ear = hub.listen(("a",))
    hub.ring(["a"])
    with anyio.fail_after(5):
        await ear.wait(None)


async def test_a_used_ring_wakes_only_once(hub: Hub) -> None:
    ear = hub.listen(("a",))
    hub.ring(["a"])
    await ear.wait(None)
    task = waiting(ear)
    await turns()
    assert not task.done()
    task.cancel()


async def test_a_ring_of_another_channel_wakes_nobody(hub: Hub) -> None:
    ear = hub.listen(("a", "b"))
    task = waiting(ear)
    hub.ring(["c"])
    await turns()
    assert not task.done()
    hub.ring(["b"])
    await task


async def test_one_ring_wakes_one_waiter(hub: Hub) -> None:
    tasks = [waiting(hub.listen(("a",))) for _ in range(3)]
    await turns()
    hub.ring(["a"])
    await turns()
    assert [task.done() for task in tasks] == [True, False, False]
    for task in tasks:
        task.cancel()


async def test_a_channel_named_twice_wakes_two(hub: Hub) -> None:
    tasks = [waiting(hub.listen(("a",))) for _ in range(3)]
    await turns()
    hub.ring(["a", "a"])
    await turns()
    assert [task.done() for task in tasks] == [True, True, False]
    tasks[2].cancel()


async def test_two_rings_before_anybody_woke_wake_two(hub: Hub) -> None:
    # The first is awake already, though its task has not run yet: the second ring must not be spent on it.
    tasks = [waiting(hub.listen(("a",))) for _ in range(2)]
    await turns()
    hub.ring(["a"])
    hub.ring(["a"])
    await turns()
    assert all(task.done() for task in tasks)


async def test_a_ring_that_its_waiter_did_not_use_goes_to_the_next(hub: Hub) -> None:
    first, second = hub.listen(("a",)), hub.listen(("a",))
    task = waiting(second)
    await turns()
    hub.ring(["a"])
    assert first.rung
    assert not second.rung
    first.close()
    with anyio.fail_after(5):
        await task


async def test_a_ring_for_a_waiter_that_was_cancelled_goes_to_the_next(hub: Hub) -> None:
    first, second = hub.listen(("a",)), hub.listen(("a",))
    cancelled, task = waiting(first), waiting(second)
    await turns()
    hub.ring(["a"])
    # Rung, but not yet running: the cancellation comes in between.
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert first.rung
    first.close()
    with anyio.fail_after(5):
        await task


async def test_a_ring_that_was_used_is_not_passed_on(hub: Hub) -> None:
    first, second = hub.listen(("a",)), hub.listen(("a",))
    hub.ring(["a"])
    await first.wait(None)
    first.close()
    assert not second.rung


async def test_a_waiter_that_left_something_behind_wakes_the_next(hub: Hub) -> None:
    first, second = hub.listen(("a",)), hub.listen(("a",))
    hub.ring(["a"])
    await first.wait(None)
    first.rung = True
    first.close()
    assert second.rung


async def test_a_ring_passed_on_is_heard_on_every_channel_of_its_waiter(hub: Hub) -> None:
    # Nobody knows any more on which channel it was rung.
    both = hub.listen(("a", "b"))
    only_b = hub.listen(("b",))
    hub.ring(["a"])
    both.close()
    assert only_b.rung


async def test_a_closed_ear_is_never_rung(hub: Hub) -> None:
    ear = hub.listen(("a",))
    ear.close()
    hub.ring(["a"])
    assert not ear.rung
    assert hub.channels == []


async def test_closing_twice_is_fine(hub: Hub) -> None:
    ear = hub.listen(("a",))
    ear.close()
    ear.close()


async def test_a_waiter_gives_up_after_its_time(hub: Hub, standing: StandingClock) -> None:
    task = waiting(hub.listen(("a",)), 30)
    await turns()
    assert [timer.seconds for timer in standing.timers] == [30]
    assert not task.done()
    standing.timers[0].callback()
    with anyio.fail_after(5):
        await task


async def test_a_ring_calls_the_timer_off(hub: Hub, standing: StandingClock) -> None:
    task = waiting(hub.listen(("a",)), 30)
    await turns()
    hub.ring(["a"])
    await task
    assert standing.timers[0].cancelled


async def test_a_cancelled_waiter_calls_its_timer_off(hub: Hub, standing: StandingClock) -> None:
    task = waiting(hub.listen(("a",)), 30)
    await turns()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert standing.timers[0].cancelled


async def test_a_timer_that_rings_late_does_no_harm(hub: Hub, standing: StandingClock) -> None:
    ear = hub.listen(("a",))
    task = waiting(ear, 30)
    await turns()
    hub.ring(["a"])
    await task
    standing.timers[0].callback()
    assert not ear.rung


async def test_time_and_ring_together_are_one_waking_up(hub: Hub, standing: StandingClock) -> None:
    ear = hub.listen(("a",))
    task = waiting(ear, 30)
    await turns()
    standing.timers[0].callback()
    hub.ring(["a"])
    await task
    # It looks after both, so that neither is left over.
    assert not ear.rung


@pytest.mark.parametrize("seconds", [0, -1])
async def test_no_time_to_wait_is_no_wait(hub: Hub, standing: StandingClock, seconds: float) -> None:
    with anyio.fail_after(5):
        await hub.listen(("a",)).wait(seconds)
    assert standing.timers == []


async def test_everybody_can_be_woken(hub: Hub) -> None:
    tasks = [waiting(hub.listen((channel,))) for channel in "aab"]
    await turns()
    hub.ring_all()
    with anyio.fail_after(5):
        await asyncio.gather(*tasks)


async def test_the_channels_are_those_that_somebody_waits_on(hub: Hub) -> None:
    first, second = hub.listen(("a", "b")), hub.listen(("b",))
    assert sorted(hub.channels) == ["a", "b"]
    first.close()
    assert hub.channels == ["b"]
    second.close()
    assert hub.channels == []


async def test_a_ring_wakes_all_who_watch_and_one_who_listens(hub: Hub) -> None:
    watchers = [hub.watch(("a",)) for _ in range(3)]
    listeners = [hub.listen(("a",)) for _ in range(2)]
    hub.ring(["a"])
    assert [ear.rung for ear in watchers] == [True, True, True]
    assert [ear.rung for ear in listeners] == [True, False]


async def test_a_watcher_that_is_awake_already_is_rung_once(hub: Hub) -> None:
    ear = hub.watch(("a",))
    hub.ring(["a", "a"])
    hub.ring(["a"])
    await ear.wait(None)
    task = waiting(ear)
    await turns()
    assert not task.done()
    hub.ring(["a"])
    with anyio.fail_after(5):
        await task


async def test_a_watcher_passes_nothing_on(hub: Hub) -> None:
    # It took nothing away from anybody.
    watcher = hub.watch(("a",))
    hub.ring(["a"])
    listener, other = hub.listen(("a",)), hub.watch(("a",))
    watcher.close()
    assert not listener.rung
    assert not other.rung


async def test_a_closed_watcher_is_never_rung(hub: Hub) -> None:
    gone, there = hub.watch(("a",)), hub.watch(("a",))
    gone.close()
    gone.close()
    hub.ring(["a"])
    assert not gone.rung
    assert there.rung


async def test_watchers_can_be_woken_by_themselves_and_with_everybody(hub: Hub) -> None:
    watchers, listener = [hub.watch((channel,)) for channel in "aab"], hub.listen(("a",))
    hub.ring_watchers()
    assert all(ear.rung for ear in watchers)
    assert not listener.rung
    for ear in watchers:
        await ear.wait(None)
    hub.ring_all("a")
    assert [ear.rung for ear in watchers] == [True, True, False]
    hub.ring_all()
    assert watchers[2].rung
    assert listener.rung


async def test_what_is_only_watched_is_no_mailbox_to_look_into(hub: Hub) -> None:
    hub.watch(("mailbox/1",))
    assert hub.channels == []


async def test_no_message_is_lost_among_many_impatient_waiters(hub: Hub) -> None:
    """Whoever waits may be cancelled at any moment, rung or not: in the end everything is taken, once."""
    total = 200
    queue: list[int] = []
    taken: list[int] = []
    all_taken = anyio.Event()

    async def receive(scope: anyio.CancelScope) -> None:
        with scope:
            ear = hub.listen(("a",))
            try:
                while not queue:
                    await ear.wait(None)
                taken.append(queue.pop())
                ear.rung = bool(queue)
            finally:
                ear.close()
            if len(taken) == total:
                all_taken.set()

    async with anyio.create_task_group() as tasks:
        for number in range(total):
            impatient = anyio.CancelScope()
            tasks.start_soon(receive, impatient)
            tasks.start_soon(receive, anyio.CancelScope())
            await asyncio.sleep(0)
            queue.append(number)
            hub.ring(["a"])
            if number % 2:
                await asyncio.sleep(0)
            impatient.cancel()
        with anyio.fail_after(10):
            await all_taken.wait()
        tasks.cancel_scope.cancel()
    assert sorted(taken) == list(range(total))
