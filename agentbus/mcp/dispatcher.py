"""Answer the requests of MCP clients of both eras, whatever transport carries them.

A transport decodes a message, opens its context, and has it answered, on a thread of its own if it may wait:

    context = dispatcher.open(request, connection)
    reply = dispatcher.answer(context)

The answer is complete when the client has it: it is sent within ``with reply``. Where that fails, a message that was
received returns to its mailbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Protocol, TypeAlias

from agentbus import core
from agentbus.errors import AgentBusError
from agentbus.mcp.protocol import (
    CAPABILITIES_KEY,
    CLIENT_KEY,
    HANDSHAKE,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MODERN,
    RESOURCE_NOT_FOUND,
    SERVER_KEY,
    SUBSCRIPTION_KEY,
    TASKS,
    UNSUPPORTED_VERSION,
    VERSION_KEY,
    VERSIONS,
    Fault,
    Request,
    encode,
    missing_capability,
    notification,
)

_LISTS_TTL = 300_000
"""Milliseconds for which a client may cache the lists of tools and resources: they change with a new version only."""
_REMOVED = ("initialize", "ping", "resources/subscribe", "resources/unsubscribe")
"""Methods of the handshake era only."""
_ADDED = ("server/discover", "subscriptions/listen", "tasks/get", "tasks/update", "tasks/cancel")
"""Methods of the later era only."""
_CACHED = (
    "server/discover",
    "tools/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
    "prompts/list",
)
"""Methods whose results say how long they may be cached."""


class Cancellation:
    """The cancellation of a call: its wait is interrupted."""

    def __init__(self) -> None:
        self.cancelled = False
        self._interrupt: Callable[[], object] | None = None

    def cancel(self) -> None:
        """Cancel the call. Called by any thread."""
        # In this order: the call first sets its action, then checks the flag.
        self.cancelled = True
        if self._interrupt is not None:
            self._interrupt()

    def on_cancel(self, interrupt: Callable[[], object] | None) -> None:
        """Set the action that ends the wait of the call; it is taken at once if the call is cancelled already."""
        self._interrupt = interrupt
        if interrupt is not None and self.cancelled:
            interrupt()


class Connection:
    """A client as its transport knows it: what a handshake has stated, and its identity.

    ``header`` is the protocol version of an HTTP request, where nothing is remembered between two requests. ``decider``
    is the person whose decisions the client's answers to approvals are; None: they do not count.
    """

    def __init__(
        self, identity: Any = None, *, header: str | None = None, remembers: bool = True, decider: str | None = None
    ) -> None:
        self.identity = identity
        self.decider = decider
        self.header = header
        self.remembers = remembers
        self.version: str | None = None
        self.capabilities: dict[str, Any] = {}
        self.client = ""
        self.watched: dict[str, Cancellation] = {}
        """The subscriptions of a client of the handshake era, by resource."""


class Context:
    """One request: the protocol that it speaks, its client, and the means to notify it."""

    def __init__(
        self,
        request: Request,
        connection: Connection,
        version: str,
        capabilities: dict[str, Any],
        client: str,
        emit: Callable[[dict[str, Any]], None] = lambda message: None,
        spawn: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        self.request = request
        self.connection = connection
        self.version = version
        self.capabilities = capabilities
        self.client = client
        self.emit = emit
        """Send a notification that belongs to this request."""
        self.spawn = spawn
        """Run something that outlasts the request, where the transport can."""
        self.cancellation = Cancellation()

    @property
    def modern(self) -> bool:
        return self.version == MODERN

    def has_extension(self, name: str) -> bool:
        """Return whether the client has declared an extension on this request."""
        extensions = self.capabilities.get("extensions")
        return self.modern and isinstance(extensions, dict) and name in extensions

    def progress(self, progress: float, total: float | None = None) -> None:
        """Report progress, if the client asked for it."""
        token = self.request.meta.get("progressToken")
        if token is not None:
            whole = {} if total is None else {"total": total}
            params = {"progressToken": token, "progress": progress, **whole}
            self.emit(notification("notifications/progress", params))


class Reply:
    """The result of a request, and what it holds until the client has it. Used as a context manager while the result
    is sent: a block that raises releases what was taken.

    >>> with reply:                                                                   # doctest: +SKIP
    ...     write(dispatcher.response(request, reply))
    """

    def __init__(self, result: dict[str, Any], taken: ExitStack | None = None, code: str | None = None) -> None:
        self.result = result
        self.code = code
        """The code of the error that it reports."""
        self.taken = ExitStack() if taken is None else taken

    def __enter__(self) -> Reply:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.taken.__exit__(kind, error, trace)


Handler: TypeAlias = Callable[[Context, dict[str, Any]], "dict[str, Any] | Reply"]


class Tool(Protocol):
    """A tool that models call. ``waits``: these arguments may block for long."""

    @property
    def name(self) -> str: ...
    def definition(self) -> dict[str, Any]: ...
    def waits(self, arguments: dict[str, Any]) -> bool: ...
    def call(self, context: Context, arguments: dict[str, Any]) -> dict[str, Any] | Reply: ...


class Resources(Protocol):
    """The resources that clients read, and are notified of."""

    def list(self) -> Sequence[dict[str, Any]]: ...
    def templates(self) -> Sequence[dict[str, Any]]: ...
    def read(self, context: Context, uri: str) -> Sequence[dict[str, Any]]:
        """Return the contents of a resource; LookupError if there is none."""

    def is_watchable(self, uri: str) -> bool: ...

    def watch(
        self,
        context: Context,
        uris: Sequence[str],
        tasks: Sequence[str],
        changed: Callable[[str], None],
        task_changed: Callable[[dict[str, Any]], None],
        cancellation: Cancellation,
        ready: Callable[[], None],
    ) -> None:
        """Call ``ready`` once every later change is reported, then report changes until cancelled."""


class TaskSource(Protocol):
    """Durable tasks. Each method raises LookupError if there is no such task."""

    def get(self, context: Context, task: str) -> dict[str, Any]: ...
    def update(self, context: Context, task: str, responses: dict[str, Any]) -> None: ...
    def cancel(self, context: Context, task: str) -> None: ...


class Dispatcher:
    """The methods of one server.

    ``methods`` are further ones; ``capabilities`` are declared with those that follow from the rest. ``permit`` is
    called before every method, and raises the error of a client that may not do it.
    """

    def __init__(
        self,
        *,
        name: str,
        version: str,
        instructions: str,
        tools: Iterable[Tool],
        resources: Resources | None = None,
        tasks: TaskSource | None = None,
        methods: Mapping[str, Handler] | None = None,
        capabilities: Mapping[str, Any] | None = None,
        permit: Callable[[Context], None] = lambda context: None,
    ) -> None:
        self._server = {"name": name, "version": version}
        self._instructions = instructions
        self._tools = {tool.name: tool for tool in tools}
        self._resources = resources
        self._tasks = tasks
        self._capabilities = dict(capabilities or {})
        self._permit = permit
        self._methods: dict[str, Handler] = {
            "initialize": self._initialize,
            "ping": lambda context, params: {},
            "server/discover": self._discover,
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            **(self._resource_methods() if resources is not None else {}),
            **(self._task_methods() if tasks is not None else {}),
            **(methods or {}),
        }

    # What transports call

    def open(
        self,
        request: Request,
        connection: Connection,
        emit: Callable[[dict[str, Any]], None] = lambda message: None,
        spawn: Callable[[Callable[[], None]], None] | None = None,
    ) -> Context:
        """Return the context of a request, or raise the fault of one that states no known protocol."""
        try:
            return self._open(request, connection, emit, spawn)
        except Fault as fault:
            fault.id = request.id
            raise

    def may_wait(self, request: Request) -> bool:
        """Return whether a request may wait for something to happen: it must not keep others from being answered."""
        if request.method == "tools/call":
            tool = self._tools.get(request.name or "")
            arguments = request.params.get("arguments")
            return tool is not None and tool.waits(arguments if isinstance(arguments, dict) else {})
        return request.method == "subscriptions/listen"

    def may_notify(self, request: Request) -> bool:
        """Return whether notifications may precede the result of a request."""
        return request.method == "subscriptions/listen" or "progressToken" in request.meta

    def tool_schema(self, name: str) -> dict[str, Any] | None:
        """Return the schema of a tool's arguments."""
        tool = self._tools.get(name)
        return None if tool is None else tool.definition().get("inputSchema")

    def answer(self, context: Context) -> Reply:
        """Return the result of a request, or raise a fault."""
        request = context.request
        if core.tracer is None and "traceparent" in request.meta:
            from agentbus.core.trace_context import propagate, trace_of

            propagate(trace_of(request.meta))
        # A subscription never ends by itself.
        if core.tracer is None or request.method == "subscriptions/listen":
            return self._checked(context)
        tool = request.name if request.method == "tools/call" and request.name in self._tools else None
        with core.tracer.answer(request.method, tool, context.version, request.id, request.meta) as span:
            reply = self._checked(context)
            if reply.result.get("isError"):
                span.fail(reply.code or "tool_error")
            return reply

    def _checked(self, context: Context) -> Reply:
        request = context.request
        try:
            reply = self._answer(context)
        except Fault as fault:
            fault.id = request.id
            raise
        except AgentBusError as error:
            from agentbus.mcp.errors import describe

            problem = describe(error)
            raise Fault(INTERNAL_ERROR, problem["message"], problem, id=request.id) from None
        result = reply.result
        if context.modern:
            result.setdefault("resultType", "complete")
            meta = result.setdefault("_meta", {})
            if isinstance(meta, dict):
                meta.setdefault(SERVER_KEY, self._server)
            if request.method in _CACHED:
                result.setdefault("ttlMs", 0 if request.method == "resources/read" else _LISTS_TTL)
                result.setdefault("cacheScope", "private" if request.method == "resources/read" else "public")
        return reply

    @staticmethod
    def response(request: Request, reply: Reply) -> dict[str, Any]:
        """Return the message that answers a request."""
        return {"jsonrpc": "2.0", "id": request.id, "result": reply.result}

    # Protocol versions

    def _open(
        self,
        request: Request,
        connection: Connection,
        emit: Callable[[dict[str, Any]], None],
        spawn: Callable[[Callable[[], None]], None] | None,
    ) -> Context:
        meta = request.meta
        if request.method == "initialize" and VERSION_KEY not in meta and connection.header in {None, *HANDSHAKE}:
            return Context(request, connection, HANDSHAKE[0], {}, "", emit, spawn)
        if VERSION_KEY not in meta and CAPABILITIES_KEY not in meta:
            version = connection.version if connection.remembers else connection.header
            if version is None and not connection.remembers:
                # HTTP clients of that revision and before send no header.
                version = "2025-03-26"
            if version in HANDSHAKE:
                return Context(request, connection, version, connection.capabilities, connection.client, emit, spawn)
        return self._open_modern(request, connection, emit, spawn)

    def _open_modern(
        self,
        request: Request,
        connection: Connection,
        emit: Callable[[dict[str, Any]], None],
        spawn: Callable[[Callable[[], None]], None] | None,
    ) -> Context:
        meta = request.meta
        version, capabilities = meta.get(VERSION_KEY), meta.get(CAPABILITIES_KEY)
        if not isinstance(version, str):
            raise Fault(INVALID_PARAMS, f"_meta needs {VERSION_KEY}, or initialize first", status=400)
        if version != MODERN:
            raise Fault(
                UNSUPPORTED_VERSION,
                f"unsupported protocol version {version[:40]!r}",
                {"supported": list(VERSIONS), "requested": version},
                status=400,
            )
        if not isinstance(capabilities, dict):
            raise Fault(INVALID_PARAMS, f"_meta needs {CAPABILITIES_KEY}, an object", status=400)
        return Context(request, connection, version, capabilities, _name_of(meta.get(CLIENT_KEY)), emit, spawn)

    def _initialize(self, context: Context, params: dict[str, Any]) -> dict[str, Any]:
        asked, capabilities = params.get("protocolVersion"), params.get("capabilities", {})
        if not isinstance(asked, str) or not isinstance(capabilities, dict):
            raise Fault(INVALID_PARAMS, "initialize needs protocolVersion, a string, and capabilities, an object")
        version = asked if asked in HANDSHAKE else HANDSHAKE[0]
        connection = context.connection
        if connection.remembers:
            connection.version, connection.capabilities = version, capabilities
            connection.client = _name_of(params.get("clientInfo"))
        return {
            "protocolVersion": version,
            "capabilities": self._declared(context),
            "serverInfo": self._server,
            "instructions": self._instructions,
        }

    def _discover(self, context: Context, params: dict[str, Any]) -> dict[str, Any]:
        return {
            "supportedVersions": list(VERSIONS),
            "capabilities": self._declared(context),
            "instructions": self._instructions,
        }

    def _declared(self, context: Context) -> dict[str, Any]:
        found: dict[str, Any] = {"tools": {}}
        if self._resources is not None:
            # Without a connection that lasts, a client of the handshake era cannot be notified.
            found["resources"] = {"subscribe": True} if context.modern or context.connection.remembers else {}
        if self._tasks is not None and context.modern:
            found["extensions"] = {TASKS: {}}
        return {**found, **self._capabilities}

    # Methods

    def _answer(self, context: Context) -> Reply:
        method = context.request.method
        handler = self._methods.get(method)
        if handler is None or method in (_REMOVED if context.modern else _ADDED):
            raise Fault(METHOD_NOT_FOUND, f"no method {method[:100]!r}", status=404 if context.modern else 200)
        if method.startswith("tasks/") and not context.has_extension(TASKS):
            raise missing_capability({"extensions": {TASKS: {}}})
        try:
            self._permit(context)
        except AgentBusError as error:
            from agentbus.mcp.errors import describe

            problem = describe(error)
            if method == "tools/call":
                # As every error of a tool: the model reads it.
                return Reply(error_content(problem), code=problem["code"])
            status = getattr(error, "http_status", 200)
            raise Fault(INVALID_REQUEST, problem["message"], problem, status=status) from None
        found = handler(context, context.request.params)
        return found if isinstance(found, Reply) else Reply(found)

    def _list_tools(self, context: Context, params: dict[str, Any]) -> dict[str, Any]:
        _check_cursor(params)
        return {"tools": [tool.definition() for tool in self._tools.values()]}

    def _call_tool(self, context: Context, params: dict[str, Any]) -> dict[str, Any] | Reply:
        name, arguments = params.get("name"), params.get("arguments")
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            known = ", ".join(self._tools)
            raise Fault(INVALID_PARAMS, f"no tool {str(name)[:100]!r}; tools are {known}", {"name": name})
        if arguments is None:
            arguments = {}
        if not isinstance(arguments, dict):
            raise Fault(INVALID_PARAMS, "arguments must be an object")
        return tool.call(context, arguments)

    def _resource_methods(self) -> dict[str, Handler]:
        resources = self._resources
        assert resources is not None  # noqa: S101

        def list_resources(context: Context, params: dict[str, Any]) -> dict[str, Any]:
            _check_cursor(params)
            return {"resources": list(resources.list())}

        def list_templates(context: Context, params: dict[str, Any]) -> dict[str, Any]:
            _check_cursor(params)
            return {"resourceTemplates": list(resources.templates())}

        def read(context: Context, params: dict[str, Any]) -> dict[str, Any]:
            uri = _text(params, "uri")
            try:
                return {"contents": list(resources.read(context, uri))}
            except LookupError:
                code = INVALID_PARAMS if context.modern else RESOURCE_NOT_FOUND
                raise Fault(code, f"no resource {uri[:200]!r}", {"uri": uri}) from None

        return {
            "resources/list": list_resources,
            "resources/templates/list": list_templates,
            "resources/read": read,
            "resources/subscribe": self._subscribe,
            "resources/unsubscribe": self._unsubscribe,
            "subscriptions/listen": self._listen,
        }

    def _task_methods(self) -> dict[str, Handler]:
        tasks = self._tasks
        assert tasks is not None  # noqa: S101

        def update(context: Context, params: dict[str, Any]) -> dict[str, Any]:
            responses = params.get("inputResponses")
            if not isinstance(responses, dict):
                raise Fault(INVALID_PARAMS, "inputResponses must be an object")
            tasks.update(context, _text(params, "taskId"), responses)
            return {}

        def cancel(context: Context, params: dict[str, Any]) -> dict[str, Any]:
            tasks.cancel(context, _text(params, "taskId"))
            return {}

        def known(handler: Handler) -> Handler:
            def handle(context: Context, params: dict[str, Any]) -> dict[str, Any] | Reply:
                try:
                    return handler(context, params)
                except LookupError:
                    task = str(params.get("taskId"))[:100]
                    raise Fault(INVALID_PARAMS, f"no task {task!r}", {"taskId": task}) from None

            return handle

        return {
            "tasks/get": known(lambda context, params: tasks.get(context, _text(params, "taskId"))),
            "tasks/update": known(update),
            "tasks/cancel": known(cancel),
        }

    # Subscriptions

    def _listen(self, context: Context, params: dict[str, Any]) -> dict[str, Any]:
        resources = self._resources
        assert resources is not None  # noqa: S101
        wanted = params.get("notifications")
        if not isinstance(wanted, dict):
            raise Fault(INVALID_PARAMS, "notifications must be an object", status=400)
        if wanted.get("taskIds") and not context.has_extension(TASKS):
            raise missing_capability({"extensions": {TASKS: {}}})
        uris = [uri for uri in _texts(wanted, "resourceSubscriptions") if resources.is_watchable(uri)]
        tasks = [task for task in _texts(wanted, "taskIds") if self._is_task(context, task)]
        meta = {SUBSCRIPTION_KEY: context.request.id}

        def send(method: str, params: dict[str, Any]) -> None:
            context.emit(notification(method, {**params, "_meta": meta}))

        honored: dict[str, Any] = {}
        if uris:
            honored["resourceSubscriptions"] = uris
        if tasks:
            honored["taskIds"] = tasks
        resources.watch(
            context,
            uris,
            tasks,
            lambda uri: send("notifications/resources/updated", {"uri": uri}),
            lambda task: send("notifications/tasks", task),
            context.cancellation,
            lambda: send("notifications/subscriptions/acknowledged", {"notifications": honored}),
        )
        return {"_meta": dict(meta)}

    def _is_task(self, context: Context, task: str) -> bool:
        try:
            return self._tasks is not None and bool(self._tasks.get(context, task))
        except LookupError:
            return False

    def _subscribe(self, context: Context, params: dict[str, Any]) -> dict[str, Any]:
        """Subscribe a client of the handshake era, which is notified outside any request."""
        resources, connection = self._resources, context.connection
        uri = _text(params, "uri")
        if resources is None or context.spawn is None or not resources.is_watchable(uri):
            raise Fault(INVALID_PARAMS, f"no notifications of {uri[:200]!r}", {"uri": uri})
        if uri not in connection.watched:
            cancellation = connection.watched[uri] = Cancellation()

            def changed(uri: str) -> None:
                context.emit(notification("notifications/resources/updated", {"uri": uri}))

            def watch() -> None:
                resources.watch(context, [uri], [], changed, lambda task: None, cancellation, lambda: None)

            context.spawn(watch)
        return {}

    @staticmethod
    def _unsubscribe(context: Context, params: dict[str, Any]) -> dict[str, Any]:
        cancellation = context.connection.watched.pop(_text(params, "uri"), None)
        if cancellation is not None:
            cancellation.cancel()
        return {}


def error_content(problem: dict[str, Any]) -> dict[str, Any]:
    """Return the description of an error as the result of a tool."""
    return {"content": [{"type": "text", "text": encode({"error": problem}).decode()}], "isError": True}


def internal_error(error: BaseException, id: int | str | None = None) -> Fault:
    """Return the fault for an error that nothing else handles."""
    from agentbus.core.validation import error_text

    return Fault(INTERNAL_ERROR, f"internal error: {error_text(error)}", status=500, id=id)


def _name_of(client: object) -> str:
    name = client.get("name") if isinstance(client, dict) else None
    return name[:200] if isinstance(name, str) else ""


def _check_cursor(params: dict[str, Any]) -> None:
    """Refuse a cursor: every list has one page."""
    if params.get("cursor") is not None:
        raise Fault(INVALID_PARAMS, "unknown cursor: the list has one page")


def _text(params: dict[str, Any], name: str) -> str:
    found = params.get(name)
    if not isinstance(found, str) or not found:
        raise Fault(INVALID_PARAMS, f"{name} must be a string")
    return found


def _texts(wanted: dict[str, Any], name: str) -> list[str]:
    found = wanted.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise Fault(INVALID_PARAMS, f"{name} must be a list of strings", status=400)
    return list(dict.fromkeys(found))
