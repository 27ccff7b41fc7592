"""The mailbox of a task: any agent sends to it, the workflow receives each message once."""

from __future__ import annotations

import asyncio

import anyio
import msgspec
import pytest

import agentbus
from agentbus import Agent, Bus, Task
from agentbus.errors import InvalidInput, InvalidName, PayloadMismatch, QueueFull, TaskEnded, UnknownTask
from agentbus.records import TaskMessage
from tests.api.retention_helpers import DAY, NOTHING
from tests.api.task_workers import comes_to, statuses, task_of, work_off, working
from tests.conftest import Engine
from tests.support.clock import START, FakeClock

seen: list[TaskMessage | None] = []


class Review(msgspec.Struct):
    stars: int


@pytest.fixture(autouse=True)
def forget() -> None:
    seen.clear()


@agentbus.workflow("inbox")
async def inbox(task: Task, count: int) -> list[object]:
    found: list[object] = []
    for _ in range(count):
        message = await task.receive()
        assert message is not None
        seen.append(message)
        found.append(message.payload)
    return found


@agentbus.workflow("brief")
async def brief(task: Task) -> str:
    message = await task.receive(timeout=60)
    seen.append(message)
    await task.approval("end")
    return "nothing" if message is None else message.type


async def test_messages_are_received_once_the_most_urgent_first(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus:
        a = await bus.register("a", type="worker")
        task = (await bus.tasks.start(inbox, 3)).id
        await a.send(f"task:{task}", "note", "late", priority=2)
        sent = await a.send(f"task:{task}", "note", {"n": 1}, priority=8, correlation="c", headers={"x": "y"})
        await work_off(bus, inbox)
        record = await task_of(bus, task)
        assert (record.status, record.waits, record.due) == ("waiting", ["message"], None)
        assert await statuses(bus, task, "receive") == {
            "message": "finished", "message#2": "finished", "message#3": "waiting",
        }  # fmt: skip
        first = seen[0]
        assert first is not None
        assert (first.message_id, first.sender, first.type, first.payload) == (sent.message_id, "a", "note", {"n": 1})
        assert (first.priority, first.correlation, first.headers, first.wants_reply) == (8, "c", {"x": "y"}, False)
        listed = (await bus.messages.list(to=f"task:{task}")).items
        assert [(one.recipient, one.status) for one in listed] == [(f"task:{task}", "acked")] * 2
        seen.clear()
        await a.send(f"task:{task}", "note", "third")
        assert (await task_of(bus, task)).status == "pending"
    async with engine.connect() as bus:
        await work_off(bus, inbox)
        assert (await task_of(bus, task)).result == [{"n": 1}, "late", "third"]
        # The replay had the first two again, from the record.
        assert [one.payload for one in seen if one is not None] == [{"n": 1}, "late", "third"]


async def test_a_message_wakes_a_running_worker_at_once(bus: Bus, clock: FakeClock) -> None:
    a = await bus.register("a", type="worker")
    async with working(bus, inbox):
        task = (await bus.tasks.start(inbox, 1)).id
        await comes_to(bus, clock, task, "waiting")
        async with a.unit() as unit:
            unit.send(f"task:{task}", "note", 5)
        assert (await comes_to(bus, clock, task, "completed")).result == [5]


async def test_a_delayed_message_is_received_when_it_is_due(bus: Bus, clock: FakeClock) -> None:
    a = await bus.register("a", type="worker")
    task = (await bus.tasks.start(inbox, 1)).id
    await work_off(bus, inbox)
    await a.send(f"task:{task}", "note", "later", delay=30)
    await work_off(bus, inbox)
    record = await task_of(bus, task)
    assert (record.status, record.due) == ("waiting", START + 30_000)
    clock.advance(30)
    await work_off(bus, inbox)
    assert (await task_of(bus, task)).result == ["later"]


async def test_receive_returns_none_after_its_timeout_and_on_every_replay(bus: Bus, clock: FakeClock) -> None:
    a = await bus.register("a", type="worker")
    task = (await bus.tasks.start(brief)).id
    await work_off(bus, brief)
    await a.send(f"task:{task}", "note", 1, ttl=10)
    clock.advance(60)
    await work_off(bus, brief)
    await a.send(f"task:{task}", "note", 2)
    await bus.tasks.approve(task, by="ada")
    await work_off(bus, brief)
    assert (await task_of(bus, task)).result == "nothing"
    assert seen == [None, None]


async def test_a_request_to_a_task_gets_the_reply_of_a_step(bus: Bus, clock: FakeClock) -> None:
    @agentbus.workflow("server")
    async def server(task: Task) -> str:
        message = await task.receive()
        assert message is not None
        assert message.wants_reply

        def answer() -> str:
            task.unit.reply(message, "coordination_response", {"ready": True})
            return message.sender

        return await task.step("answer", answer)

    a = await bus.register("a", type="worker")
    async with working(bus, server):
        task = (await bus.tasks.start(server)).id
        with anyio.fail_after(60):
            reply = await a.request(f"task:{task}", "coordination_request", {"ready?": 1}, timeout=600)
        assert reply.payload == {"ready": True}
        assert (await comes_to(bus, clock, task, "completed")).result == "a"


async def test_messages_decode_as_types(bus: Bus) -> None:
    @agentbus.workflow("typed")
    async def typed(task: Task) -> int:
        message = await task.receive()
        assert message is not None
        with pytest.raises(PayloadMismatch):
            message.decode(int)
        return message.decode(Review).stars

    a = await bus.register("a", type="worker")
    task = (await bus.tasks.start(typed)).id
    await a.send(f"task:{task}", Review(5))
    await work_off(bus, typed)
    assert (await task_of(bus, task)).result == 5


async def test_unknown_and_ended_tasks_get_no_message(bus: Bus) -> None:
    a = await bus.register("a", type="worker")
    with pytest.raises(UnknownTask):
        await a.send("task:nobody", "note", 1)
    task = (await bus.tasks.start(inbox, 0)).id
    await a.send(f"task:{task}", "note", 1, message_id="one")
    await work_off(bus, inbox)
    with pytest.raises(TaskEnded) as ended:
        await a.send(f"task:{task}", "note", 2)
    assert ended.value.facts["status"] == "completed"
    # A retry of a message that was accepted is the same message.
    assert (await a.send(f"task:{task}", "note", 1, message_id="one")).duplicate
    with pytest.raises(InvalidName):
        await bus.register("task:x", type="worker")
    with pytest.raises(InvalidInput):
        await bus.declare(agentbus.Address("task", "x"))


async def test_mail_that_is_left_stays_until_the_task_is_deleted(bus: Bus, clock: FakeClock) -> None:
    a = await bus.register("a", type="worker")
    task = (await bus.tasks.start(inbox, 1, id="t")).id
    for number in (1, 2):
        await a.send("task:t", "note", number, message_id=f"n-{number}")
    await work_off(bus, inbox)
    left = await bus.messages.get("n-2")
    assert left is not None
    assert left.status == "queued"
    # What was received is received again, unless the redo names it.
    await bus.tasks.restart(task)
    await work_off(bus, inbox)
    assert (await task_of(bus, task)).result == [1]
    await bus.tasks.redo(task, "receive:message")
    await work_off(bus, inbox)
    assert (await task_of(bus, task)).result == [2]
    await bus.tasks.resume((await bus.tasks.start(inbox, 1, id="u", delay=3600)).id)
    await a.send("task:u", "note", 3, message_id="n-3")
    await bus.tasks.stop("u")
    clock.advance(2 * DAY)
    policy = {name: getattr(NOTHING, name) for name in NOTHING.__struct_fields__}
    await bus.retention.change(**{**policy, "tasks": DAY})
    await bus.retention.apply()
    assert await bus.tasks.get("u") is None
    dead = await bus.messages.get("n-3")
    assert dead is not None
    assert (dead.status, dead.error) == ("dead", "its recipient was deleted")
    with pytest.raises(TaskEnded):
        await bus.messages.requeue("n-3")
    # A new task of the same id has the same mailbox.
    await bus.tasks.start(inbox, 1, id="u")
    await work_off(bus, inbox)
    await bus.messages.requeue("n-3")
    await work_off(bus, inbox)
    assert (await task_of(bus, "u")).result == [3]


async def test_a_full_mailbox_refuses_more(bus: Bus) -> None:
    a = await bus.register("a", type="worker")
    task = (await bus.tasks.start(inbox, 1)).id
    await bus.quotas.change(depth=1)
    await a.send(f"task:{task}", "note", 1)
    with pytest.raises(QueueFull) as full:
        await a.send(f"task:{task}", "note", 2)
    assert full.value.facts["kind"] == "task"


async def test_many_senders_reach_a_task_that_waits(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        senders: list[Agent] = [
            await (bus if number % 2 else other).register(f"a-{number}", type="worker") for number in range(6)
        ]
        tasks = [(await bus.tasks.start(inbox, 6)).id for _ in range(3)]
        await work_off(bus, inbox)

        async def send_all(sender: Agent, order: list[str]) -> None:
            await sender.send_many([{"to": f"task:{task}", "type": "note", "payload": sender.id} for task in order])

        async with asyncio.TaskGroup() as group:
            for number, sender in enumerate(senders):
                group.create_task(send_all(sender, tasks if number % 2 else tasks[::-1]))
        await work_off(bus, inbox)
        for task in tasks:
            assert sorted(map(str, (await task_of(bus, task)).result)) == [f"a-{number}" for number in range(6)]
