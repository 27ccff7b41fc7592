"""Histories over HTTP: everyone reads them, an operator deletes them."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")

from agentbus import Bus, HistoryPut
from tests.web.client import Client

NAMES = ["thread/1", "<b>\u2028%2F?#&", "a\n\x01", "~x", "ü" * 100]


async def test_histories_are_read_in_pages_and_deleted_by_an_operator(
    client: Client, bus: Bus, token: Callable[[str], Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = client.with_token(await token("agent:a"))
    puts = [HistoryPut(body=b"\xff" * 600, part="p" * (n % 2), meta={"n": n}) for n in range(5)]
    for name in NAMES:
        await bus.histories.write("lang/graph", name, puts, meta={"user": "ada"})
    page = (await agent.get("histories?kind=lang%2Fgraph&limit=2")).json
    rest = (await agent.get(f"histories?cursor={quote(page['cursor'])}")).json
    assert sorted(one["name"] for one in page["items"] + rest["items"]) == sorted(NAMES)
    assert (await client.get("histories?prefix=thread")).json["items"][0]["size"] == 3000
    for name in NAMES:
        path = f"histories/lang%2Fgraph/{quote(name, safe='')}"
        shown = (await agent.get(f"{path}?limit=3")).json
        assert (shown["history"]["name"], [item["number"] for item in shown["items"]]) == (name, [1, 2, 3])
        assert not any("body" in item for item in shown["items"])
        rest = (await agent.get(f"{path}?cursor={shown['cursor']}&bodies=true&part=p")).json
        assert [(item["number"], base64.b64decode(item["body"])) for item in rest["items"]] == [(4, b"\xff" * 600)]
        assert rest["cursor"] is None
        assert (await agent.send("DELETE", path)).status == 403
        assert (await client.send("DELETE", f"{path}?part=p")).json["count"] == 2
        assert (await client.send("DELETE", f"{path}?key={3:020}")).json["count"] == 1
        assert (await client.send("DELETE", path)).json["count"] == 2
        assert (await client.send("DELETE", path)).code == "unknown_history"
    # The names "." and "..", which clients remove from paths.
    await bus.histories.write("k", "..", puts)
    monkeypatch.setattr("agentbus.web.handlers.histories.MAX_SNAPSHOT", 1500)
    shown = (await agent.get("histories/k/~?name=..&bodies=true")).json
    assert (shown["history"]["name"], len(shown["items"]), shown["cursor"]) == ("..", 2, "2")
    assert (await agent.get("histories/k/~?id=..&cursor=x")).status == 422
    overview = (await agent.get("overview")).json["histories"]
    assert [(one["kind"], one["histories"], one["items"]) for one in overview] == [("k", 1, 5)]
