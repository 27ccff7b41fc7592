"""Arguments of tasks: refused if no live workflow accepts them, and editable later."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.errors import InvalidInput, PayloadTooLarge, WorkflowChanged, WrongArguments, WrongState
from agentbus.operations.protocol import Actor
from agentbus.operations.task_signatures import AnnounceRequest, announce_workflows
from tests.api.helpers import soon
from tests.api.other_processes import ABSENT_PID, resident, stranger
from tests.api.task_workers import Calls, comes_to, statuses, task_of, work_off, working
from tests.conftest import Engine
from tests.support.clock import FakeClock


@agentbus.workflow("feature")
async def feature(
    task: Task, request: str, size: int = 1, /, *more: float, deep: bool = False, tags: list[str] | None = None
) -> str:
    return f"{request} {size} {more} {deep} {tags}"


SHOWN = "feature(request: str, size: int = …, /, *more: float, deep: bool = …, tags: list | None = …)"

WRONG: list[tuple[list[Any], dict[str, Any], str]] = [
    ([], {}, "'request' is missing"),
    ([], {"request": "x"}, "'request' is missing"),
    (["x"], {"depth": 1}, "'depth' is unknown"),
    ([5], {}, "'request' must be str, not int"),
    (["x", True], {}, "'size' must be int, not bool"),
    (["x", 1.5], {}, "'size' must be int, not float"),
    (["x", 1, "y"], {}, "'more' must be float, not str"),
    (["x"], {"deep": None}, "'deep' must be bool, not None"),
    (["x"], {"tags": {}}, "'tags' must be list or None, not dict"),
]
RIGHT: list[tuple[list[Any], dict[str, Any]]] = [
    (["x"], {}),
    (["x", 2, 3, 4.5], {"deep": True, "tags": ["a"]}),
    (["x"], {"tags": None}),
]


async def test_wrong_arguments_are_refused_as_live_workers_announce_them(engine: Engine, clock: FakeClock) -> None:
    async with engine.connect() as bus, engine.connect() as people:
        # No worker is known: it may come, and know better.
        early = await people.tasks.start("feature", delay=3600)
        async with working(bus, feature):
            await clock.settle()
            for arguments, keywords, reason in WRONG:
                for workflow in ("feature", feature):
                    with pytest.raises(WrongArguments) as refused:
                        await people.tasks.start(workflow, *arguments, keywords=keywords)
                    assert (refused.value.reason, refused.value.signature) == (reason, SHOWN)
                    assert SHOWN in (refused.value.fix or "")
            for arguments, keywords in RIGHT:
                task = await people.tasks.start("feature", *arguments, keywords=keywords)
                assert (await comes_to(people, clock, task.id, "completed")).error is None
            # A start that is repeated after a crash gives the same task, whatever is announced by now.
            await bus.tasks.edit(early.id, name="early")
            assert (await people.tasks.start("feature", id=early.id)).id == early.id
            assert len((await people.tasks.list()).items) == 1 + len(RIGHT)
        # The worker is gone, and so is what it announced.
        await people.tasks.start("feature", "x", keywords={"depth": 1})


async def test_the_announcement_of_a_given_agent_ends_with_its_work(bus: Bus, clock: FakeClock) -> None:
    async with bus.agent("builder", type="executor") as builder:
        async with working(bus, feature, agent=builder):
            await clock.settle()
            with pytest.raises(WrongArguments):
                await bus.tasks.start("feature")
        await bus.tasks.start("feature")


async def test_a_worker_that_was_killed_refuses_nothing(bus: Bus) -> None:
    process = await stranger(bus, pid=ABSENT_PID, started="77")
    life = await resident(bus, "w-1", process)
    signature = '[{"name":"request"}]'
    actor = Actor("w-1", life.epoch)
    await bus._engine.write(announce_workflows, AnnounceRequest(actor, (("feature", signature),)))
    await bus.tasks.start("feature", keywords={"other": 1})


async def test_of_several_versions_one_has_to_take_the_arguments_and_gets_the_task(
    engine: Engine, clock: FakeClock
) -> None:
    @agentbus.workflow("versioned")
    async def old(task: Task, request: str) -> str:
        return f"old {request}"

    @agentbus.workflow("versioned")
    async def new(task: Task, request: str, *, size: int) -> str:
        return f"new {request} {size}"

    async with engine.connect() as bus, engine.connect() as other, working(bus, old, concurrency=1):
        await clock.settle()
        with pytest.raises(WrongArguments):
            await bus.tasks.start("versioned", "x", keywords={"size": 1})
        async with working(other, new, concurrency=1):
            await clock.settle()
            with pytest.raises(WrongArguments) as refused:
                await bus.tasks.start("versioned")
            assert "versioned(request: str)" in refused.value.signature
            assert " or " in refused.value.signature
            wanted: dict[str, str] = {}
            for number in range(10):
                newer = await bus.tasks.start("versioned", str(number), keywords={"size": number})
                older = await bus.tasks.start("versioned", str(number))
                wanted |= {newer.id: f"new {number} {number}", older.id: f"old {number}"}
            for id, result in wanted.items():
                assert await soon(bus.tasks.result(id)) == result


async def test_a_worker_takes_its_tasks_behind_many_tasks_for_others(bus: Bus, clock: FakeClock) -> None:
    @agentbus.workflow("versioned")
    async def old(task: Task, request: str) -> str:
        return request

    async with bus.agent("new", type="worker") as new:
        signature = '[{"name":"request"},{"name":"size","kind":"keyword"}]'
        await new._write(announce_workflows, AnnounceRequest(new._actor, (("versioned", signature),)))
        for _ in range(30):
            await bus.tasks.start("versioned", "x", keywords={"size": 1})
        async with working(bus, old, concurrency=1):
            await clock.settle()
            task = await bus.tasks.start(old, "mine")
            assert await soon(bus.tasks.result(task.id)) == "mine"
        assert (await bus.tasks.statistics()).tasks == {"completed": 1, "pending": 30}


@pytest.mark.one_engine
async def test_sub_tasks_are_checked_too(bus: Bus, clock: FakeClock) -> None:
    caught: list[str] = []

    @agentbus.workflow("parent")
    async def parent(task: Task, by_name: bool) -> None:
        try:
            await task.start("feature" if by_name else feature, 5)  # type: ignore[arg-type]
        except WrongArguments as error:
            caught.append(error.reason)

    async with working(bus, parent, feature):
        for by_name in (True, False):
            task = await bus.tasks.start(parent, by_name)
            await soon(bus.tasks.wait(task.id))
    assert caught == ["'request' must be str, not int"] * 2


@pytest.mark.one_engine
async def test_only_what_is_certain_of_types_is_refused(bus: Bus) -> None:
    @agentbus.workflow("open")
    async def opened(
        task: Task,
        any_: Any,
        path: Annotated[str, "x"],
        missing: Nowhere,  # type: ignore[name-defined]  # noqa: F821
        *rest: Any,
        **more: Any,
    ) -> None: ...

    async with working(bus, opened):
        await bus.tasks.start(opened, 1, "p", {}, 4, "five", keywords={"six": 7})
        with pytest.raises(WrongArguments, match="'path' must be str"):
            await bus.tasks.start(opened, 1, 2, 3)  # type: ignore[call-arg, arg-type]


# Editing


async def test_a_task_that_failed_for_its_arguments_is_edited_and_resumed(bus: Bus, clock: FakeClock) -> None:
    task = (await bus.tasks.start("feature", 5, keywords={"deep": True})).id
    await work_off(bus, feature)
    record = await task_of(bus, task)
    assert record.status == "failed"
    assert record.error is not None
    with pytest.raises(WrongArguments) as refused:
        await bus.tasks.start(feature, 5, keywords={"deep": True})
    assert (record.error.type, record.error.message) == (WrongArguments.__name__, str(refused.value))
    async with working(bus, feature):
        await clock.settle()
        with pytest.raises(WrongArguments):
            await bus.tasks.edit(task, arguments=[])
        assert (await task_of(bus, task)).arguments == [5]
        record = await bus.tasks.edit(task, arguments=["five"], by="ada")
        assert (record.status, record.arguments, record.keywords) == ("failed", ["five"], {"deep": True})
        await bus.tasks.edit(task, keywords={})
        record = await bus.tasks.resume(task)
        assert record.error is None, "it is not why it is pending"
        record = await comes_to(bus, clock, task, "completed")
    assert (record.result, record.error) == ("five 1 () False None", None)
    edited = [event async for event in bus.events(kind="task_edited")]
    assert [(event.actor, event.facts["changed"]) for event in edited] == [("ada", ["arguments"]), (None, ["keywords"])]
    assert len([event async for event in bus.events(kind="task_failed")]) == 1, "the trail keeps it"


async def test_edited_arguments_keep_what_is_finished_and_what_they_change_is_named(bus: Bus) -> None:
    calls = Calls()

    @agentbus.workflow("kept")
    async def kept(task: Task, first: str, second: str) -> list[str]:
        one = await task.step("one", calls, first, first)
        await task.approval("go")
        return [one, await task.step("two", calls, second, second)]

    task = (await bus.tasks.start(kept, "a", "b")).id
    await work_off(bus, kept)
    # What has not been done yet takes the new one.
    await bus.tasks.edit(task, arguments=["a", "c"])
    await bus.tasks.approve(task, by="ada")
    await work_off(bus, kept)
    assert (await task_of(bus, task)).result == ["a", "c"]
    assert calls.made == ["a", "c"]
    with pytest.raises(WrongState, match="completed"):
        await bus.tasks.edit(task, arguments=["x", "y"])
    # What was done with the old one is named.
    task = (await bus.tasks.start(kept, "a", "b")).id
    await work_off(bus, kept)
    await bus.tasks.edit(task, arguments=["z", "b"])
    await bus.tasks.approve(task, by="ada")
    await work_off(bus, kept)
    record = await task_of(bus, task)
    assert record.error is not None
    assert (record.error.type, "'one'" in record.error.message) == (WorkflowChanged.__name__, True)
    await bus.tasks.redo(task, "one")
    assert await statuses(bus, task) == {}
    await work_off(bus, kept)
    assert (await task_of(bus, task)).waits == ["approval:go"]


async def test_the_arguments_of_a_task_that_a_worker_has_stay(bus: Bus) -> None:
    calls = Calls()
    calls.gate("work")

    @agentbus.workflow("busy")
    async def busy(task: Task, n: int) -> None:
        await task.step("work", calls, "work")

    task = (await bus.tasks.start(busy, 1)).id
    async with working(bus, busy):
        await soon(calls.begun["work"].wait())
        with pytest.raises(WrongState, match="halt or stop it"):
            await bus.tasks.edit(task, arguments=[2])
        assert (await bus.tasks.edit(task, name="Busy")).name == "Busy"
    assert (await bus.tasks.edit(task, arguments=[2])).arguments == [2]
    for bad in ({"arguments": "text"}, {"arguments": 3}, {"keywords": ["x"]}, {"arguments": [float("nan")]}):
        with pytest.raises(InvalidInput):
            await bus.tasks.edit(task, **bad)
    large = "x" * (bus._max_payload - 100)
    await bus.tasks.edit(task, arguments=[large])
    with pytest.raises(PayloadTooLarge):
        await bus.tasks.edit(task, keywords={"n": large})


async def test_an_error_is_not_shown_once_a_worker_takes_the_restarted_task(bus: Bus, clock: FakeClock) -> None:
    calls = Calls()
    broken = [True]

    @agentbus.workflow("restarting")
    async def restarting(task: Task) -> None:
        if broken:
            broken.pop()
            raise RuntimeError("broken")
        await task.step("work", calls, "work")

    calls.gate("work")
    task = (await bus.tasks.start(restarting, restarts=1, backoff=10)).id
    async with working(bus, restarting):
        record = await comes_to(bus, clock, task, "pending")
        while record.restarted == 0:
            await clock.settle()
            record = await task_of(bus, task)
        assert record.error is not None, "why it waits"
        await clock.pass_time(10)
        await soon(calls.begun["work"].wait())
        assert (await task_of(bus, task)).error is None
