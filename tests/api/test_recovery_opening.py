"""Reports and callbacks about interrupted work when a bus is opened."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import agentbus
from agentbus import Bus, errors
from agentbus.api.recovery import ask_on_terminal
from agentbus.records import RecoveryRecord
from tests.api.helpers import held, known, take, worker
from tests.api.interrupted_sessions import cut_off, interrupted, kinds, member, said
from tests.conftest import Engine
from tests.support.cases import each


async def test_opening_a_bus_reports_interrupted_work(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    await interrupted(engine, "s", "a", "b")
    assert said(caplog) == []
    async with engine.connect():
        (line,) = said(caplog)
        assert line.startswith("interrupted: s (2 ")


async def test_opening_a_bus_reports_dead_agents_with_waiting_work(
    bus: Bus, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1)
    await a.fail("crashed")
    async with engine.connect():
        (line,) = said(caplog)
        assert (line.startswith("failed"), line.endswith(": a")) == (True, True)


async def test_running_agents_are_not_counted(bus: Bus, engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    await interrupted(engine, "s", "a")
    async with bus.session("execution", id="healthy"):
        await member(bus, "b", "healthy")
        async with engine.connect():
            (line,) = said(caplog)
    assert line.startswith("interrupted: s (1 of its agents did not complete);")
    assert "running" not in line


async def test_healthy_agents_are_not_reported(bus: Bus, engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    async with bus.session("execution", id="s") as session:
        a = await member(bus, "a")
        await a.send("a", "note", 1)
        await take(a)
        await session.expect("later", type="worker")
        await (await worker(bus, "failed")).fail("nothing waits for it")
        async with engine.connect():
            assert said(caplog) == []


async def test_nothing_is_resumed_by_default(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    await interrupted(engine)
    for value in ("", "0", "no", "OFF"):
        monkeypatch.setenv("AGENTBUS_AUTO_RESUME", value)
        async with engine.connect() as bus:
            assert (await held(bus, "s")).status == "interrupted"
    monkeypatch.setenv("AGENTBUS_AUTO_RESUME", "1")
    async with engine.connect(auto_resume=False) as bus:
        assert (await held(bus, "s")).status == "interrupted", "an argument goes before the environment"


@pytest.mark.parametrize("how", ["argument", "environment"])
async def test_sessions_are_resumed_on_opening_on_request(
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
    assert [line for line in said(caplog) if line.startswith("resumed session s")] != []


@pytest.mark.one_engine
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


@pytest.mark.one_engine
async def test_a_function_that_fails_does_not_keep_the_bus_from_opening(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    await interrupted(engine)

    def decide(_: RecoveryRecord) -> bool:
        raise ZeroDivisionError

    async with engine.connect(auto_resume=decide) as bus:
        assert (await held(bus, "s")).status == "interrupted"
    assert "session s not resumed: auto_resume raised ZeroDivisionError" in said(caplog)
    assert all(record.exc_info is None for record in caplog.records if record.levelname != "DEBUG"), "one line"


@pytest.mark.one_engine
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


@pytest.mark.one_engine
@each("answer", [None, 1, "yes", [True]])
@each("is_async", [True, False])
async def test_a_decision_that_is_not_a_bool_resumes_nothing(
    engine: Engine, caplog: pytest.LogCaptureFixture, answer: Any, is_async: bool
) -> None:
    await interrupted(engine)

    async def later(_: RecoveryRecord) -> Any:
        return answer

    async with engine.connect(auto_resume=later if is_async else lambda _: answer) as bus:
        assert (await held(bus, "s")).status == "interrupted"
    assert [line for line in said(caplog) if line.startswith("session s not resumed") and repr(answer) in line] != []


@pytest.mark.one_engine
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
        line.startswith(f"session s not resumed: auto_resume raised {type(error).__name__}") for line in said(caplog)
    )
    assert not [line for line in said(caplog) if "\n" in line]


async def test_an_open_cancelled_while_the_callback_decides_is_cancelled(engine: Engine) -> None:
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
    """Standard input with the answer of a person, on a terminal or not."""

    def __init__(self, answer: str, *, terminal: bool) -> None:
        self._answer = answer
        self._terminal = terminal
        self.written: list[str] = []

    def isatty(self) -> bool:
        return self._terminal

    def readline(self) -> str:
        assert self._terminal, "there is no user to ask"
        return self._answer

    def write(self, text: str) -> None:
        assert self._terminal, "there is no user to ask"
        self.written.append(text)

    def flush(self) -> None:
        pass


@pytest.mark.one_engine
@each(
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


@pytest.mark.one_engine
@each(("input", "output"), [(False, False), (True, False), (False, True)])
async def test_without_a_terminal_there_is_no_prompt(
    bus: Bus, engine: Engine, monkeypatch: pytest.MonkeyPatch, input: bool, output: bool
) -> None:
    await interrupted(engine)
    record = (await bus.recovery.plan("s")).record
    silent: Any = Terminal("n\n", terminal=False)
    loud: Any = type("Loud", (), {"isatty": lambda self: True})()
    monkeypatch.setattr("sys.stdin", loud if input else silent)
    monkeypatch.setattr("sys.stderr", loud if output else silent)
    assert ask_on_terminal(record)
