"""The retention policy belongs to the bus: one for every process, applied by the first monitor."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from agentbus import Bus, RetentionPolicy
from agentbus.errors import InvalidInput, OutOfRange, StoreError
from agentbus.records import EventRecord, Finding
from tests.api.helpers import eventually, worker
from tests.api.retention_helpers import DAY
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock

HOUR = 3600.0


async def changes(bus: Bus) -> list[dict[str, Any]]:
    return [event.facts async for event in bus.events(kind="retention_changed")]


async def applications(bus: Bus) -> list[EventRecord]:
    return [event async for event in bus.events(kind="retention_applied")]


async def applied(bus: Bus, clock: FakeClock, times: int) -> None:
    """Wait for the threads that archive: by now it was applied so often, and no more."""
    with anyio.fail_after(60):
        while len(await applications(bus)) < times:
            await clock.settle()
    await clock.settle()
    assert len(await applications(bus)) == times


async def finished(bus: Bus, name: str, count: int = 1) -> None:
    agent = await worker(bus, name)
    await agent.send_many([(name, "note", n) for n in range(count)])
    await agent.ack(await agent.receive_many(count, timeout=0))


async def test_the_defaults_hold_until_something_is_changed(bus: Bus) -> None:
    assert await bus.retention.policy() == RetentionPolicy()
    assert await bus.retention.change() == RetentionPolicy()
    assert await changes(bus) == []


async def test_a_change_holds_for_every_process_and_persists(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        changed = await bus.retention.change(messages=3 * DAY, events=None)
        assert changed == RetentionPolicy(messages=3 * DAY, events=None)
        assert await other.retention.policy() == changed
        changed = await other.retention.change(agents=DAY)
        assert changed == RetentionPolicy(messages=3 * DAY, events=None, agents=DAY), "only what is named changes"
    async with engine.connect() as bus:
        assert await bus.retention.policy() == changed
        assert await changes(bus) == [
            {"before": {"messages": 7 * DAY, "events": 90 * DAY}, "after": {"messages": 3 * DAY, "events": None}},
            {"before": {"agents": 7 * DAY}, "after": {"agents": DAY}},
        ]


async def test_an_unchanged_policy_is_no_change(bus: Bus) -> None:
    await bus.retention.change(messages=DAY)
    await bus.retention.change(messages=DAY, events=90 * DAY)
    assert len(await changes(bus)) == 1


async def test_a_change_is_what_is_applied_and_a_policy_for_once_leaves_it(bus: Bus, clock: FakeClock) -> None:
    await finished(bus, "a")
    await bus.retention.change(messages=None)
    clock.advance(30 * DAY)
    assert (await bus.retention.apply()).removed == {}
    await bus.retention.change(messages=DAY)
    assert (await bus.retention.apply(dry_run=True)).removed == {"message": 1}
    assert (await bus.retention.apply(policy=RetentionPolicy())).removed == {"message": 1}
    assert await bus.retention.policy() == RetentionPolicy(messages=DAY)


@pytest.mark.one_engine
@each(
    ("wrong", "error"),
    [
        ({"messages": -1}, OutOfRange), ({"messages": "7"}, OutOfRange), ({"checkpoints_last": None}, OutOfRange),
        ({"checkpoints_last": 0}, OutOfRange), ({"message": 7}, InvalidInput), ({"dry_run": True}, InvalidInput),
    ],
)  # fmt: skip
async def test_a_change_that_makes_no_sense_is_refused(bus: Bus, wrong: dict[str, Any], error: type[Exception]) -> None:
    before = await changes(bus)
    with pytest.raises(error):
        await bus.retention.change(events=DAY, **wrong)
    assert await bus.retention.policy() == RetentionPolicy()
    assert await changes(bus) == before
    await bus.retention.change(events=DAY)
    await bus.retention.change(events=RetentionPolicy().events)


@pytest.mark.one_engine
@each("wrong", [7, {"messages": 1}, "none", RetentionPolicy])
async def test_an_invalid_policy_is_refused(bus: Bus, wrong: Any) -> None:
    with pytest.raises(InvalidInput):
        await bus.retention.apply(policy=wrong)


async def test_a_damaged_policy_removes_nothing_and_can_be_replaced(bus: Bus, engine: Engine) -> None:
    await finished(bus, "a")
    await bus.retention.change(messages=0)
    assert not await engine.tamper("UPDATE meta SET value = 'mine' WHERE key = 'retention'")
    assert await engine.tamper("""UPDATE meta SET value = '{"messages": -5}' WHERE key = 'retention'""")
    with pytest.raises(StoreError, match="retention policy"):
        await bus.retention.apply()
    assert (await bus.stats()).messages == {"acked": 1}
    assert await bus.retention.change(events=None) == RetentionPolicy(events=None)
    assert (await bus.retention.apply()).removed == {}


# The monitor


async def test_a_monitor_applies_the_policy_of_the_bus_after_its_first_interval(bus: Bus, clock: FakeClock) -> None:
    await finished(bus, "a", 3)
    await bus.retention.change(messages=0)
    found: list[Finding] = []
    async with bus.monitor(interval=10, suspect_after=10**6, fail_after=10**6, on_finding=found.append) as monitor:
        await clock.pass_time(9)
        assert await applications(bus) == []
        await clock.pass_time(2)
        await applied(bus, clock, 1)
        await clock.pass_time(10)
        await eventually(clock, lambda: bool(found))
        (event,) = await applications(bus)
        assert event.facts["counts"] == {"message": 3}
        (finding,) = found
        assert (finding.kind, finding.subject, finding.severity) == ("retention_applied", "bus:retention", "info")
        assert "3 messages" in finding.text
        assert finding.facts == {"counts": {"message": 3}, "archives": [event.facts["archive"]]}
        assert monitor.last is not None
        # The previous sweep, which ran concurrently with the retention, may have reported it.
        assert monitor.last.findings in (found, [])


async def test_of_many_monitors_one_applies_it_and_again_after_an_hour(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect(beat_every=100) as bus, engine.connect(beat_every=100) as other:
        await bus.retention.change(messages=0)
        quiet = {"suspect_after": 10**6, "fail_after": 10**6}
        async with (
            bus.monitor(interval=40, **quiet),  # type: ignore[arg-type]
            bus.monitor(interval=40, **quiet),  # type: ignore[arg-type]
            other.monitor(interval=30, **quiet),  # type: ignore[arg-type]
        ):
            for hour in range(2):
                await finished(bus, f"a{hour}", 2)
                await clock.pass_time(200)
                await applied(bus, clock, hour + 1)
                clock.advance(HOUR - 200)


async def test_applying_it_by_hand_postpones_the_monitors_by_an_hour(bus: Bus, clock: FakeClock) -> None:
    await bus.retention.change(messages=0)
    await bus.retention.apply()
    await finished(bus, "a")
    await bus.retention.apply(dry_run=True)
    await bus.retention.apply(policy=RetentionPolicy(messages=None))
    clock.advance(HOUR - 100)
    async with bus.monitor(interval=10, suspect_after=10**6, fail_after=10**6):
        await clock.pass_time(60)
        assert await applications(bus) == []
        await clock.pass_time(120)
        await applied(bus, clock, 1)


async def test_a_clock_that_was_set_back_delays_nothing(bus: Bus, clock: FakeClock) -> None:
    await bus.retention.change(messages=0)
    await bus.retention.apply()
    await finished(bus, "a")
    clock.jump(-400 * DAY)
    await finished(bus, "b")
    async with bus.monitor(interval=10, suspect_after=10**6, fail_after=10**6):
        await clock.pass_time(20)
        await applied(bus, clock, 1)


async def test_without_a_monitor_nothing_is_removed(bus: Bus, clock: FakeClock) -> None:
    await bus.retention.change(messages=0)
    await finished(bus, "a")
    await clock.pass_time(30)
    await bus.sweep()
    assert (await bus.stats()).messages == {"acked": 1}
