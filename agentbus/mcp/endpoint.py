"""The HTTP endpoint of the MCP server. ``agentbus serve`` has it at ``/mcp``; other ASGI applications can mount it.

    Route("/mcp", MCPEndpoint(server.dispatcher, identify))

A call is answered on a thread, since it may wait. A client that closes its connection cancels its call, and so does a
server that stops, or a client that is no longer valid.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, nullcontext
from typing import Any, TypeAlias

import anyio
from anyio import CapacityLimiter, to_thread
from anyio.abc import TaskGroup

from agentbus.errors import AgentBusError, BusClosed
from agentbus.mcp.dispatcher import Connection, Context, Dispatcher, Reply
from agentbus.mcp.errors import describe
from agentbus.mcp.http import LOCAL_HOSTS, check_host, read_message
from agentbus.mcp.protocol import INTERNAL_ERROR, INVALID_REQUEST, MAX_BYTES, Fault, Notification, Request, encode
from agentbus.sync.bus import Interrupted

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Identify: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[Any]]

log = logging.getLogger("agentbus.mcp")

_JSON = "application/json"
KEEP_ALIVE = 15.0
"""Seconds after which a stream without notifications sends a comment, and after which a client is checked again."""
SEND_TIMEOUT = 10.0
"""Seconds that a client may take to make room for the next notification."""
_MAX_QUEUED = 256
"""Notifications that wait for a client to read."""
_MAX_THREADS = 32
"""Calls that do not wait, answered at the same time."""
_MAX_WAITING = 256
"""Calls that wait, and subscriptions, at the same time."""


class HTTPClient:
    """The client of a request: its identity, and its limits.

    ``decider`` is the person whose decisions its answers are. A subclass may bound what it has open at the same time,
    and end what it has open.
    """

    def __init__(self, identity: Any, decider: str | None = None) -> None:
        self.identity = identity
        self.decider = decider

    def admit(self, *, listens: bool) -> AbstractContextManager[object]:
        """Count a call that waits, or a subscription, for the length of a block, or raise the error of one too many."""
        return nullcontext()

    async def is_valid(self) -> bool:
        """Return False once the client may do nothing any more."""
        return True


class MCPEndpoint:
    """The endpoint of one dispatcher.

    ``identify`` returns the identity of a request by its ASGI scope, or raises a fault (with ``status=401`` or 403).
    ``hosts`` are the names by which the server may be called; None: another layer checks that. ``stopping`` is set when
    the server stops.

    >>> Mount("/", Starlette(routes=[Route("/mcp", MCPEndpoint(dispatcher, identify))]))  # doctest: +SKIP
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        identify: Identify | None = None,
        *,
        hosts: frozenset[str] | None = LOCAL_HOSTS,
        stopping: asyncio.Event | None = None,
        max_waiting: int = _MAX_WAITING,
    ) -> None:
        self._dispatcher = dispatcher
        self._identify = identify
        self._hosts = hosts
        self._stopping = stopping
        self._max_waiting = max_waiting
        self._waiting = 0
        self._limiters: tuple[CapacityLimiter, CapacityLimiter] | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request as an application of its own."""
        headers = read_headers(scope)
        try:
            if self._hosts is not None:
                check_host(headers, self._hosts)
            if scope["method"] != "POST":
                await _respond(send, 405, b"", {"allow": "POST"})
                return
            body = await _read_body(receive)
            identity = None if self._identify is None else await self._identify(scope)
        except Fault as fault:
            await _respond_with_fault(send, fault)
            return
        await self.answer(headers, body, HTTPClient(identity), receive, send)

    async def answer(
        self, headers: Mapping[str, str], body: bytes, client: HTTPClient, receive: Receive, send: Send
    ) -> None:
        """Answer a request whose host, body and client were checked. Names of headers are in lower case."""
        try:
            message, connection = read_message(self._dispatcher, headers, body, client.identity, client.decider)
            if isinstance(message, list):
                await self._answer_batch(message, connection, client, receive, send)
            elif isinstance(message, Request):
                await self._answer(message, connection, client, receive, send)
            else:
                # Notifications have no effect here: closing the connection cancels a call.
                await _respond(send, 202, b"")
        except Fault as fault:
            await _respond_with_fault(send, fault)

    async def _answer(
        self, request: Request, connection: Connection, client: HTTPClient, receive: Receive, send: Send
    ) -> None:
        loop = asyncio.get_running_loop()
        notifications: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

        def emit(message: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(notify, message)

        def notify(message: dict[str, Any]) -> None:
            if notifications.qsize() < _MAX_QUEUED:
                notifications.put_nowait(message)
            else:
                # The client does not read: it must subscribe again, and read everything again.
                context.cancellation.cancel()

        context = self._dispatcher.open(request, connection, emit)
        waits = self._dispatcher.may_wait(request)
        calls = _Calls([context], waits, client, receive, self._stopping)

        async def answer() -> None:
            await self._run(calls)
            notifications.put_nowait(None)

        with self._admit(client, listens=request.method == "subscriptions/listen") if waits else nullcontext():
            async with calls.supervised() as group:
                if self._dispatcher.may_notify(request):
                    group.start_soon(answer)
                    await _stream(calls, notifications, send)
                else:
                    await self._run(calls)
                    await _deliver(calls, send, lambda responses: _respond(send, 200, encode(responses[0])))

    async def _answer_batch(
        self,
        messages: list[Request | Notification | Fault],
        connection: Connection,
        client: HTTPClient,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer the requests of a batch one after the other, by one list of responses."""
        faults = [one for one in messages if isinstance(one, Fault)]
        contexts: list[Context] = []
        for one in messages:
            if isinstance(one, Request):
                try:
                    contexts.append(self._dispatcher.open(one, connection))
                except Fault as fault:
                    faults.append(fault)
        refused = [fault.response() for fault in faults]
        if not contexts:
            await _respond(send, 200 if refused else 202, encode(refused) if refused else b"")
            return
        waits = any(self._dispatcher.may_wait(context.request) for context in contexts)
        calls = _Calls(contexts, waits, client, receive, self._stopping)
        with self._admit(client, listens=False) if waits else nullcontext():
            async with calls.supervised():
                await self._run(calls)
                calls.is_batch = True
                await _deliver(calls, send, lambda responses: _respond(send, 200, encode([*refused, *responses])))

    def _admit(self, client: HTTPClient, *, listens: bool) -> AbstractContextManager[object]:
        """Count a call that waits, or raise the fault of one too many."""
        if self._waiting >= self._max_waiting:
            raise Fault(INTERNAL_ERROR, f"{self._waiting} calls are waiting already: try again later", status=429)
        stack = ExitStack()
        try:
            stack.enter_context(client.admit(listens=listens))
        except AgentBusError as error:
            raise refusal(error) from None
        self._waiting += 1
        stack.callback(self._left)
        return stack

    def _left(self) -> None:
        self._waiting -= 1

    async def _run(self, calls: _Calls) -> None:
        """Answer requests on a thread, one after the other, up to one that is cancelled."""
        if self._limiters is None:
            # Waiting calls must not take the threads of the others.
            self._limiters = CapacityLimiter(_MAX_THREADS), CapacityLimiter(self._max_waiting)
        await to_thread.run_sync(self._call, calls, limiter=self._limiters[calls.waits])

    def _call(self, calls: _Calls) -> None:
        for context in calls.contexts:
            try:
                calls.outcome.append(self._dispatcher.answer(context))
            except Interrupted:
                break
            except Fault as fault:
                calls.outcome.append(fault)
            except Exception:
                # As in the HTTP API, the log has the details, the response only their number.
                number = secrets.token_hex(4)
                log.exception("unexpected error %s in %s", number, context.request.method[:100])
                text = f"unexpected error {number}"
                calls.outcome.append(Fault(INTERNAL_ERROR, text, status=500, id=context.request.id))


class _Calls:
    """The requests of one HTTP request, what became of them, and what cancels them."""

    def __init__(
        self,
        contexts: list[Context],
        waits: bool,
        client: HTTPClient,
        receive: Receive,
        stopping: asyncio.Event | None,
    ) -> None:
        self.contexts = contexts
        self.waits = waits
        self.outcome: list[Reply | Fault] = []
        """One for each request, unless they are cancelled."""
        self.refusal: Fault | None = None
        """The response to a client that is still there, where its requests are cancelled."""
        self.is_batch = False
        self._client = client
        self._receive = receive
        self._stopping = stopping

    @property
    def cancelled(self) -> bool:
        return len(self.outcome) < len(self.contexts) or any(one.cancellation.cancelled for one in self.contexts)

    @asynccontextmanager
    async def supervised(self) -> AsyncIterator[TaskGroup]:
        """Cancel the calls when their client leaves or is no longer valid, or the server stops, in a block."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch_connection)
            if self.waits:
                group.start_soon(self._watch_client)
                group.start_soon(self._watch_server)
            try:
                yield group
            finally:
                # Also by a shutdown: the thread ends its wait.
                self._cancel(None)
                group.cancel_scope.cancel()

    def _cancel(self, refusal: Fault | None) -> None:
        if refusal is not None:
            refusal.id = self.contexts[0].request.id
        self.refusal = refusal
        for context in self.contexts:
            context.cancellation.cancel()

    async def _watch_connection(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._cancel(None)

    async def _watch_client(self) -> None:
        while True:
            await asyncio.sleep(KEEP_ALIVE)
            if not await self._client.is_valid():
                break
        self._cancel(Fault(INVALID_REQUEST, "the token was revoked, or has expired", status=401))

    async def _watch_server(self) -> None:
        if self._stopping is not None:
            await self._stopping.wait()
            self._cancel(refusal(BusClosed()))


async def _deliver(
    calls: _Calls, send: Send, write: Callable[[list[dict[str, Any]]], Awaitable[None]], *, started: bool = False
) -> None:
    """Send the responses, and release what the calls took if the client does not get them."""
    taken = ExitStack()
    responses: list[dict[str, Any]] = []
    for context, found in zip(calls.contexts, calls.outcome, strict=False):
        if isinstance(found, Fault):
            responses.append(found.response())
        else:
            taken.push(found)
            responses.append(Dispatcher.response(context.request, found))
    try:
        if calls.cancelled:
            raise Interrupted
        (first, *_) = calls.outcome
        if isinstance(first, Fault) and not calls.is_batch and not started:
            await _respond_with_fault(send, first)
        else:
            await write(responses)
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(_release, taken, error)
        if not isinstance(error, Interrupted):
            raise
        if calls.refusal is not None and not started:
            await _respond_with_fault(send, calls.refusal)
    else:
        await to_thread.run_sync(_release, taken, None)


def _release(taken: ExitStack, error: BaseException | None) -> None:
    try:
        with taken:
            if error is not None:
                raise Interrupted from error
    except Interrupted:
        pass


async def _stream(calls: _Calls, notifications: asyncio.Queue[dict[str, Any] | None], send: Send) -> None:
    """Send notifications as they come, then the result, as server-sent events. A fault that comes first is a plain
    response."""
    started = False

    async def write(body: bytes, *, more: bool = True) -> None:
        nonlocal started
        # Nothing is buffered for a client that does not read.
        async with asyncio.timeout(SEND_TIMEOUT):
            if not started:
                started = True
                await _start_stream(send)
            await send({"type": "http.response.body", "body": body, "more_body": more})

    try:
        while True:
            try:
                message = await asyncio.wait_for(notifications.get(), KEEP_ALIVE)
            except TimeoutError:
                if started:
                    await write(b":\n\n")
                continue
            if message is None:
                break
            await write(_event(message))
        await _deliver(calls, send, lambda responses: write(_event(responses[0])), started=started)
        if started:
            await write(b"", more=False)
    except TimeoutError:
        _abort(send)


def _abort(send: Send) -> None:
    """Close a connection at once: closing it properly would wait until the client reads."""
    transport = getattr(getattr(send, "__self__", None), "transport", None)
    if transport is not None:
        transport.abort()


async def _start_stream(send: Send) -> None:
    headers = [
        (b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": 200, "headers": headers})


def _event(message: dict[str, Any]) -> bytes:
    return b"event: message\ndata: " + encode(message) + b"\n\n"


def refusal(error: AgentBusError) -> Fault:
    """Return the fault of a request that is refused by an error of the bus or of the server."""
    from agentbus.api.problems import http_status

    problem = describe(error)
    return Fault(INTERNAL_ERROR, problem["message"], problem, status=http_status(error))


def read_headers(scope: MutableMapping[str, Any]) -> dict[str, str]:
    """Return the headers of a request, with their names in lower case."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}


async def _read_body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Fault(INVALID_REQUEST, "the client closed the connection", status=400)
        body += message.get("body", b"")
        if len(body) > MAX_BYTES:
            raise Fault(
                INVALID_REQUEST, f"a message of more than {MAX_BYTES // 1024**2} MiB is not accepted", status=413
            )
        if not message.get("more_body"):
            return bytes(body)


async def _respond_with_fault(send: Send, fault: Fault) -> None:
    await _respond(send, fault.status, encode(fault.response()))


async def _respond(send: Send, status: int, body: bytes, more: dict[str, str] | None = None) -> None:
    headers = [(b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store")]
    if body:
        headers.append((b"content-type", _JSON.encode()))
    headers += [(name.encode(), value.encode()) for name, value in (more or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
