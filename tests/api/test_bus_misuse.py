"""Misuse of a bus: closed, opened twice, from another event loop, under another library."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import anyio
import pytest

import agentbus
from agentbus import Agent, Bus, Message
from agentbus.errors import BusClosed, InvalidInput, Misuse, NoEventLoop, NotPicklable, WrongLoop
from tests.api.helpers import running, soon, take, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import FakeClock

Use = Callable[[Bus, Agent, Message], Awaitable[object]]


async def _first(agent: Agent) -> None:
    async for _ in agent.inbox():
        break


async def _block(message: Message) -> None:
    async with message as unit:
        unit.progress(5)


async def _unit(agent: Agent) -> None:
    async with agent.unit() as unit:
        unit.send("a", "note")


async def _life(bus: Bus) -> None:
    async with bus.agent("b", type="worker"):
        pytest.fail("this block must not run")


async def _session(bus: Bus) -> None:
    async with bus.session("planning"):
        pytest.fail("this block must not run")


async def _handle(message: Message, unit: agentbus.Unit) -> None:
    pytest.fail("there is nothing to handle")


USES: dict[str, Use] = {
    "send": lambda bus, a, message: a.send("a", "note"),
    "send_many": lambda bus, a, message: a.send_many([("a", "note")]),
    "publish": lambda bus, a, message: a.publish("t", "note"),
    "request": lambda bus, a, message: a.request("a", "note", timeout=5),
    "receive": lambda bus, a, message: a.receive(),
    "receive_many": lambda bus, a, message: a.receive_many(5),
    "inbox": lambda bus, a, message: _first(a),
    "serve": lambda bus, a, message: a.serve(_handle),
    "ack": lambda bus, a, message: message.ack(),
    "ack of a list": lambda bus, a, message: a.ack([message]),
    "nack": lambda bus, a, message: message.nack(),
    "reject": lambda bus, a, message: message.reject("no"),
    "extend": lambda bus, a, message: message.extend(60),
    "reply": lambda bus, a, message: message.reply("note"),
    "block": lambda bus, a, message: _block(message),
    "unit": lambda bus, a, message: _unit(a),
    "progress": lambda bus, a, message: a.progress(5),
    "busy": lambda bus, a, message: a.busy(5),
    "join": lambda bus, a, message: a.join("p"),
    "subscribe": lambda bus, a, message: a.subscribe("t"),
    "complete": lambda bus, a, message: a.complete(),
    "fail": lambda bus, a, message: a.fail("x"),
    "stop": lambda bus, a, message: a.stop(),
    "agent": lambda bus, a, message: _life(bus),
    "register": lambda bus, a, message: bus.register("b", type="worker"),
    "expect": lambda bus, a, message: bus.expect("b", type="worker"),
    "declare": lambda bus, a, message: bus.declare(agentbus.pool("p")),
    "define": lambda bus, a, message: bus.define("x"),
    "stats": lambda bus, a, message: bus.stats(),
    "agents.get": lambda bus, a, message: bus.agents.get("a"),
    "agents.list": lambda bus, a, message: bus.agents.list(),
    "agents.find": lambda bus, a, message: bus.agents.find("x"),
    "agents.update": lambda bus, a, message: bus.agents.update("a", load=5),
    "agents.delete": lambda bus, a, message: bus.agents.delete("a"),
    "agents.clear": lambda bus, a, message: bus.agents.clear(),
    "session": lambda bus, a, message: _session(bus),
    "sessions.open": lambda bus, a, message: bus.sessions.open("s"),
    "sessions.get": lambda bus, a, message: bus.sessions.get("s"),
    "sessions.list": lambda bus, a, message: bus.sessions.list(),
    "messages.get": lambda bus, a, message: bus.messages.get("m-1"),
    "messages.list": lambda bus, a, message: bus.messages.list(),
    "messages.dead": lambda bus, a, message: bus.messages.dead(),
    "messages.requeue": lambda bus, a, message: bus.messages.requeue("m-1"),
    "messages.purge": lambda bus, a, message: bus.messages.purge(),
}


async def test_every_call_on_a_closed_bus_is_a_named_error(engine: Engine) -> None:
    async with engine.connect() as bus:
        a = await worker(bus, "a")
        await a.send("a", "note")
        message = await take(a)
    for name, use in USES.items():
        with pytest.raises(BusClosed) as closed:
            await use(bus, a, message)
        assert closed.value.code == "bus_closed", name
        assert isinstance(closed.value, RuntimeError)
    async with engine.connect() as again:
        assert (await again.stats()).messages == {"queued": 1}


@pytest.mark.one_engine
async def test_every_call_on_an_unopened_bus_is_a_named_error(engine: Engine) -> None:
    bus = engine.connect()
    for call in (
        bus.stats, bus.agents.list, bus.messages.purge, lambda: bus.register("a", type="worker"),
    ):  # fmt: skip
        with pytest.raises(BusClosed):
            await call()


@pytest.mark.one_engine
async def test_a_bus_cannot_be_opened_twice(bus: Bus) -> None:
    with pytest.raises(Misuse) as misuse:
        async with bus:
            pytest.fail("this block must not run")
    assert misuse.value.code == "misuse"
    await bus.stats()


@pytest.mark.one_engine
async def test_a_closed_bus_cannot_be_opened_again(engine: Engine) -> None:
    bus = engine.connect()
    async with bus:
        pass
    with pytest.raises(Misuse):
        async with bus:
            pytest.fail("this block must not run")


async def test_closing_a_bus_from_inside_its_agent_s_block_is_harmless(engine: Engine) -> None:
    async with engine.connect() as bus, bus.agent("a", type="worker") as a:
        await a.send("a", "note")


def _elsewhere(use: Callable[[], Awaitable[object]]) -> BaseException | None:
    """Use something in the event loop of another thread; return the error it raises there."""
    caught: list[BaseException | None] = []

    async def main() -> None:
        try:
            await use()
        except BaseException as error:
            caught.append(error)
        else:
            caught.append(None)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    thread.join(30)
    assert caught, "it did not return"
    return caught[0]


async def test_a_bus_cannot_be_used_from_another_event_loop(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a)

    async def use_all() -> None:
        for name, use in USES.items():
            with pytest.raises(WrongLoop) as wrong:
                await use(bus, a, message)
            assert wrong.value.code == "wrong_loop", name

    assert _elsewhere(use_all) is None
    assert (await bus.stats()).messages == {"leased": 1}
    await message.ack()
    await a.send("a", "note", "still works")
    assert (await take(a)).payload == "still works"


async def test_a_bus_cannot_be_opened_in_another_loop_than_it_is_open_in(bus: Bus) -> None:
    async def enter() -> None:
        async with bus:
            pytest.fail("this block must not run")

    assert isinstance(_elsewhere(enter), Misuse)
    await bus.stats()


async def test_a_bus_is_closed_only_in_the_event_loop_that_opened_it(engine: Engine) -> None:
    bus = engine.connect()
    async with bus:
        error = _elsewhere(lambda: bus.__aexit__(None, None, None))
        assert isinstance(error, WrongLoop), repr(error)
        a = await worker(bus, "a")
        await a.send("a", "note")
    with pytest.raises(BusClosed):
        await bus.stats()


@pytest.mark.one_engine
async def test_the_findings_of_a_monitor_cannot_be_read_from_another_event_loop(bus: Bus) -> None:
    async with bus.monitor() as monitor:

        async def read_findings() -> None:
            async for _ in monitor.findings():
                pass

        error = _elsewhere(read_findings)
        assert isinstance(error, WrongLoop), repr(error)


def _under_trio(main: Callable[[], Awaitable[Any]]) -> None:
    import trio

    trio.run(main)


def _under_anyio_on_trio(main: Callable[[], Awaitable[Any]]) -> None:
    anyio.run(main, backend="trio")


def _without_event_loop(main: Callable[[], Awaitable[Any]]) -> None:
    next(main().__await__())


@pytest.mark.one_engine
@pytest.mark.parametrize("run", [_under_trio, _under_anyio_on_trio, _without_event_loop])
def test_without_asyncio_the_error_names_the_fix(
    engine: Engine, run: Callable[[Callable[[], Awaitable[Any]]], None]
) -> None:
    if run is not _without_event_loop:
        pytest.importorskip("trio", reason="trio is not installed; the extra dev has it")
    opened, other = (engine.connect(clock=agentbus.SystemClock()) for _ in range(2))

    async def examine() -> None:
        await agentbus.doctor(engine.url)

    with asyncio.Runner() as runner:
        runner.run(opened.__aenter__())
        for use in (other.__aenter__, opened.stats, partial(opened.__aexit__, None, None, None), examine):
            with pytest.raises(NoEventLoop) as missing:
                run(use)
            assert missing.value.code == "no_event_loop"
            assert missing.value.library == (None if run is _without_event_loop else "trio")
            assert "asyncio.run(" in str(missing.value.fix)
        # One was not closed, and the other one not opened: both can be.
        runner.run(opened.__aexit__(None, None, None))
        runner.run(other.__aenter__())
        runner.run(other.__aexit__(None, None, None))


@pytest.mark.one_engine
async def test_objects_of_a_bus_cannot_be_pickled(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note")
    message = await take(a)
    async with bus.session("planning") as session:
        for thing in (bus, a, message, session, a.state, bus.agents, bus.messages, bus.tasks, bus.monitor()):
            with pytest.raises(NotPicklable) as refused:
                pickle.dumps(thing)
            assert "connect()" in str(refused.value.fix)
    assert pickle.loads(pickle.dumps(await bus.stats())).messages == {"leased": 1}  # noqa: S301 - its own bytes


async def test_each_event_loop_may_have_a_bus_of_its_own(bus: Bus, engine: Engine) -> None:
    async def main() -> None:
        async with engine.connect(clock=FakeClock()) as other:
            b = await worker(other, "b")
            await b.send("a", "note", "from another loop")

    a = await worker(bus, "a")
    assert _elsewhere(main) is None
    assert (await take(a)).payload == "from another loop"


@pytest.mark.one_engine
async def test_the_errors_have_a_fix(engine: Engine) -> None:
    bus = engine.connect()
    with pytest.raises(BusClosed) as closed:
        await bus.stats()
    assert "async with" in str(closed.value)
    assert closed.value.fix is not None


@pytest.mark.parametrize("url", ["", "nul\0", "redis://localhost", "http://x"])
def test_an_invalid_bus_location_is_refused(url: str) -> None:
    with pytest.raises(agentbus.errors.InvalidUrl) as invalid:
        agentbus.connect(url)
    assert invalid.value.code == "invalid_url"


@pytest.mark.one_engine
async def test_a_misspelt_option_is_reported_with_a_suggestion(bus: Bus) -> None:
    a = await worker(bus, "a")
    for attempt in (
        bus.register("b", type="worker", capabilites=["python"]),  # type: ignore[call-arg]
        bus.agents.update("a", capabilites=["python"]),  # type: ignore[call-arg]
        bus.expect("b", type="worker", capabilites=["python"]),  # type: ignore[call-arg]
    ):
        with pytest.raises(InvalidInput, match="did you mean capabilities"):
            await attempt
    for sending in (
        a.publish("t", "note", 1, prioritee=3),  # type: ignore[call-arg]
        a.request("a", "note", 1, timeout=1, prioritee=3),  # type: ignore[call-arg]
        a.send_many([{"to": "a", "type": "note", "prioritee": 3}]),  # type: ignore[list-item]
    ):
        with pytest.raises(InvalidInput, match="did you mean priority"):
            await sending
    with pytest.raises(InvalidInput, match="did you mean takeover"):
        async with bus.agent("b", type="worker", takover=True):  # type: ignore[call-arg]
            pass
    with pytest.raises(InvalidInput, match="did you mean ttl"):
        async with a.unit() as unit:
            unit.send("a", "note", 1, tll=3)  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="did you mean ttl"):
        await a.send("a", "note", 1, tll=3)  # type: ignore[call-arg]


@pytest.mark.one_engine
@each("handler", [None, lambda: None, lambda message: None, lambda message, unit, more: None])
async def test_a_handler_that_can_never_be_called_is_refused_at_once(bus: Bus, handler: Any) -> None:
    a = await worker(bus, "a", takeover=True)
    with pytest.raises(InvalidInput):
        await a.serve(handler)


async def test_the_reply_to_a_request_may_be_acknowledged_but_need_not(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    async with running(a.request("b", "coordination_request", timeout=30)) as asking:
        question = await soon(b.receive())
        assert question is not None
        async with question as unit:
            unit.reply(question, "coordination_response", "!")
        answer = await soon(asking)
    await answer.ack()
    assert (await bus.stats()).messages == {"acked": 2}


def _with(value: Any) -> None:
    with value:
        pytest.fail("this block must not run")


async def _await(value: Any) -> None:
    await value


WRONG_FORMS: dict[str, tuple[Callable[[Bus], Any], str]] = {
    "with connect()": (lambda bus: _with(agentbus.connect("nowhere")), "async with agentbus.connect() as bus:"),
    "await connect()": (lambda bus: _await(agentbus.connect("nowhere")), "async with agentbus.connect() as bus:"),
    "with bus.agent()": (lambda bus: _with(bus.agent("b", type="worker")), "async with bus.agent(…) as agent:"),
    "await bus.agent()": (lambda bus: _await(bus.agent("b", type="worker")), "async with bus.agent(…) as agent:"),
    "bus.agent().send": (lambda bus: cast(Any, bus.agent("b", type="worker")).send("a", "note"), "agent.send"),
    "bus.agent().id": (lambda bus: cast(Any, bus.agent("b", type="worker")).id, "agent.id"),
    "await bus.session()": (lambda bus: _await(bus.session("planning")), "async with bus.session(…) as session:"),
    "bus.session().agent": (lambda bus: cast(Any, bus.session("planning")).agent("b", type="worker"), "session.agent"),
}


@pytest.mark.one_engine
@pytest.mark.parametrize("name", WRONG_FORMS)
async def test_a_wrong_form_shows_the_right_one(bus: Bus, name: str) -> None:
    use, form = WRONG_FORMS[name]
    with pytest.raises(Misuse) as refused:
        made = use(bus)
        if asyncio.iscoroutine(made):
            await made
    assert form in str(refused.value)
    assert await bus.agents.get("b") is None
    assert (await bus.sessions.list()).items == []


async def _take_item(bus: Bus, agent: Agent) -> agentbus.WorkItem:
    await bus.tasks.add("review", id="r")
    item = await agent.items.take()
    assert item is not None
    return item


@pytest.mark.one_engine
async def test_with_instead_of_async_with_shows_the_right_form(bus: Bus) -> None:
    agent = await worker(bus, "a")
    await agent.send("a", "note")
    message = await take(agent)
    blocks = {
        "async with message as unit:": message,
        "async with agent.unit() as unit:": agent.unit(),
        "async with bus.monitor(…) as monitor:": bus.monitor(),
        "async with item:": await _take_item(bus, agent),
    }
    for form, block in blocks.items():
        with pytest.raises(Misuse) as refused:
            _with(block)
        assert form in str(refused.value)
    assert (await bus.stats()).messages == {"leased": 1}


@pytest.mark.one_engine
async def test_a_block_has_no_other_attributes(bus: Bus) -> None:
    assert not hasattr(bus.agent("b", type="worker"), "nothing")
