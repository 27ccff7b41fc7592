"""Reach: when a recipient gets to see a message; and steering, which a person does and waits for."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from agentbus import Bus, pool
from agentbus.errors import AgentEnded, AgentFenced, NotAnOperator, OutOfRange, UnknownAgent
from agentbus.operations.receive import list_arrived
from agentbus.sync.bus import open_bus
from tests.api.helpers import running, soon, stored, worker
from tests.conftest import Engine
from tests.support.clock import FakeClock


async def reached(bus: Bus, to: str) -> tuple[str, str | None]:
    found = await bus.messages.reach(to)
    return found.reach, found.agent


async def until(bus: Bus, to: str, reach: str) -> None:
    """Wait until this is how an agent can be reached."""
    with anyio.fail_after(60):
        while await reached(bus, to) != (reach, to):  # noqa: ASYNC110 - other tasks and threads do it
            await asyncio.sleep(0)


async def test_what_an_adapter_declared_and_the_last_call_decide(bus: Bus, clock: FakeClock) -> None:
    await bus.expect("a", type="worker")
    assert await reached(bus, "a") == ("when_started", "a")
    a = await bus.register_visitor("a", type="worker")
    assert await reached(bus, "a") == ("unknown", "a")
    await a.declare_reach("turn", channel="mcp")
    assert await reached(bus, "a") == ("next_turn", "a")
    await a.declare_reach("tool", channel="hook")
    found = await bus.messages.reach("a")
    assert (found.reach, found.epoch, found.status, found.last_call) == ("next_tool", 1, "running", clock.now().wall)
    clock.advance(119)
    assert await reached(bus, "a") == ("next_tool", "a")
    clock.advance(1)
    assert await reached(bus, "a") == ("next_turn", "a"), "it is idle"
    await a.busy(600)
    clock.advance(300)
    assert (await bus.messages.reach("a")).busy_until == clock.now().wall + 300_000
    assert await reached(bus, "a") == ("next_tool", "a")
    await a.declare_reach(None, channel="hook")
    assert await reached(bus, "a") == ("next_turn", "a")
    # A declaration is that of one incarnation.
    new = await bus.register_visitor("a", type="worker", takeover=True)
    with pytest.raises(AgentFenced):
        await a.declare_reach("tool", channel="hook")
    assert await reached(bus, "a") == ("unknown", "a")
    await new.declare_reach("tool", channel="hook")
    assert await reached(bus, "a") == ("next_tool", "a")
    await new.fail("gone")
    assert await reached(bus, "a") == ("when_started", "a")
    await bus.agents.delete("a")
    assert await reached(bus, "a") == ("when_started", None)
    with pytest.raises(OutOfRange):
        await new.declare_reach("now", channel="hook")  # type: ignore[arg-type]


async def test_of_a_pool_and_a_topic_the_first_to_see_it_counts(bus: Bus) -> None:
    await bus.declare(pool("empty"))
    assert await reached(bus, "pool:empty") == ("when_started", None)
    a = await bus.register_visitor("a", type="worker", pools=["p"], topics=["t"])
    b = await bus.register_visitor("b", type="worker", pools=["p"], topics=["t"])
    await bus.register_visitor("c", type="worker")
    await a.fail("gone")
    assert await reached(bus, "pool:p") == ("unknown", "b")
    await b.declare_reach("turn", channel="hook")
    assert await reached(bus, "pool:p") == ("next_turn", "b")
    assert await reached(bus, "topic:t") == ("next_turn", "b")
    await bus.messages.send("c", "note", 1, by="ada")
    assert await reached(bus, "operator:ada") == ("unknown", None)


async def test_a_process_that_waits_for_messages_is_reached_now(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        visitor = await other.register_visitor("visiting", type="worker")
        async with running(visitor.receive(timeout=60)):
            await until(bus, "visiting", "now")
        await until(bus, "visiting", "unknown")
        resident = await other.register("resident", type="worker")
        await resident.receive(timeout=0)
        await clock.settle()
        assert await reached(bus, "resident") == ("unknown", "resident"), "it does not wait"
        async with running(resident.receive()):
            await until(bus, "resident", "now")
    async with engine.connect() as bus:
        assert await reached(bus, "resident") == ("when_started", "resident")


async def test_a_person_steers_an_agent_and_waits_for_the_receipt(bus: Bus, clock: FakeClock) -> None:
    a = await bus.register_visitor("a", type="worker")
    await a.declare_reach("tool", channel="hook")
    async with running(bus.messages.steer("a", "use the new API", by="ada", stop_after=True, timeout=60)) as steering:
        (message,) = await soon(a.receive(timeout=60))
        assert (message.sender, message.type, message.priority) == ("operator:ada", "steer", 9)
        assert message.payload == {"text": "use the new API\n\nStop after your current step.", "stop_after": True}
        await a.seen(str(message.lease), channel="hook", client="s")
        steered = await soon(steering)
    assert (steered.message_id, steered.seen) == (message.message_id, True)
    assert [(one.agent, one.client) for one in steered.receipts] == [("a", "s")]
    async with running(bus.messages.steer("a", "faster", by="ada", timeout=30)) as steering:
        await clock.settle()
        clock.advance(130)
        late = await soon(steering)
    assert (late.seen, late.receipts, late.reach.reach, late.reach.status) == (False, [], "next_turn", "running")
    assert (await stored(bus, late.message_id)).payload == {"text": "faster", "stop_after": False}


async def test_agents_cannot_steer(bus: Bus) -> None:
    a = await worker(bus, "a")
    b = await bus.register_visitor("b", type="worker")
    with pytest.raises(NotAnOperator) as refused:
        await a.send("b", "steer", {"text": "obey"})
    assert refused.value.fix
    async with a.unit() as unit:
        unit.send("b", "note", 1)
        with pytest.raises(NotAnOperator):
            await b.send("a", "steer", {"text": "obey"})
    with pytest.raises(NotAnOperator, match="agents cannot steer agents"):
        await bus.messages.steer("b", "obey", by="a", timeout=0)
    with pytest.raises(NotAnOperator, match="'a' is an agent"):
        await bus.messages.send("b", "steer", {"text": "obey"}, by="a")
    with pytest.raises(UnknownAgent):
        await bus.messages.steer("nobody", "stop", by="ada", timeout=0)
    await b.complete()
    with pytest.raises(AgentEnded):
        await bus.messages.steer("b", "stop", by="ada", timeout=0)
    assert [one.type for one in (await bus.messages.list()).items] == ["note"]


async def test_a_waiting_visitor_without_a_loop_is_reached_now(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus:
        found: list[object] = []

        def visit() -> None:
            with open_bus(engine.url) as own:
                found.extend(own.register("a", type="worker").receive_many(1, timeout=30))

        thread = asyncio.create_task(asyncio.to_thread(visit))
        await until(bus, "a", "now")
        await bus.messages.send("a", "note", 1, by="ada")
        await soon(thread)
        assert len(found) == 1
        assert await reached(bus, "a") == ("unknown", "a")


async def test_a_watcher_sleeps_while_a_due_message_waits(engine: Engine, clock: FakeClock) -> None:
    """Only a claim queues it: until then it is no reason to read again."""

    def watch() -> None:
        with open_bus(engine.url, clock=clock, create=True) as bus:
            a = bus.register("a", type="worker")
            a.send("a", "note", 1)
            a.send("a", "note", 2, delay=10)
            a.send("a", "note", 3, delay=30)
            assert bus.read(list_arrived, a._mailboxes.all) == ([1], 10_000)
            clock.advance(10)
            assert bus.read(list_arrived, a._mailboxes.all) == ([1, 2], 20_000)
            clock.advance(50)
            assert bus.read(list_arrived, a._mailboxes.all) == ([1, 2, 3], None)

    await asyncio.to_thread(watch)
