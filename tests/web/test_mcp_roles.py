"""Every tool, resource and method of ``/mcp`` with every role: a client may do what the routes let its token do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, get_args, get_type_hints

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")

from agentbus import Bus
from agentbus.mcp.tasks import TaskArguments
from agentbus.mcp.tools import TOOLS, Report, Settle, StateArguments
from agentbus.web.access import Permission
from agentbus.web.mcp import ACTIONS, routes_of
from agentbus.web.routes import Route
from tests.web.client import Client
from tests.web.conftest import serving
from tests.web.mcp_client import MCPClient, refusal

pytestmark = pytest.mark.one_engine

ROLES = ("owner", "read", "operate", "agent:a", "agent:b")
REFUSALS = {"unauthorized", "forbidden", "read_only_server"}


def tool(tool: str, /, **arguments: Any) -> tuple[str, dict[str, Any]]:
    return "tools/call", {"name": tool, "arguments": arguments}


CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "join": tool("join", name="x", session="no-such"),
    "send": tool("send", to="nowhere", payload=1),
    "send as operator": tool("send", to="nowhere", payload=1),
    "send, wait": tool("send", to="nowhere", payload=1, wait=1),
    "send, reply_to": tool("send", reply_to="m-999#1", payload=1),
    "receive": tool("receive"),
    "receive, peek": tool("receive", peek=True),
    **{f"settle {one}": tool("settle", lease="m-999#1", outcome=one) for one in ("done", "retry", "reject", "extend")},
    **{
        f"{own}state {action}": tool("state", action=action, key="k", **more, **({} if own else {"scope": "shared"}))
        for own in ("", "own ")
        for action, more in {"get": {}, "list": {}, "set": {"value": 1}, "delete": {}, "increment": {}}.items()
    },
    "report": tool("report"),
    "report progress": tool("report", progress=5),
    "report checkpoint": tool("report", checkpoint={"n": 1}),
    "report tokens": tool("report", tokens=5),
    "report busy": tool("report", status="busy"),
    "report complete": tool("report", status="complete"),
    "report fail": tool("report", status="fail"),
    "task start": tool("task", action="start", workflow="w", id="started"),
    "task show": tool("task", action="show", id="t"),
    "task list": tool("task", action="list"),
    "task wait": tool("task", action="wait", id="t"),
    "task stop": tool("task", action="stop", id="t"),
    "task ready": tool("task", action="ready"),
    "task take": tool("task", action="take"),
    "task finish": tool("task", action="finish", id="t"),
    "bus://status": ("resources/read", {"uri": "bus://status"}),
    "bus://agents": ("resources/read", {"uri": "bus://agents"}),
    "bus://inbox": ("resources/read", {"uri": "bus://inbox/a"}),
    "bus://task": ("resources/read", {"uri": "bus://task/t"}),
    "bus://prime": ("resources/read", {"uri": "bus://prime"}),
    "initialize": ("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}}),
    "ping": ("ping", {}),
    "server/discover": ("server/discover", {}),
    "tools/list": ("tools/list", {}),
    "resources/list": ("resources/list", {}),
    "resources/templates/list": ("resources/templates/list", {}),
    "subscriptions/listen": ("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["bus://inbox/a"]}}),
    "tasks/get": ("tasks/get", {"taskId": "t"}),
    "tasks/update": ("tasks/update", {"taskId": "t", "inputResponses": {}}),
    "tasks/cancel": ("tasks/cancel", {"taskId": "t"}),
}
"""A request for each action."""
HANDSHAKE = {"initialize", "ping"}


def test_every_action_of_every_tool_has_a_case() -> None:
    assert CASES.keys() == ACTIONS.keys()

    def literal(kind: Any, field: str) -> set[str]:
        hint = get_type_hints(kind)[field]
        found = get_args(hint)
        return {one for part in found for one in (get_args(part) or (part,)) if isinstance(one, str)}

    words = {
        "settle": literal(Settle, "outcome"), "state": literal(StateArguments, "action"),
        "task": literal(TaskArguments, "action"), "report": literal(Report, "status"),
    }  # fmt: skip
    assert all(words.values())
    named = {f"{tool} {word}" for tool, found in words.items() for word in found}
    assert named <= ACTIONS.keys()
    for name in TOOLS:
        assert any(params.get("name") == name for _, params in CASES.values()), name


async def asked(client: MCPClient, action: str) -> tuple[int, str]:
    """Return the status of a request, and the code of its error."""
    method, params = CASES[action]
    client.version = "2025-11-25" if action in HANDSHAKE else "2026-07-28"
    if method == "subscriptions/listen":
        async with client.open(method, **params) as stream:
            return stream.status, "forbidden" if stream.status == 403 else ""
    found = await client.ask(method, **params)
    return found.status, refusal(found)


async def routed(client: Client, route: Route, agent: str) -> str:
    """Return the refusal of a route, for something that does not exist or with a body that no handler accepts."""
    names = {"agent": agent, "task": "missing", "scope": "shared", "key": "k"}
    path = "/".join(names[part[1:-1]] if part.startswith("{") else part for part in route.segments)
    if route.streams:
        async with client.stream(path) as stream:
            return "forbidden" if stream.status == 403 else ""
    body = {"no such field": True} if route.body is not None else None
    found = await client.send(route.method, path, body)
    code = found.code if found.status >= 400 else ""
    return code if code in REFUSALS else ""


@pytest.mark.parametrize("read_only", [False, True])
async def test_every_action_is_permitted_to_the_roles_of_its_routes(
    bus: Bus, token: Callable[[str], Awaitable[str]], read_only: bool
) -> None:
    for name in ("a", "b"):
        await bus.register_visitor(name, type="worker")
    await bus.tasks.start("w", id="t")
    wrong: list[str] = []
    refused = 0
    async with serving(bus, read_only=read_only) as owner:
        for role in ROLES:
            caller = owner if role == "owner" else owner.with_token(await token(role))
            agent = role.removeprefix("agent:") if role.startswith("agent:") else "a"
            for action in CASES:
                if action == ("send as operator" if role.startswith("agent:") else "send"):
                    # The same tool: an operator is no agent, and sends by another route.
                    continue
                codes = {await routed(caller, route, agent) for route in routes_of(action)} - {""}
                status, code = await asked(MCPClient(caller), action)
                found = {code} & REFUSALS
                refused += bool(found)
                if found != codes or status >= 500:
                    wrong.append(f"{role}: {action}: {status} {code!r}, the routes {codes}")
                if found:
                    assert status == (200 if CASES[action][0] == "tools/call" else 403), action
    assert wrong == []
    assert refused > 30, "the roles differ"


async def test_what_was_attacked_stays_closed(bus: Bus, token: Callable[[str], Awaitable[str]]) -> None:
    await bus.register_visitor("a", type="worker")
    await bus.tasks.start("w", id="t")
    async with serving(bus) as owner:
        reader = MCPClient(owner, await token("read"))
        agent = MCPClient(owner, await token("agent:a"))
        assert refusal(await reader.ask("tasks/cancel", taskId="t")) == "forbidden"
        for client in (reader, agent):
            for arguments in ({"action": "start", "workflow": "w"}, {"action": "stop", "id": "t"}):
                assert (await client.call("task", **arguments))["error"]["code"] == "forbidden"
            # Also with arguments that are converted: what is checked is what is done.
            for scope in ("shared", "b", "operator:ada"):
                assert (await client.call("state", action="set", scope=scope, key="k", value=1))["error"]["code"]
        record = await bus.tasks.get("t")
        assert record is not None
        assert record.status == "pending"
        assert (await bus.tasks.list()).items == [record]
        assert (await bus.scopes()).items == []
        # What the agent may do, it does as itself.
        assert (await agent.call("join", name="b"))["agent"] == "a"
        assert (await agent.call("state", action="set", key="k", value=1))["version"] == 1
        assert (await agent.call("state", action="increment", scope="a", key="n"))["value"] == 1
        assert [one.scope for one in (await bus.scopes()).items] == ["a"]
        # An operator sends in its own name, stops tasks, and is no agent.
        operator = MCPClient(owner, await token("operate"))
        sent = await operator.call("send", to="a", payload="hello")
        message = await bus.messages.get(sent["message_id"])
        assert message is not None
        assert message.sender == "operator:grace"
        assert (await operator.call("receive"))["error"]["code"] == "no_agent_identity"
        assert (await operator.call("state", action="set", scope="shared", key="k", value=1))["version"] == 1
        assert (await reader.call("state", action="get", scope="shared", key="k"))["value"] == 1
        assert (await operator.ask("tasks/cancel", taskId="t")).status == 200
        (stopped,) = [event async for event in bus.events(kind="task_stopped")]
        assert stopped.actor == "grace"


def test_no_change_is_mapped_to_a_route_that_only_reads() -> None:
    reading = {action for action in ACTIONS if all(not one.permission.changes for one in routes_of(action))}
    assert {one for one in reading if one in CASES and CASES[one][0] == "tools/call"} == {
        "state get", "state list", "own state get", "own state list",
        "task show", "task list", "task wait", "task ready",
    }  # fmt: skip
    assert {one.permission for one in routes_of("tasks/update")} == {Permission.DECIDE}
    assert {one.permission for one in routes_of("tasks/cancel")} == {Permission.OPERATE}
