"""A trace goes through tasks: from their start through workers, steps, retries, sub-tasks and messages."""

from __future__ import annotations

import pytest

import agentbus
from agentbus import Bus, Task, telemetry
from tests.api.helpers import take
from tests.api.task_workers import step_of, task_of, work_off
from tests.support.clock import FakeClock
from tests.support.traces import TRACE, Recorded, linked, parent_of, text_of, traced


@agentbus.workflow("leaf")
async def leaf(task: Task) -> str:
    return task.id


@agentbus.workflow("feature")
async def feature(task: Task, to: str) -> str:
    async def plan() -> None:
        task.unit.send(to, "note")

    await task.step("plan", plan)
    return await (await task.start(leaf))


@agentbus.workflow("flaky")
async def flaky(task: Task) -> None:
    def fetch() -> None:
        if task.attempt < 3:
            raise ConnectionError("secret")

    await task.step("fetch", fetch, retries=1, backoff=0)


async def test_a_task_is_one_trace_from_its_start_through_its_workers(bus: Bus, recorded: Recorded) -> None:
    agent = await bus.register("a", type="worker")
    await bus.tasks.start(feature, "a", id="f-1", session=None)
    await work_off(bus, feature, leaf)
    spans = {span.name: span for span in recorded.spans() if not span.name.startswith(("invoke", "receive"))}
    started, step, sent, child = (
        spans[name] for name in ("start feature", "step plan", "send agent:{id}", "start leaf")
    )
    assert [span.kind.name for span in (started, step, sent, child)] == ["PRODUCER", "INTERNAL", "PRODUCER", "PRODUCER"]
    assert started.attributes == {
        "gen_ai.workflow.name": "feature", "gen_ai.conversation.id": "f-1", "agentbus.task.id": "f-1",
    }  # fmt: skip
    assert step.attributes == {
        "gen_ai.workflow.name": "feature", "agentbus.task.id": "f-1", "agentbus.step.key": "plan",
        "agentbus.step.attempt": 1,
    }  # fmt: skip
    # Rows carry the contexts of the spans, and what runs later continues them.
    assert (await task_of(bus, "f-1")).trace == text_of(started)
    assert (await step_of(bus, "f-1", "plan")).trace == text_of(step)
    assert (await task_of(bus, "f-1/2")).trace == text_of(child)
    assert parent_of(sent) == text_of(step)
    assert (await take(agent)).headers == {"traceparent": text_of(sent)}
    assert {span.context.trace_id for span in spans.values()} == {started.context.trace_id}


@pytest.mark.one_engine
async def test_each_run_is_a_span_and_a_failure_is_named(bus: Bus, recorded: Recorded, clock: FakeClock) -> None:
    await bus.tasks.start(flaky, id="x-1")
    await work_off(bus, flaky)
    spans = recorded.spans()
    started = spans[0]
    (run,) = [span for span in spans if span.name == "invoke_workflow flaky"]
    attempts = [span for span in spans if span.name == "step fetch"]
    assert run.attributes == {
        "gen_ai.operation.name": "invoke_workflow", "gen_ai.workflow.name": "flaky", "gen_ai.conversation.id": "x-1",
        "agentbus.task.id": "x-1", "agentbus.task.generation": 0, "agentbus.task.status": "failed",
        "error.type": "step_failed",
    }  # fmt: skip
    assert (run.kind.name, parent_of(run), linked(run)) == ("INTERNAL", text_of(started), [started.context.span_id])
    assert [(span.attributes["agentbus.step.attempt"], span.attributes["error.type"]) for span in attempts] == [
        (1, "ConnectionError"), (2, "ConnectionError"),
    ]  # fmt: skip
    assert linked(attempts[1]) == [attempts[0].context.span_id]
    assert {parent_of(span) for span in attempts} == {text_of(run)}
    # A person resumes it: the same trace, in another run, which links to the attempt before.
    await bus.tasks.resume("x-1", by="ada")
    await work_off(bus, flaky)
    again = recorded.spans()
    (run,) = [span for span in again if span.name == "invoke_workflow flaky"]
    assert (parent_of(run), run.attributes["agentbus.task.status"]) == (text_of(started), "failed")


@pytest.mark.one_engine
async def test_the_block_of_a_work_item_continues_its_trace(bus: Bus, recorded: Recorded) -> None:
    agent = await bus.register("a", type="worker")
    await bus.tasks.add("review", id="r-1", restarts=1, backoff=0)
    for attempt in (1, 2):
        item = await agent.items.take()
        assert item is not None
        if attempt == 2:
            async with item:
                await agent.send("a", "note")
        else:
            with pytest.raises(KeyError):
                async with item:
                    raise KeyError("secret")
    started, failed, done, sent = recorded.spans()
    assert [span.name for span in (started, failed, done)] == ["start review", *["invoke_workflow review"] * 2]
    assert (parent_of(failed), parent_of(done)) == (text_of(started), text_of(started))
    assert (failed.attributes["error.type"], "error.type" in done.attributes) == ("KeyError", False)
    assert parent_of(sent) == text_of(done)


async def test_a_process_without_telemetry_passes_the_trace_on(bus: Bus) -> None:
    """A worker between two that record does not break the trace."""
    agent = await bus.register("a", type="worker")
    with traced():
        await bus.tasks.start(feature, "a", id="f-1")
        # The same id is the same task, in the trace of its first start.
    assert (await bus.tasks.start(feature, "a", id="f-1")).trace == TRACE
    assert telemetry.current_ids() is None
    try:
        await work_off(bus, feature, leaf)
    finally:
        telemetry.disable()
    assert (await step_of(bus, "f-1", "plan")).trace == TRACE
    assert (await task_of(bus, "f-1/2")).trace == TRACE
    parent, _, state = TRACE.partition(" ")
    assert (await take(agent)).headers == {"traceparent": parent, "tracestate": state}
    # What belongs to no trace carries none.
    await agent.send("a", "note")
    assert (await take(agent)).headers == {}
