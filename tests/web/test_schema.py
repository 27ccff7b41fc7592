"""The OpenAPI document, and generated requests for every route: no server error, no response that is not documented."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("uvicorn", reason="the extra agentbus[web] is not installed")

from agentbus import Bus, pool
from agentbus.core.clock import SystemClock
from agentbus.web.openapi import document
from agentbus.web.routes import ROUTES
from tests.api.helpers import worker
from tests.conftest import Engine
from tests.web.client import Client
from tests.web.conftest import serving

pytestmark = pytest.mark.one_engine

ROOT = Path(__file__).parents[2]
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
# Streams do not end.
LEFT_OUT = r"/(stream|watch|live)$"


def test_every_route_is_in_the_document() -> None:
    found = document("/agents")
    assert found["openapi"] == "3.1.0"
    assert found["servers"] == [{"url": "/agents/api/v1"}]
    operations = {(method.upper(), path) for path, methods in found["paths"].items() for method in methods}
    assert operations == {(route.method, route.path.replace(":int", "")) for route in ROUTES}
    names = [one["operationId"] for methods in found["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names)


def test_every_reference_of_the_document_exists() -> None:
    found = document()

    def references(value: object) -> set[str]:
        if isinstance(value, dict):
            own = {str(value["$ref"])} if "$ref" in value else set()
            return own.union(*(references(one) for one in value.values()))
        return set().union(*(references(one) for one in value)) if isinstance(value, list) else set()

    for reference in references(found):
        target: object = found
        for part in reference.removeprefix("#/").split("/"):
            assert isinstance(target, dict)
            target = target[part]


async def test_the_document_and_its_page_are_served(client: Client) -> None:
    anyone = client.with_token(None)
    assert (await anyone.get("openapi.json")).json == document()
    page = (await anyone.get("/api")).body.decode()
    assert "/api/v1/tasks/{task}/approve" in page
    assert "<script" not in page
    assert (await anyone.get("/api/style.css")).headers["content-type"].startswith("text/css")


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_no_generated_request_finds_a_server_error(
    engine: Engine, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    full = request.config.getoption("--full", default=False)
    options = ["--max-examples", "40", "--phases", "examples,coverage,fuzzing"] if full else [
        "--max-examples", "1", "--phases", "fuzzing", "--seed", "1", "--mode", "positive",
    ]  # fmt: skip
    # Polls end by the clock of the bus.
    async with engine.connect(clock=SystemClock()) as bus, serving(bus) as client:
        await populate(bus)
        process = await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("schemathesis")), "run",
            f"http://127.0.0.1:{client.port}/api/v1/openapi.json",
            "--header", f"Authorization: Bearer {client.token}", "--header", "X-Agentbus: 1", "--checks", CHECKS,
            "--exclude-path-regex", LEFT_OUT, "--exclude-path", "/login",
            "--no-color", "--request-timeout", "60", *options,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=tmp_path,
            env={**os.environ, "SCHEMATHESIS_HOOKS": "tests.web.schemathesis_hooks", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        out, _ = await process.communicate()
    (tmp_path / "schemathesis.txt").write_bytes(out)
    report = out.decode()
    assert process.returncode == 0, report[report.find("=== FAILURES") :]


async def populate(bus: Bus) -> None:
    """Fill a bus, so that lists have something to show."""
    a = await worker(bus, "a", pools=["p"])
    for number in range(3):
        await a.send(pool("p"), "note", {"n": number})
    await a.state.set("k", {"deep": [1, None, "x"]})
    await a.checkpoint("half", {"step": 1})
    session = await bus.sessions.start("planning", id="s", expects={"a": "plan"})
    await session.document("plan").save({"phases": 3})
    await session.participants(["a", "b"])
    await bus.tasks.start("feature", "x", id="t", session="s")
