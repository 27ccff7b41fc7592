"""Messages of the Model Context Protocol: decode and check JSON-RPC, and encode answers. No I/O.

Two eras are spoken. Since revision 2026-07-28 each request carries its protocol version and the capabilities of its
client in ``_meta``. Before, a handshake (``initialize``) states them once for a connection.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeAlias

import msgspec

MODERN = "2026-07-28"
"""The revision without a handshake."""
HANDSHAKE = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""The revisions with a handshake, newest first."""
VERSIONS = (MODERN, *HANDSHAKE)

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
HEADER_MISMATCH = -32020
MISSING_CAPABILITY = -32021
UNSUPPORTED_VERSION = -32022
RESOURCE_NOT_FOUND = -32002
"""Of the revisions with a handshake; later ones use INVALID_PARAMS."""

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY = "io.modelcontextprotocol/clientCapabilities"
CLIENT_KEY = "io.modelcontextprotocol/clientInfo"
SERVER_KEY = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_KEY = "io.modelcontextprotocol/subscriptionId"
TASKS = "io.modelcontextprotocol/tasks"
"""The extension by which a tool answers with a task."""

BATCHES = "2025-03-26"
"""The revision whose messages may be batches."""
MAX_BATCH = 100
"""Messages of a batch."""

MAX_BYTES = 32 * 1024 * 1024
"""Size of a message: a checkpoint has at most 16 MiB."""

RequestId: TypeAlias = int | str
_encoder = msgspec.json.Encoder(enc_hook=str)


class Fault(Exception):
    """A violation of the protocol, answered by a JSON-RPC error. ``status`` is that of an HTTP response."""

    def __init__(
        self, code: int, message: str, data: Any = None, *, status: int = 200, id: RequestId | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status
        self.id = id

    def error(self) -> dict[str, Any]:
        """Return the JSON-RPC error."""
        found = {"code": self.code, "message": self.message}
        return found if self.data is None else {**found, "data": self.data}

    def response(self) -> dict[str, Any]:
        """Return the response; without an id if the request had none that can be read."""
        known = {} if self.id is None else {"id": self.id}
        return {"jsonrpc": "2.0", **known, "error": self.error()}


class Request(msgspec.Struct, frozen=True):
    """A call that is answered."""

    id: RequestId
    method: str
    params: dict[str, Any]

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata of the request."""
        found = self.params.get("_meta")
        return found if isinstance(found, dict) else {}

    @property
    def name(self) -> str | None:
        """The tool, resource or task that the request is about; an HTTP request repeats it in a header."""
        key = _NAMED_BY.get(self.method)
        found = None if key is None else self.params.get(key)
        return found if isinstance(found, str) else None


_NAMED_BY = {
    "tools/call": "name", "prompts/get": "name", "resources/read": "uri",
    "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId",
}  # fmt: skip


class Notification(msgspec.Struct, frozen=True):
    """A message that is not answered."""

    method: str
    params: dict[str, Any]


def decode(
    text: bytes | bytearray | memoryview, *, batches: bool = False
) -> Request | Notification | list[Request | Notification | Fault] | None:
    """Return the message of a line or a body; None for a response, which this server never waits for. With ``batches``
    it may be a list of messages, as clients of revision 2025-03-26 send them, of which those that are faulty are
    faults.

    >>> decode(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}')                      # doctest: +SKIP
    Request(id=1, method='ping', params={})
    """
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(bytes(text), error) from None
    if not isinstance(found, list):
        return _message(found)
    if not batches:
        raise Fault(
            INVALID_REQUEST, f"the message is a batch, which only revision {BATCHES} has: send one JSON-RPC object",
            status=400,
        )  # fmt: skip
    if not 0 < len(found) <= MAX_BATCH:
        raise Fault(INVALID_REQUEST, f"a batch has 1 to {MAX_BATCH} messages, not {len(found)}", status=400)
    return [message for one in found if (message := _part(one)) is not None]


def _unreadable(text: bytes, error: Exception) -> Fault:
    """Return the fault of a message that cannot be decoded. Where only a text or a number in it is at fault, it has the
    id of the request, so that the client does not wait for its answer."""
    import json

    fault = Fault(PARSE_ERROR, f"the message is not JSON: {error}", status=400)
    with suppress(ValueError, RecursionError):
        # What is not Unicode becomes half of a surrogate pair, which json accepts and msgspec does not.
        found = json.loads(text.decode(errors="surrogateescape"))
        id = found.get("id") if isinstance(found, dict) and "method" in found else None
        try:
            _encoder.encode(found)
        except UnicodeEncodeError:
            fault.message = "the message is not valid Unicode: send UTF-8 without halves of surrogate pairs (\\ud83d)"
        if isinstance(id, int | str) and not isinstance(id, bool):
            _encoder.encode(id)
            fault.id = id
    return fault


def _part(found: Any) -> Request | Notification | Fault | None:
    """Return a message of a batch, or its fault."""
    try:
        message = _message(found)
        if isinstance(message, Request) and message.method == "initialize":
            raise Fault(INVALID_REQUEST, "initialize cannot be part of a batch", id=message.id)
    except Fault as fault:
        return fault
    return message


def _message(found: Any) -> Request | Notification | None:
    if not isinstance(found, dict):
        raise Fault(INVALID_REQUEST, "the message is not an object: send one JSON-RPC object", status=400)
    id = found.get("id")
    if isinstance(id, bool) or not isinstance(id, int | str):
        if "id" in found and not ("result" in found or "error" in found):
            raise Fault(INVALID_REQUEST, "the id must be a string or an integer", status=400)
        id = None
    if found.get("jsonrpc") != "2.0":
        raise Fault(INVALID_REQUEST, 'the message needs "jsonrpc": "2.0"', status=400, id=id)
    if "method" not in found and ("result" in found or "error" in found):
        return None
    method, params = found.get("method"), found.get("params", {})
    if not isinstance(method, str):
        raise Fault(INVALID_REQUEST, "the method must be a string", status=400, id=id)
    if not isinstance(params, dict):
        # JSON-RPC allows a list; no method of MCP takes one.
        raise Fault(INVALID_PARAMS, "params must be an object", status=400, id=id)
    return Notification(method, params) if id is None else Request(id, method, params)


def encode(message: dict[str, Any] | list[dict[str, Any]]) -> bytes:
    """Return a message, or a batch, as JSON. Line breaks in texts are escaped: it is one line."""
    if isinstance(message, list):
        return b"[" + b",".join(map(encode, message)) + b"]"
    try:
        return _encoder.encode(message)
    except (UnicodeEncodeError, RecursionError, OverflowError) as error:
        fault = Fault(INTERNAL_ERROR, f"the answer cannot be encoded: {error}", id=message.get("id"))
        return _encoder.encode(fault.response())


def notification(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Return a notification for the client."""
    return {"jsonrpc": "2.0", "method": method, "params": params}


def missing_capability(required: dict[str, Any]) -> Fault:
    """Return the fault of a client that has not declared a capability which the request needs."""
    names = ", ".join((required.get("extensions") or required).keys())
    return Fault(
        MISSING_CAPABILITY,
        f"the client has not declared the capability {names}",
        {"requiredCapabilities": required},
        status=400,
    )
