"""Importing folders of JSON files: each kind is recognised, imported once, and reported."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

import agentbus
from agentbus import Bus
from tests.api.helpers import held, known, worker
from tests.api.legacy_files import agent, session, write
from tests.support.clock import FakeClock

MORNING = 1705314600000
"""2024-01-15T10:30:00Z."""


async def unchanged_by_another(bus: Bus, path: Path, taken: int) -> None:
    """Importing again changes nothing."""
    before = [event async for event in bus.events()]
    again = await bus.import_path(path)
    assert again.imported == {}
    assert again.present == taken
    assert [event async for event in bus.events()] == before


async def test_a_folder_with_a_file_for_each_agent(bus: Bus, tmp_path: Path) -> None:
    write(tmp_path / "planner-1.json", agent("planner-1"))
    write(tmp_path / "run.json", agent("runner", status="running", progress=0.5, agent_type="log-watcher"))
    write(tmp_path / "stop.json", agent("stopper", status="cancelled", estimated_duration="15 minutes"))
    write(tmp_path / "bad.json", agent("unlucky", status="error", error="no tokens", load_percentage="about half"))
    write(tmp_path / "new.json", agent("newcomer", status="pending", agent_type=None))
    report = await bus.import_path(tmp_path)
    assert report.imported == {"agent": 5}
    assert (report.present, report.refused, report.changed) == (0, 0, 1)
    assert "load_percentage 'about half'" in report.problems[0].reason
    planner = await known(bus, "planner-1")
    assert (planner.name, planner.type, planner.parent) == ("Agent planner-1", "milestone-planner", "coord-001")
    assert (planner.model, planner.prompt, planner.load, planner.estimate) == ("opus", "Plan the milestone.", 40, 1800)
    assert (planner.status, planner.progress) == ("completed", 100)
    assert (planner.created, planner.started) == (MORNING, MORNING + 5000)
    assert (planner.updated, planner.ended) == (MORNING + 1_800_000, MORNING + 1_800_000)
    assert planner.metadata == {"milestone": "ms-123", "pid": 4711}
    runner = await known(bus, "runner")
    assert (runner.status, runner.error, runner.progress, runner.type) == ("failed", "imported", 50, "log-watcher")
    assert "log-watcher" in {type.name for type in await bus.types("agent")}
    assert ((await known(bus, "stopper")).status, (await known(bus, "stopper")).estimate) == ("stopped", 900)
    assert ((await known(bus, "unlucky")).status, (await known(bus, "unlucky")).error) == ("failed", "no tokens")
    assert ((await known(bus, "newcomer")).status, (await known(bus, "newcomer")).type) == ("pending", "worker")
    await unchanged_by_another(bus, tmp_path, 5)


async def test_a_parent_is_not_notified_of_an_agent_imported_as_failed(bus: Bus, tmp_path: Path) -> None:
    parent = await worker(bus, "coord-001")
    write(tmp_path / "a.json", agent("a", status="running"))
    await bus.import_path(tmp_path)
    assert (await known(bus, "a")).status == "failed"
    assert await parent.receive(timeout=0) is None
    kinds = [event.kind async for event in bus.events()]
    assert "agent_failed" not in kinds
    assert kinds[-1] == "archive_imported"


async def test_an_imported_agent_can_register_and_a_live_one_is_unchanged(bus: Bus, tmp_path: Path) -> None:
    alive = await worker(bus, "alive")
    write(tmp_path / "a.json", agent("a", status="running"))
    write(tmp_path / "alive.json", agent("alive", status="running"))
    report = await bus.import_path(tmp_path)
    assert (report.imported, report.present) == ({"agent": 1}, 1)
    await alive.progress(50)
    again = await worker(bus, "a")
    assert again.epoch == 2


@pytest.mark.one_engine
@pytest.mark.parametrize("shape", ["list", "map", "agents list", "agents map", "statuses", "names", "one"])
async def test_a_list_or_map_of_agents(bus: Bus, tmp_path: Path, shape: str) -> None:
    a, b = agent("a"), agent("b", status="running")
    shapes = {
        "list": [a, b],
        "map": {"a": a, "b": {**b, "agent_id": None}},
        "agents list": {"agents": [a, b], "updated": 1},
        "agents map": {"agents": {"a": a, "b": b}},
        "statuses": {"a": "completed", "b": "running"},
        "names": ["a", "b"],
        "one": a,
    }
    write(tmp_path / "agent_state.json", shapes[shape])
    report = await bus.import_path(tmp_path)
    assert (report.imported, report.refused) == ({"agent": 1 if shape == "one" else 2}, 0)
    assert (await known(bus, "a")).status == ("pending" if shape == "names" else "completed")
    assert report.files[0].format == "agents"
    await unchanged_by_another(bus, tmp_path / "agent_state.json", 1 if shape == "one" else 2)


@pytest.mark.one_engine
async def test_an_invalid_entry_of_a_list_is_named_and_the_others_are_imported(bus: Bus, tmp_path: Path) -> None:
    entries = [agent("a"), 7, agent("b", agent_id=None), agent("c", progress=-5, load_percentage=1e9), None]
    write(tmp_path / "agent_state.json", entries)
    report = await bus.import_path(tmp_path)
    assert report.imported == {"agent": 2}
    assert [problem.line for problem in report.problems] == [2, 3, 5]
    assert {problem.file for problem in report.problems} == {"agent_state.json"}
    assert ((await known(bus, "c")).progress, (await known(bus, "c")).load) == (0, 100)


@pytest.mark.one_engine
async def test_a_file_of_an_agent_knows_more_than_a_list(bus: Bus, tmp_path: Path) -> None:
    write(tmp_path / "agent_state.json", {"a": "running"})
    write(tmp_path / "agents" / "a.json", agent("a"))
    report = await bus.import_path(tmp_path)
    assert (report.imported, report.present) == ({"agent": 1}, 1)
    assert (await known(bus, "a")).model == "opus"


@pytest.mark.one_engine
@pytest.mark.parametrize(
    ("word", "status"),
    [
        ("active", "interrupted"),
        ("paused", "paused"),
        ("completed", "completed"),
        ("error", "failed"),
        ("idle", "paused"),
        ("ERROR", "failed"),
        ("?", "interrupted"),
    ],
)
async def test_the_current_session_with_its_status(bus: Bus, tmp_path: Path, word: str, status: str) -> None:
    write(tmp_path / "current_session.json", session(status=word))
    report = await bus.import_path(tmp_path)
    assert report.refused == 0
    assert report.changed == (1 if word == "?" else 0)
    found = await held(bus, "session-20240115")
    assert (found.status, found.progress, found.operation) == (status, 60, "imported")
    assert found.created == MORNING - 1_800_000
    assert (found.ended is not None) == (status in {"completed", "failed"})
    assert report.imported == {"session": 1, "participant": 4, "state": 3, "agent": 4}
    await unchanged_by_another(bus, tmp_path, 12)


async def test_an_imported_session_continues_where_its_meeting_was(bus: Bus, tmp_path: Path) -> None:
    write(tmp_path / "current_session.json", session())
    write(tmp_path / "agents" / "planner.json", agent("planner-1", status="running", session_id="session-20240115"))
    await bus.import_path(tmp_path)
    assert (await known(bus, "planner-1")).model == "opus", "the file knows more than the session"
    assert (await known(bus, "planner-1")).session == "session-20240115"
    assert (await known(bus, "risk-assessor")).status == "failed"
    plan = await bus.recovery.plan("session-20240115")
    await plan.resume()
    opened = await bus.sessions.open("session-20240115")
    assert await opened.state.get("pending_actions") == ["review the plan", {"action": "deploy"}]
    team = await opened.participants(["scope-analyzer", "estimation-agent", "risk-assessor"], name="planning")
    assert list(team.remaining) == ["risk-assessor", "planner-1"]


async def test_outputs_are_documents_of_the_session_in_the_same_folder(bus: Bus, tmp_path: Path) -> None:
    for name in ("last_planning_output", "last_execution_output", "deployment_state", "metrics_state"):
        write(tmp_path / f"{name}.json", {"of": name})
    write(tmp_path / "current_session.json", session(status="paused"))
    report = await bus.import_path(tmp_path)
    assert report.imported["document"] == 4
    opened = await bus.sessions.open("session-20240115")
    assert await opened.document("metrics_state").latest() == {"of": "metrics_state"}
    write(tmp_path / "metrics_state.json", {"of": "later"})
    assert (await bus.import_path(tmp_path)).imported == {"document": 1}
    assert [record.version for record in await opened.document("metrics_state").history()] == [2, 1]


@pytest.mark.one_engine
async def test_outputs_without_a_session_get_one_of_their_own(bus: Bus, tmp_path: Path) -> None:
    folder = tmp_path / "my state"
    write(folder / "last_planning_output.json", {"plan": [1]})
    report = await bus.import_path(folder / "last_planning_output.json")
    assert report.imported == {"session": 1, "document": 1}
    (made,) = (await bus.sessions.list()).items
    assert made.id.startswith("imported-my-state.")
    assert made.status == "completed"
    opened = await bus.sessions.open(made.id)
    assert await opened.document("last_planning_output").latest() == {"plan": [1]}
    await unchanged_by_another(bus, folder, 2)


async def test_checkpoints_of_agents_and_sessions(bus: Bus, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    write(folder / "checkpoint_20240115_103000.json", {"agent_id": "a", "checkpoint_name": "half", "step": 1})
    write(folder / "checkpoint_20240115_113000.json", {"agent_id": "a", "checkpoint_name": "half", "step": 2})
    write(folder / "checkpoint_20240115_123000.json", {"session_id": "s 1", "state": {"x": 1}})
    write(folder / "checkpoint_20240115_133000.json", [1, 2, 3])
    report = await bus.import_path(tmp_path)
    assert report.imported == {"checkpoint": 4, "session": 2}
    latest = await bus.checkpoints.latest("a", "half")
    assert latest is not None
    assert latest.snapshot["step"] == 2
    assert latest.created == round(datetime(2024, 1, 15, 11, 30).timestamp() * 1000), "in local time"
    assert len((await bus.checkpoints.list("a")).items) == 2
    kinds = [(item.owner_kind, item.name) for item in (await bus.checkpoints.list(kind="session")).items]
    assert kinds == [("session", "checkpoint"), ("session", "checkpoint")]
    await unchanged_by_another(bus, tmp_path, 6)


async def test_an_older_checkpoint_never_becomes_the_newest(bus: Bus, tmp_path: Path) -> None:
    a = await worker(bus, "a")
    await a.checkpoint("half", {"step": 9})
    write(tmp_path / "checkpoint_20000115_103000.json", {"agent_id": "a", "checkpoint_name": "half", "step": 1})
    report = await bus.import_path(tmp_path)
    assert (report.imported, report.refused) == ({}, 1)
    assert "older than the data on this bus" in report.problems[0].reason
    latest = await a.restore("half")
    assert latest is not None
    assert latest.snapshot == {"step": 9}


@pytest.mark.one_engine
@pytest.mark.parametrize(
    "stamp",
    ["1705314600", "1705314600000", "20240115-103000", "20240115_103000", "20240115T103000Z", "20240115103000"],
)
async def test_loose_temp_files_are_state(bus: Bus, tmp_path: Path, stamp: str) -> None:
    write(tmp_path / f"scope-analysis-{stamp}.json", {"files": 12})
    write(tmp_path / f"note_of_a-{stamp}.json", {"agent_id": "a", "text": "x"})
    report = await bus.import_path(tmp_path)
    assert report.imported == {"state": 2}
    entry = await bus.state("imported").entry(f"scope-analysis-{stamp}")
    assert entry is not None
    assert (entry.value, entry.type) == ({"files": 12}, "temp_data")
    local = not stamp.startswith("17") and not stamp.endswith("Z")
    assert entry.created == (round(datetime(2024, 1, 15, 10, 30).timestamp() * 1000) if local else MORNING)
    assert (await bus.state("a").get(f"note_of_a-{stamp}"))["text"] == "x"
    await unchanged_by_another(bus, tmp_path, 2)
    await bus.state("a").delete(f"note_of_a-{stamp}")
    await unchanged_by_another(bus, tmp_path, 2)


async def test_existing_state_is_never_overwritten(bus: Bus, tmp_path: Path) -> None:
    await bus.state("imported").set("x-1705314600", "mine")
    write(tmp_path / "x-1705314600.json", "theirs")
    report = await bus.import_path(tmp_path)
    assert (report.imported, report.refused) == ({}, 1)
    assert "different value" in report.problems[0].reason
    assert await bus.state("imported").get("x-1705314600") == "mine"


@pytest.mark.one_engine
async def test_an_agents_file_with_a_timestamp_in_its_name_is_an_agent(bus: Bus, tmp_path: Path) -> None:
    write(tmp_path / "agent-1705314600.json", agent("a"))
    assert (await bus.import_path(tmp_path)).imported == {"agent": 1}


@pytest.mark.one_engine
async def test_invalid_names_are_changed_and_stay_distinct(bus: Bus, tmp_path: Path) -> None:
    entries = [agent(id, parent_agent_id="the boss") for id in ("a b", "a-b", "a\tb", "session:x", "pool:p", "é" * 300)]
    write(tmp_path / "agent_state.json", [*entries, agent("x", agent_type="Log Watcher!")])
    report = await bus.import_path(tmp_path)
    assert report.imported == {"agent": 7}
    assert report.changed == 12
    assert all(problem.taken and "became" in problem.reason for problem in report.problems)
    ids = [record.id for record in (await bus.agents.list()).items]
    assert "a-b" in ids
    assert len(set(ids)) == 7
    assert len({record.parent for record in (await bus.agents.list()).items}) == 2
    await unchanged_by_another(bus, tmp_path, 7)


@pytest.mark.one_engine
async def test_times_of_several_kinds(bus: Bus, tmp_path: Path) -> None:
    spellings = [
        "2024-01-15T10:30:00Z", "2024-01-15T11:30:00+01:00", 1705314600, 1705314600000, 1705314600.0, "1705314600",
        "1705314600000",
    ]  # fmt: skip
    times = dict(enumerate(spellings))
    write(tmp_path / "agent_state.json", [agent(f"a{n}", created_at=time) for n, time in times.items()])
    await bus.import_path(tmp_path)
    assert {record.created for record in (await bus.agents.list()).items} == {MORNING}
    wrong = ["soon", -5, 1e300, True, [], {}, "9999-99-99", "0001-01-01T00:00:00"]
    write(tmp_path / "b" / "agent_state.json", [
        agent(f"b{n}", created_at=time, started_at=None) for n, time in enumerate(wrong)
    ])  # fmt: skip
    assert (await bus.import_path(tmp_path / "b")).imported == {"agent": len(wrong)}


@pytest.mark.one_engine
async def test_unrecognised_files_are_named(bus: Bus, tmp_path: Path) -> None:
    write(tmp_path / "package.json", {"name": "x"})
    (tmp_path / "README.md").write_text("hello")
    (tmp_path / ".git").mkdir()
    write(tmp_path / ".git" / "x-1705314600.json", 1)
    report = await bus.import_path(tmp_path)
    assert (report.imported, report.refused, report.file_count) == ({}, 3, 0)
    assert {problem.file for problem in report.problems} == {"package.json", "README.md", ".git"}
    assert [event async for event in bus.events()] == []


@pytest.mark.one_engine
async def test_progress_is_reported_to_the_end(bus: Bus, tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path / f"{number}.json", agent(f"a{number}"))
    told: list[tuple[int, int, str]] = []
    await bus.import_path(tmp_path, progress=lambda done, total, file: told.append((done, total, file)))
    total = sum(os.path.getsize(file) for file in tmp_path.iterdir())
    assert told[-1][:2] == (total, total)
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)


async def test_another_bus_imports_the_same_from_the_same_folder(bus: Bus, clock: FakeClock, tmp_path: Path) -> None:
    write(tmp_path / "old" / "current_session.json", session())
    write(tmp_path / "old" / "x-1705314600.json", 1)
    async with agentbus.connect(tmp_path / "other", clock=clock) as other:
        first, second = await bus.import_path(tmp_path / "old"), await other.import_path(tmp_path / "old")
    assert first == second
