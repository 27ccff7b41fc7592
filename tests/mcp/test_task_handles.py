"""Durable tasks over MCP: handles that clients poll, approvals as input, and the tool for clients without them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

import agentbus
from agentbus import Task
from agentbus.mcp.identity import SessionIdentity
from agentbus.mcp.protocol import INVALID_PARAMS, TASKS
from agentbus.mcp.server import MCPServer
from agentbus.sync.bus import open_bus
from tests.conftest import Engine
from tests.mcp.conftest import EVERYTHING, Client, content
from tests.support.clock import FakeClock

T = TypeVar("T")


@agentbus.workflow("deploy")
async def deploy(task: Task, what: str) -> str:
    verdict = await task.approval("plan", show={"deploy": what})
    return f"{what} {'is live' if verdict.approved else 'is refused: ' + str(verdict.reason)}"


@agentbus.workflow("broken")
async def broken(task: Task) -> None:
    raise ValueError("it cannot work")


class Caller:
    """Makes the calls of clients on threads: a blocking bus on a server cannot be used in an event loop."""

    def __init__(self, engine: Engine, clock: FakeClock) -> None:
        self._url, self._clock = engine.url, clock

    def client(self, capabilities: dict[str, Any], decider: str | None = None) -> Client:
        server = MCPServer(lambda: open_bus(self._url, clock=self._clock))
        client = Client(server, SessionIdentity(None), capabilities)
        client.connection.decider = decider
        return client

    async def __call__(self, call: Callable[..., T], *arguments: Any, **options: Any) -> T:
        return await asyncio.to_thread(lambda: call(*arguments, **options))


@pytest.fixture
def caller(engine: Engine, clock: FakeClock) -> Caller:
    return Caller(engine, clock)


async def run_tasks(bus: agentbus.Bus) -> None:
    await bus.tasks.run_worker(deploy, broken, until_idle=True)


async def started(caller: Caller, client: Client, workflow: str, *input: Any) -> str:
    """Start a task by a client that polls, and return its id."""
    await caller(client.call, "join", name="starter")
    arguments = {"action": "start", "workflow": workflow, "input": list(input)}
    handle = await caller(client.ask, "tools/call", name="task", arguments=arguments)
    assert (handle["resultType"], handle["status"]) == ("task", "working")
    assert handle.keys() >= {"taskId", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"}
    assert not handle.keys() & {"result", "content", "inputRequests", "requestState"}
    task: str = handle["taskId"]
    # It is durable before the client knows of it.
    assert (await caller(client.ask, "tasks/get", taskId=task))["status"] == "working"
    return task


async def test_an_approval_is_input_that_only_a_person_gives(bus: agentbus.Bus, caller: Caller) -> None:
    client = caller.client(EVERYTHING)
    task = await started(caller, client, "deploy", "v2")
    await run_tasks(bus)
    asked = await caller(client.ask, "tasks/get", taskId=task)
    assert asked["status"] == "input_required"
    ((key, question),) = asked["inputRequests"].items()
    assert question["method"] == "elicitation/create"
    assert '{"deploy":"v2"}' in question["params"]["message"]
    assert f"agentbus task approve {task} plan" in question["params"]["message"]
    # An answer of the client is acknowledged, and decides nothing.
    yes = {key: {"action": "accept", "content": {"decision": "approve"}}}
    assert "status" not in await caller(client.ask, "tasks/update", taskId=task, inputResponses=yes)
    assert (await caller(client.ask, "tasks/get", taskId=task))["status"] == "input_required"
    await bus.tasks.approve(task, "plan", by="ada")
    await run_tasks(bus)
    done = await caller(client.ask, "tasks/get", taskId=task)
    assert (done["status"], content(done["result"])) == ("completed", "v2 is live")
    await caller(client.server.close)


async def test_answers_decide_where_the_setting_names_a_person(bus: agentbus.Bus, caller: Caller) -> None:
    client = caller.client(EVERYTHING, decider="ada")
    task = await started(caller, client, "deploy", "v3")
    await run_tasks(bus)
    asked = await caller(client.ask, "tasks/get", taskId=task)
    ((key, question),) = asked["inputRequests"].items()
    assert question["params"]["requestedSchema"]["properties"]["decision"]["enum"] == ["approve", "reject"]
    ignored: list[dict[str, Any]] = [
        {}, {"foreign": {"action": "accept", "content": {"decision": "approve"}}}, {key: {"action": "decline"}},
        {key: {"action": "accept", "content": {"decision": "maybe"}}}, {key: "approve"},
    ]  # fmt: skip
    for responses in ignored:
        await caller(client.ask, "tasks/update", taskId=task, inputResponses=responses)
        assert (await caller(client.ask, "tasks/get", taskId=task))["status"] == "input_required"
    no = {key: {"action": "accept", "content": {"decision": "reject", "reason": "too early"}}}
    await caller(client.ask, "tasks/update", taskId=task, inputResponses=no)
    (approval,) = await bus.tasks.approvals(task, status=None)
    assert (approval.status, approval.by, approval.reason) == ("rejected", "ada", "too early")
    await run_tasks(bus)
    done = await caller(client.ask, "tasks/get", taskId=task)
    assert content(done["result"]) == "v3 is refused: too early"
    await caller(client.server.close)


async def test_a_client_that_cannot_ask_is_told_who_must_decide(bus: agentbus.Bus, caller: Caller) -> None:
    client = caller.client({"extensions": {TASKS: {}}})
    task = await started(caller, client, "deploy", "v4")
    await run_tasks(bus)
    found = await caller(client.ask, "tasks/get", taskId=task)
    assert (found["status"], "inputRequests" in found) == ("working", False)
    assert f"agentbus task approve {task} plan" in found["statusMessage"]
    # Cancelling stops the task; it is an acknowledgement, also when there is nothing to stop any more.
    for _ in "ab":
        assert (await caller(client.ask, "tasks/cancel", taskId=task))["resultType"] == "complete"
    assert (await caller(client.ask, "tasks/get", taskId=task))["status"] == "cancelled"
    methods: dict[str, dict[str, Any]] = {
        "tasks/get": {}, "tasks/cancel": {}, "tasks/update": {"inputResponses": {}},
    }  # fmt: skip
    for method, more in methods.items():
        for unknown in ("nothing", "no such", ""):
            assert (await caller(client.fault, method, taskId=unknown, **more)).code == INVALID_PARAMS
    await caller(client.server.close)


async def test_a_failed_workflow_is_a_result_that_says_why(bus: agentbus.Bus, caller: Caller) -> None:
    client = caller.client(EVERYTHING)
    task = await started(caller, client, "broken")
    await run_tasks(bus)
    done = await caller(client.ask, "tasks/get", taskId=task)
    # Not "failed", which is a fault of the protocol.
    assert (done["status"], done["result"]["isError"]) == ("completed", True)
    problem = content(done["result"])["error"]
    assert problem["code"] == "task_failed"
    assert "ValueError: it cannot work" in problem["message"]
    assert task in problem["fix"]
    await caller(client.server.close)


async def test_agents_share_work_items(bus: agentbus.Bus, caller: Caller) -> None:
    await bus.tasks.add("review", {"file": "login.py"}, id="review-1")
    client = caller.client({})
    await caller(client.call, "join", name="reviewer")
    assert (await caller(client.call, "task", action="ready"))["ready"][0]["id"] == "review-1"

    def lose() -> None:
        with client.reply("tools/call", name="task", arguments={"action": "take"}) as reply:
            assert "review-1" in str(reply.result)
            raise BrokenPipeError

    # Taken, and the answer did not arrive: another agent can take it.
    with pytest.raises(BrokenPipeError):
        await caller(lose)
    item = (await caller(client.call, "task", action="take", workflow="review"))["item"]
    assert (item["id"], item["input"]) == ("review-1", {"file": "login.py"})
    assert (await caller(client.call, "task", action="take"))["item"] is None
    done = await caller(client.call, "task", action="finish", id=item["lease"], input={"approved": True})
    assert done["status"] == "completed"
    record = await bus.tasks.get("review-1")
    assert record is not None
    assert record.result == {"approved": True}
    assert (await caller(client.refused, "task", action="finish"))["code"] == "invalid_arguments"
    await caller(client.server.close)


async def test_a_client_without_handles_uses_the_tool(bus: agentbus.Bus, caller: Caller) -> None:
    client = caller.client({})
    await caller(client.call, "join", name="starter")
    task = await caller(client.call, "task", action="start", workflow="deploy", input={"what": "v5"}, id="d-1")
    assert (task["id"], task["status"]) == ("d-1", "pending")
    again = await caller(client.call, "task", action="start", workflow="deploy", input={"what": "v5"}, id="d-1")
    assert again["id"] == "d-1"
    await run_tasks(bus)
    shown = await caller(client.call, "task", action="show", id="d-1")
    assert shown["status"] == "waiting"
    assert shown["approvals"][0]["name"] == "plan"
    assert [one["id"] for one in (await caller(client.call, "task", action="list"))["tasks"]] == ["d-1"]
    waiting = asyncio.create_task(caller(client.call, "task", action="wait", id="d-1", wait=50))
    await bus.tasks.approve("d-1", by="ada")
    await run_tasks(bus)
    assert (await waiting)["result"] == "v5 is live"
    second = await caller(client.call, "task", action="start", workflow="deploy", input="v6")
    assert (await caller(client.call, "task", action="stop", id=second["id"]))["status"] == "stopped"
    for wrong in ({"action": "start"}, {"action": "show"}):
        assert (await caller(client.refused, "task", **wrong))["code"] == "invalid_arguments"
    assert (await caller(client.refused, "task", action="wait", id="nothing"))["code"] == "unknown_task"
    text = (await caller(client.ask, "resources/read", uri="bus://task/d-1"))["contents"][0]["text"]
    assert "v5 is live" in text
    await caller(client.server.close)
