"""Messages: what is one, and the error of what is none."""

from __future__ import annotations

import pytest

from agentbus.mcp.protocol import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    Fault,
    Notification,
    Request,
    decode,
    encode,
)


@pytest.mark.parametrize(
    ("line", "code", "id"),
    [
        (b"", PARSE_ERROR, None),
        (b"hello", PARSE_ERROR, None),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "ping"', PARSE_ERROR, None),
        (b'{"a": "\xff"}', PARSE_ERROR, None),
        (b'{"id": 7, "method": "m", "params": {"a": "cut \\ud83d"}}', PARSE_ERROR, 7),
        (b'{"id": "a", "method": "m", "params": {"a": "\xff"}}', PARSE_ERROR, "a"),
        (b'{"id": 7, "method": "m", "params": {"a": 1e999}}', PARSE_ERROR, 7),
        (b'{"id": "\\ud83d", "method": "m"}', PARSE_ERROR, None),
        (b'{"id": 7, "result": "\\ud83d"}', PARSE_ERROR, None),
        (b'[{"id": 7, "method": "\\ud83d"}]', PARSE_ERROR, None),
        (b"[" * 100_000, PARSE_ERROR, None),
        (b"null", INVALID_REQUEST, None),
        (b"[]", INVALID_REQUEST, None),
        (b'[{"jsonrpc": "2.0", "id": 1, "method": "ping"}]', INVALID_REQUEST, None),
        (b"{}", INVALID_REQUEST, None),
        (b'{"id": 1, "method": "ping"}', INVALID_REQUEST, 1),
        (b'{"jsonrpc": "1.0", "id": 1, "method": "ping"}', INVALID_REQUEST, 1),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "id": {}, "method": "ping"}', INVALID_REQUEST, None),
        (b'{"jsonrpc": "2.0", "id": "a"}', INVALID_REQUEST, "a"),
        (b'{"jsonrpc": "2.0", "id": "a", "method": 7}', INVALID_REQUEST, "a"),
        (b'{"jsonrpc": "2.0", "id": "a", "method": "ping", "params": [1]}', INVALID_PARAMS, "a"),
        (b'{"jsonrpc": "2.0", "id": "a", "method": "ping", "params": "x"}', INVALID_PARAMS, "a"),
    ],
)
def test_what_is_no_message_is_a_named_fault(line: bytes, code: int, id: int | str | None) -> None:
    with pytest.raises(Fault) as raised:
        decode(line)
    assert (raised.value.code, raised.value.id) == (code, id)
    response = raised.value.response()
    assert response["error"]["code"] == code
    # An id that cannot be read is left out, not null.
    assert response.get("id") == id
    assert ("id" in response) == (id is not None)


def test_messages_are_requests_notifications_or_responses() -> None:
    assert decode(b'{"jsonrpc": "2.0", "id": "x", "method": "m", "params": {"a": 1}}') == Request("x", "m", {"a": 1})
    assert decode(b'{"jsonrpc": "2.0", "method": "m"}') == Notification("m", {})
    assert decode(b'{"jsonrpc": "2.0", "id": 1, "result": {}}') is None
    assert decode(b'{"jsonrpc": "2.0", "id": null, "error": {"code": 1, "message": "x"}}') is None


def test_an_answer_is_one_line_whatever_it_holds() -> None:
    line = encode({"jsonrpc": "2.0", "id": 1, "result": {"text": "a\nb\r\u2028c"}})
    assert b"\n" not in line
    assert b"\r" not in line
    # Half a character of a text cannot be encoded: the client gets an error, and not nothing.
    assert b"cannot be encoded" in encode({"jsonrpc": "2.0", "id": 7, "result": {"text": "\ud800"}})
