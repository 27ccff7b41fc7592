"""Two clocks: sleep and wall-clock jumps lose no lease, a reboot invalidates all of them."""

from __future__ import annotations

import pytest

from agentbus import Bus, pool
from agentbus.errors import AgentFenced, RequestTimedOut
from tests.api.helpers import known, nothing_for, running, soon, stored, take, take_all, worker
from tests.api.retention_helpers import DAY
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import START, FakeClock


@each("seconds", [DAY, -DAY, 3600, -1])
async def test_a_wall_clock_that_jumps_loses_no_lease(bus: Bus, clock: FakeClock, seconds: float) -> None:
    a, b = [await worker(bus, id, pools=["p"], takeover=True) for id in "ab"]
    await a.send(pool("p"), "note")
    message = await take(a, lease=30)
    clock.jump(seconds)
    assert await nothing_for(b)
    clock.advance(29)
    assert await nothing_for(b)
    await message.ack()


async def test_a_lease_runs_out_in_awake_time_though_the_wall_clock_went_back(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    await take(a, lease=30)
    clock.jump(-DAY)
    clock.advance(30)
    assert (await take(a)).attempts == 2


async def test_a_machine_that_slept_loses_no_lease(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a", pools=["p"]), await worker(bus, "b", pools=["p"])
    await a.send(pool("p"), "note")
    message = await take(a, lease=30)
    async with message:
        clock.sleep_machine(8 * 3600)
        await clock.settle()
        assert await nothing_for(b)
        await clock.pass_time(29)
        assert await nothing_for(b)
    assert (await stored(bus, message.message_id)).status == "acked"


async def test_agents_stay_alive_while_the_machine_sleeps(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    clock.sleep_machine(DAY)
    async with engine.connect():
        await clock.pass_time(20)
        assert (await known(bus, "a")).status == "running"
        await a.send("a", "note")


async def test_delay_and_ttl_follow_the_wall_clock(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", "tomorrow", delay=DAY)
    await a.send("a", "note", "today", ttl=3600)
    clock.sleep_machine(DAY)
    assert [message.payload for message in await take_all(a)] == ["tomorrow"]


async def test_a_waiting_receiver_gets_what_became_due_while_the_machine_slept(bus: Bus, clock: FakeClock) -> None:
    """Its timer stood still too; the next beat looks."""
    a = await worker(bus, "a")
    await a.send("a", "note", "later", delay=3600)
    async with running(a.receive()) as waiting:
        await clock.settle()
        clock.sleep_machine(DAY)
        await clock.pass_time(11)
        assert await soon(waiting) is not None


async def test_a_timeout_counts_awake_time(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await bus.expect("b", type="worker")
    async with (
        running(a.receive(timeout=30)) as waiting,
        running(a.request("b", "coordination_request", timeout=30)) as asked,
    ):
        await clock.settle()
        clock.jump(-DAY)
        await clock.pass_time(29)
        assert not waiting.done()
        assert not asked.done()
        await clock.pass_time(1)
        assert await soon(waiting) is None
        with pytest.raises(RequestTimedOut):
            await soon(asked)


async def test_ages_are_never_negative(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    clock.jump(-DAY)
    stats = await bus.stats()
    assert stats.oldest_waiting == 0
    assert stats.queues[0].oldest == 0


async def test_messages_keep_their_order_though_the_clock_went_back(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1)
    clock.jump(-DAY)
    await a.send("a", "note", 2)
    assert [message.payload for message in await take_all(a)] == [1, 2]


async def test_a_reboot_invalidates_every_lease_at_once(bus: Bus, engine: Engine) -> None:
    old = await worker(bus, "a")
    await old.send_many({"to": "a", "type": "note", "payload": n} for n in range(3))
    held = await old.receive_many(2, lease=3600)
    # Awake time starts again with the boot: no number of the last one means anything.
    rebooted = FakeClock(wall=START + 60_000, awake=500, boot="boot-2")
    async with engine.connect(clock=rebooted) as after:
        record = await known(after, "a")
        assert record.status == "failed"
        assert record.error
        new = await worker(after, "a")
        messages = await take_all(new)
        assert [(message.payload, message.attempts) for message in messages] == [(0, 2), (1, 2), (2, 1)]
        with pytest.raises(AgentFenced):
            await held[0].ack()
        await new.ack(messages)


async def test_a_reboot_at_the_last_attempt_makes_a_dead_letter(bus: Bus, engine: Engine) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note", max_attempts=1)
    await take(a)
    async with engine.connect(clock=FakeClock(boot="boot-2", awake=500)) as after:
        record = await stored(after, receipt.message_id)
        assert (record.status, record.attempts) == ("dead", 1)


async def test_a_reboot_releases_reserved_messages_without_counting(bus: Bus, engine: Engine) -> None:
    a = await worker(bus, "a")
    await a.send_many({"to": "a", "type": "note", "payload": n, "max_attempts": 2} for n in range(3))
    inbox = a.inbox(prefetch=3)
    await anext(inbox)
    async with engine.connect(clock=FakeClock(boot="boot-2", awake=500)) as after:
        messages = await take_all(await worker(after, "a"))
        assert [(message.payload, message.attempts) for message in messages] == [(0, 2), (1, 1), (2, 1)]


async def test_a_reboot_frees_what_was_held_from_a_pool_that_its_holder_left(bus: Bus, engine: Engine) -> None:
    a = await worker(bus, "a", pools=["p"])
    receipt = await a.send(pool("p"), "note", max_attempts=1)
    await take(a)
    await a.leave("p")
    async with engine.connect(clock=FakeClock(boot="boot-2", awake=500)) as after:
        assert (await stored(after, receipt.message_id)).status == "dead", "its one attempt is used up"


async def test_a_reboot_keeps_everything_else(bus: Bus, engine: Engine) -> None:
    a = await worker(bus, "a")
    await bus.expect("b", type="worker")
    await a.send("b", "note", "waits")
    await a.send("b", "note", "later", delay=60)
    rebooted = FakeClock(wall=START + 60_000, awake=500, boot="boot-2")
    async with engine.connect(clock=rebooted) as after:
        b = await worker(after, "b")
        assert [message.payload for message in await take_all(b)] == ["waits", "later"]


async def test_reopening_in_the_same_boot_invalidates_nothing(bus: Bus, engine: Engine) -> None:
    a = await worker(bus, "a")
    receipt = await a.send("a", "note")
    message = await take(a)
    async with engine.connect():
        assert (await stored(bus, receipt.message_id)).status == "leased"
        assert (await known(bus, "a")).status == "running"
    await message.ack()


async def test_a_stalled_process_keeps_its_agents(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    clock.stall(3600)
    async with engine.connect() as other:
        assert (await known(other, "a")).status == "running"
    clock.advance(0)
    await clock.settle()
    await a.send("a", "note")
