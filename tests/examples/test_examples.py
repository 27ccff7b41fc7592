"""Run every program of ``examples/`` as a user does; check what it prints and the bus that it leaves.

Each runs on SQLite, and the one with the most kinds of processes, a task with its workers and an operator, on
PostgreSQL too: the programs only name the place of their bus. ``tests/cli`` runs a shell script on PostgreSQL.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from types import MappingProxyType

import pytest

import agentbus
from examples import planner_and_pool
from tests.conftest import Engine
from tests.support import zygote

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
TIMEOUT = 100.0


def run(name: str, *arguments: str, environment: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Run an example to its end; return the lines it printed."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("AGENTBUS_", "PYTHONDONT"))}
    done = zygote.run(
        ["bash" if name.endswith(".sh") else sys.executable, str(EXAMPLES / name), *arguments],
        env={**inherited, "PATH": zygote.search_path(inherited), **environment},
        timeout=TIMEOUT,
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    assert done.returncode == 0, out + err
    assert "Traceback" not in err, err
    return out.splitlines()


async def statuses(bus: agentbus.Bus) -> dict[str, str]:
    return {agent.id: agent.status for agent in (await bus.agents.list()).items}


@pytest.mark.one_engine
async def test_a_pool_records_each_result_once_though_a_worker_crashes(engine: Engine) -> None:
    lines = run("planner_and_pool.py", engine.url)
    assert lines[0] == "planner sent 24 jobs to pool:primes in one commit"
    crashed = re.fullmatch(r"(worker-\d) exited with status 1; starting a replacement", lines[1])
    assert crashed
    assert lines[2:4] == [
        "jobs 24, deliveries 25, results 24",
        "primes below 24000: 2668 reported, 2668 counted",
    ]
    async with agentbus.connect(engine.url, create=False) as bus:
        assert set((await statuses(bus)).values()) == {"completed"}
        agents = {agent.id: agent.epoch for agent in (await bus.agents.list(type="worker")).items}
        assert agents == {name: 2 if name == crashed[1] else 1 for name in ("worker-1", "worker-2", "worker-3")}
        jobs = (await bus.messages.list(to=agentbus.pool("primes"))).items
        assert [job.attempts for job in jobs if job.payload != [7000, 8000]] == [1] * 23
        assert [job.attempts for job in jobs if job.payload == [7000, 8000]] == [2]
        assert set((await bus.stats()).messages) == {"acked"}
        assert await bus.state("primes").get("total") == 2668
        assert sum([await bus.state(name).get("jobs", 0) for name in agents]) == 24


@pytest.mark.one_engine
async def test_a_worker_of_the_pool_may_start_when_the_work_is_done(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Start a worker only once the planner has told it to stop."""
    monkeypatch.setenv("AGENTBUS_URL", engine.url)
    supervise = planner_and_pool.supervise

    async def supervise_late(name: str) -> None:
        if name == "worker-3":
            async with agentbus.connect() as bus, aclosing(bus.live()) as changes:
                async for _ in changes:
                    if (await bus.messages.list(to=name)).items:
                        break
        await supervise(name)

    monkeypatch.setattr(planner_and_pool, "supervise", supervise_late)
    async with asyncio.timeout(TIMEOUT):
        await planner_and_pool.plan()
    assert capsys.readouterr().out.splitlines()[-1] == "worker-3 completed, incarnation 1, jobs 0"


async def test_a_task_waits_for_its_approval_and_survives_its_worker(engine: Engine) -> None:
    lines = run("approval_task.py", engine.url)
    assert "no worker is running; release-1.4 waits for approval 'publish'" in lines
    workers = [re.fullmatch(r"  worker (\d+) (.*)", line) for line in lines]
    pids, work = zip(*[found.groups() for found in workers if found], strict=True)
    assert len(set(pids)) == 3
    assert list(work) == [
        "builds 1.4",
        "publishes app-1.4.tar.gz, attempt 1",
        "publishes app-1.4.tar.gz, attempt 2",
    ]
    assert lines[-1] == "approved by ada; result: https://example.org/app-1.4.tar.gz"
    async with agentbus.connect(engine.url, create=False) as bus:
        task = await bus.tasks.get("release-1.4")
        assert task is not None
        assert (task.status, task.result) == ("completed", "https://example.org/app-1.4.tar.gz")
        steps = await bus.tasks.steps("release-1.4")
        assert [(step.name, step.status, step.attempt) for step in steps] == [
            ("build", "finished", 1),
            ("publish", "finished", 2),
        ]
        (approval,) = await bus.tasks.approvals("release-1.4", status=None)
        assert (approval.name, approval.status, approval.by) == ("publish", "approved", "ada")
        assert sorted((await statuses(bus)).values()) == ["completed", "completed", "failed"]


@pytest.mark.one_engine
async def test_shell_agents_share_a_bus(engine: Engine) -> None:
    lines = run("shell_team.sh", engine.url)
    built = {part: name for name, part in (line.split(" built ") for line in lines[:3])}
    assert set(built) == {"parser", "report", "storage"}
    assert lines[3:] == [
        "results:",
        *(f'{part}\t{{"built_by":"{built[part]}"}}' for part in sorted(built)),
        "status:",
        "agents\tcompleted\t3",
        "messages\tacked\t10",
    ]
    async with agentbus.connect(engine.url, create=False) as bus:
        assert await statuses(bus) == dict.fromkeys(("builder-1", "builder-2", "coordinator"), "completed")
        entries = (await bus.state("builds").list()).items
        assert {entry.key: entry.value["built_by"] for entry in entries} == built
        assert {entry.key: entry.author for entry in entries} == built


@pytest.mark.one_engine
async def test_work_killed_in_the_middle_is_recovered(engine: Engine) -> None:
    lines = run("recovery_after_kill.py", engine.url)
    assert "translator failed: its process died; messages to process: 4" in lines
    assert "acknowledged before the kill: ['cover', 'preface']" in lines
    assert any(line.startswith("translation-1 interrupted; options: resume, ") for line in lines)
    again = next(index for index, line in enumerate(lines) if "continues after ['cover', 'preface']" in line)
    assert lines[again + 1 :] == [
        "  chapter-1, delivery 2",
        "  chapter-2, delivery 1",
        "  chapter-3, delivery 1",
        "  index, delivery 1",
        "session completed; pages acknowledged 6, translated 6",
        "delivered twice: ['chapter-1']",
    ]
    async with agentbus.connect(engine.url, create=False) as bus:
        session = await bus.sessions.get("translation-1")
        assert session is not None
        assert session.status == "completed"
        assert await statuses(bus) == {"editor": "completed", "translator": "completed"}
        translator = await bus.agents.get("translator")
        assert translator is not None
        assert translator.epoch == 2
        assert (await bus.stats()).messages == {"acked": 6}
        summary = await bus.recovery.summary()
        assert (summary.interrupted, summary.incomplete, summary.recoveries) == ([], 0, 1)


def test_without_an_argument_the_bus_is_temporary(tmp_path: Path) -> None:
    lines = run("recovery_after_kill.py", environment={"TMPDIR": str(tmp_path)})
    assert lines[-1] == "delivered twice: ['chapter-1']"
    assert list(tmp_path.iterdir()) == []


def test_a_team_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    """Run the shell example where there is no agentbus: it fails after it made its temporary directory."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("bash", "mktemp", "rm"):
        (commands / name).symlink_to(str(shutil.which(name)))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = subprocess.run(
        [commands / "bash", EXAMPLES / "shell_team.sh"],
        env={"PATH": str(commands), "TMPDIR": str(temporary)},
        capture_output=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 127
    assert b"agentbus" in done.stderr
    assert list(temporary.iterdir()) == []


@pytest.mark.one_engine
async def test_one_trace_goes_through_all_processes(engine: Engine) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="needs the extra otel")
    assert run("trace_across_processes.py", engine.url) == [
        "login-1",
        "m-1",
        "6 spans, 1 trace:",
        "start feature  (person)",
        "  invoke_workflow feature  (worker)",
        "    step code  (worker)",
        "      send pool:reviewers  (coding agent)",
        "        process pool:reviewers  (worker)",
    ]


def test_every_example_is_tested() -> None:
    programs = {path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh")}
    # Those of the agent frameworks run in make integrations.
    tests = [*Path(__file__).parent.glob("*.py"), *EXAMPLES.parent.glob("tests/integrations/*.py")]
    named = {
        name for path in tests for name in re.findall(r'"([a-z0-9_]+\.(?:py|sh))"', path.read_text(encoding="utf-8"))
    }
    assert programs <= named


@pytest.mark.one_engine
def test_a_program_of_a_framework_that_is_not_installed_names_what_to_install(tmp_path: Path) -> None:
    hidden = tmp_path / "pydantic_ai.py"
    hidden.write_text("raise ModuleNotFoundError(\"No module named 'pydantic_ai'\")")
    done = zygote.run(
        [sys.executable, str(EXAMPLES / "pydantic_ai_assistant.py")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        timeout=TIMEOUT,
    )
    assert (done.returncode, b"Traceback" in done.stderr, b"pip install" in done.stderr) == (1, False, True)
