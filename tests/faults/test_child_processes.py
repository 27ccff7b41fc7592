"""Children of multiprocessing open their own bus, cannot use that of their parent, and end as other processes."""

from __future__ import annotations

import json

import pytest

import agentbus
from tests.conftest import Engine
from tests.support.processes import Team


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver"])
async def test_a_child_uses_a_bus_of_its_own_or_is_refused_by_name(engine: Engine, team: Team, method: str) -> None:
    await check_children(engine, team, method)


@pytest.mark.slow
@pytest.mark.one_engine
async def test_a_spawned_child_uses_a_bus_of_its_own(engine: Engine, team: Team) -> None:
    """A new interpreter inherits nothing of either engine."""
    await check_children(engine, team, "spawn")


async def check_children(engine: Engine, team: Team, method: str) -> None:
    forks = method == "fork"
    # SQLite in a forked child believes that it holds the locks of its parent's connections.
    own = "bus_forked" if forks and not engine.url.startswith("postgresql:") else "sent"

    worker = team.start("worker_children", engine.url, method)
    found = json.loads(worker.line(90))
    assert worker.wait() == 0
    assert "Traceback" not in worker.errors()

    assert found == {
        "before": [[["None", "sent"], 0], ["open", 0]],
        "killed": "job-of-killed",
        "taken over": "job-of-killed",
        "while open": [["bus_forked" if forks else "None", own], 0],
        "thread": ["bus_forked", 0],
        "pool": own,
        "daemon": "job-of-daemon",
    }
    async with agentbus.connect(engine.url) as bus:
        sent = {"before", "parent", *(("while-open", "pool") if own == "sent" else ())}
        assert {name for name in ("before", "while-open", "pool", "parent") if await bus.messages.get(name)} == sent
        daemon, job = await bus.agents.get("daemon"), await bus.messages.get("job-of-daemon")
        assert daemon is not None
        assert daemon.status == "failed"
        assert job is not None
        assert job.status == "queued"
