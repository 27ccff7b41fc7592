"""Work items: taken once, leased like messages, and finished, failed or released by the agent that holds them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import anyio
import anyio.lowlevel
import pytest

import agentbus
from agentbus import Agent, Bus, Task
from agentbus.errors import (
    AgentFenced,
    InvalidInput,
    InvalidName,
    Misuse,
    NotAnItem,
    OutOfRange,
    ReceivesNothing,
    TaskExists,
    TaskLost,
    UnknownApproval,
    UnknownStep,
    UnknownTask,
    WrongState,
)
from agentbus.sync.bus import open_bus
from tests.api.helpers import running, soon, worker
from tests.api.task_workers import comes_to, kinds_of, task_of, work_off
from tests.conftest import Engine
from tests.support.clock import FakeClock


@agentbus.workflow("review")
async def review(task: Task, what: Any = None) -> str:
    return await task.step("act", lambda: "by a worker")


async def add(bus: Bus, *ids: str, **options: Any) -> None:
    for id in ids:
        await bus.tasks.add("review", {"n": id}, id=id, **options)


async def taken(agent: Agent, **options: Any) -> agentbus.WorkItem:
    item = await agent.items.take(**options)
    assert item is not None
    return item


async def test_an_item_is_taken_by_one_agent_and_finished_with_a_result(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    record = await bus.tasks.add("review", {"file": "login.py"}, id="r", name="Review login")
    assert (record.manual, record.status, record.arguments) == (True, "pending", [{"file": "login.py"}])
    assert [task.id for task in await bus.tasks.ready()] == ["r"]
    item = await taken(a)
    assert (item.id, item.name, item.workflow, item.input, item.lease) == (
        "r", "Review login", "review", {"file": "login.py"}, "r#1",
    )  # fmt: skip
    assert (item.task.status, item.task.holder) == ("running", "a")
    assert await b.items.take() is None
    assert await bus.tasks.ready() == []
    await item.progress(40, "half")
    await item.progress(note="more than half")
    record = await task_of(bus, "r")
    assert (record.progress, record.note) == (40, "more than half")
    assert [one.lease for one in await a.items.held()] == ["r#1"]
    await item.finish({"approved": True})
    assert await bus.tasks.result("r") == {"approved": True}
    assert await a.items.held() == []
    assert await kinds_of(bus, "r") == ["task_started", "task_running", "task_completed"]


async def test_the_most_urgent_item_is_taken_first_then_the_oldest(bus: Bus) -> None:
    a = await worker(bus, "a")
    await add(bus, "old", "new")
    await add(bus, "urgent", priority=9)
    await add(bus, "low", priority=1)
    await bus.tasks.add("test", id="test-1", priority=9)
    assert [task.id for task in await bus.tasks.ready(manual=True)] == ["urgent", "test-1", "old", "new", "low"]
    assert [task.id for task in await bus.tasks.ready(workflow="test")] == ["test-1"]
    assert (await taken(a, workflow="test")).id == "test-1"
    await bus.tasks.edit("low", priority=8)
    assert [(await taken(a)).id for _ in range(4)] == ["urgent", "low", "old", "new"]


async def test_workers_leave_items_alone_and_agents_tasks(bus: Bus) -> None:
    await add(bus, "item")
    await bus.tasks.start(review, id="task")
    assert [task.id for task in await bus.tasks.ready(manual=False)] == ["task"]
    await work_off(bus, review)
    assert [(await task_of(bus, id)).status for id in ("item", "task")] == ["pending", "completed"]
    await bus.tasks.restart("task")
    a = await worker(bus, "a")
    assert (await taken(a)).id == "item"
    assert await a.items.take() is None
    for call in (a.items.take("task"), a.items.finish("task"), a.items.fail("task", "no"), a.items.release("task")):
        with pytest.raises(NotAnItem):
            await call
    with pytest.raises(NotAnItem):
        await bus.tasks.edit("task", priority=9)
    with pytest.raises(TaskExists):
        await bus.tasks.add("review", id="task")
    with pytest.raises(TaskExists):
        await bus.tasks.start(review, {"n": "item"}, id="item")
    assert (await bus.tasks.add("review", {"n": "item"}, id="item")).id == "item", "the same once more"


async def test_items_can_depend_on_tasks_and_tasks_on_items(bus: Bus) -> None:
    a = await worker(bus, "a")
    await bus.tasks.start(review, id="build")
    await add(bus, "check", after=["build"])
    await bus.tasks.start(review, id="ship", after=["check"])
    assert await a.items.take() is None
    with pytest.raises(WrongState, match="waiting"):
        await a.items.take("check")
    await work_off(bus, review)
    await (await taken(a)).finish()
    await work_off(bus, review)
    assert (await task_of(bus, "ship")).status == "completed"


async def test_a_waiting_agent_gets_an_item_as_soon_as_it_is_ready(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    waiting = asyncio.create_task(a.items.take(timeout=None))
    await clock.settle()
    await add(bus, "first")
    item = await soon(waiting)
    assert item is not None
    await add(bus, "second", after=["first"])
    waiting = asyncio.create_task(b.items.take(workflow="review", timeout=1000))
    await clock.settle()
    assert not waiting.done()
    await item.finish()
    found = await soon(waiting)
    assert found is not None
    assert found.id == "second"
    # Released, delayed and lapsed ones too.
    waiting = asyncio.create_task(a.items.take(timeout=None))
    await clock.settle()
    await found.release("almost")
    item = await soon(waiting)
    assert item is not None
    assert (item.lease, item.task.note) == ("second#2", "almost")


async def test_a_timeout_ends_the_wait(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    waiting = asyncio.create_task(a.items.take(timeout=30))
    await clock.settle()
    clock.advance(31)
    assert await soon(waiting) is None
    await add(bus, "late", delay=100)
    assert await a.items.take() is None
    with pytest.raises(WrongState, match="delayed"):
        await a.items.take("late")
    waiting = asyncio.create_task(a.items.take(timeout=None))
    await clock.settle()
    clock.advance(101)
    assert await soon(waiting) is not None


async def test_an_item_whose_lease_ends_is_ready_again_and_its_former_holder_is_fenced(
    bus: Bus, clock: FakeClock
) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await add(bus, "r")
    mine = await taken(a, lease=60)
    clock.stall(61)
    assert [task.id for task in await bus.tasks.ready()] == ["r"]
    theirs = await taken(b)
    assert theirs.lease == "r#2"
    for call in (mine.finish(1), mine.fail("no"), mine.release(), mine.progress(5), mine.extend(60)):
        with pytest.raises(TaskLost, match=r"held by b \(lease 2\)"):
            await call
    with pytest.raises(TaskLost):
        await a.items.finish("r", 1)
    with pytest.raises(WrongState, match="another agent holds it: b"):
        await a.items.take("r")
    assert (await task_of(bus, "r")).losses == 1
    await theirs.finish(2)
    assert await bus.tasks.result("r") == 2


async def test_a_named_item_that_the_agent_holds_is_the_same_once_more(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await add(bus, "r")
    item = await taken(a, lease=60)
    clock.stall(50)
    again = await a.items.take("r", lease=60)
    assert again is not None
    assert again.lease == item.lease
    clock.stall(50)
    await item.finish(1)
    assert await a.items.finish("r", 1) is False, "repeated, it is done already"
    assert await a.items.finish("r#1", 1) is False
    for name in ("r", "r#1"):
        with pytest.raises(TaskLost, match=r"completed, finished by a \(lease 1\) with another result"):
            await a.items.finish(name, 2)
    with pytest.raises(TaskLost, match=r"completed, finished by a \(lease 1\) "):
        await a.items.finish("r#2", 1)


async def test_an_agent_that_never_took_an_item_is_told_who_did(bus: Bus) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await add(bus, "r")
    with pytest.raises(TaskLost, match="b never took it; it is pending"):
        await b.items.release("r")
    item = await taken(a)
    with pytest.raises(TaskLost, match=r"b never took it; it is held by a \(lease 1\)"):
        await b.items.fail("r", "no")
    await item.finish(1)
    with pytest.raises(TaskLost, match=r"b never took it; it is completed, finished by a \(lease 1\) "):
        await b.items.finish("r", 2)


@pytest.mark.parametrize("end", ["fail", "stop", "takeover"])
async def test_the_items_of_an_agent_that_ends_are_ready_again(bus: Bus, end: str) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await add(bus, "r")
    item = await taken(a)
    if end == "takeover":
        await bus.register("a", type="worker", takeover=True)
    else:
        await (a.fail("broken") if end == "fail" else a.stop())
    with pytest.raises(AgentFenced):
        await item.finish()
    assert (await taken(b)).id == "r"
    assert (await task_of(bus, "r")).losses == (end != "stop")


async def test_an_item_that_loses_too_many_agents_fails_and_can_be_resumed(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await add(bus, "r", max_losses=2)
    for _ in range(2):
        await taken(a, lease=30)
        clock.stall(31)
    assert await bus.tasks.ready() == []
    assert await a.items.take() is None
    record = await task_of(bus, "r")
    assert record.error is not None
    assert (record.status, record.error.type) == ("failed", "WorkersLost")
    await bus.tasks.resume("r")
    assert (await taken(a)).id == "r"


async def test_a_failed_item_is_retried_as_often_as_it_says(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await add(bus, "r", restarts=1, backoff=10)
    assert await (await taken(a)).fail("the file is locked") == "pending"
    assert await a.items.take() is None
    clock.advance(11)
    assert await (await taken(a)).fail("the file is gone") == "failed"
    record = await task_of(bus, "r")
    assert record.error is not None
    assert (record.error.type, record.error.message) == ("ItemFailed", "the file is gone")
    with pytest.raises(WrongState, match="resume"):
        await a.items.take("r")


async def test_control_of_items(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await add(bus, "r")
    await bus.tasks.halt("r")
    assert await a.items.take() is None
    with pytest.raises(WrongState, match="halted"):
        await a.items.take("r")
    await bus.tasks.continue_("r")
    # One that is halted while an agent holds it is halted when it is released.
    item = await taken(a)
    assert (await bus.tasks.halt("r")).halting
    await item.release()
    assert (await task_of(bus, "r")).status == "halted"
    await bus.tasks.resume("r")
    # Its holder loses it when it is stopped or restarted.
    item = await taken(a)
    await bus.tasks.stop("r", reason="not wanted")
    with pytest.raises(TaskLost, match="stopped"):
        await item.finish()
    await bus.tasks.resume("r")
    item = await taken(a)
    await bus.tasks.restart("r")
    with pytest.raises(TaskLost, match="pending"):
        await item.finish()
    item = await taken(a)
    await item.finish("first")
    await bus.tasks.restart("r")
    await bus.tasks.edit("r", arguments=[{"n": "changed"}], name="Other")
    item = await taken(a)
    assert (item.input, item.name) == ({"n": "changed"}, "Other")
    with pytest.raises(WrongState, match="running"):
        await bus.tasks.edit("r", arguments=[1])
    # It has no steps and asks nothing.
    with pytest.raises(UnknownStep):
        await bus.tasks.redo("r", "act")
    with pytest.raises(UnknownStep):
        await bus.tasks.settle("r", "act", by="ada", redo=True)
    with pytest.raises(UnknownApproval):
        await bus.tasks.approve("r", "go", by="ada")
    await item.finish("second")
    assert await bus.tasks.result("r") == "second"


async def test_an_item_receives_no_signals_and_no_messages(bus: Bus) -> None:
    await bus.tasks.add("review", id="review-1")
    with pytest.raises(ReceivesNothing):
        await bus.tasks.signal("review-1", "go", 1)
    agent = await worker(bus, "sender")
    with pytest.raises(ReceivesNothing):
        await agent.send("task:review-1", "note", 1)
    assert (await bus.messages.list()).items == []


async def test_bad_input_is_refused_by_name(bus: Bus) -> None:
    a = await worker(bus, "a")
    with pytest.raises(UnknownTask):
        await a.items.take("nothing")
    with pytest.raises(UnknownTask):
        await a.items.finish("nothing")
    for name in ("r#", "r#x", "not a name", 7):
        with pytest.raises(InvalidName):
            await a.items.finish(name)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput):
        await a.items.take("r", workflow="review")
    with pytest.raises(InvalidInput):
        await a.items.progress("r")
    with pytest.raises(InvalidInput):
        await bus.tasks.add(review)  # type: ignore[arg-type]
    for priority in (-1, 10, True):
        with pytest.raises(OutOfRange):
            await bus.tasks.add("review", priority=priority)


async def test_a_block_renews_the_lease_and_settles_the_item(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await add(bus, "done", "plain", "failed", "cancelled", "lost")
    async with await taken(a, lease=60) as item:
        for _ in range(5):
            clock.advance(30)
            await clock.settle()
        await item.finish("result")
    assert await bus.tasks.result("done") == "result"
    async with await taken(a):
        pass
    assert await bus.tasks.result("plain") is None
    with pytest.raises(RuntimeError):
        async with await taken(a):
            raise RuntimeError("broken")
    record = await task_of(bus, "failed")
    assert record.error is not None
    assert (record.status, record.error.message) == ("failed", "RuntimeError: broken")
    with anyio.move_on_after(0.01):
        async with await taken(a):
            await anyio.sleep_forever()
    record = await comes_to(bus, clock, "cancelled", "pending")
    assert record.losses == 0
    await (await taken(b)).finish()
    with pytest.raises(TaskLost):
        async with await taken(a, lease=60) as item:
            await bus.tasks.stop(item.id)
            clock.advance(25)
            await anyio.sleep_forever()


@pytest.mark.one_engine
async def test_the_block_of_an_item_is_entered_once_and_needs_an_event_loop(engine: Engine) -> None:
    async with engine.connect() as bus:
        await add(bus, "a", "b")
        item = await taken(await worker(bus, "w"))
        async with item:
            with pytest.raises(Misuse, match="open already"):
                async with item:
                    pytest.fail("this block must not run")
        with pytest.raises(TaskLost, match="it is settled"):
            async with item:
                pytest.fail("this block must not run")
    with open_bus(engine.url) as blocking:
        other = blocking.do(blocking.register("v", type="worker").items.take())
        assert other is not None
        with pytest.raises(Misuse, match="needs an event loop"):
            blocking.do(other.__aenter__())


async def test_the_block_of_an_item_from_held_renews_its_lease(bus: Bus, clock: FakeClock) -> None:
    a, b = await worker(bus, "a"), await worker(bus, "b")
    await add(bus, "x")
    await taken(a, lease=60)
    clock.advance(50)
    (item,) = await a.items.held()
    async with item:
        await clock.settle()
        clock.advance(15)
        await clock.settle()
        assert await b.items.take() is None
    assert (await task_of(bus, "x")).status == "completed"


async def test_a_cancelled_call_does_not_release_an_item_that_the_agent_held(bus: Bus, clock: FakeClock) -> None:
    a = await worker(bus, "a")
    await add(bus, "x")
    item = await taken(a)
    # Cancelled before, while and after it is written.
    for turns in range(12):
        async with running(a.items.take("x")):
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
        await clock.settle()
        assert [one.lease for one in await a.items.held()] == ["x#1"], turns
    await item.finish()


async def test_every_call_of_a_visiting_agent_extends_its_items(engine: Engine, bus: Bus, clock: FakeClock) -> None:
    await add(bus, "r")

    def visit() -> None:
        with open_bus(engine.url, clock=clock) as blocking:
            me = blocking.register("v", type="worker")
            item = blocking.do(me.items.take())
            assert item is not None
            assert item.lease == "r#1"
        for _ in range(3):
            clock.stall(500)
            with open_bus(engine.url, clock=clock) as blocking:
                blocking.agent("v").progress(10)
        clock.stall(500)
        with open_bus(engine.url, clock=clock) as blocking:
            me = blocking.agent("v")
            assert [one.lease for one in blocking.do(me.items.held())] == ["r#1"]
            assert blocking.do(me.items.finish("r#1", {"ok": True}))

    await asyncio.to_thread(visit)
    assert await bus.tasks.result("r") == {"ok": True}
    await add(bus, "s")

    def lapse() -> None:
        with open_bus(engine.url, clock=clock) as blocking:
            assert blocking.do(blocking.agent("v").items.take()) is not None
        clock.stall(601)

    await asyncio.to_thread(lapse)
    b = await worker(bus, "b")
    assert (await taken(b)).lease == "s#2"


async def test_fifty_agents_take_two_hundred_items_and_none_twice(bus: Bus) -> None:
    agents = [await worker(bus, f"a{number}") for number in range(50)]
    for number in range(200):
        await bus.tasks.add("job", number)
    done: Counter[int] = Counter()

    async def work(agent: Agent) -> None:
        while item := await agent.items.take():
            done[item.input] += 1
            await item.finish(agent.id)

    with anyio.fail_after(60):
        await asyncio.gather(*map(work, agents))
    assert done == Counter(range(200))
    assert (await bus.tasks.statistics()).tasks == {"completed": 200}
