"""``/mcp`` of a real server: both eras, subscriptions, limits, attacks, and clients that disappear."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")

import agentbus
from agentbus import Bus, Task
from agentbus.mcp import endpoint
from agentbus.mcp.protocol import HANDSHAKE
from agentbus.sync import loop_store
from agentbus.web import app as application
from agentbus.web import mcp
from tests.web.client import Client
from tests.web.conftest import eventually, serving
from tests.web.mcp_client import ACCEPT, MCPClient, refusal

Tokens = Callable[[str], Awaitable[str]]


@agentbus.workflow("mcp-deploy")
async def deploy(task: Task) -> str:
    return "live" if (await task.approval("plan")).approved else "refused"


class CountedWaiter(loop_store.LoopWaiter):
    """A waiter that is counted."""

    all: ClassVar[set[loop_store.LoopWaiter]] = set()

    def listen(self, channels: Sequence[str]) -> None:
        super().listen(channels)
        self.all.add(self)

    def leave(self) -> None:
        super().leave()
        self.all.discard(self)


@pytest.fixture(autouse=True)
def counted_waiters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_store, "LoopWaiter", CountedWaiter)
    CountedWaiter.all.clear()


def waiting() -> int:
    """Return the number of calls and subscriptions that wait on the bus."""
    return len(CountedWaiter.all)


async def test_agents_talk_by_their_tokens(client: Client, bus: Bus, token: Tokens) -> None:
    one, two = MCPClient(client, await token("agent:one")), MCPClient(client, await token("agent:two"))
    assert (await one.call("receive"))["error"]["code"] == "not_joined"
    assert (await one.call("join", name="two"))["agent"] == "one", "the token says who it is"
    assert [other["id"] for other in (await two.call("join", name="two"))["others"]] == ["one"]
    poll = asyncio.create_task(two.call("receive", wait=50))
    await eventually(lambda: waiting() > 0)
    assert (await one.call("send", to="two", payload="hello"))["delivered"] == 1
    (message,) = (await poll)["messages"]
    assert (message["payload"], message["sender"]) == ("hello", "one")
    asking = asyncio.create_task(one.call("send", to="two", payload="well?", wait=50))
    (question,) = (await two.call("receive", wait=50))["messages"]
    assert (await two.call("send", reply_to=question["lease"], payload="yes"))["acknowledged"]
    assert (await asking)["answer"]["payload"] == "yes"
    assert (await two.call("settle", lease=message["lease"], outcome="done"))["status"] == "acked"
    assert (await two.call("report", progress=50, checkpoint={"n": 1}, tokens=7))["tokens"] == 7
    record = await bus.agents.get("two")
    assert record is not None
    assert record.progress == 50
    # A wake-up of the event loop's own agents reaches a thread too, and the other way round.
    poll = asyncio.create_task(one.call("receive", wait=50))
    await eventually(lambda: waiting() > 0)
    async with bus.agent("three", type="worker") as three:
        await three.send("one", "note", "from the loop")
        assert (await poll)["messages"][0]["payload"] == "from the loop"
        await one.call("send", to="three", payload="back")
        answered = await three.receive(timeout=20)
        assert answered is not None
        assert answered.payload == "back"
    # Work items, over both interfaces.
    await bus.tasks.add("review", id="item")
    assert [one["id"] for one in (await client.get("ready-tasks?manual=true")).json] == ["item"]
    item = (await two.call("task", action="take"))["item"]
    assert (await client.post("agents/two/items/release", {"item": item["lease"]})).json["status"] == "pending"
    taken = (await client.post("agents/two/items/take", {"workflow": "review"})).json
    assert (taken["item"]["id"], taken["lease"]) == ("item", "item#2")
    assert (await two.call("task", action="finish", id="item#2", input={"ok": True}))["status"] == "completed"
    repeated = await client.post("agents/two/items/finish", {"item": "item#2", "result": {"ok": True}})
    assert repeated.json == {"item": "item#2", "before": True}
    assert (await client.post("agents/two/items/take")).json == {"item": None, "lease": None}
    assert (await client.post("agents/two/items/fail", {"item": "item", "reason": "no"})).status == 409
    assert (await client.post("agents/two/state/n/increment", {"by": 2})).json == {"value": 2}


@pytest.mark.one_engine
async def test_a_client_of_the_handshake_states_its_version(bus: Bus, token: Tokens) -> None:
    async with serving(bus, base_path="/bus") as client:
        secret = await token("agent:a")
        for version in (*HANDSHAKE, "2099-01-01"):
            caller = MCPClient(client, secret, None)
            asked = await caller.ask("initialize", protocolVersion=version, capabilities={})
            chosen = asked.json["result"]["protocolVersion"]
            assert chosen == (version if version in HANDSHAKE else "2025-11-25")
            initialized = b'{"jsonrpc": "2.0", "method": "notifications/initialized"}'
            assert (await caller.post(initialized)).status == 202
            # The header is that of the revision, and was unknown before 2025-06-18.
            caller.version = chosen if chosen >= "2025-06-18" else None
            assert len((await caller.ask("tools/list")).json["result"]["tools"]) == 7
            assert (await caller.call("join", name="a"))["agent"] == "a"
            assert (await caller.ask("tasks/get", taskId="t")).json["error"]["code"] == -32601
        modern = MCPClient(client, secret)
        found = (await modern.ask("server/discover")).json["result"]
        assert (found["supportedVersions"][0], found["resultType"]) == ("2026-07-28", "complete")
        # Below the base path only, and beside it as a proxy that removes it sends it.
        modern.http.base = ""
        assert (await modern.ask("tools/list")).status == 200
        modern.http.base = "/elsewhere"
        assert (await modern.ask("tools/list")).status == 405


@pytest.mark.one_engine
async def test_batches_are_of_one_revision(client: Client, bus: Bus, token: Tokens) -> None:
    secret = await token("agent:a")
    caller = MCPClient(client, secret, None)
    await caller.call("join", name="a")

    def call(id: int, tool: str, **arguments: Any) -> dict[str, Any]:
        params = {"name": tool, "arguments": arguments}
        return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}

    calls = [call(1, "send", to="a", payload="x"), {"jsonrpc": "2.0", "method": "notifications/initialized"},
             call(2, "receive", wait=5), call(3, "task", action="start", workflow="w"), 7,
             {"jsonrpc": "2.0", "id": 4, "method": "initialize", "params": {}}]  # fmt: skip
    body = json.dumps(calls).encode()
    for headers in ({}, {"mcp-protocol-version": "2025-03-26"}):
        found = await caller.post(body, {"accept": ACCEPT, **headers})
        answers = {one.get("id"): one for one in found.json}
        assert answers.keys() == {None, 1, 2, 3, 4}
        assert "forbidden" in str(answers[3]["result"])
        assert [answers[id]["error"]["code"] for id in (None, 4)] == [-32600, -32600]
        assert "'x'" in str(json.loads(answers[2]["result"]["content"][0]["text"])["messages"])
    for version in ("2025-06-18", "2025-11-25", "2026-07-28"):
        refused = await caller.post(body, {"accept": ACCEPT, "mcp-protocol-version": version})
        assert (refused.status, refused.json["error"]["code"]) == (400, -32600), version
    silent = json.dumps([{"jsonrpc": "2.0", "method": "notifications/initialized"}] * 2).encode()
    assert (await caller.post(silent)).status == 202
    for bad in (b"[]", b"[" + b",".join([b"{}"] * 101) + b"]"):
        assert (await caller.post(bad)).json["error"]["code"] == -32600
    # A batch whose client leaves takes nothing.
    held = len((await bus.messages.list(status="leased")).items)
    waits = json.dumps([call(1, "send", to="a", payload="y"), call(2, "receive"), call(3, "send", to="b", payload=1),
                        call(4, "receive", wait=50)]).encode()  # fmt: skip
    _, writer = await asyncio.open_connection("127.0.0.1", client.port)
    writer.write(caller.http.head("POST", "/mcp", waits, {"accept": ACCEPT}) + waits)
    await eventually(lambda: waiting() > 0)
    writer.close()
    await eventually(lambda: waiting() == 0)
    async with asyncio.timeout(20):
        while len((await bus.messages.list(status="leased")).items) != held:  # noqa: ASYNC110 - seen by a query only
            await asyncio.sleep(0.01)


async def test_a_subscription_reports_mail_and_tasks(client: Client, bus: Bus, token: Tokens) -> None:
    await bus.register_visitor("a", type="worker")
    task = await bus.tasks.start(deploy, id="t")
    listener = MCPClient(client, await token("read"))
    async with listener.listening("bus://inbox/a", "bus://nothing", tasks=["t", "no-such"]) as stream:
        await bus.messages.send("a", "note", 1, by="ada")
        found = (await stream.next())["data"]
        assert (found["method"], found["params"]["uri"]) == ("notifications/resources/updated", "bus://inbox/a")
        await bus.tasks.run_worker(deploy, until_idle=True)
        statuses = []
        while "input_required" not in statuses:
            found = (await stream.next())["data"]
            assert (found["method"], found["params"]["taskId"]) == ("notifications/tasks", task.id)
            assert found["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": 1}
            statuses.append(found["params"]["status"])
        await bus.tasks.approve("t", "plan", by="ada")
        await bus.tasks.run_worker(deploy, until_idle=True)
        while found["params"]["status"] != "completed":
            found = (await stream.next())["data"]
        assert json.loads(found["params"]["result"]["content"][0]["text"]) == "live"

    async def read(uri: str) -> Any:
        answer = await listener.ask("resources/read", uri=uri)
        (content,) = answer.json["result"]["contents"]
        assert (content["uri"], content["mimeType"]) == (uri, "application/json")
        return json.loads(content["text"])

    assert [one["payload"] for one in (await read("bus://inbox/a"))["waiting"]] == [1]
    assert [one["id"] for one in (await read("bus://agents"))["agents"]] == ["a"]
    assert (await read("bus://task/t"))["task"]["result"] == "live"
    assert await read("bus://status") == (await client.get("overview")).json


@pytest.mark.one_engine
async def test_only_an_operator_decides_and_only_where_the_setting_says_so(bus: Bus, token: Tokens) -> None:
    yes = {"action": "accept", "content": {"decision": "approve"}}
    for number, decisions in enumerate((False, True)):
        task = await bus.tasks.start(deploy, id=f"t-{number}")
        await bus.tasks.run_worker(deploy, until_idle=True)
        async with serving(bus, mcp_decisions=decisions) as client:
            operator = MCPClient(client, await token("operate"))
            for role in ("read", "agent:a"):
                other = MCPClient(client, await token(role))
                asked = (await other.ask("tasks/get", taskId=task.id)).json["result"]
                ((key, question),) = asked["inputRequests"].items()
                assert "agentbus task approve" in question["params"]["message"]
                refused = await other.ask("tasks/update", taskId=task.id, inputResponses={key: yes})
                assert refusal(refused) == "forbidden"
            assert (await operator.ask("tasks/update", taskId=task.id, inputResponses={key: yes})).status == 200
            (approval,) = await bus.tasks.approvals(task.id, status=None)
            assert (approval.status, approval.by) == (("approved", "grace") if decisions else ("open", None))


@pytest.mark.one_engine
async def test_the_checks_of_every_request_hold(client: Client, bus: Bus, token: Tokens) -> None:
    caller = MCPClient(client, await token("read"))
    body, headers = caller.request("tools/list", {})
    cases: list[tuple[dict[str, str], int, str]] = [
        ({}, 200, ""),
        ({"host": "evil.example"}, 403, "foreign_request"),
        ({"origin": "http://evil.example"}, 403, "foreign_request"),
        ({"origin": "null"}, 403, "foreign_request"),
        ({"sec-fetch-site": "cross-site"}, 403, "foreign_request"),
        ({"authorization": ""}, 401, "unauthorized"),
        ({"authorization": "Bearer ab_unknown"}, 401, "unauthorized"),
        ({"authorization": "Basic eDp4"}, 401, "unauthorized"),
        ({"content-type": "text/plain"}, 415, "-32600"),
        ({"accept": "text/html"}, 406, "-32600"),
        ({"mcp-method": "tools/call"}, 400, "-32020"),
        ({"x-long": "x" * application.MAX_HEADERS}, 400, "malformed_request"),
    ]
    for more, status, code in cases:
        found = await caller.post(body, {**headers, **more})
        assert (found.status, refusal(found)) == (status, code), more
        assert found.headers["x-content-type-options"] == "nosniff"
        assert found.headers["cache-control"] == "no-store"
        assert ("www-authenticate" in found.headers) == (status == 401)
    # Over stdio the same body needs no headers.
    alone = (await caller.post(body)).json
    fix = "repeat the value of the body in the header MCP-Protocol-Version: 2026-07-28"
    assert (alone["id"], alone["error"]["code"], alone["error"]["data"]) == (1, -32020, {"fix": fix})
    # A text that is not Unicode is answered by its id.
    cut = await caller.post(b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"a": "\\ud83d"}}')
    assert (cut.status, cut.json["id"], "Unicode" in cut.json["error"]["message"]) == (400, 7, True)
    # A browser that is logged in has no identity here: no page can use it.
    login = await client.with_token(None).post("login", {"token": client.token}, X_Agentbus="1")
    cookie = login.headers["set-cookie"].partition(";")[0]
    browser = await caller.post(body, {**headers, "authorization": "", "cookie": cookie, "x-agentbus": "1"})
    assert browser.status == 401
    for method in ("GET", "HEAD", "DELETE", "PUT", "OPTIONS"):
        found = await client.send(method, "/mcp")
        assert (found.status, found.headers["allow"]) == (405, "POST")
    limit = bus._max_snapshot + 64 * 1024
    head = caller.http.head("POST", "/mcp", headers={**headers, "content-length": str(limit + 1)})
    assert (await caller.http.raw(head, method="POST")).code == "request_too_large"


@pytest.mark.one_engine
async def test_what_a_token_has_open_is_bounded(
    bus: Bus, token: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(mcp, "MAX_WAITING", 2)
    await bus.register_visitor("a", type="worker")
    async with serving(bus, max_streams=2) as client, AsyncExitStack() as stack:
        one, other = MCPClient(client, await token("agent:a")), MCPClient(client, await token("read"))
        for _ in "ab":
            await stack.enter_async_context(one.listening("bus://inbox/a"))
        refused = await one.ask("subscriptions/listen", notifications={"resourceSubscriptions": ["bus://inbox/a"]})
        assert (refused.status, refusal(refused)) == (429, "too_many_streams")
        # They count with the streams of the API.
        assert (await one.http.get("events/stream")).code == "too_many_streams"
        async with other.listening("bus://inbox/a"):
            pass
        await eventually(lambda: waiting() == 2)
        polls = [asyncio.create_task(one.ask("tools/call", name="receive", arguments={"wait": 50})) for _ in "ab"]
        await eventually(lambda: waiting() == 4)
        refused = await one.ask("tools/call", name="receive", arguments={"wait": 50})
        assert (refused.status, refusal(refused)) == (429, "too_many_calls")
        assert (await one.call("receive"))["messages"] == [], "a call that does not wait is answered"
        for _ in "ab":
            await bus.messages.send("a", "note", 1, by="ada")
        assert [refusal(await poll) for poll in polls] == ["", ""]


@pytest.mark.one_engine
async def test_a_revoked_token_ends_what_it_has_open(
    client: Client, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(endpoint, "KEEP_ALIVE", 0.02)
    await bus.register_visitor("a", type="worker")
    made = await bus.tokens.create("agent:a", operator="grace")
    caller = MCPClient(client, made.secret)
    async with caller.listening("bus://inbox/a") as stream:
        before = waiting()
        poll = asyncio.create_task(caller.ask("tools/call", name="receive", arguments={"wait": 50}))
        await eventually(lambda: waiting() > before)
        await bus.tokens.revoke(made.token.id)
        assert await stream.ended()
        found = await poll
        assert (found.status, "revoked" in found.json["error"]["message"]) == (401, True)
    await eventually(lambda: waiting() == 0)
    # What comes now is not lost with it.
    await bus.messages.send("a", "note", "kept", by="ada")
    assert (await client.post("agents/a/receive")).json["messages"][0]["attempts"] == 1
    assert (await caller.ask("tools/list")).status == 401


async def test_the_server_stops_within_two_seconds_with_clients_waiting(bus: Bus, token: Tokens) -> None:
    await bus.register_visitor("a", type="worker")
    server = AsyncExitStack()
    client = await server.enter_async_context(serving(bus))
    caller = MCPClient(client, await token("agent:a"))
    async with caller.listening("bus://inbox/a") as stream:
        before = waiting()
        poll = asyncio.create_task(caller.ask("tools/call", name="receive", arguments={"wait": 50}))
        await eventually(lambda: waiting() > before)
        async with asyncio.timeout(10):
            await server.aclose()
        assert await stream.ended()
        assert refusal(await poll) == "bus_closed"
    assert waiting() == 0


async def test_fifty_long_polls_keep_no_one_waiting_and_lose_nothing(client: Client, bus: Bus, token: Tokens) -> None:
    secrets = [await token(f"agent:a{number}") for number in range(5)]
    clients = [MCPClient(client, secret) for secret in secrets for _ in range(10)]
    for caller in clients[::10]:
        await caller.call("join", name="x", pools=["all"])
    polls = [asyncio.create_task(one.call("receive", wait=50)) for one in clients]
    await eventually(lambda: waiting() >= 50)
    assert (await clients[0].call("state", action="get", key="k"))["found"] is False
    for number in range(50):
        await bus.messages.send("pool:all", "note", number, by="ada")
    taken = [message["payload"] for poll in polls for message in (await poll)["messages"]]
    assert sorted(taken) == list(range(50))
    await eventually(lambda: waiting() == 0)


KILLED = """
import http.client, sys, time
body = sys.stdin.buffer.read()
connections = []
for number in range(5):
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
    headers = dict(line.split(": ", 1) for line in sys.argv[2].split("\\n"))
    connection.request("POST", "/mcp", body, headers)
    connections.append(connection)
print("sent", flush=True)
time.sleep(600)
"""


@pytest.mark.one_engine
async def test_a_killed_client_takes_nothing_with_it(client: Client, bus: Bus, token: Tokens) -> None:
    secret = await token("agent:a")
    caller = MCPClient(client, secret)
    await caller.call("join", name="a")
    body, headers = caller.request("tools/call", {"name": "receive", "arguments": {"wait": 50, "max": 5}})
    lines = "\n".join(
        f"{name}: {value}" for name, value in
        {**headers, "authorization": f"Bearer {secret}", "content-type": "application/json"}.items()
    )  # fmt: skip
    for turn in range(4):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, str(client.port), lines, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(body)
        process.stdin.close()
        await process.stdout.readline()
        await eventually(lambda: waiting() == 5)
        if turn % 2:
            # Killed while messages arrive: an answer is on its way to it.
            await bus.messages.send("a", "note", turn, by="ada")
        process.kill()
        await process.wait()
        if not turn % 2:
            await eventually(lambda: waiting() == 0)
            await bus.messages.send("a", "note", turn, by="ada")
        await eventually(lambda: waiting() == 0)
        # It is in the mailbox, or leased by an answer that was written before the client was killed.
        free = (await caller.call("receive"))["messages"]
        held = (await caller.call("join", name="a"))["held"]
        assert {message["payload"] for message in (*free, *held)} == {turn}
        assert free or turn % 2, "what was sent after the kill was not taken"
        assert (await caller.call("settle", lease=held[0]["lease"], outcome="done"))["status"] == "acked"


@pytest.mark.one_engine
async def test_nonsense_is_refused_by_name(client: Client, bus: Bus, token: Tokens) -> None:
    """Whatever is sent to it, the server answers with a named error, and never with a fault of its own."""
    random.seed(int(os.environ.get("AGENTBUS_FUZZ_SEED", "7")))
    secrets = [await token(role) for role in ("read", "operate", "agent:a")]
    clients = [MCPClient(client, secret, version) for secret in secrets for version in ("2026-07-28", None)]
    methods = ["tools/call", "tasks/get", "tasks/update", "tasks/cancel", "resources/read", "initialize", "ping",
               "resources/subscribe", "resources/unsubscribe", "tools/list", "server/discover", "no/such"]  # fmt: skip
    keys = [
        "name",
        "arguments",
        "uri",
        "taskId",
        "inputResponses",
        "cursor",
        "protocolVersion",
        "capabilities",
        "_meta",
    ]
    names = ["join", "send", "receive", "settle", "state", "report", "task", "x"]
    inner = [
        "name", "to", "payload", "lease", "outcome", "action", "key", "scope", "value", "id", "input", "workflow",
        "progress", "checkpoint", "status", "reply_to", "pools", "session", "ttl", "if_version", "max", "peek",
    ]  # fmt: skip
    values: list[Any] = [
        None, True, -1, 0, 10**30, 1.5, "", "a", "#", "a#1", "agentbus/clients", "x" * 5000, "\ud7ff\x00", [], {}, [[]],
        {"a": {"b": []}}, "set", "get", "stop", "start", "done", "bus://task/", "bus://inbox/",
    ]  # fmt: skip

    async def one(number: int) -> None:
        caller = clients[number % len(clients)]
        params: dict[str, Any] = {key: random.choice(values) for key in random.sample(keys, random.randrange(4))}
        method = random.choice(methods[:1] * 6 + methods)
        if method == "tools/call" and random.random() < 0.9:
            params["name"] = random.choice(names)
            params["arguments"] = {key: random.choice(values) for key in random.sample(inner, random.randrange(6))}
        params.setdefault("name", "x")
        params.setdefault("uri", "x")
        params.setdefault("taskId", "x")
        body, headers = caller.request(method, params)
        if random.random() < 0.2:
            damaged = bytearray(body)
            for _ in range(3):
                damaged[random.randrange(len(damaged))] = random.randrange(256)
            body = bytes(damaged)
        if random.random() < 0.1:
            headers.pop(random.choice(list(headers)))
        clean = {name: "".join(c for c in value if 32 <= ord(c) < 127)[:300] for name, value in headers.items()}
        found = await caller.post(body, clean)
        assert found.status < 500, (body, found)
        if found.status != 202:
            assert found.json, found

    for start in range(0, 600, 30):
        await asyncio.gather(*(one(number) for number in range(start, start + 30)))
    assert (await client.get("health")).status == 200
    assert waiting() == 0
