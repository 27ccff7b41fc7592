"""A process with an open bus continues to work while the package files are replaced, as by an upgrade."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.legacy_files import workflow
from tests.support.postgres import Schemas, at_schema

ROOT = Path(__file__).resolve().parents[1]

# Runs with a copy of the package, and takes all SQL of it away as soon as the bus is open.
_SCRIPT = """
import asyncio, sys
from pathlib import Path
import agentbus
from agentbus.sync.bus import open_bus

package = Path(agentbus.__file__).parent
assert package.parent == Path(sys.argv[1]), package
place, database = sys.argv[2:]

@agentbus.workflow("work")
async def work(task):
    return await task.step("one", lambda: 7)

def take_away():
    files = [*package.parent.rglob("*.sql")]
    assert len(files) > 30, files
    for file in files:
        file.unlink()

async def use():
    async with agentbus.connect(place) as bus:
        take_away()
        async with bus.agent("a", type="worker") as a:
            await a.send("a", "note", 1)
            message = await a.receive(timeout=5)
            await message.ack()
            await a.state.set("k", 1)
            await a.checkpoint("c", {"x": 1})
            async with bus.session("planning", id="s-1") as session:
                await session.document("plan").save({"x": 1})
        task = await bus.tasks.start(work)
        await bus.tasks.run_worker(work, until_idle=True)
        assert await bus.tasks.result(task.id) == 7
        report = await bus.import_path(database)
        assert report.imported == {"task": 4, "checkpoint": 3}, report
        errors = [check for check in await bus.doctor() if check.status == "error"]
        assert not errors, errors
        await bus.recovery.summary()
        return (await bus.backup()).path if on_disk else None

on_disk = not place.startswith("postgres")
backup = asyncio.run(use())
if on_disk:
    agentbus.restore_backup(backup, place)
    # A new bus, on which every migration is run.
    open_bus(f"{place}-2", create=True).close()
with open_bus(place) as bus:
    assert bus.stats().agents
"""


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_bus_stays_usable_when_the_package_is_replaced(
    tmp_path: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    copy = tmp_path / "copy"
    # With the compiled modules, which are those of the copied sources.
    shutil.copytree(ROOT / "agentbus", copy / "agentbus")
    shutil.copytree(ROOT / "schemas", copy / "schemas")
    place, name, schemas = str(tmp_path / "bus"), "", None
    if engine == "postgres":
        schemas = request.getfixturevalue("schemas")
        assert isinstance(schemas, Schemas)
        name = schemas.take()
        place = at_schema(schemas.url, name)
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(copy), place, str(workflow(tmp_path / "workflow.db"))],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if schemas is not None:
        schemas.give_back(name)
    assert done.returncode == 0, done.stderr
