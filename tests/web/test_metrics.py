"""GET /metrics: for Prometheus, with a token, in the format that it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")

from agentbus.web.access import Permission
from agentbus.web.routes import ROUTES
from tests.api.helpers import take, worker
from tests.conftest import Engine
from tests.support.prometheus import parsed, value
from tests.web.client import Client
from tests.web.conftest import serving

ACCEPT = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
"""The Accept header of Prometheus 2.42."""
COUNTED = ("delivered", "acked", "redelivered", "dead_lettered")


@pytest.mark.one_engine
async def test_prometheus_reads_with_a_token_in_the_format_that_it_prefers(
    client: Client, token: Callable[[str], Awaitable[str]]
) -> None:
    (route,) = [route for route in ROUTES if route.path == "/metrics"]
    assert (route.method, route.permission) == ("GET", Permission.READ)
    reader = client.with_token(await token("read"))
    for caller in (client, reader):
        plain = await caller.get("/metrics")
        assert (plain.status, plain.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert value(parsed(plain.body.decode()), "agentbus_processes") == 1
        newer = await caller.get("/metrics", Accept=ACCEPT)
        assert newer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert value(parsed(newer.body.decode(), "openmetrics"), "agentbus_processes") == 1
    for refused in (None, "ab_unknown"):
        assert (await client.with_token(refused).get("/metrics")).status == 401
        assert (await client.with_token(refused).get("metrics")).status == 401
    assert (await client.post("/metrics")).status == 405
    assert (await client.get("/metrics?x=1")).code == "invalid_request"
    assert (await client.send("HEAD", "/metrics")).body == b""


async def test_the_server_counts_deliveries_of_all_processes(engine: Engine) -> None:
    """The counters of the store continue after the server was started again; its own start at zero."""
    sent: list[float] = []

    async def read(client: Client) -> dict[str, float]:
        found = parsed((await client.get("/metrics")).body.decode())
        return {name: value(found, f"agentbus_messages_{name}_total") for name in ("sent", *COUNTED)}

    async with engine.connect() as bus, engine.connect() as other, asyncio.timeout(30):
        a = await worker(other, "a")
        for _ in range(2):
            async with serving(bus) as client:
                latest = await read(client)
                sent.append(latest["sent"])
                assert [latest[name] for name in COUNTED] == [0, 0, 0, 0]
                # Another process announces its changes once it knows that the server listens.
                while not all(latest[name] for name in COUNTED):
                    await a.send("a", "note", max_attempts=2)
                    await (await take(a)).nack(delay=0)
                    await (await take(a)).nack(delay=0)
                    await a.send("a", "note")
                    await (await take(a)).ack()
                    latest = await read(client)
                assert latest["delivered"] <= 1.5 * (latest["sent"] - sent[-1])
                assert latest["redelivered"] <= 0.5 * (latest["sent"] - sent[-1])
    assert sent[0] == 0
    assert sent[1] >= 2
