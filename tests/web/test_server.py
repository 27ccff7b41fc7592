"""The server: ports, base path, files, a store that is gone, several servers, plans of recovery."""

from __future__ import annotations

import asyncio
import shutil
import socket
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")
from starlette.datastructures import Headers

from agentbus import Bus
from agentbus.api.servers import running_servers
from agentbus.errors import InvalidInput
from agentbus.web import server
from agentbus.web.files import StaticFiles
from tests.api.helpers import worker
from tests.conftest import Engine
from tests.web.client import Client
from tests.web.conftest import serving


@pytest.mark.one_engine
async def test_the_next_free_port_is_used_unless_one_was_asked_for(bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(server, "PORT", port)
        async with serving(bus, port=None) as client:
            assert client.port > port
        with pytest.raises(InvalidInput, match=str(port)):
            async with serving(bus, port=port):
                pass


async def test_any_number_of_servers_run_on_one_bus(engine: Engine) -> None:
    async with engine.connect() as bus, engine.connect() as other:
        async with serving(bus) as first, serving(other) as second:
            assert first.token == second.token
            assert len(running_servers(await bus.read_id())) == 2
            await first.post("agents/a/register", {"type": "worker"})
            async with second.stream("live") as stream:
                await stream.next()
                sent = await first.post("agents/a/send", {"to": "a", "type": "note"})
                change = (await stream.next())["data"]
                assert change["messages"][0]["message_id"] == sent.json["message_id"]
        assert running_servers(await bus.read_id()) == []


@pytest.mark.one_engine
async def test_a_base_path_works_with_and_without_a_proxy_that_removes_it(bus: Bus) -> None:
    async with serving(bus, base_path="/agents") as client:
        for path in ("/agents/api/v1/agents", "/api/v1/agents", "/agents/metrics"):
            assert (await client.get(path)).status == 200
        assert (await client.get("/agents")).headers["location"] == "/agents/"
        assert (await client.get("openapi.json")).json["servers"] == [{"url": "/agents/api/v1"}]
        cookie = await client.with_token(None).post("login", {"token": client.token}, X_Agentbus="1")
        assert "path=/agents/" in cookie.headers["set-cookie"].lower()
    for path in ("agents", "/agents/", "/a b", "/ä"):
        with pytest.raises(InvalidInput):
            async with serving(bus, base_path=path):
                pass


def test_files_are_compressed_and_revalidated(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "app.js").write_text("// " + "x" * 5000)
    files = StaticFiles(str(tmp_path))
    page = files.find("/", Headers({}))
    assert page is not None
    assert (page.body, page.headers["content-type"]) == (b"<!doctype html>", "text/html; charset=utf-8")
    packed = files.find("/static/app.js", Headers({"accept-encoding": "gzip, br"}))
    assert packed is not None
    assert packed.headers["content-encoding"] == "gzip"
    assert len(packed.body) < 200
    same = files.find("/static/app.js", Headers({"accept-encoding": "gzip", "if-none-match": packed.headers["etag"]}))
    assert same is not None
    assert same.status_code == 304
    (tmp_path / "app.js").write_text("// changed")
    changed = files.find("/static/app.js", Headers({}))
    assert changed is not None
    assert changed.body == b"// changed"
    assert files.find("/static/missing.js", Headers({})) is None


@pytest.mark.one_engine
async def test_a_store_that_is_gone_is_a_problem_with_a_time_to_try_again(
    engine: Engine, client: Client, bus: Bus
) -> None:
    shutil.rmtree(engine.url)
    found = await client.post("sessions", {"operation": "planning"})
    assert (found.status, found.code) == (503, "database_gone")
    assert found.headers["retry-after"] == "1"


async def test_a_poll_waits_for_a_message(client: Client, bus: Bus) -> None:
    await client.post("agents/a/register", {"type": "worker"})
    poll = asyncio.create_task(client.post("agents/a/receive", {"timeout": 50}))
    b = await worker(bus, "b")
    await b.send("a", "note", {"n": 1})
    (message,) = (await poll).json["messages"]
    assert message["payload"] == {"n": 1}
    settled = await client.post("agents/a/ack", {"messages": [message["lease"]]})
    assert settled.json == {"acked": [message["lease"]], "before": []}
    again = await client.post("agents/a/ack", {"messages": [message["lease"]]})
    assert again.json["before"] == [message["lease"]]
    assert (await client.post("agents/a/receive?epoch=0", {})).code == "agent_fenced"


async def test_an_action_of_an_outdated_plan_is_refused(client: Client, bus: Bus) -> None:
    session = await bus.sessions.start("planning", id="s")
    await worker(bus, "a", session="s")
    await bus.recovery.clear("a")
    plan = await client.get("sessions/s/recovery")
    assert plan.json["options"]
    await session.document("plan").save(1)
    refused = await client.post("sessions/s/recovery/abandon", {"reason": "x"}, If_Match=plan.headers["etag"])
    assert (refused.status, refused.code) == (409, "plan_outdated")
    plan = await client.get("sessions/s/recovery")
    done = await client.post("sessions/s/recovery/abandon", {"reason": "x"}, If_Match=plan.headers["etag"])
    assert done.json["action"] == "abandon"
    (event,) = [one async for one in bus.events(kind="session_recovered")]
    assert event.actor == "ada"


async def test_destructive_actions_count_first_and_name_the_operator(client: Client, bus: Bus) -> None:
    a = await worker(bus, "a")
    for number in range(3):
        await a.send("a", "note", number)
    for message in await a.receive_many(3, timeout=0):
        await message.ack()
    assert (await client.post("messages/purge", {"dry_run": True})).json == {"count": 3, "dry_run": True}
    assert (await client.post("messages/purge", {"status": "acked"})).json == {"count": 3, "dry_run": False}
    (event,) = [one async for one in bus.events(kind="messages_purged")]
    assert event.actor == "ada"
