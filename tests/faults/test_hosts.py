"""Two hosts on one server, simulated by processes with different host keys."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Iterator

import pytest

import agentbus
from agentbus import Bus, pool
from agentbus.core import process_info
from agentbus.records import Finding
from tests.support.postgres import Schemas, at_schema
from tests.support.processes import Team

pytestmark = pytest.mark.slow
OTHER = "other-machine/pid:[1]"


@pytest.fixture
def url(schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="agentbus-test-") as directory:
        monkeypatch.setenv("XDG_STATE_HOME", directory)
        name = schemas.take()
        yield at_schema(schemas.url, name)
        schemas.give_back(name)


async def sweeps_until(bus: Bus, kind: str, subject: str) -> list[Finding]:
    """Everything that was found until this was."""
    found: list[Finding] = []
    deadline = time.monotonic() + 40
    sweeper = bus._sweeper(0.5, 1.0, None, 1000)
    while time.monotonic() < deadline:
        found += (await sweeper.sweep()).findings
        if any((finding.kind, finding.subject) == (kind, subject) for finding in found):
            return found
        await asyncio.sleep(0.1)
    raise AssertionError(f"no {kind} of {subject} among {found}")


async def test_a_process_killed_on_another_host_is_detected_by_its_silence_and_its_work_resumes(
    url: str, team: Team
) -> None:
    async with agentbus.connect(url, beat_every=0.2) as bus:
        boss = await bus.register("boss", type="worker")
        there = team.start("worker_host", url, OTHER, "there")
        assert await asyncio.to_thread(there.line) == "ready"
        await boss.send(pool("jobs"), "note", "work")
        assert await asyncio.to_thread(there.line) == "holding work"
        there.kill()
        # Its pid says nothing here: neither a beat nor the opening of another process may strike it off.
        async with agentbus.connect(url, beat_every=3600):
            record = await bus.agents.get("there")
            assert record is not None
            assert record.status in {"running", "suspect"}
        found = await sweeps_until(bus, "agent_failed", "agent:there")
        kinds = [finding.kind for finding in found]
        assert kinds.count("host_silent") == 1
        assert kinds.index("agent_suspected") < kinds.index("agent_failed")
        await boss.join("jobs")
        message = await boss.receive(timeout=30)
        assert message is not None
        assert (message.payload, message.attempts) == ("work", 2)


async def test_a_process_killed_on_this_host_is_detected_by_its_pid(url: str, team: Team) -> None:
    async with agentbus.connect(url, beat_every=3600) as bus:
        boss = await bus.register("boss", type="worker")
        here = team.start("worker_host", url, process_info.host_key(), "here")
        assert await asyncio.to_thread(here.line) == "ready"
        await boss.send(pool("jobs"), "note", "work")
        assert await asyncio.to_thread(here.line) == "holding work"
        here.kill()
        sweep = await bus.sweep(suspect_after=7200, fail_after=7200)
        assert sweep.counts["agents_failed"] == 1
        record = await bus.agents.get("here")
        assert record is not None
        assert record.status == "failed"
