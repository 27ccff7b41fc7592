"""``agentbus.sync``: the API without an event loop, on both engines."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus import sync
from agentbus.errors import (
    AgentExists,
    AgentFenced,
    BusClosed,
    LeaseLost,
    Misuse,
    NotADatabase,
    NotPicklable,
    StepFailed,
    UnknownRecipient,
)
from agentbus.sync import client
from agentbus.sync.portal import _Call
from tests.conftest import Engine
from tests.support.clock import FakeClock
from tests.support.processes import eventually
from tests.support.sync_client import SOURCES

PATIENCE = 30


@pytest.fixture
def bus(engine: Engine) -> Iterator[sync.Bus]:
    """An open bus in fake time."""
    with sync.Bus(engine.connect()) as bus:
        yield bus


@pytest.fixture
def agent(bus: sync.Bus) -> sync.Agent:
    return bus.register("a", type="worker", pools=["jobs"])


def take(agent: sync.Agent) -> sync.Message:
    message = agent.receive(timeout=PATIENCE)
    assert message is not None
    return message


def test_messages_are_sent_received_answered_and_settled(bus: sync.Bus, agent: sync.Agent) -> None:
    with bus.agent("b", type="worker") as b:
        agent.send("b", "note", {"n": 1}, priority=9)
        assert [one.delivered for one in agent.send_many([("b", "note", 2), {"to": "b", "type": "note"}])] == [1, 1]
        first = take(b)
        assert (first.type, first.sender, first.priority, first.payload) == ("note", "a", 9, {"n": 1})
        with first as unit:
            unit.send("a", "completion_notification", {"ok": True})
            unit.reply(first, "note", "answer")
            unit.state.set("last", 1)
        assert sorted(str(take(agent).payload) for _ in range(2)) == ["answer", "{'ok': True}"]
        assert b.state.get("last") == 1
        second, third = b.receive_many(2)
        b.ack([second])
        assert b.receive_many(1, timeout=0, ack=[third]) == []
        agent.send("b", "note", 4)
        for message in b.inbox():
            message.nack(delay=60, error="later")
            break
        assert not b.pending()
    assert bus.agents.get("b") is not None
    assert bus.stats().messages["acked"] == 3


def test_a_request_is_answered_by_a_handler_on_a_thread(bus: sync.Bus, agent: sync.Agent) -> None:
    b = bus.register("b", type="worker")
    handled: list[str] = []

    def handle(message: sync.Message, unit: sync.Unit) -> None:
        handled.append(threading.current_thread().name)
        assert isinstance(message, sync.Message)
        unit.reply(message, "note", message.payload * 2)

    def serve() -> None:
        with pytest.raises((AgentFenced, BusClosed)):
            b.serve(handle)

    with ThreadPoolExecutor(1) as pool:
        serving = pool.submit(serve)
        assert agent.request("b", "note", 21, timeout=PATIENCE).payload == 42
        bus.close()
        serving.result(PATIENCE)
    assert handled != [threading.current_thread().name]


def test_state_checkpoints_documents_and_sessions(bus: sync.Bus) -> None:
    with bus.session("planning", id="s") as session:
        with session.agent("a", type="worker") as a:
            assert a.session == session.id == "s"
            assert a.state.set("k", {"x": 1}) == 1
            assert [entry.key for entry in a.state.list().items] == ["k"]
            a.checkpoint("half", {"step": 1})
            found = a.restore("half")
            assert found is not None
            assert found.snapshot == {"step": 1}
            with a.unit() as unit:
                unit.document("plan", {"phases": 2})
        assert session.document("plan").latest() == {"phases": 2}
        meeting = session.participants(["x", "y"])
        assert meeting.finish("x", 1)
        assert meeting.remaining == ("y",)
        with pytest.raises(ZeroDivisionError), session.before("deploy", rollback=True):
            session.document("plan").save(1 / 0)
    record = bus.sessions.get("s")
    assert record is not None
    assert record.status == "completed"
    for entry in bus.state("a").watch():
        assert (entry.key, entry.value) == ("k", {"x": 1})
        break


def test_an_exception_ends_the_agent_of_its_block_and_releases_the_message(bus: sync.Bus, agent: sync.Agent) -> None:
    agent.send(agentbus.pool("jobs"), "note", 1)
    with pytest.raises(KeyError), bus.agent("b", type="worker", pools=["jobs"]) as b, take(b):
        raise KeyError("x")
    ended = bus.agents.get("b")
    assert ended is not None
    assert (ended.status, ended.error) == ("failed", "KeyError: 'x'")
    assert bus.messages.list(status="scheduled").items[0].error == "KeyError: 'x'"
    with pytest.raises(KeyboardInterrupt), bus.agent("c", type="worker"):
        raise KeyboardInterrupt
    stopped = bus.agents.get("c")
    assert stopped is not None
    assert stopped.status == "stopped"


def test_work_items_are_taken_and_settled(bus: sync.Bus, agent: sync.Agent) -> None:
    for number in range(3):
        bus.tasks.add("review", number, id=f"r{number}")
    item = agent.items.take(workflow="review")
    assert isinstance(item, sync.WorkItem)
    assert (item.id, item.input) == ("r0", 0)
    item.progress(40, "half")
    assert [one.lease for one in agent.items.held()] == ["r0#1"]
    item.finish({"approved": True})
    assert bus.tasks.result("r0") == {"approved": True}
    second = agent.items.take()
    assert second is not None
    with second:
        pass
    third = agent.items.take()
    assert third is not None
    with pytest.raises(KeyError), third:
        raise KeyError("x")
    assert [bus.tasks.wait(f"r{number}").status for number in (1, 2)] == ["completed", "failed"]  # type: ignore[union-attr]
    assert agent.items.take() is None


@pytest.mark.parametrize("take", [lambda agent: agent.items.take(), lambda agent: agent.receive()])
def test_what_an_interrupted_caller_did_not_receive_is_released(
    bus: sync.Bus, agent: sync.Agent, monkeypatch: pytest.MonkeyPatch, take: Callable[[sync.Agent], object]
) -> None:
    bus.tasks.add("review", id="r")
    agent.send("a", "note", 1)
    wait = _Call.wait

    def interrupted(call: _Call[object], seconds: float = PATIENCE) -> None:
        wait(call, seconds)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(_Call, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take(agent)
    eventually(lambda: [one.id for one in bus.tasks.ready()] == ["r"], "the item is ready")
    eventually(lambda: bus.stats().messages == {"queued": 1}, "the message is queued")


def test_every_wrapper_is_registered() -> None:
    assert set(client.__all__) == set(SOURCES)


def test_tasks_run_with_plain_functions_as_steps(bus: sync.Bus) -> None:
    @agentbus.workflow("double")
    async def double(task: agentbus.Task, number: int, *, add: int = 0) -> int:
        verdict = await task.approval("go", show=number)
        assert verdict.approved
        return await task.step("double", lambda: number * 2 + add)

    task = bus.tasks.start(double.bind(20, add=2), id="t")
    bus.tasks.run_worker(double, until_idle=True)
    assert [one.key for one in bus.tasks.approvals()] == ["go"]
    bus.tasks.approve(task.id, by="ada")
    bus.tasks.run_worker(double, until_idle=True)
    assert bus.tasks.result("t", timeout=PATIENCE, as_=int) == 42
    assert [event.kind for event in bus.events(subject="task:t")][:1] == ["task_started"]


def test_options_of_a_step_do_not_hide_keywords_of_its_function(bus: sync.Bus) -> None:
    calls: list[tuple[int, int]] = []

    def fetch(url: str, timeout: int = 0, retries: int = 0) -> str:
        calls.append((timeout, retries))
        raise ValueError(url)

    @agentbus.workflow("fetching")
    async def fetching(task: agentbus.Task) -> str:
        try:
            return await task.options(retries=2, backoff=0).step("fetch", fetch, "u", timeout=7, retries=8)
        except StepFailed as failed:
            return f"{failed.failures} failures"

    bus.tasks.start(fetching, id="t")
    bus.tasks.run_worker(fetching, until_idle=True)
    assert bus.tasks.result("t", timeout=PATIENCE) == "3 failures"
    assert calls == [(7, 8)] * 3


def test_a_lease_is_renewed_while_the_block_computes(bus: sync.Bus, agent: sync.Agent, clock: FakeClock) -> None:
    other = bus.register("b", type="worker", pools=["jobs"])
    agent.send(agentbus.pool("jobs"), "note", 1)
    message = agent.receive(lease=30)
    assert message is not None
    with message:
        for _ in range(8):
            clock.advance(11)
            for percent in range(3):
                # The block does nothing about its lease; these writes follow the renewal.
                agent.progress(percent)
        assert other.receive(timeout=0) is None
    settled = bus.messages.get(message.message_id)
    assert settled is not None
    assert settled.status == "acked"


def test_a_lost_lease_is_raised_at_the_end_of_the_block_and_nothing_is_written(
    bus: sync.Bus, agent: sync.Agent, clock: FakeClock
) -> None:
    other = bus.register("b", type="worker", pools=["jobs"])
    agent.send(agentbus.pool("jobs"), "note", 1)
    with pytest.raises(LeaseLost), take(agent) as unit:
        unit.state.set("k", 1)
        clock.stall(10_000)
        assert take(other).attempts == 2
    assert agent.state.get("k") is None


def test_an_agent_that_computes_is_alive_by_the_heartbeat_of_its_process(
    engine: Engine, bus: sync.Bus, agent: sync.Agent, clock: FakeClock
) -> None:
    with sync.Bus(engine.connect()) as other:
        for _ in range(40):
            clock.advance(5)
            other.stats()
            bus.stats()
        other.sweep()
        found = other.agents.get("a")
        assert found is not None
        assert found.ended is None


def test_a_bus_is_shared_by_threads(bus: sync.Bus, agent: sync.Agent) -> None:
    count, workers = 40, 4
    done: list[int] = []

    def work(number: int) -> None:
        with bus.agent(f"w{number}", type="worker", pools=["work"]) as worker:
            while (message := worker.receive(timeout=0)) is not None:
                with message as unit:
                    unit.state_of("shared").increment("handled")
                    done.append(message.payload)

    bus.declare(agentbus.pool("work"))
    with ThreadPoolExecutor(workers) as pool:
        list(pool.map(lambda number: agent.send(agentbus.pool("work"), "note", number), range(count)))
        list(pool.map(work, range(workers)))
    assert sorted(done) == list(range(count))
    assert bus.state("shared").get("handled") == count


def test_closing_ends_the_waiting_calls_of_other_threads(bus: sync.Bus, agent: sync.Agent) -> None:
    def wait() -> str:
        try:
            agent.receive()
        except (AgentFenced, BusClosed) as ended:
            # Its agent has stopped with the bus.
            return ended.code
        return "received"

    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(wait) for _ in range(4)]
        eventually(lambda: agent._inner._waiting == 4, "four calls wait")
        bus.close()
        assert {one.result(PATIENCE) for one in waiting} <= {"bus_closed", "agent_fenced"}
    bus.close()
    for use in (lambda: agent.send("a", "note"), bus.stats, lambda: next(iter(bus.events()))):
        with pytest.raises(BusClosed):
            use()


def test_threads_that_close_the_bus_at_once_wait_for_its_end(bus: sync.Bus) -> None:
    leave, closing = bus._inner.__aexit__, threading.Event()
    left: list[bool] = []

    async def slow(*error: Any) -> None:
        closing.set()
        await asyncio.sleep(0.05)
        await leave(*error)
        left.append(True)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(4) as pool:
        patch.setattr(type(bus._inner), "__aexit__", lambda _, *error: slow(*error))
        first = pool.submit(bus.close)
        assert closing.wait(PATIENCE)
        for one in (first, *(pool.submit(bus.close) for _ in range(3))):
            assert one.result(PATIENCE) is None
    assert left == [True]


def test_code_on_the_loop_cannot_close_the_bus(bus: sync.Bus) -> None:
    @agentbus.workflow("closing")
    async def closing(task: agentbus.Task) -> None:
        bus.close()

    task = bus.tasks.start(closing)
    bus.tasks.run_worker(closing, until_idle=True)
    found = bus.tasks.get(task.id)
    assert found is not None
    assert found.error is not None
    assert found.error.type == "Misuse"


async def test_a_thread_with_a_running_event_loop_can_call_it(engine: Engine, bus: sync.Bus, agent: sync.Agent) -> None:
    """As in a notebook."""
    agent.send("a", "note", 1)
    with take(agent) as unit:
        unit.state.set("k", 1)
    assert agent.state.get("k") == 1
    async with engine.connect() as same:
        assert await same.state("a").get("k") == 1


@pytest.mark.one_engine
def test_an_abandoned_iterator_releases_what_it_reserved(bus: sync.Bus, agent: sync.Agent) -> None:
    # A lazy argument may use the bus.
    agent.send_many(("a", "note", len(bus.stats().messages)) for _ in range(3))
    held = [agent.inbox(prefetch=3)]
    next(held[0]).ack()
    # As the garbage collector may do it, on the thread of the loop.
    bus._portal.call(_drop, held)
    eventually(lambda: bus.stats().messages == {"acked": 1, "queued": 2}, lambda: str(bus.stats().messages))


async def _drop(held: list[Iterator[sync.Message]]) -> None:
    held.clear()
    gc.collect()


@pytest.mark.one_engine
def test_errors_are_those_of_the_asynchronous_api(bus: sync.Bus, agent: sync.Agent) -> None:
    with pytest.raises(UnknownRecipient):
        agent.send("nowhere", "note")
    with pytest.raises(UnknownRecipient), agent.unit() as unit:
        unit.send("nowhere", "note")
    with pytest.raises(NotPicklable):
        pickle.dumps(agent)


@pytest.mark.one_engine
def test_a_bus_is_opened_and_closed_without_a_block(engine: Engine) -> None:
    bus = sync.connect(engine.url, clock=FakeClock()).open()
    agent = bus.register("a", type="worker")
    assert repr(agent) == "<Agent a#1>"
    with pytest.raises(Misuse):
        bus.open()
    bus.close()
    assert all(one.status == "ok" for one in sync.doctor(engine.url) if one.name == "database")
    with sync.connect(engine.url) as again:
        ended = again.agents.get("a")
        assert ended is not None
        assert ended.status == "stopped"


@pytest.mark.one_engine
def test_a_block_that_cannot_be_entered_raises(bus: sync.Bus, agent: sync.Agent) -> None:
    with pytest.raises(AgentExists), bus.agent("a", type="worker"):
        pytest.fail("this block must not run")
    assert agent.send("a", "note").delivered == 1


@pytest.mark.one_engine
def test_the_exception_of_a_block_matters_more_than_its_lost_lease(
    bus: sync.Bus, agent: sync.Agent, clock: FakeClock
) -> None:
    other = bus.register("b", type="worker", pools=["jobs"])
    agent.send(agentbus.pool("jobs"), "note", 1)
    with pytest.raises(KeyError), take(agent) as unit:
        unit.state.set("k", 1)
        clock.stall(10_000)
        assert take(other).attempts == 2
        raise KeyError("x")
    assert agent.state.get("k") is None


@pytest.mark.one_engine
def test_a_block_whose_bus_was_closed_inside_raises_that_or_its_own_exception(engine: Engine) -> None:
    for error, expected in ((None, BusClosed), (KeyError("x"), KeyError)):
        bus = sync.Bus(engine.connect()).open()
        with pytest.raises(expected), bus.agent("a", type="worker"):
            bus.close()
            if error is not None:
                raise error


def test_a_bus_that_cannot_be_opened_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "bus.db").write_text("not a database" * 1000)
    bus = sync.connect(tmp_path)
    with pytest.raises(NotADatabase):
        bus.open()
    assert "agentbus-sync" not in {thread.name for thread in threading.enumerate()}
    bus.close()


@pytest.mark.one_engine
def test_a_call_on_the_loop_of_the_bus_is_refused(bus: sync.Bus, agent: sync.Agent) -> None:
    seen: list[BaseException] = []

    @agentbus.workflow("calling")
    async def calling(task: agentbus.Task) -> None:
        with pytest.raises(Misuse) as refused:
            bus.stats()
        seen.append(refused.value)

    bus.tasks.start(calling)
    bus.tasks.run_worker(calling, until_idle=True)
    assert [type(one) for one in seen] == [Misuse]


WRONG: dict[str, tuple[Callable[[sync.Bus], object], str]] = {
    "await a bus": (lambda bus: asyncio.run(_await(agentbus.sync.connect("nowhere"))), "with agentbus.sync.connect()"),
    "async with a bus": (lambda bus: asyncio.run(_async_with(sync.connect("nowhere"))), "with agentbus.sync.connect()"),
    "await an agent": (lambda bus: asyncio.run(_await(bus.agent("b", type="worker"))), "with bus.agent(…) as agent:"),
    "async with an agent": (
        lambda bus: asyncio.run(_async_with(bus.agent("b", type="worker"))), "with bus.agent(…) as agent:",
    ),
    "await a block of a session": (
        lambda bus: asyncio.run(_await(bus.sessions.start("planning").before("deploy"))), "with …:",
    ),
    "call the block": (
        lambda bus: bus.agent("b", type="worker").send("a", "note"),  # type: ignore[attr-defined]
        "with bus.agent(…) as agent:",
    ),
}  # fmt: skip


async def _await(value: object) -> None:
    await value  # type: ignore[misc]


async def _async_with(value: object) -> None:
    async with value:  # type: ignore[attr-defined]
        pytest.fail("this block must not run")


@pytest.mark.one_engine
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_form_shows_the_right_one(bus: sync.Bus, name: str) -> None:
    use, form = WRONG[name]
    with pytest.raises(Misuse) as refused:
        use(bus)
    assert form in str(refused.value)
    assert bus.agents.get("b") is None
