"""Dependencies: a task starts when the tasks that it depends on have completed, and says what it waits for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.errors import DependencyCycle, InvalidInput, OutOfRange, UnknownTask, WrongState
from agentbus.records import TaskDependency
from tests.api.helpers import soon
from tests.api.retention_helpers import DAY, applied
from tests.api.task_workers import Calls, comes_to, kinds_of, task_of, work_off, working
from tests.api.test_tasks_retention import POLICY
from tests.conftest import Engine
from tests.support.clock import FakeClock

broken: set[str] = set()
"""Names of work that fails."""


@agentbus.workflow("work")
async def work(task: Task, name: str = "") -> str:
    async def act() -> str:
        if name in broken:
            raise RuntimeError(f"{name} is broken")
        return name

    return await task.step("act", act)


@pytest.fixture(autouse=True)
def nothing_broken() -> None:
    broken.clear()


async def start(bus: Bus, id: str, after: Sequence[str] = (), policy: str = "block", **options: Any) -> str:
    return (await bus.tasks.start(work, id, id=id, after=after, on_failed_dependency=policy, **options)).status


async def status(bus: Bus, task: str) -> str:
    return (await task_of(bus, task)).status


async def reason(bus: Bus, task: str) -> str:
    (event,) = [event async for event in bus.events(kind="task_stopped", subject=f"task:{task}")]
    return str(event.facts["reason"])


async def test_a_task_starts_when_all_that_it_depends_on_have_completed(bus: Bus, clock: FakeClock) -> None:
    for id in ("a", "b"):
        await start(bus, id)
    await bus.tasks.halt("b")
    record = await bus.tasks.start(work, "c", id="c", after=["b", "a", "b"])
    assert (record.status, record.waits, record.due) == ("waiting", ["after:a", "after:b"], None)
    assert record.on_failed_dependency == "block"
    await work_off(bus, work)
    clock.advance(5)
    record = await task_of(bus, "c")
    assert (record.status, record.waits, record.started) == ("waiting", ["after:b"], None)
    assert [(one.task, one.status) for one in record.after] == [("a", "completed"), ("b", "halted")]
    assert [one.completed is None for one in record.after] == [False, True]
    assert [task.id for task in await bus.tasks.ready()] == []
    await bus.tasks.continue_("b")
    assert [task.id for task in await bus.tasks.ready()] == ["b"]
    await work_off(bus, work)
    assert (await task_of(bus, "c")).result == "c"
    assert await kinds_of(bus, "c") == ["task_started", "task_pending", "task_running", "task_completed"]


async def test_a_waiting_worker_takes_the_dependent_at_once(bus: Bus, clock: FakeClock) -> None:
    """The completion wakes it: no time passes on the clock of the bus."""
    calls = Calls()
    gate = calls.gate("first")

    @agentbus.workflow("first")
    async def first(task: Task) -> None:
        await task.step("act", calls, "first")

    await bus.tasks.start(first, id="f")
    await start(bus, "d", ["f"])
    async with working(bus, first), working(bus, work):
        await soon(calls.begun["first"].wait())
        before = clock.now().awake
        gate.set()
        await comes_to(bus, clock, "d", "completed")
        assert clock.now().awake == before


async def test_what_has_completed_before_is_not_waited_for(bus: Bus) -> None:
    await start(bus, "a")
    await work_off(bus, work)
    assert await start(bus, "b", ["a"]) == "pending"
    assert [one.status for one in (await task_of(bus, "b")).after] == ["completed"]


async def test_the_delay_of_a_dependent_is_kept(bus: Bus, clock: FakeClock) -> None:
    await start(bus, "a")
    await start(bus, "b", ["a"], delay=100)
    await start(bus, "late", ["a"], delay=10)
    clock.advance(50)
    await work_off(bus, work)
    record = await task_of(bus, "b")
    assert (record.status, record.due) == ("pending", clock.now().wall + 50_000)
    assert await status(bus, "late") == "completed"
    clock.advance(51)
    await work_off(bus, work)
    assert await status(bus, "b") == "completed"


async def test_a_failed_dependency_blocks_until_it_completes(bus: Bus) -> None:
    broken.add("a")
    await start(bus, "a")
    await start(bus, "b", ["a"])
    await start(bus, "c", ["b"])
    await work_off(bus, work)
    assert [await status(bus, id) for id in "abc"] == ["failed", "waiting", "waiting"]
    assert (await task_of(bus, "b")).after == [TaskDependency("a", "failed", None)]
    broken.clear()
    await bus.tasks.resume("a")
    await work_off(bus, work)
    assert [await status(bus, id) for id in "abc"] == ["completed"] * 3


async def test_a_failed_dependency_cancels_by_policy_with_the_reason_and_all_that_follow(bus: Bus) -> None:
    broken.add("a")
    await start(bus, "a")
    await start(bus, "b", ["a"], "cancel")
    await start(bus, "c", ["b"], "cancel")
    await start(bus, "d", ["b"])
    await work_off(bus, work)
    assert [await status(bus, id) for id in "abcd"] == ["failed", "stopped", "stopped", "waiting"]
    assert await reason(bus, "b") == "dependency a failed"
    assert await reason(bus, "c") == "dependency b was stopped"
    # Started after the failure, it is stopped at once.
    assert await start(bus, "e", ["a"], "cancel") == "stopped"
    assert await reason(bus, "e") == "dependency a failed"
    # A person decides otherwise: what is resumed waits again, and nothing cancels it a second time.
    assert (await bus.tasks.resume("b")).waits == ["after:a"]
    await start(bus, "f", ["a"], "cancel")
    assert await status(bus, "b") == "waiting"
    broken.clear()
    await bus.tasks.resume("a")
    await work_off(bus, work)
    assert [await status(bus, id) for id in "abd"] == ["completed"] * 3


async def test_a_stopped_dependency_is_like_a_failed_one(bus: Bus) -> None:
    await start(bus, "a")
    await start(bus, "b", ["a"], "cancel")
    await start(bus, "c", ["a"])
    await bus.tasks.stop("a")
    assert [await status(bus, id) for id in "bc"] == ["stopped", "waiting"]
    await bus.tasks.resume("a")
    await work_off(bus, work)
    assert await status(bus, "c") == "completed"


async def test_unknown_ids_and_cycles_are_refused_by_name(bus: Bus) -> None:
    await start(bus, "a")
    with pytest.raises(UnknownTask, match="nothing"):
        await start(bus, "b", ["a", "nothing"])
    assert await bus.tasks.get("b") is None
    with pytest.raises(DependencyCycle):
        await start(bus, "b", ["b"])
    await start(bus, "b", ["a"])
    await start(bus, "c", ["b"])
    with pytest.raises(DependencyCycle) as error:
        await bus.tasks.edit("a", after=["c"], name="other")
    assert (error.value.code, error.value.path) == ("dependency_cycle", "a → c → b → a")
    record = await task_of(bus, "a")
    assert (record.after, record.name) == ([], "work"), "nothing of the edit was written"
    with pytest.raises(InvalidInput):
        await start(bus, "d", "a")
    with pytest.raises(OutOfRange):
        await start(bus, "d", ["a"], "ignore")


async def test_a_new_task_under_the_id_of_a_deleted_one_cannot_close_a_cycle(bus: Bus, clock: FakeClock) -> None:
    await start(bus, "a")
    await start(bus, "b", ["a"])
    await bus.tasks.stop("a")
    clock.advance(2 * DAY)
    await applied(bus, policy=POLICY)
    assert (await task_of(bus, "b")).after == [TaskDependency("a", "deleted", None)]
    with pytest.raises(DependencyCycle, match="a → b → a"):
        await start(bus, "a", ["b"])
    # A new one without that dependency is what the other waits for.
    await start(bus, "a")
    await work_off(bus, work)
    assert await status(bus, "b") == "completed"


async def test_a_sub_task_cannot_wait_for_its_parent(bus: Bus) -> None:
    @agentbus.workflow("parent")
    async def parent(task: Task) -> str:
        child: str = await (await task.start(work, "x"))
        return child

    await bus.tasks.start(parent, id="p")
    await work_off(bus, parent)
    (child,) = (await bus.tasks.list(parent="p")).items
    await start(bus, "after-p", ["p"])
    for id in ("p", "after-p"):
        with pytest.raises(DependencyCycle):
            await bus.tasks.edit(child.id, after=[id])
    # Stopped by its policy, it lets the parent continue, as any end does.
    await start(bus, "a")
    await bus.tasks.edit(child.id, after=["a"], on_failed_dependency="cancel")
    await bus.tasks.stop("a")
    await work_off(bus, parent)
    assert [await status(bus, id) for id in (child.id, "p")] == ["stopped", "failed"]


async def test_dependencies_change_until_the_task_starts(bus: Bus) -> None:
    for id in ("a", "b"):
        await start(bus, id)
        await bus.tasks.halt(id)
    await start(bus, "c")
    record = await bus.tasks.edit("c", after=["a"])
    assert (record.status, record.waits, record.on_failed_dependency) == ("waiting", ["after:a"], "block")
    record = await bus.tasks.edit("c", after=["b"], no_after=["a"], on_failed_dependency="cancel")
    assert (record.waits, record.on_failed_dependency) == (["after:b"], "cancel")
    with pytest.raises(WrongState, match="remove its dependency a"):
        await bus.tasks.edit("c", no_after=["a"])
    record = await bus.tasks.edit("c", no_after=["b"])
    assert (record.status, record.after, record.on_failed_dependency) == ("pending", [], None)
    await work_off(bus, work)
    with pytest.raises(WrongState, match="dependencies"):
        await bus.tasks.edit("c", after=["a"])
    await bus.tasks.restart("c")
    with pytest.raises(WrongState, match="it has started"):
        await bus.tasks.edit("c", after=["a"])
    await start(bus, "d", ["a"])
    with pytest.raises(WrongState):
        await bus.tasks.resume("d")
    await bus.tasks.stop("b")
    assert (await bus.tasks.edit("d", after=["b"], on_failed_dependency="cancel")).status == "stopped"


async def test_a_new_policy_holds_for_dependencies_that_have_failed(bus: Bus) -> None:
    await start(bus, "a")
    await bus.tasks.stop("a")
    await start(bus, "b", ["a"])
    await start(bus, "c", ["b"], policy="cancel")
    assert (await bus.tasks.edit("b", on_failed_dependency="block")).status == "waiting"
    assert (await bus.tasks.edit("b", on_failed_dependency="cancel")).status == "stopped"
    assert await status(bus, "c") == "stopped"
    # Only a new policy, or a new dependency, stops a task that was resumed.
    await bus.tasks.resume("b")
    await start(bus, "d")
    assert (await bus.tasks.edit("b", after=["d"])).status == "waiting"
    with pytest.raises(WrongState, match="depends on no task"):
        await bus.tasks.edit("d", on_failed_dependency="cancel")


async def test_control_of_a_blocked_task_never_starts_it_early(bus: Bus) -> None:
    await start(bus, "a")
    await bus.tasks.halt("a")
    await start(bus, "b", ["a"])
    await bus.tasks.halt("b")
    assert (await bus.tasks.continue_("b")).status == "waiting"
    await bus.tasks.stop("b")
    assert (await bus.tasks.resume("b")).status == "waiting"
    assert (await bus.tasks.restart("b")).status == "waiting"
    # Halted while its dependency completes, it stays halted.
    await bus.tasks.halt("b")
    await bus.tasks.continue_("a")
    await work_off(bus, work)
    assert await status(bus, "b") == "halted"
    await bus.tasks.continue_("b")
    await work_off(bus, work)
    assert await status(bus, "b") == "completed"


async def test_a_dependency_that_runs_again_is_waited_for_only_by_those_that_still_wait(bus: Bus) -> None:
    for id in ("a", "held"):
        await start(bus, id)
    await bus.tasks.halt("held")
    await start(bus, "started", ["a"])
    await start(bus, "blocked", ["a", "held"])
    await work_off(bus, work)
    await start(bus, "ready", ["a"])
    await bus.tasks.restart("a")
    assert [await status(bus, id) for id in ("started", "ready", "blocked")] == ["completed", "pending", "waiting"]
    assert (await task_of(bus, "blocked")).waits == ["after:a", "after:held"]
    await work_off(bus, work)
    await bus.tasks.redo("a", "act")
    assert (await task_of(bus, "blocked")).waits == ["after:a", "after:held"]
    await bus.tasks.continue_("held")
    await work_off(bus, work)
    assert await status(bus, "blocked") == "completed"


async def test_the_completion_of_a_deleted_dependency_is_not_forgotten(bus: Bus, clock: FakeClock) -> None:
    for id in ("a", "b"):
        await start(bus, id)
    await bus.tasks.halt("b")
    await start(bus, "c", ["a", "b"])
    await work_off(bus, work)
    clock.advance(2 * DAY)
    await applied(bus, policy=POLICY)
    assert await bus.tasks.get("a") is None
    record = await task_of(bus, "c")
    assert record.waits == ["after:b"]
    assert [(one.task, one.status, one.completed is None) for one in record.after] == [
        ("a", "deleted", False), ("b", "halted", True),
    ]  # fmt: skip
    await bus.tasks.continue_("b")
    await work_off(bus, work)
    assert await status(bus, "c") == "completed"


async def test_a_chain_that_is_archived_and_restored_keeps_its_dependencies(
    bus: Bus, clock: FakeClock, tmp_path: Path
) -> None:
    for id in ("a", "b"):
        await start(bus, id)
    await bus.tasks.halt("b")
    await start(bus, "c", ["a", "b"], "cancel")
    await bus.tasks.add("review", {"file": 1}, id="item", priority=8, after=["c"])
    await work_off(bus, work)
    await bus.export(tmp_path / "bus.jsonl.gz")
    async with agentbus.connect(tmp_path / "other", clock=clock) as other:
        await other.import_archive(tmp_path / "bus.jsonl.gz")
        for id in ("c", "item"):
            before, after = await task_of(bus, id), await task_of(other, id)
            assert [(one.task, one.completed) for one in before.after] == [
                (one.task, one.completed) for one in after.after
            ]
            names = ("on_failed_dependency", "manual", "priority", "arguments")
            assert [getattr(before, name) for name in names] == [getattr(after, name) for name in names]
        assert (await other.tasks.continue_("c")).waits == ["after:b"]
        await other.tasks.continue_("b")
        await work_off(other, work)
        assert await status(other, "c") == "completed"
        assert (await other.tasks.continue_("item")).status == "pending"
        assert [check for check in await other.doctor() if check.status == "error"] == []


async def test_the_sweep_finds_what_an_older_version_completed(bus: Bus, engine: Engine) -> None:
    """A worker of an earlier version knows no dependents."""
    await start(bus, "a")
    await start(bus, "b", ["a"])
    completed = (
        "UPDATE tasks SET status = 'completed', due = NULL, ended = 5, result = '1', result_sum = 1 WHERE id = 'a'"
    )
    assert await engine.tamper(completed)
    assert await status(bus, "b") == "waiting"
    await bus.sweep()
    record = await task_of(bus, "b")
    assert (record.status, [one.completed for one in record.after]) == ("pending", [5])


async def test_the_doctor_names_what_waits_for_a_task_that_cannot_complete(bus: Bus) -> None:
    await start(bus, "a")
    await start(bus, "b", ["a"])
    (before,) = [check for check in await bus.doctor() if check.name == "dependencies"]
    assert before.status == "ok"
    await bus.tasks.stop("a")
    (after,) = [check for check in await bus.doctor() if check.name == "dependencies"]
    assert after.status == "warning"
    assert "b waits for a (stopped)" in after.text
    assert after.fix is not None


async def test_dependencies_are_enforced_by_the_tables(bus: Bus, engine: Engine) -> None:
    await start(bus, "a")
    await start(bus, "b", ["a"])
    assert not await engine.tamper("UPDATE dependencies SET dependency = 'not a name'")
    assert not await engine.tamper("UPDATE tasks SET on_failed = 'ignore'")
    assert not await engine.tamper("UPDATE tasks SET priority = 10")
    assert not await engine.tamper("UPDATE tasks SET manual = 2")
