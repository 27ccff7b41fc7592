"""Retention of a year of checkpoints: the newest of each owner and name, then one a day for a month."""

from __future__ import annotations

import pytest

from agentbus import Bus, RetentionPolicy
from agentbus.operations import retention as retention_operations
from tests.api.helpers import worker
from tests.conftest import Engine
from tests.support.clock import START, FakeClock

DAY = 24 * 3600
MS = DAY * 1000


async def there(bus: Bus, owner: str, name: str, kind: str = "agent") -> list[tuple[int, int]]:
    """The id and wall time of every checkpoint, newest first."""
    found: list[tuple[int, int]] = []
    cursor = None
    while True:
        page = await bus.checkpoints.list(owner, name, kind=kind, cursor=cursor, limit=1000)
        found += [(item.id, item.created) for item in page.items]
        if page.cursor is None:
            return found
        cursor = page.cursor


def expected(all_of_them: list[tuple[int, int]], now: int, last: int = 24, days: int = 30) -> list[tuple[int, int]]:
    """Said in another way than the rule under test: the newest, and the last of each of the last days."""
    kept = set(all_of_them[:last])
    for day in range(now // MS - days - 1, now // MS + 1):
        of_day = [item for item in all_of_them if day * MS <= item[1] < (day + 1) * MS]
        if of_day and of_day[0][1] > now - days * MS:
            kept.add(of_day[0])
    return sorted(kept, reverse=True)


async def test_months_of_checkpoints_are_thinned_out(engine: Engine, clock: FakeClock) -> None:
    """Four a day for 70 days, another name twice a day, a session's once a day; retention is applied every 30 days."""
    clock.advance((MS - START % MS) / 1000)
    async with engine.connect(durability="process", beat_every=10 * DAY) as bus:
        a = await worker(bus, "a")
        async with bus.session("planning", id="s1"):
            steps: list[tuple[int, int]] = []
            notes: list[tuple[int, int]] = []
            daily: list[tuple[int, int]] = []
            for quarter in range(4 * 70):
                saved = await a.checkpoint("steps", {"quarter": quarter})
                steps.insert(0, (saved.id, saved.created))
                if quarter % 2 == 0:
                    saved = await a.checkpoint("notes", quarter)
                    notes.insert(0, (saved.id, saved.created))
                if quarter % 4 == 0:
                    saved = await bus.checkpoints.save("s1", "daily", quarter, kind="session")
                    daily.insert(0, (saved.id, saved.created))
                clock.advance(DAY / 4)
                if quarter % 120 == 119:
                    await bus.retention.apply()
            trial = await bus.retention.apply(dry_run=True)
            report = await bus.retention.apply()
            assert trial.removed == report.removed
            now = clock.now().wall
            for owner, name, kind, made in (
                ("a", "steps", "agent", steps),
                ("a", "notes", "agent", notes),
                ("s1", "daily", "session", daily),
            ):
                assert await there(bus, owner, name, kind) == expected(made, now), name
            left = await there(bus, "a", "steps")
            assert left[:24] == steps[:24]
            assert len(left) == 24 + 24, "6 days of four, and the last of each of the 24 days before"
            assert len({created // MS for _, created in left[24:]}) == 24
            assert len(await there(bus, "s1", "daily", "session")) == 29, "the one of 30 days ago has just gone"
            newest = await a.restore("steps")
            assert newest is not None
            assert newest.snapshot == {"quarter": 279}


async def test_the_last_ones_stay_however_old_they_are(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    ids = [(await a.checkpoint("n", n)).id for n in range(30)]
    clock.advance(1000 * DAY)
    assert (await bus.retention.apply()).removed["checkpoint"] == 6
    assert [id for id, _ in await there(bus, "a", "n")] == sorted(ids[6:], reverse=True)


async def test_the_last_of_a_day_stays_though_others_of_that_day_are_among_the_newest(
    bus: Bus, clock: FakeClock
) -> None:
    """Once the newest move on, the last one of that day must still be there."""
    a = await worker(bus, "a")
    policy = RetentionPolicy(checkpoints_last=2)
    first = [(await a.checkpoint("n", n)).id for n in range(4)]
    assert (await bus.retention.apply(policy=policy)).removed == {"checkpoint": 2}
    clock.advance(DAY)
    second = [(await a.checkpoint("n", n)).id for n in range(3)]
    assert (await bus.retention.apply(policy=policy)).removed == {"checkpoint": 2}
    assert [id for id, _ in await there(bus, "a", "n")] == [second[2], second[1], first[3]]


async def test_each_owner_and_name_is_counted_by_itself(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    for _ in range(3):
        for agent in (a, b):
            for name in ("n", "nn"):
                await agent.checkpoint(name, 1)
        clock.advance(1)
    policy = RetentionPolicy(checkpoints_last=3)
    assert (await bus.retention.apply(policy=policy)).removed == {}
    await b.checkpoint("nn", 1)
    assert (await bus.retention.apply(policy=policy)).removed == {"checkpoint": 1}
    assert len(await there(bus, "b", "nn")) == 3


async def test_more_owners_than_one_page_are_all_processed(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_operations, "_GROUPS", 5)
    for number in range(12):
        agent = await worker(bus, f"a{number:03}")
        await agent.checkpoint("n", 1)
        await agent.checkpoint("n", 2)
    assert clock.now().wall == START
    trial = await bus.retention.apply(dry_run=True, policy=RetentionPolicy(checkpoints_last=1))
    report = await bus.retention.apply(policy=RetentionPolicy(checkpoints_last=1))
    assert trial.removed == report.removed == {"checkpoint": 12}
