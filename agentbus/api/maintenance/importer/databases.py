"""SQLite databases of custom workflows and coordination: map their tables to rows of the bus.

A task row with the results of its steps becomes a task whose steps are finished. One that had not ended is halted until
an operator resumes it; a workflow of its name that calls the same steps gets their results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from agentbus.api.maintenance.importer.json_files import Folder, Unreadable, session_for
from agentbus.api.maintenance.importer.mapping import (
    Mapper,
    name_of,
    normalize,
    parse_json_column,
    parse_percent,
    parse_time,
    pick,
    text_of,
)
from agentbus.core.codec import encode, plain
from agentbus.core.validation import STATE_TYPES, TASK_ENDED, session_scope
from agentbus.engine.sqlite.foreign import Foreign
from agentbus.errors import InvalidInput
from agentbus.operations.archive_restore import ImportedRow
from agentbus.operations.archive_rows import ArchivedApproval, ArchivedCheckpoint, ArchivedStep, ArchivedTask
from agentbus.records import TaskProblem

TaskRow = Mapping[str, Any]
Row = dict[str, Any]
PositionedApproval = Callable[[int], ArchivedApproval]
"""Returns a decision for a position in the order of its task."""
WORKFLOW = "imported"
"""The workflow of a task that names none."""
_ID = ("id", "task_id", "uuid")
_REQUEST = ("request", "task_description", "description", "prompt", "task", "input", "goal")
_STEPS = (
    "analysis", "research", "requirements", "scope", "design", "plan", "implementation", "code", "changes", "review",
    "review_result", "tests", "test_results", "validation", "validation_result", "verification", "verification_result",
    "documentation", "deployment",
)  # fmt: skip
"""Columns with the result of a step, in the usual order of workflows."""
_RESULT = ("result", "final_result", "output", "outcome")
_STATUSES = {
    **dict.fromkeys(("completed", "complete", "done", "finished", "success", "succeeded", "verified"), "completed"),
    **dict.fromkeys(("failed", "failure", "error", "errored", "crashed", "timeout"), "failed"),
    **dict.fromkeys(("stopped", "cancelled", "canceled", "aborted", "terminated", "killed"), "stopped"),
    **dict.fromkeys(("pending", "queued", "created", "new", "scheduled", "running", "active", "in_progress"), "halted"),
    **dict.fromkeys(("waiting", "paused", "halted", "interrupted", "blocked", "started", "resumed", ""), "halted"),
}
"""Any other status is the phase in which the task was interrupted."""
_YES = frozenset({"yes", "approved", "approve", "accepted", "accept", "ok", "true", "1", "granted", "pass", "passed"})
_NO = frozenset({"no", "rejected", "reject", "denied", "deny", "declined", "false", "0", "fail", "failed"})
_MAX_NAME = 200
_CREATED = ("created_at", "created", "timestamp", "time", "saved_at")
_DATA = ("snapshot", "data", "checkpoint_data", "state_snapshot", "state_data", "state", "workflow_state", "payload")
_TITLE = ("checkpoint_name", "name", "step", "step_name", "phase", "stage", "checkpoint_type", "type", "label")
_MAX_SORTED = 2000
_MAX_SORTED_BYTES = 32 * 1024 * 1024


def task_id(id: object, prefix: str) -> str | None:
    """Return the id of a task; a number gets a prefix, since every database counts from 1."""
    return name_of(id if isinstance(id, str) and not id.isdigit() else f"{prefix}:{id}")


def task_of(row: TaskRow, number: int, prefix: str, mapper: Mapper) -> ImportedRow | None:
    """Map a row to a task, or report why not and return None."""
    raw_id = pick(row, *_ID)
    id = None if raw_id is None else task_id(raw_id, prefix)
    if id is None:
        mapper.tally.refuse(number, "tasks: a row without an id")
        return None
    known = {name: parse_json_column(value) for name, value in row.items()}
    try:
        return _Task(id, known, number, mapper).to_row()
    except InvalidInput as error:
        mapper.tally.refuse(number, f"task {id}: {error}")
        return None


class _Task:
    """One row, read field by field; the fields that are left become the context of the task."""

    def __init__(self, id: str, row: dict[str, Any], number: int, mapper: Mapper) -> None:
        self._id = id
        self._row = row
        self._number = number
        self._limit = mapper.payload
        self._rest = {name: value for name, value in row.items() if value is not None}
        created_at = mapper.time(row, "created_at", "created", "started_at", "timestamp")
        self._dated = created_at is not None
        self._created = mapper.modified if created_at is None else created_at
        changed = mapper.time(row, "updated_at", "last_updated", "completed_at", "ended_at", "updated")
        self._updated = max(self._created, changed or self._created)

    def to_row(self) -> ImportedRow:
        said = normalize(self._take("status", "state"))
        status = _STATUSES.get(said, "halted")
        error = self._take("error", "error_details", "error_message", "failure_reason", "last_error")
        request = self._take(*_REQUEST)
        title = text_of(self._take("title", "name")) or text_of(request) or self._id
        result = self._take(*_RESULT)
        phase = self._phase(said)
        steps, approvals = self._steps_and_approvals()
        # A completed task has a result: at least that of its last step.
        if result is None and status == "completed" and steps:
            outcome = (str(steps[-1].result), steps[-1].checksum)
        else:
            outcome = encode(result, self._limit)
        arguments, checksum = encode({"arguments": [] if request is None else [request], "keywords": {}}, self._limit)
        took = self._take("retry_count", "retries", "attempts")
        done = status == "completed"
        workflow = name_of(self._take("workflow", "workflow_name", "workflow_type", "task_type")) or WORKFLOW
        settings = self._take("settings", "config")
        progress = parse_percent(self._take("progress", "progress_percentage"))
        session = name_of(self._take("session_id", "session"))
        ended = status in TASK_ENDED
        return ImportedRow(
            ArchivedTask(
                id=self._id, workflow=workflow, name=title[:_MAX_NAME], session=session, parent=None, status=status,
                phase=phase, auto=0, progress=100 if done else progress or 0, note=None, generation=0, lease=0,
                restarts=0, backoff=1000, restarted=took if isinstance(took, int) and 0 <= took < 10**6 else 0,
                error=self._problem(error, status), created=self._created,
                started=self._created if steps or approvals or ended else None, updated=self._updated,
                ended=self._updated if ended else None, notes="{}", settings=self._notes(settings),
                context=self._notes(self._context()), waits="[]", checksum=checksum, arguments=arguments,
                result_sum=outcome[1] if done else None, result=outcome[0] if done else None, steps=steps,
                approvals=approvals,
            ),
            dated=self._dated, number=self._number,
        )  # fmt: skip

    def _take(self, *names: str) -> Any:
        """Return the first of these fields with a value, and remove it from the context."""
        for name in names:
            if self._row.get(name) not in (None, ""):
                self._rest.pop(name, None)
                return self._row[name]
        return None

    def _phase(self, said: str) -> str | None:
        """Return a phase: a custom status, or the state of the workflow."""
        if said not in _STATUSES:
            return name_of(said)
        state = self._row.get("workflow_state")
        if isinstance(state, Mapping):
            state = pick(state, "phase", "current_phase", "step", "current_step", "state")
        return name_of(state or self._row.get("phase") or self._row.get("current_phase"))

    def _steps_and_approvals(self) -> tuple[list[ArchivedStep], list[ArchivedApproval]]:
        """Return the finished steps and the decisions, each decision positioned after its step or at the end."""
        decisions = self._decisions()
        steps: list[ArchivedStep] = []
        approvals: list[ArchivedApproval] = []
        position = 0
        for name in _STEPS:
            value = self._take(name)
            if value is not None:
                position += 1
                steps.append(self._step(name, position, value))
                for decision in decisions.pop(name, ()):
                    position += 1
                    approvals.append(decision(position))
        for left in decisions.values():
            for decision in left:
                position += 1
                approvals.append(decision(position))
        return steps, approvals

    def _step(self, name: str, position: int, value: Any) -> ArchivedStep:
        text, checksum = encode(value, self._limit)
        return ArchivedStep(
            kind="step", key=name, superseded=0, name=name, position=position, status="finished", main=1, once=0,
            attempt=1, failures=0, digest="", progress=None, note=None, child=None, due=None, error=None,
            started=self._updated, finished=self._updated, checksum=checksum, validation=None, result=text,
        )  # fmt: skip

    def _decisions(self) -> dict[str, list[PositionedApproval]]:
        """Return the decisions by the step that they concern."""
        given = self._row.get("approvals")
        if isinstance(given, Mapping):
            given = [_named_decision(name, one) for name, one in given.items()]
        if not isinstance(given, list) or not all(isinstance(one, Mapping) and _verdict(one) for one in given):
            # Left in the context unchanged.
            return {}
        self._rest.pop("approvals", None)
        counts: Counter[str] = Counter()
        found: dict[str, list[PositionedApproval]] = {}
        for one in given:
            name = name_of(pick(one, "name", "approval", "phase", "step", "stage", "type")) or "approval"
            counts[name] += 1
            key = name if counts[name] == 1 else f"{name}#{counts[name]}"
            found.setdefault(name, []).append(self._decision(one, name, key))
        return found

    def _decision(self, raw: TaskRow, name: str, key: str) -> PositionedApproval:
        at = (
            parse_time(pick(raw, "at", "timestamp", "decided_at", "approved_at", "created_at", "time")) or self._updated
        )
        by = text_of(pick(raw, "by", "approver", "approved_by", "user", "operator", "who")) or "unknown"
        reason = text_of(pick(raw, "reason", "comment", "comments", "feedback", "notes"))
        shown, checksum = encode(None, self._limit)

        def at_position(position: int) -> ArchivedApproval:
            return ArchivedApproval(
                key=key, superseded=0, name=name, position=position, status=_verdict(raw), auto=0, notify=None,
                expires=None, created=at, decided=at, decided_by=by[:_MAX_NAME], reason=reason, checksum=checksum,
                shown=shown,
            )  # fmt: skip

        return at_position

    def _problem(self, error: Any, status: str) -> str | None:
        if error is None and status != "failed":
            return None
        return plain(TaskProblem("Imported", (text_of(error) or "imported as failed")[:10_000]))

    def _context(self) -> dict[str, Any]:
        own = self._take("context", "metadata")
        for name in (*_ID, "created_at", "updated_at"):
            self._rest.pop(name, None)
        return {**self._rest, **(own if isinstance(own, Mapping) else {} if own is None else {"context": own})}

    def _notes(self, value: Any) -> str:
        return encode(dict(value) if isinstance(value, Mapping) else {}, self._limit)[0]


def _named_decision(name: str, one: Any) -> TaskRow:
    return {"name": name, **(one if isinstance(one, Mapping) else {"decision": one})}


def _verdict(raw: TaskRow) -> str:
    """Return the status of a decision, or an empty string if it is unclear."""
    said = normalize(str(pick(raw, "decision", "verdict", "status", "approved", "result", "answer")))
    return "approved" if said in _YES else "rejected" if said in _NO else ""


def rows_of(database: Foreign, path: Path, mapper: Mapper) -> Iterator[ImportedRow]:
    """Yield the rows of all known tables of a database in import order."""
    if database.is_bus:
        raise Unreadable(reason="it is the database of a bus: export that bus and import the file")
    known = [table for table in _READERS if table in database.tables]
    if "tasks" not in known and "checkpoints" in known:
        known.remove("checkpoints")
    if not known:
        raise Unreadable(reason="it has no known table")
    folder = Folder(path)
    for table in known:
        items = _mapped(database, table, folder, mapper)
        yield from _sorted_by_time(items) if table.endswith("checkpoints") else items


def _mapped(database: Foreign, table: str, folder: Folder, mapper: Mapper) -> Iterator[ImportedRow]:
    read = _READERS[table]
    for number, row in enumerate(database.rows(table), 1):
        try:
            items = [item for item in read(row, number, folder, mapper) if item is not None]
        except RecursionError:
            mapper.tally.refuse(number, f"{table}: a value is nested too deep")
        else:
            yield from items


def _task(row: Row, number: int, folder: Folder, mapper: Mapper) -> Iterator[ImportedRow | None]:
    yield task_of(row, number, folder.own, mapper)


def _task_checkpoint(row: Row, number: int, folder: Folder, mapper: Mapper) -> Iterator[ImportedRow | None]:
    """Map a checkpoint of a task, or of a session created for it if it names no task."""
    raw_id = pick(row, "task_id", "task")
    task = None if raw_id is None else task_id(raw_id, folder.own)
    if task is None and not folder.session_created:
        folder.session_created = True
        yield session_for(folder.own, folder, mapper)
    owner = ("session", folder.own) if task is None else ("task", task)
    yield mapper.checkpoint(
        owner, pick(row, *_TITLE) or "checkpoint", _data(row), number, created=mapper.time(row, *_CREATED),
        session=folder.own if task is None else None, notes=pick(row, "notes", "description"),
    )  # fmt: skip


def _session(row: Row, number: int, folder: Folder, mapper: Mapper) -> Iterator[ImportedRow | None]:
    yield from mapper.session({name: parse_json_column(value) for name, value in row.items()}, number)


def _agent(row: Row, number: int, folder: Folder, mapper: Mapper) -> Iterator[ImportedRow | None]:
    yield mapper.agent(row, number)


def _state(row: Row, number: int, folder: Folder, mapper: Mapper) -> Iterator[ImportedRow | None]:
    agent = pick(row, "agent_id", "agent", "owner", "scope")
    session = name_of(pick(row, "session_id"))
    scope = mapper.name(agent, "agent id", number) if agent is not None else None
    if scope is None:
        scope = session_scope(session) if session is not None else "imported"
    kind = pick(row, "state_type", "type", "data_type")
    yield mapper.state(
        scope,
        pick(row, "state_key", "key", "name") or (kind if isinstance(kind, str) and kind else "state"),
        parse_json_column(_first(row, "state_value", "value", "state_data", "data", "state")),
        number,
        created=mapper.time(row, "created_at", "created", "updated_at", "timestamp"),
        updated=mapper.time(row, "updated_at", "last_updated", "timestamp"),
        expires=mapper.time(row, "expires_at"),
        type=kind if kind in STATE_TYPES else "user_data",
        author=None if agent is None else scope,
    )


def _checkpoint(row: Row, number: int, folder: Folder, mapper: Mapper) -> Iterator[ImportedRow | None]:
    agent = name_of(pick(row, "agent_id", "agent", "owner"))
    session = name_of(pick(row, "session_id", "session"))
    if agent is None and session is None:
        mapper.tally.refuse(number, "agent_checkpoints: a row that names neither an agent nor a session")
        return
    owner = ("agent", agent) if agent is not None else ("session", str(session))
    yield mapper.checkpoint(
        owner, pick(row, *_TITLE) or "checkpoint", _data(row), number,
        created=mapper.time(row, *_CREATED), session=session, notes=pick(row, "notes", "description"),
    )  # fmt: skip


def _message(row: Row, number: int, folder: Folder, mapper: Mapper) -> Iterator[ImportedRow | None]:
    yield mapper.message(row, number, folder.own)


_READERS: dict[str, Callable[[Row, int, Folder, Mapper], Iterator[ImportedRow | None]]] = {
    "coordination_sessions": _session,
    "tasks": _task,
    "checkpoints": _task_checkpoint,
    "agent_registry": _agent,
    "agent_state": _state,
    "agent_checkpoints": _checkpoint,
    "agent_messages": _message,
}
"""In import order: rows come after those that they refer to."""


def _first(row: Row, *names: str) -> Any:
    """Return the first of these columns that exists; its value may be null."""
    return next((row[name] for name in names if name in row), None)


def _data(row: Row) -> Any:
    """Return the snapshot of a row: one column, else the whole row."""
    value = pick(row, *_DATA)
    return (
        {name: parse_json_column(column) for name, column in row.items()} if value is None else parse_json_column(value)
    )


def _sorted_by_time(items: Iterator[ImportedRow]) -> Iterator[ImportedRow]:
    """Sort checkpoints by time, in runs that fit into memory, so that the newest gets the highest id."""
    run: list[ImportedRow] = []
    size = 0
    for item in items:
        if isinstance(item.line, ArchivedCheckpoint):
            run.append(item)
            size += item.line.size
            if len(run) == _MAX_SORTED or size > _MAX_SORTED_BYTES:
                yield from sorted(run, key=_created)
                run, size = [], 0
        else:
            yield item
    yield from sorted(run, key=_created)


def _created(item: ImportedRow) -> int:
    return parse_time(item.line.created) or 0
