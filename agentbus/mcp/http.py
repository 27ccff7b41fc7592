"""The Streamable HTTP transport without a web framework: check the headers of a request, and find the status of its
answer. ``endpoint`` serves it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from agentbus.mcp.dispatcher import Connection, Dispatcher
from agentbus.mcp.protocol import (
    BATCHES,
    HEADER_MISMATCH,
    INVALID_REQUEST,
    MAX_BYTES,
    VERSION_KEY,
    VERSIONS,
    Fault,
    Notification,
    Request,
    decode,
)

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_BASE64 = re.compile(r"=\?base64\?(.*)\?=", re.DOTALL)
_VISIBLE = re.compile(r"[\t\x20-\x7e]*")
_VERSION = "mcp-protocol-version"


def check_host(headers: Mapping[str, str], hosts: frozenset[str]) -> None:
    """Refuse a request by way of another host name or from a page of another site: a browser may have been led here."""
    host = _hostname(f"//{headers.get('host', '')}")
    if host not in hosts:
        raise Fault(INVALID_REQUEST, f"host {host[:100]!r} is not served here", status=403)
    origin = headers.get("origin")
    if origin is not None and _hostname(origin) not in hosts:
        raise Fault(INVALID_REQUEST, f"origin {origin[:100]!r} is not allowed", status=403)


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def check_headers(headers: Mapping[str, str], size: int) -> None:
    """Check what does not depend on the message. Names of headers are in lower case."""
    if size > MAX_BYTES:
        raise Fault(INVALID_REQUEST, f"a message of more than {MAX_BYTES // 1024**2} MiB is not accepted", status=413)
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Fault(INVALID_REQUEST, "the body must be application/json", status=415)
    accepted = {one.partition(";")[0].strip().lower() for one in headers.get("accept", "").split(",")}
    if "*/*" not in accepted and not {"application/json", "text/event-stream"} <= accepted:
        raise Fault(INVALID_REQUEST, "accept must list application/json and text/event-stream", status=406)


def read_message(
    dispatcher: Dispatcher, headers: Mapping[str, str], body: bytes, identity: Any, decider: str | None = None
) -> tuple[Request | Notification | list[Request | Notification | Fault] | None, Connection]:
    """Return the message of a request, whose headers repeat parts of it, and its connection. Raises a fault with the
    status of the response."""
    check_headers(headers, len(body))
    header = headers.get(_VERSION)
    # Clients of that revision send no header.
    message = decode(body, batches=header in {None, BATCHES})
    connection = Connection(identity, header=header, remembers=False, decider=decider)
    if isinstance(message, list):
        return [_checked(dispatcher, one, headers, header) for one in message], connection
    if isinstance(message, Request):
        found = _checked(dispatcher, message, headers, header)
        if isinstance(found, Fault):
            raise found
    return message, connection


def _checked(
    dispatcher: Dispatcher, message: Request | Notification | Fault, headers: Mapping[str, str], header: str | None
) -> Request | Notification | Fault:
    """Return a message, or the fault of one that its headers contradict."""
    if isinstance(message, Request):
        try:
            _check_repeated(dispatcher, message, headers, header)
        except Fault as fault:
            fault.id = message.id
            return fault
    return message


def _check_repeated(dispatcher: Dispatcher, request: Request, headers: Mapping[str, str], header: str | None) -> None:
    """Check that the headers of a request without a handshake say the same as its body."""
    version = request.meta.get(VERSION_KEY)
    if version is None:
        if header is not None and header not in VERSIONS:
            raise Fault(INVALID_REQUEST, f"unsupported protocol version {header[:40]!r}", status=400)
        return
    if header != version:
        raise _mismatch("MCP-Protocol-Version", header, version)
    if version not in VERSIONS:
        # The dispatcher says which ones there are.
        return
    method = headers.get("mcp-method")
    if method is None or method.strip() != request.method:
        raise _mismatch("Mcp-Method", method, request.method)
    name = request.name
    if name is not None:
        given = headers.get("mcp-name")
        if given is None or _decoded("Mcp-Name", given) != name:
            raise _mismatch("Mcp-Name", given, name)
    if request.method == "tools/call" and name is not None:
        arguments = request.params.get("arguments")
        schema = dispatcher.tool_schema(name)
        if isinstance(arguments, dict) and schema is not None:
            for parameter, value in _repeated_arguments(schema, arguments):
                _check_parameter(parameter, headers.get(f"mcp-param-{parameter.lower()}"), value)


def _repeated_arguments(schema: Any, arguments: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names of headers that a schema demands, and the values of the arguments."""
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not isinstance(arguments, dict):
        return
    for name, inner in properties.items():
        if not isinstance(inner, dict):
            continue
        value = arguments.get(name)
        if "x-mcp-header" in inner:
            yield str(inner["x-mcp-header"]), value
        else:
            yield from _repeated_arguments(inner, value)


def _check_parameter(parameter: str, given: str | None, value: Any) -> None:
    name = f"Mcp-Param-{parameter}"
    if value is None:
        if given is not None:
            raise _mismatch(name, given, None)
        return
    if given is None:
        raise _mismatch(name, None, value)
    text = _decoded(name, given)
    if isinstance(value, bool) or not isinstance(value, int | float):
        wanted = str(value).lower() if isinstance(value, bool) else str(value)
        same = text == wanted
    else:
        try:
            same = float(text) == value
        except ValueError:
            same = False
    if not same:
        raise _mismatch(name, given, value)


def _decoded(name: str, text: str) -> str:
    """Return the value of a header, which is in Base64 if it is not printable ASCII."""
    text = text.strip(" \t")
    found = _BASE64.fullmatch(text)
    if found is None:
        if not _VISIBLE.fullmatch(text):
            raise Fault(HEADER_MISMATCH, f"{name} contains invalid characters", status=400)
        return text
    import binascii
    from base64 import b64decode

    try:
        return b64decode(found[1], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        raise Fault(HEADER_MISMATCH, f"{name} is not valid Base64", status=400) from None


def _mismatch(name: str, given: object, wanted: object) -> Fault:
    shown = "is missing" if given is None else f"is {str(given)[:100]!r}"
    text = str(wanted)
    message = f"header mismatch: {name} {shown}, the body has {text[:100]!r}"
    if wanted is None:
        fix = f"leave out the header {name}"
    elif _VISIBLE.fullmatch(text):
        fix = f"repeat the value of the body in the header {name}" + (f": {text}" if len(text) <= 100 else "")
    else:
        fix = f"repeat the value of the body in the header {name}, in UTF-8 and Base64: =?base64?…?="
    return Fault(HEADER_MISMATCH, message, {"fix": fix}, status=400)
