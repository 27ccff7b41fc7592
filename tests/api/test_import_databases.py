"""Importing SQLite databases of hand-made coordination: read by the names of their columns, never written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import agentbus
from agentbus import Bus
from tests.api.helpers import held, known, stored, take_all, worker
from tests.api.legacy_files import coordination, workflow
from tests.api.task_workers import task_of, work_off

MORNING = 1705312800000
"""2024-01-15T10:00:00Z."""


async def messages_to(bus: Bus, agent: str) -> list[Any]:
    return [record for record in (await bus.messages.list()).items if record.recipient == agent]


async def test_tasks_are_imported_with_the_results_of_their_steps(bus: Bus, tmp_path: Path) -> None:
    path = workflow(tmp_path / "workflow.db")
    report = await bus.import_path(path)
    assert report.imported == {"task": 4, "checkpoint": 3}
    assert (report.refused, report.changed, report.files[0].format) == (0, 0, "database")
    done = await task_of(bus, "t-1")
    assert (done.status, done.workflow, done.name, done.phase) == ("completed", "imported", "add a login", "done")
    assert (done.arguments, done.result) == (["add a login"], {"ok": True})
    assert (done.created, done.ended) == (MORNING, MORNING + 3_600_000), "SQLite's own times are in UTC"
    assert [(step.key, step.status, step.result) for step in await bus.tasks.steps("t-1")] == [
        ("plan", "finished", {"steps": [1, 2]}), ("implementation", "finished", "diff"), ("review", "finished", "fine"),
        ("verification_result", "finished", {"ok": True}),
    ]  # fmt: skip
    (verdict,) = await bus.tasks.approvals("t-1", status=None)
    assert (verdict.key, verdict.status, verdict.by) == ("approval", "approved", "ann")
    failed = await task_of(bus, "t-2")
    assert (failed.status, failed.phase, failed.restarted) == ("failed", "review", 3)
    assert failed.error is not None
    assert failed.error.message == "boom"
    latest = await bus.checkpoints.latest("t-1", "plan", kind="task")
    assert latest is not None
    assert latest.snapshot == {"steps": [1, 2]}
    again = await bus.import_path(path)
    assert (again.imported, again.present) == ({}, 7)


async def test_an_unfinished_task_waits_for_an_operator_and_resumes_where_it_was(bus: Bus, tmp_path: Path) -> None:
    await bus.import_path(workflow(tmp_path / "workflow.db"))
    left = await task_of(bus, "t-3")
    assert (left.status, left.phase, left.workflow) == ("halted", "plan_awaiting_approval", "feature")
    assert left.context["priority"] == "high", "what there is no place for is kept"
    (numbered,) = (await bus.tasks.list(status="stopped")).items
    assert numbered.id.endswith(":4"), "every database counts from 1"
    called: list[str] = []

    @agentbus.workflow("feature")
    async def feature(task: agentbus.Task, request: str) -> str:
        async def make(what: str) -> Any:
            called.append(what)
            return what

        plan = await task.step("plan", make, "plan", returns=dict)
        verdict = await task.approval("plan")
        code = await task.step("implementation", make, "code")
        return f"{request}: {plan['steps']} {verdict.reason} {code}"

    assert left in await bus.tasks.resumable()
    await bus.tasks.resume("t-3", by="ada")
    await work_off(bus, feature)
    assert (await task_of(bus, "t-3")).result == "make it fast: [7] go on code"
    assert called == ["code"], "what was planned is not planned again"


@pytest.mark.one_engine
async def test_an_imported_decision_without_a_step_is_not_requested_again(bus: Bus, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "decided.db", isolation_level=None)
    connection.executescript("""
        CREATE TABLE tasks (id, status, approvals, description, workflow);
        INSERT INTO tasks VALUES ('t-9', 'running', '{"budget": "yes"}', 'build it', 'budgeted');
    """)
    connection.close()
    await bus.import_path(tmp_path)

    @agentbus.workflow("budgeted")
    async def budgeted(task: agentbus.Task, request: str) -> bool:
        return (await task.approval("budget")).approved

    await bus.tasks.resume("t-9", by="ada")
    await work_off(bus, budgeted)
    assert (await task_of(bus, "t-9")).result is True


@pytest.mark.one_engine
async def test_tasks_of_any_shape_are_imported_or_reported(bus: Bus, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "odd.db", isolation_level=None)
    connection.executescript("""
        CREATE TABLE tasks (id, status, approvals, "plan", description, updated_at, session_id);
        INSERT INTO tasks VALUES
            (1, 'DONE', '{"plan": "yes", "code": {"verdict": "no", "feedback": "ugly"}}', '[1', NULL, 'soon', 'none'),
            ('a b', NULL, '["who knows"]', x'ff', 7, 1705312800, NULL),
            ('huge', 'done', NULL, NULL, NULL, NULL, NULL),
            (NULL, 'done', NULL, NULL, NULL, NULL, NULL);
    """)
    connection.execute("UPDATE tasks SET description = ? WHERE id = 'huge'", ("x" * 2_000_000,))
    connection.close()
    report = await bus.import_path(tmp_path)
    assert (report.imported, report.refused) == ({"task": 2}, 2)
    assert {problem.line for problem in report.problems if not problem.taken} == {3, 4}
    odd, first = sorted((await bus.tasks.list()).items, key=lambda task: len(task.id))
    assert (odd.status, odd.arguments, odd.context["approvals"]) == ("halted", [7], ["who knows"])
    assert (first.status, first.session, first.result) == ("completed", None, "[1")
    verdicts = {one.key: (one.status, one.by, one.reason) for one in await bus.tasks.approvals(first.id, status=None)}
    assert verdicts == {"plan": ("approved", "unknown", None), "code": ("rejected", "unknown", "ugly")}
    assert (await bus.import_path(tmp_path)).imported == {}


async def test_a_registry_with_messages_state_sessions_and_checkpoints(bus: Bus, tmp_path: Path) -> None:
    path = coordination(tmp_path / "coordination.sqlite")
    report = await bus.import_path(path)
    assert report.imported == {"session": 2, "agent": 2, "state": 2, "checkpoint": 2, "message": 3}
    assert [(problem.line, problem.taken) for problem in report.problems] == [(4, False)]
    assert "recipient" in report.problems[0].reason
    session = await held(bus, "plan-1")
    assert (session.status, session.operation, session.milestone) == ("interrupted", "planning", "ms-123")
    assert (session.created, session.metadata) == (MORNING, {"by": "ann"})
    coordinator, executor = await known(bus, "coord-1"), await known(bus, "exec-1")
    assert (coordinator.status, coordinator.error, coordinator.session) == ("failed", "imported", "plan-1")
    assert (coordinator.capabilities, coordinator.created) == (["plan", "sql"], MORNING + 500)
    assert (executor.type, executor.name, executor.parent) == ("code-monkey", "exec-1", "coord-1")
    assert executor.metadata == {"metadata": "no json"}
    assert await bus.state("exec-1").get("scope") == {"files": 12}
    entry = await bus.state("exec-1").entry("x")
    assert entry is not None
    assert (entry.value, entry.type) == ("plain", "user_data")
    latest = await bus.checkpoints.latest("exec-1", "half")
    assert latest is not None
    assert latest.snapshot == {"step": 2}, "the newest by its time, not by its row"
    first, second = sorted(await messages_to(bus, "exec-1"), key=lambda record: record.created)
    assert (first.status, first.priority, first.payload) == ("acked", 7, {"phase": "design"})
    assert (second.status, second.priority, second.payload, second.type) == ("queued", 9, "hello", "shout")
    assert second.created == 1705312901000
    (dead,) = await messages_to(bus, "coord-1")
    assert (dead.status, dead.error) == ("dead", "too late")
    again = await bus.import_path(path)
    assert (again.imported, again.present) == ({}, 11)


async def test_a_message_that_was_not_read_waits_for_its_agent(bus: Bus, tmp_path: Path) -> None:
    await bus.import_path(coordination(tmp_path / "c.db"))
    executor = await worker(bus, "exec-1")
    (message,) = await take_all(executor)
    assert (message.sender, message.payload, message.attempts) == ("coord-1", "hello", 1)
    await message.ack()
    await bus.import_path(tmp_path / "c.db")
    assert await take_all(executor) == [], "importing again does not bring it back"


async def test_an_open_message_must_fit_what_its_type_promises(bus: Bus, tmp_path: Path) -> None:
    await bus.define("shout", schema={"type": "object"})
    report = await bus.import_path(coordination(tmp_path / "c.db"))
    assert report.imported["message"] == 2
    assert any("shout" in problem.reason for problem in report.problems)


@pytest.mark.one_engine
@pytest.mark.parametrize("log", [False, True])
async def test_a_database_is_never_written(bus: Bus, tmp_path: Path, log: bool) -> None:
    path = coordination(tmp_path / "c.db")
    writer = sqlite3.connect(path, isolation_level=None)
    if log:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("INSERT INTO agent_registry (agent_id, status) VALUES ('late', 'done')")
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")}
    report = await bus.import_path(tmp_path)
    after = {file.name: file.read_bytes() for file in tmp_path.iterdir() if not file.name.endswith("-shm")}
    assert after == before
    assert report.imported["agent"] == (3 if log else 2), "what is only in the log counts too"
    assert report.refused == 1, "the message without a recipient; the log is not a separate file"
    writer.close()


@pytest.mark.one_engine
async def test_a_database_in_another_shape(bus: Bus, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "odd.db", isolation_level=None)
    connection.executescript("""
        CREATE TABLE agent_registry ("Agent_ID" BLOB, "STATUS", extra);
        INSERT INTO agent_registry VALUES
            (CAST('blob' AS BLOB), 'active', x'ff00'), (NULL, NULL, NULL), (7, 'done', 1.5);
        CREATE TABLE agent_messages (message_id, sender, recipient, type, content, "read", timestamp);
        INSERT INTO agent_messages VALUES
            ('u-1', 'a', 'b', NULL, NULL, 1, NULL), ('u-2', 'a', 'b', 'note', x'00ff', 0, 'soon'),
            ('m-7', 'a', 'b', 'note', '[1', 0, 1705312900);
        CREATE TABLE agent_state (key, value);
        INSERT INTO agent_state VALUES ('k', 1), (NULL, 2), ('a b', 9e999);
        CREATE TABLE agent_checkpoints (data);
        INSERT INTO agent_checkpoints VALUES ('{}');
        CREATE VIEW coordination_sessions AS
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id FROM n;
        CREATE TABLE unrelated (x);
    """)
    connection.close()
    report = await bus.import_path(tmp_path)
    assert report.imported == {"agent": 2, "message": 3, "state": 2}
    assert {problem.reason.split(" ")[0] for problem in report.problems if not problem.taken} == {
        "invalid", "state", "agent_checkpoints:",
    }  # fmt: skip
    assert (await known(bus, "blob")).metadata == {"extra": {"base64": "/wA="}}
    assert (await known(bus, "7")).status == "completed"
    assert (await stored(bus, "u-1")).status == "acked"
    assert (await stored(bus, "u-2")).payload == {"base64": "AP8="}


@pytest.mark.one_engine
async def test_a_value_that_is_too_large_does_not_block_the_others(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentbus.api.maintenance.importer.importer._MAX_ITEMS", 20)
    connection = sqlite3.connect(tmp_path / "c.db", isolation_level=None)
    connection.execute("CREATE TABLE agent_state (agent_id, key, value)")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO agent_state VALUES ('a', ?, ?)", [(f"k{n}", n) for n in range(50)])
    connection.execute("INSERT INTO agent_state VALUES ('a', 'large', ?)", ['"' + "x" * 2_000_000 + '"'])
    connection.execute("COMMIT")
    connection.close()
    report = await bus.import_path(tmp_path)
    assert (report.imported, report.refused) == ({"state": 50}, 1)
    assert "large" in report.problems[0].reason


@pytest.mark.one_engine
@pytest.mark.parametrize("how", ["random", "cut off", "empty", "no known table", "text"])
async def test_a_damaged_database_is_reported(bus: Bus, tmp_path: Path, how: str) -> None:
    path = coordination(tmp_path / "c.db")
    data = path.read_bytes()
    if how == "random":
        path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    elif how == "cut off":
        path.write_bytes(data[: len(data) // 3])
    elif how == "no known table":
        path.unlink()
        with closing(sqlite3.connect(path)) as other:
            other.executescript("CREATE TABLE x (y); CREATE TABLE checkpoints (z);")
    else:
        path.write_bytes(b"" if how == "empty" else b"hello")
    report = await bus.import_path(tmp_path)
    assert report.refused >= 1
    assert report.problems[0].file == "c.db"
    a = await worker(bus, "a")
    await a.send("a", "note", "the bus still works")
