"""What was cut off, in numbers; what a bus says and does about it when it is opened; and sessions that fell silent."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import agentbus
from agentbus import Bus, errors
from agentbus.records import RecoveryRecord
from agentbus.services.asking import ask_on_terminal
from tests.conformance.cut_off import cut_off, interrupted, kinds, member
from tests.conformance.helpers import held, known, running, take, worker
from tests.conformance.strangers import ELSEWHERE, resident, stranger
from tests.conftest import Engine
from tests.support.clock import FakeClock


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "agentbus.recovery"]


# Numbers


async def test_an_empty_bus_has_nothing_to_recover(bus: Bus) -> None:
    summary = await bus.recovery.summary()
    assert (summary.incomplete, summary.by_status, summary.oldest, summary.interrupted) == (0, {}, None, [])
    assert (summary.recoveries, summary.success_rate, summary.mean_time, summary.median_time) == (0, None, None, None)
    assert summary.dead_holders == []
    assert summary.database_bytes > 0


async def test_incomplete_agents_are_counted_by_status_type_and_session(
    bus: Bus, engine: Engine, clock: FakeClock
) -> None:
    async with cut_off(engine) as (owner, session):
        await member(owner, "cut")
        await (await member(owner, "broken")).fail("crashed")
        await (await member(owner, "done")).complete()
        await session.expect("later", type="planner")
    clock.advance(60)
    await worker(bus, "alone")
    async with bus.session("execution", id="over") as over:
        await (await member(bus, "old", "over")).fail("crashed")
        await over.complete()
    await (await worker(bus, "lost")).fail("crashed")
    clock.advance(5)
    summary = await bus.recovery.summary()
    assert summary.by_status == {"stopped": 1, "failed": 1, "pending": 1, "running": 1}
    assert summary.by_type == {"worker": 3, "planner": 1}
    assert summary.by_session == {"s": 3}
    assert (summary.incomplete, summary.oldest, summary.interrupted) == (4, 65_000, ["s"])


async def test_a_summary_of_many_agents_is_as_right_as_one_of_few(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("execution", id="s") as session:
        for number in range(300):
            await session.expect(f"a-{number}", type="worker")
            if number in {200, 299}:
                summary = await bus.recovery.summary()
                counts = summary.incomplete, summary.by_status["pending"], summary.by_session["s"]
                assert counts == (number + 1,) * 3


async def test_agents_that_failed_while_work_waits_are_named(bus: Bus) -> None:
    a, b, c, d = [await worker(bus, id) for id in "abcd"]
    await a.send("b", "note", 1)
    await a.send("c", "note", 2, delay=60)
    await take(b)
    for agent in (b, c, d):
        await agent.fail("crashed")
    assert (await bus.recovery.summary()).dead_holders == ["b", "c"]


@pytest.mark.parametrize("way", ["complete", "fail", "abandon", "follow_on"])
async def test_of_ended_sessions_nobody_is_named(
    bus: Bus, engine: Engine, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    async with cut_off(engine) as (owner, session):
        a = await member(owner, "a")
        await a.send("a", "note", 1)
        await a.fail("crashed")
        await session.document("d").save(1)
    assert (await bus.recovery.summary()).dead_holders == ["a"]
    plan, session = await bus.recovery.plan("s"), await bus.sessions.open("s")
    actions: dict[str, Any] = {
        "complete": session.complete, "fail": lambda: session.fail("no"), "abandon": lambda: plan.abandon("no"),
        "follow_on": lambda: plan.follow_on("next"),
    }  # fmt: skip
    await actions[way]()
    assert (await bus.recovery.summary()).dead_holders == []
    async with engine.connect():
        assert said(caplog) == []


async def test_a_summary_is_a_text_for_people(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    assert str(await bus.recovery.summary()) == (
        "interrupted sessions: none\nfailed while work waits for them: none\n"
        "agents that have not completed: 0\nrecoveries so far: 0"
    )
    await interrupted(engine, "s", "a", "b")
    await interrupted(engine, "t", "c")
    clock.advance(90)
    await (await bus.recovery.plan("t")).complete()
    assert str(await bus.recovery.summary()) == (
        "interrupted sessions: s\nfailed while work waits for them: none\n"
        "agents that have not completed: 2 (2 stopped)\n"
        "recoveries so far: 1, 100% of those known succeeded, after 90 s in the median"
    )


async def test_the_time_to_recovery_and_its_success_come_from_the_trail(
    bus: Bus, engine: Engine, clock: FakeClock
) -> None:
    waits = {"resumed": 10, "again": 20, "completed": 60, "abandoned": 110}
    for name in waits:
        await interrupted(engine, name)
    for name, seconds in waits.items():
        start = clock.now().awake
        clock.advance(seconds - (start - 1_000_000) / 1000)
        plan = await bus.recovery.plan(name)
        await (
            plan.abandon("no") if name == "abandoned" else plan.complete() if name == "completed" else plan.resume()
        )  # fmt: skip
    summary = await bus.recovery.summary()
    assert (summary.recoveries, summary.mean_time, summary.median_time) == (4, 50_000, 40_000)
    assert summary.success_rate == 0.5, "two of them go on, which may come to anything"
    a = await member(bus, "a", "again")
    await a.fail("crashed")
    assert (await bus.recovery.summary()).success_rate == pytest.approx(1 / 3), "cut off again"
    await (await bus.sessions.open("resumed")).complete()
    summary = await bus.recovery.summary()
    assert (summary.recoveries, summary.success_rate) == (4, 0.5)


@pytest.mark.parametrize("how", ["block", "agent", "continue"])
async def test_however_a_session_goes_on_counts_as_a_recovery(bus: Bus, engine: Engine, how: str) -> None:
    await interrupted(engine)
    if how == "block":
        async with bus.session("execution", id="s"):
            pass
    elif how == "agent":
        await worker(bus, "a")
    else:
        await (await bus.sessions.open("s")).continue_()
    summary = await bus.recovery.summary()
    assert (summary.recoveries, summary.success_rate) == (1, 1.0 if how == "block" else None)


# Opening a bus


async def test_a_bus_that_is_opened_says_what_was_cut_off(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    await interrupted(engine, "s", "a", "b")
    assert said(caplog) == []
    async with engine.connect():
        assert said(caplog) == [
            "interrupted: s (2 of its agents did not complete); bus.recovery.plan(session) says what can be done"
        ]


async def test_a_bus_that_is_opened_says_who_is_dead_while_work_waits(
    bus: Bus, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1)
    await a.fail("crashed")
    async with engine.connect():
        assert said(caplog) == ["failed, and work waits until they register again: a"]


async def test_those_who_are_at_work_are_not_counted(
    bus: Bus, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    await interrupted(engine, "s", "a")
    async with bus.session("execution", id="healthy"):
        await member(bus, "b", "healthy")
        async with engine.connect():
            (line,) = said(caplog)
    assert line.startswith("interrupted: s (1 of its agents did not complete);")
    assert "running" not in line


async def test_of_healthy_agents_nothing_is_said(bus: Bus, engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    async with bus.session("execution", id="s") as session:
        a = await member(bus, "a")
        await a.send("a", "note", 1)
        await take(a)
        await session.expect("later", type="worker")
        await (await worker(bus, "failed")).fail("nothing waits for it")
        async with engine.connect():
            assert said(caplog) == []


async def test_nothing_is_resumed_unless_asked_for(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await interrupted(engine)
    for value in ("", "0", "no", "OFF"):
        monkeypatch.setenv("AGENTBUS_AUTO_RESUME", value)
        async with engine.connect() as bus:
            assert (await held(bus, "s")).status == "interrupted"
    monkeypatch.setenv("AGENTBUS_AUTO_RESUME", "1")
    async with engine.connect(auto_resume=False) as bus:
        assert (await held(bus, "s")).status == "interrupted", "an argument goes before the environment"


@pytest.mark.parametrize("how", ["argument", "environment"])
async def test_sessions_are_resumed_on_opening_if_asked_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    await interrupted(engine, "s", "a")
    await interrupted(engine, "t", "b")
    async with cut_off(engine, "plan", operation="planning", expects={"x": "d"}) as (_, session):
        await session.document("d").save(1)
    if how == "environment":
        monkeypatch.setenv("AGENTBUS_AUTO_RESUME", "Yes")
    async with engine.connect(**({"auto_resume": True} if how == "argument" else {})) as bus:
        assert [(await held(bus, name)).status for name in "st"] == ["active", "active"]
        assert (await known(bus, "a")).status == "spawning"
        assert (await held(bus, "plan")).status == "interrupted", "it had better be completed, which is for people"
    assert "s was resumed; it waits for a" in said(caplog)


async def test_a_function_decides_away_from_the_loop_what_is_resumed(engine: Engine) -> None:
    await interrupted(engine, "s", "a")
    await interrupted(engine, "t", "b")
    asked: list[tuple[str, bool]] = []

    def decide(record: RecoveryRecord) -> bool:
        asked.append((record.session.id, threading.current_thread() is threading.main_thread()))
        return record.session.id == "t"

    async with engine.connect(auto_resume=decide) as bus:
        assert sorted(asked) == [("s", False), ("t", False)]
        assert [(await held(bus, name)).status for name in "st"] == ["interrupted", "active"]


async def test_a_function_that_fails_does_not_keep_the_bus_from_opening(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    await interrupted(engine)

    def decide(_: RecoveryRecord) -> bool:
        raise ZeroDivisionError

    async with engine.connect(auto_resume=decide) as bus:
        assert (await held(bus, "s")).status == "interrupted"
    assert "s was not resumed: auto_resume raised ZeroDivisionError:" in said(caplog)
    assert all(record.exc_info is None for record in caplog.records if record.levelname != "DEBUG"), "one line"


@pytest.mark.parametrize("answer", [True, False])
async def test_an_async_function_is_awaited_on_the_loop(engine: Engine, answer: bool) -> None:
    await interrupted(engine)
    loops: list[object] = []

    async def decide(record: RecoveryRecord) -> bool:
        await asyncio.sleep(0)
        loops.append((record.session.id, asyncio.get_running_loop()))
        return answer

    async with engine.connect(auto_resume=decide) as bus:
        assert loops == [("s", asyncio.get_running_loop())]
        assert (await held(bus, "s")).status == ("active" if answer else "interrupted")


@pytest.mark.parametrize("answer", [None, 1, "yes", [True]])
@pytest.mark.parametrize("is_async", [True, False])
async def test_what_is_neither_true_nor_false_resumes_nothing(
    engine: Engine, caplog: pytest.LogCaptureFixture, answer: Any, is_async: bool
) -> None:
    await interrupted(engine)

    async def later(_: RecoveryRecord) -> Any:
        return answer

    async with engine.connect(auto_resume=later if is_async else lambda _: answer) as bus:
        assert (await held(bus, "s")).status == "interrupted"
    assert f"s was not resumed: auto_resume answered {answer!r}, it must be True or False" in said(caplog)


@pytest.mark.parametrize("error", [ZeroDivisionError("no\nway"), asyncio.CancelledError()])
async def test_an_async_function_that_fails_does_not_keep_the_bus_from_opening(
    engine: Engine, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    await interrupted(engine)

    async def decide(_: RecoveryRecord) -> bool:
        raise error

    async with engine.connect(auto_resume=decide) as bus:
        assert (await held(bus, "s")).status == "interrupted"
    assert any(
        line.startswith(f"s was not resumed: auto_resume raised {type(error).__name__}") for line in said(caplog)
    )
    assert not [line for line in said(caplog) if "\n" in line]


async def test_whoever_is_cancelled_while_a_function_decides_is_cancelled(engine: Engine) -> None:
    await interrupted(engine)
    asked = asyncio.Event()

    async def decide(_: RecoveryRecord) -> bool:
        asked.set()
        await asyncio.Event().wait()
        return True

    async def opening() -> None:
        async with engine.connect(auto_resume=decide):
            raise AssertionError

    task = asyncio.create_task(opening())
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_function_that_cannot_be_called_with_a_record_is_refused_at_once() -> None:
    with pytest.raises(errors.InvalidInput, match=r"auto_resume must take one argument: auto_resume\(record\)"):
        agentbus.connect("anywhere", auto_resume=lambda: True)  # type: ignore[arg-type,misc]


async def test_a_session_whose_owner_is_still_in_its_block_is_not_resumed_by_others(bus: Bus, engine: Engine) -> None:
    async with bus.session("execution", id="s"):
        await (await member(bus, "a")).fail("crashed")
        async with engine.connect(auto_resume=True):
            assert (await held(bus, "s")).status == "interrupted"
        await (await bus.recovery.plan("s")).resume()


async def test_buses_that_open_at_once_resume_once(engine: Engine) -> None:
    await interrupted(engine)
    async with engine.connect(auto_resume=True) as bus, engine.connect(auto_resume=True):
        assert (await kinds(bus)).count("recovered") == 1


@pytest.mark.parametrize("bad", ["perhaps", "2"])
def test_a_setting_that_is_neither_yes_nor_no_is_refused(monkeypatch: pytest.MonkeyPatch, bad: str) -> None:
    monkeypatch.setenv("AGENTBUS_AUTO_RESUME", bad)
    with pytest.raises(errors.OutOfRange, match="AGENTBUS_AUTO_RESUME"):
        agentbus.connect("anywhere")
    with pytest.raises(errors.OutOfRange, match="auto_resume"):
        agentbus.connect("anywhere", auto_resume=bad)  # type: ignore[arg-type]


class Terminal:
    """What a person would sit at, or not."""

    def __init__(self, answer: str, *, terminal: bool) -> None:
        self._answer = answer
        self._terminal = terminal
        self.written: list[str] = []

    def isatty(self) -> bool:
        return self._terminal

    def readline(self) -> str:
        assert self._terminal, "nobody is there to be asked"
        return self._answer

    def write(self, text: str) -> None:
        assert self._terminal, "nobody is there to be asked"
        self.written.append(text)

    def flush(self) -> None:
        pass


@pytest.mark.parametrize(
    ("answer", "yes"),
    [("\n", True), ("y\n", True), (" YES \n", True), ("n\n", False), ("what?\n", False), ("", False)],
)
async def test_on_a_terminal_it_asks(
    bus: Bus, engine: Engine, monkeypatch: pytest.MonkeyPatch, answer: str, yes: bool
) -> None:
    await interrupted(engine)
    record = (await bus.recovery.plan("s")).record
    terminal = Terminal(answer, terminal=True)
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr("sys.stderr", terminal)
    assert ask_on_terminal(record) is yes
    assert "Session s (execution, 0 %) was interrupted." in "".join(terminal.written)


@pytest.mark.parametrize(("input", "output"), [(False, False), (True, False), (False, True)])
async def test_where_there_is_no_terminal_nobody_is_asked(
    bus: Bus, engine: Engine, monkeypatch: pytest.MonkeyPatch, input: bool, output: bool
) -> None:
    await interrupted(engine)
    record = (await bus.recovery.plan("s")).record
    silent: Any = Terminal("n\n", terminal=False)
    loud: Any = type("Loud", (), {"isatty": lambda self: True})()
    monkeypatch.setattr("sys.stdin", loud if input else silent)
    monkeypatch.setattr("sys.stderr", loud if output else silent)
    assert ask_on_terminal(record)


# Silence


async def stale(bus: Bus, minutes: float = 10) -> list[str]:
    return [session.id for session in await bus.sessions.stale(minutes)]


async def test_open_sessions_in_which_nothing_happens_are_stale(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    await interrupted(engine, "first")
    clock.advance(60)
    await interrupted(engine, "second", "b")
    async with bus.session("execution", id="mine"), bus.session("execution", id="paused") as paused:
        await paused.pause()
        async with bus.session("execution", id="over"):
            pass
        clock.advance(600)
        assert await stale(bus, 12) == []
        assert await stale(bus, 10.5) == ["first"]
        assert await stale(bus) == ["first", "mine", "paused", "second"]
        assert await stale(bus, 0) == ["first", "mine", "paused", "second"]


@pytest.mark.parametrize("sign", ["progress", "document", "state", "participant", "checkpoint", "all", "agent", "busy"])
async def test_whatever_happens_in_a_session_breaks_the_silence(bus: Bus, clock: FakeClock, sign: str) -> None:
    async with bus.session("execution", id="s") as session:
        a = await member(bus, "a")
        meeting = await session.participants(["m"])
        clock.stall(1200)
        assert await stale(bus) == ["s"]
        match sign:
            case "progress":
                await session.progress(5)
            case "document":
                await session.document("d").save(1)
            case "state":
                await session.state.set("k", 1)
            case "participant":
                await meeting.finish("m")
            case "checkpoint":
                await session.checkpoint("c", 1)
            case "all":
                await session.checkpoint_all("c")
            case "agent":
                await a.progress(5)
            case "busy":
                await a.busy(3600)
                clock.stall(1200)
        assert await stale(bus) == []


async def test_that_an_agent_is_suspected_or_judged_is_nothing_that_it_did(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("execution", id="s"):
        await resident(bus, "a", await stranger(bus, host=ELSEWHERE), session="s")
        await member(bus, "b")
        clock.stall(1200)
        for statuses in (["suspect", "running"], ["failed", "running"]):
            await bus.sweep()
            assert [(await known(bus, agent)).status for agent in "ab"] == statuses
            assert await stale(bus) == ["s"]
            clock.stall(10)


async def test_an_agent_that_waits_for_a_message_is_no_silence(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("execution", id="s"):
        a = await member(bus, "a")
        async with running(a.receive()):
            await clock.pass_time(1200)
            assert await stale(bus) == []
        await clock.pass_time(1200)
        assert await stale(bus) == ["s"]


async def test_a_machine_that_sleeps_makes_no_silence(bus: Bus, clock: FakeClock) -> None:
    async with bus.session("execution", id="s"):
        a = await member(bus, "a")
        await clock.pass_time(1)
        clock.sleep_machine(8 * 3600)
        assert await stale(bus) == []
        await a.send("a", "note", 1)
        await clock.pass_time(300)
        assert await stale(bus) == []
        await clock.pass_time(700)
        assert await stale(bus) == ["s"], "nobody did anything while the machine was awake"


@pytest.mark.parametrize("bad", [-1, "ten", None, True, float("nan")])
async def test_minutes_must_be_a_number(bus: Bus, bad: Any) -> None:
    with pytest.raises(errors.OutOfRange) as refused:
        await bus.sessions.stale(bad)
    assert str(refused.value) == f"minutes is {bad!r}, it must be minutes from 0 to 5256000"


async def test_pages_of_open_sessions_are_the_same_as_of_all(bus: Bus, engine: Engine, clock: FakeClock) -> None:
    for number in range(7):
        clock.advance(0.001 * (number % 2))
        async with bus.session("a" if number % 2 else "b", id=f"over-{number}"):
            pass
        await interrupted(engine, f"s-{number}", operation="a" if number % 3 else "b", milestone="m")
    cursor, found = None, list[str]()
    while True:
        page = await bus.sessions.list(status="interrupted", limit=2, cursor=cursor)
        found += [session.id for session in page.items]
        cursor = page.cursor
        if cursor is None:
            break
    every = (await bus.sessions.list()).items
    assert found == [session.id for session in every if session.status == "interrupted"]
    some = await bus.sessions.list(status=["interrupted", "active"], operation="b", milestone="m")
    assert [one.id for one in some.items] == ["s-6", "s-3", "s-0"]
