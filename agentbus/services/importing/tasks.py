"""Tasks of hand-made workflows: a row with what its steps made becomes a task whose steps are done.

Nobody goes on with one that had not ended until a person says so: it is halted. A workflow of its name that comes to
the same steps finds their results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from agentbus.codec import encode, plain
from agentbus.errors import InvalidInput
from agentbus.limits import TASK_ENDED
from agentbus.operations.adopting import Adopted
from agentbus.operations.archives import ArchivedApproval, ArchivedStep, ArchivedTask
from agentbus.records import TaskProblem
from agentbus.services.importing.mapping import Mapper, unpacked
from agentbus.services.importing.values import moment, name_of, percent, pick, text_of, word

Row = Mapping[str, Any]
Placed = Callable[[int], ArchivedApproval]
"""A decision that has yet to learn its position among all that its task came to."""
WORKFLOW = "imported"
"""The workflow of a task that does not say its own."""
_ID = ("id", "task_id", "uuid")
_REQUEST = ("request", "task_description", "description", "prompt", "task", "input", "goal")
_STEPS = (
    "analysis", "research", "requirements", "scope", "design", "plan", "implementation", "code", "changes", "review",
    "review_result", "tests", "test_results", "validation", "validation_result", "verification", "verification_result",
    "documentation", "deployment",
)  # fmt: skip
"""Columns that hold what a step made, in the order in which workflows come to them."""
_RESULT = ("result", "final_result", "output", "outcome")
_STATUSES = {
    **dict.fromkeys(("completed", "complete", "done", "finished", "success", "succeeded", "verified"), "completed"),
    **dict.fromkeys(("failed", "failure", "error", "errored", "crashed", "timeout"), "failed"),
    **dict.fromkeys(("stopped", "cancelled", "canceled", "aborted", "terminated", "killed"), "stopped"),
    **dict.fromkeys(("pending", "queued", "created", "new", "scheduled", "running", "active", "in_progress"), "halted"),
    **dict.fromkeys(("waiting", "paused", "halted", "interrupted", "blocked", "started", "resumed", ""), "halted"),
}
"""Any other word is the phase that a task was in when it was left."""
_YES = frozenset({"yes", "approved", "approve", "accepted", "accept", "ok", "true", "1", "granted", "pass", "passed"})
_NO = frozenset({"no", "rejected", "reject", "denied", "deny", "declined", "false", "0", "fail", "failed"})
_MOST_NAME = 200


def task_id(id: object, prefix: str) -> str | None:
    """The id of a task; a number gets a name of its own, since every database counts from 1."""
    return name_of(id if isinstance(id, str) and not id.isdigit() else f"{prefix}:{id}")


def task_of(row: Row, number: int, prefix: str, mapper: Mapper) -> Adopted | None:
    """A row as a task; None if nothing can be made of it, which the report says."""
    said = pick(row, *_ID)
    id = None if said is None else task_id(said, prefix)
    if id is None:
        mapper.tally.refuse(number, "tasks: a row without an id")
        return None
    known = {name: unpacked(value) for name, value in row.items()}
    try:
        return _Task(id, known, number, mapper).adopted()
    except InvalidInput as error:
        mapper.tally.refuse(number, f"task {id}: {error}")
        return None


class _Task:
    """One row, read field by field; what nobody asked for becomes the context of the task."""

    def __init__(self, id: str, row: dict[str, Any], number: int, mapper: Mapper) -> None:
        self._id = id
        self._row = row
        self._number = number
        self._limit = mapper.payload
        self._rest = {name: value for name, value in row.items() if value is not None}
        begun = mapper.time(row, "created_at", "created", "started_at", "timestamp")
        self._dated = begun is not None
        self._created = mapper.modified if begun is None else begun
        changed = mapper.time(row, "updated_at", "last_updated", "completed_at", "ended_at", "updated")
        self._updated = max(self._created, changed or self._created)

    def adopted(self) -> Adopted:
        said = word(self._take("status", "state"))
        status = _STATUSES.get(said, "halted")
        error = self._take("error", "error_details", "error_message", "failure_reason", "last_error")
        request = self._take(*_REQUEST)
        title = text_of(self._take("title", "name")) or text_of(request) or self._id
        result = self._take(*_RESULT)
        phase = self._phase(said)
        steps, approvals = self._made()
        # What completed says what it came to: at least what its last step made.
        if result is None and status == "completed" and steps:
            outcome = (str(steps[-1].result), steps[-1].checksum)
        else:
            outcome = encode(result, self._limit)
        arguments, checksum = encode({"arguments": [] if request is None else [request], "keywords": {}}, self._limit)
        took = self._take("retry_count", "retries", "attempts")
        done = status == "completed"
        workflow = name_of(self._take("workflow", "workflow_name", "workflow_type", "task_type")) or WORKFLOW
        settings = self._take("settings", "config")
        progress = percent(self._take("progress", "progress_percentage"))
        session = name_of(self._take("session_id", "session"))
        ended = status in TASK_ENDED
        return Adopted(
            ArchivedTask(
                id=self._id, workflow=workflow, name=title[:_MOST_NAME], session=session, parent=None, status=status,
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
        """The first of these fields that has something; it is no part of the context then."""
        for name in names:
            if self._row.get(name) not in (None, ""):
                self._rest.pop(name, None)
                return self._row[name]
        return None

    def _phase(self, said: str) -> str | None:
        """What a hand-made status says beyond ours, or where its state machine was."""
        if said not in _STATUSES:
            return name_of(said)
        state = self._row.get("workflow_state")
        if isinstance(state, Mapping):
            state = pick(state, "phase", "current_phase", "step", "current_step", "state")
        return name_of(state or self._row.get("phase") or self._row.get("current_phase"))

    def _made(self) -> tuple[list[ArchivedStep], list[ArchivedApproval]]:
        """Its finished steps, each with the decisions about it behind it; then all other decisions."""
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

    def _decisions(self) -> dict[str, list[Placed]]:
        """Who decided what, by what it was about."""
        given = self._row.get("approvals")
        if isinstance(given, Mapping):
            given = [_about(name, one) for name, one in given.items()]
        if not isinstance(given, list) or not all(isinstance(one, Mapping) and _verdict(one) for one in given):
            # It stays in the context as it is.
            return {}
        self._rest.pop("approvals", None)
        counts: Counter[str] = Counter()
        found: dict[str, list[Placed]] = {}
        for one in given:
            name = name_of(pick(one, "name", "approval", "phase", "step", "stage", "type")) or "approval"
            counts[name] += 1
            key = name if counts[name] == 1 else f"{name}#{counts[name]}"
            found.setdefault(name, []).append(self._decision(one, name, key))
        return found

    def _decision(self, raw: Row, name: str, key: str) -> Placed:
        at = moment(pick(raw, "at", "timestamp", "decided_at", "approved_at", "created_at", "time")) or self._updated
        by = text_of(pick(raw, "by", "approver", "approved_by", "user", "operator", "who")) or "unknown"
        reason = text_of(pick(raw, "reason", "comment", "comments", "feedback", "notes"))
        shown, checksum = encode(None, self._limit)

        def placed(position: int) -> ArchivedApproval:
            return ArchivedApproval(
                key=key, superseded=0, name=name, position=position, status=_verdict(raw), auto=0, notify=None,
                expires=None, created=at, decided=at, decided_by=by[:_MOST_NAME], reason=reason, checksum=checksum,
                shown=shown,
            )  # fmt: skip

        return placed

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


def _about(name: str, one: Any) -> Row:
    return {"name": name, **(one if isinstance(one, Mapping) else {"decision": one})}


def _verdict(raw: Row) -> str:
    """What was decided; nothing if that cannot be told."""
    said = word(str(pick(raw, "decision", "verdict", "status", "approved", "result", "answer")))
    return "approved" if said in _YES else "rejected" if said in _NO else ""
