"""Agents of Pydantic AI in durable tasks: recorded requests and tool calls are replayed, never repeated."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

import agentbus
from agentbus import Bus, Task
from agentbus.errors import InvalidInput, StepFailed
from tests.api.helpers import take_all
from tests.api.task_workers import statuses, task_of, work_off
from tests.conftest import Engine
from tests.examples.test_examples import run
from tests.support.clock import FakeClock
from tests.support.processes import Worker

pytest.importorskip("pydantic_ai", reason="pydantic-ai is not installed: run make integrations")

from pydantic_ai import Agent, ApprovalRequired, ModelRetry, RunContext
from pydantic_ai.messages import AgentStreamEvent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from agentbus.integrations.pydantic_ai import AgentBusDurability, StepOptions, step_name

Respond = Callable[[list[ModelMessage], AgentInfo], ModelResponse]


def scripted(*responses: list[Any] | str) -> tuple[FunctionModel, list[list[Any]]]:
    """Return a model with these responses, and the contents that it was called with last."""
    requests: list[list[Any]] = []

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        requests.append([getattr(part, "content", None) for part in messages[-1].parts])
        response = responses[(len(messages) - 1) // 2]
        return ModelResponse(parts=[TextPart(response)] if isinstance(response, str) else response)

    return FunctionModel(respond), requests


def call(tool: str, id: str, **arguments: Any) -> ToolCallPart:
    return ToolCallPart(tool, arguments, tool_call_id=id)


@pytest.mark.slow
@pytest.mark.parametrize("killed_at", ["model-2", "tool-2"])
async def test_a_killed_worker_repeats_no_recorded_request(engine: Engine, killed_at: str) -> None:
    async with agentbus.connect(engine.url) as bus:
        task = await bus.tasks.start("booking", "two nights")
        reached: list[str] = []
        first = Worker("tests.integrations.pydantic_ai_worker", engine.url, killed_at, preloaded=False)
        while not reached or reached[-1] != killed_at:
            reached.append(await asyncio.to_thread(first.expect, "at"))
        first.kill()
        first.close()
        before = await statuses(bus, task.id)
        second = Worker("tests.integrations.pydantic_ai_worker", engine.url, preloaded=False)
        after = [line.removeprefix("at ") for line in await asyncio.to_thread(second.finish)]
        second.close()
        every = ["model-1", "tool-1", "model-2", "tool-2", "model-3"]
        assert reached == every[: every.index(killed_at) + 1]
        # Only what was not recorded is executed: the call in which the worker died, and what follows it.
        assert after == every[every.index(killed_at) :]
        assert await bus.tasks.result(task.id) == "booked 2 nights"
        steps = await bus.tasks.steps(task.id)
        assert [step.attempt for step in steps] == [2 if place == killed_at else 1 for place in every]
        assert list(before.values()) == ["finished"] * (len(reached) - 1) + ["running"]


async def test_a_tool_call_waits_for_the_approval_of_a_person(bus: Bus) -> None:
    model, requests = scripted([call("delete", "c1", path="/a"), call("delete", "c2", path="/b")], "done")
    agent = Agent(model, name="cleaner", capabilities=[AgentBusDurability()])
    deleted: list[str] = []

    @agent.tool_plain(requires_approval=True)
    def delete(path: str) -> str:
        deleted.append(path)
        return f"deleted {path}"

    @agentbus.workflow("clean")
    async def clean(task: Task) -> str:
        return (await agent.run("clean up")).output

    task = await bus.tasks.start(clean)
    await work_off(bus, clean)
    record = await task_of(bus, task.id)
    assert (record.status, record.holder, deleted) == ("waiting", None, [])
    asked = await bus.tasks.approvals(task.id)
    assert [(one.key, one.shown) for one in asked] == [
        ("cleaner.delete.c1", {"agent": "cleaner", "tool": "delete", "arguments": {"path": "/a"}}),
        ("cleaner.delete.c2", {"agent": "cleaner", "tool": "delete", "arguments": {"path": "/b"}}),
    ]
    await bus.tasks.approve(task.id, "cleaner.delete.c2", by="ada")
    await work_off(bus, clean)
    assert deleted == []
    await bus.tasks.reject(task.id, "cleaner.delete.c1", by="ada", reason="still in use")
    await work_off(bus, clean)
    assert await bus.tasks.result(task.id) == "done"
    assert deleted == ["/b"]
    # The model was asked once for each response, though the workflow ran three times.
    assert requests == [["clean up"], ["The tool call was denied: still in use", "deleted /b"]]


@pytest.mark.one_engine
async def test_a_tool_can_ask_for_approval_and_a_request_expires(bus: Bus, clock: FakeClock) -> None:
    model, requests = scripted([call("pay", "c1", amount=5)], [call("pay", "c2", amount=500)], "paid")
    agent = Agent(model, name="clerk", capabilities=[AgentBusDurability(approval_expires=60)])

    @agent.tool
    def pay(ctx: RunContext[None], amount: int) -> str:
        if amount > 100 and not ctx.tool_call_approved:
            raise ApprovalRequired(metadata={"limit": 100})
        return f"paid {amount}"

    @agentbus.workflow("paying")
    async def paying(task: Task) -> str:
        return (await agent.run("pay")).output

    task = await bus.tasks.start(paying)
    await work_off(bus, paying)
    (asked,) = await bus.tasks.approvals(task.id)
    assert asked.shown["metadata"] == {"limit": 100}
    clock.advance(61)
    await work_off(bus, paying)
    assert await bus.tasks.result(task.id) == "paid"
    assert requests[1] == ["paid 5"]
    assert "in time" in requests[2][0]


async def test_concurrent_calls_of_one_tool_keep_their_results_on_a_replay(bus: Bus) -> None:
    model, _ = scripted([call("look", "c1", place="a"), call("look", "c2", place="b")], "done")
    toolset: FunctionToolset[None] = FunctionToolset(id="tools")
    second = asyncio.Event()

    @toolset.tool_plain
    async def look(place: str) -> str:
        if place == "a":
            await second.wait()
        second.set()
        return f"seen {place}"

    agent = Agent(model, name="scout", toolsets=[toolset], capabilities=[AgentBusDurability()])
    seen: list[list[Any]] = []

    @agentbus.workflow("looking")
    async def looking(task: Task) -> str:
        result = await agent.run("look")
        seen.append([part.content for part in result.all_messages()[2].parts if hasattr(part, "content")])
        await task.approval("go")
        return result.output

    task = await bus.tasks.start(looking)
    await work_off(bus, looking)
    await bus.tasks.approve(task.id, "go", by="ada")
    await work_off(bus, looking)
    assert await bus.tasks.result(task.id) == "done"
    assert seen == [["seen a", "seen b"]] * 2
    assert set(await statuses(bus, task.id)) >= {"scout.look.c1", "scout.look.c2"}


@pytest.mark.one_engine
async def test_options_of_steps_apply_to_requests_and_tools(bus: Bus, clock: FakeClock) -> None:
    failures = ["model", "model", "fetch"]

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if "model" in failures:
            failures.remove("model")
            raise ConnectionError("the model is not reachable")
        if len(messages) == 1:
            return ModelResponse(parts=[call("fetch", "c1"), call("charge", "c2"), call("inline", "c3")])
        return ModelResponse(parts=[TextPart("done")])

    durability = AgentBusDurability(
        model_options={"retries": 2, "backoff": 0}, tool_options={"retries": 1, "backoff": 0}
    )
    agent = Agent(FunctionModel(respond), name="buyer", capabilities=[durability])
    runs: list[str] = []

    @agent.tool_plain
    def fetch() -> str:
        if "fetch" in failures:
            failures.remove("fetch")
            raise OSError("again")
        return "page"

    @agent.tool_plain(metadata={"agentbus": {"once": True}})
    def charge() -> int:
        return 5

    @agent.tool_plain(metadata={"agentbus": False})
    def inline() -> str:
        runs.append("inline")
        return "now"

    @agentbus.workflow("buying")
    async def buying(task: Task) -> str:
        result = await agent.run("buy")
        await task.approval("go")
        return result.output

    task = await bus.tasks.start(buying)
    await work_off(bus, buying)
    await bus.tasks.approve(task.id, "go", by="ada")
    await work_off(bus, buying)
    assert await bus.tasks.result(task.id) == "done"
    steps = {step.key: (step.attempt, step.once) for step in await bus.tasks.steps(task.id)}
    assert steps == {
        "buyer.model": (3, False),
        "buyer.fetch.c1": (2, False),
        "buyer.charge.c2": (1, True),
        "buyer.model#2": (1, False),
    }
    # A tool that is no step runs again on every replay.
    assert runs == ["inline", "inline"]


SETTLED = ["2", 5, None, {"paid": True}, {"kind": "paid"}, {"kind": "tool-return"}, [{"result": 1}]]


@pytest.mark.one_engine
@pytest.mark.parametrize("settled", [*SETTLED, StepFailed])
async def test_a_call_that_a_person_settles_is_not_executed_again(bus: Bus, settled: Any) -> None:
    model, requests = scripted([call("charge", "c1")], "done")
    agent = Agent(model, name="buyer", capabilities=[AgentBusDurability()])
    started = asyncio.Event()
    runs: list[str] = []

    @agent.tool_plain(metadata={"agentbus": {"once": True}})
    async def charge() -> Any:
        runs.append("charge")
        started.set()
        await asyncio.Event().wait()

    @agentbus.workflow("buying")
    async def buying(task: Task) -> str:
        return (await agent.run("buy")).output

    task = await bus.tasks.start(buying)
    worker = asyncio.create_task(work_off(bus, buying))
    await started.wait()
    worker.cancel()
    await asyncio.wait([worker])
    await work_off(bus, buying)
    assert (await statuses(bus, task.id))["buyer.charge.c1"] == "unknown"
    if settled is StepFailed:
        await bus.tasks.settle(task.id, "buyer.charge.c1", by="ada", error="the bank refused")
        await work_off(bus, buying)
        failed = await task_of(bus, task.id)
        assert failed.status == "failed"
        assert "the bank refused" in str(failed.error)
    else:
        await bus.tasks.settle(task.id, "buyer.charge.c1", by="ada", result=settled)
        await work_off(bus, buying)
        assert await bus.tasks.result(task.id) == "done"
        assert requests[-1] == [settled]
    assert runs == ["charge"]


@pytest.mark.one_engine
async def test_what_a_tool_sends_commits_with_its_result(bus: Bus) -> None:
    model, _ = scripted([call("note", "c1", text="hello")], "done")
    agent = Agent(model, name="writer", deps_type=Task, capabilities=[AgentBusDurability()])

    @agent.tool
    async def note(ctx: RunContext[Task], text: str) -> str:
        ctx.deps.unit.state_of("notes").set("last", text)
        ctx.deps.unit.send("reader", "note", {"text": text})
        return "noted"

    @agentbus.workflow("writing")
    async def writing(task: Task) -> str:
        return (await agent.run("write", deps=task)).output

    async with bus.agent("reader", type="worker") as reader:
        task = await bus.tasks.start(writing)
        await work_off(bus, writing)
        assert await bus.tasks.result(task.id) == "done"
        assert await bus.state("notes").get("last") == "hello"
        assert [message.payload for message in await take_all(reader)] == [{"text": "hello"}]


async def test_several_runs_of_an_agent_have_steps_of_their_own(bus: Bus) -> None:
    model, requests = scripted("answer")
    agent = Agent(model, name="expert", capabilities=[AgentBusDurability()])
    ids: list[list[str]] = []

    @agentbus.workflow("asking")
    async def asking(task: Task) -> list[str]:
        results = await asyncio.gather(*[agent.run(f"question {number}", timeout=3600) for number in range(3)])
        ids.append([result.run_id for result in results] + [result.conversation_id for result in results])
        await task.approval("go")
        return [result.output for result in results]

    task = await bus.tasks.start(asking, id="asking-1")
    await work_off(bus, asking)
    await bus.tasks.approve(task.id, "go", by="ada")
    await work_off(bus, asking)
    assert await bus.tasks.result(task.id) == ["answer"] * 3
    labels = ("expert", "expert-2", "expert-3")
    assert set(await statuses(bus, task.id)) == {f"{label}.{step}" for label in labels for step in ("start", "model")}
    assert ids[0] == ids[1]
    assert ids[0][:3] == [f"asking-1/expert/{number}" for number in (1, 2, 3)]
    assert len(requests) == 3


@pytest.mark.one_engine
async def test_an_agent_runs_as_usual_outside_a_workflow_and_inside_a_step(bus: Bus) -> None:
    inner_model, inner_requests = scripted("inner answer")
    inner = Agent(inner_model, name="inner", capabilities=[AgentBusDurability()])
    outer_model, _ = scripted([call("ask", "c1")], "outer answer")
    outer = Agent(outer_model, name="outer", capabilities=[AgentBusDurability()])

    @outer.tool_plain
    async def ask() -> str:
        return (await inner.run("inside a tool")).output

    @agentbus.workflow("nested")
    async def nested(task: Task) -> list[str]:
        result = await outer.run("go")
        plain = await task.step("plain", run_inner)
        return [result.output, plain]

    async def run_inner() -> str:
        return (await inner.run("inside a step")).output

    assert (await inner.run("outside")).output == "inner answer"
    task = await bus.tasks.start(nested)
    await work_off(bus, nested)
    assert await bus.tasks.result(task.id) == ["outer answer", "inner answer"]
    assert list(await statuses(bus, task.id)) == ["outer.model", "outer.ask.c1", "outer.model#2", "plain"]
    assert inner_requests == [["outside"], ["inside a tool"], ["inside a step"]]


@pytest.mark.one_engine
async def test_a_failed_request_fails_the_task_and_is_repeated_by_resume(bus: Bus) -> None:
    broken = [True]

    def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(messages) == 1:
            return ModelResponse(parts=[call("retry", "c1", number=0)])
        if len(messages) == 3:
            return ModelResponse(parts=[call("retry", "c2", number=1)])
        if broken:
            raise ConnectionError("the model is not reachable")
        return ModelResponse(parts=[TextPart("done")])

    agent = Agent(FunctionModel(respond), name="worker", capabilities=[AgentBusDurability()])

    @agent.tool_plain
    def retry(number: int) -> str:
        if number == 0:
            raise ModelRetry("give a number")
        return "fine"

    @agentbus.workflow("failing")
    async def failing(task: Task) -> str:
        return (await agent.run("go")).output

    task = await bus.tasks.start(failing)
    await work_off(bus, failing)
    record = await task_of(bus, task.id)
    assert record.status == "failed"
    assert record.error is not None
    assert record.error.step == "worker.model#3"
    broken.clear()
    await bus.tasks.resume(task.id, by="ada")
    await work_off(bus, failing)
    assert await bus.tasks.result(task.id) == "done"
    # The tool that asked for a retry is recorded like any other call.
    keys = ["worker.model", "worker.retry.c1", "worker.model#2", "worker.retry.c2", "worker.model#3"]
    assert list(await statuses(bus, task.id)) == keys


@pytest.mark.one_engine
async def test_events_are_delivered_once(bus: Bus) -> None:
    kinds: list[str] = []

    async def handle(ctx: RunContext[None], events: Any) -> None:
        event: AgentStreamEvent
        async for event in events:
            kinds.append(event.event_kind)

    agent = Agent(TestModel(), name="teller", capabilities=[AgentBusDurability(event_stream_handler=handle)])

    @agent.tool_plain
    def look() -> str:
        return "seen"

    @agentbus.workflow("telling")
    async def telling(task: Task) -> str:
        result = await agent.run("tell")
        await task.approval("go")
        return result.output

    task = await bus.tasks.start(telling)
    await work_off(bus, telling)
    first = [*kinds]
    await bus.tasks.approve(task.id, "go", by="ada")
    await work_off(bus, telling)
    assert (await task_of(bus, task.id)).status == "completed"
    assert kinds == first
    assert {"function_tool_call", "function_tool_result", "part_start"} <= set(first)


@pytest.mark.slow
@pytest.mark.one_engine
async def test_calls_of_an_mcp_server_are_steps(engine: Engine) -> None:
    pytest.importorskip("fastmcp", reason="fastmcp is not installed: run make integrations")
    from fastmcp.client.transports import StdioTransport
    from pydantic_ai.mcp import MCPToolset

    transport = StdioTransport(
        sys.executable, ["-m", "agentbus", "mcp"], env={"AGENTBUS_URL": engine.url}, keep_alive=False
    )
    model, requests = scripted(
        [call("join", "c1", name="helper", type="worker")],
        [call("state", "c2", action="set", key="x", value=1)],
        "done",
    )
    durability = AgentBusDurability(mcp_options={"timeout": 60, "retries": 1})
    agent = Agent(model, name="user", toolsets=[MCPToolset(transport, id="bus")], capabilities=[durability])

    @agentbus.workflow("using")
    async def using(task: Task) -> str:
        result = await agent.run("use the bus")
        await task.approval("go")
        return result.output

    async with agentbus.connect(engine.url) as bus:
        task = await bus.tasks.start(using)
        await work_off(bus, using)
        await bus.tasks.approve(task.id, "go", by="ada")
        await work_off(bus, using)
        assert await bus.tasks.result(task.id) == "done", requests
        assert "user.bus.tools" in await statuses(bus, task.id)
        assert {"user.join.c1", "user.state.c2"} <= set(await statuses(bus, task.id))
        assert len(requests) == 3


@pytest.mark.parametrize("options", [{"retry": 3}, {"retries": -1}, {"validate": print}])
def test_wrong_options_are_refused_at_once(options: StepOptions) -> None:
    with pytest.raises(InvalidInput):
        AgentBusDurability(tool_options=options)


def test_names_of_steps_are_accepted_by_the_bus() -> None:
    assert step_name("assistant", "<agent>", "tools").startswith("assistant._agent_.tools-")
    assert step_name("a b") != step_name("a_b")
    assert len(step_name("assistant", "x" * 300)) <= 128
    assert step_name("assistant", "x" * 300) != step_name("assistant", "x" * 301)


@pytest.mark.slow
@pytest.mark.one_engine
def test_the_example_asks_the_model_no_more_than_needed(engine: Engine) -> None:
    lines = run("pydantic_ai_assistant.py", engine.url)
    workers = [re.fullmatch(r"  worker (\d+) (.*)", line) for line in lines]
    pids, work = zip(*[found.groups() for found in workers if found], strict=True)
    assert len(set(pids)) == 3
    assert list(work) == [
        "asks the model, request 1",
        "searches Rome",
        "asks the model, request 2",
        "asks the model, request 2",
        "books Aurora",
        "asks the model, request 3",
    ]
    assert lines[-1] == "result: Aurora is booked"
