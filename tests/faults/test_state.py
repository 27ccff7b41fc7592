"""State shared by real processes: no update is lost, watchers are prompt, and entries survive kill -9."""

import asyncio
import json
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, closing
from pathlib import Path
from statistics import median

import pytest

import agentbus
from agentbus.records import StateEntry
from tests.faults.rows import integrity, value
from tests.support.figures import Figure, Scale
from tests.support.processes import Team, eventually

RACERS = 8
TIMES = 10
ROUNDS = 20
PROMPT = 5.0
"""Seconds, on a busy machine too; the heartbeat, which is the only polling, comes once an hour here."""


@pytest.mark.slow
def test_processes_compare_and_set_and_no_addition_is_lost(tmp_path: Path, team: Team) -> None:
    bus = tmp_path / "bus"
    begun = time.monotonic()
    answers = json.loads(team.start("worker_state", "race", bus, RACERS, TIMES).expect("answers", 60))
    errors = [answer["error"] for answer in answers if "error" in answer]
    assert not errors, f"{len(errors)} of {RACERS} failed, the first with\n{errors[0]}"
    conflicts = sum(answer["conflicts"] for answer in answers)
    took = time.monotonic() - begun
    print(f"{RACERS} processes, {TIMES} additions each: {conflicts} conflicts, {took:.1f} s")
    total = str(RACERS * TIMES)
    assert value(bus, "SELECT value FROM state WHERE key = 'sum'") == total
    assert value(bus, "SELECT version FROM state WHERE key = 'sum'") == RACERS * TIMES
    assert value(bus, "SELECT value FROM state WHERE key = 'plain'") == total
    assert value(bus, "SELECT value FROM counters WHERE name = 'change'") == 2 * RACERS * TIMES
    assert conflicts >= RACERS - 1, "all read the same version first, and only one of them may write it"
    assert integrity(bus) == "ok"


@pytest.mark.slow
@pytest.mark.fault(15)
def test_of_many_that_compare_and_set_at_once_as_many_succeed_as_the_value_says(
    tmp_path: Path, team: Team, figure: Figure, scale: Scale
) -> None:
    processes, times = scale((4, 60), (32, 1000), (32, 10_000))
    bus = tmp_path / "bus"
    answers = json.loads(team.start("worker_state", "attempt", bus, processes, times).expect("answers", 600))
    errors = [answer["error"] for answer in answers if "error" in answer]
    assert not errors, f"{len(errors)} of {processes} failed, the first with\n{errors[0]}"
    won = sum(answer["won"] for answer in answers)
    total = int(value(bus, "SELECT value FROM state WHERE key = 'sum'"))
    figure(attempts=processes * times, succeeded=won, lost=won - total, note=f"the value is {total:,}")
    assert won == total == value(bus, "SELECT version FROM state WHERE key = 'sum'")
    assert won <= processes * times - (processes - 1), "all read the same version first, and only one may write it"
    assert integrity(bus) == "ok"


async def test_a_watcher_in_another_process_receives_a_change_at_once(short: Path, team: Team) -> None:
    path = short / "bus"
    async with agentbus.connect(path, beat_every=3600) as bus:
        state = bus.state("talk")
        await state.set("ping", "begin")
        team_mate = team.start("worker_state", "watch", path)
        await asyncio.to_thread(team_mate.expect, "ready")
        times: list[float] = []
        async with aclosing(state.watch("pong")) as answers:
            assert (await _next(answers)).value == "begin"
            for number in range(ROUNDS):
                begun = time.perf_counter()
                await state.set("ping", number)
                assert (await _next(answers)).value == number
                times.append(time.perf_counter() - begun)
        print(f"{ROUNDS} round trips of a set, a watch, a set, a watch: p50 {median(times) * 1e3:.1f} ms")
        assert median(times) < PROMPT
        begun = time.perf_counter()
        await state.delete("ping")
        assert await asyncio.to_thread(team_mate.expect, "gone") == "ping"
        await state.set("ping-2", 1, ttl=0.3)
        assert await asyncio.to_thread(team_mate.expect, "gone") == "ping-2"
        took = time.perf_counter() - begun
        print(f"a deletion and an expiry after 300 ms were told within {took * 1e3:.0f} ms")
        assert 0.3 < took < 10


async def _next(changes: AsyncGenerator[StateEntry, None]) -> StateEntry:
    return await asyncio.wait_for(anext(changes), 30)


async def test_a_change_without_a_notification_is_found_by_the_next_heartbeat(tmp_path: Path) -> None:
    """As if its writer had been killed between its commit and its bell."""
    async with (
        agentbus.connect(tmp_path, beat_every=0.2) as bus,
        aclosing(bus.state("s").watch()) as changes,
    ):
        await bus.state("s").set("first", 1)
        assert (await _next(changes)).key == "first"
        with closing(sqlite3.connect(tmp_path / "bus.db", isolation_level=None, timeout=30)) as connection:
            connection.execute("UPDATE counters SET value = 2 WHERE name = 'change'")
            connection.execute(
                "INSERT INTO state (scope, key, version, change, checksum, created, updated, value)"
                " SELECT scope, 'second', 1, 2, checksum, 0, 0, value FROM state"
            )
        begun = time.monotonic()
        assert (await _next(changes)).key == "second"
        assert time.monotonic() - begun < 10


async def test_a_set_entry_survives_kill_9(tmp_path: Path, team: Team) -> None:
    path = tmp_path / "bus"
    writer = team.start("worker_state", "write", path)
    for _ in range(30):
        writer.expect("version")
    writer.kill()
    acknowledged = max(int(line.split()[1]) for line in [*writer.said(), "version 30"] if line)
    async with agentbus.connect(path) as bus:
        entry = await bus.state("writer").entry("n")
        assert entry is not None
        print(f"{acknowledged} acknowledged, {entry.version} there")
        # One more may have been committed whose acknowledgement was cut off.
        assert acknowledged <= entry.version <= acknowledged + 1
        assert entry.value == entry.version
    assert integrity(path) == "ok"


async def test_a_killed_watcher_is_unregistered(short: Path, team: Team) -> None:
    path = short / "bus"
    async with agentbus.connect(path, beat_every=0.1) as bus:
        await bus.state("talk").set("ping", "begin")
        watcher = team.start("worker_state", "watch", path)
        await asyncio.to_thread(watcher.expect, "ready")
        assert value(path, "SELECT count(*) FROM listeners WHERE channel = 'state/talk'") == 1
        watcher.kill()

        def marked_dead() -> bool:
            return bool(value(path, "SELECT count(*) FROM listeners WHERE channel = 'state/talk'") == 0)

        await asyncio.to_thread(eventually, marked_dead, "its listening ends")
        await bus.state("talk").set("ping", 2)
