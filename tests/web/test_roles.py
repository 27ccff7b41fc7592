"""Every route with every role: permissions are enforced by the server, for each action, in one place."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")

from agentbus import Bus
from agentbus.web.access import Permission, Principal, authorize
from agentbus.web.errors import Forbidden, ReadOnlyServer, Unauthorized
from agentbus.web.routes import PREFIX, ROUTES, Route
from tests.web.client import Client
from tests.web.conftest import serving

ROLES = {
    "nobody at all": None,
    "unknown": "ab_unknown",
    "read": "read",
    "operate": "operate",
    "agent:a": "agent:a",
    "agent:b": "agent:b",
}
"""The caller, by the name of its role; the agent of the paths is a."""
REFUSED = {401, 403}


def may(permission: Permission, role: str) -> bool:
    """Return True if a role may use a route: written down a second time, on purpose."""
    match permission:
        case Permission.PUBLIC:
            return True
        case Permission.READ:
            return role in {"read", "operate", "agent:a", "agent:b"}
        case Permission.AGENT:
            return role in {"operate", "agent:a"}
        case Permission.OPERATE | Permission.DECIDE:
            return role == "operate"


def path_of(route: Route) -> str:
    names = {"agent": "a", "checkpoint": "999", "version": "1"}
    parts = [
        names.get(part[1:-1].partition(":")[0], "missing") if part.startswith("{") else part for part in route.segments
    ]
    return "/".join(parts)


async def answer(client: Client, route: Route) -> tuple[int, str]:
    """Call a route with a body that no handler accepts, or for something that does not exist."""
    if route.streams:
        async with client.stream(path_of(route)) as stream:
            return stream.status, {401: "unauthorized", 403: "forbidden"}.get(stream.status, "")
    body = {"no such field": True} if route.body is not None else None
    found = await client.send(route.method, path_of(route), body, headers={"X-Agentbus": "1"})
    return found.status, found.code if found.status >= 400 else ""


@pytest.mark.one_engine
async def test_every_route_admits_exactly_its_roles(bus: Bus, token: Callable[[str], Awaitable[str]]) -> None:
    await bus.register_visitor("a", type="worker")
    wrong: list[str] = []
    async with serving(bus) as client:
        for name, role in ROLES.items():
            secret = role if role is None or role.startswith("ab_") else await token(role)
            caller = client.with_token(secret)
            for route in ROUTES:
                status, code = await answer(caller, route)
                permitted = may(route.permission, name)
                if (status in REFUSED and code in {"unauthorized", "forbidden"}) == permitted:
                    wrong.append(f"{name}: {route.method} {route.path}: {status} {code}")
                if status >= 500:
                    wrong.append(f"{name}: {route.method} {route.path}: {status} {code}")
    assert wrong == []


@pytest.mark.one_engine
async def test_a_read_only_server_refuses_every_change(bus: Bus, token: Callable[[str], Awaitable[str]]) -> None:
    wrong: list[str] = []
    async with serving(bus, read_only=True) as client:
        for role in ("operate", "agent:a"):
            caller = client.with_token(await token(role))
            for route in ROUTES:
                status, code = await answer(caller, route)
                if (code == "read_only_server") != route.permission.changes:
                    wrong.append(f"{role}: {route.method} {route.path}: {status} {code}")
        assert (await client.get("identity")).json["may_operate"] is False
    assert wrong == []


def test_every_method_that_is_not_get_needs_more_than_reading() -> None:
    lax = [
        route for route in ROUTES if route.changes and not route.permission.changes
        and route.path not in {"/login", "/logout"}
    ]  # fmt: skip
    assert lax == []
    public = {route.path for route in ROUTES if route.permission is Permission.PUBLIC}
    assert public == {"/login", "/logout", "/health", "/openapi.json"}


def test_decisions_need_an_operator() -> None:
    decisions = {route.path for route in ROUTES if route.permission is Permission.DECIDE}
    assert {f"/tasks/{{task}}/{verb}" for verb in ("approve", "reject", "settle", "auto")} <= decisions


def test_a_route_for_an_agent_names_it_in_its_path() -> None:
    assert [route for route in ROUTES if route.permission is Permission.AGENT and "agent" not in route.parameters] == []


@pytest.mark.parametrize("permission", Permission)
def test_the_rule_itself(permission: Permission) -> None:
    callers = {
        "read": Principal("t", "read", "ada"),
        "operate": Principal("t", "operate", "ada"),
        "agent:a": Principal("t", "agent", "ada", "a"),
        "agent:b": Principal("t", "agent", "ada", "b"),
    }
    for name, caller in callers.items():
        refused: type[Exception] | None = None
        try:
            authorize(permission, caller, "a", read_only=False)
        except (Forbidden, Unauthorized) as error:
            refused = type(error)
        assert (refused is None) == may(permission, name)
    if permission.changes:
        with pytest.raises(ReadOnlyServer):
            authorize(permission, callers["operate"], "a", read_only=True)


async def test_the_audit_log_shows_the_operator_of_the_token(
    client: Client, bus: Bus, token: Callable[[str], Awaitable[str]]
) -> None:
    caller = client.with_token(await token("operate"))
    await bus.tasks.start("feature", id="t-1")
    assert (await caller.post("tasks/t-1/stop", {"reason": "enough"})).status == 200
    (stopped,) = [event async for event in bus.events(kind="task_stopped")]
    assert (stopped.actor, stopped.facts["reason"]) == ("grace", "enough")
    # No header names another operator.
    assert (await caller.post("tasks/t-1/resume", {}, X_Agentbus_Operator="eve")).status == 200
    (resumed,) = [event async for event in bus.events(kind="task_resumed")]
    assert resumed.actor == "grace"
    assert PREFIX == "/api/v1"


async def test_the_audit_log_shows_who_ended_or_took_over_an_agent(
    client: Client, bus: Bus, token: Callable[[str], Awaitable[str]]
) -> None:
    caller = client.with_token(await token("operate"))
    ends: tuple[tuple[str, dict[str, object]], ...] = (
        ("stop", {"reason": "enough"}), ("fail", {"error": "no disk"}), ("complete", {}),
    )  # fmt: skip
    for verb, body in ends:
        await bus.register_visitor(verb, type="worker")
        taken = await caller.post(f"agents/{verb}/register", {"type": "worker", "takeover": True})
        assert taken.status == 200
        assert (await caller.post(f"agents/{verb}/{verb}", body)).status == 200
        # The same by the agent itself.
        own = client.with_token(await token(f"agent:{verb}"))
        await own.post(f"agents/{verb}/register", {"type": "worker"})
        assert (await own.post(f"agents/{verb}/{verb}", body)).status == 200
        found = [(one.kind.removeprefix("agent_"), one.actor) async for one in bus.events(subject=f"agent:{verb}")]
        end = {"stop": "stopped", "fail": "failed", "complete": "completed"}[verb]
        assert found == [
            ("registered", verb), ("taken_over", "grace"), (end, "grace"), ("registered", verb), (end, verb),
        ]  # fmt: skip
