"""Attacks: other sites, other hosts, forged and stolen identities, requests that are too large or too slow."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")

from agentbus import Bus
from agentbus.web import access, app, server
from tests.web.client import Client, read_head
from tests.web.conftest import eventually, serving

pytestmark = pytest.mark.one_engine


async def log_in(client: Client, secret: str | None = None) -> str:
    """Return the cookie of a browser that has exchanged a token."""
    found = await client.with_token(None).post("login", {"token": secret or client.token}, X_Agentbus="1")
    assert found.status == 200, found
    return found.headers["set-cookie"]


# Other sites and other hosts


async def test_a_foreign_host_is_refused(client: Client) -> None:
    """DNS rebinding: a page of evil.example whose name now resolves to 127.0.0.1."""
    for host in (
        "evil.example",
        f"evil.example:{client.port}",
        "127.0.0.1.evil.example",
        "[::2]:1",
        "10.0.0.1",
        "a:b:c",
        "[::1]evil.example",
        f"[::1]evil.example:{client.port}",
        "[::1",
        "localhost:evil.example",
        "evil.example@localhost",
        "localhost/evil.example",
    ):
        found = await client.get("agents", host=host)
        assert (found.status, found.code) == (403, "foreign_request"), host
    assert (await client.raw(b"GET /api/v1/agents HTTP/1.1\r\n\r\n")).status == 400


async def test_the_names_of_this_machine_are_accepted(client: Client) -> None:
    for host in (f"localhost:{client.port}", f"127.0.0.1:{client.port}", f"[::1]:{client.port}", "LOCALHOST"):
        assert (await client.get("agents", host=host)).status == 200, host


async def test_the_name_of_a_proxy_is_accepted_if_it_was_allowed(bus: Bus) -> None:
    async with serving(bus, allowed_hosts=("agents.example",)) as client:
        assert (await client.get("agents", host="agents.example")).status == 200
        assert (await client.get("agents", host="agents.example", origin="https://agents.example")).status == 200
        assert (await client.get("agents", host="other.example")).code == "foreign_request"


async def test_a_foreign_origin_is_refused(client: Client) -> None:
    for origin in (
        "http://evil.example",
        "null",
        "http://localhost:1",
        f"http://evil.example:{client.port}",
        "file://",
    ):
        assert (await client.get("agents", origin=origin)).code == "foreign_request", origin
        assert (await client.post("sweep", origin=origin)).code == "foreign_request", origin
    assert (await client.get("agents", origin=f"http://127.0.0.1:{client.port}")).status == 200


async def test_a_request_that_another_site_makes_is_refused(client: Client) -> None:
    for site in ("cross-site", "same-site"):
        assert (await client.get("agents", sec_fetch_site=site, sec_fetch_mode="no-cors")).code == "foreign_request"
    # A link of another site to the dashboard is no attack: the page has no data until its script asks for it.
    assert (await client.get("/api", sec_fetch_site="cross-site", sec_fetch_mode="navigate")).status == 200


async def test_no_other_site_may_read_a_response(client: Client) -> None:
    for found in (await client.get("agents"), await client.send("OPTIONS", "agents"), await client.get("/api")):
        assert not [name for name in found.headers if name.startswith("access-control-")]
        assert found.headers["cross-origin-resource-policy"] == "same-origin"


async def test_a_form_of_another_site_changes_nothing(client: Client, bus: Bus) -> None:
    """A form sends the cookie, but no header of its own and no JSON."""
    cookie = (await log_in(client)).partition(";")[0]
    browser = client.with_token(None)
    forged = await browser.send(
        "POST", "sessions", b"operation=x", headers={"cookie": cookie, "content-type": "text/plain"}
    )
    assert (forged.status, forged.code) == (403, "header_required")
    assert (await browser.send("POST", "sweep", headers={"cookie": cookie})).code == "header_required"
    typed = await client.send("POST", "sessions", b"{}", headers={"content-type": "application/x-www-form-urlencoded"})
    assert (typed.status, typed.code) == (415, "unsupported_media_type")
    # Also of a route whose body may be left out, or that has none: what it would ignore is refused.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        for path in ("sweep", "retention/apply", "agents/clear"):
            for content in (b"", b"x=1"):
                typed = await client.send("POST", path, content, headers={"content-type": kind})
                assert (typed.status, typed.code) == (415, "unsupported_media_type"), (path, kind, content)
    assert (await client.send("POST", "sweep", {"x": 1})).code == "invalid_request"
    for content in (b"", b"{}"):
        assert (await client.send("POST", "sweep", content)).status == 200
    assert (await bus.sessions.list()).items == []


async def test_another_site_cannot_log_a_browser_in_or_out(client: Client) -> None:
    browser = client.with_token(None)
    assert (await browser.post("login", {"token": client.token})).code == "header_required"
    assert (await browser.post("logout")).code == "header_required"


# Identity


async def test_a_cookie_is_out_of_reach_of_scripts_and_other_sites(client: Client, bus: Bus) -> None:
    cookie = await log_in(client)
    name, _, rest = cookie.partition("=")
    assert name == f"agentbus-{await bus.read_id()}", "cookies ignore ports: the name has the id of the bus"
    parts = {part.strip().lower() for part in rest.split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= parts
    assert client.token is not None
    assert client.token not in cookie, "it holds a session id, not the token"


async def test_a_browser_stays_logged_in_when_the_server_is_restarted(bus: Bus) -> None:
    async with serving(bus) as client:
        cookie = (await log_in(client)).partition(";")[0]
    async with serving(bus) as client:
        browser = client.with_token(None)
        assert (await browser.get("identity", cookie=cookie)).json["operator"] == "ada"
        assert (await browser.send("POST", "logout", headers={"cookie": cookie, "x-agentbus": "1"})).status == 200
        assert (await browser.get("identity", cookie=cookie)).code == "unauthorized"


async def test_a_session_ends_with_its_token(client: Client, bus: Bus) -> None:
    made = await bus.tokens.create("read", operator="grace")
    cookie = (await log_in(client, made.secret)).partition(";")[0]
    browser = client.with_token(None)
    assert (await browser.get("identity", cookie=cookie)).json["role"] == "read"
    await bus.tokens.revoke(made.token.id)
    assert (await browser.get("identity", cookie=cookie)).code == "unauthorized"


async def test_a_token_cannot_log_out_the_browsers_of_others(
    client: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "MAX_SESSIONS", 3)
    owner = (await log_in(client)).partition(";")[0]
    made = await bus.tokens.create("read", operator="grace")
    cookies = [(await log_in(client, made.secret)).partition(";")[0] for _ in range(8)]
    browser = client.with_token(None)
    assert (await browser.get("identity", cookie=owner)).json["operator"] == "ada"
    assert [(await browser.get("identity", cookie=one)).status for one in cookies] == [401] * 5 + [200] * 3


async def test_a_forged_identity_is_refused(client: Client, bus: Bus) -> None:
    forged = [
        {"authorization": "Bearer ab_forged"}, {"authorization": "Basic YTpi"}, {"authorization": "Bearer"},
        {"authorization": f"Bearer {await bus.read_id()}"},
        {"cookie": f"agentbus-{await bus.read_id()}=forged"},
        {"cookie": f"agentbus-{await bus.read_id()}=../token"},
    ]  # fmt: skip
    for headers in forged:
        found = await client.with_token(None).send("GET", "identity", headers=headers)
        assert (found.status, found.code) == (401, "unauthorized"), headers
        assert found.headers["www-authenticate"].startswith("Bearer")
    assert (await client.with_token(None).get("agents?token=" + str(client.token))).status == 401
    refused = await client.with_token(None).post("login", {"token": "x"}, X_Agentbus="1")
    assert refused.code == "unauthorized"
    assert "set-cookie" not in refused.headers


async def test_an_agent_acts_only_as_itself_and_never_approves(
    client: Client, bus: Bus, token: Callable[[str], Awaitable[str]]
) -> None:
    for agent in ("a", "b"):
        await bus.register_visitor(agent, type="worker")
    await bus.tasks.start("feature", id="t-1")
    caller = client.with_token(await token("agent:a"))
    message = {"to": "b", "type": "note", "payload": 1}
    assert (await caller.post("agents/a/send", message)).status == 201
    assert (await bus.messages.list()).items[0].sender == "a"
    for path, body in (
        ("agents/b/send", message), ("agents/b/receive", {}), ("agents/~/receive?agent=b", {}),
        ("agents/~/receive?id=b", {}), ("agents/%62/receive", {}), ("messages", message), ("tasks/t-1/approve", {}),
        ("tasks/t-1/auto", {"on": True}), ("tasks/t-1/stop", {}), ("agents/b/register", {"type": "worker"}),
    ):  # fmt: skip
        assert (await caller.post(path, body)).code == "forbidden", path
    assert (await caller.send("PUT", "state/b/entries/k", {"value": 1})).code == "forbidden"
    assert (await caller.send("PUT", "agents/a/state/k", {"value": 1})).status == 200
    entry = await bus.state("a").entry("k")
    assert entry is not None
    assert entry.author == "a"


async def test_the_token_of_the_owner_is_private_to_the_user(client: Client, bus: Bus, state_home: Path) -> None:
    directory = state_home / "agentbus" / await bus.read_id()
    assert (directory / "token").read_text() == client.token
    assert stat.S_IMODE(os.stat(directory / "token").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
    cookie = (await log_in(client)).partition(";")[0].partition("=")[2]
    (session,) = (directory / "sessions").iterdir()
    assert stat.S_IMODE(os.stat(session).st_mode) == 0o600
    assert cookie not in session.read_text() + session.name
    assert client.token not in session.read_text()


async def test_a_token_file_that_others_can_read_is_refused(bus: Bus, state_home: Path) -> None:
    directory = state_home / "agentbus" / await bus.read_id()
    directory.mkdir(parents=True)
    (directory / "token").write_text("ab_" + "x" * 40)
    with pytest.raises(Exception, match="only this user"):
        async with serving(bus):
            pass
    (directory / "token").unlink()
    (directory / "token").symlink_to("/etc/hostname")
    with pytest.raises(Exception, match="cannot write"):
        async with serving(bus):
            pass


async def test_a_token_is_stored_as_a_hash_and_leaves_with_no_copy(bus: Bus, tmp_path: Path) -> None:
    made = await bus.tokens.create("operate", operator="grace")
    report = await bus.export(tmp_path / "bus.jsonl")
    content = (tmp_path / "bus.jsonl").read_bytes() + str(report).encode()
    assert made.secret.encode() not in content
    assert not {kind for kind in report.exported if "token" in kind}
    from agentbus.operations.copy import LEFT_OUT, TABLES

    assert "tokens" in LEFT_OUT
    assert "tokens" not in TABLES
    assert made.secret not in str([event async for event in bus.events()])


# Requests that are too large, too slow or not HTTP


async def test_headers_that_do_not_arrive_end_the_connection(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slowloris: a connection that sends a header now and then, and never ends them."""
    monkeypatch.setattr(server, "HEADER_TIMEOUT", 0.1)
    for start in (b"", b"GET / HTTP/1.1\r\n", b"GET /api HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"):
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(start)
        async with asyncio.timeout(20):
            if start.endswith(b"\r\n\r\n"):
                _, headers = await read_head(reader)
                await reader.readexactly(int(headers["content-length"]))
                # A second request on the same connection.
                writer.write(b"GET ")
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await reader.readexactly(1)
        writer.close()


async def test_a_body_that_does_not_arrive_is_refused(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "BODY_TIMEOUT", 0.1)
    head = client.head("POST", "sessions", b"", {"content-length": "100", "content-type": "application/json"})
    found = await client.raw(head + b"{")
    assert (found.status, found.code) == (408, "request_timeout")


async def test_a_body_over_the_limit_is_refused_before_it_is_read(client: Client) -> None:
    head = client.head("POST", "sessions", b"", {"content-length": str(10**12), "content-type": "application/json"})
    found = await client.raw(head)
    assert (found.status, found.code, found.headers["connection"]) == (413, "request_too_large", "close")


async def test_an_endless_body_is_refused_at_the_limit(client: Client, bus: Bus) -> None:
    head = client.head("POST", "sessions", b"", {"transfer-encoding": "chunked", "content-type": "application/json"})
    head = head.replace(b"content-length: 0\r\n", b"")
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(head)
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    async with asyncio.timeout(20):
        for _ in range(bus._max_payload // 65536 + 4):
            writer.write(chunk)
        status, _ = await read_head(reader)
    assert status == 413
    writer.close()


async def test_headers_over_the_limit_are_refused(client: Client) -> None:
    found = await client.get("agents", x_long="x" * 40_000)
    assert found.status == 400


async def test_what_is_no_http_is_refused(client: Client) -> None:
    for content in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"):
        assert (await client.raw(content)).status in {400, 403}
    smuggled = (
        f"POST /api/v1/sweep HTTP/1.1\r\nhost: 127.0.0.1:{client.port}\r\ncontent-length: 5\r\n"
        "transfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /api/v1/agents HTTP/1.1\r\n\r\n"
    )
    assert (await client.raw(smuggled.encode())).status in {400, 401}


async def test_a_path_cannot_leave_the_folder_of_the_dashboard(client: Client) -> None:
    for path in (
        "/static/../app.py", "/static/..%2Fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd",
        "/static/.hidden.js", "/../../etc/passwd", "/static/..\\app.py", "/static/\0.js", "/static/app.py",
    ):  # fmt: skip
        found = await client.raw(client.head("GET", path))
        assert found.status in {400, 404}, path


async def test_every_response_forbids_foreign_code(client: Client) -> None:
    for path in ("agents", "missing", "/api", "/", "/api/style.css", "tasks/x"):
        policy = (await client.get(path)).headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert (await client.get(path)).headers["x-content-type-options"] == "nosniff"


async def test_a_response_to_hostile_text_is_no_page(client: Client, bus: Bus) -> None:
    """Text of agents comes as JSON only, which a browser does not run."""
    script = "<script>alert(1)</script>"
    found = await client.get("agents/" + "%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    assert found.headers["content-type"] == "application/problem+json"
    await bus.state("s").set("k", script)
    assert (await client.get("state/s/entries/k")).headers["content-type"] == "application/json"
    assert script not in (await client.get("/api")).body.decode()


async def test_the_log_has_no_secret_and_no_payload(
    client: Client, bus: Bus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    await bus.register_visitor("a", type="worker")
    await client.post("agents/a/send", {"to": "a", "type": "note", "payload": "top-secret"})

    async def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(bus.quotas, "policy", broken)
    found = await client.get("quotas?secret=top-secret")
    assert found.status == 422
    found = await client.get("quotas")
    assert (found.status, found.code) == (500, "unexpected")
    assert found.json["facts"]["number"] in caplog.text
    assert "top-secret" not in caplog.text
    assert str(client.token) not in caplog.text


async def test_messages_of_a_client_that_left_are_released(client: Client, bus: Bus) -> None:
    """A client that disconnects while it polls must not keep a message that it never saw."""
    await bus.register_visitor("a", type="worker")
    with socket.create_connection(("127.0.0.1", client.port)) as connection:
        body = b'{"timeout": 50}'
        connection.send(client.head("POST", "agents/a/receive", body) + body)
        await eventually(lambda: any(one.startswith("mailbox/") for one in bus._engine.waiters.channels))
    await eventually(lambda: not any(one.startswith("mailbox/") for one in bus._engine.waiters.channels))
    await bus.messages.send("a", "note", 1, by="ada")
    (record,) = (await bus.messages.list()).items
    assert (record.status, record.attempts) == ("queued", 0)
    found = await client.post("agents/a/receive", {"timeout": 0})
    assert found.json["messages"][0]["attempts"] == 1
