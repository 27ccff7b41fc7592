"""Requests: names in paths, bodies and queries, entity tags, problems."""

from __future__ import annotations

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")

from agentbus import Bus
from tests.web.client import Client


async def test_names_with_slashes_and_dots_are_names(client: Client, bus: Bus) -> None:
    for path in ("agents/a%2Fstop/register", "agents/~/register?id=..", "agents/~/register?agent=."):
        assert (await client.post(path, {"type": "worker"})).status == 200, path
    assert [one.id for one in (await bus.agents.list()).items] == [".", "..", "a/stop"]
    assert (await client.get("agents/a%2Fstop")).json["id"] == "a/stop"
    assert (await client.post("agents/a%2Fstop/stop", {"reason": "enough"})).json["status"] == "stopped"
    assert (await client.post("agents/~/stop?id=..")).json["id"] == ".."
    # A segment is a name, not a path.
    assert (await client.get("agents/a/stop")).code == "method_not_allowed"
    assert (await client.get("agents/../agents")).code == "no_such_route"
    assert (await client.get("agents/~")).code == "invalid_request"


async def test_large_integers_stay_exact(client: Client, bus: Bus) -> None:
    await client.post("agents/a/register", {"type": "worker"})
    numbers = [2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1]
    sent = await client.post("agents/a/send", {"to": "a", "type": "note", "payload": numbers})
    assert sent.status == 201
    found = await client.get(f"messages/{sent.json['message_id']}")
    assert found.json["payload"] == numbers


async def test_an_idempotency_key_is_the_message_id(client: Client) -> None:
    await client.post("agents/a/register", {"type": "worker"})
    message = {"to": "a", "type": "note", "payload": 1}
    first = await client.post("messages", message, Idempotency_Key="order-7")
    again = await client.post("messages", message, Idempotency_Key="order-7")
    assert first.json["message_id"] == again.json["message_id"] == "order-7"
    assert [first.json["duplicate"], again.json["duplicate"]] == [False, True]
    other = await client.post("messages", {**message, "payload": 2}, Idempotency_Key="order-7")
    assert (other.status, other.code) == (409, "message_id_conflict")
    both = await client.post("messages", {**message, "message_id": "a"}, Idempotency_Key="b")
    assert both.code == "invalid_request"


async def test_a_client_that_has_the_present_state_receives_no_body(client: Client) -> None:
    first = await client.get("agents")
    tag = first.headers["etag"]
    same = await client.get("agents", If_None_Match=f'"other", {tag}')
    assert (same.status, same.body, same.headers["etag"]) == (304, b"", tag)
    await client.post("agents/a/register", {"type": "worker"})
    changed = await client.get("agents", If_None_Match=tag)
    assert changed.status == 200
    assert changed.headers["etag"] != tag


async def test_head_is_get_without_a_body(client: Client) -> None:
    found = await client.send("HEAD", "agents")
    assert (found.status, found.body) == (200, b"")
    assert found.headers["etag"] == (await client.get("agents")).headers["etag"]


BAD: list[tuple[str, str, object, int, str]] = [
    ("POST", "agents/a/register", b"{", 400, "malformed_request"),
    ("POST", "agents/a/register", b'{"metadata":{"a":' + b"[" * 5000, 400, "malformed_request"),
    ("POST", "agents/a/register", b'{"type":"\xff"}', 400, "malformed_request"),
    ("POST", "agents/a/register", {}, 422, "invalid_request"),
    ("POST", "agents/a/register", {"type": 7}, 422, "invalid_request"),
    ("POST", "agents/a/register", {"type": "worker", "colour": "red"}, 422, "invalid_request"),
    ("POST", "agents/a%20b/register", {"type": "worker"}, 422, "invalid_name"),
    ("POST", "agents/a/register", {"type": "wizard"}, 422, "unknown_type"),
    ("POST", "agents/%FF/register", {"type": "worker"}, 400, "malformed_request"),
    ("GET", "agents?limit=0", None, 422, "out_of_range"),
    ("GET", "agents?limit=many", None, 422, "invalid_request"),
    ("GET", "agents?limit=1&limit=2", None, 422, "invalid_request"),
    ("GET", "agents?colour=red", None, 422, "invalid_request"),
    ("GET", "agents?status=sleepy", None, 422, "out_of_range"),
    ("GET", "agents?cursor=%00", None, 422, "invalid_name"),
    ("GET", "agents?cursor=%FF", None, 400, "malformed_request"),
    ("GET", "identity?a=1", None, 422, "invalid_request"),
    ("GET", "agents/missing", None, 404, "unknown_agent"),
    ("GET", "tasks/missing", None, 404, "unknown_task"),
    ("GET", "state/s/entries/missing", None, 404, "nothing_found"),
    ("GET", "nothing", None, 404, "no_such_route"),
    ("GET", "checkpoints/x", None, 422, "invalid_request"),
    ("PUT", "agents", None, 405, "method_not_allowed"),
    ("OPTIONS", "agents", None, 405, "method_not_allowed"),
    ("POST", "agents/a/send", {"to": "a", "type": "note"}, 404, "unknown_agent"),
    ("POST", "backups", {"keep": 0}, 422, "out_of_range"),
    ("GET", "events/stream?after=x", None, 422, "invalid_request"),
    ("GET", "events?after=-1", None, 422, "out_of_range"),
    ("POST", "tasks/t/settle", {"step": "s"}, 422, "invalid_input"),
]


@pytest.mark.one_engine
async def test_bad_input_is_a_problem(client: Client) -> None:
    for method, path, body, status, code in BAD:
        found = await client.send(method, path, body)
        assert (found.status, found.code) == (status, code), (method, path, body, found)
        fix = found.json["fix"]
        # A client in any language can act on it.
        assert "bus." not in str(fix), fix
        assert fix or code not in {"malformed_request", "unknown_agent", "unknown_type"}, found


async def test_a_problem_has_code_fix_and_facts(client: Client) -> None:
    found = await client.get("tasks/t-1")
    assert found.json == {
        "type": "urn:agentbus:problem:unknown_task",
        "title": "unknown task",
        "status": 404,
        "detail": found.json["detail"],
        "code": "unknown_task",
        "fix": "agentbus task list shows the tasks; old ones may have been archived",
        "facts": {"task": "t-1"},
    }


async def test_a_quota_says_when_to_try_again(client: Client, bus: Bus) -> None:
    await client.post("agents/a/register", {"type": "worker"})
    assert (await client.send("PATCH", "quotas", {"depth": 1})).json["depth"] == 1
    message = {"to": "a", "type": "note"}
    assert (await client.post("agents/a/send", message)).status == 201
    refused = await client.post("agents/a/send", message)
    assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "queue_full", "1")
    assert (await client.send("PATCH", "quotas", {"depth": None})).json["depth"] is None
    assert (await client.post("agents/a/send", message)).status == 201


async def test_a_payload_over_the_limit_is_too_large(client: Client, bus: Bus) -> None:
    await client.post("agents/a/register", {"type": "worker"})
    payload = "x" * (bus._max_payload + 1)
    refused = await client.post("agents/a/send", {"to": "a", "type": "note", "payload": payload})
    assert (refused.status, refused.code) == (413, "payload_too_large")
    refused = await client.post("agents/a/send", {"to": "a", "type": "note", "payload": payload * 2})
    assert (refused.status, refused.code) == (413, "request_too_large")
