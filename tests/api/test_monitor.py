"""The monitor sweeps, reports findings and continues after errors. Several monitors do no harm."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agentbus import Bus, pool
from agentbus.api.monitor import Monitor, PeriodicJob, Sweeper, Thresholds
from agentbus.core import process_info
from agentbus.errors import InvalidInput, Misuse, NotWritable, OutOfRange, StoreError
from agentbus.operations.liveness import Rules
from agentbus.operations.processes import EnterRequest, enter
from agentbus.records import Finding
from tests.api.helpers import eventually, known, running, soon, stored, take, take_all, worker
from tests.api.other_processes import ABSENT_PID, resident, stranger
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock

RULES = Rules(60_000, 300_000)


async def dies(bus: Bus, *agents: str, **options: str) -> None:
    """Register agents of a process that does not exist."""
    process = await stranger(bus, pid=ABSENT_PID, started="1")
    for agent in agents:
        await resident(bus, agent, process, **options)


async def swept(monitor: Monitor, clock: FakeClock) -> None:
    """Let time pass until a sweep has covered everything up to now."""
    await eventually(clock, lambda: monitor.sweeps > 0)
    before = monitor.sweeps
    await clock.pass_time(5)
    await eventually(clock, lambda: monitor.sweeps > before)


# Reports


async def test_it_sweeps_at_once_and_then_every_interval(bus: Bus, clock: FakeClock) -> None:
    async with bus.monitor(interval=60) as monitor:
        await eventually(clock, lambda: monitor.sweeps == 1)
        await clock.pass_time(59)
        assert monitor.sweeps == 1
        await clock.pass_time(1)
        await eventually(clock, lambda: monitor.sweeps == 2)
        assert monitor.last is not None
        assert (monitor.last.findings, monitor.last.at) == ([], clock.now().wall)


@pytest.mark.one_engine
async def test_its_findings_can_be_iterated_over_by_any_number_until_it_ends(bus: Bus, clock: FakeClock) -> None:
    async def read(monitor: Monitor) -> list[str]:
        return [finding.text async for finding in monitor.findings()]

    async with bus.monitor() as monitor, running(read(monitor)) as first:
        await dies(bus, "a")
        await eventually(clock, lambda: monitor.sweeps == 1)
        await clock.pass_time(5)
        await eventually(clock, lambda: monitor.sweeps == 2)
        late = asyncio.create_task(read(monitor))
        await clock.settle()
        await monitor.__aexit__(None, None, None)
        assert await soon(first) == await soon(late)
        assert "a failed: its process died" in await late


async def test_it_also_reports_findings_of_others_and_failures_of_agents(
    bus: Bus, engine: Engine, clock: FakeClock
) -> None:
    """The heartbeat of another process, or another monitor, may be faster; its findings are reported as well."""
    found: list[Finding] = []
    async with bus.monitor(on_finding=found.append) as monitor, engine.connect() as other:
        await dies(bus, "a")
        await other.sweep()
        await (await worker(bus, "b")).fail("no tests")
        await swept(monitor, clock)
    texts = [finding.text for finding in found]
    assert texts[0] == "a failed: its process died"
    assert texts[1].endswith(f" (pid {ABSENT_PID}) died")
    assert texts[2] == "b failed: no tests"


@pytest.mark.one_engine
async def test_a_callback_may_be_plain_or_async_and_its_failure_stops_nothing(
    bus: Bus, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    plain: list[str] = []
    waited: list[str] = []

    def failing(finding: Finding) -> None:
        plain.append(finding.kind)
        raise ZeroDivisionError

    async def waiting(finding: Finding) -> None:
        await asyncio.sleep(0)
        waited.append(finding.kind)

    async with bus.monitor(on_finding=failing) as one, bus.monitor(on_finding=waiting) as two:
        await eventually(clock, lambda: one.sweeps == two.sweeps == 1)
        await dies(bus, "a", "b")
        await clock.pass_time(5)
        await eventually(clock, lambda: one.sweeps == two.sweeps == 2)
    assert Counter(plain) == Counter(waited) == {"agent_failed": 2, "process_dead": 1}
    assert "on_finding failed on agent_failed" in caplog.text


@pytest.mark.one_engine
async def test_a_callback_that_hangs_does_not_delay_the_sweeps(bus: Bus, clock: FakeClock) -> None:
    async def hang(_: Finding) -> None:
        await asyncio.Event().wait()

    await bus.declare(pool("jobs"))
    await (await worker(bus, "a")).send(pool("jobs"), "note")
    async with bus.monitor(on_finding=hang) as monitor:
        for _ in range(3):
            await swept(monitor, clock)


@pytest.mark.one_engine
async def test_findings_are_logged_by_their_severity(
    bus: Bus, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "agentbus.monitor")
    async with bus.monitor() as monitor:
        a = await worker(bus, "a")
        await clock.pass_time(70)
        await swept(monitor, clock)
        await a.send("a", "note")
        await swept(monitor, clock)
        await a.fail("enough")
        await swept(monitor, clock)
    told = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "agentbus.monitor"]
    assert [level for level, _ in told] == ["WARNING", "INFO", "ERROR"]
    assert all(text.startswith("a ") for _, text in told)
    assert "enough" in told[2][1]


@pytest.mark.one_engine
async def test_a_log_file_gets_one_line_for_each_finding(bus: Bus, clock: FakeClock, tmp_path: Path) -> None:
    file = tmp_path / "monitor.log"
    file.write_text("before\n")
    async with bus.monitor(log_file=file) as monitor:
        await (await worker(bus, "a")).fail("two\nlines")
        await swept(monitor, clock)
    first, line = file.read_text().splitlines()
    assert first == "before"
    assert line == "2023-11-14T22:13:20.000+00:00 error agent_failed agent:a a failed: two\\nlines"
    async with bus.monitor(log_file=tmp_path / "new.log"):
        pass
    assert stat.S_IMODE((tmp_path / "new.log").stat().st_mode) == 0o600


# Options


@pytest.mark.one_engine
@each(
    "options",
    [
        {"interval": 0}, {"interval": -1}, {"interval": "5"}, {"suspect_after": 0}, {"suspect_after": 9.9},
        {"fail_after": 59}, {"fail_stuck_after": 59}, {"fail_stuck_after": 0}, {"deep_queue": 0}, {"deep_queue": 1.5},
        {"fail_after": float("nan")}, {"suspect_after": float("inf")}, {"on_finding": 5},
        {"on_finding": lambda: None}, {"on_finding": lambda a, b: None},
    ],
)  # fmt: skip
async def test_bad_options_are_refused_at_once(bus: Bus, options: dict[str, Any]) -> None:
    with pytest.raises((OutOfRange, InvalidInput)):
        bus.monitor(**options)
    if not options.keys() & {"interval", "on_finding"}:
        with pytest.raises(OutOfRange):
            await bus.sweep(**options)
    assert (await bus.sweep()).findings == []


@pytest.mark.one_engine
async def test_an_unwritable_log_file_is_refused_at_the_start(bus: Bus, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused: list[tuple[Any, type[Exception]]] = [
        (tmp_path, NotWritable), (tmp_path / "none" / "x.log", NotWritable), ("with\0nul", InvalidInput),
        (5, InvalidInput), (tmp_path / "pipe", NotWritable), ("/dev/full", NotWritable),
    ]  # fmt: skip
    for path, error in refused:
        with pytest.raises(error):
            await soon(bus.monitor(log_file=path).__aenter__())
    assert (await bus.sweep()).findings == []


@pytest.mark.one_engine
async def test_a_log_file_that_becomes_unwritable_is_only_logged(
    bus: Bus, clock: FakeClock, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with bus.monitor(log_file=tmp_path / "x.log") as monitor:
        monkeypatch.setattr("agentbus.api.monitor.os.write", full)
        await (await worker(bus, "a")).fail("crashed")
        await clock.pass_time(5)
        monkeypatch.undo()
        assert [finding.kind async for finding in _some(monitor, 1)] == ["agent_failed"]
    assert "[Errno 28] No space left on device" in caplog.text


async def _some(monitor: Monitor, count: int) -> AsyncIterator[Finding]:
    findings = monitor.findings()
    for _ in range(count):
        yield await soon(anext(findings))


@pytest.mark.one_engine
@pytest.mark.parametrize("is_async", [True, False])
async def test_a_callback_that_raises_cancelled_error_does_not_end_the_monitor(
    bus: Bus, clock: FakeClock, caplog: pytest.LogCaptureFixture, is_async: bool
) -> None:
    heard: list[str] = []

    def tell(finding: Finding) -> None:
        heard.append(finding.subject)
        raise asyncio.CancelledError

    async def tell_later(finding: Finding) -> None:
        await asyncio.sleep(0)
        tell(finding)

    async with bus.monitor(on_finding=tell_later if is_async else tell) as monitor:
        for agent in ("a", "b"):
            await (await worker(bus, agent)).fail("crashed")
            await clock.pass_time(5)
        swept = monitor.sweeps
        await clock.pass_time(5)
        assert monitor.sweeps > swept
        assert heard == ["agent:a", "agent:b"]
    assert "on_finding was cancelled on agent_failed" in caplog.text


@pytest.mark.one_engine
async def test_a_monitor_that_is_entered_twice_at_once_is_entered_once(bus: Bus, clock: FakeClock) -> None:
    monitor = bus.monitor()
    entered = await asyncio.gather(monitor.__aenter__(), monitor.__aenter__(), return_exceptions=True)
    assert [type(outcome) for outcome in entered] == [Monitor, Misuse]
    await monitor.__aexit__(None, None, None)
    swept = monitor.sweeps
    await clock.pass_time(60)
    assert monitor.sweeps == swept, "no sweep runs any more"


@pytest.mark.one_engine
async def test_a_monitor_runs_once(bus: Bus) -> None:
    monitor = bus.monitor()
    async with monitor:
        with pytest.raises(Misuse):
            await monitor.__aenter__()
    with pytest.raises(Misuse):
        await monitor.__aenter__()


# It continues


@pytest.mark.one_engine
async def test_a_sweep_that_fails_is_logged_and_the_next_one_is_tried(
    bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    errors: list[Exception] = [StoreError(path="bus.db", reason="a bad day"), ZeroDivisionError()]
    sweep = Sweeper.sweep

    async def failing(self: Sweeper) -> object:
        if errors:
            raise errors.pop(0)
        return await sweep(self)

    monkeypatch.setattr(Sweeper, "sweep", failing)
    async with bus.monitor() as monitor:
        await dies(bus, "a")
        await eventually(clock, lambda: monitor.sweeps == 1)
        await clock.pass_time(10)
        await eventually(clock, lambda: monitor.sweeps == 3)
        assert (await known(bus, "a")).status == "failed"
    assert "a bad day" in caplog.text
    assert "ZeroDivisionError" in caplog.text


async def test_a_bus_that_is_closed_ends_its_monitor(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus:
        monitor = bus.monitor()
        await monitor.__aenter__()
        await eventually(clock, lambda: monitor.sweeps == 1)
    clock.advance(5)
    assert [finding async for finding in monitor.findings()] == []
    await soon(monitor.__aexit__(None, None, None))


@pytest.mark.one_engine
async def test_an_exception_of_the_block_comes_through_as_it_is(bus: Bus) -> None:
    with pytest.raises(ZeroDivisionError):
        async with bus.monitor():
            raise ZeroDivisionError


@pytest.mark.one_engine
async def test_jobs_run_after_the_first_interval_and_periodically(bus: Bus, clock: FakeClock) -> None:
    done: list[str] = []

    async def tidy() -> None:
        done.append("tidy")

    async def fail() -> None:
        done.append("fail")
        raise ZeroDivisionError

    jobs = (PeriodicJob("tidying", 60, tidy), PeriodicJob("failing", 30, fail))
    async with Monitor(bus._engine, Sweeper(bus._engine, RULES, Thresholds()), interval=5, jobs=jobs):
        await clock.pass_time(4)
        assert done == []
        await clock.pass_time(61)
        assert Counter(done) == {"tidy": 2, "fail": 3}


# A quiet bus


async def test_a_quiet_sweep_writes_nothing(bus: Bus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", ttl=3600)
    await take(a)
    async with bus.session("planning", id="s"):
        await worker(bus, "b", session="s")
        await bus.expect("c", type="worker", within=600)

        def write(*_: object, **__: object) -> None:
            raise AssertionError("it wrote")

        with monkeypatch.context() as patch:
            patch.setattr(bus._engine, "write", write)
            sweep = await bus.sweep()
        assert sweep.findings == []
        assert set(sweep.counts.values()) == {0}
        assert sweep.seconds > 0


# Several monitors, and one that is interrupted


async def test_the_doorbells_of_dead_processes_are_removed(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[str | None] = []
    monkeypatch.setattr(bus._engine, "remove_bells", removed.extend)
    host = process_info.host_key()
    await bus._engine.write(enter, EnterRequest(host, ABSENT_PID, "1", "/tmp/no-such-bell"))
    await stranger(bus)
    await bus.sweep()
    assert removed == ["/tmp/no-such-bell"]


async def test_racing_monitors_check_every_agent_once(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    boss = await worker(bus, "boss", pools=["jobs"])
    async with engine.connect() as second, engine.connect() as third:
        for round in range(2):
            names = [f"r{round}-{n}" for n in range(8)]
            await dies(bus, *names, parent="boss")
            stalled = await stranger(bus)
            await resident(bus, f"stalled-{round}", stalled)
            clock.stall(70)
            sweeps = await asyncio.gather(*(each.sweep() for each in (bus, second, third, bus)))
            assert sum(sweep.counts["agents_failed"] for sweep in sweeps) == 8
            assert sum(sweep.counts["processes_dead"] for sweep in sweeps) == 1
            reports = await take_all(boss)
            assert sorted(report.payload["agent"] for report in reports) == sorted(names)
            await boss.ack(reports)
    for kind in ("agent_failed", "agent_suspected"):
        events = [event.subject async for event in bus.events(kind=kind)]
        assert len(events) == len(set(events)), "no agent was marked failed twice"


async def test_a_sweep_interrupted_at_any_moment_leaves_nothing_half_done(bus: Bus, clock: FakeClock) -> None:
    other = await worker(bus, "other", pools=["jobs"])
    finished = 0
    for steps in range(0, 60, 4):
        name = f"a{steps}"
        await dies(bus, name)
        receipt = await other.send(pool("jobs"), "note", ttl=1)
        clock.stall(2)
        task = asyncio.create_task(bus.sweep())
        for _ in range(steps // 6):
            await bus.messages.get("nothing")  # as long as a step of the sweep takes
        for _ in range(steps % 6):
            await asyncio.sleep(0)
        finished += task.done()
        task.cancel()
        await asyncio.wait([task])
        await clock.settle()
        record = await known(bus, name)
        events = [event.kind async for event in bus.events(subject=f"agent:{name}")]
        assert events == ["agent_registered"] + ["agent_failed"] * (record.status == "failed")
        await bus.sweep()
        assert (await known(bus, name)).status == "failed"
        assert (await stored(bus, receipt.message_id)).status == "expired"
    assert finished < 15, "none was interrupted"
    events = [event.subject async for event in bus.events(kind="agent_failed")]
    assert len(events) == len(set(events)) == 15
