"""Tasks: start, claims by workers, release and end. See the other ``task_`` modules for steps, approvals and
control."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import msgspec

from agentbus.core.clock import Now, backoff
from agentbus.core.codec import canonical, plain
from agentbus.core.validation import MAX_LOSSES, RETRY_DELAY, TASK_STATUSES
from agentbus.errors import AgentBusError, TaskExists, WrongState
from agentbus.operations.common import closed_session_error, fence
from agentbus.operations.events import event, record
from agentbus.operations.protocol import Actor, ExecuteMany, Op, Outcome, Query, Wake, gather, operation
from agentbus.operations.task_dependencies import (
    Dependencies,
    Resolved,
    insert_dependencies,
    missed_completions,
    resolve_dependencies,
    stop_dependent,
)
from agentbus.operations.task_ownership import (
    HeldRequest,
    HeldTask,
    Hold,
    apply_redos,
    check_holders,
    ended_channel,
    for_holders,
    notify_dependents,
    notify_parents,
    ready_channel,
    release_tasks,
    released_status,
    task_events,
    unsettled_waits,
)
from agentbus.operations.task_signatures import Signatures, signatures_of
from agentbus.operations.task_waits import describe_waits

_MAX_RETRY_DELAY = 3600 * 1000
_MAX_SKIPPED = 1000
"""Tasks at the head of the queue that a claim skips at most because other workers have to take them."""
_CLOCK_TOLERANCE = 1000
"""Milliseconds of drift between wall and awake time; a larger difference means that the clock was set."""
CLOCK = "task_clock"
"""The meta key with the offset of the wall clock from awake time, and the boot it belongs to."""
SUSPECT_LOSSES = 2
"""Workers that a task may lose in a row before it runs alone."""

TRANSITIONS: dict[str, dict[str, str]] = {
    "claim": {"pending": "running"},
    "complete": {"running": "completed"},
    "fail": {"running": "failed"},
    "release": {"running": "waiting"},
    "wake": {"waiting": "pending"},
    "free": {"running": "pending"},
    "halt": {"pending": "halted", "waiting": "halted", "running": "running"},
    "continue": {"halted": "pending", "running": "running"},
    "resume": {"pending": "pending", "halted": "pending", "failed": "pending", "stopped": "pending"},
    "stop": dict.fromkeys(("pending", "running", "waiting", "halted"), "stopped"),
    "redo": dict.fromkeys(TASK_STATUSES, "pending"),
    "restart": dict.fromkeys(TASK_STATUSES, "pending"),
}
"""The status after an action, by the status before. A running task halts before its next step; one that fails and may
be restarted is pending, as is one without a holder."""


class StartRequest(msgspec.Struct, frozen=True):
    """A task to create. ``delay`` and ``backoff`` are milliseconds. ``parent``: the task that it is a sub-task of."""

    id: str
    workflow: str
    name: str
    arguments: tuple[str, int]
    """JSON text and its checksum."""
    session: str | None = None
    auto: bool = False
    context: str = "{}"
    settings: str = "{}"
    restarts: int = 0
    backoff: int = round(RETRY_DELAY * 1000)
    delay: int = 0
    parent: str | None = None
    by: str | None = None
    max_losses: int = MAX_LOSSES
    manual: bool = False
    """True for a work item, which an agent takes."""
    priority: int = 5
    dependencies: Dependencies | None = None
    trace: str | None = None
    """The trace context in which it is started."""

    @property
    def data_size(self) -> int:
        return len(self.arguments[0]) + len(self.context) + len(self.settings)

    def with_id(self, id: str) -> StartRequest:
        """Return the same request under another id."""
        return msgspec.structs.replace(self, id=id)


class ClaimTasksRequest(msgspec.Struct, frozen=True):
    """Claim up to ``limit`` tasks of these workflows, oldest first, for ``duration`` milliseconds. ``busy``: the worker
    already runs others."""

    actor: Actor
    workflows: tuple[str, ...]
    limit: int
    duration: int
    busy: bool = False

    @property
    def row_estimate(self) -> int:
        return 4 * self.limit


class ClaimedTask(msgspec.Struct, frozen=True):
    """A task as its worker receives it. A ``fresh`` one has no records yet."""

    number: int
    id: str
    workflow: str
    name: str
    session: str | None
    auto: int
    lease: int
    fresh: int
    notes: str
    context: str
    settings: str
    checksum: int
    arguments: str
    generation: int
    losses: int = 0
    trace: str | None = None

    @property
    def suspect(self) -> bool:
        """Return whether it has lost several workers since its last progress. It may have killed them, so it runs
        alone.

        A single loss proves nothing: a worker that is killed loses all its tasks.
        """
        return self.losses >= SUSPECT_LOSSES

    @property
    def hold(self) -> Hold:
        return Hold(self.number, self.id, self.lease)


class ClaimedTasks(msgspec.Struct, frozen=True):
    """The result of a claim. ``more``: there are more tasks, or the next one must run alone. ``next_wall`` is the time
    at which the next task is due, ``next_awake`` that at which the next lease lapses."""

    tasks: Sequence[ClaimedTask]
    more: bool = False
    next_wall: int | None = None
    next_awake: int | None = None


class RenewTasksRequest(msgspec.Struct, frozen=True):
    """Extend the leases of tasks to ``duration`` milliseconds from now."""

    actor: Actor
    holds: tuple[Hold, ...]
    duration: int

    @property
    def row_estimate(self) -> int:
        return len(self.holds)


class ReleaseRequest(HeldRequest, frozen=True):
    """Release a task whose worker cannot continue it now: ``awaits`` are pairs of a kind (approval, task, step, retry,
    or that of a wait) and a name; ``due`` is the wall time of the next attempt in any case. ``lost``: user code ended
    the worker, which counts as a loss."""

    awaits: tuple[tuple[str, str], ...] = ()
    due: int | None = None
    lost: bool = False


class CompleteRequest(HeldRequest, frozen=True):
    """A task whose workflow returned: the JSON of the result and its checksum."""

    result: tuple[str, int] = ("null", 0)

    @property
    def data_size(self) -> int:
        return len(self.result[0])


class FailRequest(HeldRequest, frozen=True):
    """A task whose workflow raised: the problem as JSON. ``steps`` are its origin; ``final``: a retry would not
    help."""

    problem: str = "{}"
    summary: str = ""
    steps: tuple[str, ...] = ()
    final: bool = False


@operation(durable=True, stores_data=True)
def start_task(requests: Sequence[StartRequest], now: Now) -> Op[list[Outcome[bool]]]:
    """Create tasks. A known id with the same workflow and arguments is the same task; the outcome is whether it is
    new."""
    rows, announced = yield from gather(
        Query("task_known", ([request.id for request in requests],)),
        signatures_of(request.workflow for request in requests),
    )
    known = {id: (workflow, arguments, bool(manual)) for id, workflow, arguments, manual in rows}
    takes = Signatures(announced)
    fresh: list[StartRequest] = []
    resolved: dict[str, Resolved] = {}
    outcomes: list[Outcome[bool]] = []
    for request in requests:
        if request.id in known:
            workflow, arguments, manual = known[request.id]
            if manual != request.manual:
                outcomes.append(TaskExists(task=request.id, differs="a workflow" if request.manual else "no workflow"))
            elif workflow != request.workflow:
                outcomes.append(TaskExists(task=request.id, differs="another workflow"))
            elif canonical(arguments) != canonical(request.arguments[0]):
                outcomes.append(TaskExists(task=request.id, differs="other arguments"))
            else:
                outcomes.append(False)
            continue
        closed = (
            None
            if request.session is None
            else (yield from closed_session_error(request.session, "start a task in it"))
        )
        error = closed or (None if request.manual else takes.misfit(request.workflow, request.arguments[0]))
        if error is None and request.dependencies is not None:
            starting = {one.id: "stopped" if _is_stopped(one, resolved) else "pending" for one in fresh}
            found = yield from resolve_dependencies(request.id, request.dependencies, starting, now)
            if isinstance(found, Resolved):
                resolved[request.id] = found
            else:
                error = found
        if error is not None:
            outcomes.append(error)
            continue
        known[request.id] = (request.workflow, request.arguments[0], request.manual)
        fresh.append(request)
        outcomes.append(True)
    yield from insert_tasks(fresh, now, resolved)
    return outcomes


def _is_stopped(request: StartRequest, resolved: Mapping[str, Resolved]) -> bool:
    """Return whether a task that starts in this transaction is stopped at once by its policy."""
    return request.id in resolved and resolved[request.id].stops is not None


def insert_tasks(
    requests: Sequence[StartRequest], now: Now, resolved: Mapping[str, Resolved] | None = None
) -> Op[None]:
    """Insert new tasks. ``resolved``: the dependencies of those that have some."""
    if not requests:
        return
    resolved = resolved or {}
    blocked = {id for id, found in resolved.items() if found.blocked}
    yield ExecuteMany(
        "task_insert",
        [
            (
                request.id, request.workflow, request.name, request.session, request.parent,
                "waiting" if request.id in blocked else "pending", int(request.auto),
                None if request.id in blocked else _due(request, now), request.restarts, request.backoff,
                now.wall, now.wall, request.context, request.settings, request.arguments[1], request.arguments[0],
                request.max_losses, int(request.manual), request.priority,
                None if request.dependencies is None else request.dependencies.on_failed,
                0 if request.dependencies is None else _due(request, now), request.trace,
            )
            for request in requests
        ],
    )  # fmt: skip
    yield from insert_dependencies(resolved)
    yield from record([
        event(
            now.wall, "task_started", ("task", request.id), request.by,
            workflow=request.workflow, session=request.session, parent=request.parent, auto=request.auto,
            **_item_facts(request),
        )
        for request in requests
    ])  # fmt: skip
    yield Wake([ready_channel(request.manual) for request in requests if request.id not in blocked])
    yield from _stop_started([request.id for request in requests if _is_stopped(request, resolved)], resolved, now)


def _due(request: StartRequest, now: Now) -> int:
    """Return the wall time before which a task does not start; 0 if there is none."""
    return now.wall + request.delay if request.delay else 0


def _item_facts(request: StartRequest) -> dict[str, Any]:
    facts: dict[str, Any] = {"manual": True} if request.manual else {}
    return facts if request.dependencies is None else {**facts, "after": list(request.dependencies.after)}


def _stop_started(ids: Sequence[str], resolved: Mapping[str, Resolved], now: Now) -> Op[None]:
    """Stop new tasks one of whose dependencies has failed or was stopped before."""
    rows = (yield Query("dependency_numbers", (list(ids),))) if ids else []
    for id, number in rows:
        cause = resolved[id].stops
        assert cause is not None  # noqa: S101 - these are the ones that have one
        yield from stop_dependent(number, id, "waiting", cause, now)
        yield Wake([ended_channel(id)])


@operation(durable=False, run_last=True)
def claim_tasks(requests: Sequence[ClaimTasksRequest], now: Now) -> Op[list[Outcome[ClaimedTasks]]]:
    """Claim tasks for workers. Due tasks are made ready and lapsed ones released first, so that no monitor is
    needed."""
    refused = yield from fence(request.actor for request in requests)
    horizon = yield from maintain_tasks(now)
    outcomes: list[Outcome[ClaimedTasks]] = []
    for request in requests:
        error = refused.get(request.actor)
        if error is not None:
            outcomes.append(error)
            continue
        tasks, more = yield from _ready(request)
        if not tasks:
            outcomes.append(ClaimedTasks([], more, *horizon))
            continue
        agent = request.actor.agent
        until = now.awake + request.duration
        yield ExecuteMany("task_lease", [(agent, until, now.wall, task.number) for task in tasks])
        yield from record([
            event(now.wall, "task_running", ("task", task.id), agent, before="pending", lease=task.lease)
            for task in tasks
        ])  # fmt: skip
        outcomes.append(ClaimedTasks(tasks, more, *horizon))
    return outcomes


def _ready(request: ClaimTasksRequest) -> Op[tuple[list[ClaimedTask], bool]]:
    """Return the oldest tasks that this worker may take, and whether there are more. If live workers have different
    versions of a workflow, a task goes to one that accepts its arguments.

    A suspect task is claimed alone, by a worker that runs no other. Tasks behind it in the queue wait for it, so that a
    busy worker becomes idle and takes it.
    """
    wanted = request.limit + 1
    while True:
        rows, announced = yield from gather(
            Query("task_ready", (list(request.workflows), wanted)), signatures_of(request.workflows)
        )
        takes = Signatures(announced)
        found = [ClaimedTask(*row) for row in rows]
        tasks = [
            task for task in found if not takes.better_elsewhere(task.workflow, request.actor.agent, task.arguments)
        ]
        if tasks and tasks[0].suspect and not request.busy:
            return tasks[:1], len(tasks) > 1
        share = list(takewhile(lambda task: not task.suspect, tasks))[: request.limit]
        if len(share) < len(tasks) or len(found) < wanted or wanted > _MAX_SKIPPED:
            return share, len(share) < len(tasks)
        wanted *= 4


def maintain_tasks(now: Now) -> Op[tuple[int | None, int | None]]:
    """Make due tasks ready, and release lapsed ones; return when to do it again (wall, awake)."""
    ((due, until, known),) = yield Query("task_horizon")
    if (yield from _detect_clock_change(known, now)):
        ((due, until, _),) = yield Query("task_horizon")
    if due is not None and due <= now.wall:
        waited = yield Query("task_waited", (now.wall,))
        yield from record([event(now.wall, "task_pending", ("task", id), None, before="waiting") for (id,) in waited])
        yield Query("task_promote", (now.wall,))
    if until is not None and until <= now.awake:
        rows = yield Query("task_lapsed", (now.awake,))
        yield from release_tasks([HeldTask(*row) for row in rows], "its lease ran out", now)
    if (due is not None and due <= now.wall) or (until is not None and until <= now.awake):
        ((due, until, _),) = yield Query("task_horizon")
    return due, until


def _detect_clock_change(known: str | None, now: Now) -> Op[bool]:
    """Shift due times if the wall clock was set back since the last claim: delays would otherwise grow by as much. A
    task that waits for a duration becomes ready, and is released again until the new time. Return whether anything
    changed."""
    boot, _, offset = (known or "").rpartition(" ")
    ahead = now.wall - now.awake
    if boot == now.boot and abs(ahead - int(offset)) < _CLOCK_TOLERANCE:
        return False
    yield Query("meta_set", (CLOCK, f"{now.boot} {ahead}"))
    if boot != now.boot or ahead > int(offset):
        return False
    rows = yield Query("task_written_later", (now.wall,))
    yield ExecuteMany("task_shift", [(updated - now.wall, now.wall, number) for number, updated in rows])
    yield ExecuteMany("step_shift", [(updated - now.wall, number) for number, updated in rows])
    asleep = yield Query("task_asleep_later", (now.wall,))
    if asleep:
        yield ExecuteMany("step_shift", [(int(offset) - ahead, number) for number, _ in asleep])
        yield ExecuteMany("task_ready_now", [(now.wall, number) for number, _ in asleep])
        yield from record([event(now.wall, "task_pending", ("task", id), None, before="waiting") for _, id in asleep])
    return bool(rows or asleep)


@operation(durable=False)
def release_lapsed_tasks(requests: Sequence[None], now: Now) -> Op[list[Outcome[int]]]:
    """Release tasks whose lease lapsed, where no worker claims; the outcome is their number. Dependents of tasks that a
    process of an older version completed are made ready."""
    rows = yield Query("task_lapsed", (now.awake,))
    yield from release_tasks([HeldTask(*row) for row in rows], "its lease ran out", now)
    yield from notify_dependents((yield from missed_completions(_MAX_SKIPPED, now)), now)
    return [len(rows)] * len(requests)


@operation(durable=False)
def renew_tasks(requests: Sequence[RenewTasksRequest], now: Now) -> Op[list[Outcome[list[tuple[int, int]]]]]:
    """Extend leases; the outcome has the numbers and leases of tasks that are lost."""
    refused = yield from fence(request.actor for request in requests)
    outcomes: list[Outcome[list[tuple[int, int]]]] = []
    for request in requests:
        if request.actor in refused:
            outcomes.append(refused[request.actor])
            continue
        errors, _ = yield from check_holders([HeldRequest(request.actor, hold) for hold in request.holds])
        until = now.awake + request.duration
        yield ExecuteMany(
            "task_renew",
            [(until, hold.number) for index, hold in enumerate(request.holds) if index not in errors],
        )
        outcomes.append([(hold.number, hold.lease) for index, hold in enumerate(request.holds) if index in errors])
    return outcomes


@operation(durable=True)
def release_task(requests: Sequence[ReleaseRequest], now: Now) -> Op[list[Outcome[str]]]:
    """Release tasks. The outcome is their status: waiting; halted, if that was requested; pending, if they wait for
    nothing or its arrival preceded the release."""
    return (yield from for_holders(requests, _release, now))


def _release(request: ReleaseRequest, task: HeldTask, now: Now) -> Op[str]:
    if request.lost:
        failed = yield from release_tasks([task], "user code ended the event loop of its worker", now)
        return "failed" if failed else released_status(task)
    again = task.redo is not None
    task = yield from apply_redos(task, now)
    yield ExecuteMany("step_interrupt", [(task.number,)])
    status, due, waits = yield from _released_status(task, request, again, now)
    yield Query("task_let_go", (status, due, plain(waits), now.wall, task.number))
    facts = {"waits": waits} if waits else {}
    yield from record(task_events([task], f"task_{status}", request.actor.agent, now, **facts))
    # Also workers that wait for the next task that is due.
    yield Wake([task.ready_channel] if status == "pending" or due is not None else [])
    return status


def _released_status(
    task: HeldTask, request: ReleaseRequest, again: bool, now: Now
) -> Op[tuple[str, int | None, list[str]]]:
    """Return the status of a released task, when it is due, and what it waits for. ``again``: a redo was applied."""
    waits, due = yield from describe_waits(task, request.awaits, request.due, now)
    if task.halting:
        return "halted", None, waits
    rows = yield Query("task_awaited", (task.number,))
    present = {(kind, name) for kind, name in rows}
    awaited = [one for one in request.awaits if one[0] != "retry"]
    if again or not request.awaits or any(one not in present for one in awaited):
        # The next worker finds out how to continue; until then only steps for an operator are reported.
        return "pending", 0, unsettled_waits(rows)
    if not awaited:
        return "pending", request.due or 0, waits if request.due else []
    return "waiting", due, waits


@operation(durable=True, stores_data=True)
def complete_task(requests: Sequence[CompleteRequest], now: Now) -> Op[list[Outcome[str]]]:
    """Complete tasks and store their results. The outcome is their status: one with a waiting redo runs again."""
    errors, tasks = yield from check_holders(requests)
    done: list[CompleteRequest] = []
    again: dict[int, str] = {}
    for index, request in enumerate(requests):
        task = tasks.get(request.hold.number)
        if index in errors or task is None:
            continue
        if task.redo is None:
            done.append(request)
        else:
            again[task.number] = yield from _release(ReleaseRequest(request.actor, request.hold), task, now)
    # Steps and waits that the workflow itself abandoned.
    yield ExecuteMany("step_abandon", [(now.wall, request.hold.number) for request in done])
    yield ExecuteMany("task_complete", [(*reversed(request.result), now.wall, request.hold.number) for request in done])
    for request in done:
        task = tasks[request.hold.number]
        yield from record(task_events([task], "task_completed", request.actor.agent, now))
    yield from notify_parents([tasks[request.hold.number] for request in done], now)
    return [errors.get(index) or again.get(request.hold.number, "completed") for index, request in enumerate(requests)]


@operation(durable=True)
def fail_task(requests: Sequence[FailRequest], now: Now) -> Op[list[Outcome[str]]]:
    """Fail tasks. One that may be restarted becomes pending after a delay, and resumes at the failed step; the outcome
    is its status."""
    return (yield from for_holders(requests, _fail, now))


def _fail(request: FailRequest, task: HeldTask, now: Now) -> Op[str]:
    task = yield from apply_redos(task, now)
    yield ExecuteMany("step_interrupt", [(task.number,)])
    facts: dict[str, Any] = {"error": request.summary}
    again = not request.final and task.restarted < task.restarts
    if again:
        delay = retry_delay(task.backoff, task.restarted + 1)
        facts |= {"delay": delay, "restart": task.restarted + 1}
        yield from retry_steps(task, request.steps)
        yield Query("task_restart_later", (now.wall + delay, request.problem, now.wall, task.number))
    else:
        yield Query("task_fail", (request.problem, now.wall, task.number))
    status = released_status(task) if again else "failed"
    yield from record(task_events([task], f"task_{status}", request.actor.agent, now, **facts))
    if not again:
        yield from notify_parents([task], now)
    return status


def retry_steps(task: HeldTask, steps: Sequence[str]) -> Op[None]:
    """Supersede the steps that a task failed at, so that they run again. Finished ones stay."""
    if steps:
        yield Query("task_generation", (task.number,))
        yield ExecuteMany("step_supersede_one", [(task.generation + 1, task.number, step) for step in steps])


def retry_delay(first: int, failures: int) -> int:
    """Return the milliseconds to wait after this many failures; ``first`` after the first."""
    return int(backoff(failures, first, _MAX_RETRY_DELAY))


def problem_steps(problem: str | None) -> list[str]:
    """Return the steps that a task failed at."""
    found = {} if problem is None else msgspec.json.decode(problem)
    if found.get("type") == "WorkflowChanged":
        # Only a redo may invalidate the step that no longer matches.
        return []
    return [str(step) for step in (found.get("step"), *found.get("others", ())) if step is not None]


def wrong_state(task: HeldTask, action: str, advice: str) -> AgentBusError:
    """Return the error for an action that the status of a task does not allow."""
    return WrongState(what="task", name=task.id, status=task.status, action=f"{action} it", advice=advice)
