"""The blocking driver with the asynchronous bus, and its imports."""

import pkgutil
import subprocess
import sys
from pathlib import Path

import agentbus.operations.protocol
from tests.faults.rows import integrity, rows
from tests.support.processes import Team
from tests.support.zygote import ROOT

COUNT = 20


def test_the_blocking_driver_and_the_asynchronous_bus_talk_to_each_other(short: Path, team: Team) -> None:
    bus = short / "bus"
    # Its beat comes once an hour: it answers because the blocking driver rang its bell.
    team.start("worker_echo", bus, "echo").expect("ready")
    said = team.start("worker_blocking", bus, COUNT, preloaded=False).finish()
    answers = [line.split() for line in said if line.startswith("got")]
    print(f"{len(answers)} answers, the slowest after {max(float(answer[3]) for answer in answers)} ms")
    assert [answer[2] for answer in answers] == [f'{{"echo":{number},"by":"echo"}}' for number in range(COUNT)]
    assert said[COUNT:] == ["status running", "error unknown_recipient", "modules"]
    assert rows(bus, "SELECT status, count(*) FROM messages GROUP BY status") == [("acked", 2 * COUNT)]
    assert rows(bus, "SELECT status FROM agents WHERE id = 'blocking'") == [("stopped",)]
    assert integrity(bus) == "ok"


def test_the_blocking_driver_and_the_operations_start_without_asyncio() -> None:
    modules = [f"agentbus.operations.{module.name}" for module in pkgutil.iter_modules(agentbus.operations.__path__)]
    assert len(modules) > 5
    script = (
        f"import sys, agentbus, agentbus.engine.sqlite.blocking, {', '.join(modules)}\n"
        "print(*(name for name in ('asyncio', 'anyio', 'aiosqlite', 'tenacity', 'rich', 'agentbus.api.bus')"
        " if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
