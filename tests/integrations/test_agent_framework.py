"""Checkpoints of the Microsoft Agent Framework on a bus behave as in the framework's own storage, and survive."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from agentbus import Bus
from agentbus.records import HistoryPut
from tests.conftest import Engine
from tests.examples.test_examples import run

pytest.importorskip("agent_framework", reason="agent-framework is not installed: run make integrations")

from agent_framework import (
    Executor,
    InMemoryCheckpointStorage,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowCheckpointException,
    WorkflowContext,
    WorkflowMessage,
    handler,
)

from agentbus.integrations.agent_framework import AgentBusCheckpointStorage

START = datetime(2026, 1, 1, tzinfo=UTC)


class Unknown:
    """A type that no storage was told to accept."""


def checkpoint(id: str, workflow: str = "build", minute: int = 0, **values: Any) -> WorkflowCheckpoint:
    moment = (START + timedelta(minutes=minute)).isoformat()
    return WorkflowCheckpoint(workflow, "1f", checkpoint_id=id, timestamp=moment, **values)


async def outcome(call: Any) -> Any:
    """Return the result of a call, comparable, or the type of its error."""
    try:
        result = await call
    except WorkflowCheckpointException as error:
        return type(error)
    if isinstance(result, list):
        return [plain(one) for one in result]
    return plain(result)


def plain(value: Any) -> Any:
    return value.to_dict() if isinstance(value, WorkflowCheckpoint) else value


async def test_the_storage_behaves_as_that_of_the_framework(bus: Bus) -> None:
    ours, theirs = AgentBusCheckpointStorage(bus), InMemoryCheckpointStorage()
    state = {"draft": "naïve ☃", "count": 3, "when": START, "seen": {1, 2}, "raw": b"\x00\xff", "_executor_state": {}}
    saved = [
        checkpoint("c1", minute=1, state=state, metadata={"superstep": 1}),
        checkpoint("c3", minute=9, previous_checkpoint_id="c1", iteration_count=2),
        checkpoint("c2", minute=5, messages={"writer": [WorkflowMessage("hello", source_id="start")]}),
        checkpoint("other", "deploy", minute=20),
        # The same id again replaces the checkpoint, in its old place.
        checkpoint("c1", minute=2, state={"draft": "second"}),
        # Of two with the same time the one that was saved first is the latest.
        checkpoint("c4", minute=9),
    ]
    for one in saved:
        assert await ours.save(one) == await theirs.save(one)
    for step in range(2):
        for name in ("build", "deploy", "unknown"):
            for method in ("list_checkpoints", "get_latest", "list_checkpoint_ids"):
                found = [await outcome(getattr(storage, method)(workflow_name=name)) for storage in (ours, theirs)]
                assert found[0] == found[1], (method, name, step)
        for id in ("c1", "c2", "c3", "c4", "other", "unknown"):
            assert await outcome(ours.load(id)) == await outcome(theirs.load(id)), (id, step)
        for id in ("c3", "other", "c3", "unknown"):
            assert await outcome(ours.delete(id)) == await outcome(theirs.delete(id)), (id, step)


async def test_checkpoints_are_visible_on_the_bus(bus: Bus) -> None:
    storage = AgentBusCheckpointStorage(bus)
    await storage.save(checkpoint("c1", iteration_count=2, previous_checkpoint_id="c0", state={"draft": "text"}))
    (history,) = (await bus.histories.list("agent-framework")).items
    assert (history.name, history.items) == ("build", 1)
    (item,) = await bus.histories.items("agent-framework", "build")
    assert item.meta == {"timestamp": START.isoformat(), "iteration": 2, "previous": "c0"}
    assert json.loads(item.body)["state"] == {"draft": "text"}


@pytest.mark.one_engine
async def test_a_type_that_could_not_be_loaded_again_is_not_saved(bus: Bus) -> None:
    refused = checkpoint("c1", state={"value": Unknown()})
    with pytest.raises(WorkflowCheckpointException):
        await AgentBusCheckpointStorage(bus).save(refused)
    assert await bus.histories.find("agent-framework", "build") is None
    allowing = AgentBusCheckpointStorage(bus, allowed_checkpoint_types=[f"{__name__}:Unknown"])
    await allowing.save(refused)
    assert isinstance((await allowing.load("c1")).state["value"], Unknown)
    with pytest.raises(WorkflowCheckpointException):
        await AgentBusCheckpointStorage(bus).load("c1")


@pytest.mark.one_engine
async def test_a_damaged_checkpoint_does_not_hide_the_others(bus: Bus) -> None:
    storage = AgentBusCheckpointStorage(bus)
    for one in (checkpoint("c1", minute=1), checkpoint("c2", minute=5)):
        await storage.save(one)
    damaged: list[tuple[bytes, dict[str, Any]]] = [
        (b"{", {"timestamp": "9999-01-01T00:00:00"}),
        (b"[]", {"timestamp": "2026-06-01"}),
        (b'{"workflow_name": 7}', {"timestamp": 7}),
        (b"\xff", {}),
    ]
    for number, (body, meta) in enumerate(damaged):
        put = HistoryPut(key=f"damaged-{number}", body=body, meta=meta)
        await bus.histories.write("agent-framework", "build", [put])
        with pytest.raises(WorkflowCheckpointException):
            await storage.load(f"damaged-{number}")
    assert [one.checkpoint_id for one in await storage.list_checkpoints(workflow_name="build")] == ["c1", "c2"]
    latest = await storage.get_latest(workflow_name="build")
    assert latest is not None
    assert latest.checkpoint_id == "c2"
    # A time without a zone is in UTC.
    await storage.save(WorkflowCheckpoint("build", "1f", checkpoint_id="c3", timestamp="2026-01-01T00:03:00"))
    latest = await storage.get_latest(workflow_name="build")
    assert latest is not None
    assert latest.checkpoint_id == "c2"


class Counter(Executor):
    """Counts up to three, a superstep each."""

    def __init__(self, runs: list[int]) -> None:
        super().__init__(id="counter")
        self.runs = runs

    @handler
    async def count(self, number: int, ctx: WorkflowContext[int, str]) -> None:
        self.runs.append(number)
        if number < 3:
            await ctx.send_message(number + 1)
        else:
            await ctx.yield_output(f"counted to {number}")


async def test_a_workflow_resumes_from_any_of_its_checkpoints(engine: Engine) -> None:
    async def execute(runs: list[int], **options: Any) -> list[str]:
        counter = Counter(runs)
        workflow = WorkflowBuilder(name="count", start_executor=counter, output_from=[counter])
        # Without a bus that is open: the storage opens it for the block.
        async with AgentBusCheckpointStorage(engine.url) as storage:
            result = await workflow.add_edge(counter, counter).build().run(checkpoint_storage=storage, **options)
            return result.get_outputs()

    first: list[int] = []
    assert await execute(first, message=1) == ["counted to 3"]
    async with engine.connect() as bus:
        stored = await AgentBusCheckpointStorage(bus).list_checkpoints(workflow_name="count")
    after = next(one for one in stored if one.iteration_count == 1)
    again: list[int] = []
    assert await execute(again, checkpoint_id=after.checkpoint_id) == ["counted to 3"]
    assert (first, again) == ([1, 2, 3], [2, 3])


@pytest.mark.slow
def test_the_example_resumes_after_kill_9(engine: Engine) -> None:
    lines = run("agent_framework_checkpoints.py", engine.url)
    work = [re.sub(r"process \d+ ", "", line.strip()) for line in lines]
    assert work == [
        "writes about the sea",
        "edits a draft about the sea",
        "killed; another process resumes",
        "resumes after superstep 1",
        "edits a draft about the sea",
        "publishes a text about the sea",
        "result: ['published: a text about the sea']",
        "on the bus: 4 checkpoints of 'article'",
    ]
