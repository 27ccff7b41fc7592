"""The work and the warnings of a sweep; a warning is repeated only when it changes."""

from __future__ import annotations

import asyncio

import pytest

from agentbus import Bus, pool
from agentbus.api.monitor import Sweeper, Thresholds
from agentbus.errors import RequestDied
from agentbus.operations.liveness import Rules
from agentbus.operations.sweep import CleanUpRequest, clean_up
from agentbus.records import Finding
from tests.api.helpers import running, soon, stored, take, take_all, worker
from tests.api.other_processes import ELSEWHERE, beats, resident, stranger
from tests.support.clock import FakeClock

RULES = Rules(60_000, 300_000)


def sweeper(bus: Bus, **thresholds: int) -> Sweeper:
    return Sweeper(bus._engine, RULES, Thresholds(**thresholds))


async def warnings(sweeper: Sweeper, kind: str) -> list[Finding]:
    return [finding for finding in (await sweeper.sweep()).findings if finding.kind == kind]


# Mailboxes that no agent claims from


async def test_messages_not_received_in_time_expire(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await bus.expect("never", type="worker")
    await bus.declare(pool("jobs"))
    old = [await a.send(to, "note", ttl=10, delay=delay) for to in ("never", pool("jobs"), "a") for delay in (None, 5)]
    kept = [await a.send("never", "note"), await a.send("never", "note", ttl=60)]
    clock.stall(16)
    sweep = await bus.sweep()
    assert sweep.counts["messages_expired"] == 6
    assert {(await stored(bus, receipt.message_id)).status for receipt in old} == {"expired"}
    assert {(await stored(bus, receipt.message_id)).status for receipt in kept} == {"queued"}
    assert (await bus.sweep()).counts["messages_expired"] == 0


async def test_an_expired_lease_is_released_without_a_claim(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a", pools=["jobs"])
    receipt = await a.send(pool("jobs"), "note", "work")
    last = await a.send(pool("jobs"), "note", "last", max_attempts=1)
    await a.receive_many(2, timeout=0, lease=30)
    await a.leave("jobs")
    clock.stall(29)
    assert (await bus.sweep()).counts["leases_freed"] == 0
    clock.stall(1)
    sweep = await bus.sweep()
    assert sweep.counts["leases_freed"] == 2
    record = await stored(bus, receipt.message_id)
    assert (record.status, record.attempts, record.error) == ("queued", 1, "a: its lease ran out")
    dead = await stored(bus, last.message_id)
    assert (dead.status, dead.error) == ("dead", "a: its lease ran out, attempt 1 of 1")
    (finding,) = [finding for finding in sweep.findings if finding.kind == "messages_dead"]
    assert (finding.severity, finding.facts["count"]) == ("warning", 1)
    assert list(finding.facts["errors"]) == [last.message_id]


async def test_a_released_lease_wakes_a_waiting_receiver_and_a_dead_request_its_requester(
    bus: Bus, clock: FakeClock
) -> None:
    a, b, c = [await worker(bus, id, pools=["jobs"]) for id in "abc"]
    await c.leave("jobs")
    async with running(c.request(pool("jobs"), "note", timeout=600, max_attempts=1)) as asking:
        await clock.settle()
        await take(a, lease=30)
        await a.leave("jobs")
        await b.leave("jobs")
        clock.stall(31)
        await bus.sweep()
        with pytest.raises(RequestDied):
            await soon(asking)


async def test_a_released_message_past_its_ttl_expires(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a", pools=["jobs"])
    receipt = await a.send(pool("jobs"), "note", ttl=10)
    await take(a, lease=30)
    await a.leave("jobs")
    clock.stall(31)
    sweep = await bus.sweep()
    assert (sweep.counts["leases_freed"], sweep.counts["messages_expired"]) == (1, 1)
    assert (await stored(bus, receipt.message_id)).status == "expired"


async def test_the_sweep_works_in_bounded_steps(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send_many({"to": "a", "type": "note", "ttl": 5} for _ in range(25))
    clock.stall(6)
    mailbox = a._mailboxes.own[0]
    found = [await bus._engine.write(clean_up, CleanUpRequest((mailbox,), limit=10)) for _ in range(3)]
    assert [(step.expired, step.more) for step in found] == [(10, True), (10, True), (5, False)]
    await a.send_many({"to": "a", "type": "note", "ttl": 5} for _ in range(2500))
    clock.stall(6)
    assert (await bus.sweep()).counts["messages_expired"] == 2500


async def test_state_that_expired_becomes_a_tombstone(bus: Bus, clock: FakeClock) -> None:
    for n in range(3):
        await bus.state("builds").set(f"k{n}", n, ttl=10)
    clock.stall(11)
    sweep = await bus.sweep()
    assert sweep.counts["state_expired"] == 3
    assert (await bus.sweep()).counts["state_expired"] == 0


# Warnings


async def test_a_host_with_only_silent_processes_is_reported_once_as_a_host(bus: Bus, clock: FakeClock) -> None:
    first, second = await stranger(bus, host=ELSEWHERE), await stranger(bus, host=ELSEWHERE)
    await stranger(bus, host="third-machine/pid:[1]")
    await resident(bus, "a", first)
    sweeps = sweeper(bus)
    clock.stall(50)
    await beats(bus, second)
    clock.stall(50)
    assert [finding.subject for finding in await warnings(sweeps, "host_silent")] == ["host:third-machine/pid:[1]"]
    clock.stall(20)
    (finding,) = await warnings(sweeps, "host_silent")
    assert (finding.subject, finding.severity) == (f"host:{ELSEWHERE}", "error")
    assert finding.facts == {"processes": 2, "silent": 70.0}
    assert await warnings(sweeps, "host_silent") == [], "once"
    await beats(bus, first)
    assert await warnings(sweeps, "host_silent") == []
    clock.stall(61)
    assert len(await warnings(sweeps, "host_silent")) == 1, "again, after it was back"
    clock.stall(600)
    assert await warnings(sweeps, "host_silent") == [], "its processes are marked dead one by one"


async def test_a_pool_with_work_and_no_live_member_is_reported_once_until_it_changes(bus: Bus) -> None:
    boss, sweeps = await worker(bus, "boss"), sweeper(bus)
    await bus.declare(pool("jobs"), pool("idle"))
    assert await warnings(sweeps, "pool_unattended") == []
    await boss.send(pool("jobs"), "note")
    (finding,) = await warnings(sweeps, "pool_unattended")
    assert (finding.subject, finding.severity) == ("mailbox:pool:jobs", "warning")
    assert await warnings(sweeps, "pool_unattended") == [], "once"
    member = await worker(bus, "m", pools=["jobs"])
    assert await warnings(sweeps, "pool_unattended") == []
    await member.fail("crashed")
    assert len(await warnings(sweeps, "pool_unattended")) == 1, "a failed member is still one, but not live"
    await take_all(await worker(bus, "m"))
    assert await warnings(sweeps, "pool_unattended") == []


async def test_a_deep_queue_is_reported(bus: Bus, clock: FakeClock) -> None:
    a, sweeps = await worker(bus, "a"), sweeper(bus, queue=10)
    await bus.expect("b", type="worker")
    await a.send_many([("a", "note")] * 10 + [("b", "note")] * 10)
    assert await warnings(sweeps, "queue_deep") == []
    await a.send("b", "note", priority=9)
    assert await warnings(sweeps, "queue_deep") == [], "that is looked at once a minute"
    clock.stall(60)
    (finding,) = await warnings(sweeps, "queue_deep")
    assert (finding.subject, finding.facts) == ("mailbox:b", {"more_than": 10})
    assert await warnings(sweeps, "queue_deep") == []
    await a.send("a", "note")
    clock.stall(60)
    assert [finding.subject for finding in await warnings(sweeps, "queue_deep")] == ["mailbox:a"]


async def test_due_work_without_a_receiver_is_reported_too(bus: Bus, clock: FakeClock) -> None:
    a, sweeps = await worker(bus, "a"), sweeper(bus, queue=2)
    await bus.declare(pool("jobs"))
    await bus.expect("b", type="worker")
    for to in (pool("jobs"), "b", "b", "b"):
        await a.send(to, "note", delay=5)
    assert [finding.kind for finding in (await sweeps.sweep()).findings] == []
    clock.stall(60)
    found = [(finding.kind, finding.subject) for finding in (await sweeps.sweep()).findings]
    assert found == [("pool_unattended", "mailbox:pool:jobs"), ("queue_deep", "mailbox:b")]


async def test_a_long_log_and_a_full_disk_are_reported_and_again_when_they_get_worse(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = sweeper(bus)
    log, free = 64 * 1024 * 1024, 512 * 1024 * 1024

    async def sizes() -> tuple[int, int]:
        await asyncio.sleep(0)
        return 1, log

    monkeypatch.setattr(bus._engine, "sizes", sizes)
    monkeypatch.setattr(bus._engine, "free_space", lambda: free)
    assert (await sweeps.sweep()).findings == []
    log, free = log + 1, free - 1
    found = (await sweeps.sweep()).findings
    assert [(finding.kind, finding.subject, finding.severity) for finding in found] == [
        ("log_long", "bus:log", "warning"),
        ("disk_low", "bus:disk", "error"),
    ]
    assert found[1].facts == {"bytes": free}
    log, free = log + 5000, free - 5000
    assert (await sweeps.sweep()).findings == []
    log, free = log * 2, free // 2
    assert len((await sweeps.sweep()).findings) == 2


async def test_a_single_sweep_reports_every_lasting_condition(bus: Bus) -> None:
    boss = await worker(bus, "boss")
    await bus.declare(pool("jobs"))
    await boss.send(pool("jobs"), "note")
    for _ in range(2):
        assert [finding.kind for finding in (await bus.sweep()).findings] == ["pool_unattended"]
