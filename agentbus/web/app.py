"""The ASGI application: checks of every request, dispatch to its handler, and the response."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, get_args, get_origin
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from agentbus import core
from agentbus.api.problems import describe_for_http, retry_after
from agentbus.errors import AgentBusError
from agentbus.web.access import Access, Permission, Principal, authorize
from agentbus.web.call import Call, Created
from agentbus.web.errors import (
    ForeignRequest,
    HeaderRequired,
    InvalidRequest,
    MalformedRequest,
    MethodNotAllowed,
    NoSuchRoute,
    RequestTimeout,
    RequestTooLarge,
    TooManyStreams,
    Unauthorized,
    UnexpectedError,
    UnsupportedMediaType,
)
from agentbus.web.etags import etag_of, matches
from agentbus.web.files import StaticFiles
from agentbus.web.live import LiveHub
from agentbus.web.mcp import MCP
from agentbus.web.mcp import PATH as MCP_PATH
from agentbus.web.openapi import STYLE, document, page
from agentbus.web.rates import RateRing
from agentbus.web.routes import ALONE, METRICS, PREFIX, ROUTES, Route, Table
from agentbus.web.shared import SharedReads
from agentbus.web.streams import Events, EventStream

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from agentbus import Bus
    from agentbus.core import NoSpan
    from agentbus.core.trace_context import Span

log = logging.getLogger("agentbus.web")

JSON = "application/json"
HEADER = "X-Agentbus"
"""The header that a change by a browser must have: a form of another site cannot set it."""
BODY_TIMEOUT = 30.0
"""Seconds in which the body of a request must arrive."""
MAX_HEADERS = 32 * 1024
"""Bytes of the headers of a request, and of its path."""
MAX_STREAMS = 32
"""Streams that one token may have open."""
_MAX_PARAMETERS = 100
_SLACK = 64 * 1024
"""Bytes of a body beside the payload or the snapshot in it."""
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:@/]+))(?::[0-9]{0,5})?")
"""An address in brackets or a name, and a port."""
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


_SECURITY = [(name.lower().encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]


class Application:
    """The HTTP API and the dashboard of one bus."""

    def __init__(
        self,
        bus: Bus,
        bus_id: str,
        access: Access,
        *,
        location: str = "",
        read_only: bool = False,
        base_path: str = "",
        hosts: frozenset[str] = LOOPBACK,
        any_address: bool = False,
        max_streams: int = MAX_STREAMS,
        mcp_decisions: bool = False,
        prime: Callable[[], str] | None = None,
    ) -> None:
        self.bus = bus
        self.bus_id = bus_id
        self.access = access
        self.location = location
        self.read_only = read_only
        self.base_path = base_path
        self.started = bus._engine.clock.now().wall
        self.openapi = document(base_path)
        self.api_page = page(self.openapi)
        self.stopping = asyncio.Event()
        """Set when the server stops: streams end."""
        self.streams: Counter[str] = Counter()
        """Open streams by token."""
        self.live = LiveHub(bus)
        self.rates = RateRing(bus)
        self.shared = SharedReads()
        self.max_streams = max_streams
        self.mcp = MCP(self, decisions=mcp_decisions, prime=prime)
        self._hosts = hosts
        self._any_address = any_address
        self._table = Table(ROUTES)
        self._files = StaticFiles()
        self._decoders: dict[Route, msgspec.json.Decoder[Any]] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        request = Request(scope, receive)
        try:
            response = await self._respond(request)
        except ClientDisconnect:
            return
        except AgentBusError as error:
            response = problem(error)
        except Exception:
            number = secrets.token_hex(4)
            log.exception("unexpected error %s in %s %s", number, scope["method"], _route_name(scope))
            response = problem(UnexpectedError(number=number))
        response.raw_headers.extend(_SECURITY)
        if not any(name == b"cache-control" for name, _ in response.raw_headers):
            response.raw_headers.append((b"cache-control", b"no-store"))
        if scope["method"] == "HEAD" and not isinstance(response, EventStream):
            response.body = b""
        with suppress(ClientDisconnect):
            await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        _check_size(request)
        self._check_origin(request)
        path = self._raw_path(request)
        method = "GET" if request.method == "HEAD" else request.method
        if path.startswith(f"{PREFIX}/"):
            return await self._call_api(request, method, path.removeprefix(f"{PREFIX}/"))
        if path == METRICS:
            return await self._call_api(request, method, METRICS.removeprefix("/"))
        if path == MCP_PATH:
            return await self._call_mcp(request)
        if method != "GET":
            raise MethodNotAllowed(method=request.method, path=path[:200], allowed="GET, HEAD")
        if path == "":
            return RedirectResponse(f"{self.base_path}/")
        if path in {"/api", "/api/"}:
            return Response(self.api_page, media_type="text/html")
        if path == "/api/style.css":
            return Response(STYLE, media_type="text/css")
        found = self._files.find(path, request.headers)
        if found is None and path == "/":
            return RedirectResponse(f"{self.base_path}/api")
        if found is None:
            raise NoSuchRoute(path=path[:200])
        return found

    # Checks of every request

    def _check_origin(self, request: Request) -> None:
        """Refuse requests for another host (DNS rebinding) and from another site."""
        host = request.headers.get("host", "")
        name = _host_name(host)
        if not (name in self._hosts or (self._any_address and _is_address(name))):
            raise ForeignRequest(what="the host", value=host[:200])
        origin = request.headers.get("origin")
        if origin is not None and not _is_same_site(origin, host, self._hosts):
            raise ForeignRequest(what="the origin", value=origin[:200])
        site = request.headers.get("sec-fetch-site")
        if site in {"cross-site", "same-site"} and request.headers.get("sec-fetch-mode") != "navigate":
            raise ForeignRequest(what="a request from another site", value=site)

    def _raw_path(self, request: Request) -> str:
        """Return the path below the base path, as it was sent."""
        path: str = request.scope.get("raw_path", b"").decode("ascii", "replace")
        if self.base_path and (path == self.base_path or path.startswith(f"{self.base_path}/")):
            path = path.removeprefix(self.base_path)
        return path

    async def _identify(self, request: Request) -> tuple[Principal | None, bool]:
        """Return the caller, and whether a cookie names it."""
        given = request.headers.get("authorization")
        if given is not None:
            scheme, _, secret = given.partition(" ")
            if scheme.lower() != "bearer" or not secret.strip():
                raise Unauthorized(reason="the Authorization header is not Bearer TOKEN")
            return await self.access.identify(secret.strip(), None), False
        cookie = request.cookies.get(self.access.cookie)
        return await self.access.identify(None, cookie), cookie is not None

    # The API

    async def _call_api(self, request: Request, method: str, path: str) -> Response:
        segments = tuple(_unquote(segment) for segment in path.split("/"))
        routes = self._table.matches(segments)
        if not routes:
            raise NoSuchRoute(path=f"{PREFIX}/{path}"[:200])
        route = next((route for route in routes if route.method == method), None)
        if route is None:
            allowed = sorted(
                {one.method for one in routes} | ({"HEAD"} if any(not r.changes for r in routes) else set())
            )
            raise MethodNotAllowed(method=request.method, path=f"{PREFIX}/{path}"[:200], allowed=", ".join(allowed))
        parameters = _parameters(request)
        names, numbers = _path_values(route, segments, parameters)
        caller: Principal | None = None
        if route.permission is not Permission.PUBLIC:
            caller, by_cookie = await self._identify(request)
            authorize(route.permission, caller, names.get("agent"), read_only=self.read_only)
            if route.changes and by_cookie and HEADER not in request.headers:
                raise HeaderRequired(header=HEADER)
        elif route.changes and HEADER not in request.headers:
            # A form of another site must not log a browser in or out.
            raise HeaderRequired(header=HEADER)
        call = Call(self, request, caller, names, numbers)
        arguments: dict[str, Any] = {}
        if route.query is not None:
            arguments["query"] = _query(route.query, parameters)
        elif parameters:
            raise InvalidRequest(reason=f"unknown parameter {next(iter(parameters))[:100]!r}")
        if route.body is not None:
            arguments["body"] = await self._body(request, route)
        elif route.changes:
            await self._refuse_body(request)
        if route.streams and request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if route.streams:
            return await self._open_stream(route, call, arguments)
        if route.shared:

            async def read() -> bytes:
                return msgspec.json.encode(await route.handler(call, **arguments))

            key = (route, path, request.scope.get("query_string", b""))
            return _read_answer(request, await self.shared.read(key, read))
        with _span(request, route):
            result = await self._run(route, call, arguments)
        response = self._answer(request, route, result)
        response.background = None if call.when_delivered is None else BackgroundTask(call.when_delivered)
        return response

    async def _run(self, route: Route, call: Call, arguments: dict[str, Any]) -> Any:
        """Run a handler. One that may wait is cancelled if its client leaves."""
        if not route.waits:
            return await route.handler(call, **arguments)
        gone = asyncio.ensure_future(_await_disconnect(call.request.receive))
        work = asyncio.ensure_future(route.handler(call, **arguments))
        stop = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait({gone, work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                work.cancel()
            with suppress(asyncio.CancelledError):
                result = await work
                if gone.done() and call.when_abandoned is not None:
                    call.when_abandoned()
                return result
            if gone.done():
                raise ClientDisconnect
            from agentbus.errors import BusClosed

            raise BusClosed
        finally:
            for task in (gone, work, stop):
                task.cancel()

    async def _call_mcp(self, request: Request) -> Response:
        """Answer a message of the Model Context Protocol. A browser's cookie does not identify a client here."""
        if request.method != "POST":
            raise MethodNotAllowed(method=request.method, path=MCP_PATH, allowed="POST")
        if "authorization" not in request.headers:
            raise Unauthorized(reason="no token")
        caller, _ = await self._identify(request)
        if caller is None:
            raise Unauthorized(reason="no token")
        body = await _read_body(request, max(self.bus._max_snapshot, self.bus._max_payload) + _SLACK)
        return self.mcp.respond(request.headers, body, caller)

    async def _open_stream(self, route: Route, call: Call, arguments: dict[str, Any]) -> Response:
        token = call.caller.token
        if self.streams[token] >= self.max_streams:
            raise TooManyStreams(open=self.streams[token])
        # Before the handler waits: streams that are opened at the same time count too.
        self.streams[token] += 1

        def close() -> None:
            self.streams[token] -= 1

        try:
            found: Events = await route.handler(call, **arguments)
        except BaseException:
            close()
            raise

        async def is_valid() -> bool:
            return await self.access.is_valid(call.caller)

        return EventStream(found.source, stopping=self.stopping, is_valid=is_valid, on_close=close)

    def _answer(self, request: Request, route: Route, result: Any) -> Response:
        if isinstance(result, Response):
            return result
        status = 200
        if isinstance(result, Created):
            result, status = result.value, 201
        content = msgspec.json.encode(result)
        return Response(content, status, media_type=JSON) if route.changes else _read_answer(request, content)

    async def _body(self, request: Request, route: Route) -> Any:
        """Return the decoded body."""
        size = self.bus._max_snapshot if route.large else self.bus._max_payload
        content = await _read_body(request, size + _SLACK)
        may_be_empty = not content and route.body_is_optional
        _check_type(request, may_be_missing=may_be_empty)
        if may_be_empty:
            content = b"{}"
        if route not in self._decoders:
            assert route.body is not None  # noqa: S101 - the caller has checked it
            self._decoders[route] = msgspec.json.Decoder(route.body)
        try:
            return self._decoders[route].decode(content)
        except msgspec.ValidationError as error:
            raise InvalidRequest(reason=str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MalformedRequest(
                reason=f"the body is not JSON: {error}", advice="send one JSON value in UTF-8"
            ) from None
        except RecursionError:
            raise MalformedRequest(
                reason="the body is nested too deep", advice="send the inner part as a string"
            ) from None

    @staticmethod
    async def _refuse_body(request: Request) -> None:
        """Refuse what a route without a body would ignore, but for an empty object."""
        content = (await _read_body(request, _SLACK)).strip()
        _check_type(request, may_be_missing=not content)
        if content not in {b"", b"{}"}:
            raise InvalidRequest(reason="this request has no body")

    @staticmethod
    def last_event_id(request: Request) -> int | None:
        """Return the number in the header Last-Event-ID, with which a browser resumes a stream."""
        from agentbus.web.handlers.events import event_number

        given = request.headers.get("last-event-id")
        return None if not given else event_number(given)


def _span(request: Request, route: Route) -> NoSpan | Span:
    """Return the span of a request, which continues the trace that its headers name."""
    if core.tracer is None and "traceparent" in request.headers:
        from agentbus.core.trace_context import propagate, trace_of

        propagate(trace_of(request.headers))
    if core.tracer is None:
        return core.NO_SPAN
    return core.tracer.serve(route.method, f"{PREFIX}{route.path}", request.headers)


def _read_answer(request: Request, content: bytes) -> Response:
    """Return the response to a read: the content, or that the client has it."""
    tag = etag_of(content)
    known = matches(tag, request.headers.get("if-none-match"))
    response = Response(status_code=304) if known else Response(content, media_type=JSON)
    response.headers["ETag"] = tag
    response.headers["Cache-Control"] = "private, no-cache"
    response.headers["Vary"] = "Authorization, Cookie"
    return response


def problem(error: AgentBusError) -> Response:
    """Return the response of an error."""
    described = describe_for_http(error)
    response = Response(msgspec.json.encode(described), described.status, media_type="application/problem+json")
    response.headers["Cache-Control"] = "no-store"
    wait = retry_after(error)
    if wait is not None:
        response.headers["Retry-After"] = str(wait)
    if described.status == 401:
        response.headers["WWW-Authenticate"] = 'Bearer realm="agentbus"'
    if isinstance(error, MethodNotAllowed):
        response.headers["Allow"] = error.allowed
    if isinstance(error, RequestTooLarge | RequestTimeout):
        # The rest of the body is not read.
        response.headers["Connection"] = "close"
    return response


def _check_size(request: Request) -> None:
    """Refuse long headers: uvicorn limits only those that arrive in parts."""
    scope = request.scope
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    if size > MAX_HEADERS or len(scope.get("raw_path", b"")) + len(scope.get("query_string", b"")) > MAX_HEADERS:
        reason = f"its path or its headers have more than {MAX_HEADERS} bytes"
        raise MalformedRequest(reason=reason, advice="shorten them; large values belong in the body")


async def _read_body(request: Request, limit: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limit:
        raise RequestTooLarge(limit=limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise RequestTooLarge(limit=limit)
                chunks.append(chunk)
    except TimeoutError:
        raise RequestTimeout(seconds=BODY_TIMEOUT) from None
    return b"".join(chunks)


def _check_type(request: Request, *, may_be_missing: bool) -> None:
    """Refuse a body that is not JSON: a form of another site cannot send JSON."""
    given = request.headers.get("content-type")
    if given is None and may_be_missing:
        return
    kind = (given or "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise UnsupportedMediaType(found=kind[:100])


def _parameters(request: Request) -> dict[str, list[str]]:
    """Return the query parameters by name."""
    raw = request.scope.get("query_string", b"")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=_MAX_PARAMETERS)
    except (UnicodeDecodeError, ValueError):
        advice = f"percent-encode it as UTF-8, with at most {_MAX_PARAMETERS} parameters"
        raise MalformedRequest(
            reason="the query is not valid UTF-8, or has too many parameters", advice=advice
        ) from None
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _path_values(
    route: Route, segments: tuple[str, ...], parameters: dict[str, list[str]]
) -> tuple[dict[str, str], dict[str, int]]:
    """Return the names and the numbers in a path. A segment ``~`` stands for the parameter of its name, or ``id``."""
    names: dict[str, str] = {}
    numbers: dict[str, int] = {}
    first = True
    for own, given in zip(route.segments, segments, strict=True):
        if not own.startswith("{"):
            continue
        name, _, kind = own[1:-1].partition(":")
        value = given
        if given == ALONE:
            named = name if name in parameters else "id" if first and "id" in parameters else name
            values = parameters.pop(named, [])
            if len(values) != 1:
                raise InvalidRequest(reason=f"the path has ~ for {name!r}: give it once in the query, as ?{name}=…")
            value = values[0]
        first = False
        if kind == "int":
            if not (value.isascii() and value.isdigit() and len(value) <= 18):
                raise InvalidRequest(reason=f"{name} is {value[:40]!r}, must be a number")
            numbers[name] = int(value)
        else:
            names[name] = value
    return names, numbers


def _query(kind: type[msgspec.Struct], parameters: dict[str, list[str]]) -> Any:
    """Return the query parameters as a Struct."""
    fields = _fields(kind)
    values: dict[str, Any] = {}
    for name, given in parameters.items():
        if name not in fields:
            raise InvalidRequest(reason=f"unknown parameter {name[:100]!r}; there are {', '.join(fields) or 'none'}")
        if fields[name]:
            values[name] = [part for one in given for part in one.split(",")]
        elif len(given) > 1:
            raise InvalidRequest(reason=f"parameter {name!r} is given twice")
        else:
            values[name] = given[0]
    try:
        return msgspec.convert(values, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(reason=str(error)) from None


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, bool]:
    """Return the parameters of a query; True for a list."""
    return {field.name: _is_list(field.type) for field in msgspec.structs.fields(kind)}


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is list or any(get_origin(one) is list for one in get_args(kind))


def _unquote(segment: str) -> str:
    """Return a decoded segment of a path."""
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeDecodeError:
        raise MalformedRequest(reason="the path is not UTF-8", advice="percent-encode it as UTF-8") from None


def _host_name(host: str) -> str:
    """Return the name in a Host header, without the port; empty if the header is malformed.

    >>> _host_name("localhost:8637"), _host_name("[::1]:8637"), _host_name("Example.org")
    ('localhost', '::1', 'example.org')
    >>> _host_name("[::1]evil.example"), _host_name("localhost:evil"), _host_name("[::1")
    ('', '', '')
    """
    found = _HOST.fullmatch(host)
    return "" if found is None else (found[1] or found[2]).lower()


def _is_address(name: str) -> bool:
    """Return True for an IP address: a page of another site cannot make a browser send one that is not its own."""
    from ipaddress import ip_address

    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_same_site(origin: str, host: str, hosts: frozenset[str]) -> bool:
    """Return True for an origin that is this server: the host of the request, or one that a proxy has for it.

    >>> _is_same_site("http://localhost:8637", "localhost:8637", frozenset({"localhost"}))
    True
    >>> _is_same_site("http://localhost:3000", "localhost:8637", frozenset({"localhost"}))
    False
    """
    scheme, mark, rest = origin.partition("://")
    if not mark or scheme not in {"http", "https"} or "/" in rest:
        return False
    if rest.lower() == host.lower():
        return True
    name = _host_name(rest)
    # Behind a proxy the Host header may be that of the server; its own name was allowed.
    return name in hosts - LOOPBACK and name not in LOOPBACK


async def _await_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _route_name(scope: Scope) -> str:
    """Return the path of a request without names, for the log."""
    return "/".join(str(scope.get("path", "")).split("/")[:4])[:100]
