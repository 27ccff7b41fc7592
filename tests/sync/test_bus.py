"""The bus without an event loop, in process."""

from __future__ import annotations

import inspect
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus.core.addresses import split_identity
from agentbus.engine.queries import Queries, load
from agentbus.engine.sqlite import paths
from agentbus.engine.sqlite.blocking_wait import SQLiteWaitingProcess
from agentbus.errors import AgentFenced, InvalidName, LeaseLost, Misuse, NoBus, NotWritable, UnknownAgent
from agentbus.operations.processes import LeaveRequest, leave
from agentbus.sync.agent import BlockingAgent
from agentbus.sync.bus import BlockingBus, Interrupted, open_bus, run
from tests.support.clock import FakeClock


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "bus"


@pytest.fixture
def bus(directory: Path, clock: FakeClock) -> Iterator[BlockingBus]:
    """A bus in fake time."""
    with open_bus(directory, create=True, clock=clock) as bus:
        yield bus


def test_a_bus_that_was_not_created_is_no_bus(directory: Path) -> None:
    with pytest.raises(NoBus):
        open_bus(directory)
    assert not directory.exists()


@pytest.mark.parametrize("name", ["send", "request", "receive_many", "progress", "busy", "complete", "fail", "stop"])
def test_an_agent_without_a_loop_has_the_same_calls(name: str) -> None:
    """The same names for the same arguments; what can be sent is JSON, not Structs."""
    with_loop = inspect.signature(getattr(agentbus.Agent, name)).parameters
    without = inspect.signature(getattr(BlockingAgent, name)).parameters
    missing = set(with_loop) - set(without)
    assert missing <= {"ack"}, missing
    for parameter in set(without) & set(with_loop) - {"timeout", "lease"}:
        assert without[parameter].default == with_loop[parameter].default


def test_a_coroutine_that_needs_a_loop_says_so() -> None:
    class Never:
        def __await__(self) -> Iterator[None]:
            yield

    with pytest.raises(Misuse):
        run(Never())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["a#", "a#x", "a#-1", "#3", "", "a b", "a#٣", "a#1#2"])
def test_an_identity_is_a_name_and_a_number(name: str) -> None:
    with pytest.raises(InvalidName):
        split_identity(name)


def test_a_reboot_invalidates_leases_for_a_visiting_agent_too(directory: Path, clock: FakeClock) -> None:
    with open_bus(directory, create=True, clock=clock) as bus:
        agent = bus.register("a", type="worker")
        agent.send("a", "note", 1)
        (message,) = agent.receive_many(1)
    later = FakeClock(awake=5_000, boot="boot-2")
    with open_bus(directory, clock=later) as bus:
        agent = bus.agent("a")
        assert message.lease is not None
        with pytest.raises(LeaseLost):
            agent.ack(message.lease)
        (again,) = agent.receive_many(1)
        assert (again.message_id, again.attempts) == (message.message_id, 2)


def test_a_call_and_its_visit_are_one_commit(bus: BlockingBus, clock: FakeClock) -> None:
    bus.register("a", type="worker")
    clock.advance(60)
    agent = bus.agent("a")
    agent.send("a", "note", 1)
    record = bus.do(bus.agents.get("a"))
    assert record is not None
    assert record.last_call == clock.now().awake
    clock.advance(60)
    bus.agent("a").called()
    record = bus.do(bus.agents.get("a"))
    assert record is not None
    assert record.last_call == clock.now().awake


def test_a_fenced_incarnation_can_do_nothing(bus: BlockingBus) -> None:
    old = bus.register("a", type="worker")
    bus.register("a", type="worker", takeover=True)
    calls: list[Callable[[], Any]] = [
        lambda: old.send("a", "note", 1),
        lambda: old.receive_many(1),
        lambda: bus.do(old.state.set("k", 1)),
        old.heartbeat,
        old.complete,
        lambda: old.progress(1),
    ]
    for call in calls:
        with pytest.raises(AgentFenced):
            call()
    assert bus.do(bus.messages.list()).items == []
    with pytest.raises(UnknownAgent):
        bus.agent("b")


def test_a_block_that_raises_releases_what_it_received(bus: BlockingBus) -> None:
    agent = bus.register("a", type="worker")
    for number in range(3):
        agent.send("a", "note", number)
    with pytest.raises(ZeroDivisionError), agent.received(2) as messages:
        assert len(messages) == 2
        _ = 1 / 0
    assert [(one.payload, one.attempts) for one in agent.receive_many(5)] == [(0, 1), (1, 1), (2, 1)]


def meanwhile(work: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.parametrize("with_bell", [True, False], ids=["bell", "polling"])
def test_a_message_ends_the_waiting(directory: Path, with_bell: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: paths.Home) -> Path:
        raise NotWritable(path="bells", reason="there are no sockets here")

    if not with_bell:
        monkeypatch.setattr(paths, "prepare_bells", none)
    with open_bus(directory, create=True) as bus, open_bus(directory) as other:
        agent = bus.register("a", type="worker")
        sender = other.agent("a")

        def send() -> None:
            while not other.do(other.agents.get("a")) or not listeners(directory):
                time.sleep(0.005)
            sender.send("a", "note", 1)

        thread = meanwhile(send)
        begun = time.monotonic()
        (message,) = agent.receive_many(1, timeout=60)
        thread.join()
        assert message.payload == 1
        assert time.monotonic() - begun < 30


def test_a_delayed_message_ends_the_waiting_when_it_is_due(
    bus: BlockingBus, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []

    def sleep(_: SQLiteWaitingProcess, seconds: float) -> bool:
        slept.append(seconds)
        clock.advance(seconds)
        return False

    monkeypatch.setattr(SQLiteWaitingProcess, "wait", sleep)
    agent = bus.register("a", type="worker")
    agent.send("a", "note", 1, delay=0.5)
    assert len(agent.receive_many(1, timeout=30)) == 1
    assert slept == [0.5]
    agent.send("a", "note", 2, delay=0.5)
    assert agent.wait(30) is True
    assert slept == [0.5, 0.5]


def listeners(directory: Path) -> int:
    import sqlite3

    with sqlite3.connect(directory / "bus.db") as connection:
        (count,) = connection.execute("SELECT count(*) FROM listeners").fetchone()
    connection.close()
    return int(count)


def test_a_waiting_process_that_was_marked_dead_listens_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentbus.engine.blocking.HEARTBEAT_INTERVAL", 0.02)
    with open_bus(directory, create=True) as bus, open_bus(directory) as other:
        agent = bus.register("a", type="worker")
        sender = other.agent("a")

        def evict_and_send() -> None:
            while not listeners(directory):
                time.sleep(0.005)
            process = max(number for (number,) in _rows(directory, "SELECT id FROM processes"))
            other.write(leave, LeaveRequest((process,), True, "a mistake"))
            while not listeners(directory):
                time.sleep(0.005)
            sender.send("a", "note", 1)

        thread = meanwhile(evict_and_send)
        assert agent.receive_many(1, timeout=60)
        thread.join()
        statuses = [status for (status,) in _rows(directory, "SELECT status FROM processes")]
        assert statuses == ["ended"]
        assert listeners(directory) == 0


def _rows(directory: Path, sql: str) -> list[tuple[Any, ...]]:
    import sqlite3

    with sqlite3.connect(directory / "bus.db") as connection:
        rows = connection.execute(sql).fetchall()
    connection.close()
    return rows


def test_every_query_is_found_by_the_first_word_of_its_name() -> None:
    lazily = Queries("sqlite")
    for name, sql in load("sqlite").items():
        assert lazily[name] == sql
    with pytest.raises(KeyError):
        _ = lazily["message_unknown"]
    with pytest.raises(KeyError):
        _ = lazily["nothing"]


@pytest.mark.parametrize("doorbell", [True, False])
def test_another_thread_ends_a_wait_and_nothing_is_claimed(
    directory: Path, doorbell: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not doorbell:
        monkeypatch.setattr(SQLiteWaitingProcess, "open_doorbell", lambda self, home: None)
    with open_bus(directory, create=True) as bus:
        agent = bus.register("a", type="worker")
        waiting = threading.Event()
        sleep = SQLiteWaitingProcess.sleep

        def slept(self: SQLiteWaitingProcess, seconds: float) -> bool:
            waiting.set()
            return sleep(self, seconds)

        monkeypatch.setattr(SQLiteWaitingProcess, "sleep", slept)

        def interrupt() -> None:
            waiting.wait()
            bus.interruption.interrupt()

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(Interrupted):
            agent.receive_many(1, timeout=60)
        thread.join()
        # Until it is cleared, the next wait ends at once; a call that need not wait is not affected.
        with pytest.raises(Interrupted):
            agent.receive_many(1, timeout=60)
        agent.send("a", "note", 1)
        assert len(agent.receive_many(1, timeout=60)) == 1
        bus.interruption.clear()
        assert agent.receive_many(1, timeout=0.01) == []
