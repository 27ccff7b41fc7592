"""Read-only queries of tasks: records, lists, counters, and the replay of a task for its worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from agentbus.core.clock import Now
from agentbus.core.codec import check, decode
from agentbus.core.validation import MAX_ID, PAGE_SIZE
from agentbus.operations.common import page
from agentbus.operations.protocol import Op, Query, Row
from agentbus.operations.task_ownership import HeldTask
from agentbus.records import (
    ApprovalRecord,
    Page,
    StepRecord,
    TaskDependency,
    TaskProblem,
    TaskRecord,
    TaskStatistics,
)


class TaskFilter(msgspec.Struct, frozen=True):
    """Selects tasks, newest first, before the cursor; None matches all."""

    status: tuple[str, ...] | None = None
    workflow: str | None = None
    session: str | None = None
    parent: str | None = None
    cursor: int = MAX_ID
    limit: int = PAGE_SIZE


class ReadyFilter(msgspec.Struct, frozen=True):
    """Selects tasks that can be taken now; ``manual``: only work items, or only workflows. None matches all."""

    workflow: str | None = None
    manual: bool | None = None
    limit: int = PAGE_SIZE


class ApprovalFilter(msgspec.Struct, frozen=True):
    """Selects approvals; ``history`` includes superseded ones."""

    task: str | None = None
    status: str | None = None
    history: bool = False
    limit: int = 1000


class Recorded(msgspec.Struct, frozen=True):
    """A step as a worker needs it to resume its task."""

    kind: str
    key: str
    position: int
    status: str
    main: int
    attempt: int
    failures: int
    digest: str
    note: str | None
    child: str | None
    due: int | None
    error: str | None
    checksum: int | None
    result: str | None
    trace: str | None = None


class Replay(msgspec.Struct, frozen=True):
    """The current records of a task: its steps, and its approvals (key and position). New ones come after the ``last``
    position; ``endings`` is the number of the last ending. The workflow may not reach what came after ``doubtful``, a
    failed step that is retried."""

    steps: Sequence[Recorded] = ()
    approvals: Sequence[tuple[str, int]] = ()
    last: int = 0
    doubtful: int = MAX_ID
    endings: int = 0


def get_task(id: str, now: Now) -> Op[TaskRecord | None]:
    rows = yield Query("task_get", (id,))
    records = yield from task_records(rows)
    return records[0] if records else None


def existing_task(id: str, now: Now) -> Op[TaskRecord]:
    """Return the record of a task that is known to exist."""
    record = yield from get_task(id, now)
    assert record is not None  # noqa: S101 - it was looked at in this transaction
    return record


def list_tasks(wanted: TaskFilter, now: Now) -> Op[Page[TaskRecord]]:
    statuses = None if wanted.status is None else f",{','.join(wanted.status)},"
    if wanted.status is not None and len(wanted.status) == 1:
        rows = yield Query(
            "task_list_status",
            (wanted.cursor, wanted.status[0], wanted.workflow, wanted.session, wanted.parent, wanted.limit + 1),
        )
    else:
        rows = yield Query(
            "task_list", (wanted.cursor, statuses, wanted.workflow, wanted.session, wanted.parent, wanted.limit + 1)
        )
    found = page(rows, wanted.limit, lambda row: row, lambda row: str(row[0]))
    return Page((yield from task_records(found.items)), found.cursor)


def resumable_tasks(limit: int, now: Now) -> Op[list[TaskRecord]]:
    """Return tasks that started and have not completed, have no worker, and wait for no decision."""
    rows = yield Query("task_resumable", (limit,))
    return (yield from task_records(rows))


def ready_tasks(wanted: ReadyFilter, now: Now) -> Op[list[TaskRecord]]:
    """Return the tasks that can be taken now: by workers, and work items by agents."""
    manual = None if wanted.manual is None else int(wanted.manual)
    rows = yield Query("item_ready_tasks", (now.wall, now.awake, wanted.workflow, manual, wanted.limit))
    return (yield from task_records(rows))


def blocked_tasks(limit: int, now: Now) -> Op[list[tuple[str, str, str]]]:
    """Return tasks that wait for one that failed, was stopped or was deleted, with it and its status."""
    rows = yield Query("dependency_stuck", (limit,))
    return [(task, dependency, status) for task, dependency, status in rows]


def task_steps(wanted: tuple[str, bool], now: Now) -> Op[list[StepRecord] | None]:
    """Return the steps of a task in order, with superseded ones if requested; None if there is no such task."""
    id, history = wanted
    rows = yield Query("task_by_id", ([id],))
    if not rows:
        return None
    rows = yield Query("step_list", (rows[0][0], int(history)))
    return [_step(row, id) for row in rows]


def list_approvals(wanted: ApprovalFilter, now: Now) -> Op[list[ApprovalRecord]]:
    if wanted.task is not None:
        rows = yield Query("approval_list_of", (wanted.task, wanted.status, int(wanted.history), wanted.limit))
    elif wanted.status == "open":
        rows = yield Query("approval_list_open", (wanted.limit,))
    else:
        rows = yield Query("approval_list", (wanted.status, int(wanted.history), wanted.limit))
    return [approval_record(row) for row in rows]


def task_statistics(workflow: str | None, now: Now) -> Op[TaskStatistics]:
    counts = yield Query("task_counts", (workflow,))
    tasks: dict[str, int] = {}
    workflows: dict[str, dict[str, int]] = {}
    for name, status, count in counts:
        tasks[status] = tasks.get(status, 0) + count
        workflows.setdefault(name, {})[status] = count
    steps = yield Query("step_counts", (workflow,))
    ((approvals,),) = yield Query("approval_count", (workflow,))
    ((oldest, mean),) = yield Query("task_ages", (workflow,))
    return TaskStatistics(
        tasks, workflows, dict(steps), approvals, None if oldest is None else max(0, now.wall - oldest),
        None if mean is None else float(mean),
    )  # fmt: skip


def replay_of(number: int, now: Now) -> Op[Replay]:
    """Return the records that a worker needs to resume a task."""
    steps = yield Query("step_replay", (number,))
    approvals = yield Query("approval_places", (number,))
    ((last, doubtful, endings),) = yield Query("step_last", (number,))
    return Replay(
        [Recorded(*row) for row in steps],
        [(key, position) for key, position in approvals],
        last,
        MAX_ID if doubtful is None else doubtful,
        endings,
    )


def read_held_tasks(numbers: Sequence[int], now: Now) -> Op[dict[int, HeldTask]]:
    """Return tasks by their numbers, for the worker that holds them."""
    rows = yield Query("task_held", (list(numbers),))
    return {row[0]: HeldTask(*row) for row in rows}


def unsettled_steps(limit: int, now: Now) -> Op[list[tuple[str, str, int]]]:
    """Return steps that only an operator can settle: task, key, and since when."""
    rows = yield Query("step_unsettled", (limit,))
    return [(task, key, since) for task, key, since in rows]


def served_workflows(limit: int, now: Now) -> Op[list[str]]:
    """Return the workflows that live workers announce."""
    rows = yield Query("workflow_served", (limit,))
    return [name for (name,) in rows]


def unserved_workflows(limit: int, now: Now) -> Op[dict[str, int]]:
    """Return the workflows with ready tasks that no live worker announces, each with the time since which its first
    ready task waits. Those that wait longest come first."""
    rows = yield Query("workflow_unserved", (limit,))
    return dict(rows)


class UnreceivedSignal(msgspec.Struct, frozen=True):
    """A signal that was sent to a task, and that it has not received."""

    name: str
    signal_id: str
    sender: str | None
    created: int


def unreceived_signals(wanted: tuple[str, int], now: Now) -> Op[list[UnreceivedSignal]]:
    """Return the signals of a task that it has not received, oldest first, at most a number of them."""
    rows = yield Query("signal_unreceived", wanted)
    return [UnreceivedSignal(*row) for row in rows]


def recorded_step(wanted: tuple[int, str, str], now: Now) -> Op[Recorded | None]:
    """Return one step, by the number of its task, its kind and its key."""
    rows = yield Query("step_recorded", wanted)
    return Recorded(*rows[0]) if rows else None


class Ending(msgspec.Struct, frozen=True):
    """The status of a task, for a caller that waits for its end."""

    status: str
    error: str | None
    checksum: int | None
    result: str | None


def ending_of(id: str, now: Now) -> Op[Ending | None]:
    rows = yield Query("task_ending", (id,))
    return Ending(*rows[0]) if rows else None


def task_records(rows: Sequence[Row]) -> Op[list[TaskRecord]]:
    """Return the records of rows of tasks, which start with the number."""
    after: dict[int, list[TaskDependency]] = {}
    # Few tasks have dependencies: those with a policy.
    numbers = [row[0] for row in rows if row[-1] is not None]
    for number, id, status, completed in (yield Query("dependency_of", (numbers,))) if numbers else ():
        after.setdefault(number, []).append(TaskDependency(id, status, completed))
    return [_task_record(row[1:], after.get(row[0], [])) for row in rows]


def _task_record(row: Row, after: list[TaskDependency]) -> TaskRecord:
    (
        id, name, workflow, status, phase, session, parent, auto, halting, progress, note, holder, waits, due,
        restarts, backoff, restarted, context, settings, checksum, arguments, result_sum, result, error, created,
        started, updated, ended, losses, max_losses, redo, manual, priority, trace, on_failed,
    ) = row  # fmt: skip
    # A task that waits for dependencies has not started, and waits for nothing else.
    open_ = [f"after:{one.task}" for one in after if one.completed is None] if status == "waiting" else []
    check(arguments, checksum, f"the arguments of task {id}")
    given = decode(arguments)
    return TaskRecord(
        id, name, workflow, status, phase, session, parent, bool(auto), bool(halting), progress, note, holder,
        open_ or _waits(status, decode(waits), due), due, restarts, backoff / 1000, restarted, decode(context),
        decode(settings), given["arguments"], given["keywords"],
        _decode_checked(result, result_sum, f"the result of task {id}"), problem(error), created, started,
        updated, ended, losses, max_losses, [] if redo is None else [one["step"] for one in decode(redo)],
        bool(manual), priority, after, on_failed, trace,
    )  # fmt: skip


def _waits(status: str, waits: list[str], due: int | None) -> list[str]:
    """Return what a task waits for. What a pending one waited for has come, except a time that has not, and the
    outcomes of steps, which an operator settles meanwhile."""
    if status != "pending" or due:
        return waits
    return [one for one in waits if one.startswith("step:")]


def problem(text: str | None) -> TaskProblem | None:
    return None if text is None else msgspec.json.decode(text, type=TaskProblem)


def _step(row: Row, task: str) -> StepRecord:
    (
        key, name, kind, status, position, attempt, failures, once, digest, progress, note, child, due, checksum,
        result, validation, error, started, finished, superseded, trace,
    ) = row  # fmt: skip
    return StepRecord(
        key, name, kind, status, position, attempt, failures, bool(once), digest, progress, note, child, due,
        _decode_checked(result, checksum, f"the result of step {key} of task {task}"),
        None if validation is None else decode(validation), problem(error), started, finished, superseded, trace,
    )  # fmt: skip


def approval_record(row: Row) -> ApprovalRecord:
    (
        task, key, name, status, position, checksum, shown, notify, expires, created, decided, by, reason, auto,
        superseded,
    ) = row  # fmt: skip
    return ApprovalRecord(
        task, key, name, status, position,
        _decode_checked(shown, checksum, f"what approval {key} of task {task} shows"),
        notify, expires, created, decided, by, reason, bool(auto), superseded,
    )  # fmt: skip


def _decode_checked(text: str | None, checksum: int | None, what: str) -> Any:
    if text is None or checksum is None:
        return None
    check(text, checksum, what)
    return decode(text)
