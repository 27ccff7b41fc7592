"""The MCP server at ``/mcp``: the same tokens, roles, limits and checks as the HTTP API.

What a client may do is decided by ``access.authorize``, with the permissions of the table of routes: ``ACTIONS`` names
the routes that do the same as a tool, a resource or a method. A request that it does not name is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response

from agentbus.core.validation import VISITOR_LEASE
from agentbus.mcp.dispatcher import Context
from agentbus.mcp.endpoint import HTTPClient, MCPEndpoint
from agentbus.mcp.identity import FixedIdentity
from agentbus.mcp.server import MCPServer
from agentbus.mcp.tools import check_arguments, tool_definitions
from agentbus.sync.loop_store import LoopStore, bus_on_loop
from agentbus.web.access import Principal, authorize
from agentbus.web.errors import Forbidden, TooManyCalls, TooManyStreams
from agentbus.web.routes import ROUTES, Route

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from agentbus.web.app import Application

PATH = "/mcp"
MAX_WAITING = 64
"""Calls that one token may have waiting, as over stdio."""

_ANY = ("sign_in_identity",)
"""Of a request that shows nothing of the bus: any token."""

ACTIONS: Mapping[str, tuple[str, ...]] = {
    # Tools
    "join": (
        "agents_list_agents", "agents_register", "agents_heartbeat",
        "agents_change_membership", "agents_join", "agents_in_hand",
    ),
    "send": ("agents_send",),
    "send as operator": ("messages_send",),
    "send, wait": ("agents_request",),
    "send, reply_to": ("agents_reply",),
    "receive": ("agents_receive",),
    "receive, peek": ("agents_peek",),
    "settle done": ("agents_ack",),
    "settle retry": ("agents_nack",),
    "settle reject": ("agents_reject",),
    "settle extend": ("agents_extend",),
    "state get": ("state_get_entry",),
    "state list": ("state_list_entries",),
    "state set": ("state_set_entry",),
    "state delete": ("state_delete_entry",),
    "state increment": ("state_increment_entry",),
    "own state get": ("agents_get_own_state",),
    "own state list": ("state_list_entries",),
    "own state set": ("agents_set_own_state",),
    "own state delete": ("agents_delete_own_state",),
    "own state increment": ("agents_increment_own_state",),
    "report": ("agents_heartbeat",),
    "report progress": ("agents_progress",),
    "report checkpoint": ("agents_save_own_checkpoint",),
    "report tokens": ("agents_increment_own_state",),
    "report busy": ("agents_busy",),
    "report complete": ("agents_complete",),
    "report fail": ("agents_fail",),
    "task start": ("tasks_start_task",),
    "task show": ("tasks_get_task",),
    "task list": ("tasks_list_tasks",),
    "task wait": ("tasks_task_result",),
    "task stop": ("tasks_stop",),
    "task ready": ("items_ready",),
    "task take": ("items_take",),
    "task finish": ("items_finish",),
    # Resources
    "bus://status": ("maintenance_overview",),
    "bus://agents": ("agents_list_agents",),
    "bus://inbox": ("messages_list_messages",),
    "bus://task": ("tasks_get_task",),
    "bus://prime": _ANY,
    # Methods
    "initialize": _ANY,
    "ping": _ANY,
    "server/discover": _ANY,
    "tools/list": _ANY,
    "resources/list": _ANY,
    "resources/templates/list": _ANY,
    "subscriptions/listen": ("live_follow",),
    "tasks/get": ("tasks_get_task",),
    "tasks/update": ("tasks_approve", "tasks_reject"),
    "tasks/cancel": ("tasks_stop",),
}  # fmt: skip
"""The routes that do the same as a request, by what it asks for: their names, as the OpenAPI document has them."""

_ROUTES = {route.name: route for route in ROUTES}
_RESOURCES = ("bus://status", "bus://agents", "bus://inbox", "bus://task", "bus://prime")


def routes_of(action: str) -> list[Route]:
    """Return the routes that do the same as an action."""
    found = ACTIONS.get(action)
    if found is None:
        raise Forbidden(reason=f"{action[:100]!r} is not offered over HTTP")
    return [_ROUTES[name] for name in found]


def actions_of(context: Context, caller: Principal) -> list[str]:
    """Return the actions that a request asks for; InvalidArguments for those of a tool that do not fit its schema."""
    request = context.request
    params = request.params
    if request.method == "tools/call":
        return _tool_actions(params.get("name"), params.get("arguments"), caller)
    if request.method in {"resources/read", "resources/subscribe", "resources/unsubscribe"}:
        return _resource_actions(params.get("uri"))
    if request.method == "subscriptions/listen":
        wanted = params.get("notifications")
        uris = wanted.get("resourceSubscriptions") if isinstance(wanted, dict) else None
        tasks = wanted.get("taskIds") if isinstance(wanted, dict) else None
        named = [action for uri in (uris if isinstance(uris, list) else ()) for action in _resource_actions(uri)]
        return [request.method, *named, *(["tasks/get"] if tasks else [])]
    return [request.method]


def _resource_actions(uri: object) -> list[str]:
    text = uri if isinstance(uri, str) else ""
    # One that does not exist shows nothing.
    return [next((name for name in _RESOURCES if text == name or text.startswith(f"{name}/")), "ping")]


def _tool_actions(name: object, arguments: object, caller: Principal) -> list[str]:
    known = tool_definitions()
    if not isinstance(name, str) or name not in known:
        # The dispatcher reports that there is no such tool.
        return ["ping"]
    given: Any = check_arguments(name, known[name][2], {} if arguments is None else arguments)
    if name == "send":
        if given.reply_to is not None:
            return ["send, reply_to"]
        if given.wait:
            return ["send, wait"]
        return ["send" if caller.agent is not None else "send as operator"]
    if name == "receive":
        return ["receive, peek" if given.peek else "receive"]
    if name == "settle":
        return [f"settle {given.outcome}"]
    if name == "state":
        own = given.scope is None or given.scope == caller.agent
        return [f"{'own state' if own else 'state'} {given.action}"]
    if name == "report":
        return _report_actions(given)
    if name == "task":
        return [f"task {given.action}"]
    return [name]


def _report_actions(given: Any) -> list[str]:
    found = ["report"]
    if given.progress is not None or given.note is not None:
        found.append("report progress")
    if given.checkpoint is not msgspec.UNSET:
        found.append("report checkpoint")
    if given.tokens:
        found.append("report tokens")
    if given.status is not None:
        found.append(f"report {given.status}")
    return found


class TokenIdentity(FixedIdentity):
    """The client of a token: its agent, its operator, or a reader."""

    def __init__(self, caller: Principal) -> None:
        super().__init__(caller.agent, operator=caller.operator if caller.role == "operate" else None)
        self.caller = caller


class TokenClient(HTTPClient):
    """The client of a token, and what it has open."""

    def __init__(self, mcp: MCP, caller: Principal) -> None:
        decides = mcp.decisions and caller.role == "operate"
        super().__init__(TokenIdentity(caller), caller.operator if decides else None)
        self._mcp = mcp
        self._caller = caller

    @contextmanager
    def admit(self, *, listens: bool) -> Iterator[None]:
        app, token = self._mcp.app, self._caller.token
        counted = app.streams if listens else self._mcp.waiting
        if counted[token] >= (app.max_streams if listens else MAX_WAITING):
            raise TooManyStreams(open=counted[token]) if listens else TooManyCalls(open=counted[token])
        counted[token] += 1
        try:
            yield
        finally:
            counted[token] -= 1

    async def is_valid(self) -> bool:
        return await self._mcp.app.access.is_valid(self._caller)


class MCP:
    """The MCP server of an application. ``decisions``: answers of clients that may decide count as decisions."""

    def __init__(self, app: Application, *, decisions: bool = False, prime: Callable[[], str] | None = None) -> None:
        self.app = app
        self.decisions = decisions
        self.waiting: Counter[str] = Counter()
        """Waiting calls by token."""
        store = LoopStore(app.bus)
        self.server = MCPServer(lambda: bus_on_loop(store, lease=VISITOR_LEASE), prime=prime, permit=self.permit)
        self._endpoint = MCPEndpoint(self.server.dispatcher, hosts=None, stopping=app.stopping)

    def permit(self, context: Context) -> None:
        """Raise the error of a client whose role does not permit a request."""
        caller: Principal = context.connection.identity.caller
        for action in actions_of(context, caller):
            for route in routes_of(action):
                authorize(route.permission, caller, caller.agent, read_only=self.app.read_only)

    def respond(self, headers: Mapping[str, str], body: bytes, caller: Principal) -> MCPResponse:
        """Return the response to a message."""
        client = TokenClient(self, caller)

        async def answer(receive: Receive, send: Send) -> None:
            await self._endpoint.answer(headers, body, client, receive, send)

        return MCPResponse(answer)


class MCPResponse(Response):
    """The response of the MCP server, with the headers of every response."""

    def __init__(self, answer: Callable[[Receive, Send], Any]) -> None:
        super().__init__()
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._answer(receive, _HeaderSender(self, send).send)


class _HeaderSender:
    """Adds the headers of a response to what the MCP server sends."""

    def __init__(self, response: Response, send: Send) -> None:
        self._response = response
        self._send = send
        self.transport = getattr(getattr(send, "__self__", None), "transport", None)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            own = {name for name, _ in message["headers"]} | {b"content-length"}
            added = [(name, value) for name, value in self._response.raw_headers if name not in own]
            message = {**message, "headers": [*message["headers"], *added]}
        await self._send(message)
