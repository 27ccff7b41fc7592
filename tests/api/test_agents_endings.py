"""The end of an agent: completed, failed or stopped, and the effect on its messages and senders."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from agentbus import Bus
from agentbus.errors import AgentEnded, AgentFenced, OutOfRange
from tests.api.helpers import count, known, nothing_for, queued, running, soon, take, take_all, worker
from tests.conftest import Engine
from tests.support.cases import each
from tests.support.clock import START, FakeClock


async def test_leaving_the_block_completes_the_agent(bus: Bus, clock: FakeClock) -> None:
    async with bus.agent("a", type="worker") as a:
        await a.send("a", "note")
        clock.advance(3)
    record = await known(bus, "a")
    assert (record.status, record.error, record.ended) == ("completed", None, START + 3_000)


async def test_leaving_the_block_by_an_exception_fails_the_agent_and_propagates(bus: Bus) -> None:
    with pytest.raises(ZeroDivisionError):
        async with bus.agent("a", type="worker"):
            raise ZeroDivisionError("by zero")
    record = await known(bus, "a")
    assert (record.status, record.error) == ("failed", "ZeroDivisionError: by zero")


@pytest.mark.parametrize("text", ["a NUL \0 inside", "a lone \ud800 surrogate", "x" * 300_000])
async def test_an_exception_with_any_text_fails_the_agent_and_propagates(bus: Bus, text: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with bus.agent("a", type="worker"):
            raise ZeroDivisionError(text)
    record = await known(bus, "a")
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.startswith("ZeroDivisionError: ")


@pytest.mark.one_engine
async def test_leaving_the_block_by_cancellation_stops_the_agent(bus: Bus) -> None:
    with anyio.CancelScope() as scope:
        async with bus.agent("a", type="worker"):
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert (await known(bus, "a")).status == "stopped"


@pytest.mark.one_engine
async def test_cancelling_its_task_stops_the_agent(bus: Bus, clock: FakeClock) -> None:
    async def live() -> None:
        async with bus.agent("a", type="worker") as a:
            await a.receive()

    async with running(live()) as task:
        await clock.settle()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert (await known(bus, "a")).status == "stopped"


@pytest.mark.one_engine
async def test_ctrl_c_stops_the_agent(bus: Bus) -> None:
    with pytest.raises(KeyboardInterrupt):
        async with bus.agent("a", type="worker"):
            raise KeyboardInterrupt
    assert (await known(bus, "a")).status == "stopped"


@pytest.mark.one_engine
async def test_an_agent_that_ended_itself_inside_the_block_stays_as_it_ended(bus: Bus) -> None:
    async with bus.agent("a", type="worker") as a:
        await a.fail("cannot be done")
    async with bus.agent("b", type="worker") as b:
        await b.stop("not needed")
    assert [(await known(bus, id)).status for id in "ab"] == ["failed", "stopped"]
    assert [(await known(bus, id)).error for id in "ab"] == ["cannot be done", "not needed"]


async def test_the_block_of_an_agent_that_was_taken_over_ends_with_an_error(bus: Bus, engine: Engine) -> None:
    async with engine.connect() as elsewhere:
        with pytest.raises(AgentFenced):
            async with bus.agent("a", type="worker"):
                await worker(elsewhere, "a", takeover=True)
        assert (await known(bus, "a")).status == "running"


@pytest.mark.one_engine
async def test_an_exception_in_the_block_of_a_fenced_agent_is_what_propagates(bus: Bus, engine: Engine) -> None:
    async with engine.connect() as elsewhere:
        with pytest.raises(ZeroDivisionError):
            async with bus.agent("a", type="worker"):
                await worker(elsewhere, "a", takeover=True)
                raise ZeroDivisionError


@pytest.mark.parametrize("end", ["complete", "stop"])
async def test_a_fresh_send_to_a_completed_or_stopped_agent_is_refused(bus: Bus, end: str) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await getattr(b, end)()
    with pytest.raises(AgentEnded) as ended:
        await a.send("b", "note")
    assert (ended.value.code, ended.value.agent) == ("agent_ended", "b")
    assert ended.value.status == {"complete": "completed", "stop": "stopped"}[end]
    assert await count(bus) == 0


async def test_a_message_to_a_failed_agent_waits_for_it(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await b.fail("crashed")
    await a.send("b", "note", 1)
    assert (await take(await worker(bus, "b"))).payload == 1


@pytest.mark.parametrize("end", ["complete", "fail", "stop"])
async def test_messages_held_by_an_ended_agent_return_to_its_mailbox(bus: Bus, end: str) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", 1)
    await take(a)
    await (a.fail("crashed") if end == "fail" else getattr(a, end)())
    assert await queued(bus, "a") == [1]
    message = await take(await worker(bus, "a"))
    assert (message.payload, message.attempts) == (1, 2)


async def test_a_message_on_its_last_attempt_is_a_dead_letter_when_its_agent_ends(bus: Bus) -> None:
    a = await worker(bus, "a")
    await a.send("a", "note", max_attempts=1)
    await take(a)
    await a.fail("crashed")
    (letter,) = (await bus.messages.dead()).items
    assert letter.error is not None
    assert "a" in letter.error


async def test_an_ended_agent_is_fenced(bus: Bus) -> None:
    for number, end in enumerate(("complete", "fail", "stop")):
        a = await worker(bus, f"a{number}")
        await (a.fail("crashed") if end == "fail" else getattr(a, end)())
        for action in (
            a.send(a.id, "note"), a.receive(timeout=0), a.progress(5), a.complete(), a.fail("again"), a.stop(),
        ):  # fmt: skip
            with pytest.raises(AgentFenced) as fenced:
                await action
            assert fenced.value.agent == a.id
    assert await count(bus) == 0


async def test_a_waiting_receiver_is_woken_when_its_agent_ends(bus: Bus, clock: FakeClock) -> None:
    """No call may wait indefinitely in an incarnation that has ended."""
    a = await worker(bus, "a")
    async with running(a.receive()) as waiting:
        await clock.settle()
        await a.complete()
        await clock.pass_time(11)
        with pytest.raises(AgentFenced):
            await soon(waiting)


async def test_a_waiting_receiver_is_woken_when_its_agent_is_taken_over(
    bus: Bus, engine: Engine, clock: FakeClock
) -> None:
    a = await worker(bus, "a")
    async with engine.connect() as elsewhere, running(a.receive()) as waiting:
        await clock.settle()
        await worker(elsewhere, "a", takeover=True)
        await clock.pass_time(11)
        with pytest.raises(AgentFenced):
            await soon(waiting)


async def test_a_parent_is_notified_when_its_child_fails(bus: Bus) -> None:
    parent = await worker(bus, "parent")
    child = await worker(bus, "child", parent="parent")
    await child.fail("the tests cannot be made to pass")
    message = await take(parent)
    assert message.type == "error_report"
    assert message.payload == {"agent": "child", "status": "failed", "error": "the tests cannot be made to pass"}
    assert message.priority >= 7


@pytest.mark.one_engine
async def test_a_parent_is_notified_when_the_block_of_its_child_raises(bus: Bus) -> None:
    parent = await worker(bus, "parent")
    with pytest.raises(ValueError, match="bad"):
        async with bus.agent("child", type="worker", parent="parent"):
            raise ValueError("bad")
    assert (await take(parent)).payload["error"] == "ValueError: bad"


async def test_a_parent_is_not_notified_of_ordinary_endings(bus: Bus) -> None:
    parent = await worker(bus, "parent")
    for number, end in enumerate(("complete", "stop")):
        await getattr(await worker(bus, f"c{number}", parent="parent"), end)()
    assert await nothing_for(parent)


async def test_a_failed_parent_is_notified_of_its_child_when_it_returns(bus: Bus) -> None:
    parent = await worker(bus, "parent")
    child = await worker(bus, "child", parent="parent")
    await parent.fail("crashed")
    await child.fail("crashed too")
    assert len(await take_all(await worker(bus, "parent"))) == 1


async def test_a_child_without_a_living_parent_can_fail(bus: Bus) -> None:
    parent = await worker(bus, "parent")
    await parent.complete()
    await (await worker(bus, "orphan", parent="parent")).fail("crashed")
    await (await worker(bus, "foundling", parent="never-there")).fail("crashed")
    assert (await known(bus, "orphan")).status == (await known(bus, "foundling")).status == "failed"
    assert await count(bus) == 0


@pytest.mark.one_engine
@each("text", ["nul \0", "lone \ud800", "x" * 200_000, None, 5])
async def test_a_refused_error_text_does_not_end_the_agent(bus: Bus, text: str) -> None:
    a = await worker(bus, "a", takeover=True)
    with pytest.raises(OutOfRange):
        await a.fail(text)
    if text is not None:
        with pytest.raises(OutOfRange):
            await a.stop(text)
    assert (await known(bus, "a")).status == "running"
    await a.send("a", "note")
