"""The HTTP endpoint of the MCP server: an ASGI application, to be mounted at ``/mcp``.

    Route("/mcp", MCPEndpoint(server.dispatcher, identify))

A call is answered on a thread, since it may wait. A client that closes its connection cancels its call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

import anyio
from anyio import CapacityLimiter, to_thread

from agentbus.mcp.dispatcher import Connection, Context, Dispatcher, Reply, internal_error
from agentbus.mcp.http import LOCAL_HOSTS, check_host, read_message
from agentbus.mcp.protocol import INVALID_REQUEST, MAX_BYTES, Fault, Request, encode
from agentbus.sync.bus import Interrupted

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Identify: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[Any]]

_JSON = "application/json"
_KEEP_ALIVE = 15.0
"""Seconds after which a stream without notifications sends a comment."""
_MAX_THREADS = 256
"""Calls that are answered at the same time."""


class MCPEndpoint:
    """The endpoint of one dispatcher.

    ``identify`` returns the identity of a request by its ASGI scope, or raises a fault (with ``status=401`` or 403).
    ``hosts`` are the names by which the server may be called; None: another layer checks that.

    >>> Mount("/", Starlette(routes=[Route("/mcp", MCPEndpoint(dispatcher, identify))]))  # doctest: +SKIP
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        identify: Identify,
        *,
        hosts: frozenset[str] | None = LOCAL_HOSTS,
        max_threads: int = _MAX_THREADS,
    ) -> None:
        self._dispatcher = dispatcher
        self._identify = identify
        self._hosts = hosts
        self._max_threads = max_threads
        self._limiter: CapacityLimiter | None = None

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if self._limiter is None:
            self._limiter = CapacityLimiter(self._max_threads)
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            if self._hosts is not None:
                check_host(headers, self._hosts)
            if scope["method"] != "POST":
                await _respond(send, 405, b"", {"allow": "POST"})
                return
            body = await _read_body(receive)
            identity = await self._identify(scope)
            message, connection = read_message(self._dispatcher, headers, body, identity)
            if isinstance(message, Request):
                await self._answer(message, connection, receive, send)
            else:
                # No notification has an effect: a connection that is closed cancels its call.
                await _respond(send, 202, b"")
        except Fault as fault:
            await _respond_with_fault(send, fault)

    async def _answer(self, request: Request, connection: Connection, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        notifications: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

        def emit(message: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(notifications.put_nowait, message)

        context = self._dispatcher.open(request, connection, emit)
        outcome: list[Reply | Fault] = []

        async def answer() -> None:
            outcome.extend(await to_thread.run_sync(self._call, context, limiter=self._limiter))
            notifications.put_nowait(None)

        async def watch_connection() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            context.cancellation.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(watch_connection)
            try:
                if self._dispatcher.may_notify(request):
                    group.start_soon(answer)
                    await _stream(context, notifications, outcome, send)
                else:
                    await answer()
                    await self._finish(context, outcome, send)
            finally:
                # Cancelled by a shutdown: the thread ends its wait.
                context.cancellation.cancel()
                group.cancel_scope.cancel()

    def _call(self, context: Context) -> list[Reply | Fault]:
        """Answer on a thread. Nothing is returned for a call that is cancelled."""
        try:
            return [self._dispatcher.answer(context)]
        except Interrupted:
            return []
        except Fault as fault:
            return [fault]
        except Exception as error:
            return [internal_error(error, context.request.id)]

    async def _finish(self, context: Context, outcome: list[Reply | Fault], send: Send) -> None:
        for found in outcome:
            if isinstance(found, Fault):
                await _respond_with_fault(send, found)
            else:
                await _deliver(found, context, lambda reply: _respond(send, 200, _body(context, reply)))


async def _deliver(reply: Reply, context: Context, write: Callable[[Reply], Awaitable[None]]) -> None:
    """Send a reply, and release what it took if the client is gone."""
    try:
        if context.cancellation.cancelled:
            raise Interrupted
        await write(reply)
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(_release, reply, error)
        if not isinstance(error, Interrupted):
            raise
    else:
        await to_thread.run_sync(_release, reply, None)


def _release(reply: Reply, error: BaseException | None) -> None:
    try:
        with reply:
            if error is not None:
                raise Interrupted from error
    except Interrupted:
        pass


async def _stream(
    context: Context,
    notifications: asyncio.Queue[dict[str, Any] | None],
    outcome: list[Reply | Fault],
    send: Send,
) -> None:
    """Send notifications as they come, then the result, as server-sent events. A fault that comes first is a plain
    response."""
    started = False
    while True:
        try:
            message = await asyncio.wait_for(notifications.get(), _KEEP_ALIVE)
        except TimeoutError:
            if started:
                await send({"type": "http.response.body", "body": b":\n\n", "more_body": True})
            continue
        if message is None:
            break
        if not started:
            started = True
            await _start_stream(send)
        await send({"type": "http.response.body", "body": _event(message), "more_body": True})
    found = outcome[0] if outcome else None
    if isinstance(found, Fault) and not started:
        await _respond_with_fault(send, found)
        return
    if not started:
        await _start_stream(send)
    if isinstance(found, Fault):
        await send({"type": "http.response.body", "body": _event(found.response()), "more_body": True})
    elif found is not None:
        response = Dispatcher.response(context.request, found)
        event = {"type": "http.response.body", "body": _event(response), "more_body": True}
        await _deliver(found, context, lambda reply: send(event))
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _start_stream(send: Send) -> None:
    headers = [
        (b"content-type", b"text/event-stream"), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"),
    ]  # fmt: skip
    await send({"type": "http.response.start", "status": 200, "headers": headers})


def _event(message: dict[str, Any]) -> bytes:
    return b"event: message\ndata: " + encode(message) + b"\n\n"


def _body(context: Context, reply: Reply) -> bytes:
    return encode(Dispatcher.response(context.request, reply))


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
