"""Errors of the HTTP interface itself; each knows its status. All others get theirs from ``api.problems``."""

from __future__ import annotations

from typing import ClassVar

from agentbus.errors import AgentBusError, InvalidInput


class RequestRefused(AgentBusError):
    """The request was refused before it reached the bus."""

    code = "request_refused"
    http_status: ClassVar[int] = 400


class MalformedRequest(RequestRefused):
    """The request is not HTTP, or its body is not JSON."""

    code = "malformed_request"
    text = "malformed request: {reason}"
    fix_text = "{advice}"


class InvalidRequest(InvalidInput):
    """The request is well formed, but a parameter or a field of its body is missing, unknown or of a wrong type."""

    code = "invalid_request"
    text = "invalid request: {reason}"
    fix_text = "the OpenAPI document describes the request: GET /api/v1/openapi.json"
    http_status: ClassVar[int] = 422


class Unauthorized(RequestRefused):
    """The request names no token, or one that is unknown, revoked or expired."""

    code = "unauthorized"
    text = "unauthorized: {reason}"
    fix_text = "send Authorization: Bearer TOKEN; agentbus token create makes one, agentbus serve prints a login URL"
    http_status = 401


class Forbidden(RequestRefused):
    """The role of the token does not permit the request."""

    code = "forbidden"
    text = "forbidden: {reason}"
    fix_text = "use a token whose role permits it: agentbus token create ROLE, where ROLE is operate or agent:ID"
    http_status = 403


class ReadOnlyServer(RequestRefused):
    """The server was started with --read-only."""

    code = "read_only_server"
    text = "this server is read-only"
    fix_text = "use a server without --read-only"
    http_status = 403


class ForeignRequest(RequestRefused):
    """The request comes from another site, or names another host: a page in a browser must not reach the bus."""

    code = "foreign_request"
    text = "{what} {value!r} is not allowed"
    fix_text = "open the URL that agentbus serve prints; behind a proxy, start it with --allowed-host NAME"
    http_status = 403


class HeaderRequired(RequestRefused):
    """A change by a browser's cookie lacks the header that a form cannot set."""

    code = "header_required"
    text = "a change needs the header {header}"
    fix_text = "send {header}: 1"
    http_status = 403


class NoSuchRoute(RequestRefused):
    """No route has this path."""

    code = "no_such_route"
    text = "no route {path}"
    fix_text = "GET /api/v1/openapi.json lists the routes"
    http_status = 404


class NothingFound(RequestRefused):
    """The route exists, and what it names does not."""

    code = "nothing_found"
    text = "no {what}"
    http_status = 404


class MethodNotAllowed(RequestRefused):
    """The path has no route with this method."""

    code = "method_not_allowed"
    text = "{method} is not allowed for {path}"
    fix_text = "use one of {allowed}"
    http_status = 405


class RequestTimeout(RequestRefused):
    """The client did not send its request in time."""

    code = "request_timeout"
    text = "the request was not complete within {seconds:g} s"
    http_status = 408


class RequestTooLarge(RequestRefused):
    """The body of the request exceeds the limit of the route."""

    code = "request_too_large"
    text = "the body has more than {limit} bytes"
    http_status = 413


class UnsupportedMediaType(RequestRefused):
    """The body of the request is not JSON."""

    code = "unsupported_media_type"
    text = "the body is {found!r}, not application/json"
    fix_text = "send Content-Type: application/json"
    http_status = 415


class TooManyStreams(RequestRefused):
    """The token has as many open streams as it may."""

    code = "too_many_streams"
    text = "this token has {open} open streams"
    fix_text = "close one of them; hidden tabs close theirs"
    http_status = 429


class TooManyCalls(RequestRefused):
    """The token has as many waiting calls as it may."""

    code = "too_many_calls"
    text = "this token has {open} waiting calls"
    fix_text = "call again when one of them has returned"
    http_status = 429


class UnexpectedError(AgentBusError):
    """An error of the server that has no name. The log has its traceback."""

    code = "unexpected"
    text = "unexpected error {number}"
    fix_text = "the log of agentbus serve has the traceback under this number; please report it"
    http_status: ClassVar[int] = 500
